//! A server as an operator configures it: every door and every page, on a database.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::time::Duration;

use hark_testkit::http::{HttpRequest, get};
use hark_testkit::nostr::event_line;
use hark_testkit::postgres::Cluster;
use hark_testkit::server::{Server, free_address};
use hark_testkit::wait::until;
use hark_testkit::websocket::Socket;
use serde_json::{Value, json};

use crate::cli::clients::kick;
use crate::cli::support::{Place, command, wait_for_health};

mod backup;

/// Sends a request, and returns the status and the body.
fn http(address: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    HttpRequest::new(method, path).json(body).send(address).parts()
}

/// Publishes an event on a new connection, and returns the answer to a COUNT of all events.
fn publish_and_count(address: &str, number: u64) -> Value {
    let mut socket = Socket::connect(address);
    let event = event_line(3, 1_700_000_000 + number, 1, &[&["t", "a"]], &format!("note {number}"));
    socket.send_text(format!(r#"["EVENT",{}]"#, event.trim()));
    let answer = socket.json();
    assert_eq!(answer[2], true, "{answer}");
    socket.send_text(r#"["REQ","all",{"kinds":[1]}]"#);
    while socket.json()[0] != "EOSE" {}
    socket.send_text(r#"["COUNT","all",{"kinds":[1]}]"#);
    socket.json()[2]["count"].clone()
}

fn ends_clean(server: Server) {
    let (code, logged) = server.terminate();
    let is_clean = !logged.contains("panicked") && !logged.contains("a bug");
    assert!(code == 0 && is_clean, "{code}: {logged}");
}

#[test]
fn clients_of_a_server_on_a_database_are_disconnected() {
    let cluster = Cluster::with(&["fsync=off"]);
    let database = cluster.database("clients");
    kick("database-clients", &["--store", &database.url]);
}

#[test]
fn every_page_and_rest_door_answers_on_a_database_again_and_again() {
    let cluster = Cluster::with(&["fsync=off"]);
    let database = cluster.database("pages");
    let place = Place::new("database-pages");
    let [waku, whisper] = [free_address(), free_address()];
    let config = format!(
        "[waku]\nserve = true\nrest = \"{waku}\"\nlisten = [\"/ip4/127.0.0.1/tcp/0\"]\n\
         forward = \"always\"\nretention = \"\"\nwindow_s = 0\n\
         [whisper]\nserve = true\nrest = \"{whisper}\"\nlisten = \"127.0.0.1:0\"\npow_min = 0\n\
         [postgres]\nconnections_max = 2\n"
    );
    let config = place.file("hark.toml", config.as_bytes());
    let store = ["--store", &database.url];
    let server = place.serve_with(&[&["--config", &config][..], &store].concat());
    let relay = server.address.clone();
    for round in 1..=8_u64 {
        assert!(get(&relay, "/").ok().contains("<html"), "{round}");
        assert!(get(&relay, "/counts").ok().contains("\"events\""));
        assert!(get(&relay, "/metrics").ok().contains("hark_store_records"));
        assert!(get(&relay, "/healthz").ok().starts_with("ok\n"));
        let stats = place.hark(&[&["stats", "--json"][..], &store].concat()).json();
        assert_eq!(stats["server_running"], true);
        assert_eq!(publish_and_count(&relay, round), json!(round));
        let message = json!({
            "payload": "AP8=", "contentTopic": format!("/a/1/{round}/proto"), "timestamp": round,
        });
        let topic = "%2Fwaku%2F2%2Frs%2F1%2F0";
        let path = format!("/relay/v1/messages/{topic}");
        let published = http(&waku, "POST", &path, &message.to_string());
        assert_eq!(published.0, 200, "{published:?}");
        let page = get(&waku, "/store/v3/messages?pageSize=100").ok();
        let page: Value = serde_json::from_str(&page).expect("JSON");
        assert_eq!(page["messages"].as_array().map(Vec::len), Some(round as usize), "{page}");
        for path in ["/health", "/info", "/version"] {
            get(&waku, path).ok();
        }
        get(&whisper, "/health").ok();
        get(&whisper, "/version").ok();
        // The server caches counts for a second.
        std::thread::sleep(Duration::from_millis(1_010));
    }
    ends_clean(server);
    let checked = place.hark(&[&["check"][..], &store].concat()).text();
    let expected = "8 events, 8 rows of labels, 0 rows of words, 1 part: no faults";
    assert_eq!(checked.trim_end(), expected);
    assert!(!cluster.log().contains("ERROR:"), "{}", cluster.log());
}

#[test]
fn a_check_of_a_database_prints_a_table_of_faults_and_fails() {
    let database = Cluster::shared().database("check command");
    let place = Place::new("database-check");
    let notes: String = (0..30)
        .map(|n| event_line(3, 1_700_000_000 + n, 1, &[&["t", "a"]], &format!("note {n}")))
        .collect();
    let file = place.file("notes", notes.as_bytes());
    let store = ["--store", &database.url];
    let hark = |args: &[&str]| place.hark(&[args, &store].concat());
    assert_eq!(hark(&["import", "--json", &file]).json()["stored"], 30);
    let report = hark(&["check", "--json"]).json();
    assert_eq!(report["records"], 30, "{report}");
    assert_eq!((&report["counts"], &report["faults"]), (&json!({}), &json!([])), "{report}");
    database
        .sql("DELETE FROM hark_nostr.tag; UPDATE hark_nostr.record SET expires = 7 WHERE seq = 1");
    let run = hark(&["check"]);
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(run.code, 1, "{run:?}");
    let first = "30 events, 30 rows of labels, 0 rows of words, 1 part: 31 faults";
    assert_eq!(lines[0], first, "{run:?}");
    assert_eq!(lines[1], "  columns that differ from the record   1", "{run:?}");
    assert_eq!(lines[2], "  missing rows of labels               30", "{run:?}");
    // The first 20 faults of each kind are listed.
    assert_eq!(lines.len(), 3 + 21 + 1, "{run:?}");
    assert_eq!(lines[24], "  and 10 more", "{run:?}");
    assert!(run.stdout.contains(": differs from the record: expires"), "{run:?}");
    let says = run.stderr.contains("nothing was changed") && run.stderr.contains("`hark rebuild`");
    assert!(says, "{run:?}");
    let run = hark(&["check", "--json"]);
    let report: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(run.code, 1, "{run:?}");
    assert_eq!(report["counts"], json!({ "column": 1, "label_missing": 30 }), "{report}");
    // A copy has all rows again.
    let other = Cluster::shared().database("check copy");
    place.hark(&["copy", "--from", &database.url, "--to", &other.url]).text();
    let checked = place.hark(&["check", "--store", &other.url]).text();
    assert!(checked.trim_end().ends_with("30 rows of labels, 0 rows of words, 1 part: no faults"));
    let away = place.hark(&["check", "--store", "postgres://hark@127.0.0.1:1/hark"]);
    let says = away.stderr.contains("could not be checked") && away.stderr.contains("away");
    assert!(away.code == 1 && says, "{away:?}");
}

#[test]
fn a_rebuild_of_a_database_repairs_the_faults_beside_its_server() {
    let database = Cluster::shared().database("rebuild command");
    let place = Place::new("database-rebuild");
    let store = ["--store", &database.url];
    let hark = |args: &[&str]| place.hark(&[args, &store].concat());
    let server = place.serve_with(&store);
    for number in 1..=5 {
        assert_eq!(publish_and_count(&server.address, number), json!(number));
        std::thread::sleep(Duration::from_millis(1_010));
    }
    let run = hark(&["rebuild"]);
    let nothing = "5 events, 5 rows of labels, 0 rows of words, 1 part: nothing to repair\n";
    assert_eq!((run.code, run.stdout.as_str()), (0, nothing), "{run:?}");
    let faults =
        "DELETE FROM hark_nostr.tag; UPDATE hark_nostr.record SET expires = 7 WHERE seq = 1";
    database.sql(faults);
    let run = hark(&["rebuild"]);
    let expected = "5 events, 5 rows of labels, 0 rows of words, 1 part: 6 faults repaired\n  \
        columns that differ from the record  1\n  missing rows of labels               5\n";
    assert_eq!((run.code, run.stdout.as_str()), (0, expected), "{run:?}");
    let report = hark(&["check", "--json"]).json();
    assert_eq!(report["faults"], json!([]), "{report}");
    database.sql(faults);
    database.sql("UPDATE hark_nostr.record SET body = substr(body, 1, 60) WHERE seq = 2");
    let run = hark(&["rebuild", "--json"]);
    let report: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(run.code, 1, "{run:?}");
    assert_eq!(report["repaired"], json!({ "column": 1, "label_missing": 5 }), "{report}");
    assert_eq!(report["counts"], json!({ "unreadable": 1 }), "{report}");
    let run = hark(&["rebuild"]);
    assert!(run.stdout.contains("1 fault left\n") && run.code == 1, "{run:?}");
    assert!(run.stderr.contains("Records are damaged"), "{run:?}");
    ends_clean(server);
    let away = place.hark(&["rebuild", "--store", "postgres://hark@127.0.0.1:1/hark"]);
    let says = away.stderr.contains("rebuilding ended early") && away.stderr.contains("away");
    assert!(away.code == 1 && says, "{away:?}");
}

#[test]
fn a_server_with_a_replica_starts_answers_and_ends() {
    let cluster = Cluster::with(&["fsync=off"]);
    let database = cluster.database("read url");
    let standby = cluster.replica();
    let place = Place::new("database-replica");
    let replica = standby.url(&database.name);
    let config =
        place.file("hark.toml", format!("[postgres]\nread_url = \"{replica}\"\n").as_bytes());
    for round in 0..3 {
        let server = place.serve_with(&["--config", &config, "--store", &database.url]);
        for number in 1..=4 {
            assert_eq!(
                publish_and_count(&server.address, round * 4 + number),
                json!(round * 4 + number)
            );
            get(&server.address, "/").ok();
        }
        assert!(wait_for_health(&server.address, 200).starts_with("ok\n"));
        ends_clean(server);
    }
}

#[test]
fn a_server_waits_for_its_database_says_so_and_needs_no_directory() {
    let cluster = Cluster::with(&["fsync=off"]);
    let database = cluster.database("not yet");
    let place = Place::new("database-waits");
    cluster.stop();
    let (address, file) = (free_address(), place.file("file", b""));
    let args = ["--data", &format!("{file}/data"), "--store", &database.url, "serve"];
    let mut child = command(&[&args[..], &["--listen", &address]].concat()).spawn().expect("runs");
    until("the server listens", || TcpStream::connect(&address).is_ok());
    for path in ["/healthz", "/"] {
        let (status, body) = http(&address, "GET", path, "");
        assert!(status == 503 && body.contains("waits for its database"), "{status}: {body}");
    }
    assert!(child.try_wait().expect("is ours").is_none());
    cluster.start();
    let mut first = String::new();
    let mut lines = BufReader::new(child.stdout.take().expect("is piped"));
    lines.read_line(&mut first).expect("it says something");
    assert_eq!(first.trim(), format!("listening on ws://{address}"));
    assert!(wait_for_health(&address, 200).starts_with("ok\n"));
    assert_eq!(publish_and_count(&address, 1), json!(1));
    child.signal("TERM");
    let output = child.wait_with_output().expect("ends");
    let logged = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !logged.contains("panicked"), "{logged}");
    for said in ["waits for its database", "can be reached", "the data directory"] {
        assert!(logged.contains(said), "{said}: {logged}");
    }
}
