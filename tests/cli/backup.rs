//! Backups and restores by an operator's commands.

use hark_testkit::nostr::event_line;
use hark_testkit::program::Finished;
use serde_json::{Value, json};

use super::support::{Place, command, hark, notes};

fn backup(place: &Place, to: &str, flags: &[&str]) -> Finished {
    place.hark(&[&["backup", to, "--json"], flags].concat())
}

/// Restores a backup into a new place. Returns the export of the restored archive and the report of
/// `check`.
fn restored(from: &str, name: &str) -> (String, Value) {
    let fresh = Place::new(name);
    let run = fresh.hark(&["restore", from]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let check = fresh.hark(&["check", "--json"]).json();
    (fresh.hark(&["export"]).text(), check["faults"].clone())
}

fn copied(run: &Finished) -> u64 {
    run.json()["shelves"][0]["bytes_copied"].as_u64().unwrap()
}

/// The restore drill: serve, fill, back up, add more, back up incrementally, lose everything,
/// restore.
#[test]
fn an_archive_that_is_lost_comes_back_as_it_was() {
    let place = Place::new("backup-drill");
    let config = place.file("hark.toml", b"[archive]\nseal_records = 300\n");
    let to = place.path("backup");
    let server = place.serve_with(&["--config", &config]);
    place.hark_fed(&["import"], notes(2000).as_bytes()).text();
    let first = backup(&place, &to, &[]);
    let all = copied(&first);
    assert!(all > 500_000 && first.json()["shelves"][0]["logs"].as_u64() > Some(1), "{first:?}");
    let before = place.hark(&["export"]).text();
    assert_eq!(restored(&to, "backup-drill-first"), (before.clone(), json!([])));

    // A backup copies only new data and files that maintenance has rewritten.
    let more: String = (0..50).map(|n| event_line(9, 1_800_000_000 + n, 1, &[], "more")).collect();
    place.hark_fed(&["import"], more.as_bytes()).text();
    let again = backup(&place, &to, &["--incremental"]);
    assert!(copied(&again) > 10_000 && copied(&again) < all / 4, "{again:?}");
    assert_eq!(copied(&backup(&place, &to, &["--incremental"])), 0);
    let filter = "{\"#t\":[\"bread\"]}";
    assert_eq!(place.hark(&["delete", "--yes", filter]).text(), "500 events deleted\n");
    place.hark(&["compact"]).text();
    backup(&place, &to, &["--incremental", "--verify"]).json();
    let kept = place.hark(&["export"]).text();
    assert_eq!(server.terminate().0, 0);

    std::fs::remove_dir_all(place.data()).unwrap();
    let run = place.hark(&["restore", &to]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert_eq!(place.hark(&["check", "--json"]).json()["faults"], json!([]));
    assert!(place.hark(&["export"]).text() == kept, "the export is another");
    assert_eq!(kept.lines().count(), 1550);
    // Deleted events do not come back, and the archive and its backup keep working.
    assert_eq!(place.hark(&["count", filter]).text(), "0\n");
    let server = place.serve();
    place.hark_fed(&["import"], event_line(3, 5, 1, &[], "later").as_bytes()).text();
    assert_eq!(server.terminate().0, 0);
    let last = backup(&place, &to, &["--incremental"]);
    assert!(copied(&last) < all / 4, "{last:?}");
    let now = place.hark(&["export"]).text();
    assert_eq!(restored(&to, "backup-drill-last"), (now, json!([])));
}

#[test]
fn a_backup_that_is_killed_leaves_the_former_one() {
    let place = Place::new("backup-killed");
    let to = place.path("backup");
    place.hark_fed(&["import"], notes(3000).as_bytes()).text();
    backup(&place, &to, &[]).json();
    let former = place.hark(&["export"]).text();
    let more: String =
        (0..3000).map(|n| event_line(9, 1_800_000_000 + n, 1, &[], "more")).collect();
    place.hark_fed(&["import"], more.as_bytes()).text();
    let full = place.hark(&["export"]).text();
    for pause_ms in [0, 5, 10, 20] {
        let mut child = place.start(&["backup", "--incremental", &to]);
        // The kill comes at a random moment of the backup. A restore gives either the former or the
        // new backup.
        std::thread::sleep(std::time::Duration::from_millis(pause_ms));
        child.kill().unwrap();
        child.wait().unwrap();
        let (export, faults) = restored(&to, "backup-killed-restored");
        assert_eq!(faults, json!([]));
        assert!(export == former || export == full, "neither of both after {pause_ms} ms");
    }
    backup(&place, &to, &["--incremental"]).json();
    assert!(restored(&to, "backup-killed-restored").0 == full);
}

#[test]
fn damage_in_a_backup_is_found_and_mended() {
    let place = Place::new("backup-damage");
    let to = place.path("backup");
    place.hark_fed(&["import"], notes(500).as_bytes()).text();
    backup(&place, &to, &[]).json();
    let log = std::path::Path::new(&to).join("nostr/log/00000001-0-0.log");
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    let fresh = Place::new("backup-damage-restored");
    let run = fresh.hark(&["restore", &to]);
    assert!(run.code == 1 && run.stderr.contains("is not what was written"), "{run:?}");
    assert!(run.stderr.contains("00000001-0-0.log"), "{run:?}");
    let mended = backup(&place, &to, &["--incremental", "--verify"]).json();
    assert_eq!(mended["damaged"].as_array().map(Vec::len), Some(1), "{mended}");
    // The failed restore is run again.
    assert_eq!(fresh.hark(&["restore", &to]).code, 0);
    assert!(fresh.hark(&["export"]).text() == place.hark(&["export"]).text());

    // Damaged data of the archive does not overwrite intact data in the backup.
    let log = place.data().join("nostr/log/00000001-0.log");
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    let run = backup(&place, &to, &["--incremental"]);
    assert!(run.code == 1 && run.stderr.contains("damaged at byte"), "{run:?}");
    assert!(run.stderr.contains("what") && run.stderr.contains("is unchanged"), "{run:?}");
    assert_eq!(restored(&to, "backup-damage-again").0.lines().count(), 500);
}

#[test]
fn every_shelf_and_key_is_in_a_backup_and_what_cannot_be_is_said() {
    let place = Place::new("backup-shelves");
    let to = place.path("backup");
    let missing = place.hark(&["backup", &to]);
    assert!(missing.code == 1 && missing.stderr.contains("there is no archive"), "{missing:?}");
    place.hark_fed(&["import"], notes(3).as_bytes()).text();
    let message = r#"{"message":{"payload":"aGFyaw==","contentTopic":"/a/1/b/proto","timestamp":1700000000000000000},"pubsubTopic":"/waku/2/rs/1/0"}"#;
    place.hark_fed(&["import", "--network", "waku"], message.as_bytes()).text();
    let envelope = r#"{"expiry":1700000050,"ttl":50,"topic":"0x01020304","data":"0x17","nonce":1}"#;
    place.hark_fed(&["import", "--network", "whisper", "--trusted"], envelope.as_bytes()).text();
    std::fs::write(place.data().join("waku.key"), "aa".repeat(32)).unwrap();
    assert!(backup(&place, &to, &[]).json()["shelves"].as_array().map(Vec::len) == Some(3));

    let fresh = Place::new("backup-shelves-restored");
    fresh.hark(&["restore", &to]).text();
    for network in ["nostr", "waku", "whisper"] {
        let export = ["export", "--network", network];
        let (kept, back) = (place.hark(&export).text(), fresh.hark(&export).text());
        assert!(kept == back && !kept.is_empty(), "{network}");
    }
    assert_eq!(std::fs::read_to_string(fresh.data().join("waku.key")).unwrap(), "aa".repeat(32));

    for (run, said) in [
        (place.hark(&["backup", &to]), "--incremental brings it up to date"),
        (fresh.hark(&["restore", &to]), "there is an archive in"),
        (
            place.hark(&["backup", place.data().to_str().unwrap()]),
            "is not empty and holds no backup",
        ),
        (place.hark(&["restore", &place.path("nothing")]), "holds no backup"),
        (hark(&["--data", &to, "export"]), "holds a backup"),
        (hark(&["--data", &to, "serve", "--listen", "127.0.0.1:0"]), "holds a backup"),
        (
            place.hark(&["--store", "postgres://h@127.0.0.1:1/h", "backup", &place.path("none")]),
            "the archive in the database could not be opened",
        ),
    ] {
        assert!(run.code == 1 && run.stderr.contains(said), "{said}: {run:?}");
    }
    let other = Place::new("backup-shelves-other");
    other.hark_fed(&["import"], notes(3).as_bytes()).text();
    let run = backup(&other, &to, &["--incremental"]);
    assert!(run.code == 1 && run.stderr.contains("another archive"), "{run:?}");
}

#[test]
fn a_backup_in_one_file_is_made_beside_a_server_and_restored() {
    let place = Place::new("backup-file");
    let config = place.file("hark.toml", b"[archive]\nseal_records = 300\n");
    let server = place.serve_with(&["--config", &config]);
    place.hark_fed(&["import"], notes(2000).as_bytes()).text();
    std::fs::write(place.data().join("waku.key"), "aa".repeat(32)).unwrap();
    let file = place.path("monday.hark");
    let done = backup(&place, &file, &[]).json();
    assert!(done["shelves"][0]["logs"].as_u64() > Some(1), "{done}");
    let before = place.hark(&["export"]).text();
    assert_eq!(restored(&file, "backup-file-restored"), (before.clone(), json!([])));
    // An existing backup is replaced, as is the unfinished file of an interrupted backup.
    std::fs::write(place.path("monday.hark.unfinished"), "half").unwrap();
    place.hark_fed(&["import"], event_line(9, 5, 1, &[], "more").as_bytes()).text();
    backup(&place, &file, &[]).json();
    assert!(!std::path::Path::new(&place.path("monday.hark.unfinished")).exists());
    let (now, faults) = restored(&file, "backup-file-restored");
    assert_eq!((now.lines().count(), faults), (2001, json!([])));
    let fresh = Place::new("backup-file-key");
    let run = fresh.hark(&["restore", &file, "--json"]).json();
    let shelves = json!(["nostr", "moderation"]);
    assert!(run["shelves"] == shelves && run["time"].as_u64() > Some(0), "{run}");
    assert_eq!(std::fs::read_to_string(fresh.data().join("waku.key")).unwrap(), "aa".repeat(32));

    // A backup and a restore through pipes.
    let data = place.data();
    let output = command(&["--data", data.to_str().unwrap(), "backup", "-"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("copied now"), "{said}");
    let piped = Place::new("backup-file-piped");
    assert_eq!(piped.hark_fed(&["restore", "-"], &output.stdout).code, 0);
    assert!(piped.hark(&["export"]).text() == place.hark(&["export"]).text());
    let cut = Place::new("backup-file-cut");
    let run = cut.hark_fed(&["restore", "-"], &output.stdout[..output.stdout.len() - 1]);
    assert!(run.code == 1 && run.stderr.contains("or cut short"), "{run:?}");
    let count = cut.hark(&["count", "{}"]);
    assert!(count.code == 1 && count.stderr.contains("was interrupted"), "{count:?}");
    assert_eq!(cut.hark(&["restore", &file]).code, 0, "it is begun again");
    assert_eq!(server.terminate().0, 0);
}

#[test]
fn what_a_backup_in_one_file_cannot_be_is_said() {
    let place = Place::new("backup-file-wrong");
    place.hark_fed(&["import"], notes(30).as_bytes()).text();
    let (file, other) = (place.path("it.hark"), place.file("other.hark", b"a letter"));
    place.hark(&["backup", &file]).text();
    let bytes = std::fs::read(&file).unwrap();
    let at = bytes.len() / 2;
    let damaged = [&bytes[..at], &[bytes[at] ^ 1], &bytes[at + 1..]].concat();
    let damaged = place.file("damaged.hark", &damaged);
    let fresh = Place::new("backup-file-wrong-restored");
    for (run, said) in [
        (place.hark(&["backup", &file, "--incremental"]), "is written whole each time"),
        (place.hark(&["backup", &file, "--verify"]), "is written whole each time"),
        (place.hark(&["backup", "-", "--incremental"]), "is written whole each time"),
        (place.hark(&["backup", &other]), "is there and is no backup"),
        (place.hark(&["backup", &place.path("2024.01.01")]), "a directory or a file?"),
        (place.hark(&["backup", &place.path("none/it.hark")]), "is unchanged"),
        (fresh.hark(&["restore", &other]), "is not a backup"),
        (fresh.hark(&["restore", &damaged]), "is damaged from byte"),
        (fresh.hark(&["restore", &place.path("none.hark")]), "holds no backup"),
        (place.hark(&["restore", &file]), "there is an archive in"),
    ] {
        assert!(run.code == 1 && run.stderr.contains(said), "{said}: {run:?}");
    }
    assert_eq!(std::fs::read(&other).unwrap(), b"a letter");
    // If the reader closes the pipe, the command fails and reports that the backup is of no use.
    let mut child = place.start(&["backup", "-"]);
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("of no use"), "{said}");
}

/// Files of the unfinished restore locked out the archive that was still in its place.
#[test]
fn an_archive_is_served_after_the_restore_that_was_to_replace_it_has_failed() {
    let place = Place::new("backup-aside-failed");
    place.hark_fed(&["import"], notes(30).as_bytes()).text();
    let before = place.hark(&["export"]).text();
    let file = place.path("it.hark");
    place.hark(&["backup", &file]).text();
    let bytes = std::fs::read(&file).unwrap();
    let cut = place.file("cut.hark", &bytes[..bytes.len() - 1]);
    let run = place.hark(&["restore", "--move-aside", &cut]);
    assert!(run.code == 1 && run.stderr.contains("is unchanged: nothing was restored"), "{run:?}");
    assert!(place.hark(&["export"]).text() == before);
    // Once the archive may have been moved aside, only another restore goes on.
    let data = place.data();
    std::fs::create_dir(data.join("restoring")).unwrap();
    std::fs::create_dir(data.join("before-restore")).unwrap();
    assert_eq!(place.hark(&["restore", "--move-aside", &cut]).code, 1);
    let run = place.hark(&["export"]);
    assert!(run.code == 1 && run.stderr.contains("was interrupted"), "{run:?}");
    assert_eq!(place.hark(&["restore", "--move-aside", &file]).code, 0);
    assert!(place.hark(&["export"]).text() == before);
}

#[test]
fn what_is_no_archive_is_not_backed_up_and_odd_names_harm_no_backup() {
    let place = Place::new("backup-odd");
    std::fs::create_dir_all(place.data().join("nostr")).unwrap();
    for to in ["backup", "backup.hark"] {
        let run = backup(&place, &place.path(to), &[]);
        assert!(run.code == 1 && run.stderr.contains("no archive in"), "{run:?}");
    }
    std::fs::remove_dir_all(place.path("backup")).unwrap();
    place.hark_fed(&["import"], notes(10).as_bytes()).text();
    // Keys of other programs, and a directory whose name looks like a key.
    for name in ["my node.key", "._waku.key", "*.example.org.key"] {
        std::fs::write(place.data().join(name), "a key").unwrap();
    }
    std::fs::create_dir(place.data().join("more.key")).unwrap();
    std::fs::write(place.data().join("waku.key"), "ours").unwrap();
    let to = place.path("backup");
    for flags in [&[][..], &["--incremental", "--verify"]] {
        assert_eq!(backup(&place, &to, flags).code, 0);
    }
    assert_eq!(restored(&to, "backup-odd-restored").0.lines().count(), 10);
    // An existing key is not replaced.
    let other = Place::new("backup-odd-other");
    std::fs::create_dir_all(other.data()).unwrap();
    std::fs::write(other.data().join("waku.key"), "theirs").unwrap();
    let run = other.hark(&["restore", &to]);
    assert!(run.code == 1 && run.stderr.contains("waku.key is there already"), "{run:?}");
    assert_eq!(std::fs::read(other.data().join("waku.key")).unwrap(), b"theirs");
    // A shelf without its MANIFEST makes the backup fail instead of being skipped.
    std::fs::remove_file(place.data().join("nostr/MANIFEST")).unwrap();
    let run = backup(&place, &to, &["--incremental"]);
    assert!(run.code == 1 && run.stderr.contains("MANIFEST"), "{run:?}");
}

/// `waku.online` promises that the archive beside it has all messages up to a time. A backup
/// without the file has no such promise.
#[test]
fn a_restored_archive_does_not_inherit_the_promise_of_another() {
    let place = Place::new("backup-promise");
    place.hark_fed(&["import"], notes(3).as_bytes()).text();
    let file = place.path("monday.hark");
    backup(&place, &file, &[]).json();
    let promise = |place: &Place| place.data().join("waku.online");
    std::fs::write(promise(&place), "1700000000").unwrap();
    std::fs::write(place.data().join("waku.nodes"), "enr:x").unwrap();
    let restored = place.hark(&["restore", "--move-aside", &file]);
    assert_eq!(restored.code, 0, "{restored:?}");
    for name in ["waku.online", "waku.nodes"] {
        assert!(!place.data().join(name).exists(), "{name}");
        assert!(place.data().join("before-restore").join(name).exists(), "{name}");
    }
    let fresh = Place::new("backup-promise-fresh");
    std::fs::create_dir_all(fresh.data()).unwrap();
    std::fs::write(promise(&fresh), "1700000000").unwrap();
    let refused = fresh.hark(&["restore", &file]);
    assert!(refused.code == 1 && refused.stderr.contains("promises messages"), "{refused:?}");
    std::fs::remove_file(promise(&fresh)).unwrap();
    assert_eq!(fresh.hark(&["restore", &file]).code, 0);
}
