//! Walks the index ranges of a word, or of all words with the same beginning: one range for each
//! word and kind.
//!
//! A row of a word has the first bits of its record's id, and the class of the word in this record.
//! A higher class means that the record is more about the word. PostgreSQL adds the classes that
//! the other words of the query have in the same record. So only records that have all these words
//! are read. A ranked search reads even fewer records: only records whose classes are high enough
//! to rank among the best. Rows are merged as in [`super::walk`]. If the ids of two records of the
//! same time begin with the same 62 bits, the two records share their rows, and both are read.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hark_archive::Order;
use hark_archive::query::plan::Set;
use hark_words::CLASS_MAX;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::statement::PlainStatement;
use super::time_windows::TimeWindows;
use crate::error::StatementError;
use crate::parts::Parts;
use crate::search::SqlQuery;
use crate::search::asked::compare;
use crate::search::found::{FETCH_PARTS_MAX, matching, read_fitting};
use crate::session::DatabaseSession;
use crate::time::{IndexKey, from_db};
use crate::words::mark::{CLASS_BITS, ids_of, mark};
use crate::words::state::WordState;

/// Minimum and maximum number of rows that are read from a range at a time, and minimum number for
/// the first read of all ranges together.
const ASK_MIN: usize = 4;
const ASK_MAX: usize = 2_000;
const ASK_ALL: usize = 512;
/// Maximum number of rows that are read at a time from all ranges together. At least `ASK_MIN` rows
/// are read from each range.
const PAGE_ROWS_MAX: usize = 4_000;

/// Fails if the index of words has changed since
/// [`IndexedWords::of`](super::words::IndexedWords::of) read its state, because then the search
/// would miss records. `rows` is a result of [`PlainStatement::WordState`] that was read after the
/// rows of words.
pub(super) fn still_indexed(asked: &SqlQuery, rows: &[Row]) -> Result<(), StatementError> {
    if WordState::of(rows)?.has(&asked.query, asked.seq) {
        return Ok(());
    }
    let words = "words are being indexed anew, as [search] was changed; ask again";
    Err(StatementError::Refused(words.into()))
}

/// The rows of one word and kind, in order.
#[derive(Debug)]
struct WordRange {
    word: Vec<u8>,
    kind: i32,
    rows: VecDeque<WordRow>,
    /// The time and the mark at which the next read of the range begins.
    from: (i64, i64),
    /// Whether the range may have more rows in the current window.
    more: bool,
    ask: usize,
}

/// A row of a word. `has_all` is true if the record also has the other words.
#[derive(Clone, Copy, Debug)]
struct WordRow {
    time: i64,
    mark: i64,
    /// Upper bound for the sum of the classes that the query's words have in the record.
    points: u32,
    has_all: bool,
}

/// A walk along the ranges of a word, or of all words with the same beginning.
pub(super) struct WordWalk {
    pub(super) set: Set,
    pub(super) visited: u64,
    /// Number of records that were read.
    pub(super) fetched: usize,
    ranges: Vec<WordRange>,
    /// Other words of the query. For each row, their classes in the same record are looked up.
    cuts: Vec<Vec<u8>>,
    /// For each of these words, the term of the query to which the word's class belongs. The last
    /// entry is for the walked word.
    terms: Vec<Option<usize>>,
    windows: TimeWindows,
    /// The next rows, in order, whose records are not read yet.
    rows: VecDeque<WordRow>,
    /// Maximum number of rows whose records are read at a time. It is lowered while records turn
    /// out to be long.
    read_max: usize,
    /// The time and the mark (with class 0) of the last row that was added to `rows`.
    last: Option<(i64, i64)>,
    /// The time up to which rows have been read.
    reached: Option<i64>,
}

fn order_rows(order: Order, a: (i64, i64), b: (i64, i64)) -> std::cmp::Ordering {
    let times = match order {
        Order::NewestFirst => b.0.cmp(&a.0),
        Order::OldestFirst => a.0.cmp(&b.0),
    };
    times.then_with(|| a.1.cmp(&b.1))
}

