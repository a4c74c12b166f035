//! Converts a row to a record: writes the row as JSON, parses it like any event, and checks that
//! the id is the event's hash.

use std::panic::resume_unwind;

use hark_codec::crypto::SignatureVerifier;
use hark_codec::hex;
use hark_codec::nostr::{Event, EventArena, EventEncoder, VerifiedEvent, json};
use hark_networks::nostr::admit::{OwnUrls, PrivateLabels};
use hark_networks::nostr::rules::{KindClass, class};

use super::source::NostreamRow;
use crate::commands::adopt::{ConvertedRows, text};
use crate::commands::refusal::RefusalReason;

/// Parsed keys that a thread caches.
const KEY_SLOTS: usize = 4096;

/// The parameters common to all rows.
#[derive(Clone)]
pub(super) struct ConvertOptions {
    pub(super) event_bytes_max: usize,
    pub(super) own_urls: OwnUrls,
    pub(super) verify_signatures: bool,
}

impl ConvertOptions {
    /// Converts rows to records, in order. If signatures are checked, which costs more than the
    /// rest, all cores work.
    pub(super) fn convert(&self, rows: &[NostreamRow], now_s: u64) -> ConvertedRows {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let parts = if self.verify_signatures { cores } else { 1 };
        let part = rows.len().div_ceil(parts).max(1);
        if parts == 1 {
            return self.part(rows, now_s);
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                rows.chunks(part).map(|rows| scope.spawn(|| self.part(rows, now_s))).collect();
            let mut all = ConvertedRows::default();
            for thread in threads {
                // The rows of a thread that panicked must not count as done.
                let done = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
                all.records.extend(done.records);
                all.ids.extend(done.ids);
                all.refused.extend(done.refused);
            }
            all
        })
    }

    fn part(&self, rows: &[NostreamRow], now_s: u64) -> ConvertedRows {
        let mut worker = ConvertWorker {
            terms: self,
            now_s,
            arena: EventArena::new(),
            encoder: EventEncoder::default(),
            verifier: SignatureVerifier::new(if self.verify_signatures { KEY_SLOTS } else { 1 }),
            json: Vec::new(),
        };
        let mut done = ConvertedRows::default();
        for row in rows {
            let id = text(&row.id);
            match worker.record(row) {
                Ok(record) => {
                    done.records.push(record);
                    done.ids.push(id);
                }
                Err((reason, words)) => done.refused.push((reason, id, words)),
            }
        }
        done
    }
}

/// One thread's reused buffers.
struct ConvertWorker<'a> {
    terms: &'a ConvertOptions,
    now_s: u64,
    arena: EventArena,
    encoder: EventEncoder,
    verifier: SignatureVerifier,
    json: Vec<u8>,
}

impl ConvertWorker<'_> {
    fn record(&mut self, row: &NostreamRow) -> Result<Box<[u8]>, (RefusalReason, String)> {
        let plain = |reason| (reason, String::new());
        self.json.clear();
        write_json(row, &mut self.json);
        let event = Event::parse(&self.json, &mut self.arena)
            .map_err(|error| (RefusalReason::Malformed, error.to_string()))?;
        if class(u32::from(event.kind())) == KindClass::Ephemeral {
            return Err(plain(RefusalReason::Ephemeral));
        }
        if event.expiration().is_some_and(|at| at <= self.now_s) {
            return Err(plain(RefusalReason::Expired));
        }
        if self.json.len() > self.terms.event_bytes_max {
            return Err(plain(RefusalReason::TooLarge));
        }
        if !event.has_valid_id() {
            return Err(plain(RefusalReason::BadId));
        }
        let private = PrivateLabels::of(&event, &self.terms.own_urls);
        let mut record = Vec::with_capacity(self.json.len() + 64);
        self.encoder.encode(&event, private.labels(), &mut record);
        if self.terms.verify_signatures
            && let Err(error) = VerifiedEvent::check(event, &mut self.verifier)
        {
            return Err((RefusalReason::BadSignature, error.to_string()));
        }
        Ok(record.into())
    }
}

/// Writes a row as an event.
fn write_json(row: &NostreamRow, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"id\":\"");
    hex::encode_into(&row.id, out);
    out.extend_from_slice(b"\",\"pubkey\":\"");
    hex::encode_into(&row.pubkey, out);
    out.extend_from_slice(b"\",\"created_at\":");
    // The parser refuses a negative time or kind.
    out.extend_from_slice(row.created_at.to_string().as_bytes());
    out.extend_from_slice(b",\"kind\":");
    out.extend_from_slice(row.kind.to_string().as_bytes());
    out.extend_from_slice(b",\"tags\":");
    out.extend_from_slice(&row.tags);
    out.extend_from_slice(b",\"content\":");
    json::write_string(out, &row.content);
    out.extend_from_slice(b",\"sig\":\"");
    hex::encode_into(&row.signature, out);
    out.extend_from_slice(b"\"}");
}

#[cfg(test)]
mod tests {
    use hark_archive::Record;
    use hark_codec::crypto::KeyPair;
    use hark_codec::nostr::EventDraft;

    use super::*;

    fn terms(verify_signatures: bool) -> ConvertOptions {
        ConvertOptions { event_bytes_max: 65_536, own_urls: OwnUrls::new([]), verify_signatures }
    }

    /// Returns a row as nostream would store it, and its event. `spaced` has the tags as jsonb
    /// prints them.
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
