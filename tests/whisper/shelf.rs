//! Functions that Whisper's shelf shares with every other shelf: commands with its filters, a
//! mirror in either direction, a takeover, retention.

use std::path::Path;

use hark_codec::crypto::keccak256;
use hark_codec::whisper::{Bloom, Topic};
use hark_testkit::digits::digits;
use hark_testkit::folder::Folder;
use hark_testkit::http::get;
use hark_testkit::postgres::Cluster;
use hark_testkit::wait::until;
use serde_json::{Value, json};

use super::{MailNode, RLP, envelope, folder};
use crate::served::hark;

const ONE: Topic = [0x5c, 0x6c, 0x9b, 0x56];
const TWO: Topic = [8, 9, 10, 0];

/// The output of a command on Whisper's shelf.
fn run(data: &std::path::Path, args: &[&str]) -> String {
    let output = hark(data).args(args).args(["--network", "whisper"]).output().expect("runs");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn some(count: u8) -> Vec<Vec<u8>> {
    let topic = |n: u8| [ONE, TWO][usize::from(n % 2)];
    (0..count).map(|n| envelope(topic(n), u32::from(n), &[n; 50])).collect()
}

#[test]
fn commands_find_envelopes_by_topics_and_by_bloom_filters() {
    let mut node = MailNode::start("commands", &[]);
    node.publish(&some(40));
    let bloom = format!("{{\"bloom\":\"0x{}\"}}", digits(&Bloom::of_topic(TWO).0));
    let by_topic = r#"{"topics":["0x08090a00"]}"#;
    // Commands with and without a running server.
    for is_served in [true, false] {
        let data = node.data.clone();
        assert_eq!(run(&data, &["count", by_topic]), "20\n");
        assert_eq!(run(&data, &["count", &bloom]), "20\n");
        assert_eq!(run(&data, &["query", &bloom]), run(&data, &["query", by_topic]));
        let plan = run(&data, &["explain", "--run", &bloom]);
        assert!(plan.contains("label t with 1 value"), "{plan}");
        assert!(plan.contains("run: 20 envelopes"), "{plan}");
        if is_served {
            node.stop();
        }
    }
    // Without an archive, the error does not blame the filter.
    let nowhere = node.data.join("nowhere");
    let count =
        hark(&nowhere).args(["count", &bloom, "--network", "whisper"]).output().expect("runs");
    let said = String::from_utf8_lossy(&count.stderr);
    assert!(count.status.code() == Some(1) && !said.contains("filter"), "{said}");
    let exported = run(&node.data, &["export"]);
    let copy = folder("commands-copy");
    let file = copy.join("lines");
    std::fs::write(&file, &exported).expect("is written");
    run(&copy, &["import", file.to_str().expect("a path")]);
    assert_eq!(run(&copy, &["export"]), exported);
    let deleted: Value =
        serde_json::from_str(&run(&copy, &["delete", "--yes", "--json", &bloom])).expect("JSON");
    assert_eq!(deleted, json!({ "matching": 20, "deleted": 20, "damaged": 0 }));
    for command in ["compact", "check", "rebuild", "check"] {
        run(&copy, &[command]);
    }
    assert_eq!(run(&copy, &["count", "{}"]), "20\n");
}

#[test]
fn a_server_takes_over_and_questions_by_bloom_filter_find_what_came_before_and_after() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("there is one");
    let rest = port.local_addr().expect("has one").to_string();
    drop(port);
    let settings = [("rest", &*rest)];
    let data = folder("takeover");
    let mut first = MailNode::on(data, &[], &settings);
    first.publish(&some(10));
    let relay = first.relay.clone();
    let second = MailNode::on(
        first.data.clone(),
        &["--takeover"],
        &[("rest", &*rest), ("HARK_SERVER_LISTEN", &*relay)],
    );
    let late = envelope(TWO, 1, b"late");
    let answer = second.ask("POST /whisper/envelopes", &[RLP], &late);
    assert_eq!(answer.json()["stored"], 1);
    let bloom = format!("{{\"bloom\":\"{}\"}}", digits(&Bloom::of_topic(TWO).0));
    assert_eq!(second.hashes(&bloom).len(), 6);
    assert!(first.server.wait().expect("ends").success());
    drop(second);
}

/// Publishes `count` envelopes in batches of 50.
fn load(node: &MailNode, name: u8, count: usize) {
    for batch in 0..count / 50 {
        let data = |n: usize| [&[name][..], &(batch * 50 + n).to_be_bytes()].concat();
        let some: Vec<_> =
            (0..50).map(|n| envelope([ONE, TWO][n % 2], (n % 7) as u32, &data(n))).collect();
        node.publish(&some);
    }
}

