//! Disk space that comes back without a delete: retention deletes no records for such space.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use hark_archive::{Query, Store};
use hark_store_embedded::disk::{Disk, DiskFile};
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
use hark_testkit::disk::FaultyDisk;
use parking_lot::Mutex;

use crate::support::Fixture;

/// Called before a file is renamed, with the new name.
type OnRename = Arc<OnceLock<Box<dyn Fn(&Path) + Send + Sync>>>;

/// A disk that calls a function before a file is renamed.
struct WatchedDisk(FaultyDisk, OnRename);

impl Disk for WatchedDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.0.create(path)
    }

    fn append(&self, path: &Path, sure: u64, len: u64) -> io::Result<Box<dyn DiskFile>> {
        self.0.append(path, sure, len)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if let Some(on_rename) = self.1.get() {
            on_rename(to);
        }
        self.0.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.0.create_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.0.sync_dir(path)
    }

    fn free(&self, path: &Path) -> io::Result<u64> {
        self.0.free(path)
    }
}

/// A shelf with seven segments, of which some are due for a merge.
fn with_a_merge_due() -> (Fixture, EmbeddedOptions) {
    let fixture = Fixture::with_all_maintenance_due(7);
    let options = EmbeddedOptions { rewrite_dead_share: 2.0, ..fixture.options() };
    let store = fixture.open(EmbeddedOptions { merge_fan_in: 1_000, ..options.clone() });
    store.run_due_maintenance().expect("seals");
    (fixture, options)
}

/// Number of bytes that are free or will be free.
fn available(store: &dyn Store) -> u64 {
    let stats = store.stats();
    stats.free_bytes.expect("known") + stats.disk.expect("known").reclaimable
}

#[test]
fn a_running_merge_only_borrows_the_space_that_it_takes() {
    let (fixture, options) = with_a_merge_due();
    fixture.disk.set_capacity(Some(fixture.disk.used() + (64 << 20)));
    let on_rename = OnRename::default();
    let disk = Arc::new(WatchedDisk(fixture.disk.clone(), Arc::clone(&on_rename)));
    let store = Arc::new(fixture.open(EmbeddedOptions { disk, ..options }));
    let before = available(&*store);
    let used_before = fixture.disk.used();
    // The new segment is written before a new MANIFEST replaces the old segments.
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (weak, sees, disk) = (Arc::downgrade(&store), Arc::clone(&seen), fixture.disk.clone());
    let look = move |path: &Path| {
        if path.ends_with("MANIFEST") {
            let store = weak.upgrade().expect("is open");
            sees.lock().push((disk.used(), available(&*store)));
        }
    };
    assert!(on_rename.set(Box::new(look)).is_ok());
    store.run_due_maintenance().expect("merges");
    let (used, during) = *seen.lock().first().expect("a merge");
    assert!(used > used_before + 10_000, "{used_before} bytes used, and then {used}");
    assert!(during >= before, "{before} bytes available, and then {during}");
    let after = store.stats();
    assert_eq!(after.disk.expect("known").reclaimable, after.reclaimable_bytes, "{after:?}");
}

#[test]
fn files_that_a_reader_holds_after_a_merge_give_their_space_back_later() {
    let (fixture, options) = with_a_merge_due();
    let store = fixture.open(options);
    let lent = |store: &EmbeddedStore| {
        let stats = store.stats();
        stats.disk.expect("known").reclaimable - stats.reclaimable_bytes
    };
    let index_bytes = store.stats().index_bytes;
    let search = store.search(&Query::default()).expect("searches");
    assert_eq!(lent(&store), 0);
    store.run_due_maintenance().expect("merges");
    let held = lent(&store);
    assert!(held > index_bytes / 2, "{held} of {index_bytes} bytes");
    drop(search);
    assert_eq!(lent(&store), 0);
}
