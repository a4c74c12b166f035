//! `hark adopt strfry`, from a database that strfry has written (as described in strfry/README.md),
//! and `hark adopt nostr-rs-relay`, from a database with the relay's schema.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use hark_codec::hex;
use hark_testkit::nostr::event_line;
use hark_testkit::postgres::Cluster;
use hark_testkit::program::{Finished, Process};
use rusqlite::{Connection, params};
use serde_json::{Value, json};

use crate::cli::support::{Place, field, notes, wait_for_events};

/// The schema of nostr-rs-relay in these tests.
const SCHEMA: &str = "PRAGMA journal_mode = WAL; PRAGMA user_version = 18;
    CREATE TABLE event (id INTEGER PRIMARY KEY, event_hash BLOB NOT NULL, first_seen INTEGER NOT NULL,
        created_at INTEGER NOT NULL, expires_at INTEGER, author BLOB NOT NULL, delegated_by BLOB,
        kind INTEGER NOT NULL, hidden INTEGER, content TEXT NOT NULL);
    CREATE UNIQUE INDEX event_hash_index ON event(event_hash);
    CREATE INDEX created_at_index ON event(created_at);";

/// The events that strfry has compressed with a dictionary.
const COMPRESSED: usize = 33;

/// The events that every relay gets, in this order. The flag is true if the relay still serves the
/// event after it has received all events.
fn events() -> Vec<(String, bool)> {
    let mut events: Vec<_> = notes(40).lines().map(|line| (format!("{line}\n"), true)).collect();
    for n in 1..=6 {
        let (name, text) = (n.to_string(), "All of it in one event. ".repeat(100 * n));
        events
            .push((event_line(6, 1_700_000_100 + n as u64, 30_023, &[&["d", &name]], &text), true));
    }
    let deleted = event_line(7, 1_700_000_200, 1, &[], "deleted there");
    let id = field(&deleted, "id");
    events.push((deleted, false));
    events.push((event_line(7, 1_700_000_201, 5, &[&["e", &id]], "a mistake"), true));
    events.push((event_line(7, 1_700_000_202, 0, &[], "{\"name\":\"old\"}"), false));
    events.push((event_line(7, 1_700_000_203, 0, &[], "{\"name\":\"new\"}"), true));
    events.push((event_line(7, 1_700_000_204, 20_001, &[], "brief"), false));
    events
}

/// The lines of the events that an adoption copies.
fn expected() -> BTreeSet<String> {
    let kept = events().into_iter().filter(|(_, is_kept)| *is_kept);
    kept.map(|(line, _)| line.trim_end().to_owned()).collect()
}

/// The lines that an archive exports.
fn kept(place: &Place, flags: &[&str]) -> BTreeSet<String> {
    let export = place.hark(&[&["export"], flags].concat()).text();
    export.lines().map(str::to_owned).collect()
}

/// Writes strfry's database to a separate directory.
fn strfry(place: &Place) -> PathBuf {
    let dir = PathBuf::from(place.path("strfry-db"));
    fs::create_dir_all(&dir).unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/moving/strfry/data.mdb.zst");
    let packed = fs::read(fixture).unwrap();
    fs::write(dir.join("data.mdb"), zstd::decode_all(&packed[..]).unwrap()).unwrap();
    dir
}

/// Makes a database of nostr-rs-relay, with these events.
fn sqlite(place: &Place, events: &[(String, bool)]) -> (Connection, String) {
    let path = place.path("nostr.db");
    let database = Connection::open(&path).unwrap();
    database.execute_batch(SCHEMA).unwrap();
    for (line, is_kept) in events {
        insert(&database, line, !is_kept && !line.contains("brief"));
    }
    (database, path)
}

