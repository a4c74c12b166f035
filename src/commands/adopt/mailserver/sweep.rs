//! The last step of an adoption: compares all keys of the source with the archive. Missing
//! envelopes are stored, or counted by the reason of their refusal. With `--verify`, the bytes are
//! compared as well.

use hark_archive::{Query, Store};
use hark_codec::whisper::EnvelopeRecord;

use super::adoption::{MailAdoption, REASONS};
use super::convert::{convert, position};
use super::source::{EnvelopeRow, MailSource};
use crate::commands::adopt::rows::{find, put, text};
use crate::commands::adopt::sweep::{SourceSweep, SweepWords};
use crate::commands::adopt::tally::AdoptTally;
use crate::location::ArchiveLocation;
use crate::print::{self, CommandProgress};
use crate::writer::HistoryWriter;

/// Number of keys in one look-up.
const LOOK_UP: usize = 500;
const WORDS: SweepWords = SweepWords {
    rows: "keys in the source",
    damage: "parts of its files",
    reasons: REASONS,
    faulty: &[],
};

/// Compares all keys and stores the missing envelopes.
pub(super) fn run(
    source: &mut MailSource,
    writer: &mut HistoryWriter,
    location: &ArchiveLocation,
    adoption: &mut MailAdoption<'_>,
) -> anyhow::Result<SourceSweep> {
    let archive = location.read_beside(writer)?;
    let mut swept = SourceSweep::new(&WORDS, adoption.args.verify);
    source.begin(&[], 0)?;
    let total = source.total()?;
    let mut meter = CommandProgress::start("compare", total, source.unit());
    while !adoption.pace.is_stopped() {
        let rows = source.batch(adoption.pace.batch(adoption.args.batch))?;
        if rows.is_empty() {
            break;
        }
        for some in rows.chunks(LOOK_UP) {
            let missing = look_up(&*archive, some, &mut swept)?;
            store_envelopes(writer, adoption, &missing, &mut swept)?;
            adoption.pace.compared(some.len() as u64);
        }
        let done = source.done();
        meter.at(done, total.max(done), &print::count(swept.rows, "key"));
    }
    meter.finish();
    swept.set_damage(source.damage());
    Ok(swept)
}

/// Counts the rows whose envelopes the archive has, and returns the other rows.
fn look_up(
    archive: &dyn Store,
    rows: &[EnvelopeRow],
    swept: &mut SourceSweep,
) -> anyhow::Result<Vec<EnvelopeRow>> {
    swept.rows += rows.len() as u64;
    let positions: Vec<_> = rows.iter().filter_map(|row| position(&row.key)).collect();
    // The rows are close together in time, so a store that is partitioned by time searches few
    // partitions.
    let times = positions.iter().map(|position| u64::from(position.sent));
    let query = Query {
        ids: Some(positions.iter().map(|position| position.hash).collect()),
        from: times.clone().min().unwrap_or(0),
        to: times.max().unwrap_or(0),
        ..Query::default()
    };
    // The bytes of each envelope found, if bytes are compared.
    let compares = swept.compares();
    let found = find(archive, query, |record| {
        if compares { EnvelopeRecord::new(*record).rlp().to_vec() } else { Vec::new() }
    })?;
    let mut missing = Vec::new();
    for row in rows {
        let Some((hash, rlp)) =
            position(&row.key).and_then(|position| found.get_key_value(&position.hash))
        else {
            missing.push(row.clone());
            continue;
        };
        swept.found(*rlp == row.value, || text(hash));
    }
    Ok(missing)
}

/// Stores the envelopes of rows, and counts refusals by reason.
fn store_envelopes(
    writer: &mut HistoryWriter,
    adoption: &mut MailAdoption<'_>,
    rows: &[EnvelopeRow],
    swept: &mut SourceSweep,
) -> anyhow::Result<()> {
    let mut why = AdoptTally::new(REASONS);
    put(writer, convert(rows, &adoption.bounds), &mut why)?;
    adoption.tally.stored += why.stored;
    swept.put(why);
    Ok(())
}
