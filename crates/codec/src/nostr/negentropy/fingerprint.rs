//! The fingerprint of a set of ids.

use sha2::{Digest, Sha256};

use super::number::number;
use crate::id_sum::IdSum;

/// The fingerprint of a range: the first 16 bytes of a SHA-256.
pub type Fingerprint = [u8; 16];

/// The fingerprint of `count` ids with this sum.
pub fn fingerprint(sum: IdSum, count: u64) -> Fingerprint {
    let mut hasher = Sha256::new();
    hasher.update(sum.bytes());
    let (digits, len) = number(count);
    hasher.update(&digits[digits.len() - len..]);
    let hash: [u8; 32] = hasher.finalize().into();
    let mut fingerprint = [0; 16];
    fingerprint.copy_from_slice(&hash[..16]);
    fingerprint
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex;

    fn print(sum: IdSum, count: u64) -> String {
        let mut out = Vec::new();
        hex::encode_into(&fingerprint(sum, count), &mut out);
        String::from_utf8(out).unwrap()
    }

    /// The expected values come from `sha256sum`: for no ids, SHA-256 of 32 zero bytes and the byte
    /// 0; for two ids whose sum is 0, SHA-256 of 32 zero bytes and the byte 2.
    #[test]
    fn fingerprints_follow_the_text() {
        assert_eq!(print(IdSum::default(), 0), "7f9c9e31ac8256ca2f258583df262dbc");
        assert_eq!(print(IdSum::default(), 2), "58cc2f44d3a27866874701fbad573da9");
    }
}
