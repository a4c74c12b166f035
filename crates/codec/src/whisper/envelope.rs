//! An envelope, its hash and its proof of work (EIP-627).

use sha3::{Digest as _, Keccak256};

use super::Topic;
use super::rlp::{
    RlpError, RlpItems, RlpSink, bytes_len, head_len, number_len, put_bytes, put_list, put_number,
};
use crate::record::Id;

/// Number of bytes that [`Envelope::size`] counts for all fields except the data, whatever their
/// encoded lengths are.
const OTHER_BYTES: usize = 20;

/// Why bytes are not an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// The bytes are not RLP of five items of the right kinds.
    #[error("this is not an envelope: {0}")]
    Rlp(#[from] RlpError),
    /// The envelope's `ttl` is above its `expiry`, so it would have been sent before 1970.
    #[error("the envelope's ttl of {ttl} s is more than its expiry of {expiry}")]
    Ttl {
        /// See [`Envelope::ttl`].
        ttl: u32,
        /// See [`Envelope::expiry`].
        expiry: u32,
    },
}

/// An envelope: the public form of a message. It is the RLP list of these fields, in this order.
///
/// EIP-627 defines numbers of fixed width, but all programs write numbers as short as possible. So
/// an envelope has only one encoding: the bytes from which it was read.
///
/// ```
/// use hark_codec::whisper::{Envelope, EnvelopeError};
///
/// let (expiry, topic) = (1_554_076_850, [0x5c, 0x6c, 0x9b, 0x56]);
/// let mut envelope = Envelope { expiry, ttl: 50, topic, data: b"sealed", nonce: 0 };
/// envelope.find_nonce(0.1);
/// let mut rlp = Vec::new();
/// envelope.write(&mut rlp);
/// let read = Envelope::parse(&rlp)?;
/// assert_eq!((read, read.hash()), (envelope, envelope.hash()));
/// assert!(read.pow() >= 0.1);
/// # Ok::<(), EnvelopeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// Time at which nodes discard the envelope, in s since 1970.
    pub expiry: u32,
    /// Time for which nodes forward the envelope, in s.
    pub ttl: u32,
    /// The envelope's topic.
    pub topic: Topic,
    /// The message, encrypted and padded.
    pub data: &'a [u8],
    /// The number that the sender has found as a proof of work.
    pub nonce: u64,
}

impl<'a> Envelope<'a> {
    /// Reads an envelope. `rlp` must contain exactly one envelope. An envelope with a `ttl` above
    /// its `expiry` is refused. go-ethereum drops such an envelope, too, because its unchecked
    /// subtraction yields a time in the far future.
    pub fn parse(rlp: &'a [u8]) -> Result<Self, EnvelopeError> {
        let mut items = RlpItems::of_list(rlp)?;
        let envelope = Self {
            expiry: items.uint32()?,
            ttl: items.uint32()?,
            topic: *items.array()?,
            data: items.bytes()?,
            nonce: items.uint64()?,
        };
        items.end()?;
        let Self { expiry, ttl, .. } = envelope;
        if ttl > expiry { Err(EnvelopeError::Ttl { ttl, expiry }) } else { Ok(envelope) }
    }

