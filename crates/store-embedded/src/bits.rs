//! A bit a row, set by one thread and read by all without a lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bits that only ever go from 0 to 1.
#[derive(Debug)]
pub struct Bits {
    words: Box<[AtomicU64]>,
}

impl Bits {
    /// `len` bits, all 0.
    pub fn new(len: usize) -> Self {
        Self { words: (0..len.div_ceil(64)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Bits as [`Bits::words`] gave them; missing ones are 0, those too many are dropped.
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

    /// Whether a bit is set.
    #[inline]
    pub fn get(&self, index: u32) -> bool {
        let word = self.words.get(index as usize / 64);
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (index % 64) & 1 == 1)
    }

    /// 64 bits a word, the lowest bit first.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().map(|word| word.load(Ordering::Acquire))
    }

    /// Indices of the set bits, ascending.
    pub fn ones(&self) -> impl Iterator<Item = u32> + '_ {
        self.words().enumerate().flat_map(|(at, word)| {
            (0..64u32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at as u32 * 64 + bit)
        })
    }
}

/// Words that [`DeadKinds`] takes on disk.
pub const KIND_WORDS: usize = 128;

/// How many rows of a part are dead, roughly by kind: the sums of 256 groups of kinds.
#[derive(Debug)]
pub struct DeadKinds {
    groups: Box<[AtomicU32]>,
    all: AtomicU32,
}

impl Default for DeadKinds {
    fn default() -> Self {
        Self { groups: (0..256).map(|_| AtomicU32::new(0)).collect(), all: AtomicU32::new(0) }
    }
}

impl DeadKinds {
    /// Notes a dead row. `None` if its kind is not known: every kind may have it.
    pub fn add(&self, kind: Option<u32>) {
        match kind {
            Some(kind) => {
                self.groups[kind as usize % 256].fetch_add(1, Ordering::Release);
            }
            None => self.groups.iter().for_each(|group| {
                group.fetch_add(1, Ordering::Release);
            }),
        }
        self.all.fetch_add(1, Ordering::Release);
    }

    /// False if surely no row of the kind is dead.
    pub fn may_have(&self, kind: Option<u32>) -> bool {
        match kind {
            Some(kind) => self.groups[kind as usize % 256].load(Ordering::Acquire) > 0,
            None => self.count() > 0,
        }
    }

    /// The sums, two a word, for the disk.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        let sum = |group: &AtomicU32| u64::from(group.load(Ordering::Acquire));
        self.groups.chunks_exact(2).map(move |pair| sum(&pair[0]) | sum(&pair[1]) << 32)
    }

    /// Sums that [`DeadKinds::words`] gave, of `all` dead rows.
    pub fn from_words(words: impl Iterator<Item = u64>, all: u32) -> Self {
        let kinds = Self::default();
        for (pair, word) in kinds.groups.chunks_exact(2).zip(words) {
            pair[0].store(word as u32, Ordering::Relaxed);
            pair[1].store((word >> 32) as u32, Ordering::Relaxed);
        }
        kinds.all.store(all, Ordering::Relaxed);
        kinds
    }

    /// Dead rows of all kinds.
    pub fn count(&self) -> u32 {
        self.all.load(Ordering::Acquire)
    }
}
