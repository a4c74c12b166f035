//! Converts the events of another relay to records. Each event is parsed like a received event, and
//! its id must be its hash.

use std::panic::resume_unwind;

use hark_archive::Id;
use hark_codec::crypto::SignatureVerifier;
use hark_codec::nostr::{Event, EventArena, EventEncoder, VerifiedEvent};
use hark_networks::nostr::NostrRefusal;
use hark_networks::nostr::admit::{OwnUrls, PrivateLabels, larger_than};
use hark_networks::nostr::rules::{KindClass, class};

use super::rows::{ConvertedRows, text};
use crate::commands::refusal::RefusalReason;
use crate::location::ArchiveLocation;

/// Maximum number of parsed keys in a thread's cache.
const KEY_SLOTS: usize = 4096;

/// The reason why a row has no valid event, and details, which may be empty.
pub(super) type EventRowFault = (RefusalReason, String);

/// A row of another relay's database. Each row has one event.
pub(super) trait EventRow: Sync {
    /// Returns the row's name in reports, for a row whose event cannot be read.
    fn name(&self) -> String;
    /// Appends the event as JSON, or returns why the row has no event.
    fn write_json(&self, out: &mut Vec<u8>) -> Result<(), EventRowFault>;
}

/// The options of a conversion, which apply to all rows.
#[derive(Clone)]
pub(super) struct ConvertOptions {
    pub(super) event_bytes_max: usize,
    pub(super) own_urls: OwnUrls,
    pub(super) verify_signatures: bool,
}

impl ConvertOptions {
    /// Takes the options from the configuration.
    pub(super) fn new(location: &ArchiveLocation, verify_signatures: bool) -> Self {
        let config = &location.config;
        Self {
            event_bytes_max: config.limits.events.event_bytes_max,
            own_urls: OwnUrls::new(config.info.urls()),
            verify_signatures,
        }
    }

    /// Converts rows to records, in order. If signatures are checked, the work is spread over all
    /// cores, since these checks cost more than everything else.
    pub(super) fn convert<R: EventRow>(&self, rows: &[R], now_s: u64) -> ConvertedRows {
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

    fn part<R: EventRow>(&self, rows: &[R], now_s: u64) -> ConvertedRows {
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
            let mut id = None;
            match worker.record(row, &mut id) {
                Ok(record) => {
                    done.records.push(record);
                    done.ids.push(id.map_or_else(|| row.name(), |id| text(&id)));
                }
                Err((reason, words)) => {
                    let name = id.map_or_else(|| row.name(), |id| text(&id));
                    done.refused.push((reason, name, words));
                }
            }
        }
        done
    }
}

/// Converts rows in one thread, with buffers that are reused.
struct ConvertWorker<'a> {
    terms: &'a ConvertOptions,
    now_s: u64,
    arena: EventArena,
    encoder: EventEncoder,
    verifier: SignatureVerifier,
    json: Vec<u8>,
}

impl ConvertWorker<'_> {
    /// Converts a row. `id` is set to the event's id as soon as the id is known.
    fn record<R: EventRow>(
        &mut self,
        row: &R,
        id: &mut Option<Id>,
    ) -> Result<Box<[u8]>, EventRowFault> {
        let plain = |reason| (reason, String::new());
        self.json.clear();
        row.write_json(&mut self.json)?;
        let event = Event::parse(&self.json, &mut self.arena)
            .map_err(|error| (RefusalReason::Malformed, NostrRefusal::from(error).to_string()))?;
        *id = Some(*event.id());
        if class(u32::from(event.kind())) == KindClass::Ephemeral {
            return Err(plain(RefusalReason::Ephemeral));
        }
        if event.expiration().is_some_and(|at| at <= self.now_s) {
            return Err(plain(RefusalReason::Expired));
        }
        if larger_than(&event, self.json.len(), self.terms.event_bytes_max).is_some() {
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
            return Err((RefusalReason::BadSignature, NostrRefusal::from(error).to_string()));
        }
        Ok(record.into())
    }
}
