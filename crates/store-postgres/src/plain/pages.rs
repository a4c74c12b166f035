//! Reads a few index ranges page by page. PostgreSQL merges the ranges and returns the keys
//! together with their records.

use hark_archive::query::plan::Set;
use hark_codec::record::Key as Author;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::statement::{IndexPage, PlainStatement};
use super::time_windows::TimeWindows;
use crate::error::StatementError;
use crate::parts::Parts;
use crate::search::SqlQuery;
use crate::search::found::{FETCH_MAX, FETCH_MIN, PAGE_BYTES_MAX, matching};
use crate::session::DatabaseSession;
use crate::time::IndexKey;

/// Maximum number of ranges that are read page by page.
pub(super) const PAGE_RANGES_MAX: usize = 10;
/// Maximum number of records of a page.
pub(super) const PAGE_MAX: usize = 2_048;

/// The value that all keys of an index range share, besides their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeValue {
    Term(i64),
    Author(Author),
    /// No value: the range has all records of the kind.
    Kind,
    /// No value and no kind: the range has all records.
    Any,
    /// The range has the records with any term of the query's label condition.
    AnyTerm,
}

/// A walk along a few index ranges, which PostgreSQL merges. The walk returns the records together
/// with their keys.
pub(super) struct PageWalk {
    set: Set,
    pub(super) visited: u64,
    /// Number of records that were read.
    pub(super) fetched: usize,
    ranges: Vec<(RangeValue, i32)>,
    windows: TimeWindows,
    /// Whether the current window may have more keys, and the last key that was read; `None` if the
    /// window is read from its start. Both fields change only after a page has arrived, so a page
    /// that failed can be requested again.
    open: bool,
    at: Option<IndexKey>,
    /// The number of rows that are visited for each row that is found.
    passed: u64,
    /// Maximum number of records of the next page.
    pub(super) records_max: usize,
}

impl PageWalk {
    /// Makes a walk through all records by time. The walk finds the records that have any of the
    /// terms of the query's only label condition. Each window is one part, so a statement visits at
    /// most one part.
    pub(super) fn by_time(asked: &SqlQuery, passed: u64) -> Self {
        let ranges = vec![(RangeValue::AnyTerm, 0)];
        let windows = TimeWindows::of_parts(asked);
        Self { windows, passed, ..Self::new(Set::Time, ranges, asked) }
    }

    /// Makes a walk along these index ranges of `set`.
    pub(super) fn new(set: Set, ranges: Vec<(RangeValue, i32)>, asked: &SqlQuery) -> Self {
        Self {
            set,
            ranges,
            visited: 0,
            fetched: 0,
            windows: TimeWindows::of(asked),
            open: false,
            at: None,
            passed: 1,
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
        // The empty id sorts before all other ids.
        let behind =
            at.as_ref().map_or((self.windows.edge(order), &[][..]), |at| (at.time, &at.id));
        // A look-up in the tables of all parts would take twice the time.
        let rows_of = match parts.of_times(self.windows.window()) {
            None => IndexPage::All,
            Some(part) if at.is_none() => IndexPage::First(part),
            Some(part) => IndexPage::Behind(part),
        };
        let (rows, is_cut) = match self.read(asked, behind, wanted, rows_of, session) {
            // The part may have been dropped, or a lagging replica may not have the part yet.
            Err(StatementError::Missing(_)) if rows_of != IndexPage::All => {
                self.read(asked, behind, wanted, IndexPage::All, session)?
            }
            rows => rows?,
        };
        let key = |row: &Row| IndexKey::read(row, 0);
        // A record that has two of the values is returned twice. If a record was stored after the
        // query began, its row has no body.
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

    /// If the current window may have more keys, returns the last key that was read.
    pub(super) fn resumes_behind(&self) -> Option<IndexKey> {
        self.at.filter(|_| self.open)
    }

    fn read(
        &self,
        asked: &SqlQuery,
        (time, id): (i64, &[u8]),
        wanted: usize,
        rows: IndexPage,
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
        let ((lo, hi), limit) = (self.windows.window(), i64::from(wanted as u32));
        let not_kinds = asked.not_kinds();
        let any = asked.terms.iter().flatten().next();
        let cut = asked.cut(Some(self.set));
        let mut values: Vec<&(dyn ToSql + Sync)> =
            vec![&lo, &hi, &time, &id, &limit, &asked.seq, &kinds];
        let form = match self.ranges[0].0 {
            RangeValue::Term(_) => {
                values.extend([&terms as &(dyn ToSql + Sync), &cut]);
                PlainStatement::TermPage(order, count, rows)
            }
            RangeValue::Author(_) => {
                values.push(&authors);
                PlainStatement::AuthorPage(order, count, rows)
            }
            RangeValue::Kind => PlainStatement::KindPage(order, count, rows),
            RangeValue::AnyTerm => {
                values.pop();
                values.push(&any);
                PlainStatement::TermTimePage(order, rows)
            }
            RangeValue::Any => {
                values.pop();
                if not_kinds.is_empty() {
                    PlainStatement::TimePage(order, rows)
                } else {
                    values.push(&not_kinds);
                    PlainStatement::TimePageBut(order, rows)
                }
            }
        };
        session.query_first(form, &values, PAGE_BYTES_MAX)
    }
}
