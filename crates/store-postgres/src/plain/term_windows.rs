//! Walks the records of many terms in slim tables, in windows of time.
//!
//! A statement reads the rows of all terms within a window, and these rows are sorted. The length
//! of a window is computed from the number of records per unit of time in the earlier windows, so
//! that the window has about the records of one page.

use hark_archive::Order;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::listed_sizes::ListedSize;
use super::pages::PAGE_MAX;
use super::statement::{PlainStatement, WindowRows};
use crate::error::StatementError;
use crate::parts::Parts;
use crate::search::SqlQuery;
use crate::search::asked::compare;
use crate::search::found::{FETCH_MAX, FETCH_MIN, PAGE_BYTES_MAX, matching};
use crate::session::DatabaseSession;
use crate::time::IndexKey;

/// The share of a page's records that a window is expected to have. The records of a fuller window
/// need a second statement, which reads a part of the window again.
const FILL: f64 = 0.8;
/// The factor by which the window after an empty window is longer.
const WIDEN: f64 = 4.0;
/// Minimum number of wanted records for which the rows of a window are read in no order. If fewer
/// records are wanted, the number of records in the window often differs from the expected number.
const UNSORTED_MIN: usize = 64;
/// A window without rows.
const EMPTY: (i64, i64) = (0, -1);

/// A walk through the records that have any of some terms.
pub(super) struct TermWindowWalk {
    terms: Vec<i64>,
    kind: i32,
    pub(super) visited: u64,
    /// Number of records that were read.
    pub(super) fetched: usize,
    /// The times that no window has covered yet; both bounds are inclusive.
    rest: Option<(i64, i64)>,
    /// The last key that was read, if records of the same time may follow.
    at: Option<IndexKey>,
    /// Expected number of records per unit of time, in the times of the parts.
    density: f64,
    /// The same for times before the first part and after the last part. These times have few
    /// records, so a window covers all these times. `None` until such a window has too many
    /// records.
    density_outside: Option<f64>,
    /// Maximum number of records of the next page.
    records_max: usize,
}

/// A window of a statement.
struct TimeWindow {
    /// The times of the window; both bounds are inclusive.
    times: (i64, i64),
    /// The part that contains the window and the last key; `None` if there is no such part.
    part: Option<i64>,
    /// Whether all times of the window are before the first part or after the last part.
    is_outside: bool,
}

impl TermWindowWalk {
    /// Makes a walk through the records of `kind` that have any of `terms`. There are `size`
    /// records with these terms in all parts together.
    pub(super) fn new(
        asked: &SqlQuery,
        (terms, kind): (Vec<i64>, i32),
        size: ListedSize,
        parts: &Parts,
    ) -> Self {
        let order = asked.query.order;
        let (from, to) = asked.times();
        let at = asked
            .after()
            .filter(|after| after.time == if order == Order::NewestFirst { to } else { from });
        let rest = match at {
            Some(at) => behind(order, (from, to), at.time),
            None => (from <= to).then_some((from, to)),
        };
        let at = at.filter(|_| from <= to);
        let span = parts.span().map_or(u64::MAX, |(start, stop)| stop.abs_diff(start));
        let density = size.matching.max(1) as f64 / span.max(1) as f64;
        Self {
            terms,
            kind,
            visited: 0,
            fetched: 0,
            rest,
            at,
            density,
            density_outside: None,
            records_max: FETCH_MAX,
        }
    }

    /// Reads up to `wanted` records and returns those that match; `None` if no records are left.
    /// While records are short, each page may have twice as many records as the previous page.
    pub(super) fn next(
        &mut self,
        asked: &SqlQuery,
        parts: &Parts,
        wanted: usize,
        session: &mut DatabaseSession,
    ) -> Result<Option<Vec<Box<[u8]>>>, StatementError> {
        let (order, wanted) = (asked.query.order, wanted.clamp(1, self.records_max));
        if self.rest.is_none() && self.at.is_none() {
            return Ok(None);
        }
        let window = self.window(order, parts, wanted);
        let (rows, is_cut) = match self.read(asked, &window, wanted, session) {
            // The part may have been dropped, or a lagging replica may not have the part yet.
            Err(StatementError::Missing(_)) if window.part.is_some() => {
                self.read(asked, &TimeWindow { part: None, ..window }, wanted, session)?
            }
            rows => rows?,
        };
        // A record of slim tables has only one term, so each record is returned once.
        let bodies = rows.iter().map(|row| row.get(2));
        let found = matching(asked, bodies, &mut self.visited)?;
        self.fetched += rows.len();
        // An index lookup for each term is charged, too.
        self.visited += (rows.len() + self.terms.len() / 4 + 1) as u64;
        let is_full = is_cut || rows.len() >= wanted;
        self.advance(order, &window, &rows, is_full);
        if is_cut {
            self.records_max = rows.len().max(FETCH_MIN);
        } else if 2 * rows.len() >= self.records_max {
            self.records_max = PAGE_MAX.min(2 * self.records_max);
        }
        Ok(Some(found))
    }

