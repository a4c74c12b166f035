//! One run of an adoption from a relay: the copy of all rows, and of newly published events.

use std::time::Duration;

use clap::Args;

use super::progress::RelayProgress;
use super::source::{RelayRow, RelaySource};
use crate::commands::adopt::copy::{AdoptBatch, AdoptTarget, AdoptTotal, copy};
use crate::commands::adopt::events::ConvertOptions;
use crate::commands::adopt::pace::AdoptPace;
use crate::commands::adopt::rows::put;
use crate::commands::adopt::tally::{AdoptTally, ReasonWords};
use crate::commands::refusal::RefusalReason;
use crate::print::{self, CountedUnit};
use crate::when;
use crate::writer::HistoryWriter;

/// The reasons why rows are not copied.
pub(super) const REASONS: ReasonWords = &[
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
    (RefusalReason::Banned, "banned", "`hark ban` refuses it"),
    (RefusalReason::Gone, "deleted there", "the relay keeps the row and returns it to nobody"),
];
/// Interval between two reads of newly published events.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// A read of newly published events begins this many event numbers before the last one, because the
/// relay may reuse the numbers of deleted events.
const FOLLOW_OVERLAP: usize = 200;

/// The flags common to all relays that number their events.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(in crate::commands::adopt) struct RelayAdoptArgs {
    /// Maximum number of events a second [default: as fast as possible]
    #[arg(long, value_name = "N")]
    pub(super) rate: Option<u64>,
    /// Number of events in a batch
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    pub(super) batch: u32,
    /// Afterwards, copy newly published events, until Ctrl-C
    #[arg(long)]
    pub(super) follow: bool,
    /// Compare every event with the archive's, byte for byte
    #[arg(long)]
    pub(super) verify: bool,
    /// Also check all signatures
    #[arg(long)]
    pub(super) verify_signatures: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// The program of a relay whose events are adopted: its name in reports, and the name of its
/// position file.
pub(in crate::commands::adopt) struct AdoptedRelay {
    pub(in crate::commands::adopt) name: &'static str,
    /// The name of the file beside the archive that stores the position.
    pub(in crate::commands::adopt) position_file: &'static str,
}

/// The state of one run.
pub(super) struct RelayAdoption<'a> {
    pub(super) args: &'a RelayAdoptArgs,
    pub(super) relay: &'a AdoptedRelay,
    pub(super) terms: ConvertOptions,
    pub(super) pace: AdoptPace<'a>,
    pub(super) tally: AdoptTally,
}

impl RelayAdoption<'_> {
    /// Copies all rows after the saved position.
    pub(super) fn copy(
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
    pub(super) fn follow(
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
            self.pace.pause(FOLLOW_EVERY);
        }
        Ok(())
    }
}
