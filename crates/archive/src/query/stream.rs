//! Posting lists during a walk: clipped to the time window, then read in the query's order.

use std::ops::Range;

use super::source::Source;
use super::{Order, Query};

/// The part of a posting list that lies in the window.
pub(super) struct PostingSlice<R> {
    pub(super) list: R,
    pub(super) range: Range<usize>,
    /// Index of the set's value that the list belongs to.
    pub(super) value: u32,
    /// The kind of the list's rows, if only rows of that kind are looked up in the list.
    pub(super) kind: Option<u32>,
}

/// A posting list being walked in the query's order.
pub(super) struct PostingStream<R> {
    pub(super) list: R,
    /// The rows that are left, in the list's own order (newest first).
    pub(super) left: Range<usize>,
    /// Oldest first only: the group of equal time being walked, ascending.
    group: Range<usize>,
    /// Index of the set's value that the list belongs to.
    pub(super) value: u32,
    /// The kind of the list's rows, if they are looked up only in lists of that kind.
    pub(super) kind: Option<u32>,
}

impl<R> PostingStream<R> {
    pub(super) fn new(cut: PostingSlice<R>) -> Self {
        let PostingSlice { list, range: left, value, kind } = cut;
        Self { list, left, group: 0..0, value, kind }
    }

    /// Takes the next row and returns its index.
    #[inline]
    pub(super) fn step<S: Source<PostingList = R>>(
        &mut self,
        source: &S,
        query: &Query,
    ) -> Option<usize> {
        if query.order == Order::NewestFirst {
            return self.left.next();
        }
        if self.group.is_empty() {
            let end = self.left.end;
            let last = self.left.next_back()?;
            let time = source.list_time(&self.list, last);
            let is_of_group = |index: usize| source.list_time(&self.list, index) == time;
            // Most groups are of one row. A long group is not read row by row, as a page may begin
            // inside the group.
            let (mut first, mut reach) = (last, 1);
            while first - self.left.start >= reach && is_of_group(first - reach) {
                first -= reach;
                reach *= 2;
            }
            let mut before = self.left.start.max(first.saturating_sub(reach));
            while before < first {
                let middle = before.midpoint(first);
                if is_of_group(middle) {
                    first = middle;
                } else {
                    before = middle + 1;
                }
            }
            self.left.end = first;
            self.group = first..end;
            if let Some(after) = query.after.filter(|after| after.time == time) {
                // Ids ascend in a group.
                let is_before =
                    |index| source.is_up_to(source.row_at(&self.list, index), &after.id);
                let mut behind = end;
                while first < behind {
                    let middle = first.midpoint(behind);
                    if is_before(middle) {
                        first = middle + 1;
                    } else {
                        behind = middle;
                    }
                }
                self.group.start = first;
                if self.group.is_empty() {
                    return self.step(source, query);
                }
            }
        }
        self.group.next()
    }
}

/// Returns the index of a row in a posting list, or the index at which the row would be, and
/// whether the list contains the row.
#[inline]
pub(super) fn find<S: Source>(
    source: &S,
    cut: &PostingSlice<S::PostingList>,
    row: u32,
) -> (usize, bool) {
    let at = source.seek(&cut.list, cut.range.clone(), row);
    (at, at < cut.range.end && source.row_at(&cut.list, at) == row)
}
