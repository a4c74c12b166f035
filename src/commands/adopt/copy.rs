//! The copy loop of an adoption. One thread reads and converts the next batches, while the main
//! thread stores each batch and saves its position.

use std::sync::mpsc::sync_channel;

use super::pace::AdoptPace;
use super::rows::{ConvertedRows, put};
use super::tally::AdoptTally;
use crate::print::{self, CommandProgress, CountedUnit};
use crate::writer::HistoryWriter;

/// Number of batches to read ahead.
const AHEAD: usize = 2;

/// A converted batch.
pub(super) struct AdoptBatch<P> {
    pub(super) converted: ConvertedRows,
    /// The position of its last row.
    pub(super) at: P,
    pub(super) rows: u64,
    /// How much of the source was read so far, including this batch, in the unit of [`AdoptTotal`].
    pub(super) done: u64,
}

/// The amount to copy.
pub(super) struct AdoptTotal {
    /// The size of the whole source, in `unit`.
    pub(super) total: u64,
    pub(super) unit: CountedUnit,
    /// The noun for a row in messages to people.
    pub(super) noun: &'static str,
    /// Number of rows that earlier runs have copied.
    pub(super) before: u64,
}

/// The destination of copied rows, and the counts.
pub(super) struct AdoptTarget<'a, 'p> {
    pub(super) writer: &'a mut HistoryWriter,
    pub(super) tally: &'a mut AdoptTally,
    pub(super) pace: &'a mut AdoptPace<'p>,
}

/// Copies the batches that `read` returns, until `read` returns `None` or the run is interrupted.
/// After each batch, `save` gets the position of the batch and the number of rows copied so far.
pub(super) fn copy<P: Send>(
    source: &AdoptTotal,
    to: AdoptTarget<'_, '_>,
    mut read: impl FnMut() -> anyhow::Result<Option<AdoptBatch<P>>> + Send,
    mut save: impl FnMut(P, u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let AdoptTarget { writer, tally, pace } = to;
    let mut meter = CommandProgress::start("adopt", source.total, source.unit);
    let (batches, queue) = sync_channel(AHEAD);
    let (mut rows, stop) = (source.before, pace.stop());
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let Some(batch) = read()? else { break };
                if batches.send(batch).is_err() {
                    break;
                }
            }
            anyhow::Ok(())
        });
        for batch in queue {
            put(writer, batch.converted, tally)?;
            rows += batch.rows;
            save(batch.at, rows)?;
            let rate = (rows - source.before) as f64 / pace.seconds().max(0.001);
            let copied = print::count(rows, source.noun);
            let words = format!("{copied}, {}/s", print::number(rate as u64));
            meter.at(batch.done, source.total.max(batch.done), &words);
            pace.wait(batch.rows);
            if pace.is_stopped() {
                // The next run copies the batches that were read ahead.
                break;
            }
        }
        reader.join().map_err(|_| anyhow::anyhow!("the reader has panicked"))?
    })?;
    meter.finish();
    Ok(())
}
