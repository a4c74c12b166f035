//! A record. Any bytes can be read without a panic, and a valid record has the same content after
//! it is written again.

use hark_codec::nostr::{EventRecord, Filter};
use hark_codec::record::{self, LabelPosition, Record};

/// Panics if a property does not hold.
pub fn check(bytes: &[u8]) {
    let Ok(record) = Record::new(bytes) else { return };
    let (head, wire) = (record.head(), record.wire());
    assert_eq!(record.bytes(), bytes);
    assert_eq!((*record.id(), record.time(), record.kind()), (head.id, head.time, head.kind));
    let labels: Vec<(u8, &[u8])> = record.labels().collect();
    if let Some(event) = EventRecord::new(record) {
        assert_eq!(event.json(), wire);
    }
    let mut filter = Filter::default();
    filter.parse(br##"{"#t":["a"],"kinds":[1]}"##).expect("a filter");
    let _ = filter.matches_record(&record);
    let _ = format!("{record:?}");
    if record.check().is_err() {
        return;
    }

    // Labels are never copied, so the address of a value in memory shows its position in the
    // record.
    let place = |value: &[u8]| {
        let at = (value.as_ptr() as usize).wrapping_sub(wire.as_ptr() as usize);
        (at + value.len() <= wire.len())
            .then_some(LabelPosition::Wire { at: at as u32, len: value.len() as u32 })
    };
    let places = labels
        .iter()
        .map(|(name, value)| (*name, place(value).unwrap_or(LabelPosition::Bytes(value))));
    let mut out = Vec::new();
    record::write(&mut out, &head, wire, places);
    let again = Record::new(&out).expect("what was written is a record");
    again.check().expect("and sound");
    assert_eq!((again.head(), again.wire()), (head, wire));
    assert_eq!(again.labels().collect::<Vec<_>>(), labels);
}
