//! Nodes are added and drained while rows are written, and a killed command can be continued.

use serde_json::json;

use super::{
    Nodes, ROWS, Writer, address, begin, cluster, events, make_table, members, result, shards_on,
};

#[test]
fn nodes_are_added_and_drained_while_rows_are_written() {
    let Some(nodes) = Nodes::shared() else { return };
    let database = nodes.database("moved");
    make_table(&database, 4);
    let (one, two, spare) =
        (address(nodes.worker(0)), address(nodes.worker(1)), address(&nodes.spare));

    let status = cluster(&database, &["status", "--json"]).json();
    let of = |name: &str| {
        let nodes = status["nodes"].as_array().unwrap();
        nodes.iter().map(|node| node[name].clone()).collect::<Vec<_>>()
    };
    assert_eq!(of("node"), [address(nodes.coordinator()), one.clone(), two.clone()]);
    assert_eq!(of("role"), ["coordinator", "worker", "worker"]);
    assert_eq!(of("shards"), [0, 2, 2]);
    assert_eq!(of("reachable"), [true, true, true]);
    assert_eq!(of("has_streaming_standby"), [false, false, false]);
    assert!(of("bytes")[1].as_u64().unwrap() > 100_000, "{status}");
    assert_eq!((&status["moves_needed"], &status["moves"]), (&json!(0), &json!([])));
    let text = cluster(&database, &["status"]).text();
    assert!(text.contains(&one) && text.contains("coordinator"), "{text}");
    assert!(text.contains("the shards are spread evenly"), "{text}");

    // The new node has neither the database nor the extension.
    let before = members(&database);
    let dry = cluster(&database, &["add", &spare, "--dry-run"]).text();
    assert!(dry.contains("would do") && dry.contains("nothing was changed"), "{dry}");
    assert_eq!(members(&database), before);
    let there = format!("SELECT count(*) FROM pg_database WHERE datname = '{}'", database.name);
    assert_eq!(nodes.spare.sql("postgres", &there), "0");

    let writers = [Writer::start(&database, 1_000_000), Writer::start(&database, 2_000_000)];
    let added = result(&cluster(&database, &["add", &spare, "--json"]));
    assert_eq!((&added["was_there"], &added["moves"]), (&json!(false), &json!(1)), "{added}");
    assert_eq!(shards_on(&database, &nodes.spare), 1);
    let again = result(&cluster(&database, &["add", &spare, "--json"]));
    assert_eq!((&again["was_there"], &again["moves"]), (&json!(true), &json!(0)), "{again}");

    let before = members(&database);
    let dry = cluster(&database, &["drain", &one, "--dry-run", "--json"]);
    let planned = events(&dry).iter().filter(|event| event["state"] == "planned").count();
    assert_eq!(planned, shards_on(&database, nodes.worker(0)), "{}", dry.stdout);
    assert_eq!(members(&database), before);
    let run = cluster(&database, &["drain", &one, "--json"]);
    let drained = result(&run);
    assert_eq!((&drained["removed"], &drained["moves"]), (&json!(true), &json!(planned)));
    let done: Vec<_> = events(&run).into_iter().filter(|event| event["state"] == "done").collect();
    assert_eq!(done.len(), planned);
    let last = done.last().unwrap();
    assert_eq!(last["total_bytes_arrived"], last["total_bytes"]);
    let mut rows = usize::try_from(ROWS).unwrap();
    for writer in writers {
        let written = writer.stop();
        assert_eq!(written.failed, Vec::<String>::new());
        rows += written.inserted.len();
    }
    assert_eq!(database.sql("SELECT count(*) FROM t"), rows.to_string());
    assert!(!members(&database).contains(&nodes.worker(0).port().to_string()));

    // A drained node is added again and gets its share of shards. Then the node is drained without
    // logical replication.
    let alone = nodes.adding.lock();
    let back = cluster(&database, &["add", &one, "--no-rebalance"]).text();
    drop(alone);
    assert!(back.contains("was added"), "{back}");
    assert_eq!(shards_on(&database, nodes.worker(0)), 0);
    let spread = result(&cluster(&database, &["rebalance", "--json"]));
    assert_eq!(spread["moves"], 1);
    let text = cluster(&database, &["drain", &one, "--blocking"]).text();
    assert!(text.contains("is empty and removed"), "{text}");
    let text = cluster(&database, &["drain", &two]).text();
    assert!(text.contains("moved "), "{text}");
    assert_eq!(shards_on(&database, &nodes.spare), 4);
    let last = cluster(&database, &["drain", &spare]);
    assert_eq!(last.code, 1, "{}", last.stdout);
    assert!(last.stdout.contains("is the last node that may have shards"), "{}", last.stdout);
    assert_eq!(shards_on(&database, &nodes.spare), 4);
}

