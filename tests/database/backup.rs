//! Backups of an archive in a database, and restores into files and into databases.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hark_testkit::citus::{self, CitusCluster};
use hark_testkit::clock::now_s;
use hark_testkit::nostr::{event, event_line};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::program::Finished;
use hark_testkit::wait::until;
use hark_testkit::websocket::Socket;
use serde_json::{Value, json};

use crate::cli::support::{Place, command, field, notes};

/// Questions whose answers two equal archives must share.
const QUESTIONS: [&str; 5] = [
    r#"{"kinds":[0]}"#,
    r##"{"#t":["bread"],"limit":50}"##,
    r#"{"since":1700000100,"until":1700000400}"#,
    r#"{"kinds":[5,30000],"limit":20}"#,
    r#"{"limit":500}"#,
];

/// An archive in a database, with the directory of its keys.
struct StoredArchive<'a> {
    place: Place,
    database: Database<'a>,
}

impl StoredArchive<'static> {
    fn new(name: &str) -> Self {
        let database = Cluster::shared().database("backup");
        Self { place: Place::new(&format!("database-backup-{name}")), database }
    }
}

impl StoredArchive<'_> {
    fn hark(&self, args: &[&str]) -> Finished {
        self.fed(args, "")
    }

    fn fed(&self, args: &[&str], stdin: &str) -> Finished {
        let store = ["--store", &self.database.url];
        self.place.hark_fed(&[args, &store].concat(), stdin.as_bytes())
    }

    fn import(&self, lines: &str) {
        self.fed(&["import"], lines).text();
    }

    fn export(&self) -> String {
        self.hark(&["export"]).text()
    }

    fn backup(&self, to: &str, flags: &[&str]) -> Value {
        self.hark(&[&["backup", to, "--json"], flags].concat()).json()["shelves"][0].clone()
    }

    /// Checks that the archive has no faults, and has the same answers as another archive.
    fn must_equal(&self, other: &str, ask: &dyn Fn(&[&str]) -> Finished) {
        must_equal(&self.export(), other, &|args| self.hark(args), ask);
    }
}

fn must_equal(
    own: &str,
    other: &str,
    ask: &dyn Fn(&[&str]) -> Finished,
    ask_other: &dyn Fn(&[&str]) -> Finished,
) {
    assert!(own == other, "{} and {} events", own.lines().count(), other.lines().count());
    for question in QUESTIONS {
        for command in ["query", "count"] {
            let (one, two) = (ask(&[command, question]).text(), ask_other(&[command, question]));
            assert_eq!(one, two.text(), "{command} {question}");
        }
    }
    assert_eq!(ask_other(&["check", "--json"]).json()["faults"], json!([]));
}

