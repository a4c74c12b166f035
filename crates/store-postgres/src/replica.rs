//! Runs a query on a replica, if the replica has all records that the query must see.
//!
//! Live delivery begins where a search ends. So if a search missed the newest records, subscribers
//! would never get these records. So a replica is used only if it already has these records. A
//! query waits at most [`WAIT_MAX`] for the replica, and otherwise runs on the primary.

use std::time::{Duration, Instant};

use hark_archive::meter::Counter;
use parking_lot::Mutex;

use crate::deadline::Deadline;
use crate::error::StatementError;
use crate::line::TimelinePosition;
use crate::pool::Pool;
use crate::session::DatabaseSession;

/// How long a query waits for a lagging replica, and the interval between two checks.
const WAIT_MAX: Duration = Duration::from_millis(10);
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How long a replica is not used after it lagged, or after it could not be reached.
const REST_BEHIND: Duration = Duration::from_millis(200);
const REST_AWAY: Duration = Duration::from_secs(2);

pub(crate) struct Replica {
    pub(crate) pool: Pool,
    /// The shelf's secret. The replica must have the same secret.
    secret: Vec<u8>,
    /// The replica's timeline, and the number up to which the replica has all puts.
    there: Mutex<(i64, i64)>,
    rests: Mutex<Option<Instant>>,
    /// Number of queries that ran on the replica, and number of queries that ran on the primary
    /// instead.
    pub(crate) asked: Counter,
    pub(crate) passed: Counter,
}

impl Replica {
    pub(crate) fn new(pool: Pool, secret: &[u8]) -> Self {
        Self {
            pool,
            secret: secret.to_vec(),
            // No timeline has this id, so the replica is not used until a check shows that it is a
            // copy of the primary.
            there: Mutex::new((-1, -1)),
            rests: Mutex::default(),
            asked: Counter::default(),
            passed: Counter::default(),
        }
    }

    /// Returns whether the replica has all puts up to `position`. Waits at most [`WAIT_MAX`] for
    /// these puts.
    pub(crate) fn has(&self, position: TimelinePosition, deadline: Option<Deadline>) -> bool {
        let has = |(line, seq): (i64, i64)| line == position.line && seq >= position.seen;
        if has(*self.there.lock()) {
            return !self.is_paused();
        }
        let until = Instant::now() + WAIT_MAX;
        while !self.is_paused() {
            match self.pool.with_deadline(deadline, |session| self.poll(session)) {
                Ok(there) if has(there) => return true,
                Ok(_) if Instant::now() >= until => self.pause(REST_BEHIND),
                Ok(_) => std::thread::sleep(LOOK_EVERY),
                Err(fault) => self.pause_after_fault(&fault),
            }
        }
        false
    }

    /// Reads the replica's timeline, and the number up to which the replica has all puts.
    fn poll(&self, session: &mut DatabaseSession) -> Result<(i64, i64), StatementError> {
        let text = "SELECT line, seq, (SELECT value FROM meta WHERE name = 'secret') FROM state";
        let rows = session.query_once(text, &[])?;
        let row = rows.first().filter(|row| row.get::<_, Option<&[u8]>>(2) == Some(&self.secret));
        let Some(row) = row else {
            return Err(StatementError::Refused("read_url leads to another archive".into()));
        };
        let found = (row.get(0), row.get(1));
        *self.there.lock() = found;
        Ok(found)
    }

    /// Logs a fault, and stops using the replica for a while.
    pub(crate) fn pause_after_fault(&self, fault: &StatementError) {
        tracing::warn!(%fault, database = self.pool.door().name(), "the replica is not asked");
        self.pause(REST_AWAY);
    }

    fn pause(&self, time: Duration) {
        *self.rests.lock() = Some(Instant::now() + time);
    }

    fn is_paused(&self) -> bool {
        let mut rests = self.rests.lock();
        let resting = rests.is_some_and(|until| Instant::now() < until);
        if !resting {
            *rests = None;
        }
        resting
    }
}
