//! The sum of a set of ids, and their number.

use crate::record::Id;

/// The sum of ids modulo 2^256. Each id counts as a little-endian number of 32 bytes. If the sums
/// of all prefixes of a list are stored, the sum of a range of ids is the difference between two of
/// these sums, so no id need be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdSum([u64; 4]);

impl From<&Id> for IdSum {
    fn from(id: &Id) -> Self {
        let mut limbs = [0; 4];
        for (limb, bytes) in limbs.iter_mut().zip(id.as_chunks::<8>().0) {
            *limb = u64::from_le_bytes(*bytes);
        }
        Self(limbs)
    }
}

impl IdSum {
    /// Adds an id.
    pub fn add(&mut self, id: &Id) {
        *self = self.plus(Self::from(id));
    }

    /// The sum as 32 bytes, little endian.
    pub fn bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (bytes, limb) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.0) {
            *bytes = limb.to_le_bytes();
        }
        bytes
    }

    /// Returns `self` plus `other`, modulo 2^256.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let (mut sum, mut carry) = ([0; 4], false);
        for ((sum, one), two) in sum.iter_mut().zip(self.0).zip(other.0) {
            let (limb, first) = one.overflowing_add(two);
            let (limb, second) = limb.overflowing_add(u64::from(carry));
            (*sum, carry) = (limb, first || second);
        }
        Self(sum)
    }

    /// Returns the sum without the ids of `other`, all of which must be included in `self`.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        let (mut rest, mut borrow) = ([0; 4], false);
        for ((rest, one), two) in rest.iter_mut().zip(self.0).zip(other.0) {
            let (limb, first) = one.overflowing_sub(two);
            let (limb, second) = limb.overflowing_sub(u64::from(borrow));
            (*rest, borrow) = (limb, first || second);
        }
        Self(rest)
    }
}

/// The number of ids of a set, and their sum.
///
/// ```
/// use hark_codec::id_sum::IdTally;
///
/// let tally = |ids: &[u8]| {
///     let mut tally = IdTally::default();
///     ids.iter().for_each(|id| tally.add(&[*id; 32]));
///     tally
/// };
/// assert_eq!(tally(&[1, 2, 3]).minus(tally(&[3, 1])), tally(&[2]));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdTally {
    /// The number of ids.
    pub count: u64,
    /// The sum of the ids.
    pub sum: IdSum,
}

impl IdTally {
    /// Adds an id.
    pub fn add(&mut self, id: &Id) {
        self.count += 1;
        self.sum.add(id);
    }

    /// Removes an id that was added.
    pub fn take(&mut self, id: &Id) {
        self.count = self.count.saturating_sub(1);
        self.sum = self.sum.minus(id.into());
    }

    /// The tally of the union of two sets that have no id in common.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { count: self.count + other.count, sum: self.sum.plus(other.sum) }
    }

    /// The tally of the ids that are not in `other`. All ids of `other` must be in this set.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self { count: self.count.saturating_sub(other.count), sum: self.sum.minus(other.sum) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(ids: &[Id]) -> IdSum {
        ids.iter().fold(IdSum::default(), |sum, id| sum.plus(id.into()))
    }

    /// A carry moves from word to word and is dropped after the last word.
    #[test]
    fn sums_are_of_numbers_of_32_bytes() {
        let mut one = [0; 32];
        one[0] = 1;
        assert_eq!(sum(&[[0xff; 32], one]), IdSum::default());
        assert_eq!(sum(&[one, one]).bytes()[..2], [2, 0]);
        assert_eq!(sum(&[[0x80; 32]]).bytes(), [0x80; 32]);
    }

    #[test]
    fn what_was_added_can_be_taken_away() {
        let ids = [[0xff; 32], [0x80; 32], [1; 32], [0xfe; 32]];
        for cut in 0..=ids.len() {
            assert_eq!(sum(&ids).minus(sum(&ids[..cut])), sum(&ids[cut..]));
        }
    }
}
