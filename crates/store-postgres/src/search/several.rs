//! Runs a query as one search, or as several searches that find disjoint sets of records (see
//! [`Query::opened`](hark_archive::Query::opened)).

use std::ops::ControlFlow;

use hark_archive::query::plan::Set;
use hark_archive::{Record, SearchProgress};

use super::asked::{SqlQuery, compare};
use super::finder::Finder;
use super::sessions::Sessions;
use super::state::SearchState;
use crate::error::StatementError;
use crate::layout::Layout;
use crate::time::IndexKey;

/// Searches whose results are merged.
pub(crate) struct Finders {
    all: Vec<Finder>,
    delivered: usize,
}

impl Finders {
    /// Makes searches that run the queries by the steps of a layout.
    pub(crate) fn new(asked: Vec<SqlQuery>, layout: &dyn Layout) -> Self {
        let some = asked.into_iter().filter(|asked| !asked.query.is_void());
        let finder = |asked| Finder::new(asked, layout.search_steps());
        Self { all: some.map(finder).collect(), delivered: 0 }
    }

    /// Stops using the cache of records, so that the statements fetch all records from the
    /// database.
    pub(crate) fn fetch_all(&mut self) {
        self.all.iter_mut().for_each(Finder::fetch_all);
    }

    pub(crate) fn visited(&self) -> u64 {
        self.all.iter().map(Finder::visited).sum()
    }

    /// See [`Search::bytes`](hark_archive::Search::bytes).
    pub(crate) fn bytes(&self) -> usize {
        self.all.iter().map(Finder::bytes).sum()
    }

    pub(crate) fn driver(&self) -> Option<Set> {
        self.all.iter().find_map(Finder::driver)
    }

    /// Does the same as [`Search::slice`](hark_archive::Search::slice).
    pub(crate) fn slice(
        &mut self,
        shared: &SearchState,
        work: u64,
        sessions: &mut impl Sessions,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<SearchProgress, StatementError> {
        match &mut self.all[..] {
            [] => Ok(SearchProgress::Done { more: false }),
            [one] => one.slice(shared, work, sessions, sink),
            [first, ..] => {
                let (limit, budget) =
                    (first.found.asked.query.limit, first.found.asked.query.budget);
                self.merged(shared, work.max(1), (limit, budget), sessions, sink)
            }
        }
    }

    fn merged(
        &mut self,
        shared: &SearchState,
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
                if !finder.found.bodies.is_empty() || finder.is_through() {
                    at += 1;
                } else if self.visited() >= budget {
                    return Ok(SearchProgress::with_spent_budget(self.delivered, limit));
                } else if self.visited() - start >= work {
                    return Ok(self.release_rows(shared));
                } else if let Some(finder) = self.all.get_mut(at)
                    && !finder.step(shared, sessions)?
                {
                    at += 1;
                }
            }
            let heads = self.all.iter().enumerate();
            let heads =
                heads.filter_map(|(at, finder)| Some((at, key(finder.found.bodies.front()?))));
            let order =
                self.all.first().map_or_else(Default::default, |f| f.found.asked.query.order);
            let next = heads.min_by(|(_, a), (_, b)| match (a, b) {
                (Some(a), Some(b)) => compare(order, a, b),
                // Bytes that are not a valid record come first, and are skipped below.
                (a, b) => a.is_some().cmp(&b.is_some()),
            });
            let Some((at, _)) = next else { return Ok(SearchProgress::Done { more: false }) };
            if self.delivered == limit {
                return Ok(SearchProgress::Done { more: true });
            }
            if handed >= work {
                return Ok(self.release_rows(shared));
            }
            let finder = &mut self.all[at];
            let Some(body) = finder.found.bodies.pop_front() else { continue };
            let Ok(record) = Record::new(&body) else { continue };
            handed += 1;
            self.delivered += 1;
            finder.found.delivered += 1;
            if sink(&record).is_break() {
                return Ok(self.release_rows(shared));
            }
        }
    }

    fn release_rows(&mut self, shared: &SearchState) -> SearchProgress {
        for finder in &mut self.all {
            finder.release_rows(shared);
        }
        SearchProgress::Paused
    }
}

fn key(body: &[u8]) -> Option<IndexKey> {
    Record::new(body).ok().map(|record| IndexKey::of(&record))
}
