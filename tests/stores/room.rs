//! Bounds in bytes are met even though deleted records take disk space.

use std::path::Path;
use std::sync::Arc;

use hark_archive::clock::Clock;
use hark_archive::effects::KeepAll;
use hark_archive::retention::RetentionPolicy;
use hark_archive::writer::{self, Writer};
use hark_archive::{Id, RecordHeader, Store, Write};
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
use hark_testkit::disk::scratch;
use hark_testkit::random::encode;

use super::tempdir::Dir;

/// Approximate bytes of each record.
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

/// Bytes of the files of a shelf.
fn on_disk(shelf: &Path) -> u64 {
    let files = ["log", "seg"].into_iter().flat_map(|folder| super::files(shelf, folder));
    files.map(|file| file.metadata().expect("is there").len()).sum()
}

/// A publisher that lags leaves old records among newer ones. When the old records are deleted, a
/// small part of many logs is dead, but of no log enough that the log would be rewritten anyway.
#[test]
fn a_bound_of_bytes_is_met_where_a_little_of_every_log_is_deleted() {
    let dir = Dir(scratch("room-spread"));
    let (records, bound) = (2_000, 3_000_000);
    let options = EmbeddedOptions { dead_bytes_max: bound / 20, ..options() };
    let store = Arc::new(EmbeddedStore::open(&dir.0, Box::new(KeepAll), options).expect("opens"));
    for number in 0..records {
        // Every fourth record is by the publisher that lags, and older than all others.
        let time = if number % 4 == 0 { number } else { 100_000 + number };
        store.commit(&[put(number, time)]).expect("is taken");
    }
    let shelf: Arc<dyn Store> = Arc::<EmbeddedStore>::clone(&store);
    let writer = Writer::start(Arc::clone(&shelf), writer::WriterOptions::default(), Box::new(()));
    let policy =
        RetentionPolicy { bytes_max: Some(bound), batch_max: 10, ..RetentionPolicy::default() };
    let clock = Clock::fake(1_000_000);
    while policy.step(&*shelf, &writer, &clock).expect("is done").total() > 0 {
        store.settle().expect("settles");
    }
    let stats = store.stats();
    let taken = on_disk(&dir.0);
    assert!(taken <= bound * 102 / 100, "{taken} bytes for a bound of {bound}: {stats:?}");
    // No more records were deleted than necessary.
    assert!(stats.log_bytes - stats.dead_bytes > bound * 9 / 10, "{stats:?}");
}
