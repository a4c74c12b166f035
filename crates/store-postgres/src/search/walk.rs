//! Walks index ranges, one for each value and kind of the query. [`Run`] is such a range.
//!
//! A union of many ranges is read a few keys per range at a time. The merged keys are complete up
//! to the frontier: the earliest of the last keys read from ranges that may have more. A range is
//! read again only when its keys are used up, with a higher limit each time. Times are walked in
//! windows of whole parts, the first of one part, so that an answer in the newest part reads no
//! older parts.

use std::collections::VecDeque;

use hark_archive::Order;
use hark_archive::query::plan::Set;
use hark_codec::record::Key as Author;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::{Asked, compare, matching};
use crate::layout::Form;
use crate::parts::Parts;
use crate::session::{Fault, Session};
use crate::time::{Key, to_db};

/// Least and most keys read from a range at a time.
const ASK_MIN: usize = 4;
const ASK_MAX: usize = 1_000;
/// Keys read from all ranges together at first. Every further read of a range is a round trip.
const ASK_ALL: usize = 2_048;
/// Most ranges that are read as pages.
const PAGE_RUNS_MAX: usize = 10;
/// The factor by which each window is wider than the window before it.
const WIDEN: usize = 3;
/// Keys walked before deciding whether to continue past other authors' records.
const TRIAL: u64 = 256;

/// What the keys of an index range have in common, besides their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Term(i64),
    Author(Author),
    /// Nothing: the range has all records of the kind.
    Kind,
    /// Nothing, not even the kind: the range has all records.
    Any,
}

/// An index range: the ordered keys of one value and kind.
#[derive(Debug)]
struct Run {
    value: Value,
    kind: i32,
    keys: VecDeque<Key>,
    /// The last key read. `None` if the range is read from the start of the window.
    at: Option<Key>,
    /// Whether the range may have more keys in the window.
    more: bool,
    /// How many keys to read next from the range.
    ask: usize,
}

pub(super) struct Walk {
    pub(super) set: Set,
    pub(super) visited: u64,
    runs: Vec<Run>,
    /// Keys that are known already, in order.
    known: VecDeque<Key>,
    windows: Windows,
    /// For a walk past other authors' records: how many ranges could be walked instead.
    instead: Option<u64>,
    walked: u64,
    matched: u64,
}

/// The times of a query, window by window.
struct Windows {
    /// The times that no window has covered; both bounds are inclusive.
    rest: Option<(i64, i64)>,
    /// The current window; both bounds are inclusive.
    now: (i64, i64),
    parts: usize,
    /// The key behind which the first window begins.
    after: Option<Key>,
}

impl Windows {
    fn of(asked: &Asked) -> Self {
        let query = &asked.query;
        let after = query.after.map(|at| Key { time: to_db(at.time), id: at.id });
        let (mut from, mut to) = (to_db(query.from), to_db(query.to));
        if let Some(after) = &after {
            match query.order {
                Order::NewestFirst => to = to.min(after.time),
                Order::OldestFirst => from = from.max(after.time),
            }
        }
        let rest = (from <= to).then_some((from, to));
        Self { rest, now: (from, from), parts: 1, after }
    }

    /// Moves to the next window. Returns false if no window is left.
    fn next(&mut self, order: Order, parts: &Parts) -> bool {
        let Some(rest) = self.rest else { return false };
        let now = parts.window(rest, order, self.parts);
        self.parts *= WIDEN;
        self.now = now;
        self.rest = match order {
            Order::NewestFirst => (now.0 > rest.0).then(|| (rest.0, now.0 - 1)),
            Order::OldestFirst => (now.1 < rest.1).then(|| (now.1 + 1, rest.1)),
        };
        true
    }

    /// Returns the key behind which the current window begins. `None` if the window is read whole.
    fn begins_behind(&mut self, order: Order) -> Option<Key> {
        let edge = self.edge(order);
        self.after.take().filter(|after| after.time == edge)
    }

    /// Returns the time at which the current window begins.
    fn edge(&self, order: Order) -> i64 {
        if order == Order::NewestFirst { self.now.1 } else { self.now.0 }
    }
}

