//! The end of an adoption: looks up all events of the source in the archive, stores the missing ones
//! or counts why they are refused, and compares bytes if that is asked for.

use std::collections::HashMap;
use std::ops::ControlFlow;

use hark_archive::{Id, Query, Record, SearchProgress, Store};
use serde_json::{Value, json};

use super::{REASONS, RelayAdoption, RelaySource};
use crate::commands::adopt::tally::{AdoptTally, ReportRows};
use crate::commands::adopt::{ConvertedRows, put};
use crate::commands::refusal::RefusalReason;
use crate::location::{ArchiveLocation, WriterHandle};
use crate::print::{self, CommandProgress, CountedUnit};
use crate::when;

/// Events looked up together.
const LOOK_UP: usize = 500;
/// Ids of events with other bytes that are shown.
const DIFFERENT_MAX: usize = 10;
/// The reasons that say that the source is damaged.
const FAULTY: [RefusalReason; 3] =
    [RefusalReason::Malformed, RefusalReason::BadId, RefusalReason::BadSignature];

/// The result of the comparison.
#[derive(Debug)]
pub(super) struct RelaySweep {
    /// Rows of the source.
    rows: u64,
    /// Of these, rows whose event was in the archive, and that the comparison stored.
    here: u64,
    late: u64,
    /// Why rows were refused.
    why: AdoptTally,
    /// Events whose bytes were compared, and those that differ: their number and some ids. `None`
    /// if bytes were not compared.
    compared: Option<u64>,
    different: u64,
    different_ids: Vec<String>,
    /// Damaged pages of the source, and words on the first.
    damaged: u64,
    first_damage: String,
}

impl RelaySweep {
    fn new(compares: bool) -> Self {
        Self {
            rows: 0,
            here: 0,
            late: 0,
            why: AdoptTally::new(REASONS),
            compared: compares.then_some(0),
            different: 0,
            different_ids: Vec::new(),
            damaged: 0,
            first_damage: String::new(),
        }
    }

    /// The number of the source's rows that are no events, or not those that their ids name.
    pub(super) fn faulty(&self) -> u64 {
        FAULTY.iter().map(|reason| self.why.count(*reason)).sum()
    }

    fn missing(&self) -> u64 {
        self.rows.saturating_sub(self.here + self.late + self.why.refusals())
    }

    /// Whether every event is in the archive or was refused for a reason that the relay could have
    /// had itself, none differs, and no page is damaged.
    pub(super) fn is_clean(&self) -> bool {
        self.missing() == 0 && self.different == 0 && self.damaged == 0 && self.faulty() == 0
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "source": self.rows,
            "here": self.here,
            "late": self.late,
            "refused": self.why.refusals(),
            "reasons": self.why.to_json(),
            "faulty": self.faulty(),
            "compared": self.compared,
            "different": self.different,
            "different_ids": self.different_ids,
            "damaged": self.damaged,
            "first_damage": self.first_damage,
            "clean": self.is_clean(),
        })
    }

    /// Returns the rows of the report for people.
    pub(super) fn rows(&self) -> ReportRows {
        let plain = String::new;
        let refused = print::number(self.why.refusals());
        let mut rows = vec![
            ("events in the source", print::number(self.rows), plain()),
            ("of them stored", print::number(self.here), plain()),
            ("stored late", print::number(self.late), plain()),
            ("not stored", refused, "for these reasons:".into()),
        ];
        rows.extend(self.why.rows());
        if let Some(compared) = self.compared {
            let words = if self.different == 0 {
                "all are equal".into()
            } else {
                let ids = self.different_ids.join(", ");
                format!("{} DIFFER: {ids}", print::number(self.different))
            };
            rows.push(("compared", print::number(compared), words));
        }
        if self.missing() > 0 {
            rows.push(("MISSING", print::number(self.missing()), "run it again".into()));
        }
        if self.damaged > 0 {
            let words = format!("pages, which are skipped; first {}", self.first_damage);
            rows.push(("DAMAGED", print::number(self.damaged), words));
        }
        rows
    }
}

/// Looks up all events and stores the missing ones. Returns `None` if it was interrupted. With
/// --follow the interrupt has come before, and this goes on to the end.
pub(super) fn run(
    source: &mut impl RelaySource,
    writer: &mut WriterHandle,
    location: &ArchiveLocation,
    adoption: &mut RelayAdoption<'_>,
) -> anyhow::Result<Option<RelaySweep>> {
    let archive = writer.read(location)?;
    let mut swept = RelaySweep::new(adoption.args.verify);
    let total = source.last()?;
    let mut meter = CommandProgress::start("compare", total, CountedUnit::Records);
    let mut after = 0;
    loop {
        if adoption.pace.is_stopped() && !adoption.args.follow {
            return Ok(None);
        }
        let rows = source.batch(after, adoption.args.batch)?;
        let Some(last) = rows.last() else { break };
        after = last.number;
        for some in rows.chunks(LOOK_UP) {
            swept.rows += some.len() as u64;
            let mut converted = adoption.terms.convert(some, when::now_s());
            look_up(&*archive, &mut converted, &mut swept)?;
            let mut why = AdoptTally::new(REASONS);
            put(writer, converted, &mut why)?;
            swept.late += why.stored;
            adoption.tally.stored += why.stored;
            swept.why.add(why);
        }
        meter.at(after, total.max(after), &print::count(swept.rows, "event"));
    }
    meter.finish();
    let (damaged, first_damage) = source.damage();
    (swept.damaged, swept.first_damage) = (damaged, first_damage.into());
    Ok(Some(swept))
}

/// Counts and removes the records that the archive has, so that the others remain.
fn look_up(
    archive: &dyn Store,
    converted: &mut ConvertedRows,
    swept: &mut RelaySweep,
) -> anyhow::Result<()> {
    let views = || converted.records.iter().filter_map(|record| Record::new(record).ok());
    let query = Query {
        ids: Some(views().map(|record| *record.id()).collect()),
        // A store that is divided into parts by time looks in few parts, if the events are close
        // together in time.
        from: views().map(|record| record.time()).min().unwrap_or(0),
        to: views().map(|record| record.time()).max().unwrap_or(0),
        ..Query::default()
    };
    // For each event its JSON, if that is compared.
    let mut found: HashMap<Id, Vec<u8>> = HashMap::new();
    let mut search = archive.search(&query)?;
    while search.slice(u64::MAX, &mut |record| {
        let json = if swept.compared.is_some() { record.wire() } else { &[] };
        found.insert(*record.id(), json.to_vec());
        ControlFlow::Continue(())
    })? == SearchProgress::Paused
    {}
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
        swept.here += 1;
        if let Some(compared) = &mut swept.compared {
            *compared += 1;
            if json != *kept {
                swept.different += 1;
                if swept.different_ids.len() < DIFFERENT_MAX {
                    swept.different_ids.push(id);
                }
            }
        }
    }
    Ok(())
}
