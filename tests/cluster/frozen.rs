//! `hark cluster` reports why something waits or would wait: a standby that is gone, a frozen
//! machine, or a lock.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hark_testkit::citus::CitusCluster;
use serde_json::json;

use super::{
    Nodes, SETTINGS, address, begin, cluster, events, make_table, members, result, shards_on,
    wait_for,
};

/// A stopped command must end within five seconds. Three more seconds are allowed for a busy
/// machine.
const STOP_MAX: Duration = Duration::from_secs(8);

fn signal(name: &str, process: i32) {
    let sent = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(sent.expect("there is `kill`").success());
}

#[test]
fn a_node_that_cannot_commit_is_not_added() {
    let Some(nodes) = Nodes::shared() else { return };
    let database = nodes.database("gone");
    make_table(&database, 2);
    let settings = [&SETTINGS[..], &["synchronous_standby_names=gone"]].concat();
    let stuck = CitusCluster::node(&settings);
    let (node, before) = (address(&stuck), members(&database));
    for args in [&["add", &node][..], &["add", &node, "--no-rebalance"]] {
        let started = Instant::now();
        let run = cluster(&database, args);
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
        assert_eq!(run.code, 1, "{}", run.stdout);
        let said = format!("not met     {node}  synchronous_standby_names: requires more standbys");
        assert!(run.stdout.contains(&said), "{}", run.stdout);
        assert!(run.stderr.contains("nothing was changed"), "{}", run.stderr);
    }
    assert_eq!(members(&database), before);
    let there = format!("SELECT count(*) FROM pg_database WHERE datname = '{}'", database.name);
    assert_eq!(stuck.sql("postgres", &there), "0");
    // The nodes of the cluster are checked, too.
    let first = nodes.worker(0);
    let run = cluster(&database, &["drain", &address(first), "--dry-run"]);
    assert!(run.stdout.contains("synchronous_standby_names (commits do not"), "{}", run.stdout);
    let said = "tcp_user_timeout: missing in citus.node_conninfo, so commits may wait";
    assert!(run.stdout.contains(said), "{}", run.stdout);
    let set = "ALTER SYSTEM SET citus.node_conninfo = 'sslmode=disable tcp_user_timeout=8000'";
    assert!(run.stdout.contains(set), "{}", run.stdout);
}

