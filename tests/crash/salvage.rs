//! Tests that `hark salvage` recovers every whole record after any damage, and no deleted record.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hark_archive::{Id, Query, Record, Store, Write};
use hark_store_embedded::disk::RealDisk;
use hark_store_embedded::log::{self, LogFrame};
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore, SalvageReport, check, salvage};
use hark_testkit::contract::rules;
use hark_testkit::disk::{FaultyDisk, Trouble};
use hark_testkit::folder::{Folder, copy};
use hark_testkit::random::{Flavour, Random, World};

use super::{each_seed, everything};

fn options(random: &mut Random) -> EmbeddedOptions {
    EmbeddedOptions {
        seal_records: 15 + random.below(45) as u32,
        log_bytes_max: *random.pick(&[3_000, 12_000, 1 << 20]),
        merge_fan_in: 2 + random.below(3),
        rewrite_dead_share: *random.pick(&[0.02, 0.3, 0.6]),
        background: false,
        ..EmbeddedOptions::default()
    }
}

/// Writes to a shelf on a faulty disk, which may fail meanwhile, and then cuts the disk's power.
fn crashed(seed: u64, flavour: Flavour, options: &EmbeddedOptions) -> FaultyDisk {
    let mut random = Random::new(seed ^ 0xdead);
    let mut world = World::new(seed, flavour);
    let disk = FaultyDisk::new(seed).expect("a directory for the disk");
    let options = EmbeddedOptions { disk: Arc::new(disk.clone()), ..options.clone() };
    let store = EmbeddedStore::open(&disk.root().join("nostr"), rules(flavour), options);
    let store = store.expect("opens");
    let batches = 10 + random.below(25);
    let fails_at = random.below(batches * 2);
    for number in 0..batches {
        if number == fails_at {
            let trouble = *random.pick(&[Trouble::Once, Trouble::Full, Trouble::Power]);
            disk.arm(trouble, random.below(40) as u64);
        }
        let write = |world: &mut World| {
            if world.random.once_in(20) {
                let query = Query { limit: 3, ..world.query() };
                return Write::Erase(Box::new(query));
            }
            Write::Put(world.record())
        };
        let batch: Vec<Write> = (0..=random.below(14)).map(|_| write(&mut world)).collect();
        // The commit may fail: the test needs only the resulting state of the disk.
        let _ = store.commit(&batch);
        if random.once_in(12) {
            let _ = store.compact(&mut |_| {});
        }
    }
    drop(store);
    disk.crash(&mut random).expect("room for another disk")
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in ["", "log", "seg"] {
        let entries = fs::read_dir(dir.join(folder)).into_iter().flatten();
        let paths = entries.map(|entry| entry.expect("is there").path());
        files.extend(paths.filter(|path| path.is_file()));
    }
    files.sort();
    files
}

/// A frame of a log, before the damage.
struct Frame {
    file: PathBuf,
    bytes: Range<usize>,
    /// The id of the record that the frame puts or deletes. `None` for the frame of a batch.
    id: Option<Id>,
    /// The record's bytes. `None` for a deletion and for the frame of a batch.
    put: Option<Vec<u8>>,
    /// Whether the frame is after the last whole batch of the last log.
    torn: bool,
}

/// The logs that MANIFEST names, as (number, generation).
fn named(dir: &Path) -> Vec<(u32, u32)> {
    let text = fs::read_to_string(dir.join("MANIFEST")).expect("is there");
    let lines = text.lines().filter_map(|line| line.strip_prefix("log "));
    lines
        .map(|line| {
            let mut numbers = line.split(' ').map(|number| number.parse().expect("a number"));
            (numbers.next().expect("a number"), numbers.next().expect("a generation"))
        })
        .collect()
}

