//! The conditions under which messages are accepted: the requirements of RFC 14/WAKU2-MESSAGE and
//! this node's bounds.

use hark_codec::waku::message::META_MAX;
use hark_codec::waku::{Message, RateLimitProof};

use super::NS_PER_S;

/// Bounds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageBounds {
    /// Maximum length of a message, in bytes.
    pub message_bytes_max: usize,
    /// Maximum difference between a message's time and the current time, in ns. `None` means no
    /// bound. Messages from other stores may be of any age.
    pub window_ns: Option<u64>,
    /// Length of an epoch of rate-limit proofs, in ns. `None` if messages need no proofs. Messages
    /// from other stores never need proofs, because stores do not keep proofs.
    pub epoch_ns: Option<u64>,
}

/// Length of an epoch of rate-limit proofs in The Waku Network.
pub const EPOCH_NS: u64 = 600 * NS_PER_S;

impl Default for MessageBounds {
    /// The bounds of The Waku Network (RFC 64/WAKU2-NETWORK) and of nwaku.
    fn default() -> Self {
        Self { message_bytes_max: 150 << 10, window_ns: Some(20_000_000_000), epoch_ns: None }
    }
}

/// Why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageRefusal {
    /// The client wants this node to relay the message, but this node does not relay messages.
    #[error(
        "Failed to publish: this node keeps messages and passes none on ([waku] `forward`); publish \
         through a node that makes the proofs or signatures that its network requires"
    )]
    Listener,
    /// The message lacks a valid signature for its protected shard, so other nodes refuse the
    /// message.
    #[error(
        "signed shard validation failed: the message's meta must be a signature by the shard's key, \
         and its timestamp within 5 minutes from now"
    )]
    Unsigned,
    /// The message has no payload, so other nodes cannot read it at all.
    #[error("the message has no payload")]
    Payload,
    /// The message has no content topic, so no client could query it there.
    #[error("the message has no content topic")]
    Topic,
    /// See [`MessageBounds::message_bytes_max`].
    #[error("the message has {0} bytes, more than the allowed {1}")]
    Size(usize, usize),
    /// See [`META_MAX`].
    #[error("the message's meta has {0} bytes, more than {META_MAX}")]
    Meta(usize),
    /// See [`MessageBounds::epoch_ns`].
    #[error("the message has no well-formed rate-limit proof (RLN), which its network requires")]
    Proof,
    /// See [`MessageBounds::epoch_ns`].
    #[error("the epoch of the message's rate-limit proof does not match its timestamp")]
    Epoch,
    /// The sender exceeds the rate limit. Within the limit, each message has a new nullifier.
    #[error("another message has the nullifier of this message's rate-limit proof")]
    Nullifier,
    /// The message's time is before 1970, which the archive cannot store.
    #[error("the message's timestamp is before 1970")]
    Negative,
    /// The message has no time, which the archive needs.
    #[error("the message has no timestamp")]
    NoTime,
    /// See [`MessageBounds::window_ns`].
    #[error("the message's timestamp is more than {0} s in the past")]
    TooOld(u64),
    /// See [`MessageBounds::window_ns`].
    #[error("the message's timestamp is more than {0} s in the future")]
    TooFar(u64),
}

impl MessageBounds {
    /// Checks whether a newly published message is accepted. `bytes` is the message's length.
    pub fn admit(
        &self,
        message: &Message<'_>,
        bytes: usize,
        now_ns: u64,
    ) -> Result<(), MessageRefusal> {
        let time = self.admit_old(message, bytes)?;
        if let Some(epoch_ns) = self.epoch_ns {
            let proof = message.proof.and_then(RateLimitProof::parse);
            let proof = proof.ok_or(MessageRefusal::Proof)?;
            if proof.epoch != time / epoch_ns {
                return Err(MessageRefusal::Epoch);
            }
        }
        let Some(window) = self.window_ns else { return Ok(()) };
        let window_s = window / NS_PER_S;
        match time {
            time if time < now_ns.saturating_sub(window) => Err(MessageRefusal::TooOld(window_s)),
            time if time > now_ns.saturating_add(window) => Err(MessageRefusal::TooFar(window_s)),
            _ => Ok(()),
        }
    }

