//! Every network's shelf by every command that speaks of records.

use hark_testkit::postgres::Cluster;
use serde_json::json;

use super::support::{Place, hark_with};

/// A line of an export: a message of this topic, so many seconds after 2023-11-14.
fn message(topic: &str, seconds: u64) -> String {
    let timestamp = (1_700_000_000 + seconds) * 1_000_000_000;
    let message = json!({ "payload": "aGFyaw==", "contentTopic": topic, "timestamp": timestamp });
    json!({ "message": message, "pubsubTopic": "/waku/2/rs/1/0" }).to_string()
}

#[test]
fn messages_are_queried_counted_explained_copied_and_deleted_by_filters_of_their_own() {
    let place = Place::new("network-waku");
    let lines: Vec<String> =
        (0..30).map(|n| message(["/a/1/b/proto", "/a/1/c/proto"][n as usize % 2], n)).collect();
    let file = place.file("messages.jsonl", lines.join("\n").as_bytes());
    let hark = |args: &[&str]| place.hark(&[args, &["--network", "waku"]].concat());
    assert_eq!(hark(&["import", "--json", &file]).json()["stored"], 30);

    let filter = r#"{"contentTopics":["/a/1/b/proto"],"startTime":1700000010000000000}"#;
    let count = |filter: &str| hark(&["count", "--json", filter]).json()["count"].as_u64();
    assert_eq!((count("{}"), count(filter)), (Some(30), Some(10)));
    let found = hark(&["query", r#"{"contentTopics":["/a/1/b/proto"],"pageSize":3}"#]).text();
    let times: Vec<u64> = found
        .lines()
        .map(|line| {
            let kept: serde_json::Value = serde_json::from_str(line).expect("a line");
            assert_eq!(kept["message"]["contentTopic"], "/a/1/b/proto");
            kept["message"]["timestamp"].as_u64().expect("a time") / 1_000_000_000 - 1_700_000_000
        })
        .collect();
    assert_eq!(times, [28, 26, 24]);
    let explained = hark(&["explain", "--json", "--run", filter]).json();
    assert_eq!(explained["run"]["events"], 10, "{explained}");
    let serving = place.serve();
    assert_eq!(hark(&["stats", "--json"]).json()["server_running"], true);
    drop(serving);
    let stats = hark(&["stats"]).text();
    assert!(stats.contains("2023-11-14") && stats.contains("1700000029 seconds"), "{stats}");

    let (from, to) = (place.data(), place.path("copy"));
    let from = from.to_str().expect("a path");
    assert_eq!(hark(&["copy", "--json", "--from", from, "--to", &to]).json()["copied"], 30);
    assert_eq!(hark(&["delete", "--json", filter]).json(), json!({ "matching": 10, "deleted": 0 }));
    let deleted = hark(&["delete", "--json", "--yes", filter]).json();
    assert_eq!((&deleted["deleted"], count("{}")), (&json!(10), Some(20)));
    let there = hark_with(&["--data", &to, "count", "--json", "--network", "waku", "{}"], &[], b"");
    assert_eq!(there.json()["count"], 30);

    let wrong = hark(&["query", r#"{"kinds":[1]}"#]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.stderr.contains("contentTopics"), "{}", wrong.stderr);
    let none = place.hark(&["stats", "--network", "whisper"]);
    assert_eq!((none.code, none.stderr.contains("nostr")), (2, true), "{}", none.stderr);
}

#[test]
fn tables_are_brought_up_to_date_for_the_shelf_that_is_named() {
    let cluster = Cluster::with(&["fsync=off"]);
    let database = cluster.database("migrate-network");
    let place = Place::new("network-migrate");
    let hark = |args: &[&str]| place.hark(&[args, &["--store", &database.url]].concat());
    let missing = hark(&["count", "--network", "waku", "{}"]);
    assert_eq!(missing.code, 1);
    assert!(missing.stderr.contains("hark migrate up --network waku"), "{}", missing.stderr);
    assert_eq!(hark(&["migrate", "up", "--network", "waku"]).code, 0);
    let codes = |network| hark(&["migrate", "status", "--network", network]).code;
    assert_eq!((codes("waku"), codes("nostr")), (0, 1));
    assert_eq!(hark(&["count", "--network", "waku", "{}"]).text().trim(), "0");
}
