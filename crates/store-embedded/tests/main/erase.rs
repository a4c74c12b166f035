//! Deleted records are gone from the files after a compaction, and within the configured time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use hark_archive::store::SpaceBounds;
use hark_archive::{Query, Record, RecordHeader, Store, Write};
use hark_networks::nostr::rules::{VANISH, VANISH_KIND};
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore, check, rebuild};
use hark_testkit::disk::Trouble;
use hark_testkit::random::{Random, encode};

use crate::support::{Fixture, everything, files};

/// Returns each file of the shelf that contains any of these ids, with the first such id.
fn found(shelf: &Path, ids: &[[u8; 32]]) -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["", "log", "seg"] {
        for entry in std::fs::read_dir(shelf.join(folder)).expect("is there") {
            let path = entry.expect("is there").path();
            if path.is_dir() {
                continue;
            }
            let bytes = std::fs::read(&path).expect("is there");
            let has = |id: &&[u8; 32]| bytes.windows(32).any(|some| some == *id);
            if let Some(id) = ids.iter().find(has) {
                found.push(format!("{}: {id:02x?}", path.display()));
            }
        }
    }
    found
}

fn ids(store: &dyn Store) -> Vec<[u8; 32]> {
    let id = |bytes: &Vec<u8>| *Record::new(bytes).expect("a record").id();
    everything(store).iter().map(id).collect()
}

/// Deletes the oldest `count` records in the store and in the model, and returns their ids.
fn delete(fixture: &Fixture, store: &EmbeddedStore, count: usize) -> Vec<[u8; 32]> {
    let ids: Vec<_> = ids(store).into_iter().rev().take(count).collect();
    let query = Query { ids: Some(ids.clone()), ..Query::default() };
    let deletes = [Write::Erase(Box::new(query))];
    store.commit(&deletes).expect("commits");
    fixture.model.commit(&deletes).expect("commits");
    ids
}

/// Asserts that `check` and `stats` report the same numbers of records and of deleted records.
fn figures_agree(fixture: &Fixture, store: &EmbeddedStore) {
    let report = check(&fixture.dir(), &fixture.options(), &mut |_| {}).expect("can be checked");
    let stats = store.stats();
    assert_eq!((report.records, report.dead), (stats.records, stats.dead), "{stats:?}");
}

#[test]
fn a_compaction_gives_back_what_was_deleted_in_the_head() {
    let mut fixture = Fixture::new(11);
    let options = EmbeddedOptions { seal_records: 100_000, ..fixture.options() };
    let store = fixture.open(options.clone());
    while store.stats().records < 200 {
        fixture.write(&store, 20);
    }
    let deleted = delete(&fixture, &store, 100);
    assert_eq!(found(&fixture.dir(), &deleted).len(), 1, "still in the log");
    figures_agree(&fixture, &store);
    let before = store.stats();
    let done = store.compact(&mut |_| {}).expect("compacts");
    let after = store.stats();
    assert_eq!(after.records, before.records);
    assert_eq!((after.dead, after.dead_bytes), (0, 0), "{after:?}");
    assert!(done.bytes_after < done.bytes_before && after.log_bytes < before.log_bytes, "{done:?}");
    assert_eq!(found(&fixture.dir(), &deleted), Vec::<String>::new());
    fixture.same_as_model(&store, "compacted");
    figures_agree(&fixture, &store);
    let all = delete(&fixture, &store, usize::MAX);
    store.compact(&mut |_| {}).expect("compacts");
    let after = store.stats();
    assert!(after.bytes < 1_000 && after.segments == 0, "nothing is left of it: {after:?}");
    assert_eq!(found(&fixture.dir(), &all), Vec::<String>::new());
    fixture.write(&store, 10);
    fixture.same_as_model(&store, "emptied, and written again");
    drop(store);
    fixture.no_faults("emptied");
    let store = fixture.open(options);
    fixture.same_as_model(&store, "opened again");
}

