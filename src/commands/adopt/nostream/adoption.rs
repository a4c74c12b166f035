//! One run of an adoption from nostream: the copy of all rows, and of newly published events.

use std::time::{Duration, Instant};

use clap::Args;

use super::late::{FOLLOW_EVERY, LateScan};
use super::progress::NostreamProgress;
use super::source::{NostreamRow, NostreamSource, RowCursor};
use crate::commands::adopt::copy::{AdoptBatch, AdoptTarget, AdoptTotal, copy};
use crate::commands::adopt::events::ConvertOptions;
use crate::commands::adopt::pace::AdoptPace;
use crate::commands::adopt::rows::put;
use crate::commands::adopt::tally::{AdoptTally, ReasonWords};
use crate::commands::refusal::RefusalReason;
use crate::print::{self, CountedUnit};
use crate::when;
use crate::writer::HistoryWriter;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark adopt nostream postgres://nostr_ts_relay@127.0.0.1/nostr_ts_relay
  hark adopt nostream postgres://... --rate 2000 --follow     beside a relay in use, until Ctrl-C
  hark adopt nostream postgres://... --verify                 once more, and compare a sample

The database is only read, in short statements, and the relay may keep running. Rows are copied in
the order of their time, in batches. The position is saved with each batch, so an interrupted run
continues where it was, and nothing is stored twice. At the end, all ids are compared with the
archive, and missing events are copied.

With --follow, newly published events are copied until Ctrl-C; then all ids are compared once more,
and the run ends. New events with an old date are copied later than other events: to find them, Hark
reads the whole table again and again, for at most a tenth of the time.

Every id must be the hash of its event, so no value can be copied wrongly. Signatures are not
checked, because nostream has checked them; --verify-signatures checks them again, in some 30 us for
each event on one core. Deleted, expired and ephemeral events are not copied. Other refused events
are counted by reason.")]
pub(crate) struct AdoptNostreamArgs {
    /// nostream's database: postgres://user:password@host:port/database
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// Maximum number of events a second [default: as fast as possible]
    #[arg(long, value_name = "N")]
    pub(crate) rate: Option<u64>,
    /// Number of events in a batch
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    pub(crate) batch: u32,
    /// Afterwards, copy newly published events, until Ctrl-C
    #[arg(long)]
    pub(crate) follow: bool,
    /// Compare N events with the archive's, byte for byte [default with the flag: 1000]
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1000")]
    pub(crate) verify: Option<u64>,
    /// Also check all signatures
    #[arg(long)]
    pub(crate) verify_signatures: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

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
    (RefusalReason::Gone, "deleted there", "nostream keeps the row and returns it to nobody"),
];
/// A read of newly published events begins this number of seconds before the newest time, because
/// events may arrive a little late.
const OVERLAP_S: i64 = 120;

/// The state of one run.
pub(super) struct Adoption<'a> {
    pub(super) args: &'a AdoptNostreamArgs,
    pub(super) terms: ConvertOptions,
    pub(super) pace: AdoptPace<'a>,
    pub(super) tally: AdoptTally,
}

impl Adoption<'_> {
    pub(super) fn stopped(&self) -> bool {
        self.pace.is_stopped()
    }

    /// Copies all rows after the saved position.
    pub(super) fn copy(
        &mut self,
        source: &mut NostreamSource,
        writer: &mut HistoryWriter,
        progress: &mut NostreamProgress,
    ) -> anyhow::Result<()> {
        let total = AdoptTotal {
            total: source.estimate()?,
            unit: CountedUnit::Records,
            noun: "event",
            before: progress.events,
        };
        let (mut at, mut done) = (progress.at, progress.events);
        let (batch, terms) = (self.pace.batch(self.args.batch), &self.terms);
        let read = || {
            let rows = source.after(&at, batch)?;
            let Some(last) = rows.last() else { return Ok(None) };
            at = last.cursor();
            done += rows.len() as u64;
            let converted = terms.convert(&rows, when::now_s());
            Ok(Some(AdoptBatch { converted, at, rows: rows.len() as u64, done }))
        };
        let to = AdoptTarget { writer, tally: &mut self.tally, pace: &mut self.pace };
        copy(&total, to, read, |at, events| {
            (progress.at, progress.events) = (at, events);
            progress.save()
        })
    }

    /// Copies newly published events until an interrupt.
    pub(super) fn follow(
        &mut self,
        source: &mut NostreamSource,
        writer: &mut HistoryWriter,
        progress: &mut NostreamProgress,
    ) -> anyhow::Result<()> {
        print::note!(
            "hark: brought over: {}; new events follow until Ctrl-C. Stop nostream before Ctrl-C, and \
             nothing is missing",
            print::count(progress.events, "event")
        );
        let mut late = LateScan::new(progress.since.unwrap_or_default());
        let mut from = behind(progress.at);
        while !self.stopped() {
            let mut at = from;
            loop {
                let rows = source.after(&at, self.args.batch)?;
                let Some(last) = rows.last() else { break };
                at = last.cursor();
                self.put_new_rows(writer, progress, &rows)?;
                progress.at = progress.at.max(at);
            }
            // The next read starts at this position. `late` finds new rows with earlier times.
            from = behind(progress.at);
            progress.since = Some(late.since());
            progress.save()?;
            let until = Instant::now() + FOLLOW_EVERY;
            while !self.stopped() && Instant::now() < until {
                if late.is_due() {
                    self.copy_late_rows(source, writer, progress, (&mut late, from.created_at))?;
                } else {
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
        Ok(())
    }

    /// Copies new rows with a time before `created_at`, from one piece of nostream's table.
    fn copy_late_rows(
        &mut self,
        source: &NostreamSource,
        writer: &mut HistoryWriter,
        progress: &mut NostreamProgress,
        (late, created_at): (&mut LateScan, i64),
    ) -> anyhow::Result<()> {
        for ids in late.read(source, created_at)?.chunks(self.args.batch.max(1) as usize) {
            if self.stopped() {
                return Ok(());
            }
            self.put_new_rows(writer, progress, &source.of_ids(ids)?)?;
        }
        late.pass();
        Ok(())
    }

    /// Stores newly published rows. The archive may already have some of the rows.
    fn put_new_rows(
        &mut self,
        writer: &mut HistoryWriter,
        progress: &mut NostreamProgress,
        rows: &[NostreamRow],
    ) -> anyhow::Result<()> {
        let converted = self.terms.convert(rows, when::now_s());
        let mut tally = AdoptTally::new(REASONS);
        put(writer, converted, &mut tally)?;
        progress.events += tally.stored;
        self.tally.stored += tally.stored;
        self.pace.wait(tally.stored);
        Ok(())
    }
}

/// Returns the start of the next read of newly published events: [`OVERLAP_S`] seconds before the
/// newest time, or before the present time if the newest time lies in the future.
fn behind(newest: RowCursor) -> RowCursor {
    let now_s = i64::try_from(when::now_s()).unwrap_or(i64::MAX);
    RowCursor { created_at: newest.created_at.min(now_s), ..newest }.before(OVERLAP_S)
}
