//! A segment's id filter: a Bloom filter in which all bits of an id are in one 64-bit word. So a
//! single word shows whether an id may be in the segment. Each id sets four bits, and eight ids
//! share a word on average. About one absent id in thirty seems to be present.

/// Number of words of a filter for `rows` rows.
pub fn words(rows: u32) -> usize {
    rows.div_ceil(8) as usize
}

/// Returns the index of the word for an id with this hash, and the bits that an id with this hash
/// sets in the word.
#[inline]
pub fn word_and_bits(hash: u64, words: usize) -> (usize, u64) {
    let at = ((u128::from(hash) * words as u128) >> 64) as usize;
    let bits = [0, 6, 12, 18].map(|shift| 1 << (hash >> shift & 63));
    (at, bits.into_iter().fold(0, |all, bit: u64| all | bit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_of_those_that_are_not_there_seem_to_be() {
        let mix = |n: u64| {
            let n = (n ^ n >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (n ^ n >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        };
        let rows = 100_000;
        let mut filter = vec![0u64; words(rows)];
        for n in 0..u64::from(rows) {
            let (at, bits) = word_and_bits(mix(n), filter.len());
            filter[at] |= bits;
        }
        let seems = |n: u64| {
            let (at, bits) = word_and_bits(mix(n), filter.len());
            filter[at] & bits == bits
        };
        assert!((0..u64::from(rows)).all(seems));
        let wrong = (1 << 40..(1 << 40) + 100_000).filter(|&n| seems(n)).count();
        assert!(wrong < 5_000, "{wrong} of 100,000");
    }
}
