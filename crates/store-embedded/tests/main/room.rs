//! Maintenance on a full disk: it leaves no files behind, uses no space that the writer needs, and
//! continues once the disk has space.

use std::sync::Arc;

use hark_archive::store::SpaceBounds;
use hark_archive::{CommitError, Query, Record, Store, Write};
use hark_store_embedded::{DiskReserve, EmbeddedOptions, EmbeddedStore, RESERVE_BYTES};
use hark_testkit::disk::Trouble;

use crate::support::{Fixture, everything};

/// Options with a reserve of disk space.
fn with_reserve(fixture: &Fixture) -> EmbeddedOptions {
    let disk = Arc::new(fixture.disk.clone());
    let reserve = Some(Arc::new(DiskReserve::new(fixture.disk.root(), disk)));
    EmbeddedOptions { reserve, ..fixture.options() }
}

fn has_reserve(fixture: &Fixture) -> bool {
    fixture.disk.root().join("RESERVE").exists()
}

/// Leaves no byte free.
fn fill(fixture: &Fixture) {
    fixture.disk.set_capacity(Some(fixture.disk.used()));
}

/// Deletes the oldest `count` records in the store and in the model.
fn delete(fixture: &Fixture, store: &EmbeddedStore, count: usize) {
    let id = |bytes: &Vec<u8>| *Record::new(bytes).expect("a record").id();
    let ids = everything(store).iter().rev().take(count).map(id).collect();
    let deletes = [Write::Erase(Box::new(Query { ids: Some(ids), ..Query::default() }))];
    store.commit(&deletes).expect("deletes");
    fixture.model.commit(&deletes).expect("commits");
}

#[test]
fn maintenance_that_fails_leaves_only_what_manifest_names() {
    let due = Fixture::with_all_maintenance_due(1);
    let store = due.open(due.options());
    let before = due.disk.operations();
    store.run_due_maintenance().expect("settles");
    let operations = due.disk.operations() - before;
    assert!(operations > 100, "{operations} operations are too few for all jobs");
    drop((store, due));

    let mut left = Vec::new();
    for trouble in [Trouble::Full, Trouble::Once] {
        for after in (0..operations).step_by(if trouble == Trouble::Full { 1 } else { 3 }) {
            let fixture = Fixture::with_all_maintenance_due(1);
            let store = fixture.open(fixture.options());
            let when = format!("{trouble:?} in {after} operations");
            fixture.disk.arm(trouble, after);
            let failed = store.run_due_maintenance().err().map(|error| error.to_string());
            fixture.disk.end_faults();
            let unnamed = fixture.unnamed();
            let again = store.run_due_maintenance().err().map(|error| error.to_string());
            if again.as_ref().is_some_and(|error| error.contains("the disk failed once")) {
                // A sync failed, so nothing is written or removed before the next start.
                continue;
            }
            assert_eq!(again, None, "{when}, and then");
            if !unnamed.is_empty() {
                left.push(format!("{when}: {failed:?}: {}", unnamed.join(", ")));
            }
            fixture.same_as_model(&store, &when);
            assert_eq!(fixture.unnamed(), Vec::<String>::new(), "{when}, settled");
            let segments = store.stats().segments;
            assert!(segments < 7, "{when}: {segments} segments, none was merged later");
            drop(store);
            fixture.no_faults(&when);
        }
    }
    assert!(left.is_empty(), "{} times, such as\n  {}", left.len(), left[0]);
}

#[test]
fn a_merge_that_does_not_fit_leaves_the_room_to_the_writer_and_comes_later() {
    let mut fixture = Fixture::with_all_maintenance_due(2);
    let store = fixture.open(fixture.options());
    // This space suffices for sealing with a reserve for the writer, but not for a merge with its
    // larger reserve.
    fixture.disk.set_capacity(Some(fixture.disk.used() + (16 << 20)));
    let refused = store.run_due_maintenance().expect_err("a merge is due").to_string();
    assert!(refused.contains("not enough room") && refused.contains("merging"), "{refused}");
    assert!(refused.contains("16.0 MiB are free"), "{refused}");
    let stats = store.stats();
    assert_eq!((stats.heads_waiting, stats.segments), (0, 7), "heads are sealed none the less");
    assert!(stats.maintenance.rewriting.bytes > 0, "logs are rewritten none the less");
    assert_eq!(fixture.unnamed(), Vec::<String>::new());
    fixture.write(&store, 5);
    fixture.disk.set_capacity(None);
    store.run_due_maintenance().expect("there is room");
    assert!(store.stats().segments < 7);
    fixture.same_as_model(&store, "merged");
    drop(store);
    fixture.no_faults("merged");
}

#[test]
fn without_room_for_sealing_the_writer_waits_and_goes_on_by_itself() {
    let mut fixture = Fixture::new(5);
    let store = fixture.open(fixture.options());
    fixture.disk.set_capacity(Some(fixture.disk.used() + (4 << 20)));
    let refused = loop {
        let batch: Vec<Write> = (0..10).map(|_| Write::Put(fixture.world.record())).collect();
        match store.commit(&batch) {
            Ok(_) => drop(fixture.model.commit(&batch).expect("commits")),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, CommitError::Unavailable(_)), "{refused}");
    assert!(refused.to_string().contains("not enough room"), "{refused}");
    assert_eq!(store.stats().heads_waiting, 4, "four heads wait in memory");
    // If retention may delete for free space, it makes enough space for sealing.
    let options = fixture.options();
    let bounds = |free_bytes_min| SpaceBounds {
        log_bytes_max: options.log_bytes_max,
        dead_bytes_max: options.dead_bytes_max,
        free_bytes_min,
        erase_within: None,
    };
    let free_wanted = || store.stats().disk.expect("known").free_wanted;
    assert_eq!(free_wanted(), 0);
    store.set_space(&bounds(1 << 20));
    assert!(free_wanted() > 8 << 20, "{} bytes", free_wanted());
    store.set_space(&bounds(0));
    fixture.disk.set_capacity(None);
    fixture.write(&store, 10);
    assert_eq!(store.stats().heads_waiting, 0);
    fixture.same_as_model(&store, "sealed");
    drop(store);
    fixture.no_faults("sealed");
}