/// Serves from files with a mirror in `other`, then from `other` with the files as the mirror, and
/// back again, always under load. Both exports are equal each time. `other_files` is the directory
/// of `other`, unless `other` is a database.
fn turn_and_turn_back(name: &str, other: &str, other_files: Option<&Folder>) {
    let files = folder(name);
    let first = files.to_str().expect("a path").to_owned();
    let export = |store: &str| {
        if store.starts_with("postgres") {
            run(&files, &["--store", store, "export"])
        } else {
            run(Path::new(store), &["export"])
        }
    };
    // The directory for the server's own files if its records are in a database.
    let beside = folder(&format!("{name}-beside"));
    let mut sent = 0;
    for (turn, store, mirrored) in [(1, &*first, other), (2, other, &first), (3, &first, other)] {
        let is_database = store.starts_with("postgres");
        let data = if store == first { &files } else { other_files.unwrap_or(&beside) }.clone();
        let args: &[&str] = if is_database { &["--store", store] } else { &[] };
        let settings = [("HARK_MIRROR_STORE", mirrored), ("retention_days", "0")];
        let mut node = MailNode::on(data.clone(), args, &settings);
        load(&node, turn, 1_000);
        sent += 1_000;
        let status: &[&str] =
            if is_database { &["--store", store, "count", "{}"] } else { &["count", "{}"] };
        until("the mirror is in step", || {
            let page = get(&node.relay, "/metrics").ok();
            let has = |line: &str| page.lines().any(|other| other == line);
            has("hark_mirror_in_step{shelf=\"whisper\"} 1")
                && has("hark_mirror_queued_writes{shelf=\"whisper\"} 0")
        });
        assert_eq!(run(&data, status), format!("{sent}\n"));
        node.stop();
        let (kept, copied) = (export(store), export(mirrored));
        assert_eq!(kept.lines().count(), sent);
        assert!(kept == copied, "turn {turn}: {} and {}", kept.len(), copied.len());
    }
}

#[test]
fn files_and_a_database_mirror_each_other_under_load_and_can_be_exchanged_and_back() {
    let database = Cluster::shared().database("whisper mirror");
    turn_and_turn_back("mirror-database", &database.url, None);
}

#[test]
fn files_mirror_files_under_load_and_can_be_exchanged_and_back() {
    let other = folder("mirror-files-other");
    turn_and_turn_back("mirror-files", other.to_str().expect("a path"), Some(&other));
}

#[test]
fn envelopes_are_deleted_after_so_many_days() {
    let node = MailNode::start("retention", &[]);
    node.publish(&some(5));
    let mut node = node;
    node.stop();
    // Lines of envelopes that were sent in 2019.
    let old = r#"{"expiry":1554076850,"ttl":50,"topic":"0x5c6c9b56","data":"0x01","nonce":1}"#;
    let file = node.data.join("lines");
    std::fs::write(&file, old).expect("is written");
    run(&node.data, &["import", file.to_str().expect("a path")]);
    assert_eq!(run(&node.data, &["count", "{}"]), "6\n");
    let settings = [
        ("retention_days", "1"),
        ("HARK_RETENTION_EVERY_S", "1"),
        ("HARK_RETENTION_DELETE_BROUGHT", "true"),
    ];
    let again = MailNode::on(node.data.clone(), &[], &settings);
    until("the old one is gone", || again.hashes("{}").len() == 5);
}

#[test]
fn the_address_for_peers_is_known_before_the_server_runs_and_stays() {
    let data = folder("enode");
    let enode = |at: &[&str]| {
        let output = hark(&data).args(["whisper", "enode"]).args(at).output().expect("runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
    };
    let before = enode(&["--at", "10.1.2.3:30303"]);
    let (key, at) = before.strip_prefix("enode://").expect("one").split_once('@').expect("a key");
    assert_eq!((key.len(), at), (128, "10.1.2.3:30303"));
    assert_eq!(enode(&[]), format!("enode://{key}@127.0.0.1:30303"));
    let node = MailNode::on(data.clone(), &[], &[]);
    assert!(node.enode.starts_with(&format!("enode://{key}@127.0.0.1:")), "{}", node.enode);
}

/// A server looks a bloom filter up in the topics that it knows, so it must know at once what
/// another server has stored.
#[test]
fn a_bloom_filter_finds_what_another_server_of_the_database_has_just_stored() {
    let database = Cluster::shared().database("whispernodes");
    let node =
        |name| MailNode::on(folder(name), &["--store", &database.url, "--log-level", "warn"], &[]);
    let (one, other) = (node("nodes-1"), node("nodes-2"));
    for at in 0..100 {
        let topic = [7, 7, 7, at];
        let stored = envelope(topic, 1, &[at; 50]);
        one.publish(std::slice::from_ref(&stored));
        let bloom = digits(&Bloom::of_topic(topic).0);
        let found = other.hashes(&format!("{{\"bloom\":\"{bloom}\"}}"));
        assert!(found.contains(&format!("0x{}", digits(&keccak256(&stored)))), "{at}: {found:?}");
    }
}
