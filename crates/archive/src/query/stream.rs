//! Posting lists during a walk: clipped to the time window, then read in the query's order.

use std::ops::Range;

use super::Order;
use super::source::Source;

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
        order: Order,
    ) -> Option<usize> {
        if order == Order::NewestFirst {
            return self.left.next();
        }
        if self.group.is_empty() {
            let end = self.left.end;
            let last = self.left.next_back()?;
            let time = source.list_time(&self.list, last);
            while self.left.end > self.left.start
                && source.list_time(&self.list, self.left.end - 1) == time
            {
                self.left.end -= 1;
            }
            self.group = self.left.end..end;
        }
        self.group.next()
    }
}