    /// Does the same as [`MessageBounds::admit`], for a message of any age. Returns the message's
    /// time.
    pub fn admit_old(&self, message: &Message<'_>, bytes: usize) -> Result<u64, MessageRefusal> {
        if message.payload.is_empty() {
            return Err(MessageRefusal::Payload);
        }
        if message.content_topic.is_empty() {
            return Err(MessageRefusal::Topic);
        }
        if bytes > self.message_bytes_max {
            return Err(MessageRefusal::Size(bytes, self.message_bytes_max));
        }
        let meta = message.meta.map_or(0, <[u8]>::len);
        if meta > META_MAX {
            return Err(MessageRefusal::Meta(meta));
        }
        let time = message.timestamp.filter(|time| *time != 0).ok_or(MessageRefusal::NoTime)?;
        u64::try_from(time).map_err(|_| MessageRefusal::Negative)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_to_the_last_one() {
        let bounds = MessageBounds { message_bytes_max: 100, window_ns: Some(10), epoch_ns: None };
        let good = Message {
            payload: b"payload",
            content_topic: "/a/1/b/c",
            timestamp: Some(1_000),
            ..Message::default()
        };
        let meta = [0; META_MAX + 1];
        for (message, bytes, now, expected) in [
            (good, 100, 1_000, Ok(())),
            (good, 101, 1_000, Err(MessageRefusal::Size(101, 100))),
            (good, 1, 990, Ok(())),
            (good, 1, 1_010, Ok(())),
            (good, 1, 989, Err(MessageRefusal::TooFar(0))),
            (good, 1, 1_011, Err(MessageRefusal::TooOld(0))),
            (Message { timestamp: None, ..good }, 1, 0, Err(MessageRefusal::NoTime)),
            (Message { timestamp: Some(0), ..good }, 1, 0, Err(MessageRefusal::NoTime)),
            (Message { timestamp: Some(-1), ..good }, 1, 0, Err(MessageRefusal::Negative)),
            (Message { content_topic: "", ..good }, 1, 1_000, Err(MessageRefusal::Topic)),
            (Message { payload: b"", ..good }, 1, 1_000, Err(MessageRefusal::Payload)),
            (Message { meta: Some(&meta[1..]), ..good }, 1, 1_000, Ok(())),
            (Message { meta: Some(&meta), ..good }, 1, 1_000, Err(MessageRefusal::Meta(65))),
        ] {
            assert_eq!(bounds.admit(&message, bytes, now), expected, "{message:?} at {now}");
        }
        let any = MessageBounds { window_ns: None, ..bounds };
        assert_eq!(any.admit(&good, 1, u64::MAX), Ok(()));
        assert_eq!(bounds.admit_old(&good, 1), Ok(1_000));
    }

    #[test]
    fn a_network_with_proofs_takes_those_of_the_messages_time() {
        let bounds = MessageBounds { epoch_ns: Some(100), ..MessageBounds::default() };
        let with = |epoch: u8, cut: usize| {
            let mut proof = Vec::new();
            for (number, len) in (1..).zip([128, 32, 32, 32, 32, 32]) {
                let mut value = vec![0; len];
                value[0] = if number == 3 { epoch } else { 1 };
                hark_codec::waku::protobuf::put_bytes(&mut proof, number, &value);
            }
            proof.truncate(proof.len() - cut);
            proof
        };
        for (proof, time, expected) in [
            (Some(with(10, 0)), 1_000, Ok(())),
            (Some(with(10, 0)), 1_099, Ok(())),
            (Some(with(10, 0)), 1_100, Err(MessageRefusal::Epoch)),
            (Some(with(11, 0)), 1_099, Err(MessageRefusal::Epoch)),
            (Some(with(10, 1)), 1_000, Err(MessageRefusal::Proof)),
            (Some(Vec::new()), 1_000, Err(MessageRefusal::Proof)),
            (None, 1_000, Err(MessageRefusal::Proof)),
        ] {
            let message = Message {
                payload: b"payload",
                content_topic: "/a/1/b/c",
                timestamp: Some(time),
                proof: proof.as_deref(),
                ..Message::default()
            };
            assert_eq!(bounds.admit(&message, 10, 1_000), expected, "{proof:02x?} at {time}");
            assert_eq!(bounds.admit_old(&message, 10), Ok(time.cast_unsigned()));
        }
    }
}
