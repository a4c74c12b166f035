//! Deleted events and events of vanished authors are erased from the files of a relay.

use std::path::{Path, PathBuf};

use hark_testkit::nostr::{event_line, keys};
use hark_testkit::wait::until;
use hark_testkit::websocket::Socket;
use serde_json::{Value, json};

use super::support::{Place, field, notes};

/// Number of the vanishing author's events among 5,000 events.
const THEIRS: u64 = 1_700;
/// The vanishing author.
const AUTHOR: u8 = 77;

/// All files below a directory.
fn files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("is there") {
        let path = entry.expect("is there").path();
        if path.is_dir() {
            files(&path, out);
        } else if path.is_file() {
            out.push(path);
        }
    }
}

/// The number of occurrences of these bytes in the files below a directory.
fn found(dir: &Path, bytes: &[u8]) -> usize {
    let mut all = Vec::new();
    files(dir, &mut all);
    let count = |path: &PathBuf| {
        // Maintenance may have removed the file.
        let held = std::fs::read(path).unwrap_or_default();
        let first = |at: &usize| held[*at..].starts_with(bytes);
        (0..held.len()).filter(first).count()
    };
    all.iter().map(count).sum()
}

/// 5,000 events, including the events of the vanishing author.
fn events() -> String {
    let theirs = (0..THEIRS).map(|n| {
        let content = format!("private words {n}");
        event_line(AUTHOR, 1_700_000_000 + n, 1, &[&["t", "theirs"]], &content)
    });
    theirs.chain([notes(5_000 - THEIRS)]).collect()
}

/// Notes of another author, with two profiles of the vanishing author, the second newer than the
/// first.
fn profiles() -> String {
    let profile =
        |n: u64| event_line(AUTHOR, 1_710_000_000 + n, 0, &[], &format!("private words {n}"));
    let others = |from: u64| -> String {
        (from..from + 300).map(|n| event_line(9, 1_720_000_000 + n, 1, &[], "others")).collect()
    };
    [profile(1), others(0), profile(2), others(300)].concat()
}

fn request() -> String {
    event_line(AUTHOR, 1_750_000_000, 62, &[&["relay", "ALL_RELAYS"]], "forget me")
}

/// Whether the author's key occurs only in the request to vanish: once as text in the event and
/// once as a field of the record. The author's words must not occur at all.
fn are_gone(data: &Path) -> bool {
    let key = field(&request(), "pubkey");
    let keys = keys(AUTHOR);
    (found(data, key.as_bytes()), found(data, keys.public())) == (1, 1)
        && found(data, b"private words") == 0
}

/// The figures of `stats` and of `check`.
fn figures(place: &Place) -> [(Value, Value); 2] {
    let [stats, check] = ["stats", "check"].map(|command| place.hark(&[command, "--json"]).json());
    assert_eq!(check["faults"], json!([]));
    [
        (stats["records"].clone(), check["records"].clone()),
        (stats["dead"].clone(), check["dead"].clone()),
    ]
}

#[test]
fn an_author_who_vanishes_is_gone_from_the_files_in_time() {
    let place = Place::new("erased-in-time");
    let text = "[retention]\nerase_within = \"2s\"\n[archive]\nseal_records = 256\n";
    let config = place.file("hark.toml", text.as_bytes());
    let report = place.hark_fed(&["import", "--json"], events().as_bytes()).json();
    assert_eq!(report["stored"], 5_000, "{report}");
    assert!(found(&place.data(), b"private words") > 0);
    let serving = place.serve_with(&["--config", &config]);
    // The log with the first profile has no other events of the author.
    let report = place.hark_fed(&["import", "--json"], profiles().as_bytes()).json();
    assert_eq!(report["stored"], 602, "{report}");
    let mut socket = Socket::connect(&serving.address);
    socket.send_text(format!("[\"EVENT\",{}]", request().trim()));
    let answer = socket.json();
    assert_eq!((&answer[0], &answer[2]), (&json!("OK"), &json!(true)), "{answer}");
    until("all are gone", || are_gone(&place.data()));
    let [(records, live), (deleted, dead)] = figures(&place);
    assert_eq!((records, deleted), (json!(5_601 - THEIRS), json!(0)));
    assert_eq!((live, dead), (json!(5_601 - THEIRS), json!(0)));
    let (code, logged) = serving.terminate();
    assert_eq!(code, 0, "{logged}");
}

#[test]
fn an_author_who_vanished_is_gone_in_time_once_a_reload_sets_one() {
    let place = Place::new("erased-reload");
    let config = place.file("hark.toml", b"[retention]\nerase_within = \"0s\"\n");
    let all = events() + &request();
    let report = place.hark_fed(&["import", "--json"], all.as_bytes()).json();
    assert_eq!(report["stored"], 5_001, "{report}");
    let mut serving = place.serve_with(&["--config", &config]);
    assert!(!are_gone(&place.data()), "nothing is erased unless it is set");
    place.file("hark.toml", b"[retention]\nerase_within = \"2s\"\n");
    serving.wait_for_log("now retention.erase_within = \"2s\"");
    until("all are gone", || are_gone(&place.data()));
    assert_eq!(figures(&place)[1], (json!(0), json!(0)));
    assert_eq!(serving.terminate().0, 0);
}

#[test]
fn an_author_who_vanishes_is_gone_from_the_files_after_a_compaction() {
    for beside in [true, false] {
        let place = Place::new(&format!("erased-compact-{beside}"));
        let all = events() + &request();
        let serving = beside.then(|| place.serve());
        let report = place.hark_fed(&["import", "--json"], all.as_bytes()).json();
        assert_eq!(report["stored"], 5_001, "{report}");
        assert!(found(&place.data(), b"private words") > 0);
        let said = place.hark(&["compact"]).text();
        assert!(are_gone(&place.data()), "{said}");
        assert_eq!(figures(&place)[1], (json!(0), json!(0)));
        let report = place.hark(&["delete", "{}", "--yes", "--json"]).json();
        // A request to vanish keeps its author's events from being stored again, so a filter
        // deletes the request only if the filter names the request's kind.
        assert_eq!(report["deleted"], 5_000 - THEIRS);
        let request = place.hark(&["delete", "{\"kinds\":[62]}", "--yes", "--json"]).json();
        assert_eq!(request["deleted"], 1);
        let said = place.hark(&["compact"]).text();
        let stats = place.hark(&["stats", "--json"]).json();
        assert!(stats["bytes"].as_u64() < Some(1_000), "{said}: {stats}");
        assert_eq!(found(&place.data(), b"note"), 0, "{said}");
        assert_eq!(figures(&place), [(json!(0), json!(0)), (json!(0), json!(0))]);
        drop(serving);
    }
}