/// Returns the first possible position behind a row.
fn behind(order: Order, (time, mark): (i64, i64)) -> (i64, i64) {
    match (mark.checked_add(1), order) {
        (Some(mark), _) => (time, mark),
        (None, Order::NewestFirst) => (time.saturating_sub(1), i64::MIN),
        (None, Order::OldestFirst) => (time.saturating_add(1), i64::MIN),
    }
}

impl WordWalk {
    /// Makes a walk along the ranges of words and kinds. `cuts` are other words, whose classes are
    /// looked up in the records. `terms` has the terms of `cuts`, followed by the term of the
    /// walked word.
    pub(super) fn new(
        asked: &SqlQuery,
        set: Set,
        words: &[Vec<u8>],
        kinds: &[i32],
        (cuts, terms): (Vec<Vec<u8>>, Vec<Option<usize>>),
    ) -> Self {
        let range = |(word, kind): (&Vec<u8>, i32)| WordRange {
            word: word.clone(),
            kind,
            rows: VecDeque::new(),
            from: (0, 0),
            more: false,
            ask: ASK_MIN,
        };
        let ranges = words.iter().flat_map(|word| kinds.iter().map(move |kind| (word, *kind)));
        Self {
            set,
            visited: 0,
            fetched: 0,
            ranges: ranges.map(range).collect(),
            cuts,
            terms,
            windows: TimeWindows::of(asked),
            rows: VecDeque::new(),
            read_max: usize::MAX,
            last: None,
            reached: None,
        }
    }

    /// Reads about `reach` rows, and returns the records that match; `None` if no rows are left.
    pub(super) fn next(
        &mut self,
        asked: &SqlQuery,
        parts: &Parts,
        reach: usize,
        session: &mut DatabaseSession,
    ) -> Result<Option<Vec<Box<[u8]>>>, StatementError> {
        let is_over =
            |time: i64| asked.rank.as_ref().is_some_and(|bound| !bound.admits_any(from_db(time)));
        let next = self.rows.front().map(|row| row.time).or(self.reached);
        if asked.query.order == Order::NewestFirst && next.is_some_and(is_over) {
            return Ok(None);
        }
        if let Some(bound) = &asked.rank {
            self.rows.retain(|row| bound.admits(from_db(row.time), row.points));
        }
        if self.rows.is_empty() {
            let more = self.gather(asked, parts, reach, session)?;
            return Ok(more.then(Vec::new));
        }
        let wanted = reach.clamp(1, self.read_max).min(self.rows.len());
        let part = |time: i64| parts.of_time(time);
        // One row may stand for several records, which are read together.
        let (count, found) = read_fitting(wanted, |count, bytes_max| {
            let some: Vec<WordRow> = self.rows.iter().take(count).copied().collect();
            match self.read(asked, &some, &part, bytes_max, session) {
                // A part may have been dropped, or a lagging replica may not have the part yet.
                Err(StatementError::Missing(_)) => {
                    self.read(asked, &some, &|_| None, bytes_max, session)
                }
                read => read,
            }
        })?;
        let read_max = if count < wanted { count } else { self.read_max };
        self.read_max = read_max.saturating_mul(2);
        self.fetched += count;
        self.rows.drain(..count);
        Ok(Some(found))
    }

