//! Sums over the visible rows of a head.

use hark_archive::{Id, Position};
use hark_codec::id_sum::IdTally;

use super::keys::SummedKeys;
use crate::head::Head;

/// The visible rows of a head, by time and id. Each row takes some 40 bytes.
pub struct SummedHead {
    /// The hidden kinds, ascending.
    hidden: Box<[u32]>,
    /// Number of rows of the head that have been processed.
    seen: u32,
    /// The latest time of a question. Records that had expired by this time are not included.
    now: u64,
    rows: SummedKeys<(u64, Id)>,
}

impl SummedHead {
    /// Returns the rows without `hidden` kinds. The list starts again if other kinds were hidden
    /// before.
    pub fn of<'a>(summed: &'a mut Option<Self>, hidden: &[u32]) -> &'a mut Self {
        if summed.as_ref().is_some_and(|summed| *summed.hidden != *hidden) {
            *summed = None;
        }
        let new = || Self { hidden: hidden.into(), seen: 0, now: 0, rows: SummedKeys::new() };
        summed.get_or_insert_with(new)
    }

    /// Adds the rows that were published since the last call, and removes expired rows.
    pub fn catch_up(&mut self, head: &Head, now: u64) {
        if now > self.now {
            self.now = now;
            // Rows that died earlier were removed at that time.
            for (_, row) in head.expired_by(now).into_iter().filter(|(_, row)| !head.is_dead(*row))
            {
                self.take(head, row);
            }
        }
        let published = head.published();
        for row in self.seen..published {
            let is_hidden = |kind| self.hidden.binary_search(&kind).is_ok();
            if head.is_dead(row) || head.row(row).is_none_or(|row| is_hidden(row.kind)) {
                continue;
            }
            // `take` waits for this loop, so a row that dies meanwhile is removed afterwards.
            if let Some(record) =
                head.record(row).filter(|r| r.expires().is_none_or(|at| at > self.now))
            {
                self.rows.add((record.time(), *record.id()), record.id(), |(_, id)| Some(id));
            }
        }
        self.seen = self.seen.max(published);
    }

    /// Removes a row, if the list has the row.
    pub fn take(&mut self, head: &Head, row: u32) {
        if row >= self.seen {
            return;
        }
        if let Some(record) = head.record(row) {
            self.rows.take(&(record.time(), *record.id()), record.id());
        }
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
