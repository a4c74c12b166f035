//! A Waku message, its hash, and its record.

use sha2::{Digest as _, Sha256};

use super::protobuf::{ProtobufError, ProtobufFields, put_bytes, put_number, put_sint64};
use crate::record::{self, Id, LabelPosition, Record, RecordHeader};

/// Maximum length of `meta`, in bytes (RFC 14).
pub const META_MAX: usize = 64;

/// Names of a Waku record's labels.
pub mod topic {
    /// The topic on which the message was relayed: a shard.
    pub const PUBSUB: u8 = b'p';
    /// The topic that applications choose.
    pub const CONTENT: u8 = b'c';
}

/// A message according to RFC 14/WAKU2-MESSAGE, as a view over the bytes from which it was read.
///
/// ```
/// use hark_codec::waku::{Message, ProtobufError};
///
/// let (payload, content_topic) = (&b"hi"[..], "/app/1/chat/proto");
/// let message = Message { payload, content_topic, timestamp: Some(7), ..Message::default() };
/// let mut bytes = Vec::new();
/// message.write(&mut bytes);
/// assert_eq!(Message::parse(&bytes)?, message);
/// // The same message on another pubsub topic has another hash.
/// assert_ne!(message.hash("/waku/2/rs/1/3"), message.hash("/waku/2/rs/1/4"));
/// # Ok::<(), ProtobufError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message<'a> {
    /// Content of the message, usually encrypted. Field 1.
    pub payload: &'a [u8],
    /// The topic, which the application chooses. Field 2.
    pub content_topic: &'a str,
    /// A number that shows how the payload is encrypted. Field 3.
    pub version: Option<u32>,
    /// Time at which the message was made, in ns since 1970. Field 10.
    pub timestamp: Option<i64>,
    /// Data that the application adds, up to [`META_MAX`] bytes. Field 11.
    pub meta: Option<&'a [u8]>,
    /// Proof that the sender observes a rate limit. Field 21.
    pub proof: Option<&'a [u8]>,
    /// Whether the message is ephemeral, that is, must not be stored. Field 31.
    pub ephemeral: Option<bool>,
}

impl<'a> Message<'a> {
    /// Reads a message.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ProtobufError> {
        let mut message = Self::default();
        for field in ProtobufFields::new(bytes) {
            let field = field?;
            match field.number {
                1 => message.payload = field.bytes()?,
                2 => message.content_topic = field.string()?,
                3 => message.version = Some(field.uint32()?),
                10 => message.timestamp = Some(field.sint64()?),
                11 => message.meta = Some(field.bytes()?),
                21 => message.proof = Some(field.bytes()?),
                31 => message.ephemeral = Some(field.varint()? != 0),
                _ => {}
            }
        }
        Ok(message)
    }

    /// Appends the message with its fields in the order of their numbers. Returns the offset of the
    /// content topic in the message.
    pub fn write(&self, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        if !self.payload.is_empty() {
            put_bytes(out, 1, self.payload);
        }
        let topic = put_bytes(out, 2, self.content_topic.as_bytes());
        if let Some(version) = self.version {
            put_number(out, 3, u64::from(version));
        }
        if let Some(timestamp) = self.timestamp {
            put_sint64(out, 10, timestamp);
        }
        if let Some(meta) = self.meta {
            put_bytes(out, 11, meta);
        }
        if let Some(proof) = self.proof {
            put_bytes(out, 21, proof);
        }
        if let Some(ephemeral) = self.ephemeral {
            put_number(out, 31, u64::from(ephemeral));
        }
        topic - start
    }

    /// The hash that identifies the message on a pubsub topic (RFC 14, "Deterministic message
    /// hashing").
    pub fn hash(&self, pubsub_topic: &str) -> Id {
        let mut hash = Sha256::new();
        hash.update(pubsub_topic);
        hash.update(self.payload);
        hash.update(self.content_topic);
        hash.update(self.meta.unwrap_or_default());
        hash.update(self.timestamp.unwrap_or_default().to_be_bytes());
        hash.finalize().into()
    }
}

/// Encodes messages as records.
#[derive(Debug, Default)]
pub struct MessageEncoder {
    wire: Vec<u8>,
}

impl MessageEncoder {
    /// Appends the record of `message`, whose hash is `hash`. The record omits unknown fields, and
    /// fields that matter only while a message is relayed (`proof`, `ephemeral`). A time before
    /// 1970 would become 0, so callers must refuse such messages.
    pub fn encode(
        &mut self,
        message: &Message<'_>,
        pubsub_topic: &str,
        hash: &Id,
        out: &mut Vec<u8>,
    ) {
        self.wire.clear();
        let kept = Message { proof: None, ephemeral: None, ..*message };
        let at = kept.write(&mut self.wire) as u32;
        let len = message.content_topic.len() as u32;
        let time = u64::try_from(message.timestamp.unwrap_or_default()).unwrap_or_default();
        let head = RecordHeader { id: *hash, time, author: None, kind: 0, expires: None };
        let labels = [
            (topic::CONTENT, LabelPosition::Wire { at, len }),
            (topic::PUBSUB, LabelPosition::Bytes(pubsub_topic.as_bytes())),
        ];
        record::write(out, &head, &self.wire, labels.into_iter());
    }
}

