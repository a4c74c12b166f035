//! Makes events, and spellings of strings, for the other test files.

use std::fmt::Write;

use hark_codec::crypto::KeyPair;
use hark_codec::nostr::{Event, EventArena, EventDraft};
use proptest::prelude::*;
use serde_json::Value;

/// An event with a placeholder id, key and signature, for tests that check only the form.
pub(crate) fn event_json(created_at: &str, kind: &str, tags: &str, content: &str) -> String {
    format!(
        r#"{{"id":"{:064}","pubkey":"{:064}","created_at":{created_at},"kind":{kind},"tags":{tags},"content":{content},"sig":"{:0128}"}}"#,
        1, 2, 3
    )
}

pub(crate) fn with_tags(tags: &str) -> String {
    event_json("1700000000", "1", tags, "\"\"")
}

pub(crate) fn with_content(content: &str) -> String {
    event_json("1700000000", "1", "[]", content)
}

/// Parses an event, and returns the error text that a client gets.
pub(crate) fn error_of(json: &str) -> String {
    match Event::parse(json.as_bytes(), &mut EventArena::new()) {
        Ok(event) => format!("parsed: {event:?}"),
        Err(error) => error.to_string(),
    }
}

pub(crate) fn keys(number: u8) -> KeyPair {
    let mut secret = [0; 32];
    secret[31] = number + 1;
    KeyPair::from_secret(secret).unwrap()
}

pub(crate) fn signed(number: u8, draft: EventDraft<'_>) -> String {
    let mut out = Vec::new();
    draft.sign(&keys(number), &mut out);
    String::from_utf8(out).unwrap()
}

/// Any text, with a high share of characters that need escapes or special care.
pub(crate) fn text() -> impl Strategy<Value = String> {
    let letter = prop_oneof![
        6 => prop::char::range(' ', '~'),
        2 => prop::char::range('\0', '\u{1f}'),
        1 => prop::sample::select(vec!['"', '\\', '/', '\u{7f}', '\u{2028}', '\u{ffff}', '🤙']),
        1 => any::<char>(),
    ];
    prop::collection::vec(letter, 0..40).prop_map(|letters| letters.into_iter().collect())
}

/// One of the spellings of `text` as a JSON string, selected by `choices`.
pub(crate) fn spell(text: &str, choices: &[u8]) -> String {
    let mut out = String::from("\"");
    for (n, letter) in text.chars().enumerate() {
        let choice = if choices.is_empty() { 0 } else { choices[n % choices.len()] };
        let must = letter < ' ' || letter == '"' || letter == '\\';
        let short = match letter {
            '\n' => "\\n",
            '"' => "\\\"",
            '\\' => "\\\\",
            '\r' => "\\r",
            '\t' => "\\t",
            '\u{8}' => "\\b",
            '\u{c}' => "\\f",
            '/' => "\\/",
            _ => "",
        };
        match choice % 5 {
            0 if !must => out.push(letter),
            1 if !short.is_empty() => out.push_str(short),
            2 | 3 => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    match choice % 5 {
                        2 => write!(out, "\\u{unit:04x}").unwrap(),
                        _ => write!(out, "\\u{unit:04X}").unwrap(),
                    }
                }
            }
            _ if !short.is_empty() && letter != '/' => out.push_str(short),
            _ if must => write!(out, "\\u{:04x}", letter as u32).unwrap(),
            _ => out.push(letter),
        }
    }
    out + "\""
}

/// Asserts that an event has the fields that `serde_json` reads.
pub(crate) fn assert_same(event: &Event<'_>, json: &str) {
    let value: Value = serde_json::from_str(json).unwrap();
    assert_eq!(event.content(), value["content"].as_str().unwrap());
    assert_eq!(event.created_at(), value["created_at"].as_u64().unwrap());
    assert_eq!(u64::from(event.kind()), value["kind"].as_u64().unwrap());
    let tags: Vec<Vec<&str>> = event.tags().map(|tag| tag.iter().collect()).collect();
    let expected: Vec<Vec<&str>> = value["tags"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tag| tag.as_array().unwrap().iter().map(|value| value.as_str().unwrap()).collect())
        .collect();
    assert_eq!(tags, expected);
}
