//! An ordered set of keys with sums of ids. Keys can be added and removed, and the set returns the
//! sum over any prefix of the keys.

use hark_archive::Id;
use hark_codec::id_sum::IdTally;

/// Maximum number of keys in a chunk. A full chunk is divided in two.
const CHUNK_KEYS: usize = 256;

/// An ordered set of keys. Each key stands for an id, which the caller passes with the key.
#[derive(Debug)]
pub struct SummedKeys<K> {
    /// The chunks; no chunk is empty.
    chunks: Vec<SummedChunk<K>>,
    /// The tally of all keys before each chunk, for the first chunks. The tallies of later chunks
    /// are not calculated yet.
    before: Vec<IdTally>,
}

#[derive(Debug)]
struct SummedChunk<K> {
    /// The keys, ascending.
    keys: Vec<K>,
    tally: IdTally,
}

impl<K: Ord + Copy> SummedKeys<K> {
    pub fn new() -> Self {
        Self { chunks: Vec::new(), before: Vec::new() }
    }

    /// Makes a set from ascending keys.
    pub fn from_sorted(keys: &[K], id: impl Fn(K) -> Option<Id>) -> Self {
        let chunks = keys.chunks(CHUNK_KEYS / 2).map(|keys| {
            let mut tally = IdTally::default();
            keys.iter().filter_map(|&key| id(key)).for_each(|id| tally.add(&id));
            SummedChunk { keys: keys.to_vec(), tally }
        });
        Self { chunks: chunks.collect(), before: Vec::new() }
    }

    /// The index of the chunk that has the key, or in which the key would be inserted.
    fn chunk_of(&self, key: &K) -> usize {
        self.chunks
            .partition_point(|chunk| chunk.keys.first().is_some_and(|first| first <= key))
            .saturating_sub(1)
    }

    /// Whether the set has the key.
    pub fn contains(&self, key: &K) -> bool {
        self.chunks
            .get(self.chunk_of(key))
            .is_some_and(|chunk| chunk.keys.binary_search(key).is_ok())
    }

    /// Adds a key, unless the set already has this key.
    pub fn add(&mut self, key: K, id: &Id, id_of: impl Fn(K) -> Option<Id>) {
        let at = self.chunk_of(&key);
        let Some(chunk) = self.chunks.get_mut(at) else {
            let mut tally = IdTally::default();
            tally.add(id);
            self.chunks.push(SummedChunk { keys: vec![key], tally });
            return;
        };
        let Err(place) = chunk.keys.binary_search(&key) else { return };
        chunk.keys.insert(place, key);
        chunk.tally.add(id);
        self.before.truncate(at + 1);
        if chunk.keys.len() < CHUNK_KEYS {
            return;
        }
        let keys = chunk.keys.split_off(CHUNK_KEYS / 2);
        // Keys mostly arrive in order, so this chunk will not grow again.
        chunk.keys.shrink_to_fit();
        let mut tally = IdTally::default();
        keys.iter().filter_map(|&key| id_of(key)).for_each(|id| tally.add(&id));
        chunk.tally = chunk.tally.minus(tally);
        self.chunks.insert(at + 1, SummedChunk { keys, tally });
    }

    /// Removes a key, if the set has this key.
    pub fn take(&mut self, key: &K, id: &Id) {
        let at = self.chunk_of(key);
        let Some(chunk) = self.chunks.get_mut(at) else { return };
        let Ok(place) = chunk.keys.binary_search(key) else { return };
        chunk.keys.remove(place);
        chunk.tally.take(id);
        self.before.truncate(at + 1);
        if chunk.keys.is_empty() {
            self.chunks.remove(at);
            self.before.truncate(at);
        }
    }

    /// Finds the chunk with the last key for which `is_before` is true. Returns the chunk's index,
    /// and the number of keys in the chunk for which `is_before` is true. On return, `before` has
    /// an entry for this chunk.
    fn end_of(&mut self, is_before: impl Fn(&K) -> bool) -> Option<(usize, usize)> {
        let first = |chunk: &SummedChunk<K>| chunk.keys.first().is_some_and(&is_before);
        let at = self.chunks.partition_point(first).checked_sub(1)?;
        while self.before.len() <= at {
            let last = self.before.len().checked_sub(1);
            let sum = last.map_or_else(IdTally::default, |last| {
                self.before[last].plus(self.chunks[last].tally)
            });
            self.before.push(sum);
        }
        Some((at, self.chunks[at].keys.partition_point(is_before)))
    }

