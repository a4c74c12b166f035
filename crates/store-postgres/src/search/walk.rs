//! Walks index ranges: one [`IndexRange`] for each value and kind of the query.
//!
//! Many ranges are merged: a few keys of each range are read at a time. The merged keys are
//! complete up to the frontier: the earliest of the last keys read from ranges that may have more.
//! A range is read again only when its keys are used up, with a higher limit each time. Times are
//! walked in windows of whole parts. The first window is one part, so that an answer in the newest
//! part reads no older parts.

use std::collections::VecDeque;

use hark_archive::Order;
use hark_archive::query::plan::Set;
use hark_codec::record::Key as Author;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::{FETCH_MAX, FETCH_MIN, SqlQuery, compare, matching};
use crate::layout::StatementForm;
use crate::parts::Parts;
use crate::session::{DatabaseSession, StatementError};
use crate::time::{IndexKey, to_db};

/// Minimum and maximum number of keys read from a range at a time.
const ASK_MIN: usize = 4;
const ASK_MAX: usize = 1_000;
/// Number of keys of the first read, of all ranges together. Every further read of a range is a
/// round trip.
const ASK_ALL: usize = 2_048;
/// Maximum number of ranges that are read as pages.
pub(super) const PAGE_RANGES_MAX: usize = 10;
/// Maximum number of records of a page.
const PAGE_MAX: usize = 2_048;
/// Maximum number of bytes of a page's records. A single longer record is allowed.
pub(super) const PAGE_BYTES_MAX: usize = 2 << 20;
/// The factor by which each window is wider than the previous window.
const WIDEN: usize = 3;
/// Number of keys that are walked before the decision whether to continue past other authors'
/// records.
const TRIAL: u64 = 256;

/// The common property of an index range's keys, besides their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeValue {
    Term(i64),
    Author(Author),
    /// No property: the range has all records of the kind.
    Kind,
    /// No property, not even the kind: the range has all records.
    Any,
    /// Any of the terms of the query's label condition.
    AnyTerm,
}

/// An index range: the ordered keys of one value and kind.
#[derive(Debug)]
struct IndexRange {
    value: RangeValue,
    kind: i32,
    keys: VecDeque<IndexKey>,
    /// The last key read. `None` if the range is read from the start of the window.
    at: Option<IndexKey>,
    /// Whether the range may have more keys in the window.
    more: bool,
    /// The number of keys to read next from the range.
    ask: usize,
}

pub(super) struct IndexWalk {
    pub(super) set: Set,
    pub(super) visited: u64,
    ranges: Vec<IndexRange>,
    /// Keys that were read before the walk, in order.
    known: VecDeque<IndexKey>,
    windows: TimeWindows,
    /// For a walk past other authors' records: the number of ranges that could be walked instead.
    instead: Option<u64>,
    walked: u64,
    matched: u64,
}

/// The times of a query, window by window.
pub(super) struct TimeWindows {
    /// The times that no window has covered; both bounds are inclusive.
    rest: Option<(i64, i64)>,
    /// The current window; both bounds are inclusive.
    now: (i64, i64),
    parts: usize,
    /// The factor by which each window is wider than the previous window.
    widen: usize,
    /// The key behind which the first window begins.
    after: Option<IndexKey>,
}

