//! The outcomes of the rows, counted by reason, with the first id of each reason.

use hark_archive::Outcome;
use serde_json::{Map, Value, json};

use crate::commands::refusal::RefusalReason;
use crate::print;

/// The reasons that an adoption can have, each with its name and an explanation for people.
pub(super) type ReasonWords = &'static [(RefusalReason, &'static str, &'static str)];

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

    /// Counts a refusal. `words` are details, and may be empty.
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

    /// Returns the number of all refusals.
    pub(super) fn refusals(&self) -> u64 {
        self.refused.iter().map(|(count, _)| count).sum()
    }

    /// Returns the rows of the report for people.
    pub(super) fn rows(&self) -> Vec<(&'static str, String, String)> {
        let mut rows = Vec::new();
        for (reason, name, words) in self.reasons {
            let (count, first) = &self.refused[*reason as usize];
            if *count > 0 {
                rows.push((*name, print::number(*count), format!("{words}; first {first}")));
            }
        }
        rows
    }

    /// Returns the counts for programs.
    pub(super) fn to_json(&self) -> Value {
        let named = self.reasons.iter().map(|(reason, name, _)| {
            (name.replace(' ', "_"), json!(self.refused[*reason as usize].0))
        });
        Value::Object(named.collect::<Map<_, _>>())
    }
}