fn frames(dir: &Path) -> Vec<Frame> {
    let mut frames = Vec::new();
    for (number, generation) in named(dir) {
        let file = log::path(dir, number, generation);
        let bytes = fs::read(&file).expect("is there");
        let salt = log::salt(&bytes, number, generation).expect("a header");
        let good = log::replay(&RealDisk, &file, (number, generation), &mut |_, _| {});
        let end = good.expect("is whole");
        let (good, last) = (end.good as usize, end.last as usize);
        let mut at = log::HEADER as usize;
        while at < bytes.len() {
            let Some((frame, size)) = log::frame(&bytes[at..], salt) else {
                // Sectors of a torn batch may be on the disk without the preceding sectors.
                assert!(at >= good);
                at += 1;
                continue;
            };
            let (range, torn) = (at..at + size, at >= good);
            at += size;
            let (id, put) = match frame {
                LogFrame::Batch(_) => (None, None),
                LogFrame::Delete { id, .. } => (Some(id), None),
                LogFrame::Put(record) => {
                    (Some(*Record::new(record).expect("a record").id()), Some(record.to_vec()))
                }
            };
            // A damaged last batch looks like a batch that a crash cut short.
            let torn = torn || (put.is_none() && range.start >= last);
            frames.push(Frame { file: file.clone(), bytes: range, id, put, torn });
        }
    }
    frames
}

/// Damages some files of a shelf.
fn damage(dir: &Path, random: &mut Random) {
    for _ in 0..=random.below(5) {
        let files = files(dir);
        let file = random.pick(&files).clone();
        let mut bytes = fs::read(&file).expect("is there");
        if bytes.is_empty() {
            continue;
        }
        let at = random.below(bytes.len());
        let end = (at + 1 + random.below(1500)).min(bytes.len());
        let is_log = file.extension().is_some_and(|ending| ending == "log");
        match random.below(8) {
            0..=2 => bytes[at] ^= 1 << random.below(8),
            3 => bytes[at..end].fill(0),
            4 => bytes[at..end].iter_mut().for_each(|byte| *byte = random.bits() as u8),
            // The first sector, with the header.
            5 => {
                let end = bytes.len().min(if random.once_in(2) { 24 } else { 512 });
                bytes[..end].fill(0);
            }
            6 => bytes.truncate(at),
            _ if is_log => drop(bytes.drain(at..end)),
            _ => {
                fs::remove_file(&file).expect("was there");
                continue;
            }
        }
        fs::write(&file, bytes).expect("is written");
    }
}

