//! The last step of an adoption: looks up all events of the source in the archive. Missing events
//! are stored, or counted by the reason of their refusal. With `--verify`, the bytes are compared
//! as well.

use hark_archive::{Query, Record, Store};

use super::adoption::{REASONS, RelayAdoption};
use super::source::RelaySource;
use crate::commands::adopt::rows::{ConvertedRows, find, put};
use crate::commands::adopt::sweep::{SourceSweep, SweepWords};
use crate::commands::adopt::tally::AdoptTally;
use crate::commands::refusal::RefusalReason;
use crate::location::ArchiveLocation;
use crate::print::{self, CommandProgress, CountedUnit};
use crate::when;
use crate::writer::HistoryWriter;

/// Number of events in one look-up.
const LOOK_UP: usize = 500;
const WORDS: SweepWords = SweepWords {
    rows: "events in the source",
    damage: "pages",
    reasons: REASONS,
    faulty: &[RefusalReason::Malformed, RefusalReason::BadId, RefusalReason::BadSignature],
};

/// Looks up all events and stores the missing ones. If another file takes the place of the source's
/// file meanwhile, the comparison begins again, as the other file may have other numbers. Returns `None` if the run was interrupted. If
/// the run has followed the source, the interrupt has already happened, and the comparison runs to
/// its end.
pub(super) fn run(
    source: &mut impl RelaySource,
    writer: &mut HistoryWriter,
    location: &ArchiveLocation,
    adoption: &mut RelayAdoption<'_>,
    has_followed: bool,
) -> anyhow::Result<Option<SourceSweep>> {
    let archive = location.read_beside(writer)?;
    let mut swept = SourceSweep::new(&WORDS, adoption.args.verify);
    let total = source.last()?;
    let mut meter = CommandProgress::start("compare", total, CountedUnit::Records);
    let (mut after, mut file) = (0, source.file());
    loop {
        if adoption.pace.is_stopped() && !has_followed {
            return Ok(None);
        }
        let rows = source.batch(after, adoption.pace.batch(adoption.args.batch))?;
        if source.file() != file {
            (after, file) = (0, source.file());
            swept = SourceSweep::new(&WORDS, adoption.args.verify);
            continue;
        }
        let Some(last) = rows.last() else { break };
        after = last.number;
        for some in rows.chunks(LOOK_UP) {
            swept.rows += some.len() as u64;
            let mut converted = adoption.terms.convert(some, when::now_s());
            look_up(&*archive, &mut converted, &mut swept, &|a, b| a == b)?;
            let mut why = AdoptTally::new(REASONS);
            put(writer, converted, &mut why)?;
            adoption.tally.stored += why.stored;
            swept.put(why);
            adoption.pace.compared(some.len() as u64);
        }
        meter.at(after, total.max(after), &print::count(swept.rows, "event"));
    }
    meter.finish();
    swept.set_damage(source.damage());
    Ok(Some(swept))
}

/// Counts the records that the archive already has, and removes these records from the list. The
/// missing records remain. If bytes are compared, `is_same` compares the bytes in a row with the
/// bytes in the archive.
pub(in crate::commands::adopt) fn look_up(
    archive: &dyn Store,
    converted: &mut ConvertedRows,
    swept: &mut SourceSweep,
    is_same: &dyn Fn(&[u8], &[u8]) -> bool,
) -> anyhow::Result<()> {
    let views = || converted.records.iter().filter_map(|record| Record::new(record).ok());
    let query = Query {
        ids: Some(views().map(|record| *record.id()).collect()),
        // If the events are close together in time, a store that is partitioned by time searches
        // few partitions.
        from: views().map(|record| record.time()).min().unwrap_or(0),
        to: views().map(|record| record.time()).max().unwrap_or(0),
        ..Query::default()
    };
    // The JSON of each event found, if bytes are compared.
    let compares = swept.compares();
    let found =
        find(archive, query, |record| if compares { record.wire().to_vec() } else { Vec::new() })?;
    let (records, ids) =
        (std::mem::take(&mut converted.records), std::mem::take(&mut converted.ids));
    for (bytes, id) in records.into_iter().zip(ids) {
        let record = Record::new(&bytes).ok();
        let kept = record.and_then(|record| Some((record.wire(), found.get(record.id())?)));
        let Some((json, kept)) = kept else {
            converted.records.push(bytes);
            converted.ids.push(id);
            continue;
        };
        let is_equal = !swept.compares() || is_same(json, kept);
        swept.found(is_equal, || id);
    }
    Ok(())
}