    /// Returns the next window. If records of the time of the last key may follow, the window is in
    /// the same part as the last key.
    fn window(&self, order: Order, parts: &Parts, wanted: usize) -> TimeWindow {
        let part_of_last = self.at.and_then(|at| parts.of_time(at.time));
        let only_ties = TimeWindow { times: EMPTY, part: part_of_last, is_outside: false };
        let Some((from, to)) = self.rest else { return only_ties };
        let edge = if order == Order::NewestFirst { to } else { from };
        // The edge is before all parts, within their span, or after all parts. `low` and `high` are
        // the first and the last time of this section.
        let (low, high, is_outside) = match parts.span() {
            Some((start, _)) if edge < start => (i64::MIN, start - 1, true),
            Some((start, stop)) if edge < stop => (start, stop - 1, false),
            Some((_, stop)) => (stop, i64::MAX, true),
            None => (i64::MIN, i64::MAX, true),
        };
        let density = if is_outside { self.density_outside } else { Some(self.density) };
        // A conversion of a large number saturates. If the width is `None`, the window covers all
        // of these times.
        let width = density.map(|density| (wanted as f64 * FILL / density).ceil().max(1.0) as i64);
        let (start, end) = parts.covering(edge, edge);
        // A statement for a single part takes less time than a statement for all parts.
        let is_short = width.is_some_and(|width| end.abs_diff(start) / 2 >= width.unsigned_abs());
        let is_one = self.at.is_some() || is_short;
        let (low, high) = if is_one { (low.max(start), high.min(end)) } else { (low, high) };
        let times = match order {
            Order::NewestFirst => {
                let start = width.map_or(from, |width| to.saturating_sub(width - 1));
                (from.max(low).max(start), to)
            }
            Order::OldestFirst => {
                let end = width.map_or(to, |width| from.saturating_add(width - 1));
                (from, to.min(high).min(end))
            }
        };
        let part = parts.of_times(times);
        if self.at.is_some() && part_of_last != part {
            return only_ties;
        }
        TimeWindow { times, part, is_outside }
    }

    /// Advances the walk after `rows` of a window were read. If `is_full`, more rows may follow in
    /// the window.
    fn advance(&mut self, order: Order, window: &TimeWindow, rows: &[Row], is_full: bool) {
        let (lo, hi) = window.times;
        let last = rows.last().map(key).filter(|_| is_full);
        let end = match (last, order) {
            (Some(last), _) => last.time,
            (None, Order::NewestFirst) => lo,
            (None, Order::OldestFirst) => hi,
        };
        self.at = last;
        if let Some(rest) = self.rest
            && (last.is_some() || lo <= hi)
        {
            self.rest = behind(order, rest, end);
        }
        if lo > hi {
            return;
        }
        let first = rows.first().map(key).filter(|_| is_full);
        let covered = first.map_or_else(|| hi.abs_diff(lo), |first| first.time.abs_diff(end));
        let density = rows.len() as f64 / (covered as f64 + 1.0);
        let known = if window.is_outside { self.density_outside } else { Some(self.density) };
        let density = match known {
            None => Some(density).filter(|_| is_full),
            Some(known) if rows.is_empty() => Some(known / WIDEN),
            Some(_) => Some(density),
        };
        if window.is_outside {
            self.density_outside = density;
        } else {
            self.density = density.unwrap_or(self.density);
        }
    }

    /// Reads at most `wanted` rows of a window, in order. Also returns whether rows were left out
    /// because the records are long.
    fn read(
        &mut self,
        asked: &SqlQuery,
        window: &TimeWindow,
        wanted: usize,
        session: &mut DatabaseSession,
    ) -> Result<(Vec<Row>, bool), StatementError> {
        let order = asked.query.order;
        if self.at.is_some() {
            return self.query(asked, window, (wanted, WindowRows::Behind), session);
        }
        if wanted < UNSORTED_MIN {
            return self.query(asked, window, (wanted, WindowRows::First), session);
        }
        // Sorting whole records takes PostgreSQL a quarter of the statement's time, so PostgreSQL
        // sorts the records only if the window has more records than expected.
        let all = (wanted, WindowRows::All);
        let (mut rows, is_cut) = self.query(asked, window, all, session)?;
        if is_cut || rows.len() >= wanted {
            self.visited += rows.len() as u64;
            return self.query(asked, window, (wanted, WindowRows::First), session);
        }
        rows.sort_by(|a, b| compare(order, &key(a), &key(b)));
        Ok((rows, false))
    }

    fn query(
        &self,
        asked: &SqlQuery,
        window: &TimeWindow,
        (wanted, rows): (usize, WindowRows),
        session: &mut DatabaseSession,
    ) -> Result<(Vec<Row>, bool), StatementError> {
        let ((lo, hi), limit) = (window.times, i64::from(wanted as u32));
        let mut values: Vec<&(dyn ToSql + Sync)> =
            vec![&lo, &hi, &limit, &asked.seq, &self.terms, &self.kind];
        let at = self.at.as_ref().map(|at| (at.time, &at.id[..]));
        if let Some((time, id)) = &at {
            values.extend([time as &(dyn ToSql + Sync), id]);
        }
        // Rows in no order have the same statement for both orders.
        let order = if rows == WindowRows::All { Order::NewestFirst } else { asked.query.order };
        let form = PlainStatement::SlimWindow(order, window.part, rows);
        session.query_first(form, &values, PAGE_BYTES_MAX)
    }
}

/// Returns the times of `rest` after `time`, in an order.
fn behind(order: Order, (from, to): (i64, i64), time: i64) -> Option<(i64, i64)> {
    let (from, to) = match order {
        Order::NewestFirst => (from, to.min(time.checked_sub(1)?)),
        Order::OldestFirst => (from.max(time.checked_add(1)?), to),
    };
    (from <= to).then_some((from, to))
}

fn key(row: &Row) -> IndexKey {
    IndexKey::read(row, 0)
}