    /// Appends the envelope.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.reserve(self.rlp_len());
        self.put(out);
    }

    /// Length of the encoded envelope, in bytes.
    pub fn rlp_len(&self) -> usize {
        let items = self.items_len();
        head_len(items) + items
    }

    /// The size that is compared with limits, in bytes: the length of the data plus 20, as in
    /// go-ethereum. It is at most 12 bytes below [`rlp_len`](Self::rlp_len) and at most 11 bytes
    /// above.
    pub fn size(&self) -> usize {
        OTHER_BYTES + self.data.len()
    }

    /// Time at which the envelope was sent, in s since 1970; 0 if its `ttl` is above its `expiry`.
    pub fn sent(&self) -> u32 {
        self.expiry.saturating_sub(self.ttl)
    }

    /// The envelope's identity: Keccak-256 of its RLP.
    pub fn hash(&self) -> Id {
        let mut hash = Keccak256::new();
        self.put(&mut hash);
        hash.finalize().into()
    }

    /// The envelope's proof of work: the number of hashes that a sender computes on average to find
    /// such a nonce, divided by the envelope's bytes and by its `ttl`. See
    /// [`pow_for`](Self::pow_for).
    pub fn pow(&self) -> f64 {
        self.pow_for(self.ttl)
    }

    /// The proof of work of an envelope that nodes forward for `ttl_s` seconds. For an envelope
    /// from the future, `ttl_s` is more than the envelope's `ttl`.
    ///
    /// The proof is `2^zeros / (bytes * ttl_s)`. Here `bytes` is the length of the RLP of all
    /// fields except the nonce (EIP-627 includes the nonce, but no program does). `zeros` is the
    /// number of leading zero bits of Keccak-256 over this RLP and the nonce in eight bytes, big
    /// endian. A `ttl_s` of 0 counts as 1. go-ethereum divides by zero in this case, so that the
    /// proof is infinite although the sender did no work.
    pub fn pow_for(&self, ttl_s: u32) -> f64 {
        self.pow_of(self.hashed_fields(), ttl_s)
    }

    /// Increments the nonce until the proof of work is at least `pow`.
    pub fn find_nonce(&mut self, pow: f64) {
        let fields = self.hashed_fields();
        while self.pow_of(fields.clone(), self.ttl) < pow {
            self.nonce += 1;
        }
    }

    /// The state of the hash after all fields except the nonce. The caller then adds the nonce.
    fn hashed_fields(&self) -> Keccak256 {
        let mut hash = Keccak256::new();
        put_list(&mut hash, self.fields_len());
        self.put_fields(&mut hash);
        hash
    }

    fn pow_of(&self, mut hash: Keccak256, ttl_s: u32) -> f64 {
        let fields = self.fields_len();
        hash.update(self.nonce.to_be_bytes());
        let hash: Id = hash.finalize().into();
        let hashes = 2f64.powi(leading_zeros(&hash).cast_signed());
        hashes / (head_len(fields) + fields) as f64 / f64::from(ttl_s.max(1))
    }

    /// Offset of the topic in the envelope's RLP.
    pub(super) fn topic_at(&self) -> usize {
        let numbers = number_len(self.expiry.into()) + number_len(self.ttl.into());
        head_len(self.items_len()) + numbers + 1
    }

    /// Length of all fields except the nonce.
    fn fields_len(&self) -> usize {
        number_len(self.expiry.into())
            + number_len(self.ttl.into())
            + bytes_len(&self.topic)
            + bytes_len(self.data)
    }

    fn items_len(&self) -> usize {
        self.fields_len() + number_len(self.nonce)
    }

    fn put_fields(&self, out: &mut impl RlpSink) {
        put_number(out, self.expiry.into());
        put_number(out, self.ttl.into());
        put_bytes(out, &self.topic);
        put_bytes(out, self.data);
    }

    pub(super) fn put(&self, out: &mut impl RlpSink) {
        put_list(out, self.items_len());
        self.put_fields(out);
        put_number(out, self.nonce);
    }
}

