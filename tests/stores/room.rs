//! Bounds in bytes are met even though deleted records take disk space.

use std::path::Path;
use std::sync::Arc;

use hark_archive::clock::Clock;
use hark_archive::effects::KeepAll;
use hark_archive::retention::{RetentionPolicy, RetentionThread};
use hark_archive::writer::{self, Writer};
use hark_archive::{Id, RecordHeader, Store, Write};
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
use hark_testkit::folder::Folder;
use hark_testkit::random::encode;

/// Approximate size of each record in bytes.
const BYTES: usize = 2_000;

fn id(number: u64) -> Id {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    id[8..16].copy_from_slice(&number.to_be_bytes());
    id
}

fn put(number: u64, time: u64) -> Write {
    let head = RecordHeader { id: id(number), time, author: None, kind: 0, expires: None };
    Write::Put(encode(&head, &[(1, vec![b'x'; BYTES])]))
}

fn options() -> EmbeddedOptions {
    EmbeddedOptions {
        log_bytes_max: 64 << 10,
        seal_records: 1_000,
        background: false,
        ..EmbeddedOptions::default()
    }
}

/// Total size of the files of a shelf, in bytes.
fn on_disk(shelf: &Path) -> u64 {
    let files = ["log", "seg"].into_iter().flat_map(|folder| super::files(shelf, folder));
    files.map(|file| file.metadata().expect("is there").len()).sum()
}

/// A lagging publisher leaves old records among newer ones. When the old records are deleted, many
/// logs have a small part of deleted records, but no log has enough of them for the usual rewrite.
#[test]
fn a_bound_of_bytes_is_met_where_a_little_of_every_log_is_deleted() {
    let dir = Folder::to_be_made("room-spread");
    let (records, bound) = (2_000, 3_000_000);
    let options = EmbeddedOptions { dead_bytes_max: bound / 20, ..options() };
    let store = Arc::new(EmbeddedStore::open(&dir, Box::new(KeepAll), options).expect("opens"));
    for number in 0..records {
        // Every fourth record comes from the lagging publisher, and is older than all others.
        let time = if number % 4 == 0 { number } else { 100_000 + number };
        store.commit(&[put(number, time)]).expect("is taken");
    }
    let shelf: Arc<dyn Store> = Arc::<EmbeddedStore>::clone(&store);
    let writer = Writer::start(Arc::clone(&shelf), writer::WriterOptions::default(), Box::new(()));
    let policy =
        RetentionPolicy { bytes_max: Some(bound), batch_max: 10, ..RetentionPolicy::default() };
    let clock = Clock::fake(1_000_000);
    while policy.step(&*shelf, &writer, &clock).expect("is done").total() > 0 {
        store.run_due_maintenance().expect("settles");
    }
    let stats = store.stats();
    let taken = on_disk(&dir);
    assert!(taken <= bound * 102 / 100, "{taken} bytes for a bound of {bound}: {stats:?}");
    // No more records were deleted than necessary.
    assert!(stats.log_bytes - stats.dead_bytes > bound * 9 / 10, "{stats:?}");
}

/// Generations of the logs of a shelf: the number of rewrites of each.
fn generations(shelf: &Path) -> Vec<u32> {
    let logs = super::files(shelf, "log").into_iter();
    let generation = |name: &str| name.strip_suffix(".log")?.split_once('-')?.1.parse().ok();
    logs.filter_map(|log| generation(log.file_name()?.to_str()?)).collect()
}

/// An archive had no bound, so its logs are large. Once a bound is set, the logs are not rewritten
/// repeatedly while their records are deleted.
#[test]
fn a_bound_set_on_an_archive_that_is_there_is_met_with_few_rewrites() {
    let dir = Folder::to_be_made("room-late");
    let (records, bound) = (8_000, 8_000_000);
    // Three logs, each as large as two thirds of the bound, and one log that is being written.
    let before = EmbeddedOptions { log_bytes_max: 5_300_000, seal_records: 100_000, ..options() };
    let store = EmbeddedStore::open(&dir, Box::new(KeepAll), before).expect("opens");
    for number in 0..records {
        // Some records are older than their neighbours.
        let time = if number % 50 == 0 { number } else { 100_000 + number };
        store.commit(&[put(number, time)]).expect("is taken");
    }
    drop(store);
    assert!(on_disk(&dir) > bound * 19 / 10, "{}", on_disk(&dir));
    let after = EmbeddedOptions {
        log_bytes_max: bound / 40,
        dead_bytes_max: bound / 20,
        background: true,
        ..options()
    };
    let store = Arc::new(EmbeddedStore::open(&dir, Box::new(KeepAll), after).expect("opens"));
    let shelf: Arc<dyn Store> = Arc::<EmbeddedStore>::clone(&store);
    let writer =
        Arc::new(Writer::start(Arc::clone(&shelf), writer::WriterOptions::default(), Box::new(())));
    let every = std::time::Duration::from_millis(50);
    let policy = RetentionPolicy { bytes_max: Some(bound), every, ..RetentionPolicy::default() };
    let (rounds, ended) = std::sync::mpsc::channel();
    let clock = Clock::fake(1_000_000);
    let mut keeper =
        RetentionThread::start(policy, shelf, writer, (clock, Arc::default()), move |swept| {
            // The test may have ended.
            let _ = rounds.send(swept.expect("is done").total());
        })
        .expect("starts");
    let mut swept = ended.recv().expect("a round");
    store.run_due_maintenance().expect("settles");
    // The next round sees the disk space that the rewrites have freed.
    while on_disk(&dir) > bound * 105 / 100 {
        swept += ended.recv_timeout(std::time::Duration::from_mins(1)).expect("a round");
        store.run_due_maintenance().expect("settles");
    }
    keeper.stop();
    store.run_due_maintenance().expect("settles");
    let (stats, taken) = (store.stats(), on_disk(&dir));
    assert!(taken <= bound * 105 / 100, "{taken} bytes for a bound of {bound}: {stats:?}");
    assert!(taken > bound * 85 / 100, "no more was deleted than necessary: {taken}, {swept}");
    let generations = generations(&dir);
    assert!(generations.iter().all(|times| *times <= 2), "{generations:?}");
    assert_eq!(stats.records, records - swept);
}
