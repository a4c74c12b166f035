//! The last step of an adoption: looks up all ids of the source in the archive. Missing events are
//! stored, or counted by the reason of their refusal. A sample is compared byte for byte.

use hark_archive::{Id, Query, Store};
use serde_json::{Value, json};

use super::adoption::{Adoption, REASONS};
use super::source::{NostreamRow, NostreamSource, RowCursor};
use crate::commands::adopt::rows::{ConvertedRows, find, put, text};
use crate::commands::adopt::tally::AdoptTally;
use crate::commands::refusal::RefusalReason;
use crate::location::ArchiveLocation;
use crate::print::{self, CommandProgress, CountedUnit};
use crate::when;
use crate::writer::HistoryWriter;

/// Number of ids in one read, and in one look-up.
const READ: u32 = 20_000;
const LOOK_UP: usize = 500;
/// The reasons for refusals that show that the source is damaged.
const FAULTY: [RefusalReason; 3] =
    [RefusalReason::Malformed, RefusalReason::BadId, RefusalReason::BadSignature];

/// The result of the comparison.
#[derive(Debug)]
pub(super) struct SweepTotals {
    /// Numbers of ids in the source: all ids, and the ids that nostream would return to clients.
    ids: u64,
    alive: u64,
    /// Numbers of ids of the source by outcome: already in the archive, stored by the comparison,
    /// and refused.
    here: u64,
    late: u64,
    refused: u64,
    /// Why ids were refused.
    why: AdoptTally,
    /// The number of events compared in the sample, and the ids of those that differ.
    sampled: u64,
    different: Vec<String>,
}

impl SweepTotals {
    fn new(alive: u64) -> Self {
        Self {
            ids: 0,
            alive,
            here: 0,
            late: 0,
            refused: 0,
            why: AdoptTally::new(REASONS),
            sampled: 0,
            different: Vec::new(),
        }
    }

    /// Returns the number of rows of the source that have no valid event, or an event with another
    /// id.
    pub(super) fn faulty(&self) -> u64 {
        FAULTY.iter().map(|reason| self.why.count(*reason)).sum()
    }

    /// Whether the comparison found no fault. Every id must be in the archive or refused for a
    /// reason other than damage of the source, and no event may differ.
    pub(super) fn is_clean(&self) -> bool {
        let missing = self.ids != self.here + self.late + self.refused;
        !missing && self.different.is_empty() && self.faulty() == 0
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "source": self.ids,
            "source_alive": self.alive,
            "here": self.here,
            "late": self.late,
            "refused": self.refused,
            "reasons": self.why.to_json(),
            "faulty": self.faulty(),
            "sampled": self.sampled,
            "different": self.different,
            "clean": self.is_clean(),
        })
    }

    /// Returns the rows of the report for people.
    pub(super) fn rows(&self) -> Vec<(&'static str, String, String)> {
        let plain = String::new;
        let mut rows = vec![
            (
                "ids in the source",
                print::number(self.ids),
                format!("{} not deleted", print::number(self.alive)),
            ),
            ("of them stored", print::number(self.here), plain()),
            ("stored late", print::number(self.late), plain()),
            ("not stored", print::number(self.refused), "for these reasons:".into()),
        ];
        rows.extend(self.why.rows());
        if self.sampled > 0 {
            let words = if self.different.is_empty() {
                "all are equal".into()
            } else {
                format!("{} DIFFER: {}", self.different.len(), self.different.join(", "))
            };
            rows.push(("compared", print::number(self.sampled), words));
        }
        let missing = self.ids.saturating_sub(self.here + self.late + self.refused);
        if missing > 0 {
            rows.push(("MISSING", print::number(missing), "run it again".into()));
        }
        rows
    }
}

