//! One run of an adoption from nwaku: the copy of all rows, and of new messages.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use clap::Args;
use hark_networks::waku::NS_PER_S;
use hark_networks::waku::admit::MessageBounds;

use super::convert::{convert, is_same};
use super::progress::NwakuProgress;
use super::row::{NwakuCursor, NwakuRow};
use super::source::NwakuSource;
use crate::commands::adopt::copy::{AdoptBatch, AdoptTarget, AdoptTotal, copy};
use crate::commands::adopt::pace::AdoptPace;
use crate::commands::adopt::relay::sweep::look_up;
use crate::commands::adopt::rows::put;
use crate::commands::adopt::sweep::{SourceSweep, SweepWords};
use crate::commands::adopt::tally::{AdoptTally, ReasonWords};
use crate::commands::refusal::RefusalReason;
use crate::location::ArchiveLocation;
use crate::print::{self, CountedUnit};
use crate::when;
use crate::writer::HistoryWriter;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark adopt nwaku postgres://nwaku@127.0.0.1/postgres
  hark adopt nwaku /var/lib/nwaku/store.sqlite3
  hark adopt nwaku ... --follow      beside a node in use, until Ctrl-C
  hark adopt nwaku ... --verify      once more, and compare every message

The source is the value of the node's --store-message-db-url: a PostgreSQL database with schema
version 1 to 8, or an SQLite file with schema version 7 to 10. The source is only read, in short
statements, and the node may keep running. If several nodes share one database, adopt it once.
SQLite needs the files store.sqlite3-wal and store.sqlite3-shm beside the database for reading, so
run this as root or as the node's user.

Messages are copied in the order of their time, in batches. The position is saved with each batch,
so an interrupted run continues where it was, and nothing is stored twice. At the end, all messages
are looked up in the archive, and messages that arrived late are copied. Partitions that the node
removes meanwhile are skipped and reported. With --follow, new messages are copied until Ctrl-C, and
the last 6 hours are read again every 5 minutes, since the node's sync also adds older messages.

The hash of each message is computed from the message (RFC 14). Hashes in the source that differ are
counted and listed. Refused messages are counted by reason. nwaku keeps neither rate-limit proofs
nor ephemeral messages.")]
pub(in crate::commands::adopt) struct AdoptNwakuArgs {
    /// The node's SQLite file, or its database: postgres://user:password@host:port/database
    #[arg(value_name = "FILE|URL")]
    pub(super) from: String,
    /// Maximum number of messages a second [default: as fast as possible]
    #[arg(long, value_name = "N")]
    pub(super) rate: Option<u64>,
    /// Number of messages in a batch
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    pub(super) batch: u32,
    /// Afterwards, copy new messages, until Ctrl-C
    #[arg(long)]
    pub(super) follow: bool,
    /// Compare every message with the archive's
    #[arg(long)]
    pub(super) verify: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// The reasons why rows are not copied.
pub(super) const REASONS: ReasonWords = &[
    (RefusalReason::NoPayload, "no payload", "other nodes cannot read such a message"),
    (RefusalReason::BadTopic, "bad topic", "a topic that is empty or not UTF-8"),
    (RefusalReason::BadTime, "bad time", "no time, or a time before 1970"),
    (RefusalReason::TooLarge, "too large", "above waku.message_bytes_max"),
    (RefusalReason::Malformed, "malformed", "not a message"),
    (RefusalReason::Duplicate, "duplicate", "already kept"),
];
/// The words of reports.
pub(super) const WORDS: SweepWords =
    SweepWords { rows: "messages in the source", damage: "parts", reasons: REASONS, faulty: &[] };
/// Number of messages in one look-up.
pub(super) const LOOK_UP: usize = 500;
/// Interval between two reads of new messages, and the overlap of two reads, since messages may
/// arrive a little late.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
const OVERLAP_S: u64 = 120;
/// Interval between two reads of recent messages, and the maximum age of these messages. A node
/// gets messages that are up to an hour old by sync, and after a time offline, it fetches the
/// messages of the last 6 hours.
const RECENT_EVERY: Duration = Duration::from_mins(5);
const RECENT_S: u64 = 6 * 3_600;

/// The state of one run.
pub(super) struct NwakuAdoption<'a> {
    pub(super) args: &'a AdoptNwakuArgs,
    pub(super) bounds: MessageBounds,
    pub(super) pace: AdoptPace<'a>,
    pub(super) tally: AdoptTally,
}