fn insert(database: &Connection, line: &str, is_hidden: bool) {
    let event: Value = serde_json::from_str(line).unwrap();
    let sql =
        "INSERT INTO event (event_hash, first_seen, created_at, author, kind, hidden, content)
               VALUES (?1, ?2, ?2, ?3, ?4, ?5, ?6)";
    let bytes = |name: &str| {
        let mut bytes = Vec::new();
        assert!(hex::decode_into(event[name].as_str().unwrap().as_bytes(), &mut bytes));
        bytes
    };
    let (id, author) = (bytes("id"), bytes("pubkey"));
    let (time, kind) = (event["created_at"].as_i64(), event["kind"].as_i64());
    database.execute(sql, params![id, time, author, kind, is_hidden, line.trim_end()]).unwrap();
}

fn adopt(place: &Place, relay: &str, from: &str, flags: &[&str]) -> Finished {
    place.hark(&[&["adopt", relay, from, "--json"], flags].concat())
}

/// The result of an adoption with any exit code.
fn told(run: &Finished) -> Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{}", run.stderr))
}

#[test]
fn all_of_a_strfry_comes_over_as_it_was() {
    let place = Place::new("adopt-strfry");
    let dir = strfry(&place);
    let before = fs::read(dir.join("data.mdb")).unwrap();
    let from = dir.to_string_lossy().into_owned();
    let done = adopt(&place, "strfry", &from, &["--verify", "--verify-signatures"]).json();
    let count = expected().len();
    assert_eq!((&done["stored"], &done["complete"]), (&json!(count), &json!(true)), "{done}");
    let ids = &done["ids"];
    assert_eq!((&ids["source"], &ids["here"]), (&json!(count + 1), &json!(count)), "{done}");
    assert_eq!((&ids["compared"], &ids["different"]), (&json!(count), &json!(0)), "{done}");
    assert_eq!((&ids["reasons"]["ephemeral"], &ids["clean"]), (&json!(1), &json!(true)), "{done}");
    assert_eq!(kept(&place, &[]), expected());
    // A second run has nothing to do, and reports the reasons of refusals.
    let again = place.hark(&["adopt", "strfry", &from]);
    assert_eq!(again.code, 0, "{}", again.stderr);
    let continued = format!("continuing an earlier run, after {} events", count + 1);
    assert!(again.stderr.contains(&continued), "{}", again.stderr);
    assert!(again.stdout.contains("of a kind that is never stored; first"), "{}", again.stdout);
    // The adoption has neither changed nor added files in strfry's directory.
    assert!(fs::read(dir.join("data.mdb")).unwrap() == before);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
    // The path of the file works as well.
    let other = Place::new("adopt-strfry-file");
    let file = dir.join("data.mdb").to_string_lossy().into_owned();
    assert_eq!(adopt(&other, "strfry", &file, &["--batch", "1"]).json()["stored"], count);
}

#[test]
fn all_of_a_nostr_rs_relay_comes_over_but_what_it_hides() {
    let place = Place::new("adopt-nostr-rs");
    let (database, from) = sqlite(&place, &events());
    // An expired event, and an event that is too large.
    let past = event_line(8, 1_700_000_300, 1, &[&["expiration", "1700000301"]], "past");
    insert(&database, &past, false);
    insert(&database, &event_line(8, 1_700_000_302, 1, &[], &"x".repeat(1_500_000)), false);
    let done = adopt(&place, "nostr-rs-relay", &from, &["--verify"]).json();
    let count = expected().len();
    let ids = &done["ids"];
    assert_eq!((&done["stored"], &ids["compared"]), (&json!(count), &json!(count)), "{done}");
    for (reason, number) in
        [("deleted_there", 2), ("ephemeral", 1), ("expired", 1), ("too_large", 1)]
    {
        assert_eq!(ids["reasons"][reason], number, "{reason}: {done}");
    }
    assert_eq!(ids["clean"], true, "{done}");
    assert_eq!(kept(&place, &[]), expected());
}

