//! One bit per row, set by one thread and read by all without a lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

/// Bits that go from 0 to 1, and back only where [`AtomicBits::clear`] is called.
#[derive(Debug)]
pub struct AtomicBits {
    words: Box<[AtomicU64]>,
}

impl AtomicBits {
    /// Makes `len` bits, all 0.
    pub fn new(len: usize) -> Self {
        Self { words: (0..len.div_ceil(64)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Makes `len` bits from those of [`AtomicBits::words`]; missing words are 0, extra ones are dropped.
    pub fn from_words(len: usize, words: impl Iterator<Item = u64>) -> Self {
        let bits = Self::new(len);
        for (bit, word) in bits.words.iter().zip(words) {
            bit.store(word, Ordering::Relaxed);
        }
        bits
    }

    /// Sets a bit; false if it was set before.
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

    /// Whether a bit is set.
    #[inline]
    pub fn get(&self, index: u32) -> bool {
        let word = self.words.get(index as usize / 64);
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (index % 64) & 1 == 1)
    }

    /// The bits in words of 64, the lowest bit first.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().map(|word| word.load(Ordering::Acquire))
    }

    /// Indices of the set bits, ascending.
    pub fn ones(&self) -> impl Iterator<Item = u32> + '_ {
        ones(self.words())
    }
}

/// Indices of the set bits of words, ascending.
pub fn ones(words: impl Iterator<Item = u64>) -> impl Iterator<Item = u32> {
    let bits = |word: u64| (0..64u32).filter(move |bit| word >> bit & 1 == 1);
    words.enumerate().flat_map(move |(at, word)| bits(word).map(move |bit| at as u32 * 64 + bit))
}

/// The dead rows of a part: their number, and the rows by kind, for counts that are computed from
/// the lengths of posting lists. The caller keeps the bits.
#[derive(Debug, Default)]
pub struct DeadRows {
    count: AtomicU32,
    /// `None` until first used. Rows whose kind is not known are under kind `None`.
    by_kind: Mutex<Option<BTreeMap<Option<u32>, Vec<u32>>>>,
}

impl DeadRows {
    /// Begins with `count` rows that are dead already.
    pub fn new(count: u32) -> Self {
        Self { count: AtomicU32::new(count), by_kind: Mutex::default() }
    }

    /// Number of dead rows.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Notes a dead row, whose bit `set` sets; false if the bit was set before.
    pub fn kill(
        &self,
        row: u32,
        set: impl FnOnce() -> bool,
        kind: impl FnOnce() -> Option<u32>,
    ) -> bool {
        // Under the lock, so that a row killed while the rows are grouped by kind is listed once.
        let mut by_kind = self.by_kind.lock();
        if !set() {
            return false;
        }
        self.count.fetch_add(1, Ordering::Release);
        if let Some(by_kind) = &mut *by_kind {
            by_kind.entry(kind()).or_default().push(row);
        }
        true
    }

    /// Appends the dead rows of a kind, and those whose kind is not known.
    pub fn of_kind(
        &self,
        kind: u32,
        bits: impl FnOnce() -> Vec<u32>,
        kind_of: impl Fn(u32) -> Option<u32>,
        rows: &mut Vec<u32>,
    ) {
        if self.count() == 0 {
            return;
        }
        let mut by_kind = self.by_kind.lock();
        let by_kind = by_kind.get_or_insert_with(|| {
            let mut by_kind: BTreeMap<_, Vec<u32>> = BTreeMap::new();
            for row in bits() {
                by_kind.entry(kind_of(row)).or_default().push(row);
            }
            by_kind
        });
        for kind in [Some(kind), None] {
            rows.extend(by_kind.get(&kind).into_iter().flatten());
        }
    }
}