impl NwakuAdoption<'_> {
    /// Copies all rows after the saved position.
    pub(super) fn copy(
        &mut self,
        source: &mut NwakuSource,
        writer: &mut HistoryWriter,
        progress: &mut NwakuProgress,
    ) -> anyhow::Result<()> {
        let total = AdoptTotal {
            total: source.total()?,
            unit: CountedUnit::Records,
            noun: "message",
            before: progress.messages,
        };
        let (mut at, mut done) = (progress.at.clone(), progress.messages);
        let (batch, bounds) = (self.pace.batch(self.args.batch), self.bounds);
        let read = || {
            let rows = source.after(&at, batch)?;
            let Some(last) = rows.last() else { return Ok(None) };
            at = last.at.clone();
            done += rows.len() as u64;
            let (converted, _) = convert(&rows, &bounds);
            Ok(Some(AdoptBatch { converted, at: at.clone(), rows: rows.len() as u64, done }))
        };
        let to = AdoptTarget { writer, tally: &mut self.tally, pace: &mut self.pace };
        copy(&total, to, read, |at, messages| {
            (progress.at, progress.messages) = (at, messages);
            progress.save()
        })
    }

    /// Copies new messages until an interrupt.
    pub(super) fn follow(
        &mut self,
        source: &mut NwakuSource,
        writer: &mut HistoryWriter,
        progress: &mut NwakuProgress,
        location: &ArchiveLocation,
    ) -> anyhow::Result<()> {
        print::note!(
            "hark: brought over: {}; new messages follow until Ctrl-C. Stop nwaku before Ctrl-C, and \
             nothing is missing",
            print::count(progress.messages, "message")
        );
        let mut recent_due = Instant::now();
        // The keys of the rows in the previous read, which the next read returns again.
        let mut known: HashSet<NwakuCursor> = HashSet::new();
        while !self.pace.is_stopped() {
            if Instant::now() >= recent_due {
                self.copy_recent(source, writer, progress, location)?;
                recent_due = Instant::now() + RECENT_EVERY;
            }
            if source.is_by_time() {
                let since = before_now(OVERLAP_S).min(progress.at.time);
                let mut at = NwakuCursor::since(since.saturating_sub(in_ns(OVERLAP_S)));
                let mut read = HashSet::new();
                while !self.pace.is_stopped() {
                    let rows = source.after(&at, self.args.batch)?;
                    let Some(last) = rows.last() else { break };
                    at = last.at.clone();
                    read.extend(rows.iter().map(|row| row.at.clone()));
                    let is_new = |row: &NwakuRow| !known.contains(&row.at);
                    let new: Vec<NwakuRow> = rows.into_iter().filter(is_new).collect();
                    self.put_new(writer, progress, &new, None)?;
                }
                known = read;
                if at > progress.at {
                    progress.at = at;
                    progress.save()?;
                }
            }
            self.pace.pause(FOLLOW_EVERY);
        }
        Ok(())
    }

    /// Copies messages of the last 6 hours that the archive lacks.
    fn copy_recent(
        &mut self,
        source: &mut NwakuSource,
        writer: &mut HistoryWriter,
        progress: &mut NwakuProgress,
        location: &ArchiveLocation,
    ) -> anyhow::Result<()> {
        let archive = location.read_beside(writer)?;
        let mut at = NwakuCursor::since(before_now(RECENT_S));
        while !self.pace.is_stopped() {
            let rows = source.after(&at, self.args.batch)?;
            let Some(last) = rows.last() else { break };
            at = last.at.clone();
            self.put_new(writer, progress, &rows, Some(&*archive))?;
        }
        Ok(())
    }

    /// Stores rows. Rows that `archive` has are left out.
    fn put_new(
        &mut self,
        writer: &mut HistoryWriter,
        progress: &mut NwakuProgress,
        rows: &[NwakuRow],
        archive: Option<&dyn hark_archive::Store>,
    ) -> anyhow::Result<()> {
        for some in rows.chunks(LOOK_UP) {
            let (mut converted, _) = convert(some, &self.bounds);
            if let Some(archive) = archive {
                look_up(archive, &mut converted, &mut SourceSweep::new(&WORDS, false), &is_same)?;
            }
            let mut tally = AdoptTally::new(REASONS);
            put(writer, converted, &mut tally)?;
            progress.messages += tally.stored;
            self.tally.stored += tally.stored;
            self.pace.wait(tally.stored);
        }
        Ok(())
    }
}

/// Returns the time `seconds` before now, in ns.
fn before_now(seconds: u64) -> i64 {
    in_ns(when::now_s().saturating_sub(seconds))
}

fn in_ns(seconds: u64) -> i64 {
    i64::try_from(seconds.saturating_mul(NS_PER_S)).unwrap_or(i64::MAX)
}