/// Restores a backup into new files, and compares the archive with the database.
fn must_be_restored(backup: &str, of: &StoredArchive<'_>, name: &str) -> Place {
    let fresh = Place::new(&format!("database-backup-{name}"));
    let run = fresh.hark(&["restore", backup]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    of.must_equal(&fresh.hark(&["export"]).text(), &|args| fresh.hark(args));
    fresh
}

/// Events of which some replace or delete others.
fn history(rounds: u64) -> String {
    let at = |n: u64| 1_750_000_000 + n;
    let mut lines = String::new();
    for n in 0..rounds {
        let who = (n % 3 + 1) as u8;
        lines += &event_line(who, at(n), 0, &[], &format!("name {n}"));
        let name = (n % 4).to_string();
        lines += &event_line(who, at(n), 30_000, &[&["d", &name]], &format!("list {n}"));
        let note = event_line(who, at(n), 1, &[&["t", "gone"]], &format!("gone {n}"));
        lines += &note;
        if n % 2 == 0 {
            let id = field(&note, "id");
            lines += &event_line(who, at(n) + 1, 5, &[&["e", &id]], "");
        }
    }
    lines
}

fn logs(backup: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(Path::new(backup).join("nostr/log")).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn a_database_is_backed_up_and_restored_into_files_and_into_a_database() {
    let archive = StoredArchive::new("round");
    archive.import(&notes(3000));
    archive.import(&history(60));
    std::fs::create_dir_all(archive.place.data()).unwrap();
    std::fs::write(archive.place.data().join("waku.key"), "aa".repeat(32)).unwrap();
    let to = archive.place.path("backup");
    let done = archive.backup(&to, &[]);
    let events = archive.export().lines().count();
    assert_eq!(done["records"], json!(events), "{done}");
    assert_eq!((&done["records_added"], &done["records_deleted"]), (&json!(events), &json!(0)));

    let files = must_be_restored(&to, &archive, "round-files");
    let key = std::fs::read_to_string(files.data().join("waku.key")).unwrap();
    assert_eq!(key, "aa".repeat(32));
    let other = StoredArchive::new("round-database");
    let run = other.hark(&["restore", &to, "--json"]).json();
    let nostr = &run["shelves"][0];
    assert_eq!(nostr["restored"], json!(events), "{run}");
    assert_eq!((&nostr["present"], &nostr["refused"]), (&json!(0), &json!(0)));
    archive.must_equal(&other.export(), &|args| other.hark(args));
    let key = std::fs::read_to_string(other.place.data().join("waku.key")).unwrap();
    assert_eq!(key, "aa".repeat(32));

    // A deleted event is still refused after a restore.
    let deleted = event_line(1, 1_750_000_000, 1, &[&["t", "gone"]], "gone 0");
    let import = ["import", "--json"];
    for run in [files.hark_fed(&import, deleted.as_bytes()), other.fed(&import, &deleted)] {
        assert_eq!(run.json()["stored"], json!(0), "{run:?}");
    }

    // A database with records is restored into only on request.
    let refused = other.hark(&["restore", &to]);
    assert!(refused.code == 1 && refused.stderr.contains("with --merge"), "{refused:?}");
    let merged = other.hark(&["restore", &to, "--merge", "--json"]).json();
    assert_eq!(merged["shelves"][0]["present"], json!(events), "{merged}");
    // Another database is another archive, and so is an archive in files.
    for run in [
        other.hark(&["backup", "--incremental", &to]),
        files.hark(&["backup", "--incremental", &to]),
    ] {
        assert!(run.code == 1 && run.stderr.contains("another archive"), "{run:?}");
    }
    // The backup of files can be restored into a database, too.
    let file = archive.place.path("files.hark");
    files.hark(&["backup", &file]).text();
    let third = StoredArchive::new("round-third");
    third.hark(&["restore", &file]).text();
    archive.must_equal(&third.export(), &|args| third.hark(args));
    assert!(!third.place.data().join("restore-unpacked").exists());
}

#[test]
fn a_backup_of_a_database_is_one_file_or_a_stream_too() {
    let archive = StoredArchive::new("file");
    archive.import(&notes(2000));
    archive.import(&history(20));
    let file = archive.place.path("monday.hark");
    let done = archive.backup(&file, &[]);
    assert_eq!(done["records"], json!(archive.export().lines().count()), "{done}");
    must_be_restored(&file, &archive, "file-files");
    let output = command(&["--store", &archive.database.url, "backup", "-"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let other = StoredArchive::new("file-stream");
    let store = ["--store", &other.database.url];
    let run = other.place.hark_fed(&[&["restore", "-"][..], &store].concat(), &output.stdout);
    assert_eq!(run.code, 0, "{run:?}");
    archive.must_equal(&other.export(), &|args| other.hark(args));
    let refused = archive.hark(&["backup", "--incremental", &file]);
    assert!(refused.code == 1 && refused.stderr.contains("for a directory"), "{refused:?}");
}

#[test]
fn an_incremental_backup_has_what_came_and_lacks_what_went() {
    let archive = StoredArchive::new("incremental");
    archive.import(&notes(4000));
    archive.import(&history(30));
    let to = archive.place.path("backup");
    let all = archive.backup(&to, &[])["bytes_copied"].as_u64().unwrap();
    let again = archive.backup(&to, &["--incremental"]);
    assert_eq!((&again["records_added"], &again["records_deleted"]), (&json!(0), &json!(0)));
    assert_eq!(again["bytes_copied"], json!(0), "{again}");

    for round in 1..4_u64 {
        let before: Vec<String> = archive.export().lines().map(str::to_owned).collect();
        // Replacements and deletions, new events, deletions by the operator, and an event that is
        // deleted and comes again.
        archive.import(&history(30 + 20 * round));
        let more: String = (0..100)
            .map(|n| event_line(7, 1_760_000_000 + round * 1000 + n, 1, &[], "more"))
            .collect();
        archive.import(&more);
        let note = event_line(3, 1_700_000_000 + 200 + round, 1, &[&["t", "back"]], "back");
        archive.import(&note);
        archive.hark(&["delete", "--yes", r##"{"#t":["back"]}"##]).text();
        archive.import(&note);
        let until = 1_700_000_000 + round * 200;
        let filter = json!({"kinds": [1], "until": until, "authors": [field(&note, "pubkey")]});
        archive.hark(&["delete", "--yes", &filter.to_string()]).text();
        let done = archive.backup(&to, &["--incremental"]);
        let after = archive.export();
        let now: std::collections::HashSet<&str> = after.lines().collect();
        let gone = before.iter().filter(|line| !now.contains(line.as_str())).count();
        assert!(gone > 20, "{gone}");
        let deleted = done["records_deleted"].as_u64().unwrap();
        assert!(deleted >= gone as u64 && deleted < gone as u64 + 5, "{gone}: {done}");
        assert_eq!(done["records"], json!(after.lines().count()), "{done}");
        assert!(done["bytes_copied"].as_u64().unwrap() < all / 4, "{all}: {done}");
        must_be_restored(&to, &archive, "incremental-files");
    }
    let other = StoredArchive::new("incremental-database");
    other.hark(&["restore", &to]).text();
    archive.must_equal(&other.export(), &|args| other.hark(args));
}

#[test]
fn a_backup_of_a_database_that_is_killed_leaves_the_former_one() {
    let archive = StoredArchive::new("killed");
    archive.import(&notes(6000));
    let to = archive.place.path("backup");
    // The state after a kill at the very beginning.
    std::fs::create_dir_all(&to).unwrap();
    std::fs::write(Path::new(&to).join("BACKUP.new"), "half").unwrap();
    let kill_after = |pause: Duration, flags: &[&str]| {
        let store = ["--store", &archive.database.url];
        let mut child = archive.place.start(&[&["backup", &to], flags, &store].concat());
        std::thread::sleep(pause);
        child.kill().unwrap();
        child.wait().unwrap();
    };
    for pause_ms in [20, 60, 100, 140] {
        kill_after(Duration::from_millis(pause_ms), &["--incremental"]);
    }
    archive.backup(&to, &["--incremental"]);
    let former = archive.export();
    must_be_restored(&to, &archive, "killed-first");
    archive.import(&history(300));
    archive.hark(&["delete", "--yes", r##"{"#t":["bread"]}"##]).text();
    let full = archive.export();
    for pause_ms in [20, 50, 80, 110] {
        kill_after(Duration::from_millis(pause_ms), &["--incremental"]);
        let fresh = Place::new("database-backup-killed-restored");
        let run = fresh.hark(&["restore", &to]);
        assert_eq!(run.code, 0, "{run:?}");
        let export = fresh.hark(&["export"]).text();
        assert!(export == former || export == full, "neither of both after {pause_ms} ms");
    }
    archive.backup(&to, &["--incremental"]);
    must_be_restored(&to, &archive, "killed-restored");
}

#[test]
fn damage_in_a_backup_of_a_database_is_found_and_mended() {
    let archive = StoredArchive::new("damage");
    archive.import(&notes(500));
    let to = archive.place.path("backup");
    archive.backup(&to, &[]);
    let damage = |path: &Path| {
        let mut bytes = std::fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    damage(&logs(&to)[0]);
    let other = StoredArchive::new("damage-database");
    let refused = other.hark(&["restore", &to]);
    assert!(refused.code == 1 && refused.stderr.contains("is not what was written"), "{refused:?}");
    assert_eq!(other.hark(&["count", "{}"]).text(), "0\n");
    let mended = archive.hark(&["backup", "--incremental", "--verify", "--json", &to]).json();
    assert_eq!(mended["damaged"].as_array().map(Vec::len), Some(1), "{mended}");
    must_be_restored(&to, &archive, "damage-files");
    // A damaged list is noticed without --verify. Then everything is read again.
    let list = std::fs::read_dir(Path::new(&to).join("nostr")).unwrap();
    let list = list.map(|file| file.unwrap().path()).find(|path| path.is_file()).unwrap();
    damage(&list);
    let mended = archive.hark(&["backup", "--incremental", "--json", &to]).json();
    assert_eq!(mended["shelves"][0]["records_added"], json!(500), "{mended}");
    must_be_restored(&to, &archive, "damage-files");
    assert_eq!(archive.backup(&to, &["--incremental"])["records_added"], json!(0));
}

/// A database that went back, for example to the state of a dump, has other puts with the same
/// numbers.
#[test]
fn a_backup_follows_a_database_that_went_back() {
    let archive = StoredArchive::new("back");
    archive.import(&notes(300));
    let to = archive.place.path("backup");
    let cluster = archive.database.cluster;
    let [old, name] = [&format!("{}_old", archive.database.name), &archive.database.name];
    cluster.sql("postgres", &format!("CREATE DATABASE {old} TEMPLATE {name}"));
    archive.import(&history(40));
    archive.hark(&["delete", "--yes", r##"{"#t":["bread"]}"##]).text();
    archive.backup(&to, &[]);
    let dropped = format!("{name}_dropped");
    cluster.sql("postgres", &format!("ALTER DATABASE {name} RENAME TO {dropped}"));
    cluster.sql("postgres", &format!("ALTER DATABASE {old} RENAME TO {name}"));
    // Nothing has been written since the database went back, and the deleted events exist again.
    let done = archive.backup(&to, &["--incremental"]);
    assert_eq!((&done["records"], &done["anew"]), (&json!(300), &json!(true)), "{done}");
    must_be_restored(&to, &archive, "back-files");
    archive.import(&history(10));
    let done = archive.backup(&to, &["--incremental"]);
    assert_eq!(done["records"], json!(archive.export().lines().count()), "{done}");
    must_be_restored(&to, &archive, "back-files");
    cluster.sql("postgres", &format!("DROP DATABASE {dropped} WITH (FORCE)"));
}

#[test]
fn a_backup_beside_a_busy_server_has_all_events_from_before_it() {
    let archive = StoredArchive::new("busy");
    archive.import(&notes(5000));
    let server = archive.place.serve_with(&["--store", &archive.database.url]);
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let to = archive.place.path("backup");
    let slowest = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut socket = Socket::connect(&server.address);
            let (started, mut slowest) = (Instant::now(), Duration::ZERO);
            for n in 0_u64.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let due = started + Duration::from_millis(n * 10);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                let event = event(4, 1_770_000_000 + n, 1, &[&["t", "busy"]], "busy");
                let sent = Instant::now();
                socket.send_text(format!(r#"["EVENT",{event}]"#));
                let answer = socket.json();
                assert_eq!(answer[2], true, "{answer}");
                slowest = slowest.max(sent.elapsed());
                acknowledged.store(n + 1, Ordering::Relaxed);
            }
            slowest
        });
        for _ in 0..5 {
            let before = acknowledged.load(Ordering::Relaxed);
            archive.backup(&to, &["--incremental"]);
            let fresh = Place::new("database-backup-busy-restored");
            assert_eq!(fresh.hark(&["restore", &to]).code, 0);
            assert_eq!(fresh.hark(&["check", "--json"]).json()["faults"], json!([]));
            // The backup has all events up to some moment, without a gap.
            let busy = fresh.hark(&["count", r##"{"#t":["busy"]}"##]).text();
            let busy: u64 = busy.trim().parse().unwrap();
            assert!(busy >= before, "{busy} of {before}");
            let last = 1_770_000_000 + busy;
            let later = fresh.hark(&["count", &format!(r#"{{"since":{last}}}"#)]).text();
            assert_eq!(later, "0\n", "{busy}");
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    println!("the slowest of {} writes took {slowest:?}", acknowledged.load(Ordering::Relaxed));
    assert_eq!(server.terminate().0, 0);
    archive.backup(&to, &["--incremental"]);
    must_be_restored(&to, &archive, "busy-restored");
}

#[test]
fn an_event_that_expires_between_two_backups_goes_from_the_backup() {
    let archive = StoredArchive::new("expired");
    archive.import(&notes(50));
    let now_s = now_s();
    let tag: &[&str] = &["expiration", &(now_s + 3).to_string()];
    archive.import(&event_line(1, now_s, 1, &[tag], "soon gone"));
    let to = archive.place.path("backup");
    assert_eq!(archive.backup(&to, &[])["records"], json!(51));
    until("it expires", || archive.export().lines().count() == 50);
    // Both sides still store the expired event, but no query returns the event.
    must_be_restored(&to, &archive, "expired-files");
    let server = archive.place.serve_with(&["--store", &archive.database.url]);
    let stored = || archive.database.sql("SELECT count(*) FROM hark_nostr.record");
    until("the server deletes it", || stored() == "50");
    let done = archive.backup(&to, &["--incremental"]);
    assert_eq!((&done["records"], &done["records_deleted"]), (&json!(50), &json!(1)), "{done}");
    must_be_restored(&to, &archive, "expired-files");
    assert_eq!(server.terminate().0, 0);
}

#[test]
fn a_directory_with_many_deleted_records_is_made_anew() {
    let archive = StoredArchive::new("anew");
    archive.import(&notes(2000));
    let to = archive.place.path("backup");
    let all = archive.backup(&to, &[])["bytes"].as_u64().unwrap();
    archive.hark(&["delete", "--yes", r#"{"until":1700000450}"#]).text();
    let done = archive.backup(&to, &["--incremental"]);
    assert!(done["records_deleted"].as_u64() > Some(1000) && done["anew"] == false, "{done}");
    assert!(done["bytes"].as_u64() > Some(all), "{done}");
    let done = archive.backup(&to, &["--incremental"]);
    assert!(done["anew"] == true && done["bytes"].as_u64() < Some(all / 2), "{done}");
    assert_eq!(logs(&to).len(), 1);
    must_be_restored(&to, &archive, "anew-files");
    let done = archive.backup(&to, &["--incremental"]);
    assert!(done["anew"] == false && done["bytes_copied"] == 0, "{done}");
}

#[test]
fn a_backup_is_restored_into_a_cluster_although_no_cluster_is_backed_up() {
    if !citus::is_installed() {
        return;
    }
    let archive = StoredArchive::new("for-cluster");
    archive.import(&notes(1000));
    archive.import(&history(20));
    let to = archive.place.path("backup");
    archive.backup(&to, &[]);
    let nodes = CitusCluster::with(2, &["fsync=off"]);
    let place = Place::new("database-backup-cluster");
    let cluster = StoredArchive { place, database: nodes.database("restored") };
    cluster.hark(&["restore", &to]).text();
    archive.must_equal(&cluster.export(), &|args| cluster.hark(args));
    let refused = cluster.hark(&["backup", &cluster.place.path("backup")]);
    assert!(refused.code == 1 && refused.stderr.contains("is a Citus cluster"), "{refused:?}");
}