#[test]
fn a_frozen_worker_is_replaced_once_it_is_gone_and_a_wait_can_be_ended() {
    let Some(nodes) = Nodes::shared() else { return };
    let database = nodes.database("frozen");
    let worker = CitusCluster::node(&SETTINGS);
    CitusCluster::prepare(&worker, &database.name);
    database.sql(&format!("SELECT citus_add_node('127.0.0.1', {})", worker.port()));
    make_table(&database, 3);
    let standby = worker.replica();
    let streams = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
    wait_for(&worker, "postgres", streams, "1");
    let (dead, place, before) = (address(&worker), address(&standby), members(&database));
    let replace = ["replace", &dead, "--with", &place];

    worker.pause();
    let started = Instant::now();
    let status = cluster(&database, &["status", "--json"]);
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    let status = status.json_of_any();
    let last = &status["nodes"][3];
    assert_eq!((&last["reachable"], &last["shards"]), (&json!(false), &json!(1)), "{status}");
    for force in [&[][..], &["--force"]] {
        let run = cluster(&database, &[&replace[..], force].concat());
        assert_eq!(run.code, 1, "{}", run.stdout);
        let said = "it accepts connections but does not answer, so it may be frozen";
        assert!(run.stdout.contains(said), "{}", run.stdout);
        assert!(run.stdout.contains("Fence it: power its machine off"), "{}", run.stdout);
    }
    let run = cluster(&database, &[&replace[..], &["--unfenced", "--dry-run"]].concat());
    assert_eq!((run.code, members(&database)), (0, before.clone()), "{}{}", run.stdout, run.stderr);
    assert_eq!(standby.sql("postgres", "SELECT pg_is_in_recovery()"), "t");
    worker.kill();

    // A session of the coordinator has locks on the shards and is frozen, so Citus cannot end the
    // session.
    let mut psql = database.cluster.program("psql");
    psql.args(["-XqAt", "-d", &database.url]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut psql = psql.spawn().expect("psql runs");
    let mut input = psql.stdin.take().expect("is piped");
    input.write_all(b"BEGIN; LOCK TABLE pg_dist_node IN SHARE MODE;\n").expect("psql reads");
    let holder = "SELECT pid FROM pg_locks WHERE relation = 'pg_dist_node'::regclass \
                  AND mode = 'ShareLock' AND granted";
    let holder: i32 = {
        let held = || database.sql(holder);
        while held().is_empty() {
            std::thread::sleep(Duration::from_millis(20));
        }
        held().parse().expect("a process")
    };
    signal("STOP", holder);
    let (mut child, lines) = begin(&database, &[&replace[..], &["--json"]].concat());
    let mut lines = lines.inspect(|line| println!("{line}"));
    // A busy machine may be slow at other steps, too.
    let is_update = |line: &serde_json::Value| {
        let words = line["words"].as_str().unwrap_or_default();
        line["event"] == "note" && words.contains("`SELECT citus_update_node(")
    };
    let note = lines.find(is_update).expect("it names the statement");
    let words = note["words"].as_str().expect("a text");
    assert!(words.contains("waiting for the coordinator for "), "{words}");
    assert!(words.contains("waits for a lock (relation) of process "), "{words}");
    assert!(words.contains(&holder.to_string()), "{words}");
    child.signal("TERM");
    let ended = child.wait_for_end(STOP_MAX).expect("it ends in time");
    drop(lines);
    assert_eq!((ended.code(), members(&database)), (Some(130), before), "{}", child.log());
    assert!(child.log().contains("Run the command again to go on"), "{}", child.log());
    signal("CONT", holder);
    drop(input);
    psql.wait().expect("psql ends");

    let run = cluster(&database, &[&replace[..], &["--json"]].concat());
    assert_eq!(result(&run)["shards"], 1);
    // The statement that was waiting may have ended by itself, once the locks were free.
    let is_update = |event: &serde_json::Value| event["name"] == "update";
    let is_done = result(&run)["was_done"] == true || events(&run).iter().any(is_update);
    assert!(is_done, "{}", run.stdout);
    assert_eq!(shards_on(&database, &standby), 1);
}

#[test]
fn status_tells_disks_and_standbys_and_an_empty_cluster() {
    let Some(nodes) = Nodes::shared() else { return };
    let lonely = nodes.coordinator().database("lonely");
    lonely.sql("CREATE EXTENSION citus");
    let port = nodes.coordinator().port();
    lonely.sql(&format!("SELECT citus_set_coordinator_host('127.0.0.1', {port})"));
    // A session for logical replication, as moves of shards have, is no standby.
    let mut psql = lonely.cluster.program("psql");
    psql.args(["-XqAt", "-d", &format!("{}?replication=database", lonely.url)]);
    let mut psql = psql.stdin(Stdio::piped()).spawn().expect("psql runs");
    wait_for(lonely.cluster, &lonely.name, "SELECT count(*) > 0 FROM pg_stat_replication", "t");
    let status = cluster(&lonely, &["status", "--json"]).json();
    assert_eq!(status["nodes"][0]["standbys"], json!([]), "{status}");
    assert!(status["nodes"][0]["disk_free_bytes"].as_u64().unwrap() > 0, "{status}");
    assert_eq!(status["nodes"][0]["tcp_user_timeout_ms"], 0, "{status}");
    let text = cluster(&lonely, &["status"]).text();
    assert!(text.contains("the cluster has no workers; add one"), "{text}");
    assert!(!text.contains("spread evenly"), "{text}");
    assert!(text.contains("has no tcp_user_timeout on 127.0.0.1:"), "{text}");
    drop(psql.stdin.take());
    psql.wait().expect("psql ends");
}
