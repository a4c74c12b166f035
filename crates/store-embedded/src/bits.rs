//! One bit per row. One thread sets bits, and all threads read bits without a lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

/// Atomic bits. Only [`AtomicBits::clear`] and [`AtomicBits::clear_all`] change bits from 1 to 0.
#[derive(Debug)]
pub struct AtomicBits {
    words: Box<[AtomicU64]>,
}

impl AtomicBits {
    /// Makes `len` bits, all 0.
    pub fn new(len: usize) -> Self {
        Self { words: (0..len.div_ceil(64)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Makes `len` bits from the words of [`AtomicBits::words`]; missing words are 0, and extra
    /// words are dropped.
    pub fn from_words(len: usize, words: impl Iterator<Item = u64>) -> Self {
        let bits = Self::new(len);
        for (bit, word) in bits.words.iter().zip(words) {
            bit.store(word, Ordering::Relaxed);
        }
        bits
    }

    /// Sets a bit; returns false if the bit was already set.
    pub fn set(&self, index: u32) -> bool {
        let mask = 1 << (index % 64);
        let word = self.words.get(index as usize / 64);
        word.is_some_and(|word| word.fetch_or(mask, Ordering::Release) & mask == 0)
    }

    /// Clears a bit.
    pub fn clear(&self, index: u32) {
        if let Some(word) = self.words.get(index as usize / 64) {
            word.fetch_and(!(1 << (index % 64)), Ordering::Release);
        }
    }

    /// Clears all bits.
    pub fn clear_all(&self) {
        self.words.iter().for_each(|word| word.store(0, Ordering::Release));
    }

    /// Whether a bit is set.
    #[inline]
    pub fn get(&self, index: u32) -> bool {
        let word = self.words.get(index as usize / 64);
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (index % 64) & 1 == 1)
    }

    /// The bits as words of 64 bits; the lowest bit comes first.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().map(|word| word.load(Ordering::Acquire))
    }

    /// Indices of the set bits, ascending.
    pub fn ones(&self) -> impl Iterator<Item = u32> + '_ {
        ones(self.words())
    }
}

/// Indices of the set bits of these words, ascending.
pub fn ones(words: impl Iterator<Item = u64>) -> impl Iterator<Item = u32> {
    let bits = |word: u64| (0..64u32).filter(move |bit| word >> bit & 1 == 1);
    words.enumerate().flat_map(move |(at, word)| bits(word).map(move |bit| at as u32 * 64 + bit))
}

/// The number of dead rows of a head or a segment, and the dead rows of each kind. A count adds the
/// lengths of posting lists and subtracts the dead rows of the kind. The caller stores the bit of
/// each row. No deletion waits while rows are being sorted by kind.
#[derive(Debug, Default)]
pub struct DeadRows {
    count: AtomicU32,
    /// The dead rows by kind, without the `fresh` rows. Rows of unknown kind are under `None`.
    by_kind: Mutex<BTreeMap<Option<u32>, Vec<u32>>>,
    /// Rows that died since the last sorting by kind; `None` before the first sorting. Every
    /// deletion takes this lock, so no thread holds the lock for long.
    fresh: Mutex<Option<Vec<u32>>>,
}

impl DeadRows {
    /// Creates the lists for a head or a segment that already has `count` dead rows.
    pub fn new(count: u32) -> Self {
        Self { count: AtomicU32::new(count), ..Self::default() }
    }

    /// Number of dead rows.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Adds a dead row; `set` must set the bit of the row. Returns false if the bit was already
    /// set.
    pub fn kill(&self, row: u32, set: impl FnOnce() -> bool) -> bool {
        // The bit is set under the lock. Otherwise a row that dies while the bits are read could be
        // listed twice.
        let mut fresh = self.fresh.lock();
        if !set() {
            return false;
        }
        self.count.fetch_add(1, Ordering::Release);
        if let Some(fresh) = &mut *fresh {
            fresh.push(row);
        }
        true
    }

