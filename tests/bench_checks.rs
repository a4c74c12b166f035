//! `hark bench rules` and `hark bench answers` against the binary, on files and on PostgreSQL.
//! `crates/bench/tests/probe/main.rs` shows that both find the faults of a wrong relay.

use hark_testkit::server::Server;
use serde_json::Value;

use crate::cli::support::{Place, hark};

/// The public address of the relay under test.
const PUBLIC_URL: &str = "wss://relay.example";

/// Starts a server that offers all NIPs.
fn serve(place: &Place, flags: &[&str]) -> Server {
    let settings = format!("[info]\nurl = \"{PUBLIC_URL}\"\n[search]\nenabled = true\n");
    let config = place.file("hark.toml", settings.as_bytes());
    place.serve_with(&[&["--unlimited", "--config", &config], flags].concat())
}

#[test]
fn the_relay_passes_all_rules_of_the_nips() {
    let place = Place::new("bench-rules");
    let server = serve(&place, &[]);
    let url = format!("ws://{}", server.address);
    let run =
        hark(&["bench", "rules", &url, "--relay-url", PUBLIC_URL, "--json", "--timeout", "60"]);
    let report = run.json();
    let rules = report["rules"].as_array().expect("has rules");
    let of = |result: &str| -> Vec<&Value> {
        rules.iter().filter(|rule| rule["result"] == result).map(|rule| &rule["id"]).collect()
    };
    assert_eq!(of("fail"), Vec::<&Value>::new(), "{report}");
    println!("not supported: {:?}, undecided: {:?}", of("not supported"), of("undecided"));
    assert!(of("pass").len() > 150, "{report}");
    assert!(report["events_left"].as_u64().is_some_and(|left| left < 60), "{report}");
}

#[test]
fn the_relay_answers_random_questions_rightly_and_again_after_a_restart() {
    let place = Place::new("bench-answers");
    let mut server = serve(&place, &[]);
    let ask = |server: &Server, more: &[&str]| {
        let url = format!("ws://{}", server.address);
        let args = ["bench", "answers", &url, "--seed", "11", "--events", "800", "--json"];
        let report = hark(&[&args, more].concat()).json();
        assert_eq!(report["wrong"], serde_json::json!([]), "{report}");
        assert_eq!(report["refused"], serde_json::json!({}), "{report}");
        report
    };
    let loaded = ask(&server, &["--load-only"]);
    assert!(loaded["published"].as_u64().is_some_and(|count| count >= 800), "{loaded}");
    server.kill();
    let server = serve(&place, &[]);
    let report = ask(&server, &["--ask-only", "--questions", "1500"]);
    assert!(report["counted"].as_u64().is_some_and(|count| count > 100), "{report}");
}
