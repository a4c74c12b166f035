//! The single messages for measuring a codec. The messages are the same in every run.

use hark_codec::crypto::{KeyPair, sha256};
use hark_codec::hex;
use hark_codec::nostr::EventDraft;

/// A case of the benchmark: a single message, or many events of a mix. The report has a row for
/// each operation on the messages of a case.
pub struct CodecCase {
    /// The name in the table.
    pub name: String,
    /// Events or filters.
    pub what: CodecSampleKind,
    /// The messages. A figure is the mean of all of these messages.
    pub samples: Vec<CodecSample>,
}

/// One message.
pub struct CodecSample {
    /// The name in tables and errors.
    pub name: String,
    /// The message as JSON, in the spelling that Hark writes.
    pub json: Vec<u8>,
    /// The event in another spelling, so that no part can be copied unchanged. Empty for filters.
    pub respelled: Vec<u8>,
}

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecSampleKind {
    /// A signed event.
    Event,
    /// A filter, which is matched against the small note.
    Filter,
}

impl CodecSample {
    /// Makes a sample of an event that is in the spelling that Hark writes.
    pub(super) fn of_event(name: impl Into<String>, json: Vec<u8>) -> Self {
        let respelled = respell(&json);
        Self { name: name.into(), json, respelled }
    }
}

/// Returns a case for each message, the small note first.
pub(super) fn all() -> Vec<CodecCase> {
    let single = |what| {
        move |sample: CodecSample| CodecCase {
            name: sample.name.clone(),
            what,
            samples: vec![sample],
        }
    };
    let events = [note(), profile(), follow_list(), article(), tagged()];
    let authors: Vec<String> = (0..200).map(|n| format!("\"{}\"", key(n))).collect();
    let home = format!(r#"{{"authors":[{}],"kinds":[1,6,30023],"limit":50}}"#, authors.join(","));
    let thread = format!(r##"{{"#e":[{}],"limit":20}}"##, authors[..75].join(","));
    let filters = [filter("home of 200 authors", home), filter("thread of 75 ids", thread)];
    let events = events.into_iter().map(single(CodecSampleKind::Event));
    events.chain(filters.into_iter().map(single(CodecSampleKind::Filter))).collect()
}

/// Makes the small note, a reply in a thread.
pub fn note() -> CodecSample {
    let (root, reply, author) = (key(1), key(2), key(3));
    let tags: &[&[&str]] = &[
        &["e", &root, "wss://relay.example/", "root"],
        &["e", &reply, "wss://relay.example/", "reply"],
        &["p", &author],
    ];
    let text = "just setting up my relay, it keeps all of the history and gives it back. 🤙";
    event("small note", 1, tags, text)
}

/// Makes a profile. The content of a profile is JSON, so half of the event's quotes are escaped.
fn profile() -> CodecSample {
    let content = r#"{"name":"hark","about":"listens now,\nharks back later","picture":"https://example.org/a.png","nip05":"_@example.org","lud16":"a@example.org","website":"https://example.org/"}"#;
    event("escaped profile", 0, &[], content)
}

/// Makes a follow list of 500 people.
pub fn follow_list() -> CodecSample {
    let people: Vec<String> = (0..500).map(key).collect();
    let tags: Vec<[&str; 2]> = people.iter().map(|person| ["p", person.as_str()]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
    event("500-tag follow list", 3, &tags, "")
}

fn article() -> CodecSample {
    let line =
        "A line of a long text, now and then with a \"quoted\" word, as people write them.\n";
    let tags: &[&[&str]] = &[&["d", "listening"], &["title", "On listening"], &["t", "relays"]];
    event("8 KB article", 30_023, tags, &format!("# On listening\n\n{}", line.repeat(89)))
}

/// Makes an event with many tags, each with a relay's address.
fn tagged() -> CodecSample {
    let people: Vec<String> = (0..20).map(key).collect();
    let tags: Vec<[&str; 3]> =
        people.iter().map(|person| ["p", person.as_str(), "wss://relay.example/"]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
    let text = "All of these people have been here, and this is what they have said. ";
    event("4 KB event, 20 tags", 1, &tags, &text.repeat(25))
}

/// Makes 64 hex digits that look random.
fn key(n: u32) -> String {
    let digits = hex::encode_32(&sha256(&n.to_le_bytes()));
    String::from_utf8_lossy(&digits).into_owned()
}

fn event(name: &str, kind: u16, tags: &[&[&str]], content: &str) -> CodecSample {
    let keys = KeyPair::from_secret([7; 32]).expect("a secret key");
    let mut json = Vec::new();
    EventDraft { created_at: 1_700_000_000, kind, tags, content }.sign(&keys, &mut json);
    CodecSample::of_event(name, json)
}

/// Adds white space to the tags, and writes the content's first `o` as an unnecessary escape.
fn respell(json: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(json).replace(r#""tags":["#, r#""tags":[ "#);
    let (front, content) = text.split_once(r#""content":"#).unwrap_or((&text, ""));
    // No JSON escape contains an o, and neither does any field after the content.
    let content = content.replacen('o', r"\u006f", 1);
    format!(r#"{front}"content":{content}"#).into_bytes()
}

fn filter(name: &str, json: String) -> CodecSample {
    CodecSample { name: name.into(), json: json.into_bytes(), respelled: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hark_codec::nostr::{Event, EventArena, Filter};

    #[test]
    fn every_message_is_what_its_name_says_in_both_spellings() {
        for case in all() {
            let [CodecSample { name, json, respelled }] = &case.samples[..] else {
                panic!("{}: not a single message", case.name)
            };
            if case.what == CodecSampleKind::Filter {
                Filter::default().parse(json).unwrap();
                continue;
            }
            let (mut arena, mut other) = (EventArena::new(), EventArena::new());
            let event = Event::parse(json, &mut arena).unwrap();
            let same = Event::parse(respelled, &mut other).unwrap();
            assert!(event.has_valid_id() && same.has_valid_id(), "{name}");
            assert_ne!(json, respelled, "{name}");
            let (mut written, mut rewritten) = (Vec::new(), Vec::new());
            event.write_json(&mut written);
            same.write_json(&mut rewritten);
            assert!(written == *json && rewritten == *json, "{name}");
        }
        let sizes: Vec<usize> = all().iter().map(|case| case.samples[0].json.len()).collect();
        assert!(sizes[0].abs_diff(700) < 50 && sizes[3].abs_diff(8_192) < 400, "{sizes:?}");
        assert!(sizes[4].abs_diff(4_096) < 200, "{sizes:?}");
    }
}