/// A few index ranges that PostgreSQL merges, returning the records with their keys.
pub(super) struct Pages {
    pub(super) visited: u64,
    runs: Vec<(Value, i32)>,
    windows: Windows,
    /// Whether the current window may have more keys. `at` is the last key read; `None` if the
    /// window is read from its start. Both change only when a page has arrived, so that a page that
    /// failed can be requested again.
    open: bool,
    at: Option<Key>,
}

impl Pages {
    /// Reads up to `wanted` records and returns those that match. `None` if no record is left.
    pub(super) fn next(
        &mut self,
        asked: &Asked,
        parts: &Parts,
        wanted: usize,
        session: &mut Session,
    ) -> Result<Option<Vec<Box<[u8]>>>, Fault> {
        let order = asked.query.order;
        if !self.open {
            if !self.windows.next(order, parts) {
                return Ok(None);
            }
            self.at = self.windows.begins_behind(order);
            self.open = true;
        }
        let at = self.at;
        // All ids lie behind an empty one.
        let behind =
            at.as_ref().map_or((self.windows.edge(order), &[][..]), |at| (at.time, &at.id));
        // Going through the tables of all parts takes as long again as finding the records.
        let (first, last) = self.windows.now;
        let part = parts.of_time(first).filter(|part| parts.of_time(last) == Some(*part));
        let rows = match self.read(asked, behind, wanted, part, session) {
            // The part may have been dropped, or not have reached a lagging replica.
            Err(Fault::Missing(_)) if part.is_some() => {
                self.read(asked, behind, wanted, None, session)?
            }
            rows => rows?,
        };
        let key = |row: &Row| {
            let id: &[u8] = row.get(1);
            Key { time: row.get(0), id: id.try_into().unwrap_or_default() }
        };
        // A record with two of the values comes twice. A record stored after the query began has
        // no body.
        let once = rows.chunk_by(|a, b| key(a) == key(b)).filter_map(|same| same[0].get(2));
        let found = matching(asked, once)?;
        self.visited += rows.len() as u64 + 1;
        self.open = rows.len() >= wanted;
        self.at = rows.last().map(key);
        Ok(Some(found))
    }

    fn read(
        &self,
        asked: &Asked,
        (time, id): (i64, &[u8]),
        wanted: usize,
        part: Option<i64>,
        session: &mut Session,
    ) -> Result<Vec<Row>, Fault> {
        let (order, count) = (asked.query.order, self.runs.len());
        let kinds: Vec<i32> = self.runs.iter().map(|(_, kind)| *kind).collect();
        let terms: Vec<i64> = self
            .runs
            .iter()
            .filter_map(|(value, _)| if let Value::Term(term) = value { Some(*term) } else { None })
            .collect();
        let authors: Vec<&[u8]> =
            self.runs
                .iter()
                .filter_map(|(value, _)| {
                    if let Value::Author(author) = value { Some(&author[..]) } else { None }
                })
                .collect();
        let ((lo, hi), limit) = (self.windows.now, i64::from(wanted as u32));
        let not_kinds = asked.not_kinds();
        let mut values: Vec<&(dyn ToSql + Sync)> =
            vec![&lo, &hi, &time, &id, &limit, &asked.seq, &kinds];
        let form = match self.runs[0].0 {
            Value::Term(_) => {
                values.push(&terms);
                Form::TermPage(order, count, part)
            }
            Value::Author(_) => {
                values.push(&authors);
                Form::AuthorPage(order, count)
            }
            Value::Kind => Form::KindPage(order, count),
            Value::Any => {
                values.pop();
                if not_kinds.is_empty() {
                    Form::TimePage(order)
                } else {
                    values.push(&not_kinds);
                    Form::TimePageBut(order)
                }
            }
        };
        session.query(form, &values)
    }
}

/// The result of [`Walk::gather`].
pub(super) enum Gathered {
    /// More keys may exist.
    Some,
    /// No keys are left.
    All,
    /// Behind this key, it is cheaper to walk the ranges of single values.
    Instead(Key),
}

impl Walk {
    /// Creates a walk along `runs`, with the keys of the same set that are `known` already.
    pub(super) fn new(
        set: Set,
        runs: Vec<(Value, i32)>,
        mut known: Vec<Key>,
        asked: &Asked,
    ) -> Self {
        let query = &asked.query;
        known.sort_unstable_by(|a, b| compare(query.order, a, b));
        known.dedup();
        let run = |(value, kind)| Run {
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
            runs: runs.into_iter().map(run).collect(),
            known: known.into(),
            windows: Windows::of(asked),
            instead: None,
            walked: 0,
            matched: 0,
        }
    }

