//! Questions to a replica, as long as it has what they are to see.
//!
//! What is told live begins where a search ends, so a search that misses the newest records would leave
//! a gap. A replica is asked only once it has them; it is waited for as long as a look at it takes, and
//! else the primary answers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hark_archive::meter::Count;

use crate::Inner;
use crate::line::Place;
use crate::pool::Pool;
use crate::search::Sessions;
use crate::session::{Fault, Session};

/// How long a question waits for a replica that is behind, and how often it looks.
const WAIT_MAX: Duration = Duration::from_millis(10);
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How long one that is behind, or away, is not asked again.
const REST_BEHIND: Duration = Duration::from_millis(200);
const REST_AWAY: Duration = Duration::from_secs(2);

pub(crate) struct Replica {
    pub(crate) pool: Pool,
    /// Of the shelf that it must be a copy of.
    secret: Vec<u8>,
    /// A line, and up to which number of it the replica has all puts.
    there: Mutex<(i64, i64)>,
    rests: Mutex<Option<Instant>>,
    /// Questions that it was asked, and that it could not be.
    pub(crate) asked: Count,
    pub(crate) passed: Count,
}

impl Replica {
    pub(crate) fn new(pool: Pool, secret: &[u8]) -> Self {
        Self {
            pool,
            secret: secret.to_vec(),
            // Nothing, before it was seen to be a copy.
            there: Mutex::new((-1, -1)),
            rests: Mutex::default(),
            asked: Count::default(),
            passed: Count::default(),
        }
    }

    /// Whether it has all puts up to `place`.
    fn has(&self, place: Place) -> bool {
        let has = |(line, seq): (i64, i64)| line == place.line && seq >= place.seen;
        if has(*self.there()) {
            return !self.is_resting();
        }
        let until = Instant::now() + WAIT_MAX;
        while !self.is_resting() {
            match self.pool.with(|session| self.look(session)) {
                Ok(there) if has(there) => return true,
                Ok(_) if Instant::now() >= until => self.rest(REST_BEHIND),
                Ok(_) => std::thread::sleep(LOOK_EVERY),
                Err(fault) => self.give_up(&fault),
            }
        }
        false
    }

    fn there(&self) -> MutexGuard<'_, (i64, i64)> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far it is, and on which line.
    fn look(&self, session: &mut Session) -> Result<(i64, i64), Fault> {
        let text = "SELECT line, seq, (SELECT value FROM meta WHERE name = 'secret') FROM state";
        let rows = session.query_once(text, &[])?;
        let row = rows.first().filter(|row| row.get::<_, Option<&[u8]>>(2) == Some(&self.secret));
        let Some(row) = row else {
            return Err(Fault::Refused("read_url leads to another archive".into()));
        };
        let found = (row.get(0), row.get(1));
        *self.there() = found;
        Ok(found)
    }

    fn give_up(&self, fault: &Fault) {
        tracing::warn!(%fault, database = self.pool.door().name(), "the replica is not asked");
        self.rest(REST_AWAY);
    }

    fn rests(&self) -> MutexGuard<'_, Option<Instant>> {
        self.rests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rest(&self, time: Duration) {
        *self.rests() = Some(Instant::now() + time);
    }

    fn is_resting(&self) -> bool {
        let mut rests = self.rests();
        let resting = rests.is_some_and(|until| Instant::now() < until);
        if !resting {
            *rests = None;
        }
        resting
    }
}

/// Where a question is asked: on the replica, until that fails.
pub(crate) struct Reading {
    inner: Arc<Inner>,
    on_replica: bool,
}

impl Reading {
    /// For a question that is to see puts up to `place`.
    pub(crate) fn new(inner: Arc<Inner>, place: Place) -> Self {
        let on_replica = inner.replica.as_ref().is_some_and(|replica| {
            let has = replica.has(place);
            let counter = if has { &replica.asked } else { &replica.passed };
            counter.add(1);
            has
        });
        Self { inner, on_replica }
    }
}

impl Sessions for Reading {
    fn with<T>(
        &mut self,
        mut work: impl FnMut(&mut Session) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if let Some(replica) = self.inner.replica.as_ref().filter(|_| self.on_replica) {
            match replica.pool.with(&mut work) {
                Ok(done) => return Ok(done),
                Err(fault) => {
                    // Also where it has cancelled the statement, to go on with what comes in.
                    replica.give_up(&fault);
                    self.on_replica = false;
                }
            }
        }
        self.inner.pool.with(work)
    }
}
