//! Signed events of a few people. Each person is identified by a number.

use hark_archive::Id;
use hark_codec::crypto::KeyPair;
use hark_codec::nostr::EventDraft;
use serde_json::Value;

use crate::digits::digits;

/// Returns the keys of a person. `who` must not be zero.
pub fn keys(who: u8) -> KeyPair {
    KeyPair::from_secret([who; 32]).expect("a key")
}

/// The public key of a person, in hexadecimal digits.
pub fn pubkey(who: u8) -> String {
    digits(keys(who).public())
}

/// A signed event as text.
pub fn event_json(who: u8, at: u64, kind: u16, tags: &[&[&str]], content: &str) -> String {
    let mut json = Vec::new();
    EventDraft { created_at: at, kind, tags, content }.sign(&keys(who), &mut json);
    String::from_utf8(json).expect("is text")
}

/// A signed event as text, with a line break.
pub fn event_line(who: u8, at: u64, kind: u16, tags: &[&[&str]], content: &str) -> String {
    event_json(who, at, kind, tags, content) + "\n"
}

/// A signed event.
pub fn event(who: u8, at: u64, kind: u16, tags: &[&[&str]], content: &str) -> Value {
    serde_json::from_str(&event_json(who, at, kind, tags, content)).expect("is JSON")
}

/// An EVENT message, and the event's id.
pub fn publication(
    who: &KeyPair,
    created_at: u64,
    kind: u16,
    tags: &[&[&str]],
    content: &str,
) -> (Vec<u8>, Id) {
    let mut message = b"[\"EVENT\",".to_vec();
    let id = EventDraft { created_at, kind, tags, content }.sign(who, &mut message);
    message.push(b']');
    (message, id)
}

/// A signed note.
pub fn note(who: u8, created_at: u64, content: &str) -> Value {
    event(who, created_at, 1, &[], content)
}

/// The contents of events.
pub fn contents(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["content"].as_str().unwrap()).collect()
}
