//! Copies the events of a relay that numbers its events in the order of their arrival.
//!
//! Rows are read in batches, by their numbers. The last number of each batch is saved, and the next
//! run continues behind this number. Every batch is a separate short read, so a running relay never
//! waits for the adoption. A relay may reuse the number of a deleted event for a new event, after
//! the adoption has passed that number. The comparison at the end finds such events.

mod progress;
mod sweep;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use hark_networks::nostr::Nostr;

use self::progress::RelayProgress;
use super::copy::{AdoptBatch, AdoptTarget, AdoptTotal, copy};
use super::events::{ConvertOptions, EventRow, EventRowFault};
use super::pace::AdoptPace;
use super::put;
use super::sweep::finish;
use super::tally::{AdoptTally, ReasonWords};
use crate::commands::refusal::RefusalReason;
use crate::interrupt;
use crate::location::ArchiveLocation;
use crate::print::{self, CountedUnit};
use crate::when;
use crate::writer::HistoryWriter;

/// The reasons why rows are not copied.
const REASONS: ReasonWords = &[
    (RefusalReason::Malformed, "malformed", "not a Nostr event"),
    (RefusalReason::BadId, "bad id", "the id is not the event's hash"),
    (RefusalReason::BadSignature, "bad signature", "not signed by its author"),
    (RefusalReason::TooLarge, "too large", "above limits.event_bytes_max"),
    (RefusalReason::Ephemeral, "ephemeral", "of a kind that is never stored"),
    (RefusalReason::Expired, "expired", "its expiration has passed"),
    (RefusalReason::Duplicate, "duplicate", "already kept"),
    (RefusalReason::Superseded, "superseded", "a newer version is kept"),
    (RefusalReason::Deleted, "deleted", "its author asked for deletion"),
    (RefusalReason::Vanished, "vanished", "its author asked to vanish"),
    (RefusalReason::Gone, "deleted there", "the relay keeps the row and returns it to nobody"),
];
/// A batch ends with the event that brings it to this length, in bytes.
pub(super) const BATCH_BYTES_MAX: usize = 32 << 20;
/// Interval between two reads of newly published events.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// How many numbers before the last number such a read begins. The numbers of deleted events may be
/// reused.
const FOLLOW_OVERLAP: usize = 200;
/// Maximum sleep, so that an interrupt is noticed in time.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// The flags that all of these relays have in common.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(super) struct RelayAdoptArgs {
    /// Most events a second [default: as fast as possible]
    #[arg(long, value_name = "N")]
    rate: Option<u64>,
    /// Events in a batch
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    batch: u32,
    /// Afterwards, copy what is published there, until Ctrl-C
    #[arg(long)]
    follow: bool,
    /// Compare every event with the archive's, byte for byte
    #[arg(long)]
    verify: bool,
    /// Also check all signatures
    #[arg(long)]
    verify_signatures: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The name of a relay's program in reports, and its position file.
pub(super) struct AdoptedRelay {
    pub(super) name: &'static str,
    /// The name of the file beside the archive that stores the position.
    pub(super) position_file: &'static str,
}

/// A row of the relay's database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RelayRow {
    /// The number under which the relay stores the event.
    pub(super) number: u64,
    /// The event as JSON, or the reason why the row has no event.
    pub(super) event: Result<Vec<u8>, EventRowFault>,
}

impl EventRow for RelayRow {
    fn name(&self) -> String {
        format!("number {}", self.number)
    }

    fn write_json(&self, out: &mut Vec<u8>) -> Result<(), EventRowFault> {
        out.extend_from_slice(self.event.as_ref().map_err(Clone::clone)?);
        Ok(())
    }
}

/// A relay's database, which is only read.
pub(super) trait RelaySource: Send {
    /// The name under which the position in this database is saved.
    fn name(&self) -> String;
    /// Returns the next rows behind a number, up to `limit`. There are none at the end.
    fn batch(&mut self, after: u64, limit: u32) -> anyhow::Result<Vec<RelayRow>>;
    /// Returns the highest number.
    fn last(&mut self) -> anyhow::Result<u64>;
    /// Returns the number of damaged pages that were skipped, and a description of the first.
    fn damage(&self) -> (u64, &str) {
        (0, "")
    }
}

