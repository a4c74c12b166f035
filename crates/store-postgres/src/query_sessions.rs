//! The sessions on which a query runs: sessions of the replica or of the primary.

use std::sync::Arc;
use std::time::Duration;

use hark_archive::Query;

use crate::deadline::{Deadline, QuestionTime};
use crate::error::StatementError;
use crate::failover;
use crate::line::TimelinePosition;
use crate::search::Sessions;
use crate::session::DatabaseSession;
use crate::state::PostgresState;

/// Interval at which a query checks whether this process has switched to the database's timeline.
const FOLLOW_EVERY: Duration = Duration::from_millis(5);
/// Why a query fails if the process has not switched in time.
const NOT_FOLLOWED: &str =
    "it was started anew or replaced, and this server has not caught up with its records yet";

/// The sessions on which a query runs: the replica's until the replica fails, and from then on the
/// primary's.
#[derive(Clone)]
pub(crate) struct QuerySessions {
    inner: Arc<PostgresState>,
    position: TimelinePosition,
    /// Whether the query's last work ran on the replica; `None` before its first work.
    on_replica: Option<bool>,
    time: QuestionTime,
}

impl QuerySessions {
    /// Makes the sessions for a query that must see all puts up to `position`. Only each single
    /// statement has a time limit.
    pub(crate) fn new(inner: Arc<PostgresState>, position: TimelinePosition) -> Self {
        let time = QuestionTime::of_statements(inner.pool.door().timeout());
        Self { inner, position, on_replica: None, time }
    }

    /// Makes the sessions for a query that must see all acknowledged puts. If the query may visit
    /// only a limited number of rows, all its statements share one time limit.
    pub(crate) fn ask(inner: &Arc<PostgresState>, query: &Query) -> Result<Self, StatementError> {
        let mut sessions = Self::new(Arc::clone(inner), inner.current.now());
        if query.budget < u64::MAX {
            sessions.time = QuestionTime::new(inner.pool.door().timeout());
        }
        // A query that cannot match anything need not ask the database for the newest position.
        if !query.is_void() {
            sessions.position = sessions.time.spend(|deadline| newest(inner, deadline))?;
        }
        Ok(sessions)
    }

    /// The shelf that the query is for.
    pub(crate) fn inner(&self) -> &Arc<PostgresState> {
        &self.inner
    }

    /// The position up to which the query sees puts.
    pub(crate) fn position(&self) -> TimelinePosition {
        self.position
    }

    /// Notes that the query has found a record, so that it may use its whole time for the next
    /// record.
    pub(crate) fn progressed(&mut self) {
        self.time.renew();
    }

    /// Runs `work` on the replica. Returns `None` if `work` must run on the primary.
    fn on_replica<T>(
        &mut self,
        deadline: Option<Deadline>,
        work: &mut impl FnMut(&mut DatabaseSession) -> Result<T, StatementError>,
    ) -> Option<T> {
        let replica = self.inner.replica.as_ref()?;
        let done = if self.on_replica.unwrap_or_else(|| !replica.is_paused()) {
            let position = self.position;
            let done = replica.pool.with_deadline(deadline, |session| {
                replica.must_have(session, position)?;
                work(session)
            });
            // A replica may also cancel a statement because it delays replication.
            done.inspect_err(|fault| replica.pause_after_fault(fault)).ok()
        } else {
            None
        };
        if self.on_replica.is_none() {
            let counter = if done.is_some() { &replica.asked } else { &replica.passed };
            counter.add(1);
        }
        self.on_replica = Some(done.is_some());
        done
    }

    fn with_deadline<T>(
        &mut self,
        deadline: Option<Deadline>,
        mut work: impl FnMut(&mut DatabaseSession) -> Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        // The primary answers in the other half of the time if the replica does not answer.
        if let Some(done) = self.on_replica(deadline.map(Deadline::half), &mut work) {
            return Ok(done);
        }
        self.inner.pool.with_deadline(deadline, work)
    }
}

/// Returns a position at which a query sees all puts that were acknowledged before. Fails if the
/// database does not report the number of the newest put, even if a replica could answer the query:
/// the answer might lack records.
fn newest(
    inner: &PostgresState,
    deadline: Option<Deadline>,
) -> Result<TimelinePosition, StatementError> {
    if !inner.others.may_be() {
        return Ok(inner.current.now());
    }
    let limit = deadline.unwrap_or_else(|| Deadline::after(inner.pool.door().timeout()));
    loop {
        let read = inner
            .pool
            .with_deadline(deadline, |session| inner.layout.newest(session, &inner.search))?;
        let mut position = inner.current.now();
        let Some((line, seq)) = read else { return Ok(position) };
        // The number of another timeline cannot be compared with the numbers of this process. So
        // the process must switch to the timeline before the query begins.
        if line != position.line && !inner.wake() {
            if !inner.pool.with_deadline(deadline, |session| failover::follow(inner, session))? {
                return Ok(position);
            }
            position = inner.current.now();
        }
        if line == position.line {
            position.seen = position.seen.max(seq);
            return Ok(position);
        }
        if limit.left().is_zero() {
            return Err(StatementError::Away(NOT_FOLLOWED.into()));
        }
        std::thread::sleep(FOLLOW_EVERY);
    }
}

impl Sessions for QuerySessions {
    fn with<T>(
        &mut self,
        work: impl FnMut(&mut DatabaseSession) -> Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        let mut time = self.time;
        let done = time.spend(|deadline| self.with_deadline(deadline, work));
        self.time = time;
        done
    }

    fn aside<T>(
        &mut self,
        work: impl FnOnce(Option<Deadline>) -> Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        self.time.spend(work)
    }
}
