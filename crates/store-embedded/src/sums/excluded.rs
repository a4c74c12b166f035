//! The rows of a segment that are excluded from its sums.

use std::ops::Range;

use hark_codec::id_sum::IdTally;

use super::keys::SummedKeys;
use crate::segment::file::SegmentFile;

/// The rows of a segment that are excluded from its sums: dead rows, rows of hidden kinds, and
/// expired rows.
pub struct ExcludedRows {
    /// The hidden kinds, ascending.
    hidden: Box<[u32]>,
    /// Number of rows that have been added from the segment's list of expiries: the rows that
    /// expire by the latest time of any query.
    expired: usize,
    rows: SummedKeys<u32>,
}

impl ExcludedRows {
    /// Makes the list from rows of a segment, which must ascend.
    pub(super) fn new(hidden: &[u32], rows: &[u32], file: &SegmentFile) -> Self {
        let rows = SummedKeys::from_sorted(rows, |row| file.id(row));
        Self { hidden: hidden.into(), expired: 0, rows }
    }

    /// Whether the list was made for these hidden kinds.
    pub(super) fn is_for(&self, hidden: &[u32]) -> bool {
        *self.hidden == *hidden
    }

    /// Number of listed rows.
    pub(super) fn listed(&mut self) -> u64 {
        self.rows.count(|_| true)
    }

    /// Whether a row is excluded.
    pub(super) fn contains(&self, row: u32) -> bool {
        self.rows.contains(&row)
    }

    /// The last row in `start..end` that is not excluded.
    pub(super) fn last_included(&self, start: u32, end: u32) -> Option<u32> {
        self.rows.last_absent(start, end)
    }

    /// Adds a row that has died.
    pub fn add(&mut self, row: u32, file: &SegmentFile) {
        if let Some(id) = file.id(row) {
            self.rows.add(row, &id, |row| file.id(row));
        }
    }

    pub(super) fn expire(&mut self, file: &SegmentFile, now: u64) {
        let due = file.expiries_from(self.expired).take_while(|(time, _)| *time <= now);
        for (_, row) in due {
            self.expired += 1;
            self.add(row, file);
        }
    }

    pub(super) fn count(&mut self, rows: Range<u32>) -> u64 {
        let mut before = |end: u32| self.rows.count(|row| *row < end);
        let excluded = before(rows.end).saturating_sub(before(rows.start));
        u64::from(rows.end - rows.start).saturating_sub(excluded)
    }

    pub(super) fn tally(&mut self, file: &SegmentFile, rows: Range<u32>) -> IdTally {
        let all = IdTally {
            count: u64::from(rows.end - rows.start),
            sum: file.sum_before(rows.end).minus(file.sum_before(rows.start)),
        };
        let mut before = |end: u32| self.rows.before(|row| *row < end, |row| file.id(row));
        all.minus(before(rows.end).minus(before(rows.start)))
    }
}
