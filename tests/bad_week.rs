//! A bad week of an operator: one archive, one misfortune a day. Each day says what the commands say
//! and which exit code they have, and ends with all that was good.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cli::support::{Place, Run, event, notes};

/// The user who owns the archive when a command is run as root.
const OTHER: u32 = 65_534;
/// Records that the archive begins with, and those of a segment.
const NOTES: u64 = 1_500;
const SEAL: &str = "[archive]\nseal_records = 400\n";

/// The archive, and what must be in it at the end of each day.
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
        // Several batches: a flipped byte in the last one would look like a torn end.
        for part in notes(NOTES).lines().collect::<Vec<_>>().chunks(300) {
            week.feed(&(part.join("\n") + "\n"));
        }
        assert_eq!(week.good.lines().count() as u64, NOTES);
        week
    }

    fn hark(&self, args: &[&str]) -> Run {
        self.place.hark(&[&["--config", &self.config], args].concat())
    }

    /// Imports good events.
    fn feed(&mut self, events: &str) {
        let args = ["--config", &self.config, "import"];
        assert_eq!(self.place.hark_fed(&args, events.as_bytes()).code, 0);
        self.good = self.hark(&["export"]).text();
    }

    /// Asserts that the archive is whole, and has what it had.
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
        let run = self.hark(&["restore", &self.backup]);
        assert!(run.code == 0 && run.stdout.contains("has the archive of"), "{run:?}");
    }
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

/// A foreign file is imported: it is named, fails, and nothing comes of it.
fn a_foreign_file(week: &Week) {
    let file = week.place.file("dump.jsonl", b"\xfd7zXZ\0\0\x04");
    let run = week.hark(&["import", &file]);
    assert!(run.code == 1 && run.stderr.contains("xz -dc FILE | hark import"), "{run:?}");
    let file = week.place.file("notes.txt", b"not an event\n");
    let run = week.hark(&["import", &file]);
    assert!(run.code == 1 && run.stderr.contains("not one line"), "{run:?}");
}

/// A command is run as root on the archive of another user, who keeps all files.
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
    let more: String = (0..500).map(|n| event(8, 1_600_000_000 + n, 1, &[], "as root")).collect();
    week.feed(&more);
    week.hark(&["rebuild"]).text();
    for folder in folders {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.metadata().unwrap().uid(), OTHER, "{}", entry.path().display());
        }
    }
}

/// A backup is taken of the archive as it is now.
fn a_backup(week: &Week) {
    let run = week.hark(&["backup", "--incremental", &week.backup]);
    assert_eq!(run.code, 0, "{run:?}");
}

/// A hole in the ids of a segment: `check` finds it, `rebuild` mends it.
fn a_hole_in_a_segment(week: &Week) {
    let segments = files(&week.place.data().join("nostr/seg"), "seg");
    let mut bytes = fs::read(&segments[0]).unwrap();
    // Behind the times, of 4 bytes a row, are the ids' hashes, of 8 bytes a row.
    let rows = u32::from_le_bytes(*bytes[bytes.len() - 16..].first_chunk().unwrap()) as usize;
    bytes[8 + rows * 4 + 64..][..512].fill(0);
    fs::write(&segments[0], bytes).unwrap();
    let run = week.hark(&["check"]);
    assert!(run.code == 1 && run.stderr.contains("`hark rebuild` rebuilds the rest"), "{run:?}");
    week.hark(&["rebuild"]).text();
}

/// Flipped bytes in a sealed log: `check` names the file, a backup is refused and stays whole, and
/// the archive is restored from it.
fn a_flip_in_a_sealed_log(week: &Week) {
    let log = &week.logs()[0];
    flip(log, fs::metadata(log).unwrap().len() as usize / 2);
    let run = week.hark(&["check"]);
    let name = log.file_name().unwrap().to_string_lossy().into_owned();
    assert!(run.code == 1 && run.stdout.contains(&name), "{run:?}");
    week.restore();
}

/// Flipped bytes in the log that is being written, before others: the server refuses to start and
/// changes nothing, and a backup is refused too.
fn a_flip_in_the_last_log(week: &Week) {
    let log = week.logs().pop().unwrap();
    flip(&log, 200);
    let before = fs::read(&log).unwrap();
    let run = week.hark(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(run.code == 1 && run.stderr.contains("is damaged at byte"), "{run:?}");
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

/// What happens on a day.
type Day = fn(&Week);

#[test]
fn an_operators_bad_week() {
    let mut week = Week::begin();
    a_foreign_file(&week);
    week.all_is_good("a foreign file");
    a_command_as_root(&mut week);
    week.all_is_good("a command as root");
    a_backup(&week);
    let days: [(&str, Day); 4] = [
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
