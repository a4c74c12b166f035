//! Messages in nwaku's JSON: the format of its REST interface, `hark export` and `hark import`.

use hark_codec::hex;
use hark_codec::nostr::json::{write_string, write_u64};
use hark_codec::record::Id;
use hark_codec::waku::{Message, MessageRecord};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::object;

/// A message that was read from JSON, with decoded base64.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnedMessage {
    payload: Base64,
    content_topic: String,
    version: Option<u32>,
    /// See [`Message::timestamp`].
    pub timestamp: Option<i64>,
    meta: Option<Base64>,
    proof: Option<Base64>,
    ephemeral: Option<bool>,
}

impl OwnedMessage {
    /// Returns a view of the message.
    pub fn message(&self) -> Message<'_> {
        Message {
            payload: &self.payload.0,
            content_topic: &self.content_topic,
            version: self.version,
            timestamp: self.timestamp,
            meta: self.meta.as_ref().map(|meta| &meta.0[..]),
            proof: self.proof.as_ref().map(|proof| &proof.0[..]),
            ephemeral: self.ephemeral,
        }
    }
}

/// Bytes that are base64 in the JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Base64(Vec<u8>);

impl<'d> Deserialize<'d> for Base64 {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Self, D::Error> {
        // As in nwaku, the padding may be left out.
        let text = String::deserialize(from)?;
        let bytes = base64_simd::STANDARD_NO_PAD.decode_to_vec(text.trim_end_matches('='));
        bytes.map(Self).map_err(|error| D::Error::custom(format!("not base64: {error}")))
    }
}

/// A message with its hash and its pubsub topic, as in a response or in a line of an export.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredMessage {
    message_hash: Option<String>,
    /// The message.
    #[serde(deserialize_with = "object::object")]
    pub message: OwnedMessage,
    /// The topic on which the message was relayed.
    pub pubsub_topic: String,
}

impl StoredMessage {
    /// Computes the message's hash. The flag is false if the JSON has a different hash.
    pub fn hash(&self) -> (Id, bool) {
        let hash = self.message.message().hash(&self.pubsub_topic);
        let said = self.message_hash.as_deref().map(read_hash);
        (hash, said.is_none_or(|said| said == Some(hash)))
    }
}

/// A message with its pubsub topic, in a request to publish by light push.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PublishedMessage {
    /// The topic on which the message is relayed.
    pub pubsub_topic: Option<String>,
    /// The message.
    #[serde(deserialize_with = "object::object")]
    pub message: OwnedMessage,
}

impl PublishedMessage {
    /// Reads a request: a JSON object.
    pub fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        object::read(json)
    }
}

/// Reads a message: a JSON object. An array of the message's values is refused.
pub fn read_message(json: &[u8]) -> Result<OwnedMessage, serde_json::Error> {
    object::read(json)
}

/// Reads a message with its topic: a JSON object.
pub fn read_stored(json: &[u8]) -> Result<StoredMessage, serde_json::Error> {
    object::read(json)
}

/// Reads a hash: 64 hex digits, with or without 0x, or base64 of either alphabet, as in go-waku and
/// older versions of nwaku. A space is read as `+`, because URL decoding turns `+` into a space.
pub fn read_hash(text: &str) -> Option<Id> {
    let digits = text.strip_prefix("0x").unwrap_or(text).to_ascii_lowercase();
    if let Some(hash) = hex::decode_32(digits.as_bytes()) {
        return Some(hash);
    }
    let text = text.trim_end_matches('=').replace(['-', ' '], "+").replace('_', "/");
    <Id>::try_from(base64_simd::STANDARD_NO_PAD.decode_to_vec(text).ok()?).ok()
}

/// Appends a hash as a JSON string.
pub fn put_hash(out: &mut Vec<u8>, hash: &Id) {
    out.extend_from_slice(b"\"0x");
    out.extend_from_slice(&hex::encode_32(hash));
    out.push(b'"');
}

/// Appends a stored message: its hash and, if `include_data`, the message and its pubsub topic.
pub fn put_stored(out: &mut Vec<u8>, record: &MessageRecord<'_>, include_data: bool) {
    let topic = String::from_utf8_lossy(record.pubsub_topic());
    put_element(out, record.hash(), include_data.then_some((record.message(), &*topic)));
}

