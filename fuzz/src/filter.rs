//! A filter is the same after it is written and read again. It matches an event if and only if it
//! matches the event's record.

use hark_codec::nostr::{Event, EventArena, EventEncoder, Filter};
use hark_codec::record::Record;

/// Events that have the values of the seeds' filters.
const EVENTS: [&str; 3] = [
    r#"{"id":"00000000000000000000000000000000000000000000000000000000000000aa","pubkey":"00000000000000000000000000000000000000000000000000000000000000bb","created_at":1700000000,"kind":1,"tags":[["t","nostr"],["e","00000000000000000000000000000000000000000000000000000000000000aa"],["t","a\"b"]],"content":"","sig":"000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000cc"}"#,
    r#"{"id":"00000000000000000000000000000000000000000000000000000000000000ab","pubkey":"00000000000000000000000000000000000000000000000000000000000000bb","created_at":0,"kind":0,"tags":[["d"],["p",""],["T","x"]],"content":"","sig":"000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000cc"}"#,
    r#"{"id":"ff000000000000000000000000000000000000000000000000000000000000ff","pubkey":"ff000000000000000000000000000000000000000000000000000000000000ff","created_at":9007199254740991,"kind":65535,"tags":[],"content":"","sig":"000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000cc"}"#,
];

/// Panics if a property does not hold.
pub fn check(bytes: &[u8]) {
    let mut filter = Filter::default();
    if let Err(error) = filter.parse(bytes) {
        return assert!(!error.to_string().is_empty());
    }
    super::json(bytes);
    let mut json = Vec::new();
    filter.write_json(&mut json);
    let mut again = Filter::default();
    again.parse(&json).expect("what was written is a filter");
    same(&filter, &again);
    let mut twice = Vec::new();
    again.write_json(&mut twice);
    assert_eq!(json, twice, "one spelling");
    // A filter that was used before is parsed with the same result.
    filter.parse(&json).expect("the same filter");
    same(&filter, &again);

    for json in EVENTS {
        let mut arena = EventArena::new();
        let event = Event::parse(json.as_bytes(), &mut arena).expect("an event");
        let mut record = Vec::new();
        EventEncoder::default().encode(&event, &[], &mut record);
        let record = Record::new(&record).expect("a record");
        let matches = filter.matches(&event);
        assert_eq!(matches, filter.matches_record(&record));
        assert_eq!(matches, plainly(&filter, &event));
        assert!(!(matches && filter.matches_nothing()));
    }
}

fn same(a: &Filter, b: &Filter) {
    assert_eq!((a.ids(), a.authors(), a.kinds()), (b.ids(), b.authors(), b.kinds()));
    assert_eq!((a.since(), a.until(), a.limit()), (b.since(), b.until(), b.limit()));
    assert_eq!(a.search(), b.search());
    let tags = |filter: &Filter| -> Vec<(u8, Vec<String>)> {
        filter.tags().map(|(name, all)| (name, all.iter().map(String::from).collect())).collect()
    };
    assert_eq!(tags(a), tags(b));
    let and_tags = |filter: &Filter| -> Vec<(u8, Vec<String>)> {
        let tags = filter.and_tags();
        tags.map(|(name, all)| (name, all.iter().map(String::from).collect())).collect()
    };
    assert_eq!(and_tags(a), and_tags(b));
}

/// A second implementation of matching, directly from NIP-01.
fn plainly(filter: &Filter, event: &Event<'_>) -> bool {
    let tagged = |letter: u8, wanted: &str| {
        event.tags().any(|tag| {
            tag.name().as_bytes() == [letter] && tag.value().is_some_and(|value| value == wanted)
        })
    };
    filter.ids().is_none_or(|ids| ids.contains(event.id()))
        && filter.authors().is_none_or(|authors| authors.contains(event.pubkey()))
        && filter.kinds().is_none_or(|kinds| kinds.contains(&event.kind()))
        && filter.since().is_none_or(|since| since <= event.created_at())
        && filter.until().is_none_or(|until| event.created_at() <= until)
        && filter.tags().all(|(letter, values)| values.iter().any(|value| tagged(letter, value)))
        && filter
            .and_tags()
            .all(|(letter, values)| values.iter().all(|value| tagged(letter, value)))
}