/// Compares all ids, stores the missing events, and compares a sample. An interrupt ends the
/// comparison, and the result is `None`, unless the run has followed the source until then.
pub(super) fn run(
    source: &mut NostreamSource,
    writer: &mut HistoryWriter,
    location: &ArchiveLocation,
    adoption: &mut Adoption<'_>,
    has_followed: bool,
) -> anyhow::Result<Option<SweepTotals>> {
    if adoption.stopped() && !has_followed {
        return Ok(None);
    }
    let archive = location.read_beside(writer)?;
    let mut swept = SweepTotals::new(source.count()?);
    let total = source.estimate()?;
    let mut meter = CommandProgress::start("compare ids", total, CountedUnit::Records);
    let mut after = RowCursor::default();
    loop {
        if adoption.stopped() && !has_followed {
            return Ok(None);
        }
        let places = source.places(&after, i64::from(adoption.pace.batch(READ)))?;
        let Some(last) = places.last() else { break };
        after = *last;
        swept.ids += places.len() as u64;
        let mut missing = Vec::new();
        for some in places.chunks(LOOK_UP) {
            missing_of(&*archive, some, &mut missing)?;
            adoption.pace.compared(some.len() as u64);
        }
        swept.here += (places.len() - missing.len()) as u64;
        for some in missing.chunks(LOOK_UP) {
            store_events(source, writer, adoption, some, &mut swept)?;
        }
        meter.at(swept.ids, total.max(swept.ids), "");
    }
    meter.finish();
    if let Some(sample) = adoption.args.verify.filter(|sample| *sample > 0) {
        // The archive is opened again, so that the comparison finds the events that were stored
        // meanwhile.
        compare(source, &*location.read_beside(writer)?, adoption, sample, &mut swept)?;
    }
    Ok(Some(swept))
}

/// Appends to `missing` the ids of `places` that the archive lacks. The times of `places` are close
/// together, so a store that is partitioned by time searches few partitions.
fn missing_of(
    archive: &dyn Store,
    places: &[RowCursor],
    missing: &mut Vec<Id>,
) -> anyhow::Result<()> {
    let ids: Vec<Id> = places.iter().map(|location| location.id).collect();
    let time =
        |location: Option<&RowCursor>| location.and_then(|at| u64::try_from(at.created_at).ok());
    let query = Query {
        ids: Some(ids.clone()),
        from: time(places.first()).unwrap_or(0),
        to: time(places.last()).unwrap_or(u64::MAX),
        ..Query::default()
    };
    if archive.count(&query)? == Some(ids.len() as u64) {
        return Ok(());
    }
    let found = find(archive, query, |_| ())?;
    missing.extend(ids.iter().filter(|id| !found.contains_key(*id)));
    Ok(())
}

/// Stores the events of `ids`, and counts refusals by reason.
fn store_events(
    source: &NostreamSource,
    writer: &mut HistoryWriter,
    adoption: &mut Adoption<'_>,
    ids: &[Id],
    swept: &mut SweepTotals,
) -> anyhow::Result<()> {
    let rows = source.of_ids(ids)?;
    let converted = adoption.terms.convert(&rows, when::now_s());
    let mut why = AdoptTally::new(REASONS);
    put(writer, converted, &mut why)?;
    for id in ids.iter().filter(|id| !rows.iter().any(|row| row.id == id[..])) {
        why.refuse(RefusalReason::Gone, &text(id), "");
    }
    swept.late += why.stored;
    swept.refused += why.refusals();
    adoption.tally.stored += why.stored;
    swept.why.add(why);
    Ok(())
}

/// Compares a sample of the source's events with those of the archive.
fn compare(
    source: &NostreamSource,
    archive: &dyn Store,
    adoption: &Adoption<'_>,
    sample: u64,
    swept: &mut SweepTotals,
) -> anyhow::Result<()> {
    let mut location: Id = [0; 32];
    for number in 0..sample {
        // Ids are hashes, so evenly spread positions make a random sample of the events.
        let share = u64::MAX / sample * number;
        location[..8].copy_from_slice(&share.to_be_bytes());
        let rows = source.near(&location)?;
        let Some(row) = rows.first() else { continue };
        if let Some(is_equal) = is_equal(archive, adoption, row)? {
            swept.sampled += 1;
            if !is_equal {
                swept.different.push(text(&row.id));
            }
        }
    }
    Ok(())
}

/// Whether the archive has the row's record, byte for byte. `None` if the row is refused, or if the
/// archive lacks the id: the comparison of ids has reported both cases.
fn is_equal(
    archive: &dyn Store,
    adoption: &Adoption<'_>,
    row: &NostreamRow,
) -> anyhow::Result<Option<bool>> {
    let ConvertedRows { records, .. } = adoption.terms.convert(std::slice::from_ref(row), 0);
    let Some(expected) = records.first() else { return Ok(None) };
    let cursor = row.cursor();
    let query = Query { ids: Some(vec![cursor.id]), ..Query::default() };
    let found = find(archive, query, |record| record.bytes() == &expected[..])?;
    Ok(found.get(&cursor.id).copied())
}
