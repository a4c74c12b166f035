//! Runs a query on a replica, if the replica has all records that the query must see.
//!
//! Live delivery begins where a search ends. So if a search missed the newest records, subscribers
//! would never get these records. Therefore, a replica is used only if it already has the newest
//! records. A query waits at most [`WAIT_MAX`] for the replica, and otherwise runs on the primary.
//!
//! Several replicas can have one name, or a replica can start anew with older records. So the check
//! is made in each session that a query uses, and its result holds for this session only.
//!
//! Behind a pooler that shares connections, a query could read the tables of another shelf, because
//! the connection has the settings of another session. Such a replica is not used.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hark_archive::meter::Counter;
use parking_lot::Mutex;

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
    /// Whether each session is known to have its own connection.
    is_apart: AtomicBool,
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
            is_apart: AtomicBool::new(false),
            rests: Mutex::default(),
            asked: Counter::default(),
            passed: Counter::default(),
        }
    }

    /// Fails if the replica of this session lacks puts up to `position`. Waits at most [`WAIT_MAX`]
    /// for these puts. Also fails if sessions share connections.
    pub(crate) fn must_have(
        &self,
        session: &mut DatabaseSession,
        position: TimelinePosition,
    ) -> Result<(), StatementError> {
        if !self.is_apart.load(Ordering::Relaxed) {
            self.pool.door().must_be_apart(session)?;
            self.is_apart.store(true, Ordering::Relaxed);
        }
        let has = |(line, seq): (i64, i64)| line == position.line && seq >= position.seen;
        let until = Instant::now() + WAIT_MAX;
        while !session.reached.is_some_and(has) {
            let there = self.read_position(session)?;
            session.reached = Some(there);
            if !has(there) {
                if Instant::now() >= until {
                    return Err(StatementError::Behind);
                }
                std::thread::sleep(LOOK_EVERY);
            }
        }
        Ok(())
    }

    /// Reads the replica's timeline, and the number up to which the replica has all puts.
    fn read_position(&self, session: &mut DatabaseSession) -> Result<(i64, i64), StatementError> {
        let text = "SELECT line, seq, (SELECT value FROM meta WHERE name = 'secret') FROM state";
        let rows = session.query_once(text, &[])?;
        let row = rows.first().filter(|row| row.get::<_, Option<&[u8]>>(2) == Some(&self.secret));
        row.map(|row| (row.get(0), row.get(1)))
            .ok_or_else(|| StatementError::Refused("read_url leads to another archive".into()))
    }

    /// Stops using the replica for a while, and logs the fault unless the replica only lags.
    pub(crate) fn pause_after_fault(&self, fault: &StatementError) {
        if matches!(fault, StatementError::Behind) {
            return self.pause(REST_BEHIND);
        }
        tracing::warn!(%fault, database = self.pool.door().name(), "the replica is not asked");
        self.pause(REST_AWAY);
    }

    fn pause(&self, time: Duration) {
        *self.rests.lock() = Some(Instant::now() + time);
    }

    /// Whether queries run on the primary for now.
    pub(crate) fn is_paused(&self) -> bool {
        let mut rests = self.rests.lock();
        let resting = rests.is_some_and(|until| Instant::now() < until);
        if !resting {
            *rests = None;
        }
        resting
    }
}
