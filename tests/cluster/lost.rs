//! A worker is killed with -9, and its standby takes its place.

use hark_testkit::citus::CitusCluster;
use serde_json::json;

use super::{
    Nodes, SETTINGS, Writer, address, cluster, events, make_table, members, result, shards_on,
    wait_for,
};

#[test]
fn a_standby_takes_the_place_of_a_lost_worker() {
    let Some(nodes) = Nodes::shared() else { return };
    let database = nodes.database("lost");
    let worker = CitusCluster::node(&SETTINGS);
    CitusCluster::prepare(&worker, &database.name);
    database.sql(&format!("SELECT citus_add_node('127.0.0.1', {})", worker.port()));
    make_table(&database, 3);
    assert_eq!(shards_on(&database, &worker), 1);
    let dead = address(&worker);

    let run = cluster(&database, &["standby", &dead]);
    assert_eq!(run.code, 1, "{}", run.stdout);
    assert!(run.stdout.contains("no standby streams"), "{}", run.stdout);
    assert!(run.stdout.contains("pg_basebackup -h 127.0.0.1 -p "), "{}", run.stdout);
    let standby = worker.replica();
    let place = address(&standby);
    let streams = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
    wait_for(&worker, "postgres", streams, "1");
    // Commits wait for the standby, so acknowledged writes cannot be lost.
    worker.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
    worker.sql("postgres", "SELECT pg_reload_conf()");
    let waits = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    wait_for(&worker, "postgres", waits, "1");
    let run = cluster(&database, &["standby", &dead, "--json"]);
    let found = run.json();
    assert_eq!((&found["has_streaming_standby"], &found["advice"]), (&json!(true), &json!([])));
    assert_eq!(found["standbys"][0]["synchronous"], true);
    // The other workers have no standby.
    assert_eq!(cluster(&database, &["standby"]).code, 1);
    let status = cluster(&database, &["status", "--json"]).json();
    assert_eq!(status["nodes"][3]["has_streaming_standby"], true, "{status}");

    // With this setting, writes to the new primary would wait for a standby, which the new primary
    // does not have.
    standby.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
    standby.sql("postgres", "SELECT pg_reload_conf()");
    wait_for(&standby, "postgres", "SHOW synchronous_standby_names", "*");
    let writers = [Writer::start(&database, 1_000_000), Writer::start(&database, 2_000_000)];
    let before = members(&database);
    let run = cluster(&database, &["replace", &dead, "--with", &place, "--alone"]);
    assert_eq!(run.code, 1, "{}", run.stdout);
    assert!(run.stdout.contains("a worker that runs must not be replaced"), "{}", run.stdout);
    let other = address(nodes.worker(0));
    let run = cluster(&database, &["replace", &other, "--with", &place, "--alone", "--force"]);
    assert_eq!(run.code, 1, "{}", run.stdout);
    assert!(run.stdout.contains("so this is a copy of another node"), "{}", run.stdout);
    assert_eq!(standby.sql("postgres", "SELECT pg_is_in_recovery()"), "t");

    worker.kill();
    // If Patroni manages the standby, only Patroni may give the standby the worker's place.
    let session = ["-d", &standby.url("postgres"), "-c", "SELECT pg_sleep(3600)"];
    let mut patroni = standby.program("psql");
    let patroni = patroni.args(session).env("PGAPPNAME", "Patroni heartbeat").spawn();
    let is_patroni = "FROM pg_stat_activity WHERE application_name = 'Patroni heartbeat'";
    wait_for(&standby, "postgres", &format!("SELECT count(*) {is_patroni}"), "1");
    let run = cluster(&database, &["replace", &dead, "--with", &place, "--alone"]);
    assert_eq!(run.code, 1, "{}", run.stdout);
    assert!(run.stdout.contains("patroni: manages this server; Patroni gives"), "{}", run.stdout);
    standby.sql("postgres", &format!("SELECT pg_terminate_backend(pid) {is_patroni}"));
    patroni.expect("psql runs").wait().expect("psql ends");
    let run = cluster(&database, &["replace", &dead, "--with", &place]);
    assert_eq!(run.code, 1, "{}", run.stdout);
    assert!(run.stdout.contains("give --alone"), "{}", run.stdout);
    let dry = cluster(&database, &["replace", &dead, "--with", &place, "--alone", "--dry-run"]);
    assert_eq!((dry.code, members(&database)), (0, before), "{}{}", dry.stdout, dry.stderr);
    assert_eq!(standby.sql("postgres", "SELECT pg_is_in_recovery()"), "t");

    let run = cluster(&database, &["replace", &dead, "--with", &place, "--alone", "--json"]);
    let replaced = result(&run);
    assert_eq!((&replaced["was_done"], &replaced["shards"]), (&json!(false), &json!(1)));
    let steps: Vec<_> = events(&run).into_iter().filter(|event| event["event"] == "step").collect();
    let names: Vec<_> = steps.iter().map(|step| step["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["alone", "promote", "update", "recover"]);
    println!("the place was taken after {} s", replaced["gap_seconds"]);
    // The writers insert further rows on the new cluster before the test stops the writers.
    let rows = || database.sql("SELECT count(*) FROM t").parse::<usize>().unwrap();
    let now = rows();
    while rows() < now + 50 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    for writer in writers {
        let written = writer.stop();
        let list: Vec<String> = written.inserted.iter().map(i64::to_string).collect();
        let there = format!("SELECT count(*) FROM t WHERE n = ANY ('{{{}}}')", list.join(","));
        assert_eq!(database.sql(&there), written.inserted.len().to_string());
    }
    let again = cluster(&database, &["replace", &dead, "--with", &place, "--json"]);
    assert_eq!(result(&again)["was_done"], true);
    assert!(!members(&database).contains(&worker.port().to_string()));
    assert_eq!(shards_on(&database, &standby), 1);
}
