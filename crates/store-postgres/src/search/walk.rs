//! Walking runs: ordered ranges of an index, one for each value and kind that is asked for.
//!
//! A union of many runs is read a few keys a run at a time. What comes no later than the last key of
//! every run that may go on is exact; a run is read further only once its keys are used up, and then
//! further at once. Times are walked in windows of whole parts, one part first, so that an answer that
//! lies in the newest part costs no look into older ones.

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

/// Keys read of a run at once, at least and at most.
const ASK_MIN: usize = 4;
const ASK_MAX: usize = 1_000;
/// Keys of all runs together that are read at first: to read on in one of them is an exchange of its own.
const ASK_ALL: usize = 2_048;
/// Runs that are read as pages, at most.
const PAGE_RUNS_MAX: usize = 10;
/// How much wider a window is than the one before it.
const WIDEN: usize = 3;
/// Walked before it is judged whether to go on walking past others' records.
const TRIAL: u64 = 256;

/// What a run's keys have in common, beside their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Term(i64),
    Author(Author),
    /// Nothing: all of a kind.
    Kind,
    /// Not even that.
    Any,
}

/// A run.
#[derive(Debug)]
struct Run {
    value: Value,
    kind: i32,
    keys: VecDeque<Key>,
    /// Read up to here; none if the window begins here.
    at: Option<Key>,
    /// False if the window has no more of it.
    more: bool,
    /// Keys to read of it next.
    ask: usize,
}

pub(super) struct Walk {
    pub(super) set: Set,
    pub(super) visited: u64,
    runs: Vec<Run>,
    /// Keys that are known already, in order.
    known: VecDeque<Key>,
    windows: Windows,
    /// Where one walks past others' records: how many runs could be walked instead.
    instead: Option<u64>,
    walked: u64,
    matched: u64,
}

/// The times of a question, window by window.
struct Windows {
    /// Times that no window has covered; inclusive.
    rest: Option<(i64, i64)>,
    /// The present one.
    now: (i64, i64),
    parts: usize,
    /// Where the first window begins, within its first time.
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

    /// Goes on to the next one. False if there is none.
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

    /// Behind what the present one begins, if not with all of it.
    fn begins_behind(&mut self, order: Order) -> Option<Key> {
        let edge = self.edge(order);
        self.after.take().filter(|after| after.time == edge)
    }

    /// Where it begins.
    fn edge(&self, order: Order) -> i64 {
        if order == Order::NewestFirst { self.now.1 } else { self.now.0 }
    }
}

/// A few runs, read together: PostgreSQL merges them, and gives the records with their keys.
pub(super) struct Pages {
    pub(super) visited: u64,
    runs: Vec<(Value, i32)>,
    windows: Windows,
    /// Whether the present window may have more, and up to where it was read; none if it begins here.
    /// Go on once a page has come, so that one which did not can be asked for again.
    open: bool,
    at: Option<Key>,
}

impl Pages {
    /// Records that belong to the answer, of the next up to `wanted`; none if that was all.
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
        // To go through the tables of all parts takes as long again as to find the records.
        let (first, last) = self.windows.now;
        let part = parts.of_time(first).filter(|part| parts.of_time(last) == Some(*part));
        let rows = match self.read(asked, behind, wanted, part, session) {
            // It may have gone, or be unknown where a replica is behind.
            Err(Fault::Missing(_)) if part.is_some() => {
                self.read(asked, behind, wanted, None, session)?
            }
            rows => rows?,
        };
        let key = |row: &Row| {
            let id: &[u8] = row.get(1);
            Key { time: row.get(0), id: id.try_into().unwrap_or_default() }
        };
        // A record that has two of the values comes twice; one that came after the question is none.
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

/// What came of gathering keys.
pub(super) enum Gathered {
    /// There may be more.
    Some,
    /// That was all.
    All,
    /// From here on it is cheaper to walk the runs of single values.
    Instead(Key),
}

impl Walk {
    /// Along `runs`, with keys of the same set that are `known` already.
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

    /// Walks past what others wrote, as long as that is cheaper than so many runs.
    pub(super) fn or_instead(mut self, runs: u64) -> Self {
        self.instead = Some(runs);
        self
    }

    /// Appends the next keys, if there are any.
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

    /// Goes on to the next window. False if there is none.
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

    /// As pages, where there are few runs and every record of theirs is wanted.
    pub(super) fn pages(&self, asked: &Asked) -> Option<Pages> {
        let few = (1..=PAGE_RUNS_MAX).contains(&self.runs.len()) && self.known.is_empty();
        // What is common is nearly always met, so hardly any record comes in vain.
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

    /// Reads on in the runs that have no keys left.
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
        // A look into a run that is empty is work too.
        self.visited += rows.len() as u64 + due.len() as u64 / 4;
        Ok(())
    }

    /// Whether it is cheaper to walk the runs of single values than to go on past what others wrote.
    fn is_dear(&mut self, wanted: usize) -> bool {
        let Some(runs) = self.instead else { return false };
        let ahead = wanted as u64 * self.walked / self.matched.max(1);
        // Most of what is read is passed by, so more of it is read at once.
        let ask = (ahead as usize / self.runs.len()).clamp(TRIAL as usize, ASK_MAX);
        self.runs.iter_mut().for_each(|run| run.ask = ask);
        self.walked >= TRIAL / 4 && ahead > runs * 2 + wanted as u64
    }
}
