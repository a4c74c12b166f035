//! Segments with flipped bits: a damaged segment blocks no other work, and is rebuilt if its
//! records are undamaged.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hark_archive::clock::Clock;
use hark_archive::retention::{RetentionPolicy, RetentionRule};
use hark_archive::store::RetentionNote;
use hark_archive::writer::{Writer, WriterOptions};
use hark_archive::{RecordHeader, Store, Write};
use hark_store_embedded::EmbeddedOptions;
use hark_testkit::random::encode;

use crate::support::{Fixture, files, overwrite};

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).expect("is there");
    bytes[at] ^= 0x20;
    fs::write(path, bytes).expect("is written");
}

/// An offset in the first section of a segment's file.
const IN_TIMES: usize = 20;

fn first(fixture: &Fixture, folder: &str) -> PathBuf {
    let entries = fs::read_dir(fixture.dir().join(folder)).expect("is there");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("is there").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|is| is == "seg" || is == "log"));
    paths.into_iter().min().expect("a file")
}

#[test]
fn a_damaged_segment_is_made_anew_before_it_is_merged() {
    let fixture = Fixture::with_all_maintenance_due(7);
    flip(&first(&fixture, "seg"), IN_TIMES);
    let store = fixture.open(fixture.options());
    store.run_due_maintenance().expect("settles");
    let stats = store.stats();
    assert!(stats.segments < 4, "{} segments", stats.segments);
    assert_eq!(stats.damaged_files, Vec::<String>::new());
    fixture.same_as_model(&store, "made anew");
    drop(store);
    fixture.no_faults("made anew");
}

#[test]
fn a_segment_that_cannot_be_made_anew_stops_no_other_work_and_is_named_once() {
    let fixture = Fixture::with_all_maintenance_due(7);
    let (segment, log) = (first(&fixture, "seg"), first(&fixture, "log"));
    let store = fixture.open(fixture.options());
    flip(&segment, IN_TIMES);
    // Damage most records of the segment.
    let len = fs::metadata(&log).expect("is there").len() as usize;
    (100..len).step_by(200).for_each(|at| flip(&log, at));
    store.run_due_maintenance().expect("the others are merged");
    let stats = store.stats();
    assert!(stats.segments < 6, "{} segments", stats.segments);
    assert!(stats.maintenance.rewriting.bytes > 0, "logs of the others are rewritten");
    let named = [segment.display().to_string()];
    assert_eq!(stats.damaged_files, named);
    let jobs = store.stats().maintenance;
    store.run_due_maintenance().expect("it is left alone");
    assert_eq!(store.stats().maintenance, jobs);
    let reason = store.compact(&mut |_| {}).expect_err("the caller gets the error").to_string();
    assert!(reason.contains("damaged") && reason.contains(&named[0]), "{reason}");
}

#[test]
fn a_rewrite_loses_no_record_that_damaged_addresses_do_not_name() {
    let fixture = Fixture::with_all_maintenance_due(3);
    // Logs have dead records, and only a compaction rewrites these logs.
    let options =
        EmbeddedOptions { merge_fan_in: 1_000, rewrite_dead_share: 2.0, ..fixture.options() };
    let store = fixture.open(options);
    store.run_due_maintenance().expect("settles");
    let log = fs::metadata(first(&fixture, "log")).expect("is there").len();
    for path in files(&fixture, "seg", "addr") {
        // Erase the addresses of the first rows, after the first 8 bytes of the file.
        overwrite(&path, 8, |bytes| bytes.fill(0), 80);
    }
    let named = store.compact(&mut |_| {}).expect_err("says what is damaged").to_string();
    assert!(named.contains(".addr"), "{named}");
    assert!(fs::metadata(first(&fixture, "log")).expect("is there").len() >= log, "not rewritten");
    store.compact(&mut |_| {}).expect("they are made again");
    fixture.same_as_model(&store, "made again");
    assert_eq!(store.stats().damaged_files, Vec::<String>::new());
    drop(store);
    fixture.no_faults("made again");
}

/// A hold that cannot be read must not count as no hold. The bounds still apply, because they spare
/// no held records.
#[test]
fn a_damaged_note_of_a_hold_keeps_rules_by_age_from_deleting() {
    const DAY: u64 = 86_400;
    let fixture = Fixture::new(1);
    let store: Arc<dyn Store> = Arc::new(fixture.open(fixture.options()));
    let put = |number: u8| {
        let (id, time) = ([number; 32], u64::from(number) * DAY);
        Write::Put(encode(&RecordHeader { id, time, author: None, kind: 1, expires: None }, &[]))
    };
    store.commit(&(1..=10).map(put).collect::<Vec<_>>()).expect("commits");
    store.set_note(RetentionNote::ClockTrusted, Some(1_000 * DAY)).expect("is written");
    store.set_note(RetentionNote::HeldUntil, Some(900 * DAY)).expect("is written");
    let writer = Writer::start(Arc::clone(&store), WriterOptions::default(), Box::new(()));
    let rule = RetentionRule { older_than_s: 30 * DAY, ..RetentionRule::default() };
    let policy =
        RetentionPolicy { rules: vec![rule], records_max: Some(8), ..RetentionPolicy::default() };
    let path = fixture.dir().join("HELD_UNTIL");
    for damage in [&b""[..], b"many", b"7\xff"] {
        fs::write(&path, damage).expect("is written");
        let error = policy.step(&*store, &writer, &Clock::fake(1_000 * DAY));
        let error = error.expect_err("the note is damaged").to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        assert!(error.contains("is damaged") && error.contains("remove it"), "{error}");
        assert_eq!(store.stats().records, 8);
    }
    fs::remove_file(&path).expect("is removed");
    policy.step(&*store, &writer, &Clock::fake(1_000 * DAY)).expect("retention continues");
    assert_eq!(store.stats().records, 0);
}
