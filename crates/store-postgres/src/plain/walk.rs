//! Walks index ranges: one [`IndexRange`] for each value and kind of the query.
//!
//! Ranges are merged by reading a few keys of each range at a time. Consider the last key that was
//! read from each range that may have more keys: the earliest of these keys is the frontier. Up to
//! the frontier, the merged keys are complete. A range is read again only after all its keys are
//! used, each time with a higher limit. The times are walked in windows of whole parts. The first
//! window is one part, so if the newest part has the answer, no older part is read.

use std::collections::VecDeque;

use hark_archive::Order;
use hark_archive::query::plan::Set;
use hark_codec::record::Key as Author;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::pages::{PAGE_RANGES_MAX, PageWalk, RangeValue};
use super::statement::PlainStatement;
use super::time_windows::TimeWindows;
use crate::error::StatementError;
use crate::parts::Parts;
use crate::search::SqlQuery;
use crate::search::asked::compare;
use crate::session::DatabaseSession;
use crate::time::IndexKey;

/// Minimum and maximum number of keys that are read from a range at a time.
const ASK_MIN: usize = 4;
const ASK_MAX: usize = 1_000;
/// Number of keys in the first read of all ranges together. Each further read of a range costs a
/// round trip.
const ASK_ALL: usize = 2_048;
/// Number of keys after which the walk decides whether to go on skipping other authors' records.
const TRIAL: u64 = 256;

/// An index range: the ordered keys of one value and kind.
#[derive(Debug)]
struct IndexRange {
    value: RangeValue,
    kind: i32,
    keys: VecDeque<IndexKey>,
    /// The last key that was read; `None` if the range is read from the start of the window.
    at: Option<IndexKey>,
    /// Whether the range may have more keys in the current window.
    more: bool,
    /// The number of keys to read in the next read of the range.
    ask: usize,
}

pub(super) struct IndexWalk {
    pub(super) set: Set,
    pub(super) visited: u64,
    ranges: Vec<IndexRange>,
    /// Keys that were read before the walk began, in order.
    known: VecDeque<IndexKey>,
    windows: TimeWindows,
    /// If the walk skips other authors' records: the number of ranges that could be walked instead.
    instead: Option<u64>,
    walked: u64,
    matched: u64,
}

/// The result of [`IndexWalk::gather`].
pub(super) enum GatherResult {
    /// More keys may exist.
    Some,
    /// No keys are left.
    All,
    /// The walk has reached this key. From here on, walking the ranges of single values is cheaper.
    Instead(IndexKey),
}

impl IndexWalk {
    /// Makes a walk along `ranges`. `known` has keys of the same set that were already read.
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

    /// Allows the walk to skip other authors' records as long as this is cheaper than walking
    /// `ranges` ranges.
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
        let window = self.windows.window();
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
            Some(at) if self.is_costly(wanted) => GatherResult::Instead(at),
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

    /// If the walk has few ranges and all their records are wanted, returns a walk page by page
    /// instead.
    pub(super) fn pages(&self, asked: &SqlQuery) -> Option<PageWalk> {
        let few = (1..=PAGE_RANGES_MAX).contains(&self.ranges.len()) && self.known.is_empty();
        // Conditions on common labels are not checked: nearly all records meet them, so few records
        // are fetched in vain.
        let labels =
            (0..asked.terms.len()).filter(|&at| !asked.common[at] || self.set == Set::Label(at));
        let conditions = labels.count() + usize::from(asked.query.authors.is_some());
        let driven = usize::from(matches!(self.set, Set::Label(_) | Set::Authors));
        (few && self.instead.is_none() && conditions == driven && asked.probes.is_empty()).then(
            || {
                let ranges = self.ranges.iter().map(|range| (range.value, range.kind));
                PageWalk::new(self.set, ranges.collect(), asked)
            },
        )
    }

