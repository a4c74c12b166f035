//! The fingerprint of a set of ids.

use sha2::{Digest, Sha256};

use super::write::number;
use crate::record::Id;

/// The fingerprint of a range: the first half of a SHA-256.
pub type Fingerprint = [u8; 16];

/// The sum of ids as numbers of 32 bytes, the least significant first, modulo 2^256. The sum of a
/// range is the difference of two sums, so a set that keeps sums has the fingerprint of any range at
/// hand.
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

    /// The sum of both.
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

    /// The sum of the ids of this sum that are not in `other`, whose ids must all be in this one.
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

    /// The fingerprint of the ids, of which there are `count`.
    pub fn fingerprint(self, count: usize) -> Fingerprint {
        let mut hasher = Sha256::new();
        for limb in self.0 {
            hasher.update(limb.to_le_bytes());
        }
        let (digits, len) = number(count as u64);
        hasher.update(&digits[digits.len() - len..]);
        let hash: [u8; 32] = hasher.finalize().into();
        let mut fingerprint = [0; 16];
        fingerprint.copy_from_slice(&hash[..16]);
        fingerprint
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex;

    fn sum(ids: &[Id]) -> IdSum {
        ids.iter().fold(IdSum::default(), |sum, id| sum.plus(id.into()))
    }

    fn print(ids: &[Id]) -> String {
        let mut out = Vec::new();
        hex::encode_into(&sum(ids).fingerprint(ids.len()), &mut out);
        String::from_utf8(out).unwrap()
    }

    /// SHA-256 of 32 zero bytes and the byte 0 for no id, as `sha256sum` has it; the carry goes from
    /// limb to limb, and out of the last one.
    #[test]
    fn fingerprints_follow_the_text() {
        assert_eq!(print(&[]), "7f9c9e31ac8256ca2f258583df262dbc");
        let mut one = [0; 32];
        one[0] = 1;
        assert_eq!(sum(&[[0xff; 32], one]), IdSum::default());
        assert_eq!(print(&[[0xff; 32], one]), "58cc2f44d3a27866874701fbad573da9");
    }

    #[test]
    fn what_was_added_can_be_taken_away() {
        let ids = [[0xff; 32], [0x80; 32], [1; 32], [0xfe; 32]];
        for cut in 0..=ids.len() {
            assert_eq!(sum(&ids).minus(sum(&ids[..cut])), sum(&ids[cut..]));
        }
    }
}