    /// Reads the next rows; returns false if no rows are left.
    fn gather(
        &mut self,
        asked: &SqlQuery,
        parts: &Parts,
        reach: usize,
        session: &mut DatabaseSession,
    ) -> Result<bool, StatementError> {
        let order = asked.query.order;
        let open = self.ranges.iter().any(|range| range.more || !range.rows.is_empty());
        if !open {
            if self.ranges.is_empty() || !self.windows.next(order, parts) {
                return Ok(false);
            }
            let begin = match self.windows.begins_behind(order) {
                // The row at the cursor may also stand for another record, so the row is read
                // again.
                Some(after) => (after.time, mark(&after.id)),
                None => (self.windows.edge(order), i64::MIN),
            };
            let ask = (reach.saturating_mul(2).clamp(ASK_MIN, ASK_MAX)).max(ASK_ALL);
            let ask = (ask / self.ranges.len()).max(ASK_MIN);
            for range in &mut self.ranges {
                (range.from, range.more, range.ask) = (begin, true, ask);
            }
        }
        self.read_rows(asked, session)?;
        let frontier = self.ranges.iter().filter(|range| range.more).map(|range| range.from);
        let frontier = frontier.min_by(|a, b| order_rows(order, *a, *b));
        let within = |row: &WordRow| {
            frontier.is_none_or(|from| order_rows(order, (row.time, row.mark), from).is_lt())
        };
        let mut found: Vec<WordRow> = Vec::new();
        for range in &mut self.ranges {
            let count = range.rows.partition_point(within);
            found.extend(range.rows.drain(..count));
        }
        found.sort_unstable_by(|a, b| order_rows(order, (a.time, a.mark), (b.time, b.mark)));
        let window = self.windows.window();
        self.reached = Some(match (frontier, order) {
            (Some((time, _)), _) => time,
            (None, Order::NewestFirst) => window.0,
            (None, Order::OldestFirst) => window.1,
        });
        for row in found {
            let record = (row.time, row.mark & !CLASS_BITS);
            // A record that has several of the words is returned several times.
            if row.has_all && self.last != Some(record) {
                self.rows.push_back(row);
                self.last = Some(record);
            }
        }
        Ok(true)
    }

    /// Reads the next rows of each range that has no unused rows left.
    fn read_rows(
        &mut self,
        asked: &SqlQuery,
        session: &mut DatabaseSession,
    ) -> Result<(), StatementError> {
        let due: Vec<usize> = (0..self.ranges.len())
            .filter(|&at| self.ranges[at].more && self.ranges[at].rows.is_empty())
            .collect();
        if due.is_empty() {
            return Ok(());
        }
        let share = (PAGE_ROWS_MAX / due.len()).max(ASK_MIN);
        for &at in &due {
            self.ranges[at].ask = self.ranges[at].ask.min(share);
        }
        let ranges = || due.iter().map(|&at| &self.ranges[at]);
        let words: Vec<&[u8]> = ranges().map(|range| &range.word[..]).collect();
        let kinds: Vec<i32> = ranges().map(|range| range.kind).collect();
        let (times, marks): (Vec<i64>, Vec<i64>) = ranges().map(|range| range.from).unzip();
        let asks: Vec<i64> = ranges().map(|range| i64::from(range.ask as u32)).collect();
        let (lo, hi) = self.windows.window();
        let order = asked.query.order;
        let given: [&(dyn ToSql + Sync); 8] =
            [&words, &kinds, &times, &marks, &lo, &hi, &asks, &self.cuts];
        let mut answers = session.pipeline(&[
            (PlainStatement::WordKeys(order).into(), &given),
            (PlainStatement::WordState.into(), &[]),
        ])?;
        still_indexed(asked, &answers.pop().unwrap_or_default())?;
        let rows = answers.pop().unwrap_or_default();
        let mut counts = vec![0_usize; due.len()];
        for row in &rows {
            let n = row.get::<_, i64>(0) as usize - 1;
            let (time, mark) = (row.get(1), row.get::<_, i64>(2));
            let cuts: Vec<Option<i32>> = row.get(3);
            let points = self.points(asked, mark, &cuts);
            let has_all = cuts.iter().all(Option::is_some);
            counts[n] += 1;
            let range = &mut self.ranges[due[n]];
            if order_rows(order, range.from, (time, mark)).is_le() {
                range.from = behind(order, (time, mark));
            }
            range.rows.push_back(WordRow { time, mark, points, has_all });
        }
        for (n, &at) in due.iter().enumerate() {
            let range = &mut self.ranges[at];
            range.more = counts[n] == range.ask;
            range.ask = (range.ask * 4).min(ASK_MAX);
            let key = |row: &WordRow| (row.time, row.mark);
            range.rows.make_contiguous().sort_unstable_by(|a, b| order_rows(order, key(a), key(b)));
        }
        // A read of an empty range is charged, too.
        self.visited += rows.len() as u64 + due.len() as u64 / 4;
        Ok(())
    }

