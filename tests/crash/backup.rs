//! Backups on a failing disk: after any loss, the disk has either the former or the new backup.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hark_archive::{Id, Store, Write};
use hark_store_embedded::backup::{
    BackupCatalog, BackupError, BackupSource, BackupTask, back_up, pack, restore, restore_unpacked,
    unpack,
};
use hark_store_embedded::disk::{Disk, DiskFile, RealDisk};
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
use hark_testkit::contract::rules;
use hark_testkit::disk::{FaultyDisk, Trouble};
use hark_testkit::folder::Folder;
use hark_testkit::random::{Flavour, Random, World};
use hark_testkit::runs::is_long;

use super::everything;

type Records = BTreeMap<Id, Vec<u8>>;

fn source(data: &Path) -> BackupSource<'_> {
    BackupSource { data, shelves: &["shelf", "none"], disk: Arc::new(RealDisk), now_s: 1 }
}

fn take(data: &Path, disk: &FaultyDisk) -> Result<(), BackupError> {
    let from = source(data);
    let task = BackupTask { from, dir: disk.root(), to: Arc::new(disk.clone()), verify: false };
    back_up(&task, &mut |_, _| {}).map(drop)
}

/// Restores the backup on a disk, and returns its records. `None` if no backup was ever finished.
fn restored(disk: &FaultyDisk, options: &EmbeddedOptions, context: &str) -> Option<Records> {
    let catalog = BackupCatalog::read(disk, disk.root());
    let catalog = catalog.unwrap_or_else(|error| panic!("{context}: {error}"))?;
    let [backup] = &catalog.shelves[..] else { return None };
    let folder = Folder::to_be_made("restored");
    let shelf = folder.join("shelf");
    restore(backup, disk, &disk.root().join("shelf"), &shelf, options, &mut |_| {})
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    let report = hark_store_embedded::check(&shelf, options, &mut |_| {}).expect("is read");
    assert!(report.faults.is_empty(), "{context}: {:?}", report.faults);
    let store = EmbeddedStore::open_read_only(&shelf, options.clone()).expect("opens");
    Some(everything(&store))
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let folder = Folder::to_be_made("backed-up");
    let options = EmbeddedOptions {
        seal_records: 15 + random.below(45) as u32,
        log_bytes_max: *random.pick(&[3_000, 12_000, 1 << 20]),
        rewrite_dead_share: *random.pick(&[0.02, 0.3, 0.6]),
        background: false,
        ..EmbeddedOptions::default()
    };
    let mut world = World::new(random.bits(), Flavour::Nostr);
    let shelf = folder.join("shelf");
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
        let now = everything(&store);
        let trouble = *random.pick(&[Trouble::Once, Trouble::Full, Trouble::Power]);
        let after = random.below(40) as u64;
        disk.arm(trouble, after);
        let taken = take(&folder, &disk);
        disk.end_faults();
        disk = disk.crash(&mut random).expect("a directory for the disk");
        let context = format!("seed {seed}, round {round}, {trouble:?} after {after}: {taken:?}");
        let there = restored(&disk, &options, &context);
        let is_new = there.as_ref() == Some(&now);
        assert!(is_new || taken.is_err(), "{context}: not what was backed up");
        assert!(is_new || there == former, "{context}: neither the former backup nor the new one");
        former = there;
        // The next backup continues from the files on the disk.
        take(&folder, &disk).unwrap_or_else(|error| panic!("{context}: {error}"));
        former = restored(&disk, &options, &context).or(former);
        assert!(former.as_ref() == Some(&now), "{context}: the second try");
    }
}

#[test]
fn a_backup_on_a_failing_disk_is_the_former_one_or_the_new_one() {
    for seed in 0..if is_long() { 2_000 } else { 60 } {
        run(seed);
    }
}

/// Packs an archive into one file on a disk, as `hark backup FILE` does.
fn pack_to(data: &Path, disk: &FaultyDisk) -> Result<(), BackupError> {
    let (aside, path) = (disk.root().join("aside"), disk.root().join("packed"));
    let io = |cause| BackupError::Io { path: path.clone(), cause };
    let mut file = disk.create(&aside).map_err(io)?;
    pack(&source(data), (&mut *file, &aside), &mut |_, _| {})?;
    disk.rename(&aside, &path).and_then(|()| disk.sync_dir(disk.root())).map_err(io)
}

/// Restores a packed backup from its bytes, and returns its records.
fn unpacked(bytes: &[u8], options: &EmbeddedOptions) -> Result<Records, BackupError> {
    let folder = Folder::to_be_made("unpacked");
    let to = (&RealDisk as &dyn Disk, &*folder);
    let catalog = unpack(&mut &bytes[..], Path::new("packed"), to, &mut |_| {})?;
    assert_eq!((catalog.time_s, catalog.shelves.len()), (1, 1));
    let shelf = folder.join("shelf");
    restore_unpacked(&catalog.shelves[0], &shelf, options, &mut |_| {})?;
    let report = hark_store_embedded::check(&shelf, options, &mut |_| {}).expect("is read");
    assert!(report.faults.is_empty(), "{:?}", report.faults);
    let store = EmbeddedStore::open_read_only(&shelf, options.clone()).expect("opens");
    Ok(everything(&store))
}