impl TimeWindows {
    pub(super) fn of(asked: &SqlQuery) -> Self {
        let query = &asked.query;
        let after = query.after.map(|at| IndexKey { time: to_db(at.time), id: at.id });
        let (mut from, mut to) = (to_db(query.from), to_db(query.to));
        if let Some(after) = &after {
            match query.order {
                Order::NewestFirst => to = to.min(after.time),
                Order::OldestFirst => from = from.max(after.time),
            }
        }
        let rest = (from <= to).then_some((from, to));
        Self { rest, now: (from, from), parts: 1, widen: WIDEN, after }
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

    /// Restricts the current window to the times from `time` to the end of that time's part. The
    /// later times go back to `rest`.
    fn narrow(&mut self, time: i64, order: Order, parts: &Parts) {
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

    /// Returns the key behind which the current window begins, or `None` if the whole window is
    /// read.
    pub(super) fn begins_behind(&mut self, order: Order) -> Option<IndexKey> {
        let edge = self.edge(order);
        self.after.take().filter(|after| after.time == edge)
    }

    /// Returns the time at which the current window begins.
    pub(super) fn edge(&self, order: Order) -> i64 {
        if order == Order::NewestFirst { self.now.1 } else { self.now.0 }
    }

    /// Returns the current window; both bounds are inclusive.
    pub(super) fn window(&self) -> (i64, i64) {
        self.now
    }
}

/// A few index ranges that PostgreSQL merges, returning the records with their keys.
pub(super) struct PageWalk {
    set: Set,
    pub(super) visited: u64,
    /// Records that were read.
    pub(super) fetched: usize,
    ranges: Vec<(RangeValue, i32)>,
    windows: TimeWindows,
    /// Whether the current window may have more keys. `at` is the last key read; `None` if the
    /// window is read from its start. Both change only after a page has arrived, so that a failed
    /// page can be requested again.
    open: bool,
    at: Option<IndexKey>,
    /// The number of rows that are visited for each row that is found.
    passed: u64,
    /// Maximum number of records of the next page.
    pub(super) records_max: usize,
}

impl PageWalk {
    /// Creates a walk through all records by time. It finds the records with any of the terms of
    /// the query's only label condition. A window is one part, so a statement visits at most one
    /// part.
    pub(super) fn by_time(asked: &SqlQuery, passed: u64) -> Self {
        Self {
            set: Set::Time,
            ranges: vec![(RangeValue::AnyTerm, 0)],
            visited: 0,
            fetched: 0,
            windows: TimeWindows { widen: 1, ..TimeWindows::of(asked) },
            open: false,
            at: None,
            passed,
            records_max: FETCH_MAX,
        }
    }

    /// Reads up to `wanted` records and returns those that match, or `None` if no record is left.
    /// While the records are short, each page may have twice as many records as the previous page.
    pub(super) fn next(
        &mut self,
        asked: &SqlQuery,
        parts: &Parts,
        wanted: usize,
        session: &mut DatabaseSession,
    ) -> Result<Option<Vec<Box<[u8]>>>, StatementError> {
        let (order, wanted) = (asked.query.order, wanted.clamp(1, self.records_max));
        if !self.open {
            if !self.windows.next(order, parts) {
                return Ok(None);
            }
            self.at = self.windows.begins_behind(order);
            self.open = true;
        }
        let at = self.at;
        if let Some(at) = at {
            self.windows.narrow(at.time, order, parts);
        }
        // An empty id sorts before all other ids.
        let behind =
            at.as_ref().map_or((self.windows.edge(order), &[][..]), |at| (at.time, &at.id));
        // A look-up in the tables of all parts would double the time.
        let (first, last) = self.windows.now;
        let part = parts.of_time(first).filter(|part| parts.of_time(last) == Some(*part));
        let (rows, is_cut) = match self.read(asked, behind, wanted, part, session) {
            // The part may have been dropped, or a lagging replica may not have it yet.
            Err(StatementError::Missing(_)) if part.is_some() => {
                self.read(asked, behind, wanted, None, session)?
            }
            rows => rows?,
        };
        let key = |row: &Row| {
            let id: &[u8] = row.get(1);
            IndexKey { time: row.get(0), id: id.try_into().unwrap_or_default() }
        };
        // A record with two of the values is returned twice. A record stored after the query began
        // has no body.
        let once = || rows.chunk_by(|a, b| key(a) == key(b));
        let bodies = once().filter_map(|same| same[0].get(2));
        let found = matching(asked, bodies, &mut self.visited)?;
        self.fetched += once().count();
        self.visited += rows.len() as u64 * self.passed + 1;
        self.open = is_cut || rows.len() >= wanted;
        if is_cut {
            self.records_max = rows.len().max(FETCH_MIN);
        } else if rows.len() == self.records_max {
            self.records_max = PAGE_MAX.min(2 * rows.len());
        }
        self.at = rows.last().map(key);
        Ok(Some(found))
    }

    /// Returns the last key that was read if the current window may have more keys.
    pub(super) fn resumes_behind(&self) -> Option<IndexKey> {
        self.at.filter(|_| self.open)
    }

    fn read(
        &self,
        asked: &SqlQuery,
        (time, id): (i64, &[u8]),
        wanted: usize,
        part: Option<i64>,
        session: &mut DatabaseSession,
    ) -> Result<(Vec<Row>, bool), StatementError> {
        let (order, count) = (asked.query.order, self.ranges.len());
        let kinds: Vec<i32> = self.ranges.iter().map(|(_, kind)| *kind).collect();
        let terms: Vec<i64> = self
            .ranges
            .iter()
            .filter_map(
                |(value, _)| if let RangeValue::Term(term) = value { Some(*term) } else { None },
            )
            .collect();
        let authors: Vec<&[u8]> = self
            .ranges
            .iter()
            .filter_map(|(value, _)| {
                if let RangeValue::Author(author) = value { Some(&author[..]) } else { None }
            })
            .collect();
        let ((lo, hi), limit) = (self.windows.now, i64::from(wanted as u32));
        let not_kinds = asked.not_kinds();
        let any = asked.terms.iter().flatten().next();
        let cut = asked.cut(Some(self.set));
        let mut values: Vec<&(dyn ToSql + Sync)> =
            vec![&lo, &hi, &time, &id, &limit, &asked.seq, &kinds];
        let form = match self.ranges[0].0 {
            RangeValue::Term(_) => {
                values.extend([&terms as &(dyn ToSql + Sync), &cut]);
                StatementForm::TermPage(order, count, part)
            }
            RangeValue::Author(_) => {
                values.push(&authors);
                StatementForm::AuthorPage(order, count, part)
            }
            RangeValue::Kind => StatementForm::KindPage(order, count, part),
            RangeValue::AnyTerm => {
                values.pop();
                values.push(&any);
                StatementForm::TermTimePage(order, part)
            }
            RangeValue::Any => {
                values.pop();
                if not_kinds.is_empty() {
                    StatementForm::TimePage(order, part)
                } else {
                    values.push(&not_kinds);
                    StatementForm::TimePageBut(order, part)
                }
            }
        };
        session.query_first(form, &values, PAGE_BYTES_MAX)
    }
}

/// The result of [`IndexWalk::gather`].
pub(super) enum GatherResult {
    /// More keys may exist.
    Some,
    /// No keys are left.
    All,
    /// After this key, walking the ranges of single values is cheaper.
    Instead(IndexKey),
}

impl IndexWalk {
    /// Creates a walk along `ranges`, with the keys of the same set that are `known` already.
    pub(super) fn new(
        set: Set,
        ranges: Vec<(RangeValue, i32)>,
        mut known: Vec<IndexKey>,
        asked: &SqlQuery,
    ) -> Self {
        let query = &asked.query;
        known.sort_unstable_by(|a, b| compare(query.order, a, b));
        known.dedup();
        let range = |(value, kind)| IndexRange {
            value,
            kind,
            keys: VecDeque::new(),
            at: None,
            more: false,
            ask: ASK_MIN,
        };
        Self {
            set,
            visited: 0,
            ranges: ranges.into_iter().map(range).collect(),
            known: known.into(),
            windows: TimeWindows::of(asked),
            instead: None,
            walked: 0,
            matched: 0,
        }
    }

    /// Lets the walk pass other authors' records while this is cheaper than walking `ranges`
    /// ranges.
    pub(super) fn or_instead(mut self, ranges: u64) -> Self {
        self.instead = Some(ranges);
        self
    }

    /// Appends the next keys to `out`.
    pub(super) fn gather(
        &mut self,
        asked: &SqlQuery,
        parts: &Parts,
        wanted: usize,
        out: &mut VecDeque<IndexKey>,
        session: &mut DatabaseSession,
    ) -> Result<GatherResult, StatementError> {
        let order = asked.query.order;
        let wanted = wanted.clamp(1, ASK_MAX);
        if self.ranges.is_empty() {
            out.extend(self.known.drain(..));
            return Ok(GatherResult::All);
        }
        let open = self.ranges.iter().any(|range| range.more || !range.keys.is_empty());
        if !open && !self.begin_window(asked, parts, wanted) {
            out.extend(self.known.drain(..));
            return Ok(GatherResult::All);
        }
        self.read(asked, wanted, session)?;
        let frontier = self.ranges.iter().filter(|range| range.more).filter_map(|range| range.at);
        let frontier = frontier.min_by(|a, b| compare(order, a, b));
        let window = self.windows.now;
        let within = |key: &IndexKey| match frontier {
            Some(frontier) => compare(order, key, &frontier).is_le(),
            None => match order {
                Order::NewestFirst => key.time >= window.0,
                Order::OldestFirst => key.time <= window.1,
            },
        };
        let mut found = Vec::new();
        for range in &mut self.ranges {
            let count = range.keys.partition_point(within);
            found.extend(range.keys.drain(..count));
        }
        let count = self.known.partition_point(within);
        found.extend(self.known.drain(..count));
        found.sort_unstable_by(|a, b| compare(order, a, b));
        found.dedup();
        out.extend(found);
        Ok(match frontier {
            Some(at) if self.is_dear(wanted) => GatherResult::Instead(at),
            _ => GatherResult::Some,
        })
    }

    /// Moves to the next window. Returns false if no window is left.
    fn begin_window(&mut self, asked: &SqlQuery, parts: &Parts, wanted: usize) -> bool {
        if !self.windows.next(asked.query.order, parts) {
            return false;
        }
        let at = self.windows.begins_behind(asked.query.order);
        let ask = match self.instead {
            Some(_) => TRIAL as usize / self.ranges.len(),
            None => (wanted * 2).max(ASK_ALL) / self.ranges.len(),
        };
        let ask = ask.clamp(ASK_MIN, wanted.max(ASK_MIN));
        for range in &mut self.ranges {
            (range.at, range.more, range.ask) = (at, true, ask);
        }
        true
    }

    /// Converts the walk to pages if it has few ranges and all of their records are wanted.
    pub(super) fn pages(&self, asked: &SqlQuery) -> Option<PageWalk> {
        let few = (1..=PAGE_RANGES_MAX).contains(&self.ranges.len()) && self.known.is_empty();
        // Nearly all records meet a common condition, so hardly any record is fetched
        // unnecessarily.
        let labels =
            (0..asked.terms.len()).filter(|&at| !asked.common[at] || self.set == Set::Label(at));
        let conditions = labels.count() + usize::from(asked.query.authors.is_some());
        let driven = usize::from(matches!(self.set, Set::Label(_) | Set::Authors));
        (few && self.instead.is_none() && conditions == driven && asked.probes.is_empty()).then(
            || PageWalk {
                set: self.set,
                ranges: self.ranges.iter().map(|range| (range.value, range.kind)).collect(),
                visited: 0,
                fetched: 0,
                windows: TimeWindows::of(asked),
                open: false,
                at: None,
                passed: 1,
                records_max: FETCH_MAX,
            },
        )
    }

    /// Reads the next keys of the ranges whose keys are used up.
    fn read(
        &mut self,
        asked: &SqlQuery,
        wanted: usize,
        session: &mut DatabaseSession,
    ) -> Result<(), StatementError> {
        let due: Vec<usize> = (0..self.ranges.len())
            .filter(|&at| self.ranges[at].more && self.ranges[at].keys.is_empty())
            .collect();
        let Some(ask) = due.iter().map(|&at| self.ranges[at].ask).max() else { return Ok(()) };
        let ranges = || due.iter().map(|&at| &self.ranges[at]);
        let kinds: Vec<i32> = ranges().map(|range| range.kind).collect();
        let (lo, hi) = self.windows.now;
        let (order, limit) = (asked.query.order, i64::from(ask as u32));
        // An empty id sorts before all other ids.
        let edge = if order == Order::NewestFirst { hi } else { lo };
        let times: Vec<i64> = ranges().map(|range| range.at.map_or(edge, |at| at.time)).collect();
        let ids: Vec<&[u8]> =
            ranges().map(|range| range.at.as_ref().map_or(&[][..], |at| &at.id[..])).collect();
        let head: [&(dyn ToSql + Sync); 5] = [&kinds, &times, &ids, &lo, &hi];
        let mut with_author = false;
        let rows = match self.ranges[due[0]].value {
            RangeValue::Term(_) => {
                let term = |range: &IndexRange| {
                    if let RangeValue::Term(term) = range.value { term } else { 0 }
                };
                let terms: Vec<i64> = ranges().map(term).collect();
                let rest: [&(dyn ToSql + Sync); 2] = [&terms, &limit];
                session.query(StatementForm::TermKeys(order), &[&head[..], &rest].concat())?
            }
            RangeValue::Author(_) => {
                let author = |range| match range {
                    &IndexRange { value: RangeValue::Author(author), .. } => author,
                    _ => [0; 32],
                };
                let authors: Vec<Author> = ranges().map(author).collect();
                let authors: Vec<&[u8]> = authors.iter().map(|author| &author[..]).collect();
                let rest: [&(dyn ToSql + Sync); 2] = [&authors, &limit];
                session.query(StatementForm::AuthorKeys(order), &[&head[..], &rest].concat())?
            }
            RangeValue::Kind => {
                with_author = true;
                session.query(StatementForm::KindKeys(order), &[&head[..], &[&limit]].concat())?
            }
            // `AnyTerm` is only read as pages.
            RangeValue::Any | RangeValue::AnyTerm => {
                with_author = true;
                let not_kinds = asked.not_kinds();
                let values: [&(dyn ToSql + Sync); 5] = [&times[0], &ids[0], &lo, &hi, &limit];
                if not_kinds.is_empty() {
                    session.query(StatementForm::TimeKeys(order), &values)?
                } else {
                    let values = [&values[..], &[&not_kinds]].concat();
                    session.query(StatementForm::TimeKeysBut(order), &values)?
                }
            }
        };
        let mut counts = vec![0_usize; due.len()];
        let authors = asked.query.authors.as_deref().filter(|_| with_author);
        for row in &rows {
            let n = row.get::<_, i64>(0) as usize - 1;
            let id: &[u8] = row.get(2);
            let key = IndexKey { time: row.get(1), id: id.try_into().unwrap_or_default() };
            let range = &mut self.ranges[due[n]];
            counts[n] += 1;
            if range.at.is_none_or(|at| compare(order, &at, &key).is_lt()) {
                range.at = Some(key);
            }
            let theirs = authors.is_none_or(|authors| {
                let author: Option<&[u8]> = row.get(3);
                let author = author.and_then(|author| <&Author>::try_from(author).ok());
                author.is_some_and(|author| authors.binary_search(author).is_ok())
            });
            if theirs {
                range.keys.push_back(key);
                self.matched += 1;
            }
        }
        for (n, &at) in due.iter().enumerate() {
            let range = &mut self.ranges[at];
            range.more = counts[n] == ask;
            range.ask = (ask * 4).min(wanted.max(ASK_MIN * 4));
            range.keys.make_contiguous().sort_unstable_by(|a, b| compare(order, a, b));
        }
        self.walked += rows.len() as u64;
        // Reading an empty range is charged, too.
        self.visited += rows.len() as u64 + due.len() as u64 / 4;
        Ok(())
    }

    /// Whether walking the ranges of single values is cheaper than passing other authors' records.
    fn is_dear(&mut self, wanted: usize) -> bool {
        let Some(ranges) = self.instead else { return false };
        let ahead = wanted as u64 * self.walked / self.matched.max(1);
        // Most keys are skipped, so more keys are read at a time.
        let ask = (ahead as usize / self.ranges.len()).clamp(TRIAL as usize, ASK_MAX);
        self.ranges.iter_mut().for_each(|range| range.ask = ask);
        self.walked >= TRIAL / 4 && ahead > ranges * 2 + wanted as u64
    }
}