#[test]
fn a_drain_that_is_killed_goes_on_when_it_is_run_again() {
    let Some(nodes) = Nodes::shared() else { return };
    let database = nodes.database("killed");
    make_table(&database, 8);
    let one = address(nodes.worker(0));
    let writer = Writer::start(&database, 1_000_000);
    // The command is killed before the first move, during a move, and between two moves.
    for (name, value) in [("name", "close"), ("state", "started"), ("state", "done")] {
        let (mut child, mut lines) = begin(&database, &["drain", &one, "--json"]);
        let met = lines.find(|line| line[name] == value);
        child.kill().expect("is killed");
        child.wait().expect("has ended");
        assert!(met.is_some(), "the drain ended before {value}");
        assert!(members(&database).contains(&format!("{}|f", nodes.worker(0).port())));
    }
    // After an interrupt, the current move still finishes, in the command or on the coordinator.
    let (child, mut lines) = begin(&database, &["drain", &one, "--json"]);
    lines.find(|line| line["state"] == "started").expect("it moves");
    child.signal("INT");
    let here = lines.any(|line| line["state"] == "done");
    drop(lines);
    let output = child.wait_with_output().expect("has ended");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert_eq!(here, !said.contains("the coordinator finishes the move"), "{said}");
    assert!(said.contains("Run the command again to go on"), "{said}");

    let drained = result(&cluster(&database, &["drain", &one, "--json"]));
    assert_eq!(drained["removed"], true);
    let written = writer.stop();
    assert_eq!(written.failed, Vec::<String>::new());
    written.is_there(&database);
    assert_eq!(shards_on(&database, nodes.worker(1)), 8);
    assert_eq!(database.sql("SELECT count(*) FROM pg_dist_cleanup"), "0");
    for node in [nodes.worker(0), nodes.worker(1)] {
        let slots = format!(
            "SELECT count(*) FROM pg_replication_slots WHERE database = '{}'",
            database.name
        );
        assert_eq!(node.sql(&database.name, &slots), "0");
        let subscriptions = "SELECT count(*) FROM pg_subscription s JOIN pg_database d \
                             ON d.oid = s.subdbid WHERE d.datname = current_database()";
        assert_eq!(node.sql(&database.name, subscriptions), "0");
    }
    let left = "SELECT count(*) FROM pg_class WHERE relname ~ '^t_[0-9]+$'";
    assert_eq!(nodes.worker(0).sql(&database.name, left), "0");
}

/// Adding the node reverts an abandoned drain.
#[test]
fn a_drain_is_taken_back() {
    let Some(nodes) = Nodes::shared() else { return };
    let database = nodes.database("back");
    make_table(&database, 4);
    let one = address(nodes.worker(0));
    let (mut child, mut lines) = begin(&database, &["drain", &one, "--json", "--blocking"]);
    lines.find(|line| line["state"] == "done").expect("it moves");
    child.kill().expect("is killed");
    child.wait().expect("has ended");
    let back = cluster(&database, &["add", &one, "--json", "--blocking"]);
    assert_eq!(result(&back)["was_there"], true);
    assert!(events(&back).iter().any(|event| event["name"] == "open"), "{}", back.stdout);
    assert_eq!(shards_on(&database, nodes.worker(0)), 2);
    assert_eq!(database.sql("SELECT count(*) FROM t"), ROWS.to_string());
}
