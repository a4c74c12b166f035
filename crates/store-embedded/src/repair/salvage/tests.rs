//! Tests of a salvage when the disk fails.

use hark_archive::effects::KeepAll;
use hark_archive::store::memory::MemoryStore;
use hark_archive::{Query, RecordHeader};
use hark_testkit::disk::scratch;

use super::*;
use crate::disk::{DiskFile, RealDisk};
use crate::engine::embedded_store::EmbeddedStore;
use crate::options::EmbeddedOptions;

/// A disk on which one file cannot be opened.
struct Unopenable(PathBuf);

impl Disk for Unopenable {
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

    fn map_sequential(&self, path: &Path) -> io::Result<Map> {
        if path == self.0 {
            Err(io::Error::other("it fails"))
        } else {
            RealDisk.map_sequential(path)
        }
    }
}

#[test]
fn a_log_that_cannot_be_opened_is_lost_alone() {
    let dir = scratch("salvage-unopenable");
    let options =
        EmbeddedOptions { seal_records: 20, background: false, ..EmbeddedOptions::default() };
    let store = EmbeddedStore::open(&dir, Box::new(KeepAll), options).unwrap();
    for n in 0..70 {
        let time = u64::from(n);
        let head = RecordHeader { id: [n; 32], time, author: None, kind: 1, expires: None };
        store.commit(&[Write::Put(hark_testkit::random::encode(&head, &[]))]).unwrap();
    }
    store.run_due_maintenance().unwrap();
    drop(store);
    let log = crate::log::path(&dir, 2, 0);
    let into = MemoryStore::new(KeepAll);
    let report = salvage(&Unopenable(log.clone()), &dir, &into, &mut |_| {}).unwrap();
    let [lost] = &report.lost[..] else { panic!("{report:?}") };
    assert_eq!((&lost.file, lost.bytes.start, lost.records), (&log, 0, Some(20)));
    assert_eq!(lost.times, Some((20, 39)));
    assert!(lost.to_string().contains("could not be opened: it fails"), "{lost}");
    assert_eq!((report.records, into.count(&Query::default()).unwrap()), (50, Some(50)));
    std::fs::remove_dir_all(&dir).unwrap();
}