#[test]
fn they_come_into_a_database_and_through_a_running_server() {
    let target = Cluster::shared().database("adoptrelays");
    let store = ["--store", &target.url];
    let place = Place::new("adopt-relays-database");
    let from = strfry(&place).to_string_lossy().into_owned();
    let done = adopt(&place, "strfry", &from, &[&["--verify"][..], &store].concat()).json();
    assert_eq!((&done["stored"], &done["ids"]["clean"]), (&json!(expected().len()), &json!(true)));
    assert_eq!(kept(&place, &store), expected());

    let place = Place::new("adopt-relays-served");
    let (_database, from) = sqlite(&place, &events());
    let server = place.serve();
    let done = adopt(&place, "nostr-rs-relay", &from, &["--verify"]).json();
    assert_eq!((&done["stored"], &done["ids"]["clean"]), (&json!(expected().len()), &json!(true)));
    assert_eq!(server.terminate().0, 0);
    assert_eq!(kept(&place, &[]), expected());
}

/// Interrupts an adoption that follows its source, and returns its result.
fn cut_over(child: Process) -> Value {
    child.signal("INT");
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn what_is_published_meanwhile_is_followed_and_numbers_that_come_again_are_seen() {
    let place = Place::new("adopt-relays-follow");
    let (database, from) = sqlite(&place, &[]);
    let lines: Vec<String> = notes(300).lines().map(str::to_owned).collect();
    lines[..250].iter().for_each(|line| insert(&database, line, false));
    let server = place.serve();
    let child = place.start(&["adopt", "nostr-rs-relay", &from, "--follow", "--json"]);
    wait_for_events(&place, 250);
    lines[250..270].iter().for_each(|line| insert(&database, line, false));
    wait_for_events(&place, 270);
    // SQLite reuses the row numbers of deleted events for new events.
    database.execute("DELETE FROM event WHERE id > 260", []).unwrap();
    lines[270..280].iter().for_each(|line| insert(&database, line, false));
    wait_for_events(&place, 280);
    // Deleting this many rows gives the new events numbers that the adoption has passed long ago.
    database.execute("DELETE FROM event WHERE id > 20", []).unwrap();
    lines[280..].iter().for_each(|line| insert(&database, line, false));
    let done = cut_over(child);
    assert!(done["ids"]["clean"] == true && done["stored"] == 300, "{done}");
    assert_eq!(server.terminate().0, 0);
    assert_eq!(kept(&place, &[]), lines.into_iter().collect());
}

/// The usual compaction of a database writes another file, and gives this file the old name.
#[test]
fn a_file_that_takes_the_place_of_the_database_is_followed() {
    let place = Place::new("adopt-relays-replaced");
    let (database, from) = sqlite(&place, &[]);
    let lines: Vec<String> = notes(60).lines().map(str::to_owned).collect();
    lines[..40].iter().for_each(|line| insert(&database, line, false));
    let server = place.serve();
    let child = place.start(&["adopt", "nostr-rs-relay", &from, "--follow", "--json"]);
    wait_for_events(&place, 40);
    let aside = place.path("new.db");
    database.execute("VACUUM INTO ?1", [&aside]).unwrap();
    drop(database);
    fs::rename(&aside, &from).unwrap();
    for ending in ["-wal", "-shm"] {
        let _ = fs::remove_file(format!("{from}{ending}"));
    }
    let database = Connection::open(&from).unwrap();
    database.execute_batch("PRAGMA user_version = 18").unwrap();
    lines[40..].iter().for_each(|line| insert(&database, line, false));
    wait_for_events(&place, 60);
    let done = cut_over(child);
    assert!(done["ids"]["clean"] == true && done["stored"] == 60, "{done}");
    assert_eq!(server.terminate().0, 0);
    // The file that replaces strfry's database is read, too.
    let place = Place::new("adopt-strfry-replaced");
    let dir = strfry(&place);
    let server = place.serve();
    let from = dir.to_string_lossy().into_owned();
    let child = place.start(&["adopt", "strfry", &from, "--follow", "--json"]);
    wait_for_events(&place, expected().len() as u64);
    fs::write(place.path("other"), [0; 8192]).unwrap();
    fs::rename(place.path("other"), dir.join("data.mdb")).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && stderr.contains("data.mdb"), "{stderr}");
    assert_eq!(server.terminate().0, 0);
}

