//! A pool of a few sessions for queries. Sessions are opened when they are needed. Each is used by
//! one thread at a time.

use std::time::Duration;

use hark_archive::meter::Counter;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::connector::Connector;
use crate::deadline::Deadline;
use crate::error::StatementError;
use crate::session::DatabaseSession;
use crate::session_gate::{Admission, Attempt, SessionGate};

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
    state: Mutex<PoolState>,
    /// Notified when a session or a slot is free, and when an attempt to open a session has ended.
    freed: Condvar,
    pub(crate) counters: PoolCounters,
}

#[derive(Default)]
struct PoolState {
    idle: Vec<DatabaseSession>,
    open: usize,
    gate: SessionGate,
}

impl Pool {
    pub(crate) fn new(door: Connector, max: usize) -> Self {
        Self {
            door,
            max: max.max(1),
            state: Mutex::default(),
            freed: Condvar::new(),
            counters: PoolCounters::default(),
        }
    }

    pub(crate) fn door(&self) -> &Connector {
        &self.door
    }

    /// Runs `work`, whose statements each have the connector's time limit.
    /// See [`with_deadline`](Self::with_deadline).
    pub(crate) fn with<T>(
        &self,
        work: impl FnMut(&mut DatabaseSession) -> Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        self.with_deadline(None, work)
    }

    /// Runs `work`, which must only read, on a session. If an idle session turns out to be lost,
    /// runs `work` once more on another session. `work` is not repeated if it was late, because a
    /// database that does not answer would be late again.
    pub(crate) fn with_deadline<T>(
        &self,
        deadline: Option<Deadline>,
        mut work: impl FnMut(&mut DatabaseSession) -> Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        let slot = self.take(deadline)?;
        let was_idle = slot.session.is_some();
        match slot.run(deadline, &mut work) {
            Err(fault) if fault.is_away() && !fault.is_late() && was_idle => {
                // The other idle sessions are probably lost, too.
                self.forget_idle(self.state.lock());
                self.take(deadline)?.run(deadline, &mut work)
            }
            result => result,
        }
    }

    /// Returns a session of the pool, for work that only reads. While a session is opened, calls
    /// `look` at intervals, and fails as late if `look` returns false. The caller must pass the
    /// result of its work to [`PoolLease::end`].
    pub(crate) fn lease(
        &self,
        deadline: Option<Deadline>,
        every: Duration,
        look: &mut dyn FnMut() -> bool,
    ) -> Result<PoolLease<'_>, StatementError> {
        let mut slot = self.take(deadline)?;
        let was_idle = slot.session.is_some();
        slot.enter_while(deadline, every, look)?;
        Ok(PoolLease { slot, was_idle })
    }

    /// Closes all idle sessions, because one of them was lost.
    pub(crate) fn close_idle(&self) {
        self.forget_idle(self.state.lock());
    }

    /// Opens a session that does not belong to the pool.
    pub(crate) fn open(&self, deadline: Deadline) -> Result<DatabaseSession, StatementError> {
        let mut state = self.state.lock();
        let attempt = loop {
            match state.gate.admit(true, self.door.timeout()) {
                Admission::Attempt(attempt) => break attempt,
                Admission::Refused(fault) => return Err(fault),
                Admission::Wait => self.wait(&mut state, deadline)?,
            }
        };
        drop(state);
        self.attempt(attempt, Some(deadline), Duration::MAX, &mut || true)
    }

    /// Notes a fault. If the database was late, the next session is opened as a probe, and idle
    /// sessions are closed: their connections may be the cause.
    pub(crate) fn note(&self, fault: &StatementError) {
        let mut state = self.state.lock();
        if fault.is_late() && state.gate.suspect(fault) {
            self.forget_idle(state);
        }
    }

    /// Whether the database answers, although many sessions wait for answers. A refusal, for example
    /// because of too many sessions, is an answer as well. One thread at a time opens a session to
    /// find out; returns `None` to all other threads.
    pub(crate) fn probe(&self) -> Option<bool> {
        self.note(&StatementError::Late(self.door.probe_max()));
        let admission = self.state.lock().gate.admit(true, self.door.timeout());
        match admission {
            Admission::Attempt(attempt) => {
                let opened = self.attempt(attempt, None, Duration::MAX, &mut || true);
                Some(!opened.is_err_and(|fault| fault.is_late()))
            }
            Admission::Wait => None,
            Admission::Refused(fault) => Some(!fault.is_late()),
        }
    }

    /// Whether the database accepts connections but does not answer.
    pub(crate) fn is_late(&self) -> bool {
        self.state.lock().gate.is_late()
    }

    fn forget_idle(&self, mut state: MutexGuard<'_, PoolState>) {
        let lost = std::mem::take(&mut state.idle);
        state.open -= lost.len();
        self.counters.open.sub(lost.len() as u64);
        // This line releases the lock. The sessions are closed afterwards.
        drop(state);
        self.freed.notify_all();
    }

    fn slot(&self, session: Option<DatabaseSession>, attempt: Attempt) -> PoolSlot<'_> {
        PoolSlot { pool: self, session, attempt, is_used: false, is_sound: true }
    }

    /// Returns a slot with an idle session; if no session is idle, a slot for a new session.
    fn take(&self, deadline: Option<Deadline>) -> Result<PoolSlot<'_>, StatementError> {
        let deadline = deadline.unwrap_or_else(|| Deadline::after(self.door.timeout()));
        let mut state = self.state.lock();
        loop {
            if let Some(session) = state.idle.pop() {
                return Ok(self.slot(Some(session), Attempt::Usual));
            }
            let has_room = state.open < self.max;
            match state.gate.admit(has_room, self.door.timeout()) {
                Admission::Attempt(attempt) => {
                    state.open += 1;
                    return Ok(self.slot(None, attempt));
                }
                Admission::Refused(fault) => return Err(fault),
                Admission::Wait => {
                    self.counters.waits.add(1);
                    self.wait(&mut state, deadline)?;
                }
            }
        }
    }

    /// Waits until a session may be free.
    fn wait(
        &self,
        state: &mut MutexGuard<'_, PoolState>,
        deadline: Deadline,
    ) -> Result<(), StatementError> {
        let left = deadline.left();
        if left.is_zero() {
            return Err(StatementError::Away("all connections to it are in use".into()));
        }
        self.freed.wait_for(state, left);
        Ok(())
    }

    /// Opens a session. Meanwhile the pool is not locked, so other threads can use other sessions.
    fn attempt(
        &self,
        attempt: Attempt,
        deadline: Option<Deadline>,
        every: Duration,
        look: &mut dyn FnMut() -> bool,
    ) -> Result<DatabaseSession, StatementError> {
        let limit = match attempt {
            Attempt::Usual | Attempt::Only => self.door.timeout(),
            Attempt::Probe => self.door.probe_max(),
        };
        let given = deadline.map_or(limit, |deadline| limit.min(deadline.left()));
        // `look` stops only a usual attempt: the result of a probe shows more than the sessions
        // that wait.
        let mut always = || true;
        let look = if attempt == Attempt::Usual { look } else { &mut always };
        let opened = self.door.open_watched(given, every.min(given), look);
        let opened = opened.and_then(|opened| opened.ok_or(StatementError::Late(given)));
        self.state.lock().gate.ended(attempt, opened.as_ref().err(), given == limit);
        self.freed.notify_all();
        opened
    }
}

