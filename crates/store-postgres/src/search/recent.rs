//! A cache of recently fetched records, by their keys.
//!
//! If a key was just read from an index, the database has its record, and a record never changes.
//! So the index decides which records exist, and the cache need not learn of deletions. But a
//! deleted record can be put again, with the same id, a new number and other bytes (another
//! signature or white space). So the cache learns of every put before any search sees the number of
//! the put. It then removes the cached record, and rejects this record from searches that may have
//! read it before the put.
//!
//! Numbers can be compared only within one era of
//! [`TimelinePosition`](crate::line::TimelinePosition). When a new era begins, all records of the
//! previous era are dropped. Searches of the previous era then find nothing in the cache and add
//! nothing.

use std::collections::HashMap;
use std::sync::Arc;

use hark_archive::Record;
use parking_lot::Mutex;

use crate::time::IndexKey;

/// Maximum number of bytes of the cached records of a shelf.
const BYTES_MAX: usize = 128 << 20;
/// Approximate memory of a cached record in addition to its bytes.
const ENTRY_BYTES: usize = 128;
/// Number of sets of keys. For each set the last put is remembered; see [`key_set`].
const KEY_SETS: usize = 1 << 16;

/// A record, and the number that its put has in the database.
#[derive(Clone)]
pub(crate) struct FetchedRecord {
    pub(crate) seq: i64,
    pub(crate) body: Arc<[u8]>,
}

/// The cache. It has two generations of records. A record that is found in the older generation
/// moves to the younger generation. When the younger generation has half of the maximum bytes, the
/// older generation is dropped, and a new younger generation begins.
pub(crate) struct RecentRecords {
    generations: Mutex<Generations>,
    bytes_max: usize,
}

type Generation = HashMap<IndexKey, FetchedRecord>;

#[derive(Default)]
struct Generations {
    era: u64,
    young: Generation,
    old: Generation,
    /// Total size of the records of the younger generation, in bytes.
    bytes: usize,
    /// For each of [`KEY_SETS`] sets of keys, the number of the last put whose key is in the set;
    /// empty before the first put.
    ///
    /// A search that sees the put with this number has read the latest record of each key of the
    /// set. Any other search may have read earlier records, so it must not cache a record of the
    /// set. These numbers take the same memory for any number of puts. The only cost is that some
    /// records are fetched again without need, because many keys share a number.
    last_puts: Vec<i64>,
    /// Generations to drop after the lock is released.
    gone: Vec<Generation>,
}

impl Default for RecentRecords {
    fn default() -> Self {
        Self { generations: Mutex::default(), bytes_max: BYTES_MAX }
    }
}

impl RecentRecords {
    /// Passes the cached records of `keys` to `each`, each with the index of its key in `keys`.
    /// Returns the indices of all other keys. They include keys whose records have a number above
    /// `seq`.
    pub(crate) fn find(
        &self,
        keys: &[IndexKey],
        era: u64,
        seq: i64,
        mut each: impl FnMut(usize, Arc<[u8]>),
    ) -> Vec<usize> {
        let found = self.with(era, |all| {
            let mut missing = Vec::new();
            for (at, key) in keys.iter().enumerate() {
                match all.find(key, self.bytes_max) {
                    Some(record) if record.seq <= seq => each(at, record.body),
                    _ => missing.push(at),
                }
            }
            missing
        });
        found.unwrap_or_else(|| (0..keys.len()).collect())
    }

    /// Adds records fetched by a search that sees puts up to `seq`. Ignores records that do not
    /// have the given key.
    pub(crate) fn insert(
        &self,
        era: u64,
        seq: i64,
        records: impl Iterator<Item = (IndexKey, FetchedRecord)>,
    ) {
        let whole = records.filter(|(key, record)| is_of(key, &record.body));
        let whole: Vec<(IndexKey, FetchedRecord)> = whole.collect();
        self.with(era, |all| {
            for (key, record) in whole {
                if all.last_put(&key) <= seq {
                    all.insert(key, record, self.bytes_max);
                }
            }
        });
    }

    /// Remembers the puts of these keys, with the numbers of the puts. A key may have been put
    /// before.
    pub(crate) fn put(&self, era: u64, puts: impl Iterator<Item = (IndexKey, i64)>) {
        let puts: Vec<(IndexKey, i64)> = puts.collect();
        self.with(era, |all| {
            all.last_puts.resize(KEY_SETS, 0);
            for (key, seq) in puts {
                all.remove(&key);
                let last = &mut all.last_puts[key_set(&key)];
                *last = seq.max(*last);
            }
        });
    }