    /// Makes the walk pass other authors' records while that is cheaper than `runs` ranges.
    pub(super) fn or_instead(mut self, runs: u64) -> Self {
        self.instead = Some(runs);
        self
    }

    /// Appends the next keys, if any are left, to `out`.
    pub(super) fn gather(
        &mut self,
        asked: &Asked,
        parts: &Parts,
        wanted: usize,
        out: &mut VecDeque<Key>,
        session: &mut Session,
    ) -> Result<Gathered, Fault> {
        let order = asked.query.order;
        let wanted = wanted.clamp(1, ASK_MAX);
        if self.runs.is_empty() {
            out.extend(self.known.drain(..));
            return Ok(Gathered::All);
        }
        let open = self.runs.iter().any(|run| run.more || !run.keys.is_empty());
        if !open && !self.begin_window(asked, parts, wanted) {
            out.extend(self.known.drain(..));
            return Ok(Gathered::All);
        }
        self.read(asked, wanted, session)?;
        let frontier = self.runs.iter().filter(|run| run.more).filter_map(|run| run.at);
        let frontier = frontier.min_by(|a, b| compare(order, a, b));
        let window = self.windows.now;
        let within = |key: &Key| match frontier {
            Some(frontier) => compare(order, key, &frontier).is_le(),
            None => match order {
                Order::NewestFirst => key.time >= window.0,
                Order::OldestFirst => key.time <= window.1,
            },
        };
        let mut found = Vec::new();
        for run in &mut self.runs {
            let count = run.keys.partition_point(within);
            found.extend(run.keys.drain(..count));
        }
        let count = self.known.partition_point(within);
        found.extend(self.known.drain(..count));
        found.sort_unstable_by(|a, b| compare(order, a, b));
        found.dedup();
        out.extend(found);
        Ok(match frontier {
            Some(at) if self.is_dear(wanted) => Gathered::Instead(at),
            _ => Gathered::Some,
        })
    }

    /// Moves to the next window. Returns false if no window is left.
    fn begin_window(&mut self, asked: &Asked, parts: &Parts, wanted: usize) -> bool {
        if !self.windows.next(asked.query.order, parts) {
            return false;
        }
        let at = self.windows.begins_behind(asked.query.order);
        let ask = match self.instead {
            Some(_) => TRIAL as usize / self.runs.len(),
            None => (wanted * 2).max(ASK_ALL) / self.runs.len(),
        };
        let ask = ask.clamp(ASK_MIN, wanted.max(ASK_MIN));
        for run in &mut self.runs {
            (run.at, run.more, run.ask) = (at, true, ask);
        }
        true
    }

    /// Converts the walk to pages, if it has few ranges and all of their records are wanted.
    pub(super) fn pages(&self, asked: &Asked) -> Option<Pages> {
        let few = (1..=PAGE_RUNS_MAX).contains(&self.runs.len()) && self.known.is_empty();
        // Nearly all records meet a common condition, so hardly any record is fetched in vain.
        let labels =
            (0..asked.terms.len()).filter(|&at| !asked.common[at] || self.set == Set::Label(at));
        let conditions = labels.count() + usize::from(asked.query.authors.is_some());
        let driven = usize::from(matches!(self.set, Set::Label(_) | Set::Authors));
        (few && self.instead.is_none() && conditions == driven).then(|| Pages {
            runs: self.runs.iter().map(|run| (run.value, run.kind)).collect(),
            visited: 0,
            windows: Windows::of(asked),
            open: false,
            at: None,
        })
    }

