//! `hark copy`: both archives become equal, even if records are written to the source during the
//! copy.

use hark_testkit::nostr::event_line;
use hark_testkit::postgres::Cluster;
use serde_json::Value;

use super::adopt::events;
use crate::cli::support::{Place, field, hark, notes};

fn copy(from: &Place, to: &Place, flags: &[&str]) -> Value {
    let (from, to) = (from.data(), to.data());
    between(from.to_str().unwrap(), to.to_str().unwrap(), flags)
}

fn between(from: &str, to: &str, flags: &[&str]) -> Value {
    hark(&[&["copy", "--json", "--from", from, "--to", to], flags].concat()).json()
}

#[test]
fn a_copy_is_the_same_to_the_byte_and_goes_on_where_it_was() {
    let (from, to) = (Place::new("copy-from"), Place::new("copy-to"));
    let said = hark(&["copy", "--from", from.data().to_str().unwrap(), "--to", "elsewhere"]);
    assert!(said.code == 1 && said.stderr.contains("there is no archive"), "{}", said.stderr);
    let doomed = event_line(1, 1_699_999_999, 1, &[], "doomed");
    let lines = [
        notes(3_000),
        doomed.clone(),
        event_line(1, 1_700_000_001, 0, &[], "profile"),
        event_line(1, 1_700_000_002, 30_023, &[&["d", "a"]], "article"),
    ];
    from.hark_fed(&["import"], lines.concat().as_bytes()).text();
    // The target already has some of the source's events, and one event that the source lacks.
    let own = event_line(3, 1_600_000_000, 1, &[], "its own");
    to.hark_fed(&["import"], (notes(1_000) + &own).as_bytes()).text();
    let done = copy(&from, &to, &[]);
    assert_eq!((&done["copied"], &done["extra"]), (&2_003.into(), &1.into()), "{done}");
    let done = copy(&from, &to, &[]);
    assert_eq!((&done["copied"], &done["compared"]), (&0.into(), &3_003.into()), "{done}");
    assert_eq!(to.hark(&["count", "{}"]).text().trim(), "3004");
    // Replacements and deletions are copied as well. --delete removes events that only the target
    // has.
    let deletion = event_line(1, 1_700_000_009, 5, &[&["e", &field(&doomed, "id")]], "");
    let newer = event_line(1, 1_700_000_010, 30_023, &[&["d", "a"]], "article, again");
    from.hark_fed(&["import"], (deletion + &newer).as_bytes()).text();
    from.hark(&["delete", "--yes", r#"{"until":1700000004,"kinds":[1]}"#]).text();
    let done = copy(&from, &to, &["--delete"]);
    assert!(done["deleted"].as_u64() > Some(10), "{done}");
    assert_eq!(to.hark(&["export"]).text(), from.hark(&["export"]).text());
    assert_eq!(to.hark(&["check", "--json"]).json()["faults"], serde_json::json!([]));
}

#[test]
fn records_that_a_ban_of_the_target_refuses_are_counted_as_banned() {
    let (from, to) = (Place::new("copy-banned-from"), Place::new("copy-banned-to"));
    let lines = [7, 8].map(|kind| event_line(1, 1_700_000_000, kind, &[], "+")).concat();
    from.hark_fed(&["import"], lines.as_bytes()).text();
    to.hark(&["ban", "kind:7"]).text();
    let done = copy(&from, &to, &[]);
    let counts = ["copied", "refused", "banned"].map(|name| done[name].as_u64().unwrap());
    assert_eq!(counts, [1, 0, 1], "{done}");
}

/// Both requests, to delete and to vanish, have expired.
#[test]
fn deleted_events_and_vanished_authors_stay_away_from_the_copy() {
    let places = ["copy-away-from", "copy-away-to", "copy-away-old"].map(Place::new);
    let [from, to, old] = &places;
    let past: &[&str] = &["expiration", "1700000100"];
    let gone = [
        event_line(1, 1_700_000_000, 1, &[], "to be deleted"),
        event_line(2, 1_700_000_000, 1, &[], "before vanishing"),
    ];
    let requests = [
        event_line(1, 1_700_000_050, 5, &[&["e", &field(&gone[0], "id")], past], ""),
        event_line(2, 1_700_000_050, 62, &[&["relay", "ALL_RELAYS"], past], ""),
    ];
    for place in [from, to, old] {
        place.hark_fed(&["import"], gone.concat().as_bytes()).text();
    }
    from.hark_fed(&["import"], requests.concat().as_bytes()).text();
    let done = copy(from, to, &[]);
    assert_eq!((&done["copied"], &done["extra"]), (&2.into(), &0.into()), "{done}");
    // The third archive still has the events, but a copy from this archive does not restore the
    // events.
    let done = copy(old, to, &[]);
    assert_eq!((&done["copied"], &done["refused"]), (&0.into(), &2.into()), "{done}");
    assert_eq!(to.hark(&["count", "{}"]).text().trim(), "2");
    assert_eq!(to.hark(&["export"]).text(), from.hark(&["export"]).text());
}

#[test]
fn both_ends_may_be_served_and_the_source_written_meanwhile() {
    let (from, to) = (Place::new("copy-served-from"), Place::new("copy-served-to"));
    let (source, target) = (from.serve(), to.serve());
    from.hark_fed(&["import"], notes(4_000).as_bytes()).text();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..20 {
                let more: String = (0..20)
                    .map(|m| event_line(7, 1_650_000_000 + n * 20 + m, 1, &[], "late"))
                    .collect();
                from.hark_fed(&["import", "--trusted"], more.as_bytes()).text();
            }
        });
        copy(&from, &to, &[]);
    });
    let done = copy(&from, &to, &[]);
    assert_eq!((&done["compared"], &done["extra"]), (&4_400.into(), &0.into()), "{done}");
    assert_eq!(source.terminate().0, 0);
    assert_eq!(target.terminate().0, 0);
    assert_eq!(to.hark(&["export"]).text(), from.hark(&["export"]).text());
}

#[test]
fn through_a_database_and_back_every_byte_is_the_same() {
    let (from, back) = (Place::new("copy-to-database"), Place::new("copy-from-database"));
    let database = Cluster::shared().database("copy");
    let file = events(&from, "3000");
    from.hark(&["import", "--trusted", &file]).text();
    let (data, again) = (from.data(), back.data());
    let (data, again) = (data.to_str().unwrap(), again.to_str().unwrap());
    let done = between(data, &database.url, &[]);
    assert!(done["copied"].as_u64() > Some(2_900) && done["extra"] == 0, "{done}");
    assert_eq!(between(data, &database.url, &[])["copied"], 0);
    let export = from.hark(&["export"]).text();
    assert!(hark(&["export", "--store", &database.url]).text() == export);
    between(&database.url, again, &[]);
    assert!(back.hark(&["export"]).text() == export);
    // Events that are deleted in the source are deleted in the target.
    from.hark(&["delete", "--yes", r#"{"kinds":[1]}"#]).text();
    let done = between(data, &database.url, &["--delete"]);
    assert!(done["deleted"].as_u64() > Some(1_000), "{done}");
    let export = from.hark(&["export"]).text();
    assert!(hark(&["export", "--store", &database.url]).text() == export);
}