    /// Removes records that were deleted.
    pub(crate) fn remove(&self, keys: &[IndexKey]) {
        let mut all = self.generations.lock();
        for key in keys {
            all.remove(key);
        }
    }

    /// Runs `work` on the records of this era. If a later era has begun, does nothing and returns
    /// `None`.
    fn with<T>(&self, era: u64, work: impl FnOnce(&mut Generations) -> T) -> Option<T> {
        let mut all = self.generations.lock();
        if all.era < era {
            all.begin(era);
        }
        let done = (all.era == era).then(|| work(&mut all));
        let gone = std::mem::take(&mut all.gone);
        drop(all);
        drop(gone);
        done
    }
}

impl Generations {
    /// Begins an era, and drops all records of the previous era.
    fn begin(&mut self, era: u64) {
        self.gone.extend([std::mem::take(&mut self.young), std::mem::take(&mut self.old)]);
        (self.era, self.bytes) = (era, 0);
        self.last_puts.clear();
    }

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
            // The new map has the capacity of the old map, so it need not grow while other threads
            // wait.
            let young = Generation::with_capacity(self.young.capacity());
            let old = std::mem::replace(&mut self.young, young);
            self.gone.push(std::mem::replace(&mut self.old, old));
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

    /// Returns a number that is at least the number of the last put of `key`.
    fn last_put(&self, key: &IndexKey) -> i64 {
        self.last_puts.get(key_set(key)).copied().unwrap_or(0)
    }
}

/// Whether `body` is the record of this key. Damaged records are not cached.
fn is_of(key: &IndexKey, body: &[u8]) -> bool {
    Record::new(body).is_ok_and(|record| IndexKey::of(&record) == *key)
}

/// Returns the set to which a key belongs: the last 16 bits of its id. The first bits are
/// unsuitable, because clients can make ids that begin alike.
fn key_set(key: &IndexKey) -> usize {
    usize::from(u16::from_le_bytes([key.id[30], key.id[31]]))
}

