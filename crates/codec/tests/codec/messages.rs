//! Client messages, and the event, subscription or comparison that an error names.

use hark_codec::nostr::{ClientMessage, MessageBuffers, RefusalSubject};
use proptest::prelude::*;

use crate::support::{with_content, with_tags};

/// Formats a message as one line of a table.
fn seen(bytes: &[u8], inbox: &mut MessageBuffers) -> String {
    match ClientMessage::parse(bytes, inbox) {
        Ok(ClientMessage::Event(event)) => format!("event {:?}", event.content()),
        Ok(ClientMessage::Auth(event)) => format!("auth {:?}", event.content()),
        Ok(ClientMessage::Req { sub, filters }) => format!("req {sub:?} {}", filters.len()),
        Ok(ClientMessage::Count { sub, filters }) => format!("count {sub:?} {}", filters.len()),
        Ok(ClientMessage::Close { sub }) => format!("close {sub:?}"),
        Ok(ClientMessage::NegOpen { sub, filter, message }) => {
            format!("neg-open {sub:?} {} {message}", filter.kinds().is_some())
        }
        Ok(ClientMessage::NegMsg { sub, message }) => format!("neg-msg {sub:?} {message}"),
        Ok(ClientMessage::NegClose { sub }) => format!("neg-close {sub:?}"),
        Err(error) => match error.about {
            RefusalSubject::Nothing => format!("NOTICE {error}"),
            RefusalSubject::Event(id) => format!("OK {} {error}", id[31]),
            RefusalSubject::Sub(sub) => format!("CLOSED {sub:?} {error}"),
            RefusalSubject::Neg(sub) => format!("NEG-ERR {sub:?} {error}"),
        },
    }
}

