//! Events as records: labels, JSON and back.

use hark_codec::nostr::{Event, EventArena, EventEncoder, EventRecord, binary::LABEL_LEN_MAX};
use hark_codec::record::Record;
use proptest::prelude::*;

use crate::support::{event_json, spell, text, with_tags};

fn encoded(json: &str, private: &[(u8, &[u8])]) -> Vec<u8> {
    let mut arena = EventArena::new();
    let event = Event::parse(json.as_bytes(), &mut arena).unwrap();
    let mut out = Vec::new();
    EventEncoder::default().encode(&event, private, &mut out);
    let record = Record::new(&out).unwrap();
    record.check().unwrap();

    let mut written = Vec::new();
    event.write_json(&mut written);
    assert_eq!(record.wire(), written);
    let mut labels: Vec<_> = record.labels().collect();
    let mut expected: Vec<(u8, &[u8])> = event
        .labels()
        .filter(|(_, value)| value.len() <= LABEL_LEN_MAX)
        .map(|(letter, value)| (letter, value.as_bytes()))
        .chain(private.iter().copied())
        .collect();
    labels.sort_unstable();
    expected.sort_unstable();
    assert_eq!(labels, expected);

    let view = EventRecord::new(record).unwrap();
    assert_eq!((view.id(), view.pubkey()), (event.id(), event.pubkey()));
    assert_eq!((view.created_at(), view.kind()), (event.created_at(), event.kind()));
    assert_eq!((view.expires(), view.json()), (event.expiration(), &written[..]));
    out
}

#[test]
fn labels_lie_in_the_json_where_they_can() {
    let json = with_tags(
        r#"[["e","abc","x"],["t","a\nb"],["p","a\/b"],["name","v"],["d",""],["q"],["expiration","9"]]"#,
    );
    let with_label = encoded(&json, &[(0, b"secret"), (31, b"")]);
    let wire = Record::new(&with_label).unwrap().wire().len();
    // The header has 54 + 40 bytes. Each of the event's 4 labels and the 2 private labels has 3
    // bytes, or 4 if its `gap` is above 127. Only values that the wire does not contain follow the
    // wire.
    let behind = "a\nb".len() + "secret".len();
    assert!(with_label.len() <= 94 + 6 * 4 + wire + behind, "{} bytes", with_label.len());
    let labels: Vec<_> = Record::new(&with_label).unwrap().labels().collect();
    let expected: [(u8, &[u8]); 6] =
        [(b'e', b"abc"), (b'p', b"a/b"), (b'd', b""), (b't', b"a\nb"), (0, b"secret"), (31, b"")];
    assert_eq!(labels, expected);
}

#[test]
fn long_values_are_labels_up_to_the_cap() {
    for len in [1_024, 1_025, LABEL_LEN_MAX, LABEL_LEN_MAX + 1] {
        for front in ["", "\\n"] {
            let value = "v".repeat(len - front.len() / 2);
            let bytes = encoded(&with_tags(&format!(r#"[["t","{front}{value}"],["e","x"]]"#)), &[]);
            let labels = Record::new(&bytes).unwrap().labels().count();
            assert_eq!(labels, if len <= LABEL_LEN_MAX { 2 } else { 1 }, "{len} bytes");
        }
    }
}

proptest! {
    #[test]
    fn any_tags_in_any_spelling(
        tags in prop::collection::vec(
            (prop::sample::select(vec!["e", "t", "Z", "1", "tt", ""]), prop::collection::vec(text(), 0..3)), 0..8,
        ),
        choices in prop::collection::vec(any::<u8>(), 0..9),
        space in prop::sample::select(vec!["", " "]),
    ) {
        let tags: Vec<String> = tags
            .iter()
            .map(|(name, values)| {
                let strings = std::iter::once(*name).chain(values.iter().map(String::as_str));
                let strings: Vec<_> = strings.map(|text| spell(text, &choices)).collect();
                format!("[{}]", strings.join(&format!(",{space}")))
            })
            .collect();
        encoded(&event_json("1", "1", &format!("[{}]", tags.join(",")), "\"\""), &[(1, b"x")]);
    }
}
