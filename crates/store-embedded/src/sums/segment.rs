//! Sums over the visible rows of a segment.

use std::ops::Range;

use hark_archive::{Id, Position};
use hark_codec::id_sum::IdTally;

use super::excluded::ExcludedRows;
use crate::bits::ones;
use crate::segment::file::partition;
use crate::segment::opened::Segment;

/// A segment with sums over its visible rows.
pub(crate) struct SummedSegment<'a> {
    segment: &'a Segment,
    hidden: &'a [u32],
    now: u64,
}

impl<'a> SummedSegment<'a> {
    pub(crate) fn new(segment: &'a Segment, hidden: &'a [u32], now: u64) -> Self {
        Self { segment, hidden, now }
    }

    /// Whether the excluded rows are listed.
    pub(crate) fn is_ready(&self) -> bool {
        let excluded = self.segment.dead.excluded.lock();
        excluded.as_ref().is_some_and(|excluded| excluded.is_for(self.hidden))
    }

    /// Makes the list of excluded rows, and returns their number. Other threads may delete rows at
    /// the same time.
    pub(crate) fn prepare(&self) -> u64 {
        let (mut new, dead) = self.list();
        let listed = new.listed();
        let mut excluded = self.segment.dead.excluded.lock();
        // These rows have died since the list was begun.
        let died = self.segment.dead.dead.words().zip(&dead).map(|(now, before)| now & !before);
        ones(died).for_each(|row| new.add(row, &self.segment.file));
        *excluded = Some(new);
        listed
    }

    /// Makes the list of excluded rows, which takes long if there are many. Also returns the bits
    /// of the rows that were dead when the call began.
    fn list(&self) -> (ExcludedRows, Vec<u64>) {
        let file = &self.segment.file;
        let dead: Vec<u64> = self.segment.dead.dead.words().collect();
        let mut rows: Vec<u32> = ones(dead.iter().copied()).collect();
        let is_hidden = |kind: &u32| self.hidden.binary_search(kind).is_ok();
        let lists = self.segment.kinds.iter().filter(|(kind, _)| is_hidden(kind));
        rows.extend(lists.flat_map(|(_, list)| file.postings(list.clone())));
        rows.sort_unstable();
        rows.dedup();
        (ExcludedRows::new(self.hidden, &rows, file), dead)
    }

    fn with_excluded<R>(&self, with: impl FnOnce(&mut ExcludedRows) -> R) -> R {
        loop {
            let mut excluded = self.segment.dead.excluded.lock();
            let ready = excluded.as_mut().filter(|excluded| excluded.is_for(self.hidden));
            if let Some(ready) = ready {
                ready.expire(&self.segment.file, self.now);
                return with(ready);
            }
            drop(excluded);
            self.prepare();
        }
    }

    /// The rows that have the time of a position, and the first of these rows at or after the
    /// position.
    fn place(&self, at: &Position) -> (Range<u32>, u32) {
        let file = &self.segment.file;
        let start = file.first_at_or_before(at.time);
        let older = at.time.checked_sub(1);
        let end = older.map_or(file.rows, |time| file.first_at_or_before(time)).max(start);
        let before = |row: u32| file.id(start + row).is_some_and(|id| id < at.id);
        let first = if at.id == Id::default() { 0 } else { partition(end - start, before) };
        (start..end, start + first)
    }

    /// The rows before a position: rows of earlier times, and rows of the position's time. `None`
    /// if the segment has no row before the position.
    fn rows_before(&self, at: &Position) -> Option<[Range<u32>; 2]> {
        let file = &self.segment.file;
        if at.time > file.newest {
            return Some([0..file.rows, 0..0]);
        }
        if at.time < file.oldest {
            return None;
        }
        let (same, first) = self.place(at);
        Some([same.end..file.rows, same.start..first])
    }

    /// The visible rows before a position.
    pub(crate) fn before(&self, at: &Position) -> IdTally {
        self.rows_before(at).map_or_else(IdTally::default, |rows| {
            self.with_excluded(|excluded| {
                let [older, same] = rows.map(|rows| excluded.tally(&self.segment.file, rows));
                older.plus(same)
            })
        })
    }

    /// The number of visible rows before a position.
    pub(crate) fn count(&self, at: &Position) -> u64 {
        self.rows_before(at).map_or(0, |rows| {
            self.with_excluded(|excluded| rows.map(|rows| excluded.count(rows)).iter().sum())
        })
    }

    /// The rows between two positions, visible or not: rows of times in between, and rows that have
    /// the time of one of the positions.
    fn between(&self, from: &Position, to: &Position) -> [Range<u32>; 3] {
        let ((of_from, from_row), (of_to, to_row)) = (self.place(from), self.place(to));
        if of_from == of_to {
            return [from_row..to_row.max(from_row), 0..0, 0..0];
        }
        [from_row..of_from.end, of_to.end..of_from.start.max(of_to.end), of_to.start..to_row]
    }

    fn position(&self, row: u32) -> Position {
        let file = &self.segment.file;
        Position { time: file.time(row), id: file.id(row).unwrap_or_default() }
    }

    /// Appends the first visible rows between two positions, at most `max`, oldest first.
    pub(crate) fn items(
        &self,
        from: &Position,
        to: &Position,
        max: usize,
        out: &mut Vec<Position>,
    ) {
        let file = &self.segment.file;
        let most = out.len() + max;
        self.with_excluded(|excluded| {
            for rows in self.between(from, to) {
                let mut end = rows.end;
                // The times are processed one after the other, because the rows of one time ascend
                // by id.
                while out.len() < most
                    && let Some(last) = excluded.last_included(rows.start, end)
                {
                    let start = file.first_at_or_before(file.time(last)).clamp(rows.start, last);
                    let visible = (start..=last).filter(|row| !excluded.contains(*row));
                    out.extend(visible.take(most - out.len()).map(|row| self.position(row)));
                    end = start;
                }
            }
        });
    }
}
