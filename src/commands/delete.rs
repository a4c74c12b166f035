//! `hark delete`: shows what a filter would delete, or deletes it in batches (`--yes`).

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::bail;
use clap::Args;
use hark_archive::{Id, Query};

use crate::damage;
use crate::interrupt;
use crate::location::ArchiveLocation;
use crate::print::{self, CommandProgress, CountedUnit};
use crate::question::{self, MergedAnswer};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark delete '{\"kinds\":[4],\"until\":1700000000}'          shows the number and a few events
  hark delete '{\"kinds\":[4],\"until\":1700000000}' --yes    deletes all of them

Deleted events may come back from other relays, because the archive does not remember deleted
events. Deletions and requests to vanish prevent other events from being stored again, so they are
deleted only if a filter names their kinds or ids.")]
pub(crate) struct DeleteArgs {
    /// Filters of the network, as JSON
    #[arg(value_name = "FILTER", required = true)]
    pub(crate) filters: Vec<String>,
    /// Really delete
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Maximum number of deletions made durable together.
const BATCH_IDS: usize = 500;
/// Number of events shown before a deletion.
const SHOWN: u64 = 5;
/// Maximum number of characters shown of an event.
const SHOWN_CHARS: usize = 160;
/// The effect of damaged records on the shown count and on the deletion.
const NOT_MATCHED: &str = "They are not counted, whether or not they match";
const NOT_DELETED: &str = "They were not deleted, whether or not they match";

pub(crate) fn run(args: &DeleteArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let queries = deletable(location, &args.filters)?;
    if queries.iter().any(|query| query.limit == 0) {
        bail!("a limit of 0 matches nothing; leave it out to delete all that matches");
    }
    location.must_exist()?;
    if args.yes { delete(args, location, &queries) } else { dry_run(args, location, &queries) }
}

/// Reads the filters of records to delete. A filter that names neither kinds nor ids leaves out the
/// kinds that keep deleted records away.
pub(crate) fn deletable(
    location: &ArchiveLocation,
    filters: &[String],
) -> anyhow::Result<Vec<Query>> {
    // At time 0 no record counts as expired, so the filters also match expired records.
    let mut queries = question::read(location, filters, 0)?;
    let rules = location.network.rules();
    let tombstones: Vec<u32> =
        (0..=u32::from(u16::MAX)).filter(|kind| rules.forbids(*kind)).collect();
    for query in queries.iter_mut().filter(|query| query.kinds.is_none() && query.ids.is_none()) {
        query.not_kinds.extend(&tombstones);
        query.normalise();
    }
    Ok(queries)
}

fn dry_run(
    args: &DeleteArgs,
    location: &ArchiveLocation,
    queries: &[Query],
) -> anyhow::Result<ExitCode> {
    let store = location.read()?;
    let mut answer = MergedAnswer::new(&*store, queries)?.with_lines(location.network);
    let mut matching = 0;
    let mut shown = Vec::new();
    while let Some(found) = answer.next()? {
        matching += 1;
        if matching <= SHOWN {
            shown.push(found.json);
        }
    }
    let damaged = store.stats().damaged;
    if args.json {
        let json = serde_json::json!({ "matching": matching, "deleted": 0, "damaged": damaged });
        print::line(&json.to_string())?;
        return Ok(damage::report_count(damaged, location, NOT_MATCHED));
    }
    let matches = if matching == 1 { "matches" } else { "match" };
    let count = print::count(matching, location.network.record());
    print::line(&format!("{count} {matches}; nothing was deleted"))?;
    for event in shown {
        let text = String::from_utf8_lossy(&event);
        let start: String = text.chars().take(SHOWN_CHARS).collect();
        let dots = if start.len() < text.len() { " ..." } else { "" };
        print::line(&format!("  {start}{dots}"))?;
    }
    if matching > SHOWN {
        print::line(&format!("  and {} more", print::number(matching - SHOWN)))?;
    }
    if matching > 0 {
        print::line("to delete them, run it again with --yes")?;
    }
    Ok(damage::report_count(damaged, location, NOT_MATCHED))
}

fn delete(
    args: &DeleteArgs,
    location: &ArchiveLocation,
    queries: &[Query],
) -> anyhow::Result<ExitCode> {
    let stop = interrupt::flag()?;
    let mut writer = location.write()?;
    // The ids come from one snapshot, so records that arrive later are not deleted.
    let store = location.read_beside(&writer)?;
    let mut answer = MergedAnswer::new(&*store, queries)?;
    let limits = queries.iter().fold(0, |sum: u64, query| sum.saturating_add(query.limit as u64));
    let total = question::count(&*store, queries)?.min(limits);
    let mut meter = CommandProgress::start("delete", total, CountedUnit::Records);
    let mut ids: Vec<Id> = Vec::with_capacity(BATCH_IDS);
    let (mut seen, mut deleted) = (0, 0);
    let mut stopped = false;
    loop {
        let found = answer.next()?;
        let last = found.is_none();
        ids.extend(found.map(|found| found.position.id));
        if !ids.is_empty() && (last || ids.len() == BATCH_IDS) {
            seen += ids.len() as u64;
            deleted += writer.erase(&ids)?;
            ids.clear();
            meter.at(seen, total.max(seen), "");
            stopped = !last && stop.load(Ordering::Relaxed);
        }
        if last || stopped {
            break;
        }
    }
    meter.finish();
    let damaged = store.stats().damaged;
    let text = if args.json {
        serde_json::json!({ "matching": seen, "deleted": deleted, "damaged": damaged }).to_string()
    } else {
        let more = if stopped { "; stopped before the end, run it again to continue" } else { "" };
        format!("{} deleted{more}", print::count(deleted, location.network.record()))
    };
    print::line(&text)?;
    let told = damage::report_count(damaged, location, NOT_DELETED);
    Ok(if stopped { ExitCode::from(interrupt::INTERRUPTED) } else { told })
}
