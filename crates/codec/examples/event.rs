//! Converts a Nostr event from JSON to a record and back, as a relay does. The event is parsed in
//! place, and its id and signature are checked. The record can later be sent and searched without
//! parsing the JSON.
//!
//! ```text
//! cargo run -p hark-codec --example event
//! ```

use hark_codec::crypto::{KeyPair, SignatureVerifier};
use hark_codec::nostr::{Event, EventArena, EventDraft, EventEncoder, EventRecord, VerifiedEvent};
use hark_codec::record::Record;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A signed event, as JSON from a client.
    let keys = KeyPair::from_secret([7; 32]).ok_or("a secret key")?;
    let mut json = Vec::new();
    let draft = EventDraft {
        created_at: 1_700_000_000,
        kind: 1,
        tags: &[&["t", "bread"]],
        content: "Good morning",
    };
    draft.sign(&keys, &mut json);

    // The event is a view over the bytes; the arena's buffers are reused for each event.
    let mut arena = EventArena::new();
    let event = Event::parse(&json, &mut arena)?;
    println!("kind {}, {:?}, tagged {:?}", event.kind(), event.content(), event.first_value("t"));

    // A `VerifiedEvent` exists only after the check.
    let verified = VerifiedEvent::check(event, &mut SignatureVerifier::new(16))?;

    // The record has the event's JSON, and also the fields and labels that filters query.
    let mut bytes = Vec::new();
    EventEncoder::default().encode(&verified.event(), &[], &mut bytes);
    let record = Record::new(&bytes)?;
    for (name, value) in record.labels() {
        println!("label {}: {}", char::from(name), String::from_utf8_lossy(value));
    }
    println!("a record of {} bytes, at {}", bytes.len(), record.time());

    let kept = EventRecord::new(record).ok_or("a record of an event")?;
    assert_eq!(kept.json(), json, "what goes out is what came in");
    Ok(())
}
