//! The outcomes of the rows, counted by reason, with the first id of each reason.

use hark_archive::Outcome;
use serde_json::{Map, Value, json};

use crate::commands::refusal::RefusalReason;
use crate::print;

/// The reasons, each with its name and an explanation for people.
const ALL: [(RefusalReason, &str, &str); 11] = [
    (RefusalReason::Malformed, "malformed", "not a Nostr event"),
    (RefusalReason::BadId, "bad id", "the id is not the event's hash"),
    (RefusalReason::BadSignature, "bad signature", "not signed by its author"),
    (RefusalReason::TooLarge, "too large", "above limits.event_bytes_max"),
    (RefusalReason::Ephemeral, "ephemeral", "of a kind that is never stored"),
    (RefusalReason::Expired, "expired", "its expiration has passed"),
    (RefusalReason::Duplicate, "duplicate", "already kept"),
    (RefusalReason::Superseded, "superseded", "a newer version is kept"),
    (RefusalReason::Deleted, "deleted", "its author asked for deletion"),
    (RefusalReason::Vanished, "vanished", "its author asked to vanish"),
    (RefusalReason::Gone, "deleted there", "nostream keeps the row and returns it to nobody"),
];

/// Counts of rows.
#[derive(Clone, Debug, Default)]
pub(super) struct AdoptTally {
    pub(super) stored: u64,
    refused: [(u64, String); ALL.len()],
}

impl AdoptTally {
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
        let found = ALL.iter().zip(&self.refused).filter(|(_, (count, _))| *count > 0);
        found
            .map(|((_, name, words), (count, first))| {
                (*name, print::number(*count), format!("{words}; first {first}"))
            })
            .collect()
    }

    /// Returns the counts for programs.
    pub(super) fn to_json(&self) -> Value {
        let all = ALL.iter().zip(&self.refused);
        let all = all.map(|((_, name, _), (count, _))| (name.replace(' ', "_"), json!(count)));
        Value::Object(all.collect::<Map<_, _>>())
    }
}
