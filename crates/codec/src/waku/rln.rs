//! The rate-limit proof of a message (RFC 58/RLN-V2, encoded as nwaku does). Here, only the form of
//! the proof is checked.

use super::protobuf::ProtobufFields;

/// The public values of a message's proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimitProof<'a> {
    /// The number of the time span in which the message was sent.
    pub epoch: u64,
    /// A value that differs for each message, unless the sender exceeds the rate limit.
    pub nullifier: &'a [u8; 32],
}

/// Lengths of the fields, beginning with field 1: proof, Merkle root, epoch, the two coordinates of
/// a share of the sender's secret, nullifier, application identifier. Field 7, the application
/// identifier, may be missing.
const LENGTHS: [usize; 7] = [128, 32, 32, 32, 32, 32, 32];
const REQUIRED: usize = 6;

impl<'a> RateLimitProof<'a> {
    /// Reads a proof. Returns `None` unless each field occurs once and has exactly its length.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut fields: [&[u8]; LENGTHS.len()] = [&[]; LENGTHS.len()];
        for field in ProtobufFields::new(bytes) {
            let field = field.ok()?;
            let at = usize::try_from(field.number).ok()?.checked_sub(1)?;
            let (slot, value) = (fields.get_mut(at)?, field.bytes().ok()?);
            if !slot.is_empty() || value.len() != LENGTHS[at] {
                return None;
            }
            *slot = value;
        }
        if fields[..REQUIRED].iter().any(|field| field.is_empty()) {
            return None;
        }
        // The epoch is a little-endian number of 32 bytes. All bytes after the first eight must be
        // zero.
        let (epoch, rest) = fields[2].split_first_chunk()?;
        rest.iter().all(|byte| *byte == 0).then_some(())?;
        Some(Self { epoch: u64::from_le_bytes(*epoch), nullifier: fields[5].try_into().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waku::protobuf::put_bytes;

    /// A proof whose field `wrong` has `len` bytes.
    fn proof(wrong: u32, len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, of) in (1..).zip(LENGTHS) {
            let mut value = vec![0; if number == wrong { len } else { of }];
            if let Some(first) = value.first_mut() {
                *first = number as u8;
            }
            put_bytes(&mut out, number, &value);
        }
        out
    }

    #[test]
    fn a_proof_has_each_field_once_and_in_full() {
        let whole = proof(0, 0);
        let read = RateLimitProof::parse(&whole).unwrap();
        assert_eq!((read.epoch, read.nullifier[..2].to_vec()), (3, vec![6, 0]));
        // Without field 7.
        assert!(RateLimitProof::parse(&whole[..whole.len() - 34]).is_some());
        assert_eq!(RateLimitProof::parse(&whole[..whole.len() - 68]), None);
        for number in 1..=7 {
            let right = LENGTHS[number as usize - 1];
            for len in [0, right - 1, right + 1] {
                assert_eq!(RateLimitProof::parse(&proof(number, len)), None, "{number}: {len}");
            }
        }
        let twice = [&whole[..], &whole[whole.len() - 34..]].concat();
        let unknown = [&whole[..], &[0x42, 1, 0]].concat();
        for wrong in [&twice, &unknown, &vec![], &vec![0x0a, 9], &whole[1..].to_vec()] {
            assert_eq!(RateLimitProof::parse(wrong), None);
        }
    }
}
