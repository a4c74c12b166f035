//! `hark copy`: copies all records of one archive to another, walking through both in parallel.

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context as _, bail};
use clap::Args;
use hark_archive::copy::{ComparisonWalk, Difference, WalkTarget};
use hark_archive::effects::Refusal;
use hark_archive::{Id, Outcome, Store};
use serde_json::json;

use crate::damage;
use crate::interrupt;
use crate::location::ArchiveLocation;
use crate::owner;
use crate::print::{self, CommandProgress, CountedUnit};
use crate::writer::HistoryWriter;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark copy --from /var/lib/hark --to /mnt/new
  hark copy --from data --to postgres://hark@127.0.0.1/hark
  hark copy --from postgres://hark@127.0.0.1/hark --to data --delete

Both archives are read side by side, oldest records first, and missing records are copied unchanged:
exports of both archives are then equal byte for byte. Servers may run on both archives. If new
records are written to the source meanwhile, the archives are compared again to copy these records,
at most three times in all. To continue an interrupted copy, run it again: existing records are only
compared. To switch to the copy without losing a record, use [mirror] (docs/moving.md).")]
pub(crate) struct CopyArgs {
    /// The archive to read: a directory or a postgres:// URL
    #[arg(long, value_name = "STORE")]
    pub(crate) from: String,
    /// The archive to write; created if missing
    #[arg(long, value_name = "STORE")]
    pub(crate) to: String,
    /// Delete records that only the target has, so that both archives become equal
    #[arg(long)]
    pub(crate) delete: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Maximum number of records that are made durable together, and maximum number of their bytes.
const BATCH_RECORDS: usize = 1024;
const BATCH_BYTES: usize = 4 << 20;
/// Maximum number of ids deleted together.
const BATCH_IDS: usize = 500;
/// Number of walks after the first. Each walk copies the records written during the previous walk,
/// and takes as long as reading both archives. If the source is written all the time, the last walk
/// leaves few records uncopied.
const WALKS_MORE: usize = 2;

/// The counts of a copy.
#[derive(Default)]
struct CopyTotals {
    compared: u64,
    copied: u64,
    refused: u64,
    /// Number of records that a ban of the target refuses.
    banned: u64,
    extra: u64,
    deleted: u64,
    /// Number of records of the source that could not be read.
    damaged: u64,
    /// Number of records that only the target has, but that --delete did not delete: they may be
    /// the damaged records of the source.
    spared: u64,
}

pub(crate) fn run(args: &CopyArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let (from, to) = (location.other(&args.from)?, location.other(&args.to)?);
    if args.from == args.to {
        bail!("--from and --to name the same archive; nothing was done");
    }
    from.must_exist()?;
    let stop = interrupt::flag()?;
    // A new directory gets the owner of the source's directory. A source in a database has no
    // directory with an owner.
    let makes = from.facts().is_in_directory && !to.exists();
    if makes {
        owner::make_dir_like(&to.data, &from.shelf())?;
    }
    let mut writer = to.import()?;
    if makes {
        owner::report_to_root(&to.data, Some(&from.shelf()));
    }
    let started = Instant::now();
    let mut sum = CopyTotals::default();
    for more in 0..=WALKS_MORE {
        let target = to.read_beside(&writer)?;
        // The source is opened after the target's records are noted, because servers may write to
        // both archives, and --delete must not delete records that the source has, too.
        let noted = WalkTarget::new(&*target)?;
        let source = from.read()?;
        let changed = (sum.copied, sum.deleted);
        walk(&*source, noted, &mut writer, args.delete, &stop, &mut sum)?;
        sum.damaged = source.stats().damaged;
        if (sum.copied, sum.deleted) == changed || stop.load(Ordering::Relaxed) {
            break;
        }
        if more < WALKS_MORE {
            print::note!("hark: comparing again, for records that were written meanwhile");
        }
    }
    let complete = !stop.load(Ordering::Relaxed);
    report(args, &sum, started, complete)?;
    writer.report_held();
    if !complete {
        print::note!(
            "hark: stopped; what is counted as copied is safe. Run the copy again to continue"
        );
        return Ok(ExitCode::from(interrupt::INTERRUPTED));
    }
    let effect = if sum.spared > 0 {
        "All others were copied; nothing was deleted that may be one of them"
    } else {
        "All others were copied"
    };
    Ok(damage::report_count(sum.damaged, &from, effect))
}

fn walk(
    source: &dyn Store,
    target: WalkTarget<'_>,
    writer: &mut HistoryWriter,
    delete: bool,
    stop: &AtomicBool,
    sum: &mut CopyTotals,
) -> anyhow::Result<()> {
    let total = source.stats().records;
    let mut meter = CommandProgress::start("copy", total, CountedUnit::Records);
    let mut walk = ComparisonWalk::with(source, target)?;
    let (mut records, mut bytes) = (Vec::new(), 0);
    let mut extra: Vec<Id> = Vec::new();
    (sum.extra, sum.refused, sum.banned, sum.spared) = (0, 0, 0, 0);
    let started = Instant::now();
    let walked = (|| {
        loop {
            let shown = |compared| {
                let rate = compared as f64 / started.elapsed().as_secs_f64().max(0.001);
                let words = format!(
                    "{} brought over, {}/s",
                    print::number(sum.copied),
                    print::number(rate as u64)
                );
                meter.at(compared, total, &words);
                let stops = stop.load(Ordering::Relaxed);
                if stops { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let Some(difference) = walk.next_difference_with(shown)? else { break };
            match difference {
                Difference::Missing(record) => {
                    bytes += record.len();
                    records.push(record);
                }
                Difference::Extra(id) => {
                    sum.extra += 1;
                    // Once the source has had a damaged record, a record that only the target has
                    // may be the last copy of the damaged record.
                    let spared = delete && walk.damaged() > 0;
                    sum.spared += u64::from(spared);
                    extra.extend((delete && !spared).then_some(id));
                }
            }
            if records.len() >= BATCH_RECORDS || bytes >= BATCH_BYTES {
                put(writer, std::mem::take(&mut records), sum)?;
                bytes = 0;
            }
            if extra.len() >= BATCH_IDS {
                sum.deleted += writer.erase(&std::mem::take(&mut extra))?;
            }
        }
        put(writer, std::mem::take(&mut records), sum)?;
        if !extra.is_empty() {
            sum.deleted += writer.erase(&extra)?;
        }
        anyhow::Ok(())
    })();
    meter.finish();
    sum.compared = walk.compared();
    walked
}

fn put(
    writer: &mut HistoryWriter,
    records: Vec<Box<[u8]>>,
    sum: &mut CopyTotals,
) -> anyhow::Result<()> {
    if records.is_empty() {
        return Ok(());
    }
    for outcome in writer.put(records)? {
        match outcome {
            Ok(Outcome::Stored { .. } | Outcome::Erased(_)) => sum.copied += 1,
            // Another writer has stored the record meanwhile.
            Ok(Outcome::Duplicate) => {}
            Ok(Outcome::Refused(Refusal::Banned)) => sum.banned += 1,
            Ok(Outcome::Superseded | Outcome::Refused(_)) => sum.refused += 1,
            Err(words) => {
                return Err(anyhow::anyhow!("{words}")).context(
                    "the server of the target could not store what it was given; look at its log, \
                     then run the copy again: it copies the missing records",
                );
            }
        }
    }
    Ok(())
}

fn report(
    args: &CopyArgs,
    sum: &CopyTotals,
    started: Instant,
    complete: bool,
) -> anyhow::Result<()> {
    let seconds = started.elapsed().as_secs_f64();
    if args.json {
        return print::line(
            &json!({
                "compared": sum.compared,
                "copied": sum.copied,
                "refused": sum.refused,
                "banned": sum.banned,
                "extra": sum.extra,
                "deleted": sum.deleted,
                "damaged": sum.damaged,
                "spared": sum.spared,
                "complete": complete,
                "seconds": seconds,
            })
            .to_string(),
        );
    }
    let rate = sum.copied as f64 / seconds.max(0.001);
    let left = match (args.delete, sum.spared) {
        (true, 0) => "deleted (--delete)".into(),
        (true, spared) => format!("{} of them left there", print::number(spared)),
        (false, _) => "left there".into(),
    };
    print::line(&print::table(&[
        (
            "brought over",
            print::number(sum.copied),
            format!("in {seconds:.1} s, {} a second", print::number(rate as u64)),
        ),
        ("the source has", print::number(sum.compared), String::new()),
        (
            "refused",
            print::number(sum.refused),
            "the target has newer versions or deletions".into(),
        ),
        ("banned", print::number(sum.banned), "`hark ban` of the target refuses them".into()),
        ("only the target has", print::number(sum.extra), left),
        ("could not be read", print::number(sum.damaged), String::new()),
    ]))
}
