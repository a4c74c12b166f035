//! A filter in front of the look-up of banned keys and ids. Searches check every record that they
//! deliver, and nearly no record is hidden. The bits of the filter fit into a processor's cache; a
//! table of 100,000 keys would not.

use std::hash::BuildHasher as _;
use std::hash::RandomState;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of bits is two to this power.
const BITS_LOG2: u32 = 22;

/// The bits of banned keys and ids. A bit stays set when a ban is lifted. So the filter answers
/// that a key may be banned, or that it is certainly not banned.
#[derive(Debug, Default)]
pub(super) struct KeyFilter {
    /// The bits, allocated with the first ban.
    bits: OnceLock<FilterBits>,
}

#[derive(Debug)]
struct FilterBits {
    words: Box<[AtomicU64]>,
    /// An odd number that clients do not know, so that they cannot choose keys with the same bit.
    secret: u64,
}

impl FilterBits {
    fn new() -> Self {
        let words = (0..1_usize << (BITS_LOG2 - 6)).map(|_| AtomicU64::new(0)).collect();
        Self { words, secret: RandomState::new().hash_one(0_u64) | 1 }
    }

    /// Returns the word and the bit of a key.
    fn place(&self, key: &[u8; 32]) -> (&AtomicU64, u64) {
        let first = key.first_chunk().map_or(0, |eight| u64::from_le_bytes(*eight));
        let at = first.wrapping_mul(self.secret) >> (64 - BITS_LOG2);
        (&self.words[at as usize >> 6], 1 << (at & 63))
    }
}

impl KeyFilter {
    /// Adds a key, before its ban comes into force.
    pub(super) fn add(&self, key: &[u8; 32]) {
        let (word, bit) = self.bits.get_or_init(FilterBits::new).place(key);
        word.fetch_or(bit, Ordering::AcqRel);
    }

    /// Whether the key may have been added.
    pub(super) fn may_have(&self, key: &[u8; 32]) -> bool {
        self.bits.get().is_some_and(|bits| {
            let (word, bit) = bits.place(key);
            word.load(Ordering::Acquire) & bit != 0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_added_key_passes_and_few_others_do() {
        let filter = KeyFilter::default();
        let key = |n: u32| hark_codec::crypto::sha256(&n.to_le_bytes());
        assert!(!filter.may_have(&key(0)));
        (0..100_000).for_each(|n| filter.add(&key(n)));
        assert!((0..100_000).all(|n| filter.may_have(&key(n))));
        let others = (100_000..200_000).filter(|n| filter.may_have(&key(*n))).count();
        assert!(others < 5_000, "{others}");
    }
}