fn salvaged(dir: &Path, to: &Path, flavour: Flavour) -> (EmbeddedStore, SalvageReport) {
    let options = EmbeddedOptions { seal_records: 40, background: false, ..Default::default() };
    let store = EmbeddedStore::open(to, rules(flavour), options.clone()).expect("opens");
    let report = salvage(&RealDisk, dir, &store, &mut |_| {}).expect("is salvaged");
    let checked = check(to, &options, &mut |_| {}).expect("can be checked");
    assert_eq!((checked.faults, checked.torn_bytes), (Vec::new(), 0));
    assert_eq!(checked.records, report.records);
    (store, report)
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let flavour = if random.once_in(2) { Flavour::Labels } else { Flavour::Nostr };
    let options = options(&mut random);
    let disk = crashed(seed, flavour, &options);
    let dir = disk.root().join("nostr");
    if !dir.join("MANIFEST").exists() {
        return;
    }
    let root = Folder::to_be_made("salvage");
    let sound = root.join("sound");
    copy(&dir, &sound);
    let expected = {
        let opened = EmbeddedStore::open(&sound, rules(flavour), options);
        everything(&opened.unwrap_or_else(|error| panic!("seed {seed}: {error}")))
    };
    let frames = frames(&dir);
    let named: HashSet<PathBuf> =
        named(&dir).into_iter().map(|(number, gen_)| log::path(&dir, number, gen_)).collect();
    let has_others = files(&dir)
        .iter()
        .any(|path| path.extension().is_some_and(|is| is == "log") && !named.contains(path));
    let before: HashMap<PathBuf, Vec<u8>> =
        files(&dir).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    damage(&dir, &mut random);
    let now: HashMap<PathBuf, Vec<u8>> =
        files(&dir).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    // A frame is whole if its bytes are still there, even if an earlier part of the file is gone. A
    // record that was put again has the same bytes twice.
    let is_whole = |frame: &Frame| {
        let bytes = &before[&frame.file][frame.bytes.clone()];
        let times =
            |file: &Vec<u8>| file.windows(bytes.len()).filter(|part| *part == bytes).count();
        now.get(&frame.file).is_some_and(|after| {
            after.get(frame.bytes.clone()) == Some(bytes)
                || times(after) == times(&before[&frame.file])
        })
    };
    let manifest = dir.join("MANIFEST");
    let has_manifest = now.get(&manifest) == before.get(&manifest);
    let is_deletion = |frame: &Frame| frame.put.is_none() && frame.id.is_some();
    let deletes_lost = frames.iter().any(|frame| is_deletion(frame) && !is_whole(frame));
    // Without the file's header, a single frame cannot be distinguished from bytes that look like a
    // frame.
    let is_known = |file: &PathBuf| {
        let header = ..log::HEADER as usize;
        let of_file = || frames.iter().filter(|frame| frame.file == *file);
        now.get(file).is_some_and(|after| after.get(header) == before[file].get(header))
            || of_file().filter(|frame| is_whole(frame)).count() > 1
    };
    // A damaged batch may have been acknowledged or not, so its puts and deletions may be there or
    // not.
    let last_log = frames.last().map(|frame| frame.file.clone());
    let in_last_log = |frame: &&Frame| Some(&frame.file) == last_log.as_ref();
    // Deletions at the end of the last log may also be torn, if the following frames are damaged.
    let settles = |frame: &&Frame| !is_deletion(frame) && is_whole(frame);
    let settled = frames.iter().filter(in_last_log).filter(settles);
    let settled_to = settled.map(|frame| frame.bytes.start).max().unwrap_or(0);
    let may_be_torn = |frame: &&Frame| {
        frame.torn || (is_deletion(frame) && in_last_log(frame) && frame.bytes.start > settled_to)
    };
    let torn: HashSet<Id> =
        frames.iter().filter(may_be_torn).filter_map(|frame| frame.id).collect();
    if !has_manifest && has_others {
        // Without MANIFEST, nothing shows which files were in use.
        return;
    }
    let logs = now.keys().any(|path| path.extension().is_some_and(|is| is == "log"));
    if !logs {
        return;
    }
    let (store, report) = salvaged(&dir, &root.join("new"), flavour);
    let found = everything(&store);
    let puts = || frames.iter().filter_map(|frame| Some((frame, frame.put.as_ref()?)));
    for bytes in found.values() {
        assert!(puts().any(|(_, put)| put == bytes), "seed {seed}: made up");
    }
    // If an id was put several times, the last put is the live record.
    let last: HashMap<Id, &Frame> =
        puts().filter_map(|(frame, _)| Some((frame.id?, frame))).collect();
    let is_there =
        |id: &Id| last.get(id).is_some_and(|frame| is_whole(frame) && is_known(&frame.file));
    // The network's rules may delete more records after a torn batch, or if a deletion is back that
    // had itself been deleted.
    if flavour == Flavour::Labels || (!deletes_lost && torn.is_empty()) {
        for id in expected.keys().filter(|id| is_there(id) && !torn.contains(*id)) {
            assert!(found.contains_key(id), "seed {seed}: a whole record is missing: {report:?}");
        }
    }
    if !deletes_lost {
        let risen = found.keys().find(|id| !expected.contains_key(*id) && !torn.contains(*id));
        assert_eq!(risen, None, "seed {seed}: a deleted record is back: {report:?}");
    }
    let lost = expected.keys().filter(|id| !found.contains_key(*id) && !is_there(id)).count();
    assert!(
        lost == 0 || !report.lost.is_empty(),
        "seed {seed}: {lost} lost, and none is told of: {report:?}"
    );
}

#[test]
fn every_whole_record_comes_back_from_any_damage_and_no_deleted_one() {
    each_seed(80, 1_000, run);
}
