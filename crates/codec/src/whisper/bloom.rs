//! Bloom filters of topics. A filter has 512 bits, and each topic has up to three of these bits
//! (EIP-627). A filter announces the envelopes that a node wants, or selects the envelopes of a
//! request.

use super::Topic;

/// Length of a filter, in bytes.
pub const BYTES: usize = 64;

/// A bloom filter, or the bits of one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bloom(pub [u8; BYTES]);

/// The positions of a topic's bits in a filter. Each is below 512, and the same position may occur
/// twice. To match many topics, positions are better than filters: they use a tenth of the memory,
/// and matching is equally fast.
pub type Bits = [u16; 3];

impl Default for Bloom {
    /// Returns the filter that covers no topic.
    fn default() -> Self {
        Self([0; BYTES])
    }
}

impl Bloom {
    /// The filter that covers all topics.
    pub const FULL: Self = Self([0xff; BYTES]);

    /// Reads a filter. An empty `bytes` stands for the filter that covers all topics. Returns
    /// `None` if the length is neither 0 nor 64 bytes.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() { Some(Self::FULL) } else { bytes.try_into().ok().map(Self) }
    }

    /// The bits of a topic, as Whisper nodes compute them in practice. See [`bits`].
    pub fn of_topic(topic: Topic) -> Self {
        Self::of_bits(bits(topic))
    }

    /// The bits of a topic according to EIP-627. They include the bits of
    /// [`of_topic`](Self::of_topic).
    pub fn of_topic_or(topic: Topic) -> Self {
        Self::of_bits(indices(topic))
    }

    fn of_bits(bits: Bits) -> Self {
        let mut bloom = Self::default();
        for bit in bits {
            bloom.0[usize::from(bit / 8) % BYTES] |= 1 << (bit % 8);
        }
        bloom
    }

    /// Whether all bits of `other` are in this filter.
    pub fn covers(&self, other: &Self) -> bool {
        // The loop does not return early, so it compiles to a few vector instructions.
        let pairs = self.0.iter().zip(&other.0);
        pairs.fold(0, |missing, (own, wanted)| missing | (wanted & !own)) == 0
    }

    /// Whether all bits of a topic are in this filter. This is the same test as
    /// [`covers`](Self::covers), but with the positions of the bits.
    pub fn has(&self, bits: Bits) -> bool {
        let [a, b, c] = bits.map(|bit| self.0[usize::from(bit / 8) % BYTES] >> (bit % 8));
        a & b & c & 1 == 1
    }

    /// Adds the bits of another filter.
    pub fn add(&mut self, other: &Self) {
        for (own, added) in self.0.iter_mut().zip(&other.0) {
            *own |= added;
        }
    }

    /// Whether the filter covers all topics, that is, has all bits.
    pub fn is_full(&self) -> bool {
        *self == Self::FULL
    }
}

/// The positions of a topic's bits, as Whisper nodes compute them in practice.
///
/// EIP-627 sets three bits. But for each of these bits, the nodes overwrite the whole byte, so if
/// several bits are in the same byte, only the last of them remains. This affects 4 % of topics.
/// The remaining bits are a subset of the bits of EIP-627, so a test for them finds the topic in
/// filters of both forms.
pub fn bits(topic: Topic) -> Bits {
    let [mut a, mut b, c] = indices(topic);
    if b / 8 == c / 8 {
        b = c;
    }
    if a / 8 == c / 8 {
        a = c;
    } else if a / 8 == b / 8 {
        a = b;
    }
    [a, b, c]
}

/// The positions of a topic's bits according to EIP-627. Each of the topic's first three bytes has
/// the low eight bits of a position, and a bit of the fourth byte is the ninth bit.
fn indices(topic: Topic) -> Bits {
    std::array::from_fn(|at| u16::from(topic[at]) | u16::from(topic[3] >> at & 1) << 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(bytes: &[(usize, u8)]) -> Bloom {
        let mut bloom = Bloom::default();
        for (at, byte) in bytes {
            bloom.0[*at] = *byte;
        }
        bloom
    }

    /// The results of TopicToBloom in go-ethereum 1.9.20; the first is also in go-ethereum's tests.
    #[test]
    fn bits_are_those_of_go_ethereum() {
        for (topic, bytes) in [
            ([0, 0, 255, 6], &[(0, 1), (32, 1), (63, 0x80)][..]),
            ([0x1a, 0x2b, 0x3c, 0x4d], &[(5, 8), (35, 4), (39, 16)]),
            ([0x5c, 0x6c, 0x9b, 0x56], &[(11, 16), (45, 16), (51, 8)]),
            ([1, 2, 200, 2], &[(0, 2), (25, 1), (32, 4)]),
            // The three bits are in one byte, and only the last of them remains.
            ([8, 9, 10, 0], &[(1, 4)]),
            ([8, 9, 10, 7], &[(33, 4)]),
        ] {
            assert_eq!(Bloom::of_topic(topic), filled(bytes), "{topic:?}");
        }
        assert_eq!(Bloom::of_topic_or([8, 9, 10, 0]), filled(&[(1, 7)]));
    }

    /// Computes the bits as the programs do, step by step.
    fn assigned(topic: Topic) -> Bloom {
        let mut bloom = Bloom::default();
        for index in indices(topic) {
            bloom.0[usize::from(index / 8)] = 1 << (index % 8);
        }
        bloom
    }

    #[test]
    fn both_forms_of_a_topic_cover_it_and_the_ways_to_match_agree() {
        let mut other = Bloom::default();
        // Positions near each other, so that bits share bytes in all possible ways.
        let near = [0, 1, 7, 8, 15, 16, 255];
        for number in 0..near.len().pow(3) {
            let [a, b, c] = [1, 7, 49].map(|base| near[number / base % 7]);
            for last in 0..16 {
                let topic = [a, b, c, last];
                let own = Bloom::of_topic(topic);
                assert_eq!(own, assigned(topic), "{topic:?}");
                let wide = Bloom::of_topic_or(topic);
                assert!(wide.covers(&own) && wide.has(bits(topic)) && own.has(bits(topic)));
                assert_eq!(own.covers(&wide), own == wide);
                assert_eq!(other.covers(&own), other.has(bits(topic)), "{topic:?}");
                if last == 5 && b == 8 {
                    other.add(&own);
                    assert!(other.covers(&own));
                }
            }
        }
        assert!(Bloom::FULL.covers(&other) && !other.is_full() && Bloom::FULL.is_full());
        assert!(other.covers(&Bloom::default()) && !Bloom::default().covers(&other));
    }

    #[test]
    fn a_missing_filter_covers_all() {
        assert_eq!(Bloom::read(&[]), Some(Bloom::FULL));
        assert_eq!(Bloom::read(&[0; 64]), Some(Bloom::default()));
        assert_eq!((Bloom::read(&[0; 63]), Bloom::read(&[0; 65])), (None, None));
    }
}
