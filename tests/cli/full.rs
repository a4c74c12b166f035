//! A full disk: the server starts, deletions make room, and no message mentions damage. The tests
//! use a small file system in memory, which only root can mount.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use hark_testkit::nostr::event_line;
use hark_testkit::program::Finished;
use hark_testkit::skipped::skip;
use hark_testkit::wait::until;
use hark_testkit::websocket::Socket;
use serde_json::{Value, json};

use super::support::{Place, health, wait_for_health};

/// A file system of 24 MB at the place's data directory.
pub(crate) struct SmallDisk {
    pub(crate) place: Place,
}

impl SmallDisk {
    /// `None` where mounting is not allowed: the running test then counts as skipped.
    pub(crate) fn mount(test: &str) -> Option<Self> {
        let place = Place::new(test);
        std::fs::create_dir_all(place.data()).expect("is made");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=24m", "hark-test"])
            .arg(place.data())
            .output();
        if mounted.is_ok_and(|done| done.status.success()) {
            return Some(Self { place });
        }
        skip("nothing can be mounted here");
        None
    }

    fn filler(&self) -> PathBuf {
        self.place.data().join("filler")
    }

    /// Fills the disk to its last byte, as another program might.
    pub(crate) fn fill(&self) {
        let mut file = File::create(self.filler()).expect("is made");
        let mut chunk = vec![1; 1 << 16];
        while !chunk.is_empty() {
            if file.write_all(&chunk).is_err() {
                chunk.truncate(chunk.len() / 2);
            }
        }
    }

    pub(crate) fn free(&self) {
        std::fs::remove_file(self.filler()).expect("is removed");
    }

    fn reserve(&self) -> PathBuf {
        self.place.data().join("RESERVE")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // If unmounting fails, the file system in memory stays until the machine restarts.
        let _ = Command::new("umount").arg("-l").arg(self.place.data()).status();
    }
}

/// Events of about 1 kB. Every tenth event has kind 1, and the others have kind 7.
fn events(from: u64, count: u64) -> String {
    let one = |n: u64| {
        let kind = if n.is_multiple_of(10) { 1 } else { 7 };
        event_line(1, 1_700_000_000 + n, kind, &[], &format!("{n} {}", "x".repeat(700)))
    };
    (from..from + count).map(one).collect()
}

fn publish(socket: &mut Socket, n: u64) -> Value {
    socket.send_text(format!("[\"EVENT\",{}]", events(n, 1).trim()));
    socket.json()
}

/// Asserts that the message reports a full disk and does not suggest damage.
fn says_full(run: &Finished) {
    assert_ne!(run.code, 0, "{run:?}");
    assert!(run.stderr.contains("the disk is full"), "{}", run.stderr);
    for wrong in ["rebuild", "damage", "hark check", "backup"] {
        assert!(!run.stderr.contains(wrong), "{wrong}: {}", run.stderr);
    }
}

fn count(disk: &SmallDisk) -> u64 {
    disk.place.hark(&["count", "{}"]).text().trim().parse().expect("a number")
}

#[test]
fn a_full_disk_lets_a_server_start_and_what_is_deleted_makes_room() {
    let Some(disk) = SmallDisk::mount("full-disk") else { return };
    let place = &disk.place;
    let full = place.hark_fed(&["import", "--trusted"], events(0, 30_000).as_bytes());
    says_full(&full);
    let stored = count(&disk);
    assert!(stored > 5_000, "{stored}");
    assert!(disk.reserve().exists());
    disk.fill();

    let serving = place.serve();
    assert!(!disk.reserve().exists(), "the server needed it");
    // The health check fails even before the first write.
    let (status, why) = health(&serving.address);
    assert!(status == 503 && why.contains("the disk is full"), "{status} {why}");
    let mut socket = Socket::connect(&serving.address);
    let refused = publish(&mut socket, 50_000);
    assert_eq!((&refused[0], &refused[2]), (&json!("OK"), &json!(false)), "{refused}");
    let reason = refused[3].as_str().unwrap_or_default();
    assert!(reason.starts_with("error: ") && reason.contains("the disk is full"), "{reason}");
    let (status, why) = health(&serving.address);
    assert!(status == 503 && why.contains("the disk is full"), "{status} {why}");
    socket.send_text("[\"REQ\",\"a\",{\"limit\":1}]");
    assert_eq!(socket.json()[0], "EVENT", "what is stored is answered");
    assert_eq!(socket.json()[0], "EOSE");
    let stats = place.hark(&["stats", "--json"]).json();
    assert!(stats["free_bytes"].as_u64() < Some(5 << 20), "{stats}");

    let deleted = place.hark(&["delete", "{\"kinds\":[7]}", "--yes", "--json"]).json();
    assert_eq!(deleted["deleted"], stored - stored.div_ceil(10));
    let said = place.hark(&["compact"]).text();
    let after = place.hark(&["stats", "--json"]).json();
    assert!(after["free_bytes"].as_u64() > Some(8 << 20), "{said}: {after}");
    // The server detects free space by itself.
    wait_for_health(&serving.address, 200);
    let taken = publish(&mut Socket::connect(&serving.address), 50_000);
    assert_eq!(taken[2], true, "{taken}");
    assert!(disk.reserve().exists(), "made again");
    let (code, logged) = serving.terminate();
    assert_eq!(code, 0, "{logged}");
    assert_eq!(place.hark(&["check", "--json"]).json()["faults"], json!([]));
    assert_eq!(count(&disk), stored.div_ceil(10) + 1);
}

