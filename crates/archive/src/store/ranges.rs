//! Ranges of the records that match a query. Each range has a count, a sum of ids, and a list of
//! the records. Two stores compare such ranges to find the records that one of them lacks. A store
//! that keeps sums of ids knows the count and the sum of a range without visiting its records.

use hark_codec::id_sum::IdTally;

use super::SearchError;
use crate::query::{Position, Query};

/// The records of a store that match a query, by ascending time, then ascending id. Each call sees
/// the records at the time of the call. So a record that is put or deleted between two calls may be
/// in only one of the results.
pub trait IdRanges: Send {
    /// Returns the number of records before a position, and the sum of their ids. The result may
    /// also include records before the query's window. These additional records are the same for
    /// each position, so only the difference between two results is meaningful.
    fn before(&self, at: &Position) -> IdTally;

    /// Returns at most `max` records from position `from` on and before `to`, in order.
    fn items(&self, from: &Position, to: &Position, max: usize) -> Vec<Position>;

    /// Returns the number of records before a position, as [`IdRanges::before`] does. Stores that
    /// can count without the sum override this method.
    fn count(&self, at: &Position) -> u64 {
        self.before(at).count
    }

    /// Returns ascending positions that divide the range into at most `parts` parts with about the
    /// same number of records. The positions depend only on the numbers of matching records, so
    /// they reveal nothing about other records.
    fn divide(&self, from: &Position, to: &Position, parts: usize) -> Vec<Position> {
        divide(&|at| self.count(at), from, to, parts)
    }

    /// Does a part of the preparation that the other methods need. Any other method first completes
    /// the preparation. Returns whether more preparation is needed.
    fn prepare(&self) -> bool {
        false
    }

    /// Returns the work done so far, measured as the number of rows that a search visits in the
    /// same time.
    fn visited(&self) -> u64;

    /// Returns an error if results so far may be wrong.
    fn check(&self) -> Result<(), SearchError>;
}

fn at(time: u64) -> Position {
    Position { time, id: [0; 32] }
}

/// Returns the highest number from `low` to `high` for which `holds` is true. `holds` must be true
/// from `low` up to some number, and false for all higher numbers.
fn last(mut low: u64, mut high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    while low < high {
        let middle = high - (high - low) / 2;
        if holds(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

fn divide(
    count: &dyn Fn(&Position) -> u64,
    from: &Position,
    to: &Position,
    parts: usize,
) -> Vec<Position> {
    let (before, end) = (count(from), count(to));
    let all = end.saturating_sub(before);
    // Narrows the range to the times of its oldest and its newest record.
    let oldest = last(from.time, to.time, |time| count(&at(time)) <= before);
    let newest = last(oldest, to.time, |time| count(&at(time)) < end);
    let (mut low, mut cuts) = (oldest, Vec::new());
    for part in 1..parts as u64 {
        let share = u128::from(all) * u128::from(part) / parts as u128;
        let wanted = before + share as u64;
        let time = last(low, newest.max(low), |time| count(&at(time)) <= wanted);
        low = time;
        let next = at(time.saturating_add(1));
        let (here, there) = (count(&at(time)), count(&next));
        let many = all / parts as u64 / 2;
        cuts.push(if there.saturating_sub(here) > many {
            within(count, time, wanted, many / 8)
        } else if wanted.saturating_sub(here) <= there.saturating_sub(wanted) {
            at(time)
        } else {
            next
        });
    }
    let key = |at: &Position| (at.time, at.id);
    cuts.retain(|cut| key(from) < key(cut) && key(cut) < key(to));
    cuts.dedup();
    cuts
}

/// Returns a position at `time` before which there are `wanted` records, plus or minus about
/// `some`.
fn within(count: &dyn Fn(&Position) -> u64, time: u64, wanted: u64, some: u64) -> Position {
    let of = |prefix: u64| {
        let mut position = at(time);
        position.id[..8].copy_from_slice(&prefix.to_be_bytes());
        position
    };
    let (mut low, mut high) = (0, u64::MAX);
    while low < high {
        let middle = high - (high - low) / 2;
        let found = count(&of(middle));
        if found.abs_diff(wanted) <= some {
            return of(middle);
        }
        if found < wanted {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    of(low)
}

impl Query {
    /// Returns the hidden kinds if the query asks for all other records of a time window. Sums can
    /// answer only such a query, so `None` is returned for any other query.
    pub fn window_without(&self) -> Option<Vec<u32>> {
        let Self {
            ids,
            authors,
            not_authors,
            kinds,
            not_kinds,
            labels,
            words,
            after,
            limit,
            gate,
            ..
        } = self;
        let is_window = ids.is_none()
            && authors.is_none()
            && not_authors.is_empty()
            && kinds.is_none()
            && labels.is_empty()
            && words.is_none()
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
