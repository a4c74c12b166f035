//! One run of an adoption from a mail server: the copy of all rows.

use clap::Args;
use hark_networks::whisper::admit::EnvelopeBounds;

use super::convert::convert;
use super::progress::MailProgress;
use super::source::MailSource;
use crate::commands::adopt::copy::{AdoptBatch, AdoptTarget, AdoptTotal, copy};
use crate::commands::adopt::pace::AdoptPace;
use crate::commands::adopt::tally::{AdoptTally, ReasonWords};
use crate::commands::refusal::RefusalReason;
use crate::writer::HistoryWriter;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark adopt mailserver /var/lib/statusd/wnode
  hark adopt mailserver postgres://statusd@127.0.0.1/statusd
  hark adopt mailserver ... --verify      once more, and compare every envelope

The source is a LevelDB directory, which has a file CURRENT, or a database with the table
`envelopes`. The source is only read, and the mail server may keep running. Entries in LevelDB's
logs are also read.

Envelopes are copied in the order of their time, in batches. The position is saved with each batch,
so an interrupted run continues where it was, and nothing is stored twice. At the end, all keys are
compared with the archive, and envelopes that arrived late are copied. Every envelope must have the
hash in its key. Refused envelopes are counted by reason. Keys that do not have the form of a mail
server's keys are skipped and counted.")]
pub(in crate::commands::adopt) struct AdoptMailserverArgs {
    /// The mail server's directory, or its database: postgres://user:password@host:port/database
    #[arg(value_name = "DIR|URL")]
    pub(super) from: String,
    /// Maximum number of envelopes a second [default: as fast as possible]
    #[arg(long, value_name = "N")]
    pub(super) rate: Option<u64>,
    /// Number of envelopes in a batch
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    pub(super) batch: u32,
    /// Compare every envelope with the archive's, byte for byte
    #[arg(long)]
    pub(super) verify: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// The reasons why rows are not copied.
pub(super) const REASONS: ReasonWords = &[
    (RefusalReason::Malformed, "malformed", "not an envelope"),
    (RefusalReason::BadId, "bad id", "the hash in the key is not the envelope's hash"),
    (RefusalReason::TooLarge, "too large", "above whisper.envelope_bytes_max"),
    (RefusalReason::Duplicate, "duplicate", "already kept"),
    (RefusalReason::Foreign, "foreign", "a key that no mail server makes"),
];

/// The state of one run.
pub(super) struct MailAdoption<'a> {
    pub(super) args: &'a AdoptMailserverArgs,
    pub(super) bounds: EnvelopeBounds,
    pub(super) pace: AdoptPace<'a>,
    pub(super) tally: AdoptTally,
}

impl MailAdoption<'_> {
    /// Copies all rows after the saved position.
    pub(super) fn copy(
        &mut self,
        source: &mut MailSource,
        writer: &mut HistoryWriter,
        progress: &mut MailProgress,
    ) -> anyhow::Result<()> {
        source.begin(&progress.key, progress.envelopes)?;
        let total = AdoptTotal {
            total: source.total()?,
            unit: source.unit(),
            noun: "envelope",
            before: progress.envelopes,
        };
        let (batch, bounds) = (self.pace.batch(self.args.batch), self.bounds);
        let read = || {
            let rows = source.batch(batch)?;
            let Some(last) = rows.last() else { return Ok(None) };
            let (at, converted) = (last.key.clone(), convert(&rows, &bounds));
            let rows = rows.len() as u64;
            Ok(Some(AdoptBatch { converted, at, rows, done: source.done() }))
        };
        let to = AdoptTarget { writer, tally: &mut self.tally, pace: &mut self.pace };
        copy(&total, to, read, |key, envelopes| {
            (progress.key, progress.envelopes) = (key, envelopes);
            progress.save()
        })
    }
}
