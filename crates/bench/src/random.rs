//! Pseudo-random numbers from a seed: the same on every machine and in every version.

/// A small, fast generator (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Creates a generator from a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    /// Returns 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound.max(1) as u64) as usize
    }

    /// Returns a number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// Returns true with probability 1/`times`.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Picks one of these items. Panics if there are none.
    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Returns a number below `bound` with a Zipf distribution: the probability of n is about
    /// proportional to 1/(n + 1), so each doubling of the range is equally likely. Uses whole
    /// numbers only, so the results are the same on every machine.
    pub(crate) fn zipf(&mut self, bound: usize) -> usize {
        let bound = bound.max(1);
        let doublings = bound.ilog2() as usize + 1;
        loop {
            let from = 1 << self.below(doublings);
            let rank = from + self.below(from);
            if rank <= bound {
                return rank - 1;
            }
        }
    }

    /// Returns 32 random bytes.
    pub(crate) fn bytes(&mut self) -> [u8; 32] {
        let words: [u64; 4] = std::array::from_fn(|_| self.bits());
        std::array::from_fn(|at| words[at / 8].to_le_bytes()[at % 8])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_numbers_come_more_often_and_none_beyond_the_bound() {
        let mut random = Random::new(1);
        let mut seen = [0; 100];
        for _ in 0..10_000 {
            seen[random.zipf(100)] += 1;
        }
        assert!(seen[0] > 1_000 && seen[1] > 400 && seen[1] < seen[0], "{seen:?}");
        assert!(seen[99] > 0 && seen[99] < 100, "{seen:?}");
        assert_eq!((random.zipf(1), random.zipf(0)), (0, 0));
        assert!((0..1_000).all(|_| (3..=5).contains(&random.between(3, 5))));
    }
}
