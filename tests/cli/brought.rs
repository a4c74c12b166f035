//! Retention of records that an operator has imported.

use hark_testkit::clock::now_s;
use hark_testkit::nostr::event_line;
use hark_testkit::wait::{until, until_ok};

use super::support::Place;

/// Waits until the health report has these words. Returns the exit code and the report.
fn healthz(place: &Place, at: &str, words: &[&str]) -> (i32, String) {
    until_ok(|| {
        let run = place.hark(&["healthz", "--at", at]);
        let has_all = words.iter().all(|word| run.stdout.contains(word));
        if has_all { Ok((run.code, run.stdout)) } else { Err(run.stdout) }
    })
}

/// Waits until all records of a network are deleted.
fn wait_until_deleted(place: &Place, network: &str) {
    until(network, || place.hark(&["count", "--network", network, "{}"]).text() == "0\n");
}

#[test]
fn what_is_imported_is_kept_until_a_person_decides_whatever_retention_says() {
    let place = Place::new("import-held");
    let config = |more: &str| {
        let text = format!(
            "[retention]\nevery_s = 1\nrules = [{{ older_than = \"1y\" }}]\n{more}\n\
             [waku]\nserve = true\nrest = \"127.0.0.1:0\"\nlisten = []\n\
             [whisper]\nserve = true\nrest = \"127.0.0.1:0\"\nlisten = \"\"\n"
        );
        place.file("hark.toml", text.as_bytes())
    };
    let path = config("");
    let message = r#"{"message":{"payload":"AAAA","contentTopic":"/a/1/b/proto","timestamp":1600000000000000000},"pubsubTopic":"/waku/2/rs/1/0"}"#;
    let envelope = r#"{"expiry":1554076850,"ttl":50,"topic":"0x5c6c9b56","data":"0x01","nonce":1}"#;
    let note = event_line(1, 1_600_000_000, 1, &[], "old");
    let networks = ["nostr", "waku", "whisper"];
    let import = |network: &str, line: &str| {
        let flags = ["import", "--network", network, "--config", &path];
        let run = place.hark_fed(&flags, line.as_bytes());
        assert!(run.code == 0 && run.stderr.contains("retention.delete_brought"), "{}", run.stderr);
    };
    import("waku", message);
    import("whisper", envelope);
    let server = place.serve_with(&["--config", &path]);
    // This import goes through the running server.
    import("nostr", &note);
    let words = networks.map(|network| format!("{network}: records that were brought are older"));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (code, said) = healthz(&place, &server.address, &words);
    assert!(code == 0 && said.starts_with("ok\n"), "{said}");
    for network in networks {
        assert_eq!(place.hark(&["count", "--network", network, "{}"]).text(), "1\n", "{network}");
    }
    config("delete_brought = true");
    assert_eq!(place.hark(&["reload"]).code, 0);
    for network in networks {
        wait_until_deleted(&place, network);
    }
    let (code, log) = server.terminate();
    assert!(code == 0 && log.contains("records that were brought are older"), "{log}");
    assert!(!log.contains("ERROR"), "{log}");
}

#[test]
fn a_clock_far_ahead_of_the_archives_history_deletes_nothing_until_a_person_decides() {
    let place = Place::new("clock-ahead");
    let config = |more: &str| {
        let text =
            format!("[retention]\nevery_s = 1\nrules = [{{ older_than = \"1y\" }}]\n{more}\n");
        place.file("hark.toml", text.as_bytes())
    };
    // The archive's trusted time is in 2016, long before the current time of the clock.
    place.hark_fed(&["import"], event_line(1, 1_600_000_000, 1, &[], "old").as_bytes()).text();
    std::fs::write(place.data().join("nostr/CLOCK_TRUSTED"), "1480000000\n").unwrap();
    let path = config("");
    let server = place.serve_with(&["--config", &path]);
    let (code, said) = healthz(&place, &server.address, &["the clock is far ahead of the time"]);
    assert_eq!((code, place.hark(&["count", "{}"]).text().as_str()), (1, "1\n"), "{said}");
    config("clock_ahead_max_s = 0");
    assert_eq!(place.hark(&["reload"]).code, 0);
    wait_until_deleted(&place, "nostr");
    healthz(&place, &server.address, &["ok"]);
    let (_, log) = server.terminate();
    assert!(log.contains("WARN") && log.contains("the clock is far ahead of the time"), "{log}");
    assert!(!log.contains("ERROR"), "{log}");
}

/// The rule would delete this history at once, and it is not so old that the rule cannot have been
/// applied before.
#[test]
fn held_history_is_held_in_a_restored_and_in_a_salvaged_archive() {
    let place = Place::new("held-backup");
    let settings = b"[retention]\nevery_s = 1\nrules = [{ older_than = \"30d\" }]\n";
    let path = place.file("hark.toml", settings);
    // The young note shows that the clock is right.
    let note = |age_s| event_line(1, now_s() - age_s, 1, &[], "held");
    let notes = [note(40 * 86_400), note(60)].concat();
    place.hark_fed(&["import", "--config", &path], notes.as_bytes()).text();
    let backup = place.path("monday.hark");
    place.hark(&["backup", &backup]).text();
    let salvaged = Place::new("held-salvaged");
    let (from, to) = (place.data(), salvaged.data());
    let salvage = ["salvage", "--from", from.to_str().unwrap(), "--to", to.to_str().unwrap()];
    place.hark(&salvage).text();
    let restored = Place::new("held-restored");
    restored.hark(&["restore", &backup]).text();
    for place in [&restored, &salvaged] {
        let path = place.file("hark.toml", settings);
        let server = place.serve_with(&["--config", &path]);
        healthz(place, &server.address, &["records that were brought are older"]);
        assert_eq!(place.hark(&["count", "{}"]).text(), "2\n");
        assert_eq!(server.terminate().0, 0);
    }
}
