//! Tests of maintenance.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hark_archive::effects::KeepAll;
use hark_archive::{Query, RecordHeader, Store as _, Write};

use super::due::due;
use crate::disk::{Disk, DiskFile, RealDisk};
use crate::engine::embedded_store::EmbeddedStore;
use crate::log::LogFrame;
use crate::map::Map;
use crate::options::EmbeddedOptions;

/// Seals heads of the same size, and merges the due segments. Returns the rows of each remaining
/// segment, and the number of merged rows.
fn grow(seals: u32, options: &EmbeddedOptions) -> (Vec<u32>, u64) {
    let (mut rows, mut merged) = (Vec::new(), 0);
    for _ in 0..seals {
        rows.push(options.seal_records);
        while let Some(range) = due(&rows, options) {
            let sum: u32 = rows[range.clone()].iter().sum();
            merged += u64::from(sum);
            rows.splice(range, [sum]);
        }
    }
    (rows, merged)
}

#[test]
fn a_record_is_merged_once_a_tier_and_no_segment_grows_without_bound() {
    let options = EmbeddedOptions {
        seal_records: 100,
        segment_records_max: 8_000,
        ..EmbeddedOptions::default()
    };
    let (rows, merged) = grow(1_525, &options);
    assert_eq!(merged, 1_525 / 8 * 800 + 1_525 / 64 * 6_400);
    let expected: Vec<u32> =
        [vec![6_400; 23], vec![800; 6], vec![100; 5]].into_iter().flatten().collect();
    assert_eq!(rows, expected);
}

#[test]
fn small_ones_between_large_ones_go_with_them_and_block_nothing() {
    let options =
        EmbeddedOptions { seal_records: 100, merge_fan_in: 3, ..EmbeddedOptions::default() };
    assert_eq!(due(&[300, 100, 300, 100, 300, 100], &options), Some(0..5));
    assert_eq!(due(&[100, 300, 300, 300], &options), Some(1..4));
    assert_eq!(due(&[900, 100, 100], &options), None);
    assert_eq!(due(&[], &options), None);
}

/// A step on a file.
#[derive(PartialEq, Eq)]
enum DiskStep {
    Create,
    Remove,
    Map,
}

/// Called before a step. An error is the result of the step.
type Meddle = Box<dyn Fn(DiskStep, &Path) -> io::Result<()> + Send + Sync>;

/// A disk that calls a function before each step.
struct Meddling(Arc<OnceLock<Meddle>>);

impl Meddling {
    fn meddle(&self, step: DiskStep, path: &Path) -> io::Result<()> {
        self.0.get().map_or(Ok(()), |meddle| meddle(step, path))
    }
}

impl Disk for Meddling {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.meddle(DiskStep::Create, path)?;
        RealDisk.create(path)
    }

    fn append(&self, path: &Path, sure: u64, len: u64) -> io::Result<Box<dyn DiskFile>> {
        RealDisk.append(path, sure, len)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.meddle(DiskStep::Remove, path)?;
        RealDisk.remove(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_dir(path)
    }

    fn map(&self, path: &Path, reserve: Option<usize>) -> io::Result<Map> {
        self.meddle(DiskStep::Map, path)?;
        RealDisk.map(path, reserve)
    }
}

fn id(number: u8) -> [u8; 32] {
    [number; 32]
}

fn put(number: u8) -> Write {
    let head = RecordHeader { id: id(number), time: 1, author: None, kind: 0, expires: None };
    Write::Put(hark_testkit::random::encode(&head, &[]))
}

fn has_all(store: &EmbeddedStore, numbers: Range<u8>) -> bool {
    numbers.into_iter().all(|number| store.knows(&id(number)).unwrap())
}