#[test]
fn figures_are_true_through_merges_rewrites_and_a_restart() {
    let mut fixture = Fixture::with_all_maintenance_due(12);
    let options = EmbeddedOptions { rewrite_dead_share: 0.5, ..fixture.options() };
    let store = fixture.open(options.clone());
    for _ in 0..5 {
        fixture.write(&store, 40);
        delete(&fixture, &store, 30);
        store.run_due_maintenance().expect("settles");
        figures_agree(&fixture, &store);
    }
    let before = store.stats();
    assert!(before.dead > 0 && before.maintenance.merging.records > 0, "{before:?}");
    store.compact(&mut |_| {}).expect("compacts");
    let after = store.stats();
    assert_eq!((after.dead, after.dead_bytes), (0, 0), "{after:?}");
    fixture.write(&store, 40);
    delete(&fixture, &store, 30);
    store.run_due_maintenance().expect("settles");
    let before = store.stats();
    drop(store);
    let store = fixture.open(options);
    let after = store.stats();
    assert_eq!((after.dead, after.dead_bytes), (before.dead, before.dead_bytes));
    store.compact(&mut |_| {}).expect("compacts");
    // Only the memory of the previous process had the positions up to which logs were purged, so
    // some deletions may stay.
    let after = store.stats();
    assert_eq!(after.dead, 0, "{after:?}");
    assert!(after.dead_bytes < 30 * 45, "{after:?}");
    figures_agree(&fixture, &store);
}

#[test]
fn what_was_deleted_before_a_rebuild_is_erased_after_it() {
    for without_manifest in [false, true] {
        let fixture = Fixture::with_all_maintenance_due(14);
        let store = fixture.open(fixture.options());
        store.run_due_maintenance().expect("settles");
        let deleted = delete(&fixture, &store, 60);
        drop(store);
        assert!(!found(&fixture.dir(), &deleted).is_empty());
        if without_manifest {
            std::fs::remove_file(fixture.dir().join("MANIFEST")).expect("is removed");
        }
        rebuild(&fixture.dir(), &fixture.options(), &mut |_| {}).expect("is rebuilt");
        let store = fixture.open(fixture.options());
        figures_agree(&fixture, &store);
        store.compact(&mut |_| {}).expect("compacts");
        assert_eq!(found(&fixture.dir(), &deleted), Vec::<String>::new(), "{without_manifest}");
        fixture.same_as_model(&store, "rebuilt");
    }
}

#[test]
fn what_was_deleted_is_erased_in_time_in_heads_and_segments_and_over_restarts() {
    let mut fixture = Fixture::with_all_maintenance_due(13);
    // With a bound of zero, every round of maintenance erases.
    let options = EmbeddedOptions {
        erase_within: Some(Duration::ZERO),
        rewrite_dead_share: 2.0,
        ..fixture.options()
    };
    let store = fixture.open(EmbeddedOptions { erase_within: None, ..options.clone() });
    fixture.write(&store, 10);
    let mut deleted = delete(&fixture, &store, 60);
    store.run_due_maintenance().expect("settles");
    assert!(!found(&fixture.dir(), &deleted).is_empty(), "nothing is erased unless it is set");
    drop(store);
    // The next process cannot distinguish deleted from replaced records, and erases both.
    let store = fixture.open(options);
    for round in 0..4 {
        store.run_due_maintenance().expect("settles");
        assert_eq!(found(&fixture.dir(), &deleted), Vec::<String>::new(), "round {round}");
        figures_agree(&fixture, &store);
        fixture.same_as_model(&store, "erased");
        fixture.write(&store, 10);
        deleted.extend(delete(&fixture, &store, 5));
    }
    drop(store);
    fixture.no_faults("erased");
}

/// Returns the generation of each log, by number.
fn generations(fixture: &Fixture) -> BTreeMap<u32, u32> {
    let parsed = |path: &Path| {
        let name = path.file_stem().expect("has a name").to_str().expect("is text");
        let (number, generation) = name.split_once('-').expect("two numbers");
        (number.parse().expect("a number"), generation.parse().expect("a number"))
    };
    files(fixture, "log", "log").iter().map(|path| parsed(path)).collect()
}

