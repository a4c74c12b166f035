//! `hark bench rules` and `hark bench answers` against the binary, on files and on PostgreSQL.
//! `crates/bench/tests/probe/main.rs` shows that both commands find the faults of a wrong relay.

use hark_testkit::postgres::Cluster;
use hark_testkit::server::Server;
use serde_json::{Value, json};

use crate::cli::support::{Place, hark};

/// The public address of the relay under test.
const PUBLIC_URL: &str = "wss://relay.example";
/// Rules for fields and limits that the server's information document does not have.
const NOT_SUPPORTED: [&str; 5] = [
    "NIP-11 software",
    "NIP-11 self",
    "NIP-11 pubkey",
    "NIP-11 created-at-lower",
    "NIP-11 min-pow-difficulty",
];

/// Starts a server that offers all NIPs.
fn serve(place: &Place, store: &[&str]) -> Server {
    let settings = format!("[info]\nurl = \"{PUBLIC_URL}\"\n[search]\nenabled = true\n");
    let config = place.file("hark.toml", settings.as_bytes());
    place.serve_with(&[&["--unlimited", "--config", &config], store].concat())
}

fn all_rules_hold(place: &Place, store: &[&str]) {
    let server = serve(place, store);
    let url = format!("ws://{}", server.address);
    let args = ["bench", "rules", &url, "--relay-url", PUBLIC_URL, "--json", "--timeout", "60"];
    let run = hark(&args);
    let report = run.json_of_any();
    let rules = report["rules"].as_array().expect("has rules");
    let others: Vec<&Value> = rules.iter().filter(|rule| rule["result"] != "pass").collect();
    for rule in &others {
        let is_known = NOT_SUPPORTED.iter().any(|known| rule["id"] == *known);
        assert!(is_known && rule["result"] == "not supported", "{rule:#}");
    }
    assert_eq!((run.code, others.len()), (0, NOT_SUPPORTED.len()), "{report}");
    assert!(report["events_left"].as_u64().is_some_and(|left| left < 40), "{report}");
}

/// Publishes, kills the server, and asks after a restart.
fn all_answers_are_right(place: &Place, store: &[&str]) {
    let mut server = serve(place, store);
    let check = |server: &Server, more: &[&str]| {
        let url = format!("ws://{}", server.address);
        let args = ["bench", "answers", &url, "--seed", "11", "--to", "1760000000", "--json"];
        let report = hark(&[&args, more].concat()).json();
        assert_eq!((&report["wrong"], &report["refused"]), (&json!([]), &json!({})), "{report}");
        report
    };
    let loaded = check(&server, &["--load-only", "--events", "800"]);
    assert!(loaded["published"].as_u64().is_some_and(|count| count >= 800), "{loaded}");
    server.kill();
    let server = serve(place, store);
    let report = check(&server, &["--ask-only", "--events", "800", "--questions", "1500"]);
    assert_eq!((report["asked"].as_u64(), report["counted"].as_u64()), (Some(1_350), Some(150)));
}

#[test]
fn the_relay_keeps_all_rules_of_the_nips_in_files() {
    all_rules_hold(&Place::new("bench-rules"), &[]);
}

#[test]
fn the_relay_keeps_all_rules_of_the_nips_in_postgresql() {
    let database = Cluster::shared().database("bench-rules");
    all_rules_hold(&Place::new("bench-rules-database"), &["--store", &database.url]);
}

#[test]
fn random_questions_are_answered_rightly_after_a_crash_in_files() {
    all_answers_are_right(&Place::new("bench-answers"), &[]);
}

#[test]
fn random_questions_are_answered_rightly_after_a_crash_in_postgresql() {
    let database = Cluster::shared().database("bench-answers");
    all_answers_are_right(&Place::new("bench-answers-database"), &["--store", &database.url]);
}
