//! Records that were fetched lately, by their keys, so that they need not be fetched again.
//!
//! A key that was read from an index names a record that the database has, and a record never changes.
//! So only what is read of an index says which records there are, and nothing has to be removed here for
//! what is deleted. A record that was deleted can be put once more, with the same id but
//! another number and other bytes (a signature, white space); then the earlier one is removed here.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::time::IndexKey;

/// The bytes of records that a shelf keeps.
const BYTES_MAX: usize = 128 << 20;
/// Approximate bytes of memory of a record besides its own.
const ENTRY_BYTES: usize = 128;

/// A record, and the number of its put.
#[derive(Clone)]
pub(crate) struct FetchedRecord {
    pub(crate) seq: i64,
    pub(crate) body: Arc<[u8]>,
}

/// The records, in two generations. What is found in the older one moves to the younger one; when that
/// has half of the bytes, the older one is dropped.
pub(crate) struct RecentRecords {
    generations: Mutex<Generations>,
    bytes_max: usize,
}

#[derive(Default)]
struct Generations {
    young: HashMap<IndexKey, FetchedRecord>,
    old: HashMap<IndexKey, FetchedRecord>,
    /// Bytes of the younger generation.
    bytes: usize,
}

impl Default for RecentRecords {
    fn default() -> Self {
        Self { generations: Mutex::default(), bytes_max: BYTES_MAX }
    }
}

impl RecentRecords {
    /// Passes the records of `keys` that are here to `each`, with their positions in `keys`, and returns
    /// the positions of the others. Records with a number above `seq` are not seen.
    pub(crate) fn find(
        &self,
        keys: &[IndexKey],
        seq: i64,
        mut each: impl FnMut(usize, Arc<[u8]>),
    ) -> Vec<usize> {
        let mut all = self.generations.lock();
        let mut missing = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            match all.find(key, self.bytes_max) {
                Some(record) if record.seq <= seq => each(at, record.body),
                _ => missing.push(at),
            }
        }
        missing
    }

    /// Keeps records that were fetched.
    pub(crate) fn keep(&self, records: impl Iterator<Item = (IndexKey, FetchedRecord)>) {
        let mut all = self.generations.lock();
        for (key, record) in records {
            all.insert(key, record, self.bytes_max);
        }
    }

    /// Removes records whose ids were put, perhaps once more.
    pub(crate) fn remove(&self, keys: impl Iterator<Item = IndexKey>) {
        let all = &mut *self.generations.lock();
        for key in keys {
            if let Some(record) = all.young.remove(&key) {
                all.bytes -= bytes(&record);
            }
            all.old.remove(&key);
        }
    }
}

impl Generations {
    fn find(&mut self, key: &IndexKey, bytes_max: usize) -> Option<FetchedRecord> {
        if let Some(record) = self.young.get(key) {
            return Some(record.clone());
        }
        let record = self.old.remove(key)?;
        self.insert(*key, record.clone(), bytes_max);
        Some(record)
    }

    fn insert(&mut self, key: IndexKey, record: FetchedRecord, bytes_max: usize) {
        let added = bytes(&record);
        if added > bytes_max / 16 {
            return;
        }
        if self.bytes + added > bytes_max / 2 {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
        self.bytes += added;
        if let Some(before) = self.young.insert(key, record) {
            self.bytes -= bytes(&before);
        }
    }
}

fn bytes(record: &FetchedRecord) -> usize {
    record.body.len() + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> IndexKey {
        IndexKey { time: i64::from(n), id: [n; 32] }
    }

    fn record(seq: i64, len: usize) -> FetchedRecord {
        FetchedRecord { seq, body: vec![seq as u8; len].into() }
    }

    fn found(recent: &RecentRecords, keys: &[u8], seq: i64) -> Vec<u8> {
        let (keys, mut found) = (keys.iter().map(|n| key(*n)).collect::<Vec<_>>(), Vec::new());
        let missing = recent.find(&keys, seq, |at, body| {
            assert_eq!(i64::from(body[0]), keys[at].time);
            found.push(body[0]);
        });
        assert_eq!(missing.len() + found.len(), keys.len());
        found
    }

    #[test]
    fn what_is_asked_for_stays_and_memory_is_bounded() {
        // Room for 16 records of 1,000 bytes in both generations.
        let recent =
            RecentRecords { generations: Mutex::default(), bytes_max: 16 * (1_000 + ENTRY_BYTES) };
        for n in 0..100 {
            recent.keep([(key(n), record(i64::from(n), 1_000))].into_iter());
            assert_eq!(found(&recent, &[0], i64::MAX), [0], "{n}");
            let all = recent.generations.lock();
            assert!(all.young.len() + all.old.len() <= 16);
            assert_eq!(all.bytes, all.young.values().map(bytes).sum::<usize>());
        }
        assert_eq!(found(&recent, &[99, 50, 98], i64::MAX), [99, 98]);
        recent.keep([(key(7), record(7, 5_000))].into_iter());
        assert!(found(&recent, &[7], i64::MAX).is_empty());
    }

    #[test]
    fn a_record_that_was_put_after_the_search_began_is_not_seen() {
        let recent = RecentRecords::default();
        recent.keep((1..4).map(|n| (key(n), record(i64::from(n), 10))));
        assert_eq!(found(&recent, &[1, 2, 3], 2), [1, 2]);
        recent.remove([key(1), key(9)].into_iter());
        assert_eq!(found(&recent, &[1, 2, 3], 3), [2, 3]);
        recent.remove([key(2), key(3)].into_iter());
        assert!(found(&recent, &[1, 2, 3], 3).is_empty());
        assert_eq!(recent.generations.lock().bytes, 0);
    }
}
