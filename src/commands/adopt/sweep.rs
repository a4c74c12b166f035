//! The result of comparing a whole source with the archive, and the final report of a run.

use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::pace::AdoptPace;
use super::tally::{AdoptTally, ReasonWords, ReportRows};
use crate::commands::refusal::RefusalReason;
use crate::interrupt;
use crate::print;

/// A report lists at most this many ids of records that differ from the source.
const DIFFERENT_MAX: usize = 10;

/// Words for reports about one kind of source.
#[derive(Debug)]
pub(super) struct SweepWords {
    /// The word for the source's rows.
    pub(super) rows: &'static str,
    /// The word for the source's damaged parts.
    pub(super) damage: &'static str,
    pub(super) reasons: ReasonWords,
    /// The reasons for refusals that show that the source is damaged.
    pub(super) faulty: &'static [RefusalReason],
}

/// The result of a comparison.
#[derive(Debug)]
pub(super) struct SourceSweep {
    words: &'static SweepWords,
    /// Number of rows of the source.
    pub(super) rows: u64,
    /// Number of rows with a record that was already in the archive, and number of rows with a
    /// record that the comparison stored.
    here: u64,
    late: u64,
    /// Why rows were refused.
    why: AdoptTally,
    /// The number of compared records (`None` if bytes are not compared), the number of records
    /// that differ, and some of their ids.
    compared: Option<u64>,
    different: u64,
    different_ids: Vec<String>,
    /// Number of damaged parts of the source, and a description of the first.
    damaged: u64,
    first_damage: String,
    /// Findings about one kind of source, for programs and for people.
    findings: Map<String, Value>,
    finding_rows: ReportRows,
}

impl SourceSweep {
    pub(super) fn new(words: &'static SweepWords, compares: bool) -> Self {
        Self {
            words,
            rows: 0,
            here: 0,
            late: 0,
            why: AdoptTally::new(words.reasons),
            compared: compares.then_some(0),
            different: 0,
            different_ids: Vec::new(),
            damaged: 0,
            first_damage: String::new(),
            findings: Map::new(),
            finding_rows: ReportRows::new(),
        }
    }

    /// Adds a finding to the report for programs.
    pub(super) fn add_finding(&mut self, name: &str, value: Value) {
        self.findings.insert(name.into(), value);
    }

    /// Adds a row to the report for people.
    pub(super) fn add_row(&mut self, name: &'static str, count: u64, words: String) {
        self.finding_rows.push((name, print::number(count), words));
    }

    /// Whether bytes are compared.
    pub(super) fn compares(&self) -> bool {
        self.compared.is_some()
    }

    /// Counts a row whose record the archive has. `is_equal` is used only if bytes are compared.
    pub(super) fn found(&mut self, is_equal: bool, id: impl FnOnce() -> String) {
        self.here += 1;
        let Some(compared) = &mut self.compared else { return };
        *compared += 1;
        if !is_equal {
            self.different += 1;
            if self.different_ids.len() < DIFFERENT_MAX {
                self.different_ids.push(id());
            }
        }
    }

    /// Adds the outcomes of records that the comparison wrote to the archive.
    pub(super) fn put(&mut self, why: AdoptTally) {
        self.late += why.stored;
        self.why.add(why);
    }

    /// Sets the number of damaged parts, and the description of the first.
    pub(super) fn set_damage(&mut self, (damaged, first): (u64, &str)) {
        (self.damaged, self.first_damage) = (damaged, first.into());
    }

    /// Returns the number of rows of the source that have no valid record, or a record with another
    /// id.
    fn faulty(&self) -> u64 {
        self.words.faulty.iter().map(|reason| self.why.count(*reason)).sum()
    }

    fn missing(&self) -> u64 {
        self.rows.saturating_sub(self.here + self.late + self.why.refusals())
    }

    /// Whether the comparison found no fault. Every row must be in the archive or refused for a
    /// reason other than damage of the source. No record may differ, and no part of the source may
    /// be damaged.
    fn is_clean(&self) -> bool {
        self.missing() == 0 && self.different == 0 && self.damaged == 0 && self.faulty() == 0
    }

    fn to_json(&self) -> Value {
        let mut report = json!({
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
        });
        if let Some(report) = report.as_object_mut() {
            report.extend(self.findings.clone());
        }
        report
    }

    /// Returns the rows of the report for people.
    fn report(&self) -> ReportRows {
        let plain = String::new;
        let refused = print::number(self.why.refusals());
        let mut rows = vec![
            (self.words.rows, print::number(self.rows), plain()),
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
                format!("{}, which are skipped; first {}", self.words.damage, self.first_damage);
            rows.push(("DAMAGED", print::number(self.damaged), words));
        }
        rows.extend(self.finding_rows.iter().cloned());
        rows
    }
}

/// Reports a run, and returns its exit code. `swept` is `None` if the comparison was interrupted.
pub(super) fn finish(
    tally: &AdoptTally,
    pace: &AdoptPace<'_>,
    as_json: bool,
    swept: Option<&SourceSweep>,
) -> anyhow::Result<ExitCode> {
    let ids = swept.map(|swept| (swept.to_json(), swept.report()));
    tally.report(pace.seconds(), as_json, ids)?;
    let Some(swept) = swept else { return Ok(stopped()) };
    report_faulty(swept.faulty());
    Ok(if swept.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reports that a run was interrupted, and returns its exit code.
pub(super) fn stopped() -> ExitCode {
    print::note!(
        "hark: stopped; what was brought over is safe. Run the adoption again to continue"
    );
    ExitCode::from(interrupt::INTERRUPTED)
}

/// Reports how many events of the source are invalid, if any.
pub(super) fn report_faulty(events: u64) {
    if events > 0 {
        print::note!(
            "hark: rows of the source that are no events, or not those that their ids name: {}. They \
             were not brought over; the report has the first row for each reason, and other relays \
             may have the events",
            print::number(events)
        );
    }
}
