//! A pool of a few sessions for queries. Sessions are opened when they are needed. Each is used by
//! one thread at a time.

use std::time::{Duration, Instant};

use hark_archive::meter::Counter;
use parking_lot::{Condvar, Mutex};

use crate::connector::Connector;
use crate::error::StatementError;
use crate::session::DatabaseSession;

/// Shortest and longest wait between two attempts to reach a database that cannot be reached.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(5);

/// When the next attempt to reach the database is due.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    next: Option<(Instant, Duration, StatementError)>,
}

impl Backoff {
    /// Opens a session. If the next attempt is not due yet, fails at once with the last fault.
    pub(crate) fn open(&mut self, door: &Connector) -> Result<DatabaseSession, StatementError> {
        self.ready()?;
        let opened = door.open();
        self.note(opened.as_ref().err());
        opened
    }

    /// If it is too early for the next attempt, fails with the last fault.
    fn ready(&self) -> Result<(), StatementError> {
        match &self.next {
            Some((next, _, fault)) if Instant::now() < *next => Err(fault.clone()),
            _ => Ok(()),
        }
    }

    /// Notes the result of an attempt.
    fn note(&mut self, fault: Option<&StatementError>) {
        let Some(fault) = fault else {
            self.next = None;
            return;
        };
        // Attempts at the same time count as one attempt.
        if self.ready().is_ok() {
            let wait = self.next.as_ref().map_or(RETRY_FIRST, |(_, wait, _)| *wait * 2);
            let wait = wait.min(RETRY_LAST);
            self.next = Some((Instant::now() + wait, wait, fault.clone()));
        }
    }
}

/// Counters of a pool's sessions.
#[derive(Debug, Default)]
pub(crate) struct PoolCounters {
    /// Number of open sessions.
    pub(crate) open: Counter,
    /// Number of sessions in use.
    pub(crate) used: Counter,
    /// How many times a thread had to wait for a session.
    pub(crate) waits: Counter,
}

pub(crate) struct Pool {
    door: Connector,
    max: usize,
    wait_max: Duration,
    state: Mutex<PoolState>,
    freed: Condvar,
    pub(crate) counters: PoolCounters,
}

#[derive(Default)]
struct PoolState {
    idle: Vec<DatabaseSession>,
    open: usize,
    backoff: Backoff,
}

impl Pool {
    pub(crate) fn new(door: Connector, max: usize, wait_max: Duration) -> Self {
        Self {
            door,
            max: max.max(1),
            wait_max,
            state: Mutex::default(),
            freed: Condvar::new(),
            counters: PoolCounters::default(),
        }
    }

    pub(crate) fn door(&self) -> &Connector {
        &self.door
    }

    /// Runs `work`, which must only read, on a session. If an idle session turns out to be lost,
    /// runs `work` once more on another session.
    pub(crate) fn with<T>(
        &self,
        mut work: impl FnMut(&mut DatabaseSession) -> Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        let slot = self.take()?;
        let was_idle = slot.session.is_some();
        match slot.run(&mut work) {
            Err(fault) if fault.is_away() && was_idle => {
                // The other idle sessions are probably lost, too.
                self.forget_idle();
                self.take()?.run(&mut work)
            }
            result => result,
        }
    }

    fn forget_idle(&self) {
        let mut state = self.state.lock();
        let lost = std::mem::take(&mut state.idle);
        state.open -= lost.len();
        self.counters.open.sub(lost.len() as u64);
        // The sessions are closed after the lock is released.
        drop(state);
    }

    fn slot(&self, session: Option<DatabaseSession>) -> PoolSlot<'_> {
        PoolSlot { pool: self, session, is_used: false, is_sound: true }
    }

    /// Returns a slot with an idle session; if no session is idle, an empty slot.
    fn take(&self) -> Result<PoolSlot<'_>, StatementError> {
        let until = Instant::now() + self.wait_max;
        let mut state = self.state.lock();
        loop {
            if let Some(session) = state.idle.pop() {
                return Ok(self.slot(Some(session)));
            }
            if state.open < self.max {
                state.backoff.ready()?;
                state.open += 1;
                return Ok(self.slot(None));
            }
            self.counters.waits.add(1);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(StatementError::Away("all connections to it are in use".into()));
            }
            self.freed.wait_for(&mut state, left);
        }
    }
}

/// A slot of the pool. The number of slots is limited, and `PoolState::open` counts the slots in
/// use. When a slot is dropped, even by a panic, another thread can use the slot.
struct PoolSlot<'a> {
    pool: &'a Pool,
    /// `None` until a session is opened.
    session: Option<DatabaseSession>,
    is_used: bool,
    /// Whether the session can be used again; false if it is lost, or if a panic has left it in an
    /// unknown state.
    is_sound: bool,
}

impl PoolSlot<'_> {
    fn run<T>(
        mut self,
        work: &mut impl FnMut(&mut DatabaseSession) -> Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        let session = match self.session.take() {
            Some(session) => session,
            None => self.open()?,
        };
        let session = self.session.insert(session);
        self.pool.counters.used.add(1);
        (self.is_used, self.is_sound) = (true, false);
        let result = work(session);
        self.is_sound =
            !session.is_closed() && !result.as_ref().is_err_and(StatementError::is_away);
        result
    }

    /// Opens a session. Meanwhile the pool is not locked, so other threads can use other sessions.
    fn open(&self) -> Result<DatabaseSession, StatementError> {
        let opened = self.pool.door.open();
        self.pool.state.lock().backoff.note(opened.as_ref().err());
        if opened.is_ok() {
            self.pool.counters.open.add(1);
        }
        opened
    }
}

impl Drop for PoolSlot<'_> {
    fn drop(&mut self) {
        let Pool { state, freed, counters, .. } = self.pool;
        if self.is_used {
            counters.used.sub(1);
        }
        let (mut state, session) = (state.lock(), self.session.take());
        let lost = match session {
            Some(session) if self.is_sound => {
                state.idle.push(session);
                None
            }
            lost => {
                state.open -= 1;
                counters.open.sub(u64::from(lost.is_some()));
                lost
            }
        };
        drop(state);
        freed.notify_one();
        // A lost session is closed after the lock is released.
        drop(lost);
    }
}