fn bytes(record: &FetchedRecord) -> usize {
    record.body.len() + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use hark_archive::RecordHeader;
    use hark_testkit::random::encode;

    use super::*;
    use crate::time::{from_db, to_db};

    fn key(n: u8) -> IndexKey {
        IndexKey { time: to_db(u64::from(n)), id: [n; 32] }
    }

    /// Makes a record with a label of `len` bytes; its put has the number `seq`.
    fn record(n: u8, seq: i64, len: usize) -> (IndexKey, FetchedRecord) {
        let (key, kind) = (key(n), 1);
        let time = from_db(key.time);
        let head = RecordHeader { id: key.id, time, author: None, kind, expires: None };
        (key, FetchedRecord { seq, body: encode(&head, &[(b't', vec![0; len])]).into() })
    }

    /// Returns which records of `keys` a search of this era finds if it sees puts up to `seq`.
    fn found_in(recent: &RecentRecords, era: u64, keys: &[u8], seq: i64) -> Vec<u8> {
        let (keys, mut found) = (keys.iter().map(|n| key(*n)).collect::<Vec<_>>(), Vec::new());
        let missing = recent.find(&keys, era, seq, |at, body| {
            assert!(is_of(&keys[at], &body));
            found.push(keys[at].id[0]);
        });
        assert_eq!(missing.len() + found.len(), keys.len());
        found
    }

    fn found(recent: &RecentRecords, keys: &[u8], seq: i64) -> Vec<u8> {
        found_in(recent, 0, keys, seq)
    }

    #[test]
    fn what_is_asked_for_stays_and_memory_is_bounded() {
        // Both generations together have space for 16 of these records.
        let bytes_max = 16 * bytes(&record(99, 1, 1_000).1);
        let recent = RecentRecords { bytes_max, ..RecentRecords::default() };
        for n in 0..100 {
            recent.insert(0, 1, [record(n, 1, 1_000)].into_iter());
            assert_eq!(found(&recent, &[0], 1), [0], "{n}");
            let all = recent.generations.lock();
            assert!(all.young.len() + all.old.len() <= 16);
            assert_eq!(all.bytes, all.young.values().map(bytes).sum::<usize>());
        }
        assert_eq!(found(&recent, &[99, 50, 98], 1), [99, 98]);
        recent.insert(0, 1, [record(7, 1, 5_000)].into_iter());
        assert!(found(&recent, &[7], 1).is_empty());
    }

    #[test]
    fn a_record_that_was_put_after_the_search_began_is_not_seen() {
        let recent = RecentRecords::default();
        recent.insert(0, 3, (1..4).map(|n| record(n, i64::from(n), 10)));
        assert_eq!(found(&recent, &[1, 2, 3], 2), [1, 2]);
        recent.remove(&[key(1), key(9)]);
        assert_eq!(found(&recent, &[1, 2, 3], 3), [2, 3]);
        recent.remove(&[key(2), key(3)]);
        assert!(found(&recent, &[1, 2, 3], 3).is_empty());
        assert_eq!(recent.generations.lock().bytes, 0);
    }

    #[test]
    fn what_may_have_been_read_before_it_was_put_again_is_not_kept() {
        let recent = RecentRecords::default();
        recent.insert(0, 4, [record(1, 1, 10)].into_iter());
        // In this batch, a later write has deleted put number 6.
        recent.put(0, [(key(1), 5), (key(2), 7)].into_iter());
        assert!(found(&recent, &[1, 2], 7).is_empty());
        // These records come from a replica, or from searches that began before the batch.
        recent.insert(0, 4, [record(1, 1, 10), record(2, 2, 10)].into_iter());
        assert!(found(&recent, &[1, 2], 7).is_empty());
        recent.insert(0, 7, [record(1, 5, 10), record(2, 7, 10)].into_iter());
        assert_eq!(found(&recent, &[1, 2], 7), [1, 2]);
        assert_eq!(found(&recent, &[1, 2], 6), [1]);
    }

    #[test]
    fn what_a_key_does_not_name_is_not_kept() {
        let recent = RecentRecords::default();
        let (key, mut damaged) = record(1, 1, 10);
        damaged.body = damaged.body[..60].into();
        let other_time = IndexKey { time: key.time + 1, ..key };
        let others = [(key, record(2, 1, 10).1), (other_time, record(1, 1, 10).1)];
        recent.insert(0, 1, [(key, damaged)].into_iter().chain(others));
        let all = recent.generations.lock();
        assert!(all.young.is_empty() && all.old.is_empty());
    }

    #[test]
    fn puts_take_no_space_of_records_and_none_is_forgotten() {
        let recent = RecentRecords::default();
        recent.insert(0, 1, [record(3, 1, 10)].into_iter());
        let others = (0..200_000_u32).map(|n| {
            let mut id = [9; 32];
            id[28..].copy_from_slice(&n.to_be_bytes());
            (IndexKey { time: 0, id }, i64::from(n) + 6)
        });
        recent.put(0, [(key(1), 5)].into_iter().chain(others));
        assert_eq!(recent.generations.lock().last_puts.len(), KEY_SETS);
        assert_eq!(found(&recent, &[3], 1), [3]);
        recent.insert(0, 4, [record(1, 1, 10)].into_iter());
        assert!(found(&recent, &[1], 300_000).is_empty());
        recent.insert(0, 300_000, [record(1, 5, 10)].into_iter());
        assert_eq!(found(&recent, &[1], 300_000), [1]);
    }

    #[test]
    fn nothing_of_one_era_is_found_in_another() {
        let recent = RecentRecords::default();
        recent.put(0, [(key(1), 20)].into_iter());
        recent.insert(0, 20, [record(1, 20, 10), record(2, 2, 10)].into_iter());
        assert!(found_in(&recent, 1, &[1, 2], 10).is_empty());
        recent.insert(1, 10, [record(1, 1, 10)].into_iter());
        assert_eq!(found_in(&recent, 1, &[1], 10), [1], "numbers begin anew");
        // The result of a search and a put of era 0 arrive after era 1 has begun.
        recent.insert(0, 20, [record(2, 2, 10)].into_iter());
        recent.put(0, [(key(1), 21)].into_iter());
        assert!(found_in(&recent, 0, &[1, 2], 20).is_empty());
        assert_eq!(found_in(&recent, 1, &[1, 2], 10), [1]);
        assert_eq!(recent.generations.lock().bytes, bytes(&record(1, 1, 10).1));
    }
}
