//! `[mirror]`: a second store gets all accepted writes of the first store, and can replace the
//! first store.

use hark_testkit::nostr::event_line;
use hark_testkit::postgres::Cluster;
use hark_testkit::wait::until_ok;
use serde_json::Value;

use super::adopt::events;
use crate::cli::support::{Place, hark, notes};

/// Waits until `done` is true of the mirror's statistics.
fn wait_until(place: &Place, what: &str, done: impl Fn(&Value) -> bool) {
    until_ok(|| {
        let mut stats = place.hark(&["stats", "--json"]).json();
        let mirror = stats["server"]["mirror"].take();
        if done(&mirror) { Ok(()) } else { Err(format!("{what}: {mirror}")) }
    });
}

fn in_step(mirror: &Value) -> bool {
    mirror["in_step"] == true && mirror["queued"] == 0
}

#[test]
fn the_mirror_can_take_the_place_of_the_first_store_and_back() {
    let (place, second) = (Place::new("mirror-first"), Place::new("mirror-second"));
    // Events from before the mirror are copied as well.
    place.hark_fed(&["import"], notes(1_500).as_bytes()).text();
    let second_data = second.data();
    let config = format!("[mirror]\nstore = {:?}\n", second_data.to_str().unwrap());
    let config = place.file("hark.toml", config.as_bytes());
    // While another process holds the mirror, the first store still accepts events.
    let other = second.serve();
    let server = place.serve_with(&["--config", &config]);
    wait_until(&place, "held", |mirror| mirror["trouble"].is_string());
    let more: String =
        (0..500).map(|n| event_line(9, 1_710_000_000 + n, 1, &[], &format!("more {n}"))).collect();
    let report = place.hark_fed(&["import", "--json"], more.as_bytes()).json();
    assert_eq!(report["stored"], 500);
    assert_eq!(other.terminate().0, 0);
    wait_until(&place, "freed", in_step);
    // From here on, the mirror follows all stored, replaced and deleted events.
    let later = [
        event_line(9, 1_720_000_000, 0, &[], "profile"),
        event_line(9, 1_720_000_001, 0, &[], "newer profile"),
        event_line(9, 1_720_000_002, 1, &[], "the last word"),
    ];
    place.hark_fed(&["import"], later.concat().as_bytes()).text();
    place.hark(&["delete", "--yes", r#"{"kinds":[1],"until":1700000010}"#]).text();
    wait_until(&place, "following", in_step);
    let text = place.hark(&["stats"]).text();
    assert!(text.contains("in step"), "{text}");
    // Writes that wait for the mirror reach it before the server ends.
    let last = event_line(9, 1_730_000_000, 1, &[], "just before the end");
    place.hark_fed(&["import"], last.as_bytes()).text();
    assert_eq!(server.terminate().0, 0);
    let export = place.hark(&["export"]).text();
    assert!(export.contains("just before the end") && !export.contains("\"profile\""));
    assert_eq!(second.hark(&["export"]).text(), export);
}

#[test]
fn an_archive_moves_to_a_database_and_back_without_losing_any() {
    let (place, database) = (Place::new("mirror-database"), Cluster::shared().database("mirror"));
    let (file, data) = (events(&place, "2000"), place.data());
    let lines = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = lines.lines().collect();
    let parts: Vec<String> = lines
        .chunks(lines.len().div_ceil(3))
        .enumerate()
        .map(|(n, part)| place.file(&format!("part-{n}.jsonl"), part.join("\n").as_bytes()))
        .collect();
    let config = |name: &str, mirror: &str| {
        place.file(name, format!("[mirror]\nstore = {mirror:?}\n").as_bytes())
    };
    let (to_database, to_files) =
        (config("to.toml", &database.url), config("from.toml", data.to_str().unwrap()));
    let publish = |address: &str, part: &str| {
        hark(&["bench", "ingest", part, "--url", &format!("ws://{address}")]).text();
    };
    place.hark(&["import", "--trusted", &parts[0]]).text();
    let server = place.serve_with(&["--unlimited", "--config", &to_database]);
    wait_until(&place, "brought up", in_step);
    publish(&server.address, &parts[1]);
    assert_eq!(server.terminate().0, 0);
    // Now the database is the archive, and the files are its mirror.
    let store = ["--store", &database.url];
    let moved = place.serve_with(&[&["--unlimited", "--config", &to_files][..], &store].concat());
    publish(&moved.address, &parts[2]);
    assert_eq!(moved.terminate().0, 0);
    let export = hark(&[&["export"][..], &store].concat()).text();
    let expected = Place::new("mirror-database-expected");
    expected.hark(&["import", "--trusted", &file]).text();
    assert!(export == expected.hark(&["export"]).text());
    assert!(place.hark(&["export"]).text() == export);
}

#[test]
fn a_mirror_that_is_the_archive_itself_is_refused() {
    let place = Place::new("mirror-self");
    let data = place.data();
    let config = format!("[mirror]\nstore = {:?}\n", data.to_str().unwrap());
    let config = place.file("hark.toml", config.as_bytes());
    let run = place.hark(&["serve", "--listen", "127.0.0.1:0", "--config", &config]);
    assert!(run.code == 1 && run.stderr.contains("names the archive itself"), "{}", run.stderr);
}
