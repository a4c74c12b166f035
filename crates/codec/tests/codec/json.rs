//! Strings in every spelling, and invalid JSON.

use hark_codec::nostr::{Event, EventArena, Filter, json};
use proptest::prelude::*;

use crate::support::{assert_same, error_of, spell, text, with_content, with_tags};

#[test]
fn strings_are_read_and_rewritten_in_one_spelling() {
    let table = [
        (r#""""#, r#""""#),
        (r#""plain""#, r#""plain""#),
        (r#""\n\"\\\r\t\b\f""#, r#""\n\"\\\r\t\b\f""#),
        (r#""a\/b\u0041\u002F""#, r#""a/bA/""#),
        (r#""\u000a\u0022\u005C\u0008""#, r#""\n\"\\\b""#),
        (r#""\u0000\u001F\u001f\u000b""#, r#""\u0000\u001f\u001f\u000b""#),
        (r#""\u007f\u2028\uFFFF\u00e9""#, "\"\u{7f}\u{2028}\u{ffff}é\""),
        (r#""\ud83e\udd19🤙""#, r#""🤙🤙""#),
    ];
    for (input, expected) in table {
        let json = with_content(input);
        let mut arena = EventArena::new();
        let event = Event::parse(json.as_bytes(), &mut arena).unwrap();
        assert_same(&event, &json);
        let mut out = Vec::new();
        event.write_json(&mut out);
        assert_eq!(String::from_utf8(out).unwrap(), with_content(expected), "{input}");
    }
}

#[test]
fn what_is_no_json_is_refused_by_name() {
    let table = [
        ("\"\n\"", "control character in a string"),
        ("\"\0\"", "control character in a string"),
        (r#""\x41""#, "unknown escape"),
        (r#""\u12""#, "unknown escape"),
        (r#""\u+123""#, "unknown escape"),
        (r#""\u00g0""#, "unknown escape"),
        (r#""\ud83e""#, "half of a surrogate pair"),
        (r#""\ud83e\n""#, "half of a surrogate pair"),
        (r#""\ud83e\u0041""#, "half of a surrogate pair"),
        (r#""\udd19\ud83e""#, "half of a surrogate pair"),
        ("null", "content is not a string"),
        ("'a'", "content is not a string"),
        ("\"a\" \"b\"", "a comma or the closing bracket expected"),
    ];
    for (input, expected) in table {
        let error = error_of(&with_content(input));
        assert!(!error.starts_with("parsed: ") && error.contains(expected), "{input:?}: {error}");
    }
}

#[test]
fn unknown_fields_are_skipped_but_must_be_json() {
    let with_extra = |extra: &str| with_tags("[]").replacen('{', &format!("{{{extra},"), 1);
    let nested = |depth: usize| format!("\"x\":{}1{}", "[".repeat(depth), "]".repeat(depth));
    let good = [
        r#""x":null"#,
        r#""x":[1,-2.5e+3,true,{"a":{},"b":[[]]},"\u0041"]"#,
        r#""\u0000":0"#,
        &nested(32),
    ];
    for extra in good {
        let json = with_extra(extra);
        let mut out = Vec::new();
        Event::parse(json.as_bytes(), &mut EventArena::new()).unwrap().write_json(&mut out);
        assert_eq!(out, with_tags("[]").as_bytes(), "unknown fields are not written: {extra}");
    }
    let bad = [
        r#""x":"#,
        r#""x":01"#,
        r#""x":1."#,
        r#""x":-"#,
        r#""x":nul"#,
        r#""x":[1,]"#,
        r#""x":{"a"}"#,
        r#""x" 1"#,
        r#""x":NaN"#,
        &nested(33),
        &nested(100_000),
    ];
    for extra in bad {
        let error = error_of(&with_extra(extra));
        assert!(!error.starts_with("parsed: "), "{error}");
    }
}

proptest! {
    #[test]
    fn any_spelling_reads_as_serde_reads_it(text in text(), choices in prop::collection::vec(any::<u8>(), 0..9)) {
        let json = with_content(&spell(&text, &choices));
        let mut arena = EventArena::new();
        let event = Event::parse(json.as_bytes(), &mut arena).unwrap();
        prop_assert_eq!(event.content(), &text);
        assert_same(&event, &json);
    }

    #[test]
    fn what_is_written_reads_as_it_was(text in text()) {
        let mut out = Vec::new();
        json::write_string(&mut out, &text);
        prop_assert_eq!(&serde_json::from_slice::<String>(&out).unwrap(), &text);
        // serde_json escapes like JSON.stringify, whose output clients hash.
        prop_assert_eq!(&out, &serde_json::to_vec(&text).unwrap());
    }

    #[test]
    fn numbers_of_any_length_are_read_and_written(value: u64, shift in 0u32..64, more in 0usize..30) {
        let value = value >> shift;
        let mut out = Vec::new();
        json::write_u64(&mut out, value);
        prop_assert_eq!(&out, &value.to_string().into_bytes());
        // A number that does not fit is refused and never read as another number; 07 is not valid
        // JSON.
        let digits = format!("{value}{}", "7".repeat(more));
        let expected = digits.parse::<u64>().ok().filter(|_| value > 0 || more == 0);
        let mut filter = Filter::default();
        let read = filter.parse(format!("{{\"until\":{digits}}}").as_bytes());
        prop_assert_eq!(read.is_ok(), expected.is_some());
        if expected.is_some() {
            out.clear();
            filter.write_json(&mut out);
            prop_assert_eq!(out, format!("{{\"until\":{digits}}}").into_bytes());
        }
    }

    #[test]
    fn accepts_no_string_that_serde_refuses(bytes in prop::collection::vec(
        prop_oneof![4 => prop::sample::select(b"\\u0aDd8\"ntx/ \n".to_vec()), 1 => any::<u8>()], 0..20,
    )) {
        let mut json = with_content("").into_bytes();
        let at = json.windows(9).position(|part| part == b"content\":").unwrap() + 9;
        json.splice(at..at, [&b"\""[..], &bytes, b"\""].concat());
        let mut arena = EventArena::new();
        let ours = Event::parse(&json, &mut arena).ok().map(|event| event.content().to_owned());
        let theirs = serde_json::from_slice::<serde_json::Value>(&json);
        let theirs = theirs.ok().and_then(|value| Some(value["content"].as_str()?.to_owned()));
        // Our parser also refuses duplicate fields, but the random bytes practically never form
        // such a field.
        prop_assert_eq!(ours, theirs);
    }
}
