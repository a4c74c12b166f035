//! The sessions on which a query runs: sessions of the replica or of the primary.

use std::sync::Arc;

use crate::error::StatementError;
use crate::line::TimelinePosition;
use crate::search::Sessions;
use crate::session::DatabaseSession;
use crate::state::PostgresState;

/// The sessions on which a query runs: the replica's until the replica fails, and from then on the
/// primary's.
pub(crate) struct QuerySessions {
    inner: Arc<PostgresState>,
    position: TimelinePosition,
    /// `None` until the query first needs a session. It is not decided earlier, because queries are
    /// prepared on threads that must not block.
    on_replica: Option<bool>,
}

impl QuerySessions {
    /// Makes the sessions for a query that must see all puts up to `position`.
    pub(crate) fn new(inner: Arc<PostgresState>, position: TimelinePosition) -> Self {
        Self { inner, position, on_replica: None }
    }

    /// Returns whether the query runs on the replica. The first call decides.
    fn is_on_replica(&mut self) -> bool {
        let (inner, position) = (&self.inner, self.position);
        *self.on_replica.get_or_insert_with(|| {
            inner.replica.as_ref().is_some_and(|replica| {
                let has = replica.has(position);
                let counter = if has { &replica.asked } else { &replica.passed };
                counter.add(1);
                has
            })
        })
    }
}

impl Sessions for QuerySessions {
    fn with<T>(
        &mut self,
        mut work: impl FnMut(&mut DatabaseSession) -> Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        let on_replica = self.is_on_replica();
        if let Some(replica) = self.inner.replica.as_ref().filter(|_| on_replica) {
            match replica.pool.with(&mut work) {
                Ok(done) => return Ok(done),
                Err(fault) => {
                    // A replica may also cancel a statement because it delays replication.
                    replica.pause_after_fault(&fault);
                    self.on_replica = Some(false);
                }
            }
        }
        self.inner.pool.with(work)
    }
}