    /// Returns an upper bound for the sum of the classes that the query's words have in a record.
    fn points(&self, asked: &SqlQuery, mark: i64, cuts: &[Option<i32>]) -> u32 {
        let Some(bound) = &asked.rank else { return 0 };
        let mut classes = vec![u32::from(CLASS_MAX); bound.words().term_count()];
        let own = (mark & CLASS_BITS).unsigned_abs() as u32;
        let found = cuts.iter().map(|class| class.map(i32::unsigned_abs)).chain([Some(own)]);
        // In each record, a word of a phrase has at least the class of the phrase, so the word's
        // class is an upper bound.
        for (term, class) in self.terms.iter().zip(found) {
            if let (Some(known), Some(class)) = (term.and_then(|at| classes.get_mut(at)), class) {
                *known = (*known).min(class);
            }
        }
        classes.iter().sum()
    }

    /// Reads the records of rows, and returns those that match, in order. Returns `None` if the
    /// records of a table have more than `bytes_max` bytes; a single record may have more.
    fn read(
        &mut self,
        asked: &SqlQuery,
        rows: &[WordRow],
        part: &dyn Fn(i64) -> Option<i64>,
        bytes_max: usize,
        session: &mut DatabaseSession,
    ) -> Result<Option<Vec<Box<[u8]>>>, StatementError> {
        let mut by_part: BTreeMap<Option<i64>, Vec<&WordRow>> = BTreeMap::new();
        for row in rows {
            by_part.entry(part(row.time)).or_default().push(row);
        }
        if by_part.len() > FETCH_PARTS_MAX {
            by_part = BTreeMap::from([(None, rows.iter().collect())]);
        }
        let cut = asked.cut(Some(self.set));
        let of_part = |rows: &Vec<&WordRow>| {
            let times: Vec<i64> = rows.iter().map(|row| row.time).collect();
            let ids = rows.iter().map(|row| ids_of(row.mark));
            let (first, last): (Vec<_>, Vec<_>) =
                ids.map(|(first, last)| (first.to_vec(), last.to_vec())).unzip();
            (times, first, last)
        };
        let values: Vec<_> = by_part.values().map(of_part).collect();
        let given: Vec<[&(dyn ToSql + Sync); 5]> = values
            .iter()
            .map(|(times, first, last)| {
                [times as _, first as _, last as _, &asked.seq as _, &cut as _]
            })
            .collect();
        let calls: Vec<_> = by_part
            .keys()
            .zip(&given)
            .map(|(part, given)| (PlainStatement::WordBodies(*part).into(), &given[..]))
            .collect();
        let answers: Vec<Vec<Row>> = if session.is_traced() {
            // Only these statements are explained.
            session.pipeline(&calls)?
        } else {
            let first = session.begin(&calls, bytes_max)?.wait(Duration::MAX, &mut || true)?;
            if first.iter().any(|(_, is_cut)| *is_cut) {
                return Ok(None);
            }
            first.into_iter().map(|(rows, _)| rows).collect()
        };
        let mut found: Vec<(IndexKey, &[u8])> =
            answers.iter().flatten().map(|row| (IndexKey::read(row, 1), row.get(3))).collect();
        found.retain(|(key, _)| asked.lies_ahead(key));
        found.sort_unstable_by(|(a, _), (b, _)| compare(asked.query.order, a, b));
        let bodies = found.into_iter().map(|(_, body)| body);
        matching(asked, bodies, &mut self.visited).map(Some)
    }
}
