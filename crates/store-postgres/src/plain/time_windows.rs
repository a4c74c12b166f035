//! Divides the times of a query into windows. Each window consists of whole parts.

use hark_archive::Order;

use crate::parts::Parts;
use crate::search::SqlQuery;
use crate::time::IndexKey;

/// The factor by which each window is wider than the previous window.
const WIDEN: usize = 3;

/// The windows of a query.
pub(super) struct TimeWindows {
    /// The times for which no window was made yet; both bounds are inclusive.
    rest: Option<(i64, i64)>,
    /// The current window; both bounds are inclusive.
    now: (i64, i64),
    parts: usize,
    /// The factor by which each window is wider than the previous window.
    widen: usize,
    /// The query's cursor: the first window begins after this key.
    after: Option<IndexKey>,
}

impl TimeWindows {
    pub(super) fn of(asked: &SqlQuery) -> Self {
        let (from, to) = asked.times();
        let rest = (from <= to).then_some((from, to));
        Self { rest, now: (from, from), parts: 1, widen: WIDEN, after: asked.after() }
    }

    /// Returns windows of one part each.
    pub(super) fn of_parts(asked: &SqlQuery) -> Self {
        Self { widen: 1, ..Self::of(asked) }
    }

    /// Moves to the next window. Returns false if no window is left.
    pub(super) fn next(&mut self, order: Order, parts: &Parts) -> bool {
        let Some(rest) = self.rest else { return false };
        let now = parts.window(rest, order, self.parts);
        self.parts = self.parts.saturating_mul(self.widen);
        self.now = now;
        self.rest = match order {
            Order::NewestFirst => (now.0 > rest.0).then(|| (rest.0, now.0 - 1)),
            Order::OldestFirst => (now.1 < rest.1).then(|| (now.1 + 1, rest.1)),
        };
        true
    }

    /// Restricts the current window to the times from `time` to the end (in the query's order) of
    /// the part that contains `time`. The later times of the window go back to `rest`.
    pub(super) fn narrow(&mut self, time: i64, order: Order, parts: &Parts) {
        let ((lo, hi), (start, stop)) = (self.now, parts.covering(time, time));
        match order {
            Order::NewestFirst => {
                self.now = (lo.max(start), hi.min(time));
                if start > lo {
                    self.rest = Some((self.rest.map_or(lo, |(from, _)| from), start - 1));
                }
            }
            Order::OldestFirst => {
                self.now = (lo.max(time), hi.min(stop));
                if stop < hi {
                    self.rest = Some((stop + 1, self.rest.map_or(hi, |(_, to)| to)));
                }
            }
        }
    }

    /// Returns the cursor if it is at the start of the current window. `None` means that the whole
    /// window is read.
    pub(super) fn begins_behind(&mut self, order: Order) -> Option<IndexKey> {
        let edge = self.edge(order);
        self.after.take().filter(|after| after.time == edge)
    }

    /// Returns the time at which the current window begins, in the query's order.
    pub(super) fn edge(&self, order: Order) -> i64 {
        if order == Order::NewestFirst { self.now.1 } else { self.now.0 }
    }

    /// Returns the current window; both bounds are inclusive.
    pub(super) fn window(&self) -> (i64, i64) {
        self.now
    }
}
