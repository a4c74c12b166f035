//! Answers requests for history: `hark_networks::waku::history` turns a request into a query, and
//! the records into a page.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use hark_archive::{Position, Query, Store};
use hark_codec::record::Id;
use hark_networks::search::BoundedSearch;
use hark_networks::waku::history::{HistoryError, HistoryPage, HistoryQuery, MessageRequest};

use super::node::WakuNode;
use crate::answers::PermittedAnswer;
use crate::permits::Share;
use crate::rate::RateSource;
use crate::service::{NotAsked, TooManyQuestions};
pub(super) use positions::PositionCache;

mod positions;

/// Returns the page of a query. A cursor names a message of an earlier page.
pub(super) fn page(
    search: &mut BoundedSearch<'_>,
    positions: &PositionCache,
    query: &HistoryQuery,
) -> Result<HistoryPage, HistoryError> {
    let after = match query.cursor() {
        None => None,
        Some(cursor) => {
            let cached = positions.get(&cursor);
            let at = cached.map_or_else(|| position(search.store(), cursor), |at| Ok(Some(at)));
            Some(at?.ok_or(HistoryError::Cursor)?)
        }
    };
    let page = query.page(search, after)?;
    if let Some(end) = page.end {
        positions.note(end);
    }
    Ok(page)
}

/// Looks up the position of a message in the archive.
fn position(store: &dyn Store, hash: Id) -> Result<Option<Position>, HistoryError> {
    let query = Query { ids: Some(vec![hash]), limit: 1, ..Query::default() };
    let mut found = None;
    store.search(&query)?.slice(u64::MAX, &mut |record| {
        found = Some(Position::of(record));
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Returns the error for a request whose search did not run.
fn refusal_error(why: NotAsked) -> HistoryError {
    match why {
        NotAsked::Line => HistoryError::TooMany,
        NotAsked::Panicked => HistoryError::Down,
    }
}

impl WakuNode {
    /// Charges a request for history to its source, or refuses the request because its source
    /// exceeds a rate limit.
    fn admit_question(&self, from: RateSource) -> Result<(), HistoryError> {
        let admitted = self.service.questions.admit(from, self.settings().queries);
        admitted.map_err(|TooManyQuestions| HistoryError::TooMany)
    }

    /// Admits a request that this node is to forward to a peer. The peer's answer uses memory and
    /// time of this node as well.
    pub(super) fn admit_peer_question(
        &self,
        from: RateSource,
    ) -> Result<Share<RateSource>, HistoryError> {
        self.admit_question(from)?;
        self.peer_questions.acquire(from, 1).ok_or(HistoryError::TooMany)
    }

    /// Returns the page of history for a request, and records how long the request took. The
    /// request is read only if its source is within its rate limits.
    pub(super) async fn page(
        &self,
        from: RateSource,
        read: impl FnOnce() -> Result<MessageRequest, HistoryError>,
    ) -> Result<PermittedAnswer<HistoryPage>, HistoryError> {
        let (began, questions) = (Instant::now(), &self.service.questions);
        self.admit_question(from)?;
        let query = read().and_then(HistoryQuery::new);
        let query =
            Arc::new(query.inspect_err(|_| self.metrics.record_history_time(began.elapsed()))?);
        let (asked, positions) = (Arc::clone(&query), Arc::clone(&self.positions));
        let rows_max = self.settings().query_rows_max;
        let found =
            questions.search(from, rows_max, move |search| page(search, &positions, &asked));
        let found = found.await.map_err(refusal_error)?;
        let time = began.elapsed();
        self.metrics.record_history_time(time);
        questions.note("STORE", time, &found, || query.query());
        let page = found.result?;
        let room = self.service.answers.reserve(from, page.answer_bytes());
        let room = room.ok_or(HistoryError::Busy)?;
        self.metrics.sent.add(page.records.len() as u64);
        self.metrics.damaged.add(page.damaged.into());
        Ok(PermittedAnswer { page, room })
    }
}

#[cfg(test)]
mod tests;
