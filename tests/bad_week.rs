//! A bad week of an operator: one archive, one misfortune a day. Each day checks the messages and
//! exit codes of the commands, and that the archive still has all good records at the end.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use hark_testkit::nostr::event_line;
use hark_testkit::postgres::Cluster;
use hark_testkit::program::Finished;
use hark_testkit::websocket::Socket;
use serde_json::{Value, json};

use crate::cli::full::SmallDisk;
use crate::cli::support::{Place, hark, notes, wait_for_health};

/// The user that owns the archive when a command is run as root.
const OTHER: u32 = 65_534;
/// Number of records in the archive at first, and in a segment.
const NOTES: u64 = 1_500;
const SEAL: &str = "[archive]\nseal_records = 400\n";

/// The archive, and the records that the archive must have at the end of each day.
struct Week {
    place: Place,
    config: String,
    backup: String,
    good: String,
}

impl Week {
    fn begin() -> Self {
        let place = Place::new("bad-week");
        let config = place.file("hark.toml", SEAL.as_bytes());
        let backup = place.path("backup");
        let mut week = Self { place, config, backup, good: String::new() };
        // Several batches, since a flipped byte in the last batch would look like a torn end.
        for part in notes(NOTES).lines().collect::<Vec<_>>().chunks(300) {
            week.feed(&(part.join("\n") + "\n"));
        }
        assert_eq!(week.good.lines().count() as u64, NOTES);
        week
    }

    fn hark(&self, args: &[&str]) -> Finished {
        self.place.hark(&[&["--config", &self.config], args].concat())
    }

    /// Imports good events.
    fn feed(&mut self, events: &str) {
        let args = ["--config", &self.config, "import"];
        assert_eq!(self.place.hark_fed(&args, events.as_bytes()).code, 0);
        self.good = self.hark(&["export"]).text();
    }

    /// Asserts that the archive is whole and has all its records.
    fn all_is_good(&self, day: &str) {
        let check = self.hark(&["check", "--json"]);
        assert_eq!((check.code, &check.json()["faults"]), (0, &json!([])), "{day}");
        assert!(self.hark(&["export"]).text() == self.good, "{day}: something good is lost");
    }

    fn logs(&self) -> Vec<PathBuf> {
        files(&self.place.data().join("nostr/log"), "log")
    }

    fn restore(&self) {
        fs::remove_dir_all(self.place.data()).unwrap();
        self.restore_into(&self.place);
    }

    fn restore_into(&self, place: &Place) {
        let run = place.hark(&["--config", &self.config, "restore", &self.backup]);
        assert!(run.code == 0 && run.stdout.contains("has the archive of"), "{run:?}");
    }

    /// Salvages the archive into another directory, without changing the archive. Returns the
    /// salvaged events.
    fn salvaged(&self) -> String {
        let new = self.place.path("salvaged");
        let data = self.place.data();
        let args = ["salvage", "--from", data.to_str().unwrap(), "--to", &new];
        let run = self.hark(&args);
        assert!(run.code == 1 && run.stdout.contains("of the log are lost"), "{run:?}");
        let of_new = |args: &[&str]| hark(&[&["--data", &new], args].concat()).text();
        assert!(of_new(&["check"]).contains("no faults"));
        let events = of_new(&["export"]);
        fs::remove_dir_all(&new).unwrap();
        events
    }
}

/// Publishes an event. Returns whether the relay accepted the event, and the reason if not.
fn publish(address: &str, event: &str) -> (bool, String) {
    let mut socket = Socket::connect(address);
    socket.send_text(format!("[\"EVENT\",{}]", event.trim()));
    let answer = socket.json();
    assert_eq!(answer[0], "OK", "{answer}");
    (answer[2] == true, answer[3].as_str().unwrap_or_default().to_owned())
}

/// The files of a folder with this ending, by name.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|found| found == ending)).collect();
    files.sort();
    files
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at..at + 8].iter_mut().for_each(|byte| *byte ^= 0x55);
    fs::write(path, bytes).unwrap();
}

/// A foreign file is imported: the message names the format, the command fails, and no record is
/// stored.
fn a_foreign_file(week: &Week) {
    let file = week.place.file("dump.jsonl", b"\xfd7zXZ\0\0\x04");
    let run = week.hark(&["import", &file]);
    assert!(run.code == 1 && run.stderr.contains("xz -dc FILE | hark import"), "{run:?}");
    let file = week.place.file("notes.txt", b"not an event\n");
    let run = week.hark(&["import", &file]);
    assert!(run.code == 1 && run.stderr.contains("not one line"), "{run:?}");
}

