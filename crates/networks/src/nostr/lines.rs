//! Events as lines: each line is the JSON of an event, as clients send it.

use hark_archive::{Id, Record};
use hark_codec::crypto::Verifier;
use hark_codec::nostr::{Arena, CheckError, Encoder, Event, VerifiedEvent};

use super::admit::{OwnUrls, Private};
use super::rules::{Class, class};
use crate::{LineFault, Lines, ReadLine, ReadTerms};

/// Number of parsed keys that a reader caches: events of one author often follow each other.
const KEY_SLOTS: usize = 4096;

/// Lines of events.
pub(super) struct Events;

impl Lines for Events {
    fn write(&self, record: &Record<'_>, line: &mut Vec<u8>) {
        line.extend_from_slice(record.wire());
    }

    fn are_signed(&self) -> bool {
        true
    }

    fn reader(&self, terms: &ReadTerms) -> Box<dyn ReadLine> {
        Box::new(Reader {
            own_urls: OwnUrls::new(terms.own_urls.iter().cloned()),
            terms: terms.clone(),
            arena: Arena::new(),
            encoder: Encoder::default(),
            verifier: Verifier::new(KEY_SLOTS),
        })
    }
}

struct Reader {
    terms: ReadTerms,
    own_urls: OwnUrls,
    arena: Arena,
    encoder: Encoder,
    verifier: Verifier,
}

impl ReadLine for Reader {
    fn read(
        &mut self,
        line: &[u8],
        is_kept: &dyn Fn(&Id) -> bool,
        record: &mut Vec<u8>,
    ) -> Result<(), LineFault> {
        if line.len() > self.terms.record_bytes_max {
            return Err(LineFault::TooLarge(String::new()));
        }
        let event = Event::parse(line, &mut self.arena)
            .map_err(|error| LineFault::Malformed(error.to_string()))?;
        if class(u32::from(event.kind())) == Class::Ephemeral {
            return Err(LineFault::Ephemeral);
        }
        if event.expiration().is_some_and(|at| at <= self.terms.now_s) {
            return Err(LineFault::Expired);
        }
        if is_kept(event.id()) {
            return Err(LineFault::Kept);
        }
        if !self.terms.trusted {
            match VerifiedEvent::check(event, &mut self.verifier) {
                Ok(_) => {}
                Err(CheckError::Id) => return Err(LineFault::Id),
                Err(CheckError::Signature(_)) => return Err(LineFault::Signature),
            }
        }
        record.clear();
        let private = Private::of(&event, &self.own_urls);
        self.encoder.encode(&event, private.labels(), record);
        Ok(())
    }
}
