//! Runs on their way through a walk: clipped to its times, then read in its order.

use std::ops::Range;

use super::Order;
use super::source::Source;

/// The part of a run that lies in the window.
pub(super) struct Cut<R> {
    pub(super) run: R,
    pub(super) range: Range<usize>,
    /// Which of the set's values it is the run of.
    pub(super) value: u32,
    /// The kind of its rows, where that narrows what is looked up in it.
    pub(super) kind: Option<u32>,
}

/// A run being walked in the query's order.
pub(super) struct Stream<R> {
    pub(super) run: R,
    /// What is left, in the run's own order (newest first).
    pub(super) left: Range<usize>,
    /// Oldest first only: the group of equal time being walked, ascending.
    group: Range<usize>,
    /// Which of the set's values it is the run of.
    pub(super) value: u32,
    /// The kind of its rows, where that narrows what they are looked up in.
    pub(super) kind: Option<u32>,
}

impl<R> Stream<R> {
    pub(super) fn new(cut: Cut<R>) -> Self {
        let Cut { run, range: left, value, kind } = cut;
        Self { run, left, group: 0..0, value, kind }
    }

    /// Index of the next row, which is taken.
    #[inline]
    pub(super) fn step<S: Source<Run = R>>(&mut self, source: &S, order: Order) -> Option<usize> {
        if order == Order::NewestFirst {
            return self.left.next();
        }
        if self.group.is_empty() {
            let end = self.left.end;
            let last = self.left.next_back()?;
            let time = source.run_time(&self.run, last);
            while self.left.end > self.left.start
                && source.run_time(&self.run, self.left.end - 1) == time
            {
                self.left.end -= 1;
            }
            self.group = self.left.end..end;
        }
        self.group.next()
    }
}