/// Returns the numbers of the logs that contain an id of these records.
fn logs_with(fixture: &Fixture, ids: &[[u8; 32]]) -> BTreeSet<u32> {
    let paths = files(fixture, "log", "log");
    let has = |path: &Path| {
        let bytes = std::fs::read(path).expect("is there");
        bytes.windows(32).any(|some| ids.iter().any(|id| some == id))
    };
    let numbers = generations(fixture).into_keys();
    numbers.zip(&paths).filter(|(_, path)| has(path)).map(|(number, _)| number).collect()
}

#[test]
fn a_request_to_vanish_rewrites_only_the_logs_with_records_of_its_author() {
    let fixture = Fixture::new(16);
    let store = fixture.open(EmbeddedOptions {
        erase_within: Some(Duration::ZERO),
        rewrite_dead_share: 2.0,
        merge_fan_in: 1_000,
        ..fixture.options()
    });
    let mut made = 0_u32;
    let mut record = |author: u8, kind: u32, time: u64, labels: &[(u8, Vec<u8>)]| {
        made += 1;
        let mut id = [0xab; 32];
        id[..4].copy_from_slice(&made.to_be_bytes());
        let head = RecordHeader { id, time, author: Some([author; 32]), kind, expires: None };
        (id, Write::Put(encode(&head, labels)))
    };
    // Each log has a version of a profile, which the version in the next log replaces. Some logs
    // also have a version of another author's profile.
    let mut theirs = Vec::new();
    for time in 0..16 {
        let mut batch: Vec<Write> = (0..40).map(|_| record(1, 1, time, &[]).1).collect();
        batch.push(record(2, 0, time, &[]).1);
        if time % 5 == 0 {
            let (id, put) = record(3, 0, time, &[]);
            theirs.push(id);
            batch.push(put);
        }
        store.commit(&batch).expect("commits");
    }
    store.run_due_maintenance().expect("settles");
    let mut expected = logs_with(&fixture, &theirs);
    assert!(expected.len() >= 4 && generations(&fixture).len() >= 12, "{expected:?}");
    let (_, vanishes) = record(3, VANISH_KIND, 100, &[(VANISH, Vec::new())]);
    store.commit(&[vanishes]).expect("commits");
    let before = generations(&fixture);
    // The log that is being written has the deletions.
    expected.extend(before.keys().last());
    store.run_due_maintenance().expect("settles");
    assert_eq!(found(&fixture.dir(), &theirs), Vec::<String>::new());
    let after = generations(&fixture);
    let rewritten = before.iter().filter(|(number, was)| after.get(number) != Some(was));
    let rewritten: BTreeSet<u32> = rewritten.map(|(number, _)| *number).collect();
    assert_eq!(rewritten, expected, "of {} logs", before.len());
    drop(store);
    fixture.no_faults("vanished");
}

#[test]
fn bounds_that_change_while_the_shelf_is_open_hold_from_the_next_round_on() {
    let mut fixture = Fixture::with_all_maintenance_due(15);
    // With a share of 2.0, no log ever has enough dead bytes for a rewrite.
    let options = EmbeddedOptions { rewrite_dead_share: 2.0, ..fixture.options() };
    let bounds = SpaceBounds {
        log_bytes_max: options.log_bytes_max,
        dead_bytes_max: u64::MAX,
        free_bytes_min: 0,
        erase_within: None,
    };
    let store = fixture.open(options.clone());
    fixture.write(&store, 10);
    let deleted = delete(&fixture, &store, 10);
    store.run_due_maintenance().expect("settles");
    assert!(!found(&fixture.dir(), &deleted).is_empty(), "nothing is erased unless it is set");
    store.set_space(&SpaceBounds { erase_within: Some(Duration::ZERO), ..bounds });
    store.run_due_maintenance().expect("settles");
    assert_eq!(found(&fixture.dir(), &deleted), Vec::<String>::new());
    drop(store);
    for changed in [
        SpaceBounds { free_bytes_min: u64::MAX, ..bounds },
        SpaceBounds { dead_bytes_max: 0, ..bounds },
    ] {
        let store = fixture.open(options.clone());
        delete(&fixture, &store, 10);
        store.run_due_maintenance().expect("settles");
        let before = store.stats();
        assert!(before.dead_bytes > 0 && before.reclaimable_bytes == 0, "{before:?}");
        store.set_space(&changed);
        assert!(store.stats().reclaimable_bytes > 0, "{changed:?}");
        store.run_due_maintenance().expect("settles");
        let after = store.stats();
        assert!(after.dead_bytes < before.dead_bytes && after.reclaimable_bytes == 0, "{after:?}");
        figures_agree(&fixture, &store);
        fixture.same_as_model(&store, "other bounds");
    }
    let store = fixture.open(options);
    let segments = |store: &EmbeddedStore| store.stats().maintenance.sealing.records;
    let before = segments(&store);
    store.set_space(&SpaceBounds { log_bytes_max: 1, ..bounds });
    fixture.write(&store, 5);
    fixture.write(&store, 5);
    store.run_due_maintenance().expect("settles");
    assert!(segments(&store) > before, "a log of a byte is full: {:?}", store.stats());
}