/// A slot of the pool. The number of slots is limited, and `PoolState::open` counts the slots in
/// use. When a slot is dropped, even by a panic, another thread can use the slot.
struct PoolSlot<'a> {
    pool: &'a Pool,
    /// `None` until a session is opened.
    session: Option<DatabaseSession>,
    /// How the session is to be opened.
    attempt: Attempt,
    is_used: bool,
    /// Whether the session can be used again; false if it is lost, or if a panic has left it in an
    /// unknown state.
    is_sound: bool,
}

impl PoolSlot<'_> {
    /// Opens a session, unless the slot has a session. From now on, the session counts as lost
    /// until [`leave`](Self::leave).
    fn enter(
        &mut self,
        deadline: Option<Deadline>,
    ) -> Result<&mut DatabaseSession, StatementError> {
        self.enter_while(deadline, Duration::MAX, &mut || true)
    }

    /// Enters as [`enter`](Self::enter) does, and calls `look` like [`Pool::lease`].
    fn enter_while(
        &mut self,
        deadline: Option<Deadline>,
        every: Duration,
        look: &mut dyn FnMut() -> bool,
    ) -> Result<&mut DatabaseSession, StatementError> {
        let session = if let Some(session) = self.session.take() {
            session
        } else {
            let opened = self.pool.attempt(self.attempt, deadline, every, look)?;
            self.pool.counters.open.add(1);
            opened
        };
        self.pool.counters.used.add(1);
        (self.is_used, self.is_sound) = (true, false);
        let session = self.session.insert(session);
        session.deadline = deadline;
        Ok(session)
    }

    /// Notes the fault of work on the session, if it failed.
    fn leave(&mut self, fault: Option<&StatementError>) {
        let is_closed = self.session.as_ref().is_none_or(DatabaseSession::is_closed);
        self.is_sound = !is_closed && !fault.is_some_and(StatementError::is_away);
        if let Some(fault) = fault {
            self.pool.note(fault);
        }
    }

    fn run<T>(
        mut self,
        deadline: Option<Deadline>,
        work: &mut impl FnMut(&mut DatabaseSession) -> Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        let result = work(self.enter(deadline)?);
        self.leave(result.as_ref().err());
        result
    }
}

/// A session of a pool, while the caller uses the session. If the lease is dropped without
/// [`end`](Self::end), the session is closed.
pub(crate) struct PoolLease<'a> {
    slot: PoolSlot<'a>,
    /// Whether the session was open before. Then it may have been lost unnoticed.
    pub(crate) was_idle: bool,
}

impl PoolLease<'_> {
    /// The session; `None` after a panic.
    pub(crate) fn session(&mut self) -> Option<&mut DatabaseSession> {
        self.slot.session.as_mut()
    }

    /// Returns the session to the pool, and notes the fault of the caller's work, if it failed.
    pub(crate) fn end(mut self, fault: Option<&StatementError>) {
        self.slot.leave(fault);
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