fn leading_zeros(hash: &Id) -> u32 {
    let zeros = hash.iter().take_while(|byte| **byte == 0).count();
    zeros as u32 * 8 + hash.get(zeros).map_or(0, |byte| byte.leading_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::keccak256;
    use crate::hex;

    /// Envelopes, with the values that go-ethereum 1.9.20 (whisperv6) computes. The proofs of work
    /// of the first two envelopes are also in go-ethereum's envelope_test.go.
    #[test]
    fn hashes_and_proofs_are_those_of_go_ethereum() {
        let data: Vec<u8> = (0..284u32).map(|at| (at * 7) as u8).collect();
        let dead = Envelope { ttl: 1, data: &[0xde, 0xad, 0xbe, 0xef], ..Envelope::default() };
        let some = Envelope { expiry: 1_554_076_850, ttl: 50, data: &data, ..Envelope::default() };
        for (envelope, head, hash, pow) in [
            (
                Envelope { nonce: 100_000, ..dead },
                "d08001840000000084deadbeef830186a0",
                "660f65a268e219b51aa55347adab435ffa14835a64d247a72bc2ef88cae6dc58",
                0.076_923_076_923_076_93,
            ),
            (
                Envelope { nonce: 276, ..dead },
                "cf8001840000000084deadbeef820114",
                "300e63ed3c7a65d646006bd8f92ed35851ac71038f39912186f66bcb8003413f",
                19.692_307_692_307_693,
            ),
            (
                Envelope { topic: [0x1a, 0x2b, 0x3c, 0x4d], nonce: 1_234_567_890_123, ..some },
                "f90131845ca154b232841a2b3c4db9011c00070e151c232a",
                "73a6318052065aa13f0dab217a137b159d7bbf6618ddc4a61957040fda2c62c0",
                6.644_518_272_425_25e-5,
            ),
            (
                Envelope {
                    expiry: u32::MAX,
                    ttl: u32::MAX,
                    topic: [0xff; 4],
                    data: &[0x7f],
                    nonce: u64::MAX,
                },
                "d984ffffffff84ffffffff84ffffffff7f88ffffffffffffffff",
                "888e0c462975694631c1fedde7c7e44885f176096b03ffeb06439e368899d07d",
                5.478_368_087_248_935e-11,
            ),
        ] {
            let mut rlp = Vec::new();
            envelope.write(&mut rlp);
            let mut digits = Vec::new();
            hex::encode_into(&rlp, &mut digits);
            assert!(digits.starts_with(head.as_bytes()), "{}", String::from_utf8_lossy(&digits));
            assert_eq!(rlp.len(), envelope.rlp_len());
            assert_eq!(rlp[envelope.topic_at()..][..4], envelope.topic);
            assert_eq!(hex::encode_32(&envelope.hash()), hash.as_bytes());
            assert_eq!(keccak256(&rlp), envelope.hash());
            assert_eq!(envelope.pow().to_bits(), f64::to_bits(pow), "{}", envelope.pow());
            let parsed = Envelope::parse(&rlp);
            if envelope.ttl > envelope.expiry {
                assert_eq!(parsed, Err(EnvelopeError::Ttl { ttl: 1, expiry: 0 }));
            } else {
                assert_eq!(parsed, Ok(envelope));
            }
        }
    }

    #[test]
    fn an_envelope_without_a_lifetime_has_a_proof_as_for_one_second() {
        let none = Envelope { expiry: 1_554_076_850, ..Envelope::default() };
        let hash = "c268ca3332e7694e0f699797fbb523bd1e44a94b7412702090fc7c6d59ef8887";
        assert_eq!(hex::encode_32(&none.hash()), hash.as_bytes());
        assert_eq!((none.sent(), none.size()), (none.expiry, 20));
        assert!(none.pow().is_finite());
        assert_eq!(none.pow().to_bits(), none.pow_for(1).to_bits());
        assert_eq!((none.pow_for(2) * 2.0).to_bits(), none.pow().to_bits());
        let (mut found, mut tried) = (none, none);
        found.find_nonce(50.0);
        while tried.pow() < 50.0 {
            tried.nonce += 1;
        }
        assert_eq!((found, found.pow() >= 50.0), (tried, true));
    }

    #[test]
    fn leading_zeros_are_counted_in_bits() {
        let mut hash = [0; 32];
        assert_eq!(leading_zeros(&hash), 256);
        hash[31] = 1;
        assert_eq!(leading_zeros(&hash), 255);
        hash[1] = 0x1f;
        assert_eq!(leading_zeros(&hash), 11);
        hash[0] = 0x80;
        assert_eq!(leading_zeros(&hash), 0);
    }

    #[test]
    fn what_is_no_envelope_is_refused() {
        let list = |items: &str| {
            let mut content = Vec::new();
            assert!(hex::decode_into(items.replace(' ', "").as_bytes(), &mut content), "{items}");
            let mut rlp = Vec::new();
            put_list(&mut rlp, content.len());
            rlp.extend_from_slice(&content);
            rlp
        };
        let good = list("02 01 8401020304 80 05");
        let topic = [1, 2, 3, 4];
        let envelope = Envelope { expiry: 2, ttl: 1, topic, data: b"", nonce: 5 };
        assert_eq!(Envelope::parse(&good), Ok(envelope));
        for (rlp, fault) in [
            (vec![], RlpError::Missing),
            (vec![0x80], RlpError::NoList),
            (good[..good.len() - 1].into(), RlpError::Short),
            ([&good[..], &[5]].concat(), RlpError::Excess),
            (list(""), RlpError::Missing),
            (list("02 01 8401020304 80"), RlpError::Missing),
            (list("02 01 8401020304 80 05 06"), RlpError::Excess),
            (list("820002 01 8401020304 80 05"), RlpError::Zeros),
            (list("02 00 8401020304 80 05"), RlpError::Zeros),
            (list("850100000000 01 8401020304 80 05"), RlpError::Large),
            (list("02 01 83010203 80 05"), RlpError::Width(3, 4)),
            (list("02 01 850102030405 80 05"), RlpError::Width(5, 4)),
            (list("02 01 c401020304 80 05"), RlpError::NoBytes),
            (list("02 01 8401020304 c0 05"), RlpError::NoBytes),
            (list("02 01 8401020304 817f 05"), RlpError::Length),
            (list("02 01 8401020304 b80101 05"), RlpError::Length),
            (list("02 01 8401020304 80 89010000000000000000"), RlpError::Large),
        ] {
            assert_eq!(Envelope::parse(&rlp), Err(EnvelopeError::Rlp(fault)), "{rlp:02x?}");
        }
        let early = list("02 03 8401020304 80 05");
        assert_eq!(Envelope::parse(&early), Err(EnvelopeError::Ttl { ttl: 3, expiry: 2 }));
    }
}
