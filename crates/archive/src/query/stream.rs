//! Posting lists during a walk: clipped to the time window, and read in the query's order.

use std::ops::Range;

use super::source::Source;
use super::{Order, Query};

/// A posting list and the range of its indices that lies in the window.
pub(super) struct PostingSlice<R> {
    pub(super) list: R,
    pub(super) range: Range<usize>,
    /// Index of the set's value to which the list belongs.
    pub(super) value: u32,
    /// The kind of the rows that are looked up in the list, if all these rows have the same kind.
    pub(super) kind: Option<u32>,
}

/// A posting list that is being walked in the query's order.
pub(super) struct PostingStream<R> {
    pub(super) list: R,
    /// The rows that are left, in the list's own order (newest first).
    pub(super) left: Range<usize>,
    /// If the order is oldest first: the rows of the time that is being walked, by ascending id.
    group: Range<usize>,
    /// Index of the set's value to which the list belongs.
    pub(super) value: u32,
    /// The kind of the stream's rows, if they are looked up only in lists of this kind.
    pub(super) kind: Option<u32>,
}

impl<R> PostingStream<R> {
    pub(super) fn new(cut: PostingSlice<R>) -> Self {
        let PostingSlice { list, range: left, value, kind } = cut;
        Self { list, left, group: 0..0, value, kind }
    }

    /// Advances to the next row and returns its index.
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
            // Most groups have one row, but a page may begin inside a long group. So the start of
            // the group is found by doubling steps instead of row by row.
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
                // Within a group, ids ascend.
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

/// Searches a posting list for a row. Returns the index at which the row is or would be, and
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
