//! A generator of random numbers.

/// A small and fast generator. The same seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    /// 64 random bits (SplitMix64).
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number below `bound`, each with the same probability.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound.max(1) as u64) as usize
    }

    /// Returns true with probability 1/`times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Picks one of these items. Panics if `from` is empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// A number below `bound`; low numbers are more frequent than high numbers.
    pub fn skewed(&mut self, bound: usize) -> usize {
        let low = self.below(bound).min(self.below(bound));
        low.min(self.below(bound))
    }

    /// 32 random bytes.
    pub fn bytes(&mut self) -> [u8; 32] {
        let words: [u64; 4] = std::array::from_fn(|_| self.bits());
        std::array::from_fn(|at| words[at / 8].to_le_bytes()[at % 8])
    }
}
