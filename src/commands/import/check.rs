//! What a worker does with a chunk: parse each line, skip what is kept already, check id and
//! signature, turn the event into a record. A message of Waku's has a hash and no signature.

use hark_archive::Store;
use hark_codec::crypto::Verifier;
use hark_codec::nostr::{Arena, CheckError, Encoder, Event, VerifiedEvent};
use hark_codec::waku;
use hark_networks::nostr::admit::{OwnUrls, Private};
use hark_networks::nostr::rules::{Class, class};
use hark_networks::waku::admit::{Bounds, Refusal};
use hark_networks::waku::json::Kept;

use super::source::Chunk;
use super::tally::Tally;
use crate::commands::refusal::Reason;
use crate::place::Network;

/// Parsed keys that a worker remembers: authors come in runs.
const KEY_SLOTS: usize = 4096;

/// What holds for all lines of an import.
pub(super) struct Terms<'a> {
    /// Where known ids are looked up.
    pub(super) store: Option<&'a dyn Store>,
    pub(super) trusted: bool,
    pub(super) event_bytes_max: usize,
    pub(super) own_urls: OwnUrls,
    pub(super) now_s: u64,
    pub(super) network: Network,
    /// Of Waku's messages.
    pub(super) bounds: Bounds,
}

/// A chunk, done.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// Records, in the order of their lines.
    pub(super) records: Vec<Box<[u8]>>,
    /// Line of each, counted from the chunk's first.
    pub(super) lines: Vec<u64>,
    pub(super) tally: Tally,
    /// Bytes of the source read by then.
    pub(super) read_to: u64,
}

/// One worker's reused buffers.
pub(super) struct Worker<'a> {
    terms: &'a Terms<'a>,
    arena: Arena,
    encoder: Encoder,
    messages: waku::Encoder,
    verifier: Verifier,
    record: Vec<u8>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(terms: &'a Terms<'a>) -> Self {
        Self {
            terms,
            arena: Arena::new(),
            encoder: Encoder::default(),
            messages: waku::Encoder::default(),
            verifier: Verifier::new(KEY_SLOTS),
            record: Vec::new(),
        }
    }

    pub(super) fn check(&mut self, chunk: &Chunk) -> Checked {
        let mut done = Checked { read_to: chunk.read_to, ..Checked::default() };
        for line in chunk.bytes.split_inclusive(|&byte| byte == b'\n') {
            let event = line.trim_ascii();
            if !event.is_empty() {
                done.tally.records += 1;
                let checked = match self.terms.network {
                    Network::Nostr => self.event(event),
                    Network::Waku => self.message(event),
                };
                match checked {
                    Ok(()) => {
                        done.records.push(self.record.as_slice().into());
                        done.lines.push(done.tally.lines);
                    }
                    Err((reason, words)) => done.tally.refuse(reason, done.tally.lines, &words),
                }
            }
            done.tally.lines += 1;
        }
        if chunk.overlong {
            done.tally.records += 1;
            done.tally.refuse(Reason::TooLarge, done.tally.lines, "");
            done.tally.lines += 1;
        }
        done
    }

    /// The same for a message of Waku's, in its store's JSON.
    fn message(&mut self, line: &[u8]) -> Result<(), (Reason, String)> {
        let plain = |reason| Err((reason, String::new()));
        let kept: Kept =
            serde_json::from_slice(line).map_err(|error| (Reason::Malformed, error.to_string()))?;
        let message = kept.message.message();
        if message.ephemeral == Some(true) {
            return plain(Reason::Ephemeral);
        }
        // Its own length is not known, but that of its payload is nearly all of it.
        match self.terms.bounds.admit_old(&message, message.payload.len()) {
            Ok(_) => {}
            Err(refusal @ Refusal::Size(..)) => {
                return Err((Reason::TooLarge, refusal.to_string()));
            }
            Err(refusal) => return Err((Reason::Malformed, refusal.to_string())),
        }
        let (hash, as_said) = kept.hash();
        if !as_said {
            return plain(Reason::BadId);
        }
        if self.terms.store.is_some_and(|store| store.knows(&hash).unwrap_or(false)) {
            return plain(Reason::Duplicate);
        }
        self.record.clear();
        self.messages.encode(&message, &kept.pubsub_topic, &hash, &mut self.record);
        Ok(())
    }

    /// Leaves the record in `self.record`, or says why there is none.
    fn event(&mut self, line: &[u8]) -> Result<(), (Reason, String)> {
        let terms = self.terms;
        let plain = |reason| Err((reason, String::new()));
        if line.len() > terms.event_bytes_max {
            return plain(Reason::TooLarge);
        }
        let event = Event::parse(line, &mut self.arena)
            .map_err(|error| (Reason::Malformed, error.to_string()))?;
        if class(u32::from(event.kind())) == Class::Ephemeral {
            return plain(Reason::Ephemeral);
        }
        if event.expiration().is_some_and(|at| at <= terms.now_s) {
            return plain(Reason::Expired);
        }
        // Where it cannot be looked up, the store itself says so later.
        if terms.store.is_some_and(|store| store.knows(event.id()).unwrap_or(false)) {
            return plain(Reason::Duplicate);
        }
        if !terms.trusted {
            match VerifiedEvent::check(event, &mut self.verifier) {
                Ok(_) => {}
                Err(CheckError::Id) => return plain(Reason::BadId),
                Err(CheckError::Signature(_)) => return plain(Reason::BadSignature),
            }
        }
        self.record.clear();
        let private = Private::of(&event, &terms.own_urls);
        self.encoder.encode(&event, private.labels(), &mut self.record);
        Ok(())
    }
}
