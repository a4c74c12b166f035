//! The parts of a shelf that this process knows. A part is a range of time. All parts have the same
//! length, which is fixed when the shelf is made.
//!
//! The first commit that needs a part makes the part. Records outside all parts are in separate
//! tables: very old records, records far in the future, and records whose part would exceed the
//! maximum number of parts. These records move if their part is made later.

use std::collections::BTreeMap;

use hark_archive::Order;
use tokio_postgres::Row;

use crate::error::StatementError;
use crate::layout::SharedStatement;
use crate::session::DatabaseSession;
use crate::time::to_db;

/// The parts that a shelf can have.
#[derive(Clone, Debug)]
pub(crate) struct PartGrid {
    /// The length of a part, in the network's units of time.
    pub(crate) width: u64,
    /// The earliest time for which a part is made.
    pub(crate) from: u64,
    /// Maximum number of parts of a shelf.
    pub(crate) max: usize,
}

/// The existing parts of a shelf.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    /// The version of this list, from the database's table `state`.
    pub(crate) version: i64,
    /// For the start of each part, its end and its number. Times are in the type of the database.
    list: BTreeMap<i64, (i64, i64)>,
}

impl Parts {
    /// Returns this list with a version that no database has, so that the next commit or
    /// notification reads the list again.
    pub(crate) fn outdated(&self) -> Self {
        Self { version: -1, list: self.list.clone() }
    }

    /// Reads the parts from the database.
    pub(crate) fn read(
        session: &mut DatabaseSession,
        version: i64,
    ) -> Result<Self, StatementError> {
        Ok(Self::of(&session.query(SharedStatement::Parts, &[])?, version))
    }

    /// Makes the list from a result of [`SharedStatement::Parts`].
    pub(crate) fn of(rows: &[Row], version: i64) -> Self {
        let list = rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect();
        Self { version, list }
    }

    /// Returns the number of the part that contains a time.
    pub(crate) fn of_time(&self, time: i64) -> Option<i64> {
        let (_, (stop, number)) = self.list.range(..=time).next_back()?;
        (time < *stop).then_some(*number)
    }

    /// Returns the number of the part that contains all these times; both bounds are inclusive.
    pub(crate) fn of_times(&self, (from, to): (i64, i64)) -> Option<i64> {
        self.of_time(from).filter(|part| self.of_time(to) == Some(*part))
    }

    /// Returns the numbers of those parts that must be made for `times`.
    pub(crate) fn missing(
        &self,
        times: impl Iterator<Item = u64>,
        now: u64,
        grid: &PartGrid,
    ) -> Vec<u64> {
        let mut numbers: Vec<u64> = times
            .filter(|&time| time >= grid.from && time <= now.saturating_add(grid.width))
            .filter(|&time| self.of_time(to_db(time)).is_none())
            .map(|time| time / grid.width)
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.truncate(grid.max.saturating_sub(self.list.len()));
        numbers
    }

    /// Returns the times of the first `count` parts of `rest`, in the order `order`. Both bounds
    /// are inclusive. The window ends where a part ends, or where `rest` ends, if that comes first.
    pub(crate) fn window(&self, rest: (i64, i64), order: Order, count: usize) -> (i64, i64) {
        let (from, to) = rest;
        match order {
            Order::NewestFirst => {
                let start = self.list.range(..=to).rev().take(count).last();
                let full = self.list.range(..=to).rev().take(count).count() == count;
                let start = start.filter(|_| full).map_or(from, |(start, _)| *start);
                (start.max(from), to)
            }
            Order::OldestFirst => {
                let behind = self.list.values().filter(|(stop, _)| *stop > from);
                let stop = behind.map(|(stop, _)| *stop).nth(count - 1);
                (from, stop.map_or(to, |stop| stop - 1).min(to))
            }
        }
    }

    /// Returns the times of all parts that overlap the times from `from` to `to`; both bounds are
    /// inclusive. If some of these times are in no part, returns all times, because the records
    /// outside all parts are in one table.
    pub(crate) fn covering(&self, from: i64, to: i64) -> (i64, i64) {
        let all = (i64::MIN, i64::MAX);
        let Some((first, _)) = self.list.range(..=from).next_back() else { return all };
        let mut end = *first;
        for (start, (stop, _)) in self.list.range(first..) {
            if *start != end {
                return all;
            }
            end = *stop;
            if to < end {
                return (*first, end - 1);
            }
        }
        all
    }

    /// Returns the start of the first part and the end of the last part; `None` if there are no
    /// parts.
    pub(crate) fn span(&self) -> Option<(i64, i64)> {
        let (start, (stop, _)) = (self.list.keys().next()?, self.list.values().next_back()?);
        Some((*start, *stop))
    }

    /// Returns the number of parts.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_covered_by_parts_that_follow_one_another() {
        let list = [(10, (20, 1)), (20, (30, 2)), (40, (50, 3))].into_iter().collect();
        let parts = Parts { version: 0, list };
        assert_eq!(parts.covering(12, 15), (10, 19));
        assert_eq!(parts.covering(19, 20), (10, 29));
        assert_eq!(parts.covering(45, 49), (40, 49));
        for (from, to) in [(5, 15), (15, 30), (25, 45), (32, 35), (45, 50), (60, 70)] {
            assert_eq!(parts.covering(from, to), (i64::MIN, i64::MAX), "{from} to {to}");
        }
    }
}