#[test]
fn a_file_of_the_manifest_that_was_begun_in_vain_is_taken_away_and_its_number_is_free() {
    let fixture = Fixture::with_all_maintenance_due(6);
    let store = fixture.open(fixture.options());
    let before = std::fs::read_to_string(fixture.dir().join("MANIFEST")).expect("is there");
    fixture.disk.arm(Trouble::Full, 5);
    store.run_due_maintenance().expect_err("nothing fits");
    fixture.disk.end_faults();
    let after = std::fs::read_to_string(fixture.dir().join("MANIFEST")).expect("is there");
    assert_eq!(before, after);
    // A resume after a failed takeover succeeds only if the manifest in memory equals the manifest
    // on the disk.
    store.pause_maintenance(true);
    store.release().expect("is released");
    store.resume().expect("goes on");
}

#[test]
fn a_deletion_uses_the_reserve_although_the_head_is_full() {
    let mut fixture = Fixture::new(9);
    let store = fixture.open(with_reserve(&fixture));
    fixture.write(&store, 60);
    assert!(store.stats().head_records >= 30, "the next batch needs a new log");
    fill(&fixture);
    delete(&fixture, &store, 5);
    assert!(!has_reserve(&fixture), "the deletion needed the space");
    fixture.same_as_model(&store, "deleted");
    drop(store);
    fixture.no_faults("deleted");
}

#[test]
fn too_many_open_files_while_heads_wait_for_sealing_stop_nothing() {
    let mut fixture = Fixture::new(5);
    let store = fixture.open(fixture.options());
    fixture.disk.set_capacity(Some(fixture.disk.used() + (4 << 20)));
    let batch = loop {
        let batch: Vec<Write> = (0..10).map(|_| Write::Put(fixture.world.record())).collect();
        match store.commit(&batch) {
            Ok(_) => drop(fixture.model.commit(&batch).expect("commits")),
            Err(_) => break batch,
        }
    };
    assert_eq!(store.stats().heads_waiting, 4, "four heads wait in memory");
    fixture.disk.set_capacity(None);
    fixture.disk.arm(Trouble::NoFiles, 0);
    let refused = store.commit(&batch).expect_err("no segment can be written");
    assert!(matches!(refused, CommitError::Unavailable(_)), "{refused}");
    assert!(refused.to_string().contains("cannot be sealed"), "{refused}");
    fixture.disk.end_faults();
    store.commit(&batch).expect("files can be opened again");
    fixture.model.commit(&batch).expect("commits");
    assert_eq!(store.stats().heads_waiting, 0);
    fixture.same_as_model(&store, "sealed");
    drop(store);
    fixture.no_faults("sealed");
}

#[test]
fn on_a_full_disk_maintenance_frees_the_space_of_deleted_records() {
    let mut fixture = Fixture::new(12);
    let options =
        EmbeddedOptions { merge_fan_in: 1_000, rewrite_dead_share: 0.5, ..with_reserve(&fixture) };
    let store = fixture.open(options);
    while store.stats().segments < 4 {
        fixture.write(&store, 10);
    }
    // The deletion begins a new log, for which the disk has no space.
    fixture.write(&store, 60);
    fill(&fixture);
    let records = store.stats().records as usize;
    delete(&fixture, &store, records / 4 * 3);
    assert!(!has_reserve(&fixture), "the deletion needed the space");
    let (used, before) = (fixture.disk.used(), store.stats());
    // The full head has live records, so its segment would take space for good.
    let refused = store.run_due_maintenance().expect_err("sealing waits").to_string();
    assert!(refused.contains("sealing a full head"), "{refused}");
    let after = store.stats();
    assert!(after.maintenance.rewriting.records > before.maintenance.rewriting.records);
    assert!(fixture.disk.used() < used && after.dead_bytes < before.dead_bytes, "{after:?}");
    fixture.same_as_model(&store, "freed");
    drop(store);
    fixture.no_faults("freed");
}

#[test]
fn a_bound_of_free_bytes_below_the_length_of_the_reserve_refuses_nothing_for_good() {
    let mut fixture = Fixture::new(13);
    let store = fixture.open(EmbeddedOptions { free_bytes_min: 1 << 20, ..with_reserve(&fixture) });
    fixture.write(&store, 60);
    fill(&fixture);
    delete(&fixture, &store, 5);
    assert!(!has_reserve(&fixture), "the deletion needed the space");
    let trouble = store.trouble().expect("the space is for deletions");
    assert!(trouble.contains("the disk is full"), "{trouble}");
    // Retention frees as many bytes as the writer and a new reserve need.
    let wanted = store.stats().disk.expect("known").free_wanted;
    assert!(wanted >= 2 * RESERVE_BYTES, "{wanted} bytes");
    fixture.disk.set_capacity(Some(fixture.disk.used() + wanted));
    assert_eq!(store.trouble(), None);
    fixture.write(&store, 5);
    store.run_due_maintenance().expect("settles");
    assert!(has_reserve(&fixture), "a new reserve is made");
    fixture.same_as_model(&store, "stored again");
}