    /// Appends the dead rows of a kind, and the dead rows of unknown kind. `words` returns the
    /// words of the bits, and `kinds_of` returns the kinds of ascending rows.
    pub fn of_kind(
        &self,
        kind: u32,
        words: impl FnOnce() -> Vec<u64>,
        kinds_of: impl FnOnce(&[u32]) -> Vec<Option<u32>>,
        rows: &mut Vec<u32>,
    ) {
        if self.count() == 0 {
            return;
        }
        let mut by_kind = self.by_kind.lock();
        let fresh = self.drain_fresh(words);
        if !fresh.is_empty() {
            for (&row, kind) in fresh.iter().zip(kinds_of(&fresh)) {
                by_kind.entry(kind).or_default().push(row);
            }
        }
        for kind in [Some(kind), None] {
            rows.extend(by_kind.get(&kind).into_iter().flatten());
        }
    }

    /// Returns the fresh rows, ascending, and empties their list; the first call returns all dead
    /// rows.
    fn drain_fresh(&self, words: impl FnOnce() -> Vec<u64>) -> Vec<u32> {
        let mut fresh = self.fresh.lock();
        let Some(mut rows) = fresh.replace(Vec::new()) else {
            let words = words();
            drop(fresh);
            return ones(words.into_iter()).collect();
        };
        drop(fresh);
        rows.sort_unstable();
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: u32 = 4096;
    /// In this test, the kind of a row below this number is the row modulo 3, and later rows have
    /// no known kind.
    const KNOWN: u32 = 4000;

    struct Part {
        bits: AtomicBits,
        dead: DeadRows,
    }

    impl Part {
        fn new() -> Self {
            Self { bits: AtomicBits::new(ROWS as usize), dead: DeadRows::new(0) }
        }

        fn kill(&self, row: u32) -> bool {
            self.dead.kill(row, || self.bits.set(row))
        }

        /// The dead rows of a kind, ascending. Calls `meanwhile` while rows are sorted by kind.
        fn of_kind(&self, kind: u32, meanwhile: impl FnOnce()) -> Vec<u32> {
            let kinds_of = |rows: &[u32]| {
                assert!(rows.is_sorted(), "ascending");
                meanwhile();
                rows.iter().map(|&row| (row < KNOWN).then_some(row % 3)).collect()
            };
            let mut rows = Vec::new();
            self.dead.of_kind(kind, || self.bits.words().collect(), kinds_of, &mut rows);
            rows.sort_unstable();
            rows
        }

        fn scan(&self, kind: u32) -> Vec<u32> {
            self.bits.ones().filter(|&row| row >= KNOWN || row % 3 == kind).collect()
        }
    }

    #[test]
    fn rows_that_die_while_rows_are_sorted_by_kind_are_listed_once() {
        let part = Part::new();
        for row in [KNOWN, 6, 5] {
            assert!(part.kill(row));
        }
        let meanwhile = || {
            assert!(part.kill(3) && part.kill(2));
        };
        assert_eq!(part.of_kind(0, meanwhile), [6, KNOWN]);
        assert!(!part.kill(3) && !part.kill(6), "dead already");
        assert!(part.kill(1) && part.kill(KNOWN + 1));
        assert_eq!(part.of_kind(0, || {}), [3, 6, KNOWN, KNOWN + 1]);
        for kind in 0..3 {
            assert_eq!(part.of_kind(kind, || {}), part.scan(kind));
        }
        assert_eq!(part.dead.count(), 7);
    }

    #[test]
    fn rows_are_listed_once_while_others_die() {
        let part = Part::new();
        std::thread::scope(|threads| {
            threads.spawn(|| (0..ROWS).for_each(|row| assert!(part.kill(row))));
            while part.dead.count() < ROWS {
                let rows = part.of_kind(1, || {});
                assert!(rows.is_sorted_by(|a, b| a < b), "each once");
            }
        });
        for kind in 0..3 {
            assert_eq!(part.of_kind(kind, || {}), part.scan(kind));
        }
    }
}
