//! The fixture of every archive of the suite: some records of each network, the same in every run.

use std::fmt::Write as _;

use hark_codec::waku::Shard;
use hark_codec::whisper::keys::SecretKey;
use hark_codec::whisper::{Envelope, Topic};
use hark_testkit::digits::digits;
use hark_testkit::nostr::{event_json, pubkey};
use serde_json::{Value, json};

/// The time of the first event, in s.
pub(crate) const FIRST_S: u64 = 1_700_000_000;
/// The latest time of the fixture's records. All other records are newer.
pub(crate) const LAST_S: u64 = FIRST_S + 999;
/// The recipient of the private events.
pub(crate) const READER: u8 = 9;
/// Topics of envelopes.
pub(crate) const TOPICS: [Topic; 2] = [[0x5c, 0x6c, 0x9b, 0x56], [8, 9, 10, 0]];
/// Content topics of messages.
pub(crate) const CONTENT_TOPICS: [&str; 2] = ["/assembly/1/chat/proto", "/assembly/1/talk/proto"];
const ENVELOPES: u32 = 30;

pub(crate) fn id(event: &str) -> String {
    let event: Value = serde_json::from_str(event).expect("JSON");
    event["id"].as_str().expect("an id").to_owned()
}

/// Events: notes, profiles, an article, reactions, a deletion, and two private events.
pub(crate) fn events() -> Vec<String> {
    let mut events = Vec::new();
    for n in 0..40u64 {
        let (who, topic) = ((n % 4 + 1) as u8, ["bread", "salt", "w\"eird\\"][(n % 3) as usize]);
        let text = format!("note {n} about {topic} {}", "and more ".repeat((n % 7) as usize));
        events.push(event_json(who, FIRST_S + n / 2, 1, &[&["t", topic]], &text));
    }
    for who in 1..5u8 {
        let at = FIRST_S + 50 + u64::from(who);
        let name = format!("{{\"name\":\"baker {who}\"}}");
        events.push(event_json(who, at, 0, &[], &name));
        events.push(event_json(who, at, 3, &[&["p", &pubkey(who + 1)]], ""));
        let noted = id(&events[usize::from(who)]);
        events.push(event_json(who, at + 10, 7, &[&["e", &noted], &["p", &pubkey(who)]], "+"));
    }
    let article: [&[&str]; 2] = [&["d", "rye"], &["title", "On rye bread"]];
    events.push(event_json(1, FIRST_S + 70, 30_023, &article, "It is dark."));
    let deleted = id(&events[3]);
    events.push(event_json(4, FIRST_S + 80, 5, &[&["e", &deleted], &["k", "1"]], "a mistake"));
    let reader = pubkey(READER);
    events.push(event_json(5, FIRST_S + 90, 1_059, &[&["p", &reader]], "sealed"));
    events.push(event_json(6, FIRST_S + 91, 4, &[&["p", &reader]], "a message?iv=a"));
    events
}

/// Messages, as lines of an import.
pub(crate) fn messages() -> String {
    (0..30u64).fold(String::new(), |mut lines, n| {
        let topic = CONTENT_TOPICS[(n % 2) as usize];
        let at = (FIRST_S + n / 3) * 1_000_000_000;
        let _ = writeln!(lines, "{}", kept(topic, at, &format!("message {n}")));
        lines
    })
}

/// A message with its shard, as a line of an import.
pub(crate) fn kept(content_topic: &str, at_ns: u64, payload: &str) -> Value {
    let topic = Shard::of(content_topic, 1, 8).expect("a topic").to_string();
    json!({ "pubsubTopic": topic, "message": message(content_topic, at_ns, payload) })
}

/// A message of nwaku's REST interface.
pub(crate) fn message(content_topic: &str, at_ns: u64, payload: &str) -> Value {
    let payload = base64_simd::STANDARD.encode_to_string(payload);
    json!({ "payload": payload, "contentTopic": content_topic, "timestamp": at_ns })
}

/// Calls `with` for each envelope.
pub(crate) fn each_envelope(mut with: impl FnMut(&Envelope<'_>)) {
    for n in 0..ENVELOPES {
        let data = vec![n as u8; 40 + n as usize];
        let topic = TOPICS[n as usize % 2];
        let expiry = FIRST_S as u32 + n / 2 + 50;
        with(&Envelope { expiry, ttl: 50, topic, data: &data, nonce: n.into() });
    }
}

/// Envelopes, as lines of an import.
pub(crate) fn envelopes() -> String {
    let mut lines = String::new();
    each_envelope(|of| {
        let line = json!({
            "expiry": of.expiry, "ttl": of.ttl, "topic": digits(&of.topic),
            "data": digits(of.data), "nonce": of.nonce,
        });
        let _ = writeln!(lines, "{line}");
    });
    lines
}

/// An envelope that was sent at the time `sent`, as RLP.
pub(crate) fn envelope(sent: u64, data: &[u8]) -> Vec<u8> {
    let mut rlp = Vec::new();
    let expiry = sent as u32 + 100;
    Envelope { expiry, ttl: 100, topic: TOPICS[0], data, nonce: 7 }.write(&mut rlp);
    rlp
}

/// The key of a mail server that may fetch all envelopes.
pub(crate) fn trusted() -> SecretKey {
    SecretKey::new([7; 32]).expect("a key")
}
