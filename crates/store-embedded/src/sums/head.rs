//! Sums over the visible rows of a head.

use std::ops::Range;

use hark_archive::{Id, Position, Record};
use hark_codec::id_sum::IdTally;

use super::keys::SummedKeys;

/// The visible rows of a head, ordered by time and id. Each row takes some 40 bytes.
pub struct SummedHead {
    /// The hidden kinds, ascending.
    hidden: Box<[u32]>,
    /// Number of rows of the head that have been processed.
    seen: u32,
    /// The latest time of any query. Records that have expired by this time are not included.
    now: u64,
    rows: SummedKeys<(u64, Id)>,
}

impl SummedHead {
    /// Returns the list of the rows without a `hidden` kind. If other kinds were hidden before, the
    /// list starts empty.
    pub fn of<'a>(summed: &'a mut Option<Self>, hidden: &[u32]) -> &'a mut Self {
        if summed.as_ref().is_some_and(|summed| *summed.hidden != *hidden) {
            *summed = None;
        }
        let new = || Self { hidden: hidden.into(), seen: 0, now: 0, rows: SummedKeys::new() };
        summed.get_or_insert_with(new)
    }

    /// Sets the time of a query. Returns whether this time is later than the times of all earlier
    /// queries.
    pub(crate) fn advance(&mut self, now: u64) -> bool {
        let is_later = now > self.now;
        self.now = self.now.max(now);
        is_later
    }

    /// The rows among the first `published` rows that have not been processed yet.
    pub(crate) fn unseen(&self, published: u32) -> Range<u32> {
        self.seen..published
    }

    /// Whether a row has been processed.
    pub(crate) fn has_seen(&self, row: u32) -> bool {
        row < self.seen
    }

    /// Notes that the first `published` rows have been processed.
    pub(crate) fn note_seen(&mut self, published: u32) {
        self.seen = self.seen.max(published);
    }

    /// Whether the kind is hidden.
    pub(crate) fn hides(&self, kind: u32) -> bool {
        self.hidden.binary_search(&kind).is_ok()
    }

    /// Adds the record of a row, unless it has expired.
    pub(crate) fn add(&mut self, record: &Record<'_>) {
        if record.expires().is_none_or(|at| at > self.now) {
            self.rows.add((record.time(), *record.id()), record.id(), |(_, id)| Some(id));
        }
    }

    /// Removes the record of a row, if the list includes the record.
    pub(crate) fn take(&mut self, record: &Record<'_>) {
        self.rows.take(&(record.time(), *record.id()), record.id());
    }

    pub(crate) fn before(&mut self, at: &Position) -> IdTally {
        self.rows.before(|key| *key < (at.time, at.id), |(_, id)| Some(id))
    }

    pub(crate) fn count(&mut self, at: &Position) -> u64 {
        self.rows.count(|key| *key < (at.time, at.id))
    }

    /// The rows from a position to the end, in order.
    pub(crate) fn from(&self, at: &Position) -> impl Iterator<Item = Position> + '_ {
        let at = (at.time, at.id);
        self.rows.from(move |key| *key < at).map(|(time, id)| Position { time, id })
    }
}