/// A file in memory.
struct MemoryFile<'a>(&'a mut Vec<u8>);

impl DiskFile for MemoryFile<'_> {
    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self) -> std::io::Result<()> {
        Ok(())
    }

    fn reserve(&mut self, _: u64, _: u64) -> std::io::Result<()> {
        Ok(())
    }
}

/// An open archive with several logs, the generator of its records, and its options.
fn archive(folder: &Path, random: &mut Random) -> (EmbeddedStore, World, EmbeddedOptions) {
    let options = EmbeddedOptions {
        seal_records: 40,
        log_bytes_max: 12_000,
        background: false,
        ..EmbeddedOptions::default()
    };
    let mut world = World::new(random.bits(), Flavour::Nostr);
    let shelf = folder.join("shelf");
    let store = EmbeddedStore::open(&shelf, rules(Flavour::Nostr), options.clone()).expect("opens");
    for _ in 0..4 {
        let batch: Vec<_> = (0..40).map(|_| Write::Put(world.record())).collect();
        store.commit(&batch).expect("commits");
    }
    (store, world, options)
}

#[test]
fn a_backup_in_one_file_is_whole_or_refused() {
    let mut random = Random::new(7);
    let folder = Folder::to_be_made("packed");
    let (store, _, options) = archive(&folder, &mut random);
    let disk = FaultyDisk::new(1).expect("a directory for the disk");
    pack_to(&folder, &disk).expect("is written");
    let bytes = std::fs::read(disk.root().join("packed")).expect("is there");
    assert_eq!(unpacked(&bytes, &options).expect("is whole"), everything(&store));
    let is_refused = |bytes: &[u8], what: &str| {
        let found = unpacked(bytes, &options);
        assert!(found.is_err(), "{what}: it was restored all the same");
    };
    // Every byte of the beginning and of the end, and random bytes between.
    let edges = (0..400).chain(bytes.len() - 1_200..bytes.len());
    let between = (0..if is_long() { 5_000 } else { 300 }).map(|_| random.below(bytes.len()));
    for at in edges.chain(between.collect::<Vec<_>>()) {
        let mut bad = bytes.clone();
        bad[at] ^= 1 << random.below(8);
        is_refused(&bad, &format!("byte {at} of {}", bytes.len()));
    }
    for _ in 0..100 {
        let end = random.below(bytes.len());
        is_refused(&bytes[..end], &format!("cut at {end}"));
    }
    is_refused(&bytes[..bytes.len() - 1], "the last byte is missing");
    is_refused(&[&bytes[..], b"\n"].concat(), "a byte more");
    is_refused(b"", "nothing");
}

#[test]
fn a_backup_in_one_file_holds_one_moment_of_an_archive_that_changes() {
    let mut random = Random::new(8);
    let folder = Folder::to_be_made("packed-meanwhile");
    let (store, mut world, options) = archive(&folder, &mut random);
    let (mut known, mut file) = (vec![everything(&store)], Vec::new());
    let mut steps = 0;
    let done = pack(&source(&folder), (&mut MemoryFile(&mut file), Path::new("x")), &mut |_, _| {
        // While the logs are copied, maintenance rewrites logs and adds new ones.
        steps += 1;
        if steps % 3 == 1 && steps < 20 {
            let batch: Vec<_> = (0..60).map(|_| Write::Put(world.record())).collect();
            store.commit(&batch).expect("commits");
            store.compact(&mut |_| {}).expect("compacts");
            known.push(everything(&store));
        }
    });
    done.expect("is written");
    assert!(known.len() > 2, "{}", known.len());
    let found = unpacked(&file, &options).expect("is whole");
    assert!(known.contains(&found), "no moment of the archive was like this");
}

#[test]
fn a_backup_in_one_file_on_a_failing_disk_is_the_former_one_or_the_new_one() {
    for seed in 0..if is_long() { 1_000 } else { 40 } {
        let mut random = Random::new(seed);
        let folder = Folder::to_be_made("packed-failing");
        let (store, mut world, options) = archive(&folder, &mut random);
        let mut disk = FaultyDisk::new(random.bits()).expect("a directory for the disk");
        let mut former: Option<Records> = None;
        for _ in 0..3 {
            let batch: Vec<_> = (0..30).map(|_| Write::Put(world.record())).collect();
            store.commit(&batch).expect("commits");
            let now = everything(&store);
            let trouble = *random.pick(&[Trouble::Once, Trouble::Full, Trouble::Power]);
            disk.arm(trouble, random.below(60) as u64);
            let taken = pack_to(&folder, &disk);
            disk.end_faults();
            disk = disk.crash(&mut random).expect("a directory for the disk");
            let context = format!("seed {seed}, {trouble:?}: {taken:?}");
            let there = std::fs::read(disk.root().join("packed")).ok().map(|bytes| {
                unpacked(&bytes, &options).unwrap_or_else(|error| panic!("{context}: {error}"))
            });
            let is_new = there.as_ref() == Some(&now);
            assert!(is_new || taken.is_err(), "{context}: not what was backed up");
            assert!(is_new || there == former, "{context}: neither the former nor the new one");
            former = there;
        }
    }
}
