//! Runs a query as one search, or as several searches for disjoint sets of records (see
//! [`Query::opened`](hark_archive::Query::opened)).

use std::ops::ControlFlow;

use hark_archive::query::plan::Set;
use hark_archive::{Record, SearchProgress};

use super::{Finder, Sessions, SqlQuery, compare};
use crate::session::StatementError;
use crate::state::PostgresState;
use crate::time::IndexKey;

/// Searches whose results are merged.
pub(crate) struct Finders {
    all: Vec<Finder>,
    delivered: usize,
}

impl Finders {
    pub(crate) fn new(asked: Vec<SqlQuery>) -> Self {
        let some = asked.into_iter().filter(|asked| !asked.query.is_void());
        Self { all: some.map(Finder::new).collect(), delivered: 0 }
    }

    /// Disables the cache of records, so that the statements fetch all records from the database.
    pub(crate) fn fetch_all(&mut self) {
        self.all.iter_mut().for_each(Finder::fetch_all);
    }

    pub(crate) fn visited(&self) -> u64 {
        self.all.iter().map(Finder::visited).sum()
    }

    pub(crate) fn driver(&self) -> Option<Set> {
        self.all.iter().find_map(Finder::driver)
    }

    /// Like [`Search::slice`](hark_archive::Search::slice).
    pub(crate) fn slice(
        &mut self,
        inner: &PostgresState,
        work: u64,
        sessions: &mut impl Sessions,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<SearchProgress, StatementError> {
        match &mut self.all[..] {
            [] => Ok(SearchProgress::Done { more: false }),
            [one] => one.slice(inner, work, sessions, sink),
            [first, ..] => {
                let (limit, budget) = (first.asked.query.limit, first.asked.query.budget);
                self.merged(inner, work.max(1), (limit, budget), sessions, sink)
            }
        }
    }

    fn merged(
        &mut self,
        inner: &PostgresState,
        work: u64,
        (limit, budget): (usize, u64),
        sessions: &mut impl Sessions,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<SearchProgress, StatementError> {
        let start = self.visited();
        let mut handed = 0;
        for finder in &mut self.all {
            finder.room = None;
        }
        loop {
            // Each search runs until it has its next record.
            let mut at = 0;
            while let Some(finder) = self.all.get(at) {
                if !finder.bodies.is_empty() || finder.is_through() {
                    at += 1;
                } else if self.visited() >= budget {
                    return Ok(SearchProgress::Exhausted);
                } else if self.visited() - start >= work {
                    return Ok(self.rest(inner));
                } else if let Some(finder) = self.all.get_mut(at)
                    && !sessions.with(|session| finder.step(inner, session))?
                {
                    at += 1;
                }
            }
            let heads = self.all.iter().enumerate();
            let heads = heads.filter_map(|(at, finder)| Some((at, key(finder.bodies.front()?))));
            let order = self.all.first().map_or_else(Default::default, |f| f.asked.query.order);
            let next = heads.min_by(|(_, a), (_, b)| match (a, b) {
                (Some(a), Some(b)) => compare(order, a, b),
                // Bytes that are not a record come first, and are skipped below.
                (a, b) => a.is_some().cmp(&b.is_some()),
            });
            let Some((at, _)) = next else { return Ok(SearchProgress::Done { more: false }) };
            if self.delivered == limit {
                return Ok(SearchProgress::Done { more: true });
            }
            if handed >= work {
                return Ok(self.rest(inner));
            }
            let finder = &mut self.all[at];
            let Some(body) = finder.bodies.pop_front() else { continue };
            let Ok(record) = Record::new(&body) else { continue };
            handed += 1;
            self.delivered += 1;
            finder.delivered += 1;
            if sink(&record).is_break() {
                return Ok(self.rest(inner));
            }
        }
    }

    fn rest(&mut self, inner: &PostgresState) -> SearchProgress {
        for finder in &mut self.all {
            finder.rest(inner);
        }
        SearchProgress::Paused
    }
}

fn key(body: &[u8]) -> Option<IndexKey> {
    Record::new(body).ok().map(|record| IndexKey::of(&record))
}
