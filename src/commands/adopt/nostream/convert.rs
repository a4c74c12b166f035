//! A row of nostream as an event: its columns written as JSON.

use hark_codec::hex;
use hark_codec::nostr::json;

use super::source::NostreamRow;
use crate::commands::adopt::events::{EventRow, EventRowFault};
use crate::commands::adopt::rows::text;

impl EventRow for NostreamRow {
    fn name(&self) -> String {
        text(&self.id)
    }

    fn write_json(&self, out: &mut Vec<u8>) -> Result<(), EventRowFault> {
        out.extend_from_slice(b"{\"id\":\"");
        hex::encode_into(&self.id, out);
        out.extend_from_slice(b"\",\"pubkey\":\"");
        hex::encode_into(&self.pubkey, out);
        out.extend_from_slice(b"\",\"created_at\":");
        // The parser refuses a negative time or kind.
        out.extend_from_slice(self.created_at.to_string().as_bytes());
        out.extend_from_slice(b",\"kind\":");
        out.extend_from_slice(self.kind.to_string().as_bytes());
        out.extend_from_slice(b",\"tags\":");
        out.extend_from_slice(&self.tags);
        out.extend_from_slice(b",\"content\":");
        json::write_string(out, &self.content);
        out.extend_from_slice(b",\"sig\":\"");
        hex::encode_into(&self.signature, out);
        out.extend_from_slice(b"\"}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use hark_archive::Record;
    use hark_codec::crypto::KeyPair;
    use hark_codec::nostr::{Event, EventArena, EventDraft};
    use hark_networks::nostr::admit::OwnUrls;

    use super::*;
    use crate::commands::adopt::events::ConvertOptions;
    use crate::commands::refusal::RefusalReason;

    fn terms(verify_signatures: bool) -> ConvertOptions {
        ConvertOptions { event_bytes_max: 65_536, own_urls: OwnUrls::new([]), verify_signatures }
    }

    /// Returns a row as nostream would store it, and its event. `spaced` is the tags in the text
    /// form of PostgreSQL's jsonb.
    fn row(tags: &[&[&str]], content: &str, spaced: &str) -> (NostreamRow, Vec<u8>) {
        let keys = KeyPair::from_secret([7; 32]).unwrap();
        let mut line = Vec::new();
        let draft = EventDraft { created_at: 1_700_000_000, kind: 1, tags, content };
        let id = draft.sign(&keys, &mut line);
        let mut arena = EventArena::new();
        let event = Event::parse(&line, &mut arena).unwrap();
        let row = NostreamRow {
            id: id.to_vec(),
            pubkey: keys.public().to_vec(),
            kind: 1,
            created_at: 1_700_000_000,
            content: content.into(),
            tags: spaced.into(),
            signature: event.signature().to_vec(),
        };
        (row, line)
    }

    #[test]
    fn a_row_becomes_the_event_it_was_byte_for_byte() {
        let odd = "q\"u\\o\u{1F980}\u{7f}\n";
        let (row, line) = row(
            &[&["t", odd], &["x"]],
            odd,
            "[[\"t\", \"q\\\"u\\\\o\u{1F980}\u{7f}\\n\"], [\"x\"]]",
        );
        for verify in [false, true] {
            let done = terms(verify).convert(std::slice::from_ref(&row), 0);
            assert!(done.refused.is_empty(), "{:?}", done.refused);
            let record = Record::new(&done.records[0]).unwrap();
            assert_eq!(record.wire(), line);
            assert!(record.labels().any(|label| label == (b't', odd.as_bytes())));
        }
    }

    #[test]
    fn what_is_no_event_or_another_one_is_refused_by_its_reason() {
        let (good, _) = row(&[], "said", "[]");
        let said_else = NostreamRow { content: "else".into(), ..good.clone() };
        let forged = NostreamRow { signature: vec![1; 64], ..good.clone() };
        let numbers = NostreamRow { tags: b"[[1]]".to_vec(), ..good.clone() };
        let negative = NostreamRow { kind: -1, ..good.clone() };
        let rows = [said_else, forged, numbers, negative];
        let reasons = |verify| {
            let refused = terms(verify).convert(&rows, 0).refused;
            refused.into_iter().map(|(reason, ..)| reason).collect::<Vec<_>>()
        };
        assert_eq!(
            reasons(false),
            [RefusalReason::BadId, RefusalReason::Malformed, RefusalReason::Malformed]
        );
        let all = [
            RefusalReason::BadId,
            RefusalReason::BadSignature,
            RefusalReason::Malformed,
            RefusalReason::Malformed,
        ];
        assert_eq!(reasons(true), all);
    }
}
