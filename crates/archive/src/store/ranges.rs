//! The ids of the records that match a query, by ranges: what two stores compare to find out which
//! records each of them lacks.
//!
//! A store that keeps sums of ids tells how many records a range has, and the sum of their ids,
//! without visiting them.

use hark_codec::id_sum::IdTally;

use super::SearchError;
use crate::query::{Position, Query};

/// The matching records of a store as they are at each call, in the order of time and then id, both
/// ascending. A record that is put or deleted meanwhile may be in one answer and not in another.
pub trait IdRanges: Send {
    /// Returns the number of records before a position, and the sum of their ids. Records in front of
    /// the query's window may be among them, at each position the same ones: only the difference of
    /// two positions says something.
    fn before(&self, at: &Position) -> IdTally;

    /// Returns the first records of the range that begins with `from` and ends before `to`, in order,
    /// at most `max`.
    fn items(&self, from: &Position, to: &Position, max: usize) -> Vec<Position>;

    /// Returns positions of the range, ascending, at most `parts`, that divide it into parts of about the
    /// same number of records. There may be fewer.
    fn divide(&self, from: &Position, to: &Position, parts: usize) -> Vec<Position>;

    /// Returns an error if what was answered so far may be wrong.
    fn check(&self) -> Result<(), SearchError>;
}

impl Query {
    /// Returns the kinds that are hidden, if the query asks for all other records of a time window: by
    /// sums, a store answers such queries alone. `None` for any other query.
    pub fn window_without(&self) -> Option<Vec<u32>> {
        let Self {
            ids, authors, not_authors, kinds, not_kinds, labels, after, limit, gate, ..
        } = self;
        let is_window = ids.is_none()
            && authors.is_none()
            && not_authors.is_empty()
            && kinds.is_none()
            && labels.is_empty()
            && after.is_none()
            && *limit == usize::MAX;
        if !is_window || gate.as_ref().is_some_and(|gate| !gate.is_to_strangers()) {
            return None;
        }
        let mut hidden = not_kinds.clone();
        hidden.extend(gate.iter().flat_map(|gate| &gate.kinds));
        hidden.sort_unstable();
        hidden.dedup();
        Some(hidden)
    }
}
