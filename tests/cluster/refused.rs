//! Commands report missing preconditions before any change.

use hark_testkit::citus::CitusCluster;

use super::{Nodes, SETTINGS, address, cluster, events, make_table, members};
use crate::cli::support::hark;

#[test]
fn what_moves_need_is_looked_at_before_anything_is_changed() {
    let Some(nodes) = Nodes::shared() else { return };
    let database = nodes.database("needs");
    make_table(&database, 2);
    let settings = [&SETTINGS[..], &["wal_level=replica"]].concat();
    let plain = CitusCluster::node(&settings);
    CitusCluster::prepare(&plain, &database.name);
    let before = members(&database);
    for args in [&["add", &address(&plain)][..], &["add", &address(&plain), "--dry-run"]] {
        let run = cluster(&database, args);
        assert_eq!(run.code, 1, "{}", run.stdout);
        let said = format!("not met     {}  wal_level: replica; ", address(&plain));
        assert!(run.stdout.contains(&said), "{}", run.stdout);
        assert!(run.stdout.contains("set wal_level = logical and restart the node"));
        assert!(run.stderr.contains("1 of the requirements above is not met"), "{}", run.stderr);
        assert_eq!(members(&database), before);
    }
    // Citus itself adds the node, and then `drain` refuses to begin.
    database.sql(&format!("SELECT citus_add_node('127.0.0.1', {})", plain.port()));
    let (before, one) = (members(&database), address(nodes.worker(0)));
    let run = cluster(&database, &["drain", &one, "--json"]);
    assert_eq!(run.code, 1, "{}", run.stdout);
    let failed: Vec<_> =
        events(&run).into_iter().filter(|event| event["verdict"] == "failed").collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(
        (&failed[0]["node"], &failed[0]["subject"]),
        (&address(&plain).into(), &"wal_level".into())
    );
    assert!(run.stderr.contains("nothing was changed"), "{}", run.stderr);
    assert_eq!(members(&database), before);
    let run = cluster(&database, &["drain", &one, "--blocking", "--dry-run"]);
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    assert_eq!(members(&database), before);

    // A node that does not answer is listed with the reason.
    plain.stop();
    let run = cluster(&database, &["status"]);
    assert_eq!(run.code, 1, "{}", run.stdout);
    assert!(run.stdout.contains("does not answer"), "{}", run.stdout);
    let run = cluster(&database, &["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let reached =
        status["nodes"].as_array().unwrap().iter().filter(|node| node["reachable"] == true);
    assert_eq!((run.code, reached.count()), (1, 3));
    let run = cluster(&database, &["drain", &one]);
    assert_eq!(run.code, 1, "{}", run.stdout);
    assert!(run.stdout.contains("reachable: "), "{}", run.stdout);
    assert_eq!(members(&database), before);
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let Some(nodes) = Nodes::shared() else { return };
    let database = nodes.database("refused");
    let bare = nodes.coordinator().database("bare");
    let worker = nodes.worker(0).url(&database.name);
    for (store, said) in [
        (bare.url.as_str(), "has no extension `citus`"),
        (worker.as_str(), "is a worker of its cluster; name the coordinator, which is 127.0.0.1:"),
        ("embedded", "this archive is in files"),
    ] {
        let run = hark(&["--store", store, "cluster", "status"]);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
        assert!(run.stderr.contains(said), "{}", run.stderr);
    }
    let before = members(&database);
    let coordinator = address(nodes.coordinator());
    for (args, code, said) in [
        (&["drain", "127.0.0.1:1"][..], 1, "127.0.0.1:1 is no node of this cluster; its nodes are"),
        (&["drain", &coordinator], 1, "is the coordinator"),
        (&["add", &coordinator], 1, "is in the cluster as its coordinator"),
        (&["replace", "127.0.0.1:1", "--with", "127.0.0.1:2"], 1, "is no node of this cluster"),
        (&["replace", &coordinator, "--with", "127.0.0.1:2"], 1, "is no worker"),
        (&["drain", "a b"], 2, "a node is HOST or HOST:PORT"),
        (&["drain", "db1:0"], 2, "a node is HOST or HOST:PORT"),
        (&["replace", "db1"], 2, "--with"),
    ] {
        let run = cluster(&database, args);
        assert_eq!(run.code, code, "{args:?}: {}", run.stderr);
        assert!(run.stderr.contains(said), "{args:?}: {}", run.stderr);
        assert_eq!(members(&database), before);
    }
    // Nothing listens at this address.
    let run = cluster(&database, &["add", "127.0.0.1:1"]);
    assert_eq!(run.code, 1, "{}", run.stderr);
    assert!(run.stdout.contains("not met     127.0.0.1:1  reachable: "), "{}", run.stdout);
    for command in ["status", "add", "drain", "rebalance", "replace", "standby"] {
        let help = hark(&["cluster", command, "--help"]);
        assert_eq!(
            (help.code, help.stdout.contains("Usage: hark cluster")),
            (0, true),
            "{command}"
        );
    }
}