/// Adopts the events of a relay.
pub(super) fn run(
    mut source: impl RelaySource,
    relay: &AdoptedRelay,
    args: &RelayAdoptArgs,
    location: &ArchiveLocation,
) -> anyhow::Result<ExitCode> {
    let stop = interrupt::flag()?;
    let location = &location.of(&Nostr);
    let mut writer = location.bring()?;
    hark_store_embedded::permissions::create_dir(&location.data)?;
    let mut progress = RelayProgress::open(location, relay.position_file, &source.name())?;
    if progress.number > 0 {
        let events = print::count(progress.events, "event");
        print::note!("hark: continuing an earlier run, after {events}");
    }
    if !args.verify_signatures {
        print::note!(
            "hark: ids are checked, signatures are not, since {} did; --verify-signatures does",
            relay.name
        );
    }
    let mut adoption = RelayAdoption {
        args,
        relay,
        terms: ConvertOptions::new(location, args.verify_signatures),
        pace: AdoptPace::start(args.rate, &stop),
        tally: AdoptTally::new(REASONS),
    };
    adoption.copy(&mut source, &mut writer, &mut progress)?;
    if args.follow && !adoption.pace.is_stopped() {
        adoption.follow(&mut source, &mut writer, &mut progress)?;
    }
    // With --follow, an interrupt is the normal end, and all events are looked up. Without it, an
    // interrupt ends the run at once.
    let swept = sweep::run(&mut source, &mut writer, location, &mut adoption)?;
    writer.tell_held();
    finish(&adoption.tally, &adoption.pace, args.json, swept.as_ref())
}

/// The state of one run.
struct RelayAdoption<'a> {
    args: &'a RelayAdoptArgs,
    relay: &'a AdoptedRelay,
    terms: ConvertOptions,
    pace: AdoptPace<'a>,
    tally: AdoptTally,
}

impl RelayAdoption<'_> {
    /// Copies all rows behind the saved position.
    fn copy(
        &mut self,
        source: &mut impl RelaySource,
        writer: &mut HistoryWriter,
        progress: &mut RelayProgress,
    ) -> anyhow::Result<()> {
        let total = AdoptTotal {
            total: source.last()?,
            unit: CountedUnit::Records,
            noun: "event",
            before: progress.events,
        };
        let (mut after, batch, terms) =
            (progress.number, self.pace.batch(self.args.batch), &self.terms);
        let read = || {
            let rows = source.batch(after, batch)?;
            let Some(last) = rows.last() else { return Ok(None) };
            after = last.number;
            let converted = terms.convert(&rows, when::now_s());
            Ok(Some(AdoptBatch { converted, at: after, rows: rows.len() as u64, done: after }))
        };
        let to = AdoptTarget { writer, tally: &mut self.tally, pace: &mut self.pace };
        copy(&total, to, read, |number, events| {
            (progress.number, progress.events) = (number, events);
            progress.save()
        })
    }

    /// Copies newly published events until an interrupt.
    fn follow(
        &mut self,
        source: &mut impl RelaySource,
        writer: &mut HistoryWriter,
        progress: &mut RelayProgress,
    ) -> anyhow::Result<()> {
        let (name, events) = (self.relay.name, print::count(progress.events, "event"));
        print::note!(
            "hark: brought over: {events}; new events follow until Ctrl-C. Stop {name} before Ctrl-C, \
             and nothing is missing"
        );
        // The last rows of the previous read, which the next read returns again.
        let mut known: Vec<RelayRow> = Vec::new();
        while !self.pace.is_stopped() {
            let mut after =
                progress.number.min(source.last()?).saturating_sub(FOLLOW_OVERLAP as u64);
            let mut read = Vec::new();
            loop {
                let rows = source.batch(after, self.args.batch)?;
                let Some(last) = rows.last() else { break };
                after = last.number;
                let is_new = |row: &&RelayRow| !known.contains(row);
                let new: Vec<RelayRow> = rows.iter().filter(is_new).cloned().collect();
                let mut tally = AdoptTally::new(REASONS);
                put(writer, self.terms.convert(&new, when::now_s()), &mut tally)?;
                progress.events += tally.stored;
                self.tally.stored += tally.stored;
                self.pace.wait(tally.stored);
                read.extend(rows);
                read.drain(..read.len().saturating_sub(FOLLOW_OVERLAP));
            }
            known = read;
            if after != progress.number {
                progress.number = after;
                progress.save()?;
            }
            let until = Instant::now() + FOLLOW_EVERY;
            while !self.pace.is_stopped() && Instant::now() < until {
                std::thread::sleep(SLEEP_MAX);
            }
        }
        Ok(())
    }
}
