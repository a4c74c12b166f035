//! Tests of maintenance.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

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

/// A disk that calls a function before it maps an address file.
struct Meddling(Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>);

impl Disk for Meddling {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        RealDisk.create(path)
    }

    fn append(&self, path: &Path, sure: u64, len: u64) -> io::Result<Box<dyn DiskFile>> {
        RealDisk.append(path, sure, len)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_dir(path)
    }

    fn map(&self, path: &Path, reserve: Option<usize>) -> io::Result<Map> {
        if path.extension().is_some_and(|ending| ending == "addr") {
            self.0.get().inspect(|meddle| meddle());
        }
        RealDisk.map(path, reserve)
    }
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
    let id = |number: u8| [number; 32];
    let put = |number: u8| {
        let head = RecordHeader { id: id(number), time: 1, author: None, kind: 0, expires: None };
        Write::Put(hark_testkit::random::encode(&head, &[]))
    };
    let frame_bytes = 9 + if let Write::Put(record) = put(0) { record.len() as u64 } else { 0 };
    let (weak, next) = (Arc::downgrade(&store), AtomicU8::new(0));
    let deletes = move || {
        let ids = Some(vec![id(next.fetch_add(1, Ordering::Relaxed))]);
        let delete = Write::Erase(Box::new(Query { limit: 1, ids, ..Query::default() }));
        weak.upgrade().unwrap().commit(&[delete]).unwrap();
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
