//! Sessions for questions: a few, opened when they are needed, each used by one thread at a time.

use std::time::{Duration, Instant};

use hark_archive::meter::Counter;
use parking_lot::{Condvar, Mutex};

use crate::session::{Connector, DatabaseSession, StatementError};

/// Waits between two attempts to reach a database that is away.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(5);

/// When to try again to reach a database that is away.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    next: Option<(Instant, Duration, StatementError)>,
}

impl Backoff {
    /// Opens a session. Before the next attempt is due, fails at once with the last fault.
    pub(crate) fn open(&mut self, door: &Connector) -> Result<DatabaseSession, StatementError> {
        self.ready()?;
        let opened = door.open();
        self.note(opened.as_ref().err());
        opened
    }

    /// Fails with the last fault unless the next attempt is due.
    fn ready(&self) -> Result<(), StatementError> {
        match &self.next {
            Some((next, _, fault)) if Instant::now() < *next => Err(fault.clone()),
            _ => Ok(()),
        }
    }

    /// Notes how an attempt ended.
    fn note(&mut self, fault: Option<&StatementError>) {
        let Some(fault) = fault else {
            self.next = None;
            return;
        };
        // Attempts that were made at the same time count as one.
        if self.ready().is_ok() {
            let wait = self.next.as_ref().map_or(RETRY_FIRST, |(_, wait, _)| *wait * 2);
            let wait = wait.min(RETRY_LAST);
            self.next = Some((Instant::now() + wait, wait, fault.clone()));
        }
    }
}

/// Counts of a pool's sessions.
#[derive(Debug, Default)]
pub(crate) struct PoolCounters {
    /// Sessions that are open.
    pub(crate) open: Counter,
    /// Sessions in use.
    pub(crate) used: Counter,
    /// How often a thread had to wait for a session.
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

    /// Runs `work`, which only reads, on a session. If an idle session turns out to be lost, `work`
    /// runs once more on another session.
    pub(crate) fn with<T>(
        &self,
        mut work: impl FnMut(&mut DatabaseSession) -> Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        let (session, fresh) = self.take()?;
        let result = self.run(session, &mut work);
        match result {
            Err(fault) if fault.is_away() && !fresh => {
                // The other idle sessions were lost as well.
                self.forget_idle();
                let (session, _) = self.take()?;
                self.run(session, &mut work)
            }
            result => result,
        }
    }

    fn run<T>(
        &self,
        mut session: DatabaseSession,
        work: &mut impl FnMut(&mut DatabaseSession) -> Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        self.counters.used.add(1);
        let result = work(&mut session);
        self.counters.used.sub(1);
        let lost = session.is_closed() || result.as_ref().is_err_and(StatementError::is_away);
        let mut state = self.state.lock();
        if lost {
            state.open -= 1;
            self.counters.open.sub(1);
        } else {
            state.idle.push(session);
        }
        drop(state);
        self.freed.notify_one();
        result
    }

    fn forget_idle(&self) {
        let mut state = self.state.lock();
        let lost = std::mem::take(&mut state.idle);
        state.open -= lost.len();
        self.counters.open.sub(lost.len() as u64);
    }

    /// Opens a session that is already counted in `open`.
    fn open(&self) -> Result<DatabaseSession, StatementError> {
        let opened = self.door.open();
        let mut state = self.state.lock();
        state.backoff.note(opened.as_ref().err());
        if opened.is_ok() {
            self.counters.open.add(1);
        } else {
            state.open -= 1;
            drop(state);
            self.freed.notify_one();
        }
        opened
    }

    /// Returns a session, and whether it was opened just now.
    fn take(&self) -> Result<(DatabaseSession, bool), StatementError> {
        let until = Instant::now() + self.wait_max;
        let mut state = self.state.lock();
        loop {
            if let Some(session) = state.idle.pop() {
                return Ok((session, false));
            }
            if state.open < self.max {
                state.backoff.ready()?;
                state.open += 1;
                drop(state);
                // The lock is free meanwhile, so other threads can take other sessions.
                return self.open().map(|session| (session, true));
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
