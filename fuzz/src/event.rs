//! An event is the same after it is written and read again. Different spellings of its JSON have
//! the same id, and its record has the same content. serde_json is the second parser, with which
//! the result is compared.

use hark_codec::crypto::sha256;
use hark_codec::nostr::binary::LABEL_LEN_MAX;
use hark_codec::nostr::{Event, EventArena, EventEncoder, EventRecord, canonical};
use hark_codec::record::Record;

/// Panics if a property does not hold.
pub fn check(bytes: &[u8]) {
    let mut arena = EventArena::new();
    let event = match Event::parse(bytes, &mut arena) {
        Ok(event) => event,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    as_serde_reads_it(bytes, &event);

    let mut json = Vec::new();
    event.write_json(&mut json);
    let mut second = EventArena::new();
    let again = Event::parse(&json, &mut second).expect("what was written is an event");
    same(&event, &again);
    let mut twice = Vec::new();
    again.write_json(&mut twice);
    assert_eq!(json, twice, "one spelling");

    let mut canonical = Vec::new();
    canonical::write_canonical(&mut canonical, &event);
    assert_eq!(event.compute_id(), sha256(&canonical));
    assert_eq!(event.compute_id(), again.compute_id());

    as_record(&event, &json);
    as_record(&again, &json);
}

fn same(a: &Event<'_>, b: &Event<'_>) {
    assert_eq!(a.id(), b.id());
    assert_eq!(a.pubkey(), b.pubkey());
    assert_eq!(a.signature(), b.signature());
    assert_eq!((a.created_at(), a.kind()), (b.created_at(), b.kind()));
    assert_eq!(a.content(), b.content());
    assert_eq!(tags(a), tags(b));
    assert_eq!(
        (a.d(), a.expiration(), a.is_protected()),
        (b.d(), b.expiration(), b.is_protected())
    );
}

fn tags<'a>(event: &Event<'a>) -> Vec<Vec<&'a str>> {
    event.tags().map(|tag| tag.iter().collect()).collect()
}

fn as_serde_reads_it(bytes: &[u8], event: &Event<'_>) {
    let Some(value) = super::json(bytes) else { return };
    assert_eq!(value["content"], event.content());
    assert_eq!(value["created_at"], event.created_at());
    assert_eq!(value["kind"], event.kind());
    assert_eq!(value["tags"], serde_json::to_value(tags(event)).expect("JSON"));
}

/// Encodes an event as a record, and checks the values that are read from the record in place.
pub(crate) fn as_record(event: &Event<'_>, json: &[u8]) {
    let mut out = b"before".to_vec();
    EventEncoder::default().encode(event, &[(1, b"private")], &mut out);
    let record = Record::new(&out[6..]).expect("a record");
    record.check().expect("a sound record");
    assert_eq!(record.wire(), json);
    let of_event = EventRecord::new(record).expect("an event's record");
    assert_eq!((of_event.id(), of_event.pubkey()), (event.id(), event.pubkey()));
    assert_eq!((of_event.created_at(), of_event.kind()), (event.created_at(), event.kind()));
    assert_eq!(of_event.expires(), event.expiration());
    let mut expected: Vec<(u8, &[u8])> =
        event.labels().map(|(name, value)| (name, value.as_bytes())).collect();
    expected.retain(|(_, value)| value.len() <= LABEL_LEN_MAX);
    expected.push((1, b"private"));
    let mut labels: Vec<(u8, &[u8])> = record.labels().collect();
    expected.sort_unstable();
    labels.sort_unstable();
    assert_eq!(labels, expected);
}