#[test]
fn a_compaction_that_fails_or_is_cut_off_anywhere_loses_nothing() {
    let case = |fixture: &Fixture| {
        let store = fixture.open(fixture.options());
        delete(fixture, &store, 40);
        store
    };
    let whole = Fixture::with_all_maintenance_due(14);
    let store = case(&whole);
    let before = whole.disk.operations();
    store.compact(&mut |_| {}).expect("compacts");
    let operations = whole.disk.operations() - before;
    assert!(operations > 100, "{operations} operations are too few for all jobs");
    drop((store, whole));
    let mut random = Random::new(14);
    for trouble in [Trouble::Full, Trouble::Once, Trouble::Power] {
        for after in (0..operations).step_by(7) {
            let fixture = Fixture::with_all_maintenance_due(14);
            let store = case(&fixture);
            let when = format!("{trouble:?} in {after} operations");
            fixture.disk.arm(trouble, after);
            // The compaction may fail or succeed, since the failing operation may be the removal of
            // a file.
            let compacted = store.compact(&mut |_| {}).map_err(|error| error.to_string());
            fixture.same_as_model(&store, &format!("{when}: {compacted:?}"));
            let crashed = fixture.disk.crash(&mut random).expect("is made");
            fixture.disk.end_faults();
            drop(store);
            let after = Fixture { disk: crashed, world: fixture.world, model: fixture.model };
            let store = after.open(after.options());
            after.same_as_model(&store, &format!("{when}, after a crash"));
            store.compact(&mut |_| {}).expect("compacts");
            after.same_as_model(&store, &format!("{when}, after a crash, compacted"));
            drop(store);
            after.no_faults(&when);
        }
    }
}

/// A log is rewritten sooner than a segment. A restart in between must not make the segment's rows
/// of deleted records stay.
#[test]
fn segments_whose_logs_were_rewritten_before_a_restart_are_erased() {
    let mut fixture = Fixture::with_all_maintenance_due(17);
    let options = EmbeddedOptions { merge_fan_in: 1_000, ..fixture.options() };
    let store = fixture.open(options.clone());
    fixture.write(&store, 40);
    store.run_due_maintenance().expect("settles");
    let deleted = delete(&fixture, &store, 60);
    store.run_due_maintenance().expect("settles");
    let in_segments = || {
        let files = found(&fixture.dir(), &deleted);
        files.into_iter().filter(|file| file.contains(".seg")).collect::<Vec<_>>()
    };
    drop(store);
    assert!(!in_segments().is_empty(), "the segments are not rewritten yet");
    let store = fixture.open(EmbeddedOptions { erase_within: Some(Duration::ZERO), ..options });
    store.run_due_maintenance().expect("settles");
    assert_eq!(in_segments(), Vec::<String>::new());
    fixture.same_as_model(&store, "erased");
    drop(store);
    fixture.no_faults("erased");
}