/// A command is run as root on the archive of another user, who still owns all files afterwards.
fn a_command_as_root(week: &mut Week) {
    if !rustix::process::geteuid().is_root() {
        return println!("passed over: only root can give files away");
    }
    let data = week.place.data();
    let shelf = data.join("nostr");
    let folders = [data.clone(), shelf.clone(), shelf.join("log"), shelf.join("seg")];
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let all: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).chain([data]).collect();
    for path in &all {
        std::os::unix::fs::lchown(path, Some(OTHER), Some(OTHER)).unwrap();
    }
    let more: String =
        (0..500).map(|n| event_line(8, 1_600_000_000 + n, 1, &[], "as root")).collect();
    week.feed(&more);
    week.hark(&["rebuild"]).text();
    for folder in folders {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.metadata().unwrap().uid(), OTHER, "{}", entry.path().display());
        }
    }
}

/// A level of the log is mistyped: the server does not start, and the message lists the levels.
fn a_wrong_log_level(week: &Week) {
    let file = week.place.file("loud.toml", b"[log]\nlevel = \"loud\"\n");
    for args in [["--config", &file, "serve"], ["serve", "--log-level", "loud"]] {
        let run = week.place.hark(&args);
        assert_eq!(run.code, 2, "{run:?}");
        assert!(run.stderr.contains("\"loud\"") || run.stderr.contains("'loud'"), "{run:?}");
        assert!(run.stderr.contains("info") && run.stderr.contains("debug"), "{run:?}");
    }
}

/// A list that the configuration names is missing while the server runs: the old configuration
/// stays in force, and the new configuration applies as soon as the list exists.
fn a_missing_list(week: &Week) {
    let file = week.place.file("listed.toml", SEAL.as_bytes());
    let mut server = week.place.serve_with(&["--config", &file]);
    week.place
        .file("listed.toml", format!("{SEAL}[policy]\nallow_keys = [\"@list\"]\n").as_bytes());
    server.wait_for_log("list could not be read");
    let run = week.place.hark(&["reload"]);
    assert!(run.code == 1 && run.stderr.contains("list could not be read"), "{run:?}");
    let stats = week.place.hark(&["stats"]).text();
    assert!(stats.contains("a newer one refused"), "{stats}");
    week.place.file("list", format!("{}\n", "ab".repeat(32)).as_bytes());
    server.wait_for_log("the configuration was read again, and is in force");
    let (accepted, why) =
        publish(&server.address, &event_line(9, 1_700_000_000, 1, &[], "a stranger"));
    assert!(!accepted && why.starts_with("blocked: "), "{why}");
    assert_eq!(server.terminate().0, 0);
}

/// The disk is full: a server starts and answers, refuses events with the reason, and accepts
/// events again once there is room.
fn a_full_disk(week: &Week) {
    let Some(disk) = SmallDisk::mount("bad-week-disk") else { return };
    week.restore_into(&disk.place);
    // Every server creates a reserve of disk space, which a later start may need.
    assert_eq!(disk.place.serve().terminate().0, 0);
    disk.fill();
    let server = disk.place.serve();
    let (accepted, why) =
        publish(&server.address, &event_line(9, 1_700_000_000, 1, &[], "too much"));
    assert!(!accepted && why.starts_with("error: ") && why.contains("the disk is full"), "{why}");
    let said = wait_for_health(&server.address, 503);
    assert!(said.contains("the disk is full"), "{said}");
    assert!(disk.place.hark(&["export"]).text() == week.good, "something good is lost");
    disk.free();
    wait_for_health(&server.address, 200);
    let (accepted, why) = publish(&server.address, &event_line(9, 1_700_000_000, 1, &[], "now"));
    assert!(accepted, "{why}");
    let (code, log) = server.terminate();
    assert!(code == 0 && !log.contains("rebuild"), "{log}");
    let after = disk.place.hark(&["export"]).text();
    assert_eq!(after.lines().count(), week.good.lines().count() + 1);
    assert_eq!(disk.place.hark(&["check", "--json"]).json()["faults"], json!([]));
}

/// The archive is in a database, which stops and starts: writes are refused while the database is
/// down, and no accepted event is lost.
fn a_database_that_stops(week: &Week) {
    let cluster = Cluster::new();
    let database = cluster.database("bad_week");
    let data = week.place.data();
    let copy = ["copy", "--from", data.to_str().unwrap(), "--to", &database.url];
    let run = hark(&copy);
    assert_eq!(run.code, 0, "{run:?}");
    let place = Place::new("bad-week-database");
    let server = place.serve_with(&["--store", &database.url]);
    let before = event_line(9, 1_700_000_001, 1, &[], "before");
    assert_eq!(publish(&server.address, &before), (true, String::new()));
    cluster.stop();
    let said = wait_for_health(&server.address, 503);
    assert!(said.contains("the database is away"), "{said}");
    let (accepted, why) = publish(&server.address, &event_line(9, 1_700_000_002, 1, &[], "away"));
    assert!(!accepted && why.starts_with("error: "), "{why}");
    let run = hark(&["--store", &database.url, "export"]);
    assert!(run.code == 1 && run.stderr.contains("the database is away"), "{run:?}");
    cluster.start();
    wait_for_health(&server.address, 200);
    let after = event_line(9, 1_700_000_003, 1, &[], "after");
    assert_eq!(publish(&server.address, &after), (true, String::new()));
    assert_eq!(server.terminate().0, 0);
    let stored = hark(&["--store", &database.url, "export"]).text();
    let ids = |events: &str| {
        let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].to_string();
        events.lines().map(id).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(ids(&stored), ids(&[&*week.good, &before, &after].concat()));
}

