//! Signed messages. On a protected shard, nodes relay only messages whose `meta` is a signature by
//! the shard's key (nwaku's `--protected-shard`, waku/factory/validator_signed.nim).

use std::fmt;
use std::str::FromStr;

use secp256k1::ecdsa::{self, Signature};
use secp256k1::{PublicKey, SecretKey};
use sha2::{Digest as _, Sha256};

use super::Message;

/// Maximum difference between the time of a signed message and the current time, in ns.
pub const WINDOW_NS: u64 = 300_000_000_000;

/// The public key of a protected shard, on the curve secp256k1. Its text form is the hex of 33 or
/// 65 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardKey(PublicKey);

/// The error for a text that is not a [`ShardKey`] or not a [`ProtectedShard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a public key has 66 or 130 hex digits")]
pub struct NotAKey;

impl FromStr for ShardKey {
    type Err = NotAKey;

    /// Reads hex digits, with or without 0x.
    fn from_str(text: &str) -> Result<Self, NotAKey> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        digits.parse().map(Self).map_err(|_| NotAKey)
    }
}

impl fmt::Display for ShardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A shard on which only signed messages are valid. Its text form is `<shard>:<public key>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectedShard {
    /// Number of the shard in its cluster.
    pub shard: u16,
    /// Key that signs the shard's messages.
    pub key: ShardKey,
}

impl fmt::Display for ProtectedShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.shard, self.key)
    }
}

impl FromStr for ProtectedShard {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Self, NotAKey> {
        let (shard, key) = text.split_once(':').ok_or(NotAKey)?;
        Ok(Self { shard: shard.parse().map_err(|_| NotAKey)?, key: key.parse()? })
    }
}

impl ShardKey {
    /// Whether this key has signed a message for a pubsub topic. The message's age is not checked.
    pub fn has_signed(&self, message: &Message<'_>, pubsub_topic: &str) -> bool {
        let signature = Signature::from_compact(message.meta.unwrap_or_default());
        let signed = signed(message, pubsub_topic);
        signature.is_ok_and(|signature| ecdsa::verify(&signature, signed, &self.0).is_ok())
    }
}

/// Returns the signature that a message must have as its `meta` on the protected shard of this key.
/// Returns `None` if `secret` is not a valid key.
pub fn sign(secret: [u8; 32], message: &Message<'_>, pubsub_topic: &str) -> Option<[u8; 64]> {
    let secret = SecretKey::from_secret_bytes(secret).ok()?;
    Some(ecdsa::sign(signed(message, pubsub_topic), &secret).serialize_compact())
}

/// The digest that is signed. The digest differs from the message's hash: `meta` is left out, the
/// time is little-endian, and `ephemeral` is included.
fn signed(message: &Message<'_>, pubsub_topic: &str) -> secp256k1::Message {
    let mut hash = Sha256::new();
    hash.update(pubsub_topic);
    hash.update(message.payload);
    hash.update(message.content_topic);
    hash.update(message.timestamp.unwrap_or_default().to_le_bytes());
    hash.update([u8::from(message.ephemeral == Some(true))]);
    secp256k1::Message::from_digest(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key with which nwaku's tests sign.
    const SECRET: &str = "5526a8990317c9b7b58d07843d270f9cd1d9aaee129294c1c478abf7261dd9e6";
    const PUBLIC: &str = "029c5fac802da41e07e6cdf51c3b9a6351ad5e65921527f2df5b7d59fd9b56ab02";
    const TOPIC: &str = "/waku/2/rs/0/7";
    /// This signature was computed in Python, with the arithmetic of the curve, over the bytes that
    /// nwaku signs.
    const SIGNATURE: &str = "009b52d00da1a4e9afe82acc920f2568cf62af5f2ac69d72317871d0f0ac02e4\
                             6e8feed196c6b85058ad29690b6c814524268c174153ca2c207b0612d22b5af7";
    const OF_EPHEMERAL: &str = "d17293bb68785256f6b7e54aba211f8c788f2d03be5c0562eb7e751e4e163dab\
                                11e109dd3bb0f697138ecfda43ba83f7d33653c5be3569c95f1150230ff2c734";

    fn hex(text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        assert!(crate::hex::decode_into(text.as_bytes(), &mut bytes));
        bytes
    }

    #[test]
    fn signatures_are_over_what_nwaku_signs() {
        let key: ShardKey = PUBLIC.parse().unwrap();
        let (signature, of_ephemeral) = (hex(SIGNATURE), hex(OF_EPHEMERAL));
        let good = Message {
            payload: b"\x01\x02\x03\x04TEST\x05\x06\x07\x08",
            content_topic: "/waku/2/default-content/proto",
            timestamp: Some(0x1757_89bf_a23f_8400),
            meta: Some(&signature),
            ..Message::default()
        };
        let other = "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
        let other: ShardKey = other.parse().unwrap();
        for (key, message, topic, holds) in [
            (key, good, TOPIC, true),
            (key, Message { version: Some(2), ephemeral: Some(false), ..good }, TOPIC, true),
            (key, Message { ephemeral: Some(true), ..good }, TOPIC, false),
            (
                key,
                Message { ephemeral: Some(true), meta: Some(&of_ephemeral), ..good },
                TOPIC,
                true,
            ),
            (key, good, "/waku/2/rs/0/8", false),
            (key, Message { payload: b"other", ..good }, TOPIC, false),
            (key, Message { content_topic: "/other", ..good }, TOPIC, false),
            (key, Message { timestamp: Some(7), ..good }, TOPIC, false),
            (key, Message { meta: None, ..good }, TOPIC, false),
            (key, Message { meta: Some(&signature[1..]), ..good }, TOPIC, false),
            (key, Message { meta: Some(&[0xff; 64]), ..good }, TOPIC, false),
            (other, good, TOPIC, false),
        ] {
            assert_eq!(key.has_signed(&message, topic), holds, "{message:?} on {topic}");
        }
        let secret = hex(SECRET).try_into().unwrap();
        let signature = sign(secret, &good, TOPIC).unwrap();
        assert!(key.has_signed(&Message { meta: Some(&signature), ..good }, TOPIC));
        assert_eq!(sign([0; 32], &good, TOPIC), None);
    }

    #[test]
    fn keys_are_read_in_the_forms_that_nwaku_takes() {
        let short: ShardKey = PUBLIC.parse().unwrap();
        let long = "049c5fac802da41e07e6cdf51c3b9a6351ad5e65921527f2df5b7d59fd9b56ab02\
                    bab736cdcfc37f25095e78127500da371947217a8cd5186ab890ea866211c3f6";
        assert_eq!(long.parse(), Ok(short));
        assert_eq!(format!("0x{PUBLIC}").parse(), Ok(short));
        let shard: ProtectedShard = format!("32:{long}").parse().unwrap();
        assert_eq!((shard.shard, shard.to_string()), (32, format!("32:{PUBLIC}")));
        for text in [PUBLIC, "65536:", "x:", "32"] {
            assert_eq!(format!("{text}{PUBLIC}").parse::<ProtectedShard>(), Err(NotAKey), "{text}");
        }
        let no_point = "02".to_owned() + &"f".repeat(64);
        for text in ["", "0x", &PUBLIC[2..], &PUBLIC[1..], "key", &no_point] {
            assert_eq!(text.parse::<ShardKey>(), Err(NotAKey), "{text}");
        }
    }
}
