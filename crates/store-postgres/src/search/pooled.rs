//! Searches on pooled sessions. A ranked search consists of several searches.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::query::plan::Set;
use hark_archive::query::ranked::{RankBound, RankedSearch};
use hark_archive::{Query, Record, Search, SearchError, SearchProgress};

use super::asked::SqlQuery;
use super::several::Finders;
use crate::query_sessions::QuerySessions;

/// Starts a search for a query on these sessions.
pub(crate) fn start(sessions: QuerySessions, query: &Query) -> Box<dyn Search> {
    let (inner, position) = (Arc::clone(sessions.inner()), sessions.position());
    let Some(words) = query.ranking() else {
        return PooledSearch::boxed(inner.open_queries(query, position), sessions);
    };
    let bound = RankBound::new(words);
    let mut asked = inner.open_queries(&RankedSearch::unranked(query), position);
    for asked in &mut asked {
        (asked.rank, asked.best) = (Some(Arc::clone(&bound)), query.limit);
    }
    let search = PooledSearch::boxed(asked, sessions.clone());
    let read = move |ids, from, to| {
        let query = Query { ids: Some(ids), from, to, ..Query::default() };
        Ok(PooledSearch::boxed(inner.open_queries(&query, position), sessions.clone()))
    };
    Box::new(RankedSearch::new(query, bound, search, Box::new(read)))
}

/// A search on pooled sessions.
struct PooledSearch {
    sessions: QuerySessions,
    finders: Finders,
}

impl PooledSearch {
    /// Makes a search for these queries.
    fn boxed(asked: Vec<SqlQuery>, sessions: QuerySessions) -> Box<dyn Search> {
        let finders = Finders::new(asked, sessions.inner().layout);
        Box::new(Self { sessions, finders })
    }
}

impl Search for PooledSearch {
    fn slice(
        &mut self,
        work: u64,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<SearchProgress, SearchError> {
        let inner = Arc::clone(self.sessions.inner());
        let mut has_found = false;
        let mut sink = |record: &Record<'_>| {
            has_found = true;
            sink(record)
        };
        let progress = self.finders.slice(&inner.search, work, &mut self.sessions, &mut sink)?;
        if has_found {
            self.sessions.progressed();
        }
        Ok(progress)
    }

    fn seq(&self) -> u64 {
        let position = self.sessions.position();
        position.own(position.seen)
    }

    fn visited(&self) -> u64 {
        self.finders.visited()
    }

    fn driver(&self) -> Option<Set> {
        self.finders.driver()
    }

    fn bytes(&self) -> usize {
        self.finders.bytes()
    }
}
