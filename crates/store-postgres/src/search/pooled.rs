//! Searches on pooled sessions. A ranked search makes several such searches.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::query::plan::Set;
use hark_archive::query::ranked::{RankBound, RankedSearch};
use hark_archive::{Query, Record, Search, SearchError, SearchProgress};

use super::asked::SqlQuery;
use super::several::Finders;
use crate::line::TimelinePosition;
use crate::query_sessions::QuerySessions;
use crate::state::PostgresState;

/// Starts a search for a query. The search sees puts up to `position`.
pub(crate) fn start(
    inner: &Arc<PostgresState>,
    query: &Query,
    position: TimelinePosition,
) -> Box<dyn Search> {
    let Some(words) = query.ranking() else {
        return PooledSearch::boxed(inner, inner.open_queries(query, position), position);
    };
    let bound = RankBound::new(words);
    let mut asked = inner.open_queries(&RankedSearch::unranked(query), position);
    for asked in &mut asked {
        (asked.rank, asked.best) = (Some(Arc::clone(&bound)), query.limit);
    }
    let search = PooledSearch::boxed(inner, asked, position);
    let inner = Arc::clone(inner);
    let read = move |ids, from, to| {
        let query = Query { ids: Some(ids), from, to, ..Query::default() };
        Ok(PooledSearch::boxed(&inner, inner.open_queries(&query, position), position))
    };
    Box::new(RankedSearch::new(query, bound, search, Box::new(read)))
}

/// A search on pooled sessions.
struct PooledSearch {
    inner: Arc<PostgresState>,
    reading: QuerySessions,
    finders: Finders,
    seq: u64,
}

impl PooledSearch {
    /// Makes a search for these queries, which sees puts up to `position`.
    fn boxed(
        inner: &Arc<PostgresState>,
        asked: Vec<SqlQuery>,
        position: TimelinePosition,
    ) -> Box<dyn Search> {
        let (inner, seq) = (Arc::clone(inner), position.own(position.seen));
        let reading = QuerySessions::new(Arc::clone(&inner), position);
        let finders = Finders::new(asked, inner.layout);
        Box::new(Self { inner, reading, finders, seq })
    }
}

impl Search for PooledSearch {
    fn slice(
        &mut self,
        work: u64,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<SearchProgress, SearchError> {
        let Self { inner, reading, finders, .. } = self;
        let progress = finders.slice(&inner.search, work, reading, sink);
        progress.map_err(|fault| SearchError::Failed(fault.to_string()))
    }

    fn seq(&self) -> u64 {
        self.seq
    }

    fn visited(&self) -> u64 {
        self.finders.visited()
    }

    fn driver(&self) -> Option<Set> {
        self.finders.driver()
    }
}