/// A backup of the archive in its current state.
fn a_backup(week: &Week) {
    let run = week.hark(&["backup", "--incremental", &week.backup]);
    assert_eq!(run.code, 0, "{run:?}");
}

/// A hole in the ids of a segment: `check` reports the hole, and `rebuild` repairs the segment.
fn a_hole_in_a_segment(week: &Week) {
    let segments = files(&week.place.data().join("nostr/seg"), "seg");
    let mut bytes = fs::read(&segments[0]).unwrap();
    // The times have 4 bytes a row. The hashes of the ids follow, with 8 bytes a row.
    let rows = u32::from_le_bytes(*bytes[bytes.len() - 16..].first_chunk().unwrap()) as usize;
    bytes[8 + rows * 4 + 64..][..512].fill(0);
    fs::write(&segments[0], bytes).unwrap();
    let run = week.hark(&["check"]);
    assert!(run.code == 1 && run.stderr.contains("`hark rebuild` rebuilds the rest"), "{run:?}");
    week.hark(&["rebuild"]).text();
}

/// Flipped bytes in a sealed log: `check` names the file, `export` returns all other events, a new
/// backup is refused, and the archive is restored from the previous backup.
fn a_flip_in_a_sealed_log(week: &Week) {
    let log = &week.logs()[0];
    flip(log, fs::metadata(log).unwrap().len() as usize / 2);
    let run = week.hark(&["check"]);
    let name = log.file_name().unwrap().to_string_lossy().into_owned();
    assert!(run.code == 1 && run.stdout.contains(&name), "{run:?}");
    let run = week.hark(&["export"]);
    assert!(run.code == 1 && run.stderr.contains("events could not be read: 1."), "{run:?}");
    assert_eq!(run.stdout.lines().count() + 1, week.good.lines().count(), "one is lost");
    let salvaged = week.salvaged();
    assert!(salvaged == run.stdout, "salvage brings back what export has");
    let run = week.hark(&["backup", &week.place.path("another")]);
    assert!(run.code == 1 && run.stderr.contains("no backup was taken"), "{run:?}");
    week.restore();
}

/// Flipped bytes in the middle of the log being written: the server refuses to start and changes
/// nothing, `salvage` recovers all other events, and a backup is refused.
fn a_flip_in_the_last_log(week: &Week) {
    let log = week.logs().pop().unwrap();
    flip(&log, 200);
    let before = fs::read(&log).unwrap();
    let run = week.hark(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(run.code == 1 && run.stderr.contains("is damaged at byte"), "{run:?}");
    assert_eq!(run.stderr.matches("hark salvage").count(), 1, "{run:?}");
    assert_eq!(week.salvaged().lines().count() + 1, week.good.lines().count(), "one is lost");
    assert!(fs::read(&log).unwrap() == before, "the damaged log was changed");
    let run = week.hark(&["backup", "--incremental", &week.backup]);
    assert!(run.code == 1 && run.stderr.contains("no backup was taken"), "{run:?}");
    week.restore();
}

/// The whole archive is removed.
fn an_rm_rf(week: &Week) {
    week.restore();
    let server = week.place.serve_with(&["--config", &week.config]);
    assert_eq!(week.hark(&["count", "{}"]).text().trim(), week.good.lines().count().to_string());
    assert_eq!(server.terminate().0, 0);
}

/// The misfortune of a day.
type Day = fn(&Week);

#[test]
fn an_operators_bad_week() {
    let mut week = Week::begin();
    a_foreign_file(&week);
    week.all_is_good("a foreign file");
    a_command_as_root(&mut week);
    week.all_is_good("a command as root");
    a_backup(&week);
    let days: [(&str, Day); 8] = [
        ("a wrong log level", a_wrong_log_level),
        ("a missing list", a_missing_list),
        ("a full disk", a_full_disk),
        ("a database that stops", a_database_that_stops),
        ("a hole in a segment", a_hole_in_a_segment),
        ("a flip in a sealed log", a_flip_in_a_sealed_log),
        ("a flip in the last log", a_flip_in_the_last_log),
        ("rm -rf", an_rm_rf),
    ];
    for (day, happens) in days {
        happens(&week);
        week.all_is_good(day);
    }
}
