//! `hark adopt mailserver`: copies the envelopes of a mail server of Status or go-ethereum, from
//! its LevelDB directory or from its PostgreSQL database.
//!
//! Rows are read in the order of their keys, which is the order of time. The last key of each batch
//! is saved, and the next run continues behind this key.

mod convert;
mod leveldb;
mod progress;
mod source;
mod sweep;

use std::process::ExitCode;

use clap::Args;
use hark_networks::whisper::Whisper;
use hark_networks::whisper::admit::EnvelopeBounds;

use self::convert::convert;
use self::progress::MailProgress;
use self::source::MailSource;
use super::copy::{AdoptBatch, AdoptTarget, AdoptTotal, copy};
use super::pace::AdoptPace;
use super::sweep::finish;
use super::tally::{AdoptTally, ReasonWords};
use crate::commands::refusal::RefusalReason;
use crate::interrupt;
use crate::location::ArchiveLocation;
use crate::print;
use crate::writer::HistoryWriter;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark adopt mailserver /var/lib/statusd/wnode
  hark adopt mailserver postgres://statusd@127.0.0.1/statusd
  hark adopt mailserver ... --verify      once more, and compare every envelope

A directory is one of LevelDB's: it has a file CURRENT. Only reads there: the mail server may go on, and what
it has in a log and not in a table yet is read as well. A database has the table `envelopes`.

Envelopes come in the order of their time, a batch at a time; where it is, is remembered with each batch, so
a run that was stopped or killed goes on when run again, and nothing comes twice. At the end all keys are
compared, which brings in what came late. Every envelope is checked to have the hash that its key says.
What is refused is counted by reason; keys that are not a mail server's are skipped and counted.")]
pub(super) struct AdoptMailserverArgs {
    /// The mail server's directory, or its database: postgres://user:password@host:port/database
    #[arg(value_name = "DIR|URL")]
    from: String,
    /// Most envelopes a second [default: as fast as possible]
    #[arg(long, value_name = "N")]
    rate: Option<u64>,
    /// Envelopes in a batch
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    batch: u32,
    /// Compare every envelope with the archive's, byte for byte
    #[arg(long)]
    verify: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The reasons why rows are not copied.
const REASONS: ReasonWords = &[
    (RefusalReason::Malformed, "malformed", "not an envelope"),
    (RefusalReason::BadId, "bad id", "the key says another hash than the envelope has"),
    (RefusalReason::TooLarge, "too large", "above whisper.envelope_bytes_max"),
    (RefusalReason::Duplicate, "duplicate", "already kept"),
    (RefusalReason::Foreign, "foreign", "a key that no mail server makes"),
];

pub(super) fn run(
    args: &AdoptMailserverArgs,
    location: &ArchiveLocation,
) -> anyhow::Result<ExitCode> {
    let stop = interrupt::flag()?;
    let mut source = MailSource::open(&args.from)?;
    let location = &location.of(&Whisper);
    let mut writer = location.bring()?;
    hark_store_embedded::permissions::create_dir(&location.data)?;
    let mut progress = MailProgress::open(location, &source.name())?;
    if !progress.key.is_empty() {
        let envelopes = print::count(progress.envelopes, "envelope");
        print::note!("hark: continuing an earlier run, after {envelopes}");
    }
    let envelope_bytes_max = location.shelf_config().record_bytes_max;
    let mut adoption = MailAdoption {
        args,
        // The mail server has accepted the envelopes, each with the minimum proof of work at that
        // time.
        bounds: EnvelopeBounds { envelope_bytes_max, pow_min: 0.0 },
        pace: AdoptPace::start(args.rate, &stop),
        tally: AdoptTally::new(REASONS),
    };
    adoption.copy(&mut source, &mut writer, &mut progress)?;
    let swept = if adoption.pace.is_stopped() {
        None
    } else {
        let swept = sweep::run(&mut source, &mut writer, location, &mut adoption)?;
        Some(swept).filter(|_| !adoption.pace.is_stopped())
    };
    writer.tell_held();
    finish(&adoption.tally, &adoption.pace, args.json, swept.as_ref())
}

/// The state of one run.
struct MailAdoption<'a> {
    args: &'a AdoptMailserverArgs,
    bounds: EnvelopeBounds,
    pace: AdoptPace<'a>,
    tally: AdoptTally,
}

impl MailAdoption<'_> {
    /// Copies all rows after the saved position.
    fn copy(
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
