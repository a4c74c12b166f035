//! Filters: how they are read and written, which events they match, and why they are refused.

use hark_codec::nostr::{Event, EventArena, EventEncoder, Filter, TagValues};
use hark_codec::record::Record;
use proptest::prelude::*;

use crate::support::{event_json, spell, text};

fn written(filter: &Filter) -> String {
    let mut out = Vec::new();
    filter.write_json(&mut out);
    String::from_utf8(out).unwrap()
}

fn parsed(json: &str) -> Filter {
    let mut filter = Filter::default();
    filter.parse(json.as_bytes()).unwrap_or_else(|error| panic!("{json}: {error}"));
    filter
}

#[test]
fn one_way_to_write_each_question() {
    let (low, high) = ("0".repeat(64), "f".repeat(64));
    let table = [
        ("{}".to_owned(), "{}".to_owned()),
        (" { } ".into(), "{}".into()),
        (r#"{"ids":[]}"#.into(), r#"{"ids":[]}"#.into()),
        (r##"{"#t":[],"kinds":[]}"##.into(), r##"{"kinds":[],"#t":[]}"##.into()),
        (r#"{"kinds":[3,1,3,0,65535]}"#.into(), r#"{"kinds":[0,1,3,65535]}"#.into()),
        (
            format!(
                r#"{{"limit":0,"authors":["{high}","{low}","{high}"],"since":5,"until":18446744073709551615}}"#
            ),
            format!(
                r#"{{"authors":["{low}","{high}"],"since":5,"until":18446744073709551615,"limit":0}}"#
            ),
        ),
        (
            r##"{"#t":["b","\u0061","a","\"",""],"#T":["x"],"search":"a \n b","\u0069ds":[]}"##
                .into(),
            r##"{"ids":[],"#T":["x"],"#t":["","\"","a","b"],"search":"a \n b"}"##.into(),
        ),
    ];
    for (input, expected) in table {
        let filter = parsed(&input);
        assert_eq!(written(&filter), expected, "{input}");
        assert_eq!(written(&parsed(&expected)), expected);
    }
}

#[test]
fn absent_and_empty_are_not_the_same() {
    let filter = parsed("{}");
    assert!(filter.ids().is_none() && filter.tag(b'e').is_none() && !filter.matches_nothing());
    for nothing in
        [r#"{"ids":[]}"#, r#"{"kinds":[]}"#, r##"{"#x":[]}"##, r#"{"since":2,"until":1}"#]
    {
        assert!(parsed(nothing).matches_nothing(), "{nothing}");
    }
    let mut reused = parsed(r#"{"ids":[],"kinds":[1],"search":"x","limit":1}"#);
    reused.parse(b"{}").unwrap();
    assert_eq!(written(&reused), "{}");
}

#[test]
fn a_value_that_must_be_there_is_none_of_several() {
    for (json, expected) in [
        (r##"{"#t":["c","a","b"],"&t":["b","b","x"]}"##, r##"{"#t":["a","c"],"&t":["b","x"]}"##),
        (r##"{"&t":["b","a"],"#t":["a","b"]}"##, r#"{"&t":["a","b"]}"#),
        (r##"{"&t":["a"],"#T":["a"]}"##, r##"{"#T":["a"],"&t":["a"]}"##),
        (r##"{"&t":[],"#t":["a"],"&a":["1"]}"##, r##"{"&a":["1"],"#t":["a"],"&t":[]}"##),
        (r##"{"&t":["a"],"#t":[]}"##, r##"{"#t":[],"&t":["a"]}"##),
    ] {
        assert_eq!(written(&parsed(json)), expected);
        assert_eq!(written(&parsed(expected)), expected);
    }
    let filter = parsed(r##"{"&t":["b","a"],"#p":[],"&e":[]}"##);
    let names = |tags: Vec<(u8, TagValues<'_>)>| -> Vec<(u8, usize)> {
        tags.iter().map(|(name, values)| (*name, values.len())).collect()
    };
    assert_eq!(names(filter.tags().collect()), [(b'p', 0)]);
    assert_eq!(names(filter.and_tags().collect()), [(b'e', 0), (b't', 2)]);
}

#[test]
fn refusals_say_what_is_wrong() {
    let good = "0".repeat(64);
    let table = [
        ("[]", "filter is not an object"),
        ("{} {}", "not valid JSON"),
        (r#"{"ids":null}"#, "ids is not an array"),
        (r#"{"authors":["00"]}"#, "authors[0] is not 64 lowercase hex digits"),
        (r##"{"#e":["x"]}"##, "#e[0] is not 64 lowercase hex digits"),
        (&format!(r##"{{"#p":["{good}",""]}}"##), "#p[1] is not 64 lowercase hex digits"),
        (&format!(r##"{{"#p":["{good}",1]}}"##), "#p[1] is not 64 lowercase hex digits"),
        (r#"{"kinds":[70000]}"#, "kind 70000 is above 65535"),
        (r#"{"kinds":["1"]}"#, "kinds is not a number"),
        (r#"{"since":-1}"#, "since is negative"),
        (r#"{"until":1.5}"#, "until is not written as a whole number"),
        (r#"{"limit":1e3}"#, "limit is not written as a whole number"),
        (r#"{"limit":99999999999999999999}"#, "limit is too large"),
        (r#"{"search":1}"#, "search holds something other than strings"),
        (r##"{"#t":[1]}"##, "#t holds something other than strings"),
        (r##"{"#t":["a"],"#t":["b"]}"##, "filter has more than one #t"),
        (r#"{"kinds":[1],"kinds":[1]}"#, "filter has more than one kinds"),
        (r##"{"#emoji":["a"]}"##, "filter element \"#emoji\""),
        (r##"{"#1":["a"]}"##, "filter element \"#1\""),
        (r##"{"#":["a"]}"##, "filter element \"#\""),
        (r#"{"&t":["a"],"&t":["b"]}"#, "filter has more than one &t"),
        (r#"{"&e":["x"]}"#, "&e[0] is not 64 lowercase hex digits"),
        (r#"{"&tt":["a"]}"#, "filter element \"&tt\""),
        (r#"{"foo":1}"#, "filter element \"foo\""),
    ];
    for (json, expected) in table {
        let error = Filter::default().parse(json.as_bytes()).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{json}: {error}");
        assert_eq!(error.is_unsupported(), expected.starts_with("filter element"));
    }
}

#[test]
fn matching_looks_at_first_values_of_single_letter_tags() {
    let (author, id) = (format!("{:064}", 2), format!("{:064}", 1));
    let json = event_json("100", "7", r#"[["t","a","b"],["t","\"c"],["title","x"],["e"]]"#, "\"\"");
    let mut arena = EventArena::new();
    let event = Event::parse(json.as_bytes(), &mut arena).unwrap();
    let mut bytes = Vec::new();
    EventEncoder::default().encode(&event, &[(1, b"a")], &mut bytes);
    let record = Record::new(&bytes).unwrap();
    let table = [
        ("{}".to_owned(), true),
        (format!(r#"{{"ids":["{id}"],"authors":["{author}"],"kinds":[1,7]}}"#), true),
        (format!(r#"{{"ids":["{author}"]}}"#), false),
        (format!(r#"{{"authors":["{id}"]}}"#), false),
        (r#"{"kinds":[1,8]}"#.into(), false),
        (r#"{"since":100,"until":100}"#.into(), true),
        (r#"{"since":101}"#.into(), false),
        (r#"{"until":99}"#.into(), false),
        (r##"{"#t":["a"]}"##.into(), true),
        (r##"{"#t":["b"]}"##.into(), false),
        (r##"{"#t":["b","\"c"]}"##.into(), true),
        (r##"{"#t":["a"],"#T":["a"]}"##.into(), false),
        (r##"{"#e":[]}"##.into(), false),
        (r#"{"&t":["a","\"c"]}"#.into(), true),
        (r#"{"&t":["a","b"]}"#.into(), false),
        (r#"{"&t":["a"],"&T":["a"]}"#.into(), false),
        (r##"{"&t":["a"],"#t":["a"]}"##.into(), true),
        (r##"{"&t":["a"],"#t":["a","b"]}"##.into(), false),
        (r##"{"&t":["a"],"#t":["a","\"c"]}"##.into(), true),
        (r##"{"&t":["a"],"#t":[]}"##.into(), false),
        (r#"{"&t":[]}"#.into(), true),
        (r#"{"ids":[]}"#.into(), false),
        (r#"{"limit":0,"search":"nowhere"}"#.into(), true),
    ];
    for (json, expected) in table {
        let filter = parsed(&json);
        assert_eq!(filter.matches(&event), expected, "{json}");
        assert_eq!(filter.matches_record(&record), expected, "{json}, by the record");
    }
}

#[test]
fn cut_or_changed_bytes_never_panic() {
    let id = "0".repeat(64);
    let json = format!(
        r##"{{"ids":["{id}"],"kinds":[1,2],"#e":["{id}"],"#t":["a\n","\ud83e\udd19"],"since":1,"search":"x"}}"##
    )
    .into_bytes();
    let mut filter = Filter::default();
    filter.parse(&json).unwrap();
    for cut in 0..json.len() {
        assert!(filter.parse(&json[..cut]).is_err(), "cut at {cut}");
    }
    for at in 0..json.len() {
        for byte in 0..=255 {
            let mut changed = json.clone();
            changed[at] = byte;
            if filter.parse(&changed).is_ok() {
                written(&filter);
            }
        }
    }
}

proptest! {
    #[test]
    fn values_are_read_as_serde_reads_them(
        values in prop::collection::vec(text(), 0..6),
        choices in prop::collection::vec(any::<u8>(), 0..9),
    ) {
        let spelled: Vec<String> = values.iter().map(|value| spell(value, &choices)).collect();
        let filter = parsed(&format!("{{\"#x\":[{}]}}", spelled.join(" , ")));
        let mut expected = values.clone();
        expected.sort();
        expected.dedup();
        let got: Vec<&str> = filter.tag(b'x').unwrap().iter().collect();
        prop_assert_eq!(&got, &expected);
        let value: serde_json::Value = serde_json::from_str(&written(&filter)).unwrap();
        prop_assert_eq!(value["#x"].clone(), serde_json::json!(expected));
        for value in &values {
            prop_assert!(filter.tag(b'x').unwrap().contains(value));
        }
    }
}
