//! Runs every command that works on records on every network's shelf.

use hark_testkit::postgres::Cluster;
use serde_json::json;

use super::support::{Place, hark_with, notes};

/// A line of an export: a message of this topic, this number of seconds after 2023-11-14 22:13:20
/// UTC.
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
    assert_eq!(
        hark(&["delete", "--json", filter]).json(),
        json!({ "matching": 10, "deleted": 0, "damaged": 0 })
    );
    let deleted = hark(&["delete", "--json", "--yes", filter]).json();
    assert_eq!((&deleted["deleted"], count("{}")), (&json!(10), Some(20)));
    let there = hark_with(&["--data", &to, "count", "--json", "--network", "waku", "{}"], &[], b"");
    assert_eq!(there.json()["count"], 30);

    let wrong = hark(&["query", r#"{"kinds":[1]}"#]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.stderr.contains("contentTopics"), "{}", wrong.stderr);
    let none = place.hark(&["stats", "--network", "gossip"]);
    assert_eq!((none.code, none.stderr.contains("nostr")), (2, true), "{}", none.stderr);
}

/// A line of an export: an envelope of this topic, sent this number of seconds after 2023-11-14
/// 22:13:20 UTC.
fn envelope(topic: &str, seconds: u64) -> String {
    let expiry = 1_700_000_050 + seconds;
    json!({ "expiry": expiry, "ttl": 50, "topic": topic, "data": "0x17", "nonce": 1 }).to_string()
}

/// The result of a command beside a running server.
enum Said {
    /// The command succeeds, and stdout has this text.
    Works(&'static str),
    /// The command is refused with this exit code and reason.
    Refused(i32, &'static str),
}

/// A network with the arguments for commands on its shelf.
struct Case {
    network: &'static str,
    /// Lines for an import.
    lines: String,
    /// A filter that matches some of the lines.
    filter: &'static str,
}

#[test]
fn every_command_works_on_every_shelf_beside_a_running_server_or_says_why_not() {
    use Said::{Refused, Works};
    let place = Place::new("network-table");
    let config = place.file(
        "hark.toml",
        b"[waku]\nserve = true\nrest = \"127.0.0.1:0\"\nlisten = []\n\
          [whisper]\nserve = true\nrest = \"127.0.0.1:0\"\nlisten = \"127.0.0.1:0\"\nretention_days = 0\n",
    );
    let mut server = place.serve_with(&["--config", &config]);
    let messages: Vec<_> = (0..40).map(|n| message("/a/1/b/proto", n)).collect();
    let envelopes: Vec<_> = (0..40).map(|n| envelope("0x0a0b0c0d", n)).collect();
    let cases = [
        Case { network: "nostr", lines: notes(40), filter: r#"{"limit":5}"# },
        Case {
            network: "waku",
            lines: messages.join("\n"),
            filter: r#"{"contentTopics":["/a/1/b/proto"],"pageSize":5}"#,
        },
        Case {
            network: "whisper",
            lines: envelopes.join("\n"),
            filter: r#"{"topics":["0x0a0b0c0d"],"limit":5}"#,
        },
    ];
    for Case { network, lines, filter } in cases {
        let file = place.file("lines", lines.as_bytes());
        let copy = place.path(&format!("copy-{network}"));
        let data = place.data();
        let data = data.to_str().expect("a path");
        let table: &[(&[&str], Said)] = &[
            (&["import", "--json", &file], Works("\"stored\":40")),
            (&["query", filter], Works("{")),
            (&["count", "{}"], Works("40\n")),
            (&["explain", "--run", filter], Works("plan: ")),
            (&["export"], Works("{")),
            (&["copy", "--json", "--from", data, "--to", &copy], Works("\"copied\":40")),
            (&["delete", filter], Works("5 ")),
            (&["delete", "--json", "--yes", filter], Works("\"deleted\":5")),
            (&["compact"], Works("became")),
            (&["check", "--json"], Works("\"faults\":[]")),
            (&["stats"], Works("a server is running")),
            (&["stats", "--json"], Works("\"trouble\":null")),
            (&["rebuild"], Refused(1, "holds the archive")),
            (&["migrate", "status"], Refused(1, "files need no migration")),
            (&["serve"], Refused(2, "serves every network")),
            (
                &["adopt", "nostream", "postgres://x@localhost/x"],
                Refused(2, "determines the network"),
            ),
            (&["config"], Refused(2, "settings of all networks")),
            (&["bench", "codec"], Refused(2, "measures one network")),
        ];
        for (args, said) in table {
            let run = place.hark(&[args, &["--network", network][..]].concat());
            match said {
                Works(what) => {
                    assert!(
                        run.code == 0 && run.stdout.contains(what),
                        "{network} {args:?} {run:?}"
                    );
                }
                Refused(code, why) => {
                    let says = run.stderr.contains(why) && run.stdout.is_empty();
                    assert!(run.code == *code && says, "{network} {args:?} {run:?}");
                    let sentences = run.stderr.trim_end().lines().count();
                    assert_eq!(sentences, 1, "{network} {args:?} {run:?}");
                }
            }
        }
    }
    assert!(server.is_running());
    let (code, logged) = server.terminate();
    assert_eq!(code, 0, "{logged}");
}

#[test]
fn a_server_says_which_shelves_it_serves() {
    let place = Place::new("network-unserved");
    let [kept, new] = [1, 2].map(|second| {
        place.file(&format!("lines-{second}"), message("/a/1/b/proto", second).as_bytes())
    });
    let import = |file| ["import", "--json", "--network", "waku", file];
    assert_eq!(place.hark(&import(&kept)).json()["stored"], 1);
    let server = place.serve();
    let says = "this server does not serve waku; it serves nostr";
    for command in [&import(&new)[..], &["delete", "--yes", "--network", "waku", "{}"]] {
        let run = place.hark(command);
        assert!(run.code == 1 && format!("{}{}", run.stdout, run.stderr).contains(says), "{run:?}");
        assert!(!run.stderr.contains("stopped answering"), "{run:?}");
    }
    assert_eq!(server.terminate().0, 0);
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

#[test]
fn a_missing_shelf_is_not_told_as_a_missing_archive() {
    let place = Place::new("network-missing");
    place.hark_fed(&["import"], notes(1).as_bytes()).text();
    for (network, records) in [("waku", "messages"), ("whisper", "envelopes")] {
        let said = format!("has no {records}: nothing of the network {network} was ever kept");
        for command in [&["export"][..], &["count", "{}"], &["stats"]] {
            let run = place.hark(&[command, &["--network", network]].concat());
            assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{command:?}: {run:?}");
            let is_told = run.stderr.contains(&said) && !run.stderr.contains("there is no archive");
            assert!(is_told, "{command:?}: {run:?}");
        }
    }
}