    /// Reads the next keys of those ranges whose keys are all used.
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
        let rows = self.query_due(asked, &due, ask, session)?;
        let counts = self.add_rows(asked, &due, &rows);
        let order = asked.query.order;
        for (n, &at) in due.iter().enumerate() {
            let range = &mut self.ranges[at];
            range.more = counts[n] == ask;
            range.ask = (ask * 4).min(wanted.max(ASK_MIN * 4));
            range.keys.make_contiguous().sort_unstable_by(|a, b| compare(order, a, b));
        }
        self.walked += rows.len() as u64;
        // A read of an empty range is charged, too.
        self.visited += rows.len() as u64 + due.len() as u64 / 4;
        Ok(())
    }

    /// Requests the next keys of these ranges, at most `ask` keys of each range.
    fn query_due(
        &self,
        asked: &SqlQuery,
        due: &[usize],
        ask: usize,
        session: &mut DatabaseSession,
    ) -> Result<Vec<Row>, StatementError> {
        let ranges = || due.iter().map(|&at| &self.ranges[at]);
        let kinds: Vec<i32> = ranges().map(|range| range.kind).collect();
        let (lo, hi) = self.windows.window();
        let (order, limit) = (asked.query.order, i64::from(ask as u32));
        // The empty id sorts before all other ids.
        let edge = if order == Order::NewestFirst { hi } else { lo };
        let times: Vec<i64> = ranges().map(|range| range.at.map_or(edge, |at| at.time)).collect();
        let ids: Vec<&[u8]> =
            ranges().map(|range| range.at.as_ref().map_or(&[][..], |at| &at.id[..])).collect();
        let head: [&(dyn ToSql + Sync); 5] = [&kinds, &times, &ids, &lo, &hi];
        match self.ranges[due[0]].value {
            RangeValue::Term(_) => {
                let term = |range: &IndexRange| {
                    if let RangeValue::Term(term) = range.value { term } else { 0 }
                };
                let terms: Vec<i64> = ranges().map(term).collect();
                let rest: [&(dyn ToSql + Sync); 2] = [&terms, &limit];
                session.query(PlainStatement::TermKeys(order), &[&head[..], &rest].concat())
            }
            RangeValue::Author(_) => {
                let author = |range| match range {
                    &IndexRange { value: RangeValue::Author(author), .. } => author,
                    _ => [0; 32],
                };
                let authors: Vec<Author> = ranges().map(author).collect();
                let authors: Vec<&[u8]> = authors.iter().map(|author| &author[..]).collect();
                let rest: [&(dyn ToSql + Sync); 2] = [&authors, &limit];
                session.query(PlainStatement::AuthorKeys(order), &[&head[..], &rest].concat())
            }
            RangeValue::Kind => {
                session.query(PlainStatement::KindKeys(order), &[&head[..], &[&limit]].concat())
            }
            // `AnyTerm` is read only page by page.
            RangeValue::Any | RangeValue::AnyTerm => {
                let not_kinds = asked.not_kinds();
                let values: [&(dyn ToSql + Sync); 5] = [&times[0], &ids[0], &lo, &hi, &limit];
                if not_kinds.is_empty() {
                    session.query(PlainStatement::TimeKeys(order), &values)
                } else {
                    let values = [&values[..], &[&not_kinds]].concat();
                    session.query(PlainStatement::TimeKeysBut(order), &values)
                }
            }
        }
    }

    /// Adds each row to its range. If the query names authors, a row of another author is not added
    /// to a range by kind or by time. Returns how many rows each range got from the database,
    /// including the rows that were not added.
    fn add_rows(&mut self, asked: &SqlQuery, due: &[usize], rows: &[Row]) -> Vec<usize> {
        let mut counts = vec![0_usize; due.len()];
        let order = asked.query.order;
        let value = due.first().map(|&at| self.ranges[at].value);
        let with_author = !matches!(value, Some(RangeValue::Term(_) | RangeValue::Author(_)));
        let authors = asked.query.authors.as_deref().filter(|_| with_author);
        for row in rows {
            let n = row.get::<_, i64>(0) as usize - 1;
            let key = IndexKey::read(row, 1);
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
        counts
    }

    /// Whether walking the ranges of single values would be cheaper than skipping other authors'
    /// records.
    fn is_costly(&mut self, wanted: usize) -> bool {
        let Some(ranges) = self.instead else { return false };
        let ahead = wanted as u64 * self.walked / self.matched.max(1);
        // Most keys are skipped, so more keys are read at a time.
        let ask = (ahead as usize / self.ranges.len()).clamp(TRIAL as usize, ASK_MAX);
        self.ranges.iter_mut().for_each(|range| range.ask = ask);
        self.walked >= TRIAL / 4 && ahead > ranges * 2 + wanted as u64
    }
}
