//! The last step of an adoption: looks up all messages of the source in the archive. Missing
//! messages are stored, or counted by the reason of their refusal. With `--verify`, the messages
//! are compared as well.

use serde_json::{Value, json};

use super::adoption::{LOOK_UP, NwakuAdoption, REASONS, WORDS};
use super::convert::{DifferingHash, convert, is_same};
use super::row::NwakuCursor;
use super::source::NwakuSource;
use super::target::UnservedTopics;
use crate::commands::adopt::relay::sweep::look_up;
use crate::commands::adopt::rows::put;
use crate::commands::adopt::sweep::SourceSweep;
use crate::commands::adopt::tally::AdoptTally;
use crate::location::ArchiveLocation;
use crate::print::{self, CommandProgress, CountedUnit};
use crate::writer::HistoryWriter;

/// A report lists at most this many stored hashes that differ.
const LISTED_MAX: usize = 10;

/// Looks up all messages and stores the missing ones. Returns `None` if the run was interrupted.
/// With --follow, the interrupt has already happened, and the comparison runs to its end.
pub(super) fn run(
    source: &mut NwakuSource,
    writer: &mut HistoryWriter,
    location: &ArchiveLocation,
    adoption: &mut NwakuAdoption<'_>,
    has_followed: bool,
) -> anyhow::Result<Option<SourceSweep>> {
    if adoption.pace.is_stopped() && !has_followed {
        return Ok(None);
    }
    let archive = location.read_beside(writer)?;
    let mut swept = SourceSweep::new(&WORDS, adoption.args.verify);
    let mut unserved = UnservedTopics::new(location);
    let (mut differing, mut first) = (0, Vec::new());
    let total = source.total()?;
    let mut meter = CommandProgress::start("compare", total, CountedUnit::Records);
    let mut at = NwakuCursor::start();
    loop {
        if adoption.pace.is_stopped() && !has_followed {
            return Ok(None);
        }
        let rows = source.after(&at, adoption.pace.batch(adoption.args.batch))?;
        let Some(last) = rows.last() else { break };
        at = last.at.clone();
        for some in rows.chunks(LOOK_UP) {
            swept.rows += some.len() as u64;
            let (mut converted, others) = convert(some, &adoption.bounds);
            differing += others.len() as u64;
            first.extend(others.into_iter().take(LISTED_MAX - first.len()));
            for row in some {
                unserved.count(&row.pubsub_topic);
            }
            look_up(&*archive, &mut converted, &mut swept, &is_same)?;
            let mut why = AdoptTally::new(REASONS);
            put(writer, converted, &mut why)?;
            adoption.tally.stored += why.stored;
            swept.put(why);
            adoption.pace.compared(some.len() as u64);
        }
        meter.at(swept.rows, total.max(swept.rows), &print::count(swept.rows, "message"));
    }
    meter.finish();
    report_hashes(&mut swept, differing, &first);
    report_dropped(&mut swept, &source.dropped_partitions()?);
    unserved.report(&mut swept);
    Ok(Some(swept))
}

/// Adds the stored hashes that differ to the report.
fn report_hashes(swept: &mut SourceSweep, count: u64, first: &[DifferingHash]) {
    let pairs: Vec<Value> = (first.iter())
        .map(|pair| json!({ "stored": pair.stored, "computed": pair.computed }))
        .collect();
    swept.add_finding("hashes_differ", json!(count));
    swept.add_finding("hashes_differ_first", Value::Array(pairs));
    if count > 0 {
        let pairs: Vec<String> =
            first.iter().map(|pair| format!("{} is {}", pair.stored, pair.computed)).collect();
        let words = format!(
            "in the source; stored under the message's own hash; first {}",
            pairs.join(", ")
        );
        swept.add_row("other hashes", count, words);
    }
}

/// Adds the partitions that nwaku has removed to the report.
fn report_dropped(swept: &mut SourceSweep, dropped: &[String]) {
    swept.add_finding("partitions_gone", json!(dropped));
    if let Some(first) = dropped.first() {
        let words = format!("removed by nwaku since the start; the first is {first}");
        swept.add_row("partitions gone", dropped.len() as u64, words);
    }
}
