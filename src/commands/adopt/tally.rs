//! The outcomes of the rows, counted by reason, with the first id of each reason.

use hark_archive::Outcome;
use serde_json::{Map, Value, json};

use crate::commands::refusal::RefusalReason;
use crate::print;

/// The reasons for which an adoption can refuse a row, each with its name and an explanation for
/// people.
pub(super) type ReasonWords = &'static [(RefusalReason, &'static str, &'static str)];

/// The rows of a report for people: a name, a number, and details.
pub(super) type ReportRows = Vec<(&'static str, String, String)>;

/// Counts of rows.
#[derive(Clone, Debug)]
pub(super) struct AdoptTally {
    pub(super) stored: u64,
    reasons: ReasonWords,
    /// For each reason the count, and the first id with details.
    refused: [(u64, String); RefusalReason::COUNT],
}

impl AdoptTally {
    pub(super) fn new(reasons: ReasonWords) -> Self {
        Self { stored: 0, reasons, refused: Default::default() }
    }

    /// Counts a refusal. `words` are details and may be empty.
    pub(super) fn refuse(&mut self, reason: RefusalReason, id: &str, words: &str) {
        let (count, first) = &mut self.refused[reason as usize];
        *count += 1;
        if first.is_empty() {
            let colon = if words.is_empty() { "" } else { ": " };
            *first = format!("{id}{colon}{words}");
        }
    }

    /// Counts the store's outcome for a record.
    pub(super) fn outcome(&mut self, outcome: Outcome, id: &str) {
        match RefusalReason::of(outcome) {
            None => self.stored += 1,
            Some(reason) => self.refuse(reason, id, ""),
        }
    }

    /// Adds the counts of later rows.
    pub(super) fn add(&mut self, later: Self) {
        self.stored += later.stored;
        for ((count, first), (more, later)) in self.refused.iter_mut().zip(later.refused) {
            *count += more;
            if first.is_empty() {
                *first = later;
            }
        }
    }

    /// Prints the report of a run that took `seconds`, for programs or for people. `swept` is the
    /// result of the comparison with the whole source, if the run reached this step. Its reasons
    /// for refusals then replace the reasons in this tally.
    pub(super) fn report(
        &self,
        seconds: f64,
        as_json: bool,
        swept: Option<(Value, ReportRows)>,
    ) -> anyhow::Result<()> {
        if as_json {
            let json = json!({
                "stored": self.stored,
                "refused": self.to_json(),
                "complete": swept.is_some(),
                "ids": swept.map(|(ids, _)| ids),
                "seconds": seconds,
            });
            return print::line(&json.to_string());
        }
        let rate = self.stored as f64 / seconds.max(0.001);
        let stored = format!("in {seconds:.1} s, {} a second", print::number(rate as u64));
        let mut rows = vec![("brought over", print::number(self.stored), stored)];
        rows.extend(swept.map_or_else(|| self.rows(), |(_, rows)| rows));
        print::line(&print::table(&rows))
    }

    /// Returns the number of refusals for this reason.
    pub(super) fn count(&self, reason: RefusalReason) -> u64 {
        self.refused[reason as usize].0
    }

    /// Returns the number of all refusals.
    pub(super) fn refusals(&self) -> u64 {
        self.refused.iter().map(|(count, _)| count).sum()
    }

    /// Returns the rows of the report for people.
    pub(super) fn rows(&self) -> ReportRows {
        let mut rows = Vec::new();
        for (reason, name, words) in self.reasons {
            let (count, first) = &self.refused[*reason as usize];
            if *count > 0 {
                rows.push((*name, print::number(*count), format!("{words}; first {first}")));
            }
        }
        rows
    }

    /// Returns the counts of refused events as a JSON object: a number for each reason.
    pub(super) fn to_json(&self) -> Value {
        let named = self.reasons.iter().map(|(reason, name, _)| {
            (name.replace(' ', "_"), json!(self.refused[*reason as usize].0))
        });
        Value::Object(named.collect::<Map<_, _>>())
    }
}