    /// Reads the next keys of the ranges whose keys are used up.
    fn read(&mut self, asked: &Asked, wanted: usize, session: &mut Session) -> Result<(), Fault> {
        let due: Vec<usize> = (0..self.runs.len())
            .filter(|&at| self.runs[at].more && self.runs[at].keys.is_empty())
            .collect();
        let Some(ask) = due.iter().map(|&at| self.runs[at].ask).max() else { return Ok(()) };
        let runs = || due.iter().map(|&at| &self.runs[at]);
        let kinds: Vec<i32> = runs().map(|run| run.kind).collect();
        let (lo, hi) = self.windows.now;
        let (order, limit) = (asked.query.order, i64::from(ask as u32));
        // All ids lie behind an empty one.
        let edge = if order == Order::NewestFirst { hi } else { lo };
        let times: Vec<i64> = runs().map(|run| run.at.map_or(edge, |at| at.time)).collect();
        let ids: Vec<&[u8]> =
            runs().map(|run| run.at.as_ref().map_or(&[][..], |at| &at.id[..])).collect();
        let head: [&(dyn ToSql + Sync); 5] = [&kinds, &times, &ids, &lo, &hi];
        let mut with_author = false;
        let rows = match self.runs[due[0]].value {
            Value::Term(_) => {
                let term = |run: &Run| if let Value::Term(term) = run.value { term } else { 0 };
                let terms: Vec<i64> = runs().map(term).collect();
                let rest: [&(dyn ToSql + Sync); 2] = [&terms, &limit];
                session.query(Form::TermKeys(order), &[&head[..], &rest].concat())?
            }
            Value::Author(_) => {
                let author = |run| match run {
                    &Run { value: Value::Author(author), .. } => author,
                    _ => [0; 32],
                };
                let authors: Vec<Author> = runs().map(author).collect();
                let authors: Vec<&[u8]> = authors.iter().map(|author| &author[..]).collect();
                let rest: [&(dyn ToSql + Sync); 2] = [&authors, &limit];
                session.query(Form::AuthorKeys(order), &[&head[..], &rest].concat())?
            }
            Value::Kind => {
                with_author = true;
                session.query(Form::KindKeys(order), &[&head[..], &[&limit]].concat())?
            }
            Value::Any => {
                with_author = true;
                let not_kinds = asked.not_kinds();
                let values: [&(dyn ToSql + Sync); 5] = [&times[0], &ids[0], &lo, &hi, &limit];
                if not_kinds.is_empty() {
                    session.query(Form::TimeKeys(order), &values)?
                } else {
                    let values = [&values[..], &[&not_kinds]].concat();
                    session.query(Form::TimeKeysBut(order), &values)?
                }
            }
        };
        let mut counts = vec![0_usize; due.len()];
        let authors = asked.query.authors.as_deref().filter(|_| with_author);
        for row in &rows {
            let n = row.get::<_, i64>(0) as usize - 1;
            let id: &[u8] = row.get(2);
            let key = Key { time: row.get(1), id: id.try_into().unwrap_or_default() };
            let run = &mut self.runs[due[n]];
            counts[n] += 1;
            if run.at.is_none_or(|at| compare(order, &at, &key).is_lt()) {
                run.at = Some(key);
            }
            let theirs = authors.is_none_or(|authors| {
                let author: Option<&[u8]> = row.get(3);
                let author = author.and_then(|author| <&Author>::try_from(author).ok());
                author.is_some_and(|author| authors.binary_search(author).is_ok())
            });
            if theirs {
                run.keys.push_back(key);
                self.matched += 1;
            }
        }
        for (n, &at) in due.iter().enumerate() {
            let run = &mut self.runs[at];
            run.more = counts[n] == ask;
            run.ask = (ask * 4).min(wanted.max(ASK_MIN * 4));
            run.keys.make_contiguous().sort_unstable_by(|a, b| compare(order, a, b));
        }
        self.walked += rows.len() as u64;
        // Reading an empty range is work too.
        self.visited += rows.len() as u64 + due.len() as u64 / 4;
        Ok(())
    }

    /// Whether walking the ranges of single values is cheaper than passing other authors' records.
    fn is_dear(&mut self, wanted: usize) -> bool {
        let Some(runs) = self.instead else { return false };
        let ahead = wanted as u64 * self.walked / self.matched.max(1);
        // Most of the keys read are passed over, so more keys are read at a time.
        let ask = (ahead as usize / self.runs.len()).clamp(TRIAL as usize, ASK_MAX);
        self.runs.iter_mut().for_each(|run| run.ask = ask);
        self.walked >= TRIAL / 4 && ahead > runs * 2 + wanted as u64
    }
}
