//! Filters in front of the look-ups of banned keys and of banned ids. Searches check every record
//! that they deliver, and nearly no record is hidden. The bits of a filter fit into a processor's
//! cache; a table of 100,000 keys would not. A search pays only for the sort that has bans.

use std::hash::BuildHasher as _;
use std::hash::RandomState;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of bits is two to this power.
const BITS_LOG2: u32 = 21;

/// The bits of banned keys, or of banned ids. A bit stays set when a ban is lifted. So the filter
/// answers that a key may be banned, or that it is certainly not banned.
#[derive(Debug, Default)]
pub(super) struct KeyFilter {
    /// The bits, allocated with the first ban.
    bits: OnceLock<FilterBits>,
}

#[derive(Debug)]
struct FilterBits {
    words: Box<[AtomicU64]>,
    /// An odd number that clients do not know, so that they cannot choose keys with the same bits.
    secret: u64,
}

impl FilterBits {
    fn new() -> Self {
        let words = (0..1_usize << (BITS_LOG2 - 6)).map(|_| AtomicU64::new(0)).collect();
        Self { words, secret: RandomState::new().hash_one(0_u64) | 1 }
    }

    /// Returns the word of a key, and the key's bits in this word. Both bits are in one word, so a
    /// look-up reads one line of the cache.
    #[inline]
    fn place(&self, key: &[u8; 32]) -> (&AtomicU64, u64) {
        let first = key.first_chunk().map_or(0, |eight| u64::from_le_bytes(*eight));
        let mixed = first.wrapping_mul(self.secret);
        let at = mixed >> (64 - BITS_LOG2 + 6);
        let bit = |shift: u32| 1 << (mixed >> shift & 63);
        (&self.words[at as usize], bit(40) | bit(34))
    }
}

impl KeyFilter {
    /// Adds a key, before its ban comes into force.
    pub(super) fn add(&self, key: &[u8; 32]) {
        let (word, bits) = self.bits.get_or_init(FilterBits::new).place(key);
        word.fetch_or(bits, Ordering::AcqRel);
    }

    /// Whether the key that `key` returns may have been added. Without any key, `key` is not called.
    #[inline]
    pub(super) fn may_have<'k>(&self, key: impl FnOnce() -> Option<&'k [u8; 32]>) -> bool {
        let Some(filter) = self.bits.get() else { return false };
        key().is_some_and(|key| {
            let (word, bits) = filter.place(key);
            word.load(Ordering::Acquire) & bits == bits
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
        let may_have = |n: u32| {
            let key = key(n);
            filter.may_have(|| Some(&key))
        };
        assert!(!may_have(0));
        (0..100_000).for_each(|n| filter.add(&key(n)));
        assert!((0..100_000).all(may_have));
        let others = (100_000..200_000).filter(|n| may_have(*n)).count();
        assert!(others < 2_000, "{others}");
    }
}
