//! Records that were fetched lately, by their keys, so that they need not be fetched again.
//!
//! A key that was just read from an index names a record that the database has, and a record never
//! changes. So what is read of an index says which records there are, and nothing depends on hearing of
//! what is deleted. A record that was deleted can be put once more, with the same id but another number
//! and other bytes (a signature, white space). So the number of each put is noted here, and a record with
//! a lower one, which a search or a replica may have read before, is not kept.

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

type Generation = HashMap<IndexKey, RecentRecord>;

/// A record, or the least number that a record with this key has.
#[derive(Clone)]
struct RecentRecord {
    seq: i64,
    body: Option<Arc<[u8]>>,
}

#[derive(Default)]
struct Generations {
    young: Generation,
    old: Generation,
    /// Bytes of the younger generation.
    bytes: usize,
    /// Generations to be dropped once nobody waits for that.
    gone: Vec<Generation>,
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
        self.with(|all| {
            let mut missing = Vec::new();
            for (at, key) in keys.iter().enumerate() {
                match all.find(key, self.bytes_max) {
                    Some(RecentRecord { seq: own, body: Some(body) }) if own <= seq => {
                        each(at, body);
                    }
                    _ => missing.push(at),
                }
            }
            missing
        })
    }

    /// Keeps records that were fetched.
    pub(crate) fn keep(&self, records: impl Iterator<Item = (IndexKey, FetchedRecord)>) {
        self.with(|all| {
            for (key, FetchedRecord { seq, body }) in records {
                if all.find(&key, self.bytes_max).is_none_or(|known| known.seq <= seq) {
                    all.insert(key, RecentRecord { seq, body: Some(body) }, self.bytes_max);
                }
            }
        });
    }

    /// Notes that records with these keys were put, perhaps once more, under this number or a higher one.
    pub(crate) fn put(&self, puts: impl Iterator<Item = (IndexKey, i64)>) {
        self.with(|all| {
            for (key, seq) in puts {
                all.remove(&key);
                all.insert(key, RecentRecord { seq, body: None }, self.bytes_max);
            }
        });
    }

    /// Removes records that were deleted.
    pub(crate) fn remove(&self, keys: impl Iterator<Item = IndexKey>) {
        self.with(|all| keys.for_each(|key| all.remove(&key)));
    }

    /// Removes all records, as numbers begin anew.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.generations.lock());
        drop(all);
    }

    fn with<T>(&self, work: impl FnOnce(&mut Generations) -> T) -> T {
        let mut all = self.generations.lock();
        let done = work(&mut all);
        let gone = std::mem::take(&mut all.gone);
        drop(all);
        drop(gone);
        done
    }
}

impl Generations {
    fn find(&mut self, key: &IndexKey, bytes_max: usize) -> Option<RecentRecord> {
        if let Some(record) = self.young.get(key) {
            return Some(record.clone());
        }
        let record = self.old.remove(key)?;
        self.insert(*key, record.clone(), bytes_max);
        Some(record)
    }

    fn insert(&mut self, key: IndexKey, record: RecentRecord, bytes_max: usize) {
        let added = bytes(&record);
        if added > bytes_max / 16 {
            return;
        }
        if self.bytes + added > bytes_max / 2 {
            self.gone.push(std::mem::replace(&mut self.old, std::mem::take(&mut self.young)));
            self.bytes = 0;
        }
        self.bytes += added;
        if let Some(before) = self.young.insert(key, record) {
            self.bytes -= bytes(&before);
        }
    }

    fn remove(&mut self, key: &IndexKey) {
        if let Some(record) = self.young.remove(key) {
            self.bytes -= bytes(&record);
        }
        self.old.remove(key);
    }
}

fn bytes(record: &RecentRecord) -> usize {
    record.body.as_ref().map_or(0, |body| body.len()) + ENTRY_BYTES
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

    #[test]
    fn what_was_read_before_it_was_put_again_is_not_kept() {
        let recent = RecentRecords::default();
        recent.keep([(key(1), record(1, 10))].into_iter());
        recent.put([(key(1), 5), (key(2), 6)].into_iter());
        assert!(found(&recent, &[1, 2], i64::MAX).is_empty());
        // From a replica, or by a search that read it before the put.
        recent.keep([(key(1), record(1, 10)), (key(2), record(2, 10))].into_iter());
        assert!(found(&recent, &[1, 2], i64::MAX).is_empty());
        let again = FetchedRecord { seq: 7, ..record(2, 10) };
        recent.keep([(key(2), again)].into_iter());
        assert_eq!(found(&recent, &[1, 2], i64::MAX), [2]);
        assert!(found(&recent, &[1, 2], 6).is_empty());
        recent.clear();
        recent.keep([(key(1), record(1, 10))].into_iter());
        assert_eq!(found(&recent, &[1, 2], i64::MAX), [1]);
    }
}