#[test]
fn an_interrupt_before_the_end_of_the_first_copy_ends_a_run_that_follows() {
    let place = Place::new("adopt-relays-interrupted");
    let from = sqlite(&place, &events()).1;
    let flags = ["adopt", "nostr-rs-relay", &from, "--follow", "--rate", "40", "--batch", "4"];
    let mut child = place.start(&flags);
    let file = "adopt-nostr-rs-relay.json";
    child.until("twelve are remembered", || remembered(&place, file) >= 12);
    child.signal("INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(kept(&place, &[]).len() < expected().len());
}

/// The number of events in the saved position.
fn remembered(place: &Place, file: &str) -> u64 {
    let text = fs::read(place.data().join(file)).unwrap_or_default();
    let json: Value = serde_json::from_slice(&text).unwrap_or_default();
    json["events"].as_u64().unwrap_or(0)
}

#[test]
fn a_relay_is_adopted_whole_by_a_run_that_was_killed_and_another() {
    for (relay, file) in
        [("strfry", "adopt-strfry.json"), ("nostr-rs-relay", "adopt-nostr-rs-relay.json")]
    {
        let place = Place::new(&format!("adopt-killed-{relay}"));
        let from = if relay == "strfry" {
            strfry(&place).to_string_lossy().into_owned()
        } else {
            sqlite(&place, &events()).1
        };
        let flags = ["adopt", relay, &from, "--rate", "40", "--batch", "4"];
        let mut child = place.start(&flags);
        child.until("twelve are remembered", || remembered(&place, file) >= 12);
        child.kill().unwrap();
        child.wait().unwrap();
        let seen = remembered(&place, file);
        let done = adopt(&place, relay, &from, &["--verify"]).json();
        assert!(done["stored"].as_u64() <= Some(51 - seen), "after {seen}: {done}");
        assert_eq!((kept(&place, &[]), &done["ids"]["clean"]), (expected(), &json!(true)));
        assert_eq!(place.hark(&["check", "--json"]).json()["faults"], json!([]));
    }
}

#[test]
fn a_damaged_strfry_is_told_and_what_is_whole_comes_over() {
    let whole = Place::new("adopt-strfry-whole");
    let bytes = fs::read(strfry(&whole).join("data.mdb")).unwrap();
    let at = |text: &[u8]| bytes.windows(text.len()).position(|part| part == text).unwrap();
    let adopted = |name: &str, bytes: &[u8]| {
        let place = Place::new(name);
        let file = place.file("data.mdb", bytes);
        let run = place.hark(&["adopt", "strfry", &file, "--json"]);
        let kept = if place.data().exists() { kept(&place, &[]) } else { BTreeSet::new() };
        assert!(kept.is_subset(&expected()));
        (run, kept.len())
    };
    // Damage to a letter of an event.
    let mut letter = bytes.clone();
    letter[at(b"a mistake")] ^= 1;
    let (run, kept) = adopted("adopt-strfry-letter", &letter);
    let done = told(&run);
    assert_eq!((run.code, &done["ids"]["reasons"]["bad_id"]), (1, &json!(1)), "{}", run.stderr);
    assert!(run.stderr.contains("not those that their ids name: 1"), "{}", run.stderr);
    // Neither the event with the wrong id nor the target of its deletion is stored.
    assert_eq!(kept, expected().len() - 1);
    // Damage to the header of a page of events.
    let mut page = bytes.clone();
    page[at(b"a mistake") / 4096 * 4096] ^= 1;
    let (run, kept) = adopted("adopt-strfry-page", &page);
    let done = told(&run);
    assert_eq!((run.code, &done["ids"]["damaged"]), (1, &json!(1)), "{}", run.stderr);
    assert!(
        done["ids"]["first_damage"].as_str().unwrap().contains("is no page of a tree"),
        "{done}"
    );
    assert!((10..expected().len()).contains(&kept), "{kept}");
    // Damage to the dictionary of the compressed events.
    let mut dictionary = bytes.clone();
    dictionary[at(&[0x37, 0xa4, 0x30, 0xec]) + 8..][..100].fill(0xff);
    let (run, kept) = adopted("adopt-strfry-dictionary", &dictionary);
    let reasons = &told(&run)["ids"]["reasons"];
    assert_eq!((run.code, &reasons["malformed"]), (1, &json!(COMPRESSED)), "{}", run.stderr);
    assert_eq!(kept, expected().len() - COMPRESSED);
    // A truncated file.
    for pages in [1, 2, 3, 20, 40] {
        let (run, _) = adopted("adopt-strfry-short", &bytes[..pages * 4096]);
        let is_told = run.stderr.contains("is damaged") || run.stdout.contains("first_damage");
        assert!(run.code == 1 && is_told, "{pages}: {run:?}");
    }
}

#[test]
fn what_is_no_relays_database_is_refused_and_nothing_is_made() {
    let place = Place::new("adopt-relays-none");
    let dir = strfry(&place);
    let empty = place.path("empty");
    fs::create_dir(&empty).unwrap();
    // The Meta record ends with the counter 1, the endianness 1 and the version 3.
    let mut bytes = fs::read(dir.join("data.mdb")).unwrap();
    let numbers = [10_u64 << 32, 1, 1, 3].map(u64::to_le_bytes).concat();
    let meta = bytes.windows(28).position(|part| *part == numbers[4..]).unwrap();
    bytes[meta + 20] = 2;
    let older = place.file("older.mdb", &bytes);
    (bytes[meta + 12], bytes[meta + 20]) = (2, 3);
    let turned = place.file("turned.mdb", &bytes);
    let other = place.file("other.mdb", &[7; 9000]);
    let (database, newer) = sqlite(&place, &[]);
    database.execute_batch("PRAGMA user_version = 19").unwrap();
    let tables = place.path("tables.db");
    let others = Connection::open(&tables).unwrap();
    others.execute_batch("CREATE TABLE note (id INTEGER)").unwrap();
    for (relay, from, words) in [
        ("strfry", &empty[..], "data.mdb cannot be read; nothing was done. Name the directory"),
        ("strfry", &other, "other.mdb: no LMDB file. Nothing was done"),
        ("strfry", &older, "is a strfry database of version 2, and 3 is read"),
        ("strfry", &turned, "of a machine with another byte order"),
        ("nostr-rs-relay", "/nowhere/at/all", "/nowhere/at/all cannot be read; nothing was done"),
        ("nostr-rs-relay", &other, "is no SQLite database. Nothing was done"),
        ("nostr-rs-relay", &newer, "has schema 19 of nostr-rs-relay, and 2 to 18 are read"),
        ("nostr-rs-relay", &tables, "its table `event` has no id, hidden, content"),
    ] {
        let run = place.hark(&["adopt", relay, from]);
        assert!(run.code == 1 && run.stderr.contains(words), "{}", run.stderr);
        assert!(!place.data().exists(), "{from}");
    }
}

#[test]
fn a_damaged_database_of_sqlite_is_told() {
    let place = Place::new("adopt-sqlite-damaged");
    let (database, path) = sqlite(&place, &events());
    // Moves all data from the write-ahead log to the database file.
    database
        .execute_batch("PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode = DELETE")
        .unwrap();
    drop(database);
    let bytes = fs::read(&path).unwrap();
    let at = bytes.windows(9).position(|part| part == b"a mistake").unwrap();
    let mut letter = bytes.clone();
    letter[at] ^= 1;
    let letter = place.file("letter.db", &letter);
    let run = adopt(&place, "nostr-rs-relay", &letter, &[]);
    assert_eq!((run.code, &told(&run)["ids"]["reasons"]["bad_id"]), (1, &json!(1)));
    assert_eq!(kept(&place, &[]).len(), expected().len() - 1);
    let mut page = bytes.clone();
    page[at / 4096 * 4096..][..100].fill(0xff);
    for (name, bytes) in [("page.db", &page[..]), ("short.db", &bytes[..bytes.len() / 2])] {
        let run = adopt(&place, "nostr-rs-relay", &place.file(name, bytes), &[]);
        assert!(run.code == 1 && run.stderr.contains(name), "{}", run.stderr);
        let is_told = run.stderr.contains("malformed") && run.stderr.contains(".recover | sqlite3");
        assert!(is_told, "{}", run.stderr);
    }
}