#[test]
fn a_log_with_few_events_left_is_compacted_with_little_space() {
    let Some(disk) = SmallDisk::mount("few-left") else { return };
    let place = &disk.place;
    place.hark_fed(&["import", "--trusted"], events(0, 12_000).as_bytes()).text();
    place.hark(&["delete", "{\"kinds\":[7]}", "--yes"]).text();
    disk.fill();
    // Two megabytes are too few for the whole log, but enough for its live events.
    let filler = File::options().write(true).open(disk.filler()).expect("opens");
    filler.set_len(filler.metadata().expect("is there").len() - (2 << 20)).expect("is cut");
    let said = place.hark(&["compact"]).text();
    let after = place.hark(&["stats", "--json"]).json();
    assert!(after["free_bytes"].as_u64() > Some(8 << 20), "{said}: {after}");
    assert_eq!(count(&disk), 1_200);
}

#[test]
fn without_any_space_a_server_reads_and_says_why_it_does_not_write() {
    let Some(disk) = SmallDisk::mount("no-space") else { return };
    let place = &disk.place;
    place.hark_fed(&["import", "--trusted"], events(0, 100).as_bytes()).text();
    std::fs::remove_file(disk.reserve()).expect("is removed");
    disk.fill();
    says_full(&place.hark(&["delete", "{\"kinds\":[7]}", "--yes"]));
    says_full(&place.hark(&["compact"]));
    says_full(&place.hark(&["rebuild"]));

    let serving = place.serve();
    let (status, why) = health(&serving.address);
    assert!(status == 503 && why.contains("opened for reading only"), "{status} {why}");
    let mut socket = Socket::connect(&serving.address);
    let refused = publish(&mut socket, 50_000);
    let reason = refused[3].as_str().unwrap_or_default();
    assert!(refused[2] == false && reason.starts_with("error: "), "{refused}");
    assert!(reason.contains("the disk is full"), "{refused}");
    socket.send_text("[\"REQ\",\"a\",{\"limit\":1}]");
    assert_eq!(socket.json()[0], "EVENT");
    let (code, logged) = serving.terminate();
    assert_eq!(code, 0, "{logged}");
    assert!(logged.contains("the disk is full") && !logged.contains("rebuild"), "{logged}");

    disk.free();
    let serving = place.serve();
    assert_eq!(health(&serving.address).0, 200);
    assert_eq!(publish(&mut Socket::connect(&serving.address), 50_000)[2], true);
    drop(serving);
    assert_eq!(count(&disk), 101);
}

#[test]
fn the_oldest_go_before_the_disk_is_full() {
    let Some(disk) = SmallDisk::mount("free-min") else { return };
    let place = &disk.place;
    let free_min = 7_000_000;
    let config = place.file(
        "hark.toml",
        format!(
            "[archive]\nlog_bytes_max = 1000000\n\
             [retention]\nfree_bytes_min = {free_min}\nevery_s = 1\n"
        )
        .as_bytes(),
    );
    let serving = place.serve_with(&["--config", &config]);
    let free = || place.hark(&["stats", "--json"]).json()["free_bytes"].as_u64().expect("a number");
    for round in 0..5 {
        let some = events(round * 4_000, 4_000);
        let report = place.hark_fed(&["import", "--trusted", "--json"], some.as_bytes()).json();
        assert_eq!(report["stored"], 4_000, "{report}");
        until("the disk has the minimum of free space", || free() >= free_min);
    }
    let kept = place.hark(&["query", "{}"]).text();
    let times =
        |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["created_at"].as_u64();
    assert_eq!(times(kept.lines().next().expect("some are kept")), Some(1_700_019_999));
    assert!(kept.lines().count() > 4_000, "{} are kept", kept.lines().count());
    assert!(times(kept.lines().last().expect("some are kept")) > Some(1_700_003_000));
    let (code, logged) = serving.terminate();
    assert_eq!(code, 0, "{logged}");
    assert_eq!(place.hark(&["check", "--json"]).json()["faults"], json!([]));
}
