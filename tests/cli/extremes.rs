//! Every number of the configuration at its minimum and at its maximum: nothing panics, hangs or
//! loses an event. The files come from the table in src/config/settings.rs, and a test in
//! src/config/ranges.rs compares the files with the table.

use hark_testkit::http::get;

use super::support::{Place, hark_with, notes};

/// Settings that allow events, since the smallest values would refuse every event.
const EVENTS: [(&str, &str); 3] = [
    ("HARK_LIMITS_EVENT_BYTES_MAX", "100000"),
    ("HARK_LIMITS_MESSAGE_BYTES_MAX", "200000"),
    ("HARK_LIMITS_INTAKE_BYTES_MAX", "1000000"),
];

#[test]
fn events_are_kept_and_a_server_comes_and_goes_whatever_numbers_are_set() {
    for (name, text) in [
        ("least", include_str!("../extremes/least.toml")),
        ("most", include_str!("../extremes/most.toml")),
    ] {
        let place = Place::new(&format!("extremes-{name}"));
        let waku = "[waku]\nserve = true\nrest = \"127.0.0.1:0\"\n\
                    listen = [\"/ip4/127.0.0.1/tcp/0\"]\n";
        let whisper = "[whisper]\nserve = true\nrest = \"127.0.0.1:0\"\nlisten = \"127.0.0.1:0\"\n";
        let text = text.replace("[waku]\n", waku).replace("[whisper]\n", whisper);
        let config = place.file("hark.toml", text.as_bytes());
        let data = place.data();
        let data = data.to_str().unwrap();
        let run = |command: &[&str], stdin: &[u8]| {
            hark_with(&[&["--data", data, "--config", &config], command].concat(), &EVENTS, stdin)
        };
        let report = run(&["import", "--json"], notes(60).as_bytes()).json();
        assert_eq!(report["stored"], 60, "{name}: {report}");
        let mut serving = place.serve_with(&["--config", &config]);
        assert_eq!(run(&["count", "{}"], b"").text(), "60\n", "{name}");
        assert_eq!(run(&["query", "{\"limit\":1}"], b"").text().lines().count(), 1, "{name}");
        if name == "most" {
            // With the least values, a connection ends before its request is read.
            get(&serving.address, "/healthz").ok();
        }
        assert!(serving.is_running(), "{name}");
        let (code, logged) = serving.terminate();
        assert_eq!(code, 0, "{name}: {logged}");
        let report = run(&["check", "--json"], b"").json();
        assert_eq!((&report["records"], &report["faults"]), (&60.into(), &serde_json::json!([])));
    }
}
