//! The end of an adoption: looks up all keys of the source in the archive, stores the missing
//! envelopes or counts why they are refused, and compares bytes if that is asked for.

use std::collections::HashMap;
use std::ops::ControlFlow;

use hark_archive::{Id, Query, SearchProgress, Store};
use hark_codec::whisper::EnvelopeRecord;
use serde_json::{Value, json};

use super::convert::{convert, position};
use super::source::{EnvelopeRow, MailSource};
use super::{MailAdoption, REASONS};
use crate::commands::adopt::tally::AdoptTally;
use crate::commands::adopt::{put, text};
use crate::location::{ArchiveLocation, WriterHandle};
use crate::print::{self, CommandProgress};

/// Keys looked up together.
const LOOK_UP: usize = 500;
/// Hashes of envelopes with other bytes that are shown.
const DIFFERENT_MAX: usize = 10;

/// The result of the comparison.
#[derive(Debug)]
pub(super) struct MailSweep {
    /// Rows of the source.
    rows: u64,
    /// Of these, rows whose envelope was in the archive, that the comparison stored, and that it
    /// refused.
    here: u64,
    late: u64,
    /// Why rows were refused.
    why: AdoptTally,
    /// Envelopes whose bytes were compared, and those that differ: their number and some hashes.
    /// `None` if bytes were not compared.
    compared: Option<u64>,
    different: u64,
    different_ids: Vec<String>,
    /// Damaged parts of the source's files, and words on the first.
    damaged: u64,
    first_damage: String,
}

impl MailSweep {
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

    /// Whether every row is in the archive or was refused for a reason, no envelope differs, and no
    /// file is damaged.
    pub(super) fn is_clean(&self) -> bool {
        self.missing() == 0 && self.different == 0 && self.damaged == 0
    }

    fn missing(&self) -> u64 {
        self.rows.saturating_sub(self.here + self.late + self.why.refusals())
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "source": self.rows,
            "here": self.here,
            "late": self.late,
            "refused": self.why.refusals(),
            "reasons": self.why.to_json(),
            "compared": self.compared,
            "different": self.different,
            "different_ids": self.different_ids,
            "damaged": self.damaged,
            "first_damage": self.first_damage,
            "clean": self.is_clean(),
        })
    }

    /// Returns the rows of the report for people.
    pub(super) fn rows(&self) -> Vec<(&'static str, String, String)> {
        let plain = String::new;
        let refused = print::number(self.why.refusals());
        let mut rows = vec![
            ("keys in the source", print::number(self.rows), plain()),
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
            let words =
                format!("parts of its files, which are skipped; first {}", self.first_damage);
            rows.push(("DAMAGED", print::number(self.damaged), words));
        }
        rows
    }
}

/// Compares all keys and stores the missing envelopes.
pub(super) fn run(
    source: &mut MailSource,
    writer: &mut WriterHandle,
    location: &ArchiveLocation,
    adoption: &mut MailAdoption<'_>,
) -> anyhow::Result<MailSweep> {
    let archive = writer.read(location)?;
    let compares = adoption.args.verify;
    let mut swept = MailSweep::new(compares);
    source.begin(&[], 0)?;
    let total = source.total()?;
    let mut meter = CommandProgress::start("compare", total, source.unit());
    while !adoption.pace.is_stopped() {
        let rows = source.batch(adoption.args.batch)?;
        if rows.is_empty() {
            break;
        }
        for some in rows.chunks(LOOK_UP) {
            let missing = look_up(&*archive, some, compares, &mut swept)?;
            bring(writer, adoption, &missing, &mut swept)?;
        }
        let done = source.done();
        meter.at(done, total.max(done), &print::count(swept.rows, "key"));
    }
    meter.finish();
    let (damaged, first_damage) = source.damage();
    (swept.damaged, swept.first_damage) = (damaged, first_damage.into());
    Ok(swept)
}

/// Counts the rows whose envelopes the archive has, and returns the others.
fn look_up(
    archive: &dyn Store,
    rows: &[EnvelopeRow],
    compares: bool,
    swept: &mut MailSweep,
) -> anyhow::Result<Vec<EnvelopeRow>> {
    swept.rows += rows.len() as u64;
    let positions: Vec<_> = rows.iter().filter_map(|row| position(&row.key)).collect();
    // The rows are close together in time, so a store that is divided into parts by time looks in
    // few parts.
    let times = positions.iter().map(|position| u64::from(position.sent));
    let query = Query {
        ids: Some(positions.iter().map(|position| position.hash).collect()),
        from: times.clone().min().unwrap_or(0),
        to: times.max().unwrap_or(0),
        ..Query::default()
    };
    // For each envelope its bytes, if these are compared.
    let mut found: HashMap<Id, Vec<u8>> = HashMap::new();
    let mut search = archive.search(&query)?;
    while search.slice(u64::MAX, &mut |record| {
        let rlp = if compares { EnvelopeRecord::new(*record).rlp() } else { &[] };
        found.insert(*record.id(), rlp.to_vec());
        ControlFlow::Continue(())
    })? == SearchProgress::Paused
    {}
    let mut missing = Vec::new();
    for row in rows {
        let Some((hash, rlp)) =
            position(&row.key).and_then(|position| found.get_key_value(&position.hash))
        else {
            missing.push(row.clone());
            continue;
        };
        swept.here += 1;
        if let Some(compared) = &mut swept.compared {
            *compared += 1;
            if *rlp != row.value {
                swept.different += 1;
                if swept.different_ids.len() < DIFFERENT_MAX {
                    swept.different_ids.push(text(hash));
                }
            }
        }
    }
    Ok(missing)
}

/// Stores the envelopes of rows, or counts why they are refused.
fn bring(
    writer: &mut WriterHandle,
    adoption: &mut MailAdoption<'_>,
    rows: &[EnvelopeRow],
    swept: &mut MailSweep,
) -> anyhow::Result<()> {
    let mut why = AdoptTally::new(REASONS);
    put(writer, convert(rows, &adoption.bounds), &mut why)?;
    swept.late += why.stored;
    adoption.tally.stored += why.stored;
    swept.why.add(why);
    Ok(())
}
