//! Events as lines: each line is the JSON of an event in the form that clients send.

use hark_archive::{Id, Record, RecordHeader};
use hark_codec::crypto::SignatureVerifier;
use hark_codec::nostr::{CheckError, Event, EventArena, EventEncoder, VerifiedEvent};

use super::admit::{OwnUrls, PrivateLabels, larger_than};
use super::rules::{KindClass, class};
use crate::{LineFault, LineFormat, LineReader, ReadOptions, RecordCheck, must_have_fields};

/// Number of parsed keys that a reader caches, because events of the same author often come in a
/// row.
const KEY_SLOTS: usize = 4096;

/// Lines of events.
pub(super) struct EventLines;

impl LineFormat for EventLines {
    fn write(&self, record: &Record<'_>, line: &mut Vec<u8>) {
        line.extend_from_slice(record.wire());
    }

    fn are_signed(&self) -> bool {
        true
    }

    fn reader(&self, options: &ReadOptions) -> Box<dyn LineReader> {
        Box::new(EventLineReader {
            own_urls: OwnUrls::new(options.own_urls.iter().cloned()),
            options: options.clone(),
            arena: EventArena::new(),
            encoder: EventEncoder::default(),
            verifier: SignatureVerifier::new(KEY_SLOTS),
        })
    }

    fn record_check(&self) -> RecordCheck<'_> {
        let mut arena = EventArena::new();
        Box::new(move |record| {
            let event = Event::parse(record.wire(), &mut arena)
                .map_err(|error| LineFault::Malformed(error.to_string()))?;
            if !event.has_valid_id() {
                return Err(LineFault::Id);
            }
            let (time, kind) = (event.created_at(), event.kind().into());
            let (id, author) = (*event.id(), Some(*event.pubkey()));
            must_have_fields(record, &RecordHeader { id, time, author, kind, expires: None })
        })
    }
}

struct EventLineReader {
    options: ReadOptions,
    own_urls: OwnUrls,
    arena: EventArena,
    encoder: EventEncoder,
    verifier: SignatureVerifier,
}

impl LineReader for EventLineReader {
    fn read(
        &mut self,
        line: &[u8],
        is_kept: &dyn Fn(&Id) -> bool,
        record: &mut Vec<u8>,
    ) -> Result<(), LineFault> {
        let event = Event::parse(line, &mut self.arena)
            .map_err(|error| LineFault::Malformed(error.to_string()))?;
        if larger_than(&event, line.len(), self.options.record_bytes_max).is_some() {
            return Err(LineFault::TooLarge(String::new()));
        }
        if class(u32::from(event.kind())) == KindClass::Ephemeral {
            return Err(LineFault::Ephemeral);
        }
        if event.expiration().is_some_and(|at| at <= self.options.now_s) {
            return Err(LineFault::Expired);
        }
        if is_kept(event.id()) {
            return Err(LineFault::Kept);
        }
        if !self.options.trusted {
            match VerifiedEvent::check(event, &mut self.verifier) {
                Ok(_) => {}
                Err(CheckError::Id) => return Err(LineFault::Id),
                Err(CheckError::Signature(_)) => return Err(LineFault::Signature),
            }
        }
        record.clear();
        let private = PrivateLabels::of(&event, &self.own_urls);
        self.encoder.encode(&event, private.labels(), record);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use hark_codec::crypto::KeyPair;
    use hark_codec::nostr::EventDraft;

    use super::*;

    /// A record with changed bytes does not match its id. The signature is not checked.
    #[test]
    fn a_record_is_compared_with_its_message() {
        let keys = KeyPair::from_secret([7; 32]).unwrap();
        let (mut json, mut record) = (Vec::new(), Vec::new());
        EventDraft { created_at: 1, kind: 1, tags: &[], content: "text" }.sign(&keys, &mut json);
        let mut reader = EventLines.reader(&ReadOptions::default());
        reader.read(&json, &|_| false, &mut record).unwrap();
        let check = |bytes: &[u8]| EventLines.record_check()(&Record::new(bytes).unwrap());
        assert_eq!(check(&record), Ok(()));
        let at = |text: &[u8]| record.windows(text.len()).position(|found| found == text).unwrap();
        let (content, signature) = (at(b"text"), at(br#""sig":""#) + 7);
        for (at, expected) in
            [(content, Err(LineFault::Id)), (0, Err(LineFault::Id)), (signature, Ok(()))]
        {
            let mut changed = record.clone();
            changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
            assert_eq!(check(&changed), expected, "byte {at}");
        }
        // The time in the record's header.
        let mut changed = record.clone();
        changed[32] ^= 2;
        assert!(matches!(check(&changed), Err(LineFault::Malformed(_))));
    }

    /// White space and escapes of a line do not count towards the maximum size, just as for events
    /// from clients.
    #[test]
    fn of_a_line_the_bytes_count_that_are_stored() {
        let keys = KeyPair::from_secret([7; 32]).unwrap();
        let (mut json, content) = (Vec::new(), "é".repeat(100));
        EventDraft { created_at: 1, kind: 1, tags: &[], content: &content }.sign(&keys, &mut json);
        let plain = String::from_utf8(json).unwrap();
        let spaced = plain.replace(",\"", &format!(",{}\"", " ".repeat(200)));
        let escaped = plain.replace('é', "\\u00e9");
        for (bytes_max, is_read) in [(plain.len(), true), (plain.len() - 1, false)] {
            let options = ReadOptions { record_bytes_max: bytes_max, ..ReadOptions::default() };
            for line in [&plain, &spaced, &escaped] {
                let read =
                    EventLines.reader(&options).read(line.as_bytes(), &|_| false, &mut Vec::new());
                let expected =
                    if is_read { Ok(()) } else { Err(LineFault::TooLarge(String::new())) };
                assert_eq!(read, expected, "{line}");
            }
        }
    }
}
