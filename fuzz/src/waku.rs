//! Waku's messages, requests, answers and sync payloads. Values are the same after they are written
//! and read again, and a message becomes a record with the same content.

use hark_codec::record::Record;
use hark_codec::waku::sync::{MessagePosition, PayloadWriter, RangeContent, SyncPayload};
use hark_codec::waku::{Message, MessageEncoder, MessageRecord, StoreRequest, StoreResponse};

const PUBSUB: &str = "/waku/2/rs/1/0";

/// Panics if a property does not hold.
pub fn check(bytes: &[u8]) {
    if let Ok(message) = Message::parse(bytes) {
        let mut out = Vec::new();
        let topic = message.write(&mut out);
        assert_eq!(&out[topic..][..message.content_topic.len()], message.content_topic.as_bytes());
        assert_eq!(Message::parse(&out), Ok(message));
        let (hash, mut record) = (message.hash(PUBSUB), Vec::new());
        MessageEncoder::default().encode(&message, PUBSUB, &hash, &mut record);
        let record = Record::new(&record).expect("a record");
        record.check().expect("a whole one");
        let kept = MessageRecord::new(record);
        assert_eq!((kept.hash(), kept.pubsub_topic()), (&hash, PUBSUB.as_bytes()));
        let again = Message::parse(kept.message()).expect("the message");
        assert_eq!(again, Message { proof: None, ephemeral: None, ..message });
        assert_eq!(again.hash(PUBSUB), hash);
    }
    if let Ok(request) = StoreRequest::parse(bytes) {
        let mut out = Vec::new();
        request.write(request.content_topics(), request.message_hashes(), &mut out);
        let again = StoreRequest::parse(&out).expect("what was written is a request");
        assert!(again.content_topics().eq(request.content_topics()));
        assert!(again.message_hashes().eq(request.message_hashes()));
        assert_eq!(
            (again.request_id, again.cursor, again.limit, again.forward),
            (request.request_id, request.cursor, request.limit, request.forward)
        );
    }
    if let Ok(Some(payload)) = SyncPayload::parse(bytes) {
        compared(&payload);
    }
    if let Ok(response) = StoreResponse::parse(bytes) {
        // This cannot fail, because `StoreResponse::parse` has already read all messages.
        assert!(response.messages().all(|one| one.message_hash.len() <= bytes.len()));
    }
}

/// Checks that a payload is the same after it is written and read again. Adjacent skipped ranges
/// may become one range.
fn compared(payload: &SyncPayload<'_>) {
    let topics: Vec<String> = payload.pubsub_topics.iter().map(str::to_owned).collect();
    let mut writer = PayloadWriter::new(&topics, payload.start, usize::MAX);
    for range in payload.ranges() {
        match range.said {
            RangeContent::Skip => writer.skip(range.end),
            RangeContent::Fingerprint(print) => writer.fingerprint(range.end, &print),
            RangeContent::Items(items, was_sent) => {
                let items: Vec<MessagePosition> = items.iter().collect();
                writer.items(range.end, &items, was_sent);
            }
        }
    }
    let (out, says) = writer.finish();
    let said = |payload: &SyncPayload<'_>| -> Vec<(MessagePosition, Option<Vec<MessagePosition>>)> {
        let ranges = payload.ranges().filter(|range| range.said != RangeContent::Skip);
        ranges
            .map(|range| match range.said {
                RangeContent::Items(items, _) => (range.end, Some(items.iter().collect())),
                _ => (range.end, None),
            })
            .collect()
    };
    let again = SyncPayload::parse(&out).expect("what was written is a payload");
    assert_eq!(again.is_some(), says);
    assert_eq!(again.map_or_else(Vec::new, |again| said(&again)), said(payload));
}
