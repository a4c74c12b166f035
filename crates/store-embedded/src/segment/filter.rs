//! A segment's id filter. One word of the filter shows whether an id may be in the segment. The
//! filter is a Bloom filter in which the bits of an id are close together: each id sets four bits
//! of a single 64-bit word, and eight ids share a word on average. About one absent id in thirty
//! seems to be present.

/// Number of words of a filter for `rows` rows.
pub fn words(rows: u32) -> usize {
    rows.div_ceil(8) as usize
}

/// Returns the index of the word for an id with this hash, and the bits of this word that are set
/// if the segment has the id.
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