/// A record of a Waku message.
#[derive(Clone, Copy)]
pub struct MessageRecord<'a>(Record<'a>);

impl<'a> MessageRecord<'a> {
    /// Interprets a record that [`MessageEncoder::encode`] wrote.
    pub fn new(record: Record<'a>) -> Self {
        Self(record)
    }

    /// The message's hash.
    pub fn hash(&self) -> &'a Id {
        self.0.id()
    }

    /// The encoded message, as it is sent to clients and peers.
    pub fn message(&self) -> &'a [u8] {
        self.0.wire()
    }

    /// Whether the message has a payload. Earlier versions of Hark accepted messages without a
    /// payload, so old archives may contain some. Other nodes cannot read such messages.
    pub fn has_payload(&self) -> bool {
        // Fields are stored in the order of their numbers, so the payload comes first.
        let first = ProtobufFields::new(self.message()).next().and_then(Result::ok);
        first.is_some_and(|field| {
            field.number == 1 && field.bytes().is_ok_and(|payload| !payload.is_empty())
        })
    }

    /// The topic on which the message was relayed.
    pub fn pubsub_topic(&self) -> &'a [u8] {
        self.topic(topic::PUBSUB)
    }

    /// The topic that the application chose.
    pub fn content_topic(&self) -> &'a [u8] {
        self.topic(topic::CONTENT)
    }

    fn topic(&self, wanted: u8) -> &'a [u8] {
        self.0.labels().find(|(name, _)| *name == wanted).map_or(&[], |(_, topic)| topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex;

    const PUBSUB: &str = "/waku/2/default-waku/proto";
    const CONTENT: &str = "/waku/2/default-content/proto";
    const PAYLOAD: &[u8] = b"\x01\x02\x03\x04TEST\x05\x06\x07\x08";

    /// The test vectors of RFC 14.
    #[test]
    fn hashes_are_those_of_the_specification() {
        let message = Message {
            payload: PAYLOAD,
            content_topic: CONTENT,
            timestamp: Some(0x1757_89bf_a23f_8400),
            meta: Some(b"super-secret"),
            ..Message::default()
        };
        for (message, hash) in [
            (message, "64cce733fed134e83da02b02c6f689814872b1a0ac97ea56b76095c3c72bfe05"),
            (
                Message { meta: None, ..message },
                "a2554498b31f5bcdfcbf7fa58ad1c2d45f0254f3f8110a85588ec3cf10720fd8",
            ),
            (
                Message { payload: b"", ..message },
                "483ea950cb63f9b9d6926b262bb36194d3f40a0463ce8446228350bd44e96de4",
            ),
        ] {
            assert_eq!(hex::encode_32(&message.hash(PUBSUB)), hash.as_bytes());
        }
    }

    #[test]
    fn a_record_has_the_message_and_its_topics() {
        let message = Message {
            payload: PAYLOAD,
            content_topic: CONTENT,
            version: Some(1),
            timestamp: Some(7),
            meta: Some(b"m"),
            proof: Some(b"proof"),
            ephemeral: Some(false),
        };
        let mut bytes = Vec::new();
        MessageEncoder::default().encode(&message, PUBSUB, &message.hash(PUBSUB), &mut bytes);
        let record = Record::new(&bytes).unwrap();
        record.check().unwrap();
        assert_eq!((record.time(), record.kind(), record.author()), (7, 0, None));
        let labels: Vec<_> = record.labels().collect();
        assert_eq!(labels, [(b'c', CONTENT.as_bytes()), (b'p', PUBSUB.as_bytes())]);
        let record = MessageRecord::new(record);
        assert_eq!(record.hash(), &message.hash(PUBSUB));
        assert_eq!(record.pubsub_topic(), PUBSUB.as_bytes());
        assert!(record.has_payload());
        let kept = Message::parse(record.message()).unwrap();
        assert_eq!(kept, Message { proof: None, ephemeral: None, ..message });
    }
    #[test]
    fn a_message_without_a_payload_is_distinguished_from_one_with_it() {
        for (payload, has) in [(&b""[..], false), (b"\0", true), (&[7; 200], true)] {
            let message = Message { payload, content_topic: CONTENT, ..Message::default() };
            let mut bytes = Vec::new();
            MessageEncoder::default().encode(&message, PUBSUB, &message.hash(PUBSUB), &mut bytes);
            assert_eq!(MessageRecord::new(Record::new(&bytes).unwrap()).has_payload(), has);
        }
    }

    #[test]
    fn a_version_above_32_bits_is_refused() {
        let with = |version: u64| {
            let mut bytes = Vec::new();
            put_number(&mut bytes, 3, version);
            bytes
        };
        let top = u64::from(u32::MAX);
        assert_eq!(Message::parse(&with(top)).unwrap().version, Some(u32::MAX));
        for version in [top + 1, u64::MAX] {
            assert_eq!(Message::parse(&with(version)), Err(ProtobufError::Varint));
        }
    }
}