    /// The number of keys for which `is_before` is true. `is_before` must be true for a prefix of
    /// the keys and false for all later keys.
    pub fn count(&mut self, is_before: impl Fn(&K) -> bool) -> u64 {
        self.end_of(is_before).map_or(0, |(at, count)| self.before[at].count + count as u64)
    }

    /// The tally of the keys for which `is_before` is true. `is_before` must be true for a prefix
    /// of the keys and false for all later keys.
    pub fn before(
        &mut self,
        is_before: impl Fn(&K) -> bool,
        id_of: impl Fn(K) -> Option<Id>,
    ) -> IdTally {
        let Some((at, count)) = self.end_of(is_before) else { return IdTally::default() };
        let chunk = &self.chunks[at];
        let mut tally = IdTally::default();
        // Only the smaller part of the chunk is summed.
        if count > chunk.keys.len() / 2 {
            chunk.keys[count..].iter().filter_map(|&key| id_of(key)).for_each(|id| tally.add(&id));
            tally = chunk.tally.minus(tally);
        } else {
            chunk.keys[..count].iter().filter_map(|&key| id_of(key)).for_each(|id| tally.add(&id));
        }
        self.before[at].plus(tally)
    }

    /// The keys from the first key for which `is_before` is false.
    pub fn from(&self, is_before: impl Fn(&K) -> bool) -> impl Iterator<Item = K> + '_ {
        let first = |chunk: &SummedChunk<K>| chunk.keys.first().is_some_and(&is_before);
        let at = self.chunks.partition_point(first).saturating_sub(1);
        let skipped = self.chunks.get(at).map_or(0, |chunk| chunk.keys.partition_point(&is_before));
        self.chunks[at.min(self.chunks.len())..]
            .iter()
            .flat_map(|chunk| &chunk.keys)
            .skip(skipped)
            .copied()
    }
}

impl SummedKeys<u32> {
    /// The last number in `start..end` that is not a key. Consecutive keys are skipped one chunk at
    /// a time.
    pub fn last_absent(&self, start: u32, end: u32) -> Option<u32> {
        let mut last = end.checked_sub(1)?;
        while last >= start {
            let chunk = self.chunks.get(self.chunk_of(&last));
            let Some(keys) = chunk.map(|chunk| &chunk.keys[..]) else { return Some(last) };
            let Ok(at) = keys.binary_search(&last) else { return Some(last) };
            // The number of consecutive keys that end with this key.
            let follows = |n: &u32| keys[at - *n as usize] == last - n;
            let run = crate::segment::file::partition(at as u32 + 1, |n| follows(&n));
            last = last.checked_sub(run)?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use hark_testkit::random::Random;

    use super::*;

    fn id(key: u32) -> Id {
        [key.wrapping_mul(0x9e37_79b9).to_le_bytes()[3]; 32]
    }

    const ID: fn(u32) -> Option<Id> = |key| Some(id(key));

    #[test]
    fn sums_follow_what_is_added_and_taken() {
        let mut random = Random::new(20);
        for start in [0, 1, 128, 3_000] {
            let mut model: BTreeSet<u32> =
                (0..start).map(|_| random.below(10_000) as u32).collect();
            let mut keys = SummedKeys::from_sorted(&model.iter().copied().collect::<Vec<_>>(), ID);
            for step in 0..6_000 {
                let key = random.below(10_000) as u32;
                // The set grows at first, and then shrinks until it is empty.
                if random.below(6_000) > step {
                    model.insert(key);
                    keys.add(key, &id(key), ID);
                } else {
                    let key = model.range(key..).next().copied().unwrap_or(key);
                    model.remove(&key);
                    keys.take(&key, &id(key));
                }
                assert_eq!(keys.contains(&key), model.contains(&key));
                if step % 16 == 0 {
                    let at = random.below(10_001) as u32;
                    let mut tally = IdTally::default();
                    model.range(..at).for_each(|&key| tally.add(&id(key)));
                    assert_eq!(keys.before(|key| *key < at, ID), tally, "before {at}");
                    assert_eq!(keys.count(|key| *key < at), tally.count);
                    let absent = (at / 2..at).rev().find(|key| !model.contains(key));
                    assert_eq!(keys.last_absent(at / 2, at), absent);
                    let from = keys.from(|key| *key < at).take(300);
                    assert!(from.eq(model.range(at..).take(300).copied()));
                }
            }
        }
    }
}