/// Records that are deleted while a segment is opened must count as dead. Otherwise their log would
/// never be rewritten, and retention would delete other records instead.
#[test]
fn records_that_are_deleted_while_a_segment_is_put_in_place_are_counted() {
    let dir = hark_testkit::disk::scratch("deleted-meanwhile");
    let meddle = Arc::new(OnceLock::new());
    let options = EmbeddedOptions {
        seal_records: 20,
        merge_fan_in: 2,
        rewrite_dead_share: 1.0,
        background: false,
        disk: Arc::new(Meddling(Arc::clone(&meddle))),
        ..EmbeddedOptions::default()
    };
    let store = Arc::new(EmbeddedStore::open(&dir, Box::new(KeepAll), options).unwrap());
    let frame_bytes = 9 + if let Write::Put(record) = put(0) { record.len() as u64 } else { 0 };
    let (weak, next) = (Arc::downgrade(&store), AtomicU8::new(0));
    let deletes = move |step: DiskStep, path: &Path| {
        if step != DiskStep::Map || path.extension().is_none_or(|ending| ending != "addr") {
            return Ok(());
        }
        let ids = Some(vec![id(next.fetch_add(1, Ordering::Relaxed))]);
        let delete = Write::Erase(Box::new(Query { limit: 1, ids, ..Query::default() }));
        weak.upgrade().unwrap().commit(&[delete]).unwrap();
        Ok(())
    };
    assert!(meddle.set(Box::new(deletes)).is_ok());
    for number in 0..200 {
        store.commit(&[put(number)]).unwrap();
    }
    let stats = store.stats();
    assert!(
        stats.maintenance.sealing.records > 0 && stats.maintenance.merging.records > 0,
        "{stats:?}"
    );
    let deleted = 200 - stats.records;
    assert_eq!(stats.dead, deleted);
    assert_eq!(stats.dead_bytes, deleted * (frame_bytes + LogFrame::DELETE_BYTES));
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A rotation that fails leaves the file of the next log. The writer may begin this log while
/// maintenance removes the file.
#[test]
fn a_log_that_begins_while_files_are_tidied_is_not_removed() {
    let dir = hark_testkit::disk::scratch("tidied-log");
    let meddle = Arc::new(OnceLock::new());
    let options = |disk| EmbeddedOptions {
        seal_records: 20,
        background: false,
        disk,
        ..EmbeddedOptions::default()
    };
    let disk = options(Arc::new(Meddling(Arc::clone(&meddle))));
    let store = Arc::new(EmbeddedStore::open(&dir, Box::new(KeepAll), disk).unwrap());
    (0..20).for_each(|number| drop(store.commit(&[put(number)]).unwrap()));
    let (weak, failed) = (Arc::downgrade(&store), AtomicBool::new(false));
    let (wrote, written) = channel();
    let meddles = move |step: DiskStep, path: &Path| {
        if step == DiskStep::Create
            && path.ends_with("MANIFEST.new")
            && !failed.swap(true, Ordering::Relaxed)
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if step == DiskStep::Remove && path.ends_with("00000002-0.log") {
            let (store, wrote) = (weak.upgrade().unwrap(), wrote.clone());
            let (done, is_done) = channel();
            std::thread::spawn(move || {
                wrote.send(store.commit(&[put(20)])).unwrap();
                // Nobody waits if the file is removed under the lock of the writer.
                let _ = done.send(());
            });
            let _ = is_done.recv_timeout(Duration::from_millis(300));
        }
        Ok(())
    };
    assert!(meddle.set(Box::new(meddles)).is_ok());
    store.commit(&[put(20)]).expect_err("the disk is full");
    assert!(dir.join("log/00000002-0.log").exists());
    store.run_due_maintenance().unwrap();
    written.recv().unwrap().unwrap();
    assert!(has_all(&store, 0..21));
    // The thread that has written holds the store no longer.
    while Arc::strong_count(&store) > 1 {
        std::thread::yield_now();
    }
    drop(store);
    let store = EmbeddedStore::open(&dir, Box::new(KeepAll), options(Arc::new(RealDisk))).unwrap();
    assert!(has_all(&store, 0..21));
    drop(store);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A process that takes over pauses maintenance first, and then waits for the present batch.
#[test]
fn a_writer_does_not_wait_for_maintenance_that_is_paused() {
    let dir = hark_testkit::disk::scratch("paused-sealing");
    let options = EmbeddedOptions { seal_records: 10, ..EmbeddedOptions::default() };
    let store = EmbeddedStore::open(&dir, Box::new(KeepAll), options.clone()).unwrap();
    store.pause_maintenance(true);
    (0..100).for_each(|number| drop(store.commit(&[put(number)]).unwrap()));
    store.pause_maintenance(false);
    (100..120).for_each(|number| drop(store.commit(&[put(number)]).unwrap()));
    assert!(has_all(&store, 0..120));
    drop(store);
    let store = EmbeddedStore::open(&dir, Box::new(KeepAll), options).unwrap();
    assert!(has_all(&store, 0..120));
    drop(store);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A pause waits for the present job, which may take long. Until then the writer waits for sealing.
#[test]
fn heads_are_bounded_while_a_pause_waits_for_a_job() {
    let dir = hark_testkit::disk::scratch("pausing");
    let meddle = Arc::new(OnceLock::new());
    let disk = Arc::new(Meddling(Arc::clone(&meddle)));
    let options = EmbeddedOptions { seal_records: 10, disk, ..EmbeddedOptions::default() };
    let store = Arc::new(EmbeddedStore::open(&dir, Box::new(KeepAll), options.clone()).unwrap());
    let (reached, is_reached) = channel();
    let (go_on, may_go_on) = channel::<()>();
    let may_go_on = parking_lot::Mutex::new(may_go_on);
    let meddles = move |step: DiskStep, path: &Path| {
        if step == DiskStep::Create && path.components().any(|part| part.as_os_str() == "seg") {
            // The job ends when the test has dropped the other ends.
            let _ = reached.send(());
            let _ = may_go_on.lock().recv();
        }
        Ok(())
    };
    assert!(meddle.set(Box::new(meddles)).is_ok());
    (0..11).for_each(|number| drop(store.commit(&[put(number)]).unwrap()));
    is_reached.recv().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| store.pause_maintenance(true));
        while !store.shelf.jobs.is_paused() {
            std::thread::yield_now();
        }
        let writing = scope.spawn(|| {
            (11..200).for_each(|number| drop(store.commit(&[put(number)]).unwrap()));
        });
        // A writer that does not wait ends soon.
        std::thread::sleep(Duration::from_millis(300));
        let waiting = store.stats().heads_waiting;
        drop((is_reached, go_on));
        writing.join().unwrap();
        assert!(waiting <= 5, "{waiting} heads");
    });
    assert!(has_all(&store, 0..200));
    drop(store);
    let store = EmbeddedStore::open(&dir, Box::new(KeepAll), options).unwrap();
    assert!(has_all(&store, 0..200));
    drop(store);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// The map of a log keeps zeros in place of a page that could not be read once. The writer must not
/// wait until a restart for another map.
#[test]
fn a_failed_read_of_the_active_log_stops_no_write() {
    let dir = hark_testkit::disk::scratch("unreadable-active");
    let options =
        EmbeddedOptions { seal_records: 100, background: false, ..EmbeddedOptions::default() };
    let store = EmbeddedStore::open(&dir, Box::new(KeepAll), options.clone()).unwrap();
    (0..20).for_each(|number| drop(store.commit(&[put(number)]).unwrap()));
    store.shelf.view.load().active.log.note_lost();
    store.commit(&[put(20)]).unwrap();
    assert!(has_all(&store, 0..21));
    let stats = store.stats();
    assert_eq!((stats.segments, stats.head_records, stats.records), (1, 1, 21));
    assert_eq!(stats.damaged_files, Vec::<String>::new());
    drop(store);
    let report = crate::check(&dir, &options, &mut |_| {}).unwrap();
    assert_eq!(report.faults, Vec::new());
    std::fs::remove_dir_all(&dir).unwrap();
}
