//! `hark export`: writes events or messages of one snapshot as JSONL, oldest first.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use hark_archive::{Order, Query};

use crate::commands::unfinished::{open, rename, unfinished};
use crate::damage;
use crate::interrupt;
use crate::location::ArchiveLocation;
use crate::print::{self, CommandProgress, CountedUnit};
use crate::question::{self, MergedAnswer};
use crate::when;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark export > events.jsonl
  hark export --output backup.jsonl.zst
  hark export '{\"kinds\":[30023]}' --since 2024-01-01 --until 2024-12-31T23:59:59
  hark export --since 7d

The oldest events come first, so that an import applies versions and deletions in the order of their
times. If you import an export into an empty archive and export this archive, the bytes are the
same. Expired events are left out. A file gets its name only when it is complete, and is readable
only by its owner. A file whose name ends in .gz or .zst is compressed.")]
pub(crate) struct ExportArgs {
    /// Filters of the network, as JSON; a record is written if it matches one of them [default: all
    /// records]
    #[arg(value_name = "FILTER")]
    pub(crate) filters: Vec<String>,
    /// The earliest time: seconds since 1970, a date (UTC), or an age like 12h or 7d
    #[arg(long, value_name = "TIME", value_parser = crate::when::parse)]
    pub(crate) since: Option<u64>,
    /// The latest time, given like --since
    #[arg(long, value_name = "TIME", value_parser = crate::when::parse)]
    pub(crate) until: Option<u64>,
    /// Write the newest records first, like a relay
    #[arg(long)]
    pub(crate) newest_first: bool,
    /// Write to this file instead of stdout
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// The progress of an export.
struct ExportProgress<'a> {
    meter: &'a mut CommandProgress,
    /// The network's word for a record.
    record: &'a str,
    /// Number of records; 0 if unknown.
    total: u64,
    /// Set when the export must end early.
    stop: &'a AtomicBool,
}

/// The effect of damaged records on an export.
const MISSING: &str = "The export has all others";
/// Number of records between two updates of the meter.
const METER_EVERY: u64 = 4096;

pub(crate) fn run(args: &ExportArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let now = when::now_s();
    let mut queries = question::read(location, &args.filters, now)?;
    if args.filters.is_empty() {
        queries.push(Query { now, ..Query::default() });
    }
    let time = |s: u64| s.saturating_mul(location.network.nature().units_per_s);
    for query in &mut queries {
        query.from = query.from.max(time(args.since.unwrap_or(0)));
        query.to = query.to.min(args.until.map_or(u64::MAX, time));
        // Records are in the order of time, not of relevance, because an import needs this order.
        query.ranked = false;
        query.order = if args.newest_first { Order::NewestFirst } else { Order::OldestFirst };
    }
    let store = location.read()?;
    let mut answer = MergedAnswer::new(&*store, &queries)?.with_lines(location.network);
    let record = location.network.record();
    let is_all = args.filters.is_empty() && args.since.is_none() && args.until.is_none();
    let total =
        || if is_all { Ok(store.stats().records) } else { question::total(&*store, &queries) };
    let Some(path) = &args.output else {
        let mut out = BufWriter::with_capacity(256 << 10, print::Output::new());
        if io::stdout().is_terminal() || !io::stderr().is_terminal() {
            write(&mut answer, &mut out, None)?;
            out.flush()?;
            return Ok(damage::report(&*store, location, MISSING));
        }
        let (total, stop) = (total()?, AtomicBool::new(false));
        let mut meter = CommandProgress::start("export", total, CountedUnit::Records);
        let progress = ExportProgress { meter: &mut meter, record, total, stop: &stop };
        let written = write(&mut answer, &mut out, Some(progress));
        meter.finish();
        written?;
        out.flush()?;
        return Ok(damage::report(&*store, location, MISSING));
    };
    let stop = interrupt::flag_leaving(&format!(
        " {} holds a part of the export; the next one to {} replaces it",
        unfinished(path).display(),
        path.display()
    ))?;
    let total = total()?;
    let mut meter = CommandProgress::start("export", total, CountedUnit::Records);
    let written = to_file(
        path,
        &mut answer,
        ExportProgress { meter: &mut meter, record, total, stop: &stop },
    );
    meter.finish();
    if stop.load(Ordering::Relaxed) && written.is_err() {
        print::note!("hark: stopped; the earlier content of {} is unchanged", path.display());
        return Ok(ExitCode::from(interrupt::INTERRUPTED));
    }
    let written = written.map_err(|error| {
        let advice = if is_disk_full(&error) {
            "Free disk space or choose another file, and run the export again"
        } else {
            "Remove the cause or choose another file, and run the export again"
        };
        let name = path.display();
        error.context(format!(
            "{name} could not be written; what was under this name is unchanged. {advice}"
        ))
    });
    print::note!("{} written to {}", print::count(written?, record), path.display());
    Ok(damage::report(&*store, location, MISSING))
}

/// Whether an export failed because the disk is full.
fn is_disk_full(error: &anyhow::Error) -> bool {
    let kinds = error.chain().filter_map(|cause| Some(cause.downcast_ref::<io::Error>()?.kind()));
    let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
    kinds.into_iter().any(|kind| full.contains(&kind))
}

fn write(
    answer: &mut MergedAnswer<'_>,
    out: &mut dyn Write,
    mut progress: Option<ExportProgress<'_>>,
) -> anyhow::Result<u64> {
    let mut records = 0;
    while let Some(found) = answer.next()? {
        out.write_all(&found.json)?;
        out.write_all(b"\n")?;
        records += 1;
        if records % METER_EVERY == 0
            && let Some(ExportProgress { meter, record, total, stop }) = &mut progress
        {
            meter.at(records, *total, &print::count(records, record));
            if stop.load(Ordering::Relaxed) {
                anyhow::bail!("stopped");
            }
        }
    }
    Ok(records)
}

/// Writes a file beside `path`, and renames it to `path` once it is complete and durable.
fn to_file(
    path: &Path,
    answer: &mut MergedAnswer<'_>,
    progress: ExportProgress<'_>,
) -> anyhow::Result<u64> {
    let unfinished = unfinished(path);
    let file = open(&unfinished, path)?;
    let whole = (|| {
        let out = BufWriter::with_capacity(256 << 10, file);
        let (records, out) = match path.extension().and_then(|ending| ending.to_str()) {
            Some("gz") => {
                let mut out = flate2::write::GzEncoder::new(out, flate2::Compression::default());
                (write(answer, &mut out, Some(progress))?, out.finish()?)
            }
            Some("zst") => {
                let mut out = zstd::stream::write::Encoder::new(out, 0)?;
                (write(answer, &mut out, Some(progress))?, out.finish()?)
            }
            _ => {
                let mut out = out;
                (write(answer, &mut out, Some(progress))?, out)
            }
        };
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        rename(&unfinished, path)?;
        anyhow::Ok(records)
    })();
    if whole.is_err() {
        // Only the first failure is reported: if the file remains, its name shows that it is
        // unfinished.
        let _ = std::fs::remove_file(&unfinished);
    }
    whole
}
