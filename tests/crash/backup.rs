//! Backups on a disk that fails: whatever it loses, the backup on it is the former one or the new one.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hark_archive::{Id, Query, Store, Write};
use hark_store_embedded::backup::{BackupCatalog, BackupError, BackupTask, back_up, restore};
use hark_store_embedded::disk::RealDisk;
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
use hark_testkit::contract::rules;
use hark_testkit::disk::{FaultyDisk, Trouble, scratch};
use hark_testkit::random::{Flavour, Random, World};

use super::long;

type Records = BTreeMap<Id, Vec<u8>>;

/// A directory that is removed with its value.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left behind in the temporary directory harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn records(store: &dyn Store) -> Records {
    let mut all = Records::new();
    let mut search = store.search(&Query::default()).expect("searches");
    search
        .slice(u64::MAX, &mut |record| {
            all.insert(*record.id(), record.bytes().to_vec());
            ControlFlow::Continue(())
        })
        .expect("answers");
    all
}

fn take(data: &Path, disk: &FaultyDisk) -> Result<(), BackupError> {
    let task = BackupTask {
        data,
        shelves: &["shelf", "none"],
        from: Arc::new(RealDisk),
        dir: disk.root(),
        to: Arc::new(disk.clone()),
        verify: false,
        now_s: 1,
    };
    back_up(&task, &mut |_, _| {}).map(drop)
}

/// Returns what a restore of the backup on a disk gives; `None` if no backup was ever finished.
fn restored(disk: &FaultyDisk, options: &EmbeddedOptions, context: &str) -> Option<Records> {
    let catalog = BackupCatalog::read(disk, disk.root());
    let catalog = catalog.unwrap_or_else(|error| panic!("{context}: {error}"))?;
    let [backup] = &catalog.shelves[..] else { return None };
    let folder = Folder(scratch("restored"));
    let shelf = folder.0.join("shelf");
    restore(backup, disk, &disk.root().join("shelf"), &shelf, options, &mut |_| {})
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    let report = hark_store_embedded::check(&shelf, options, &mut |_| {}).expect("is read");
    assert!(report.faults.is_empty(), "{context}: {:?}", report.faults);
    let store = EmbeddedStore::open_read_only(&shelf, options.clone()).expect("opens");
    Some(records(&store))
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let folder = Folder(scratch("backed-up"));
    let options = EmbeddedOptions {
        seal_records: 15 + random.below(45) as u32,
        log_bytes_max: *random.pick(&[3_000, 12_000, 1 << 20]),
        rewrite_dead_share: *random.pick(&[0.02, 0.3, 0.6]),
        background: false,
        ..EmbeddedOptions::default()
    };
    let mut world = World::new(random.bits(), Flavour::Nostr);
    let shelf = folder.0.join("shelf");
    let store = EmbeddedStore::open(&shelf, rules(Flavour::Nostr), options.clone()).expect("opens");
    let mut disk = FaultyDisk::new(random.bits()).expect("a directory for the disk");
    let mut former: Option<Records> = None;
    for round in 0..5 {
        for _ in 0..random.below(6) {
            let batch: Vec<_> =
                (0..=random.below(40)).map(|_| Write::Put(world.record())).collect();
            store.commit(&batch).expect("commits");
        }
        if random.once_in(3) {
            store.compact(&mut |_| {}).expect("compacts");
        }
        let now = records(&store);
        let trouble = *random.pick(&[Trouble::Once, Trouble::Full, Trouble::Power]);
        let after = random.below(40) as u64;
        disk.arm(trouble, after);
        let taken = take(&folder.0, &disk);
        disk.calm();
        disk = disk.crash(&mut random).expect("a directory for the disk");
        let context = format!("seed {seed}, round {round}, {trouble:?} after {after}: {taken:?}");
        let there = restored(&disk, &options, &context);
        let is_new = there.as_ref() == Some(&now);
        assert!(is_new || taken.is_err(), "{context}: not what was backed up");
        assert!(is_new || there == former, "{context}: neither the former backup nor the new one");
        former = there;
        // The next one goes on from whatever is there.
        take(&folder.0, &disk).unwrap_or_else(|error| panic!("{context}: {error}"));
        former = restored(&disk, &options, &context).or(former);
        assert!(former.as_ref() == Some(&now), "{context}: the second try");
    }
}

#[test]
fn a_backup_on_a_failing_disk_is_the_former_one_or_the_new_one() {
    for seed in 0..if long() { 2_000 } else { 60 } {
        run(seed);
    }
}