#[test]
fn every_message_and_every_refusal() {
    let event = with_content(r#""a\nb""#);
    let no_kind = event.replace("\"kind\"", "\"kin\"");
    let late_id =
        format!(r#"{{"kind":70000,"tags":[["a"]],{}"#, &event[1..].replacen("\"kind\":1,", "", 1));
    let long = "é".repeat(64);
    let table = [
        (format!(r#"["EVENT",{event}]"#), r#"event "a\nb""#.to_owned()),
        (format!(" [ \"EVENT\" , {event} ] "), r#"event "a\nb""#.into()),
        (format!(r#"["AUTH",{event}]"#), r#"auth "a\nb""#.into()),
        (r#"["REQ","s",{}]"#.into(), r#"req "s" 1"#.into()),
        (r#"["REQ", "a\"\u0062", {} , {"kinds":[1]},{}]"#.into(), r#"req "a\"b" 3"#.into()),
        (format!(r#"["REQ","{long}",{{}}]"#), format!("req {long:?} 1")),
        (r#"["COUNT","s",{},{}]"#.into(), r#"count "s" 2"#.into()),
        (r#"["CLOSE","s"]"#.into(), r#"close "s""#.into()),
        (r#"["NEG-OPEN","n",{"kinds":[1]},"61ff"]"#.into(), r#"neg-open "n" true 61ff"#.into()),
        (r#"["NEG-MSG","n",""]"#.into(), r#"neg-msg "n" "#.into()),
        (r#"["NEG-CLOSE","n"]"#.into(), r#"neg-close "n""#.into()),
        // Refused.
        (String::new(), "NOTICE message is not an array that begins with its type".into()),
        ("[]".into(), "NOTICE message is not an array that begins with its type".into()),
        (r#"["PING"]"#.into(), r#"NOTICE message type "PING""#.into()),
        (
            r#"["EVENT"]"#.into(),
            "NOTICE not valid JSON: a comma and another element expected at byte 8".into(),
        ),
        (r#"["EVENT",1]"#.into(), "NOTICE event is not an object".into()),
        (format!(r#"["EVENT",{no_kind}]"#), "OK 1 event has no kind".into()),
        (format!(r#"["AUTH",{no_kind}]"#), "OK 1 event has no kind".into()),
        (format!(r#"["EVENT",{late_id}]"#), "OK 1 kind 70000 is above 65535".into()),
        (
            format!(r#"["EVENT",{event},1]"#),
            "OK 1 not valid JSON: the end of the message expected".into(),
        ),
        (format!(r#"["EVENT","sub",{event}]"#), "NOTICE event is not an object".into()),
        (
            r#"["REQ"]"#.into(),
            "NOTICE not valid JSON: a comma and another element expected at byte 6".into(),
        ),
        (r#"["REQ",1,{}]"#.into(), "NOTICE subscription id is not a string".into()),
        (r#"["REQ","",{}]"#.into(), r#"CLOSED "" subscription id is empty"#.into()),
        (
            format!(r#"["REQ","{long}x",{{}}]"#),
            format!(r#"CLOSED "{long}x" subscription id is longer than 64 characters"#),
        ),
        (r#"["REQ","s"]"#.into(), r#"CLOSED "s" no filter"#.into()),
        (r#"["REQ","s",{},1]"#.into(), r#"CLOSED "s" filter is not an object"#.into()),
        (
            r#"["REQ","\"",{"ids":["x"]}]"#.into(),
            r#"CLOSED "\"" ids[0] is not 64 lowercase hex digits"#.into(),
        ),
        (r##"["COUNT","s",{"#tt":[]}]"##.into(), r##"CLOSED "s" filter element "#tt""##.into()),
        (r#"["REQ","s",{},{},{},{}]"#.into(), r#"CLOSED "s" more than 3 filters"#.into()),
        (r#"["REQ","s",{}]x"#.into(), r#"CLOSED "s" not valid JSON: something follows"#.into()),
        (
            r#"["CLOSE","s",1]"#.into(),
            r#"CLOSED "s" not valid JSON: the end of the message expected"#.into(),
        ),
        (
            r#"["NEG-OPEN","n",{},"6"]"#.into(),
            r#"NEG-ERR "n" comparison message is not lowercase hex"#.into(),
        ),
        (
            r#"["NEG-OPEN","n",{},16,"61"]"#.into(),
            r#"NEG-ERR "n" comparison message is not lowercase hex"#.into(),
        ),
        (
            r#"["NEG-MSG","n","AA"]"#.into(),
            r#"NEG-ERR "n" comparison message is not lowercase hex"#.into(),
        ),
    ];
    let mut inbox = MessageBuffers::new(3);
    for (json, expected) in table {
        let got = seen(json.as_bytes(), &mut inbox);

        assert!(got.starts_with(&expected), "{json}\n got      {got}\n expected {expected}");
    }
    assert!(seen(b"[\"REQ\",\"\xff\"]", &mut inbox).contains("not valid UTF-8"));
}

/// Values beyond the bound are not read, so their faults are not found.
#[test]
fn a_filter_with_too_many_values_is_refused_before_the_others_are_read() {
    let mut inbox = MessageBuffers::new(3).with_values_max(4);
    let key = "0".repeat(64);
    let refused = r#"CLOSED "s" a filter has more than 4 values, including repeated values"#;
    for (filters, expected) in [
        (r#"{"kinds":[1,2,3,4]}"#.to_owned(), r#"req "s" 1"#),
        (r#"{"kinds":[1,2,3,4]},{"kinds":[5,6,7,8]}"#.into(), r#"req "s" 2"#),
        (r#"{"kinds":[1,1,1,1,-1]}"#.into(), refused),
        (r##"{"#t":["a","b","c","d",1]}"##.into(), refused),
        (r##"{"#t":["a","b"],"&t":["a","b",1]}"##.into(), refused),
        (format!(r#"{{"authors":["{key}","{key}"],"ids":["{key}","{key}","x"]}}"#), refused),
        (r#"{},{"kinds":[1,2,3],"ids":[],"since":1,"foo":[4,5]}"#.into(), "CLOSED \"s\" filter el"),
    ] {
        let got = seen(format!(r#"["REQ","s",{filters}]"#).as_bytes(), &mut inbox);
        assert!(got.starts_with(expected), "{filters}\n got      {got}");
    }
}

#[test]
fn cut_or_changed_bytes_never_panic() {
    let event = with_tags(r#"[["t","\ud83e\udd19"]]"#);
    let messages = [
        format!(r#"["EVENT",{event}]"#),
        r##"["REQ","a\"b",{"kinds":[1],"#t":["x\n"]},{"limit":1}]"##.into(),
        r#"["NEG-OPEN","n",{"since":1},"61ff"]"#.into(),
        r#"["CLOSE","s"]"#.into(),
    ];
    let mut inbox = MessageBuffers::new(8);
    for message in messages {
        let bytes = message.into_bytes();
        for cut in 0..bytes.len() {
            assert!(ClientMessage::parse(&bytes[..cut], &mut inbox).is_err(), "cut at {cut}");
        }
        for at in 0..bytes.len() {
            for byte in 0..=255 {
                let mut changed = bytes.clone();
                changed[at] = byte;
                seen(&changed, &mut inbox);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_never_panic(
        start in prop::sample::select(vec!["", "[", "[\"EVENT\",{", "[\"REQ\",\"s\",{", "[\"NEG-OPEN\",\""]),
        rest in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        seen(&[start.as_bytes(), &rest].concat(), &mut MessageBuffers::new(8));
    }
}
