//! Events: fields, tags, ids, and all faults that make an event invalid.

use hark_codec::crypto::{SignatureVerifier, sha256};
use hark_codec::nostr::{CheckError, Event, EventArena, EventDraft, VerifiedEvent, canonical};
use proptest::prelude::*;

use crate::support::{
    assert_same, error_of, event_json, signed, spell, text, with_content, with_tags,
};

#[test]
fn refusals_say_what_is_wrong() {
    let good = with_tags("[]");
    let without = |field: &str| good.replacen(field, "other", 1);
    let number = |created_at: &str, kind: &str| event_json(created_at, kind, "[]", "\"\"");
    let table = [
        (String::new(), "event is not an object"),
        ("[]".into(), "event is not an object"),
        (format!("{good}x"), "something follows at byte"),
        (format!("{good},"), "something follows at byte"),
        (without("\"id\"").replace("other", "\"ID\""), "event has no id"),
        (without("sig"), "event has no sig"),
        (good.replacen('{', r#"{"kind":1,"#, 1), "event has more than one kind"),
        (good.replacen('{', r#"{"\u006bind":1,"#, 1), "event has more than one kind"),
        (good.replacen(":\"00", ":\"0A", 1), "id is not 64 lowercase hex digits"),
        (good.replacen(":\"00", ":\"0", 1), "id is not 64 lowercase hex digits"),
        (good.replacen(":\"00", ":\"000", 1), "id is not 64 lowercase hex digits"),
        (good.replacen(":\"00", ":\"\\u00300", 1), "id is not 64 lowercase hex digits"),
        (number("-1", "1"), "created_at is negative"),
        (number("1.0", "1"), "created_at is not written as a whole number"),
        (number("1e9", "1"), "created_at is not written as a whole number"),
        (number("\"1\"", "1"), "created_at is not a number"),
        (number("01", "1"), "created_at is not a number"),
        (number("9007199254740992", "1"), "created_at 9007199254740992 is above"),
        (number("99999999999999999999", "1"), "created_at is too large"),
        (number("1", "70000"), "kind 70000 is above 65535"),
        (number("1", "-1"), "kind is negative"),
        (number("1", "1.5"), "kind is not written as a whole number"),
        (number("1", "null"), "kind is not a number"),
        (with_tags("null"), "tags is not an array of arrays"),
        (with_tags("{}"), "tags is not an array of arrays"),
        (with_tags("[\"e\"]"), "tags is not an array of arrays"),
        (with_tags("[[\"e\"],[]]"), "tag 1 is empty"),
        (with_tags("[[\"e\",null]]"), "tag 0 holds something other than strings"),
        (with_tags("[[\"e\",1]]"), "tag 0 holds something other than strings"),
        (with_tags("[[\"e\",]]"), "tag 0 holds something other than strings"),
        (with_tags("[[\"e\"],]"), "tags is not an array of arrays"),
        (with_content("1"), "content is not a string"),
    ];
    for (json, expected) in table {
        let error = error_of(&json);
        assert!(!error.starts_with("parsed: ") && error.contains(expected), "{json}: {error}");
    }
    let mut bytes = good.into_bytes();
    bytes[3] = 0xff;
    let error = Event::parse(&bytes, &mut EventArena::new()).unwrap_err();
    assert_eq!(error.to_string(), "not valid UTF-8");
}

#[test]
fn limits_are_still_accepted() {
    for json in [
        event_json("0", "0", "[]", "\"\""),
        event_json("9007199254740991", "65535", "[[\"\"]]", "\"\""),
        format!(" \n{}\t\r ", with_tags("[ [ \"e\" , \"\" ] , [\"-\"] ]")),
    ] {
        let mut arena = EventArena::new();
        assert_same(&Event::parse(json.as_bytes(), &mut arena).unwrap(), &json);
    }
}

#[test]
fn tags_that_a_relay_acts_on() {
    let json = with_tags(
        r#"[["d"],["d","x"],["e"],["e","1","r"],["expiration","1700000001"],["-"],["title","T"],["title","U"],["é","v"],["\u0074","n\nl"],["tt","v"]]"#,
    );
    let mut arena = EventArena::new();
    let event = Event::parse(json.as_bytes(), &mut arena).unwrap();
    assert_eq!((event.d(), event.first_value("d")), ("", Some("x")));
    assert_eq!((event.first_value("title"), event.first_value("none")), (Some("T"), None));
    assert_eq!((event.expiration(), event.is_protected()), (Some(1_700_000_001), true));
    let labels: Vec<_> = event.labels().collect();
    assert_eq!(labels, [(b'd', "x"), (b'e', "1"), (b't', "n\nl")]);
    let tag = event.tags().nth(3).unwrap();
    assert_eq!((tag.name(), tag.len(), tag.get(2), tag.get(3)), ("e", 3, Some("r"), None));
    for odd in ["", "-1", "+1", "1.5", " 1", "99999999999999999999"] {
        let json = with_tags(&format!(r#"[["expiration","{odd}"]]"#));
        let mut arena = EventArena::new();
        assert_eq!(Event::parse(json.as_bytes(), &mut arena).unwrap().expiration(), None, "{odd}");
    }
}

#[test]
fn keys_can_be_left_out_of_the_values_of_tags() {
    let key = "0123456789abcdef".repeat(4);
    let upper = key.to_uppercase();
    let tags = format!(
        r#"[["p","{key}"],["{key}"],["e","{key}","{key}"],["{key}","x"],["t"],["a","{upper}"],["b","{key}0"],["c","{}"],["d",""]]"#,
        &key[1..]
    );
    let (longer, shorter) = (format!("{key}0"), &key[1..]);
    let others = ["x", &upper, &longer, shorter, ""];
    // With a space, the tags are read by other code.
    for tags in [tags.clone(), tags.replace("],[", "], [")] {
        let json = with_tags(&tags);
        let mut arena = EventArena::new();
        let event = Event::parse(json.as_bytes(), &mut arena).unwrap();
        let all: Vec<_> = event.tag_values(false).collect();
        assert_eq!(all, event.tags().filter_map(|tag| tag.value()).collect::<Vec<_>>());
        assert_eq!((&all[..2], &all[2..]), (&[&key[..]; 2][..], &others[..]));
        let mut some: Vec<_> = event.tag_values(true).collect();
        some.retain(|value| *value != key);
        assert_eq!(some, others);
    }
    let json = with_tags(&tags);
    let mut arena = EventArena::new();
    let event = Event::parse(json.as_bytes(), &mut arena).unwrap();
    assert_eq!(event.tag_values(true).collect::<Vec<_>>(), others);
}

#[test]
fn our_own_signed_vectors_hold() {
    let long = "lorem ipsum ".repeat(800);
    let contents = [
        "",
        "hello",
        "\n\"\\\r\t\u{8}\u{c}",
        "\0\u{1}\u{1f}",
        "\u{7f}\u{2028}\u{2029}/",
        "🤙 é 漢字",
        r#"{"name":"a","about":"b\nc"}"#,
        &long,
    ];
    let id = "0123456789abcdef".repeat(4);
    let tags: [&[&[&str]]; 3] = [
        &[],
        &[&["e", &id, "wss://relay.example/", "root"], &["p", &id], &["-"], &["t", "\u{1}\"tag\""]],
        &[&["d", ""], &["expiration", "1800000000"], &["emoji", "é", "🤙"]],
    ];
    let mut verifier = SignatureVerifier::new(4);
    let mut count = 0;
    for (n, content) in contents.into_iter().enumerate() {
        for (m, tags) in tags.into_iter().enumerate() {
            let draft =
                EventDraft { created_at: 1_700_000_000 + n as u64, kind: m as u16, tags, content };
            let json = signed(n as u8, draft);
            let mut arena = EventArena::new();
            let event = Event::parse(json.as_bytes(), &mut arena).unwrap();
            VerifiedEvent::check(event, &mut verifier).unwrap();
            let mut written = Vec::new();
            event.write_json(&mut written);
            assert_eq!(written, json.as_bytes());

            let later = json.replace("created_at\":17", "created_at\":18");
            let mut arena = EventArena::new();
            let event = Event::parse(later.as_bytes(), &mut arena).unwrap();
            let error = VerifiedEvent::check(event, &mut verifier).unwrap_err();
            assert_eq!(error, CheckError::Id);
            count += 1;
        }
    }
    assert_eq!(count, 24);
}

/// Other implementations compute ids as the hash of the output of `JSON.stringify`.
#[test]
fn canonical_bytes_are_those_of_json_stringify() {
    let json = event_json("5", "7", r#"[["a","\u0001\/"],["b"]]"#, r#""\u001F\u2028é""#);
    let mut arena = EventArena::new();
    let event = Event::parse(json.as_bytes(), &mut arena).unwrap();
    let mut out = Vec::new();
    canonical::write_canonical(&mut out, &event);
    let expected =
        format!("[0,\"{:064}\",5,7,[[\"a\",\"\\u0001/\"],[\"b\"]],\"\\u001f\u{2028}é\"]", 2);
    assert_eq!(String::from_utf8(out).unwrap(), expected);
    assert_eq!(event.compute_id(), sha256(expected.as_bytes()));
}

#[test]
fn cut_or_changed_bytes_never_panic() {
    let draft = EventDraft {
        created_at: 1_700_000_000,
        kind: 1,
        tags: &[&["e", "\u{1}\"x\""], &["t", "🤙"]],
        content: "a\n\u{2}é🤙",
    };
    let json = signed(0, draft).replace("🤙", "\\ud83e\\udd19").into_bytes();
    let mut arena = EventArena::new();
    for cut in 0..json.len() {
        assert!(Event::parse(&json[..cut], &mut arena).is_err(), "cut at {cut}");
    }
    for at in 0..json.len() {
        for byte in 0..=255 {
            let mut changed = json.clone();
            changed[at] = byte;
            if let Ok(event) = Event::parse(&changed, &mut arena) {
                let same = serde_json::from_slice::<serde_json::Value>(&changed).is_ok();
                assert!(same, "byte {byte:#x} at {at} is JSON to us only");
                let _ = (event.compute_id(), event.expiration(), event.d());
            }
        }
    }
}

proptest! {
    #[test]
    fn the_id_does_not_depend_on_the_spelling(
        tags in prop::collection::vec(prop::collection::vec(text(), 1..4), 0..4),
        content in text(),
        choices in prop::collection::vec(any::<u8>(), 0..9),
        space in prop::sample::select(vec!["", " ", "\n\t"]),
    ) {
        let list = |items: Vec<String>| format!("[{space}{}{space}]", items.join(&format!("{space},")));
        let spelled = |choices: &[u8]| {
            let spelled_tag = |tag: &Vec<String>| list(tag.iter().map(|v| spell(v, choices)).collect());
            let tags = list(tags.iter().map(spelled_tag).collect());
            event_json("1", "1", &tags, &spell(&content, choices))
        };
        let json = spelled(&choices);
        let mut arena = EventArena::new();
        let event = Event::parse(json.as_bytes(), &mut arena).unwrap();
        assert_same(&event, &json);

        // The expected JSON comes from serde_json, which writes as JSON.stringify does.
        let expected = serde_json::to_string(&(0, format!("{:064}", 2), 1, 1, &tags, &content)).unwrap();
        let mut canonical_bytes = Vec::new();
        canonical::write_canonical(&mut canonical_bytes, &event);
        prop_assert_eq!(String::from_utf8(canonical_bytes).unwrap(), expected.clone());
        prop_assert_eq!(event.compute_id(), sha256(expected.as_bytes()));

        // The written event is in canonical spelling. So it is read on the fast path, and written
        // again with the same bytes.
        let mut written = Vec::new();
        event.write_json(&mut written);
        let mut arena = EventArena::new();
        let again = Event::parse(&written, &mut arena).unwrap();
        prop_assert_eq!(again.compute_id(), event.compute_id());
        let mut twice = Vec::new();
        again.write_json(&mut twice);
        prop_assert_eq!(twice, written);
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Event::parse(&bytes, &mut EventArena::new());
    }
}
