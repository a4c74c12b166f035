//! Converts nwaku's rows to records. Each message gets the hash that RFC 14 gives it, whatever
//! hash the row has.

use hark_codec::waku::{Message, MessageEncoder};
use hark_networks::waku::admit::{MessageBounds, MessageRefusal};

use super::row::NwakuRow;
use crate::commands::adopt::events::EventRowFault;
use crate::commands::adopt::rows::{ConvertedRows, text};
use crate::commands::refusal::RefusalReason;

/// A row whose stored hash is not the message's hash.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DifferingHash {
    pub(super) stored: String,
    pub(super) computed: String,
}

/// Converts rows to records, in order. Also returns the stored hashes that differ from the
/// messages' hashes. Refused rows, and rows of schemas without hashes, add none.
pub(super) fn convert(
    rows: &[NwakuRow],
    bounds: &MessageBounds,
) -> (ConvertedRows, Vec<DifferingHash>) {
    let (mut converted, mut differing) = (ConvertedRows::default(), Vec::new());
    let mut encoder = MessageEncoder::default();
    for row in rows {
        match convert_row(row, bounds, &mut encoder) {
            Ok((record, computed)) => {
                if !row.hash.is_empty() && !row.hash.eq_ignore_ascii_case(&computed) {
                    let (stored, computed) = (row.hash.clone(), computed.clone());
                    differing.push(DifferingHash { stored, computed });
                }
                converted.ids.push(computed);
                converted.records.push(record);
            }
            Err((reason, words)) => converted.refused.push((reason, row.name(), words)),
        }
    }
    (converted, differing)
}

/// Returns a row's record, and the message's hash in hex digits.
fn convert_row(
    row: &NwakuRow,
    bounds: &MessageBounds,
    encoder: &mut MessageEncoder,
) -> Result<(Box<[u8]>, String), EventRowFault> {
    let payload = row.payload.as_ref().map_err(Clone::clone)?;
    let topic = |bytes, name: &str| {
        str::from_utf8(bytes)
            .map_err(|_| (RefusalReason::BadTopic, format!("its {name} topic is not UTF-8")))
    };
    let (content_topic, pubsub_topic) =
        (topic(&row.content_topic, "content")?, topic(&row.pubsub_topic, "pubsub")?);
    let version = u32::try_from(row.version)
        .map_err(|_| (RefusalReason::Malformed, format!("its version is {}", row.version)))?;
    let message = Message {
        payload,
        content_topic,
        // nwaku leaves 0 out on the wire, and stores 0 for a version that was left out.
        version: Some(version).filter(|version| *version > 0),
        timestamp: Some(row.timestamp),
        meta: Some(&row.meta[..]).filter(|meta| !meta.is_empty()),
        ..Message::default()
    };
    bounds.admit_old(&message, payload.len()).map_err(fault)?;
    let hash = message.hash(pubsub_topic);
    let mut record = Vec::with_capacity(row.bytes());
    encoder.encode(&message, pubsub_topic, &hash, &mut record);
    Ok((record.into(), text(&hash)))
}

/// The reason in a report for a message that the node itself would refuse.
fn fault(refusal: MessageRefusal) -> EventRowFault {
    let reason = match refusal {
        MessageRefusal::Payload => RefusalReason::NoPayload,
        MessageRefusal::Topic => RefusalReason::BadTopic,
        MessageRefusal::Size(..) => RefusalReason::TooLarge,
        MessageRefusal::NoTime | MessageRefusal::Negative => RefusalReason::BadTime,
        _ => RefusalReason::Malformed,
    };
    (reason, refusal.to_string())
}

/// Whether a message in the source equals a message in the archive. A version of 0 equals a
/// missing version, as nwaku does not distinguish the two.
pub(super) fn is_same(source: &[u8], archive: &[u8]) -> bool {
    let read = |bytes| {
        let message = Message::parse(bytes).ok()?;
        let meta = message.meta.filter(|meta| !meta.is_empty());
        Some(Message { version: message.version.filter(|version| *version > 0), meta, ..message })
    };
    source == archive || read(source).is_some_and(|source| Some(source) == read(archive))
}

#[cfg(test)]
mod tests {
    use super::super::row::NwakuCursor;
    use super::*;

    fn row() -> NwakuRow {
        // A test vector of RFC 14.
        NwakuRow {
            at: NwakuCursor::start(),
            hash: "64cce733fed134e83da02b02c6f689814872b1a0ac97ea56b76095c3c72bfe05".into(),
            pubsub_topic: b"/waku/2/default-waku/proto".to_vec(),
            content_topic: b"/waku/2/default-content/proto".to_vec(),
            version: 0,
            timestamp: 0x1757_89bf_a23f_8400,
            payload: Ok(b"\x01\x02\x03\x04TEST\x05\x06\x07\x08".to_vec()),
            meta: b"super-secret".to_vec(),
        }
    }

    #[test]
    fn a_row_gets_the_hash_of_its_message_and_another_stored_hash_is_listed() {
        let wrong = NwakuRow { hash: "00".repeat(32), ..row() };
        let none = NwakuRow { hash: String::new(), ..row() };
        let (converted, differing) =
            convert(&[row(), wrong.clone(), none], &MessageBounds::default());
        assert_eq!(converted.ids, vec![row().hash; 3]);
        assert!(converted.refused.is_empty());
        let expected = DifferingHash { stored: wrong.hash, computed: row().hash };
        assert_eq!(differing, [expected]);
    }

    #[test]
    fn messages_that_the_archive_refuses_are_refused_by_reason() {
        let too_large = Ok(vec![1; (150 << 10) + 1]);
        let rows = [
            NwakuRow { payload: Ok(Vec::new()), ..row() },
            NwakuRow { content_topic: b"\xff".to_vec(), ..row() },
            NwakuRow { content_topic: Vec::new(), ..row() },
            NwakuRow { payload: too_large, ..row() },
            NwakuRow { timestamp: 0, ..row() },
            NwakuRow { timestamp: -1, ..row() },
            NwakuRow { version: -1, ..row() },
            NwakuRow { meta: vec![1; 65], ..row() },
            NwakuRow { payload: Err((RefusalReason::Malformed, String::new())), ..row() },
        ];
        let (converted, differing) = convert(&rows, &MessageBounds::default());
        let reasons: Vec<_> = converted.refused.iter().map(|(reason, ..)| *reason).collect();
        let expected = [
            RefusalReason::NoPayload,
            RefusalReason::BadTopic,
            RefusalReason::BadTopic,
            RefusalReason::TooLarge,
            RefusalReason::BadTime,
            RefusalReason::BadTime,
            RefusalReason::Malformed,
            RefusalReason::Malformed,
            RefusalReason::Malformed,
        ];
        assert_eq!(reasons, expected);
        assert!(converted.records.is_empty() && differing.is_empty());
    }

    #[test]
    fn a_missing_version_equals_0_and_nothing_else() {
        let bytes = |version| {
            let message =
                Message { payload: b"p", content_topic: "/a", version, ..Message::default() };
            let mut bytes = Vec::new();
            message.write(&mut bytes);
            bytes
        };
        assert!(is_same(&bytes(None), &bytes(Some(0))));
        assert!(!is_same(&bytes(None), &bytes(Some(1))));
        assert!(!is_same(b"\xff", b"\xfe"));
    }
}