/// Appends a message of another store in the same form as [`put_stored`].
pub fn put_element(out: &mut Vec<u8>, hash: &Id, data: Option<(&[u8], &str)>) {
    out.extend_from_slice(b"{\"messageHash\":");
    put_hash(out, hash);
    if let Some((message, pubsub_topic)) = data
        && let Ok(message) = Message::parse(message)
    {
        out.extend_from_slice(b",\"message\":");
        let proof = message.proof.filter(|proof| !proof.is_empty());
        put_message(out, &Message { proof, ..message });
        out.extend_from_slice(b",\"pubsubTopic\":");
        write_string(out, pubsub_topic);
    }
    out.push(b'}');
}

/// Appends a message.
pub fn put_message(out: &mut Vec<u8>, message: &Message<'_>) {
    out.extend_from_slice(b"{\"payload\":");
    put_base64(out, message.payload);
    out.extend_from_slice(b",\"contentTopic\":");
    write_string(out, message.content_topic);
    if let Some(meta) = message.meta.filter(|meta| !meta.is_empty()) {
        out.extend_from_slice(b",\"meta\":");
        put_base64(out, meta);
    }
    out.extend_from_slice(b",\"version\":");
    write_u64(out, message.version.unwrap_or_default().into());
    out.extend_from_slice(b",\"timestamp\":");
    // Accepted messages are not older than 1970.
    write_u64(out, message.timestamp.unwrap_or_default().max(0).cast_unsigned());
    let ephemeral = message.ephemeral == Some(true);
    out.extend_from_slice(if ephemeral { b",\"ephemeral\":true" } else { b",\"ephemeral\":false" });
    if let Some(proof) = message.proof {
        out.extend_from_slice(b",\"proof\":");
        put_base64(out, proof);
    }
    out.push(b'}');
}

fn put_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    base64_simd::STANDARD.encode_append(bytes, out);
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use hark_archive::Record;
    use hark_codec::waku::MessageEncoder;

    const PUBSUB: &str = "/waku/2/rs/1/0";

    #[test]
    fn a_hash_is_read_in_every_form_that_clients_have() {
        // In base64, this hash consists of the characters + and /, or of - and _ in the other
        // alphabet.
        let hash: Id = std::array::from_fn(|at| [0xfb, 0xef, 0xbe, 0xff, 0xff, 0xff][at % 6]);
        let digits = String::from_utf8(hex::encode_32(&hash).into()).unwrap();
        let (plain, url) = (
            base64_simd::STANDARD.encode_to_string(hash),
            base64_simd::URL_SAFE.encode_to_string(hash),
        );
        assert!(plain.contains("++") && plain.contains("//") && url.contains("--"));
        for text in [
            &format!("0x{}", digits.to_uppercase()),
            &digits,
            &plain,
            plain.trim_end_matches('='),
            &plain.replace('+', " "),
            &url,
            url.trim_end_matches('='),
        ] {
            assert_eq!(read_hash(text), Some(hash), "{text}");
        }
        for text in ["", "0x", &digits[1..], &plain[1..], &format!("{plain}AAAA"), "0x!"] {
            assert_eq!(read_hash(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for meta in [None, Some(&b"m"[..])] {
            let message = Message {
                payload: b"\x00\xff and more",
                content_topic: "/a/1/\"b\"\u{e9}/proto",
                version: Some(2),
                timestamp: Some(1_700_000_000_000_000_001),
                meta,
                ..Message::default()
            };
            let (hash, mut record) = (message.hash(PUBSUB), Vec::new());
            MessageEncoder::default().encode(&message, PUBSUB, &hash, &mut record);
            let mut line = Vec::new();
            put_stored(&mut line, &MessageRecord::new(Record::new(&record).unwrap()), true);
            let kept = read_stored(&line).unwrap();
            assert_eq!(kept.pubsub_topic, PUBSUB);
            assert_eq!(kept.hash(), (hash, true));
            let read = kept.message.message();
            assert_eq!(read, Message { ephemeral: Some(false), ..message });
            let other = StoredMessage { message_hash: Some("00".repeat(32)), ..kept };
            assert!(!other.hash().1);
        }
        for array in [
            r#"["AA==", "/a/1/b/c", 0, 1, null, null, false]"#,
            r#"[null, {"payload": "AA==", "contentTopic": "/a/1/b/c"}, "/waku/2/rs/1/0"]"#,
            r#"{"message": ["AA==", "/a/1/b/c", 0, 1, null, null, false], "pubsubTopic": "/a"}"#,
        ] {
            let (message, stored) = (read_message(array.as_bytes()), read_stored(array.as_bytes()));
            assert!(message.is_err() && stored.is_err(), "{array}");
        }
        let wrong = serde_json::from_str::<OwnedMessage>("{\"payload\":\"?\"}").unwrap_err();
        assert!(wrong.to_string().contains("not base64"), "{wrong}");
    }
}
