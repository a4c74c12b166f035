//! The sessions with a node that has shards.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::connector::Connector;
use crate::deadline::Deadline;
use crate::error::StatementError;
use crate::pool::{Pool, PoolLease};

/// How long a node is not queried directly after a connection to it has failed.
const CLOSED: Duration = Duration::from_secs(10);
/// Maximum of [`CLOSED`] for a node that never answered. The time doubles with each attempt.
const CLOSED_MAX: Duration = Duration::from_mins(10);
/// Maximum time for the connection to a node that never answered. If a firewall drops the packets,
/// the question goes through the coordinator, which needs the rest of the question's time.
const REACHED_WITHIN: Duration = Duration::from_millis(1_500);

/// Time without any answer after which a node is probed if half of its sessions wait for answers.
///
/// Without the probe, all search threads could wait for a node that hangs, up to the time limits of
/// its questions. Questions that other nodes can answer would also have to wait.
pub(super) const SILENT: Duration = Duration::from_millis(200);

/// The sessions with a node that has shards.
pub(super) struct Worker {
    /// Host and port of the node.
    pub(super) name: String,
    pub(super) pool: Pool,
    /// Whether the node has ever answered.
    was_reached: AtomicBool,
    /// Whether it was logged that the node does not answer.
    is_late: AtomicBool,
    /// After a failed connection to the node: the time of the next attempt, and the length of the
    /// pause.
    closed: Mutex<Option<(Instant, Duration)>>,
    /// Number of waiting questions from which a silent node is probed.
    many: usize,
    /// Number of questions that wait for the node.
    waiting: AtomicUsize,
    /// The time of the node's last answer, or of the first question since then.
    answered: Mutex<Instant>,
}

/// A session with a node, for a question that waits for the node.
pub(super) struct WorkerLease<'a> {
    pub(super) lease: PoolLease<'a>,
    waiting: WaitingQuestion<'a>,
}

/// A question that waits for a node.
struct WaitingQuestion<'a>(&'a Worker);

impl WorkerLease<'_> {
    /// Returns the session to the pool, and notes the fault of the question, if it failed.
    pub(super) fn end(self, fault: Option<&StatementError>) {
        drop(self.waiting);
        self.lease.end(fault);
    }
}

impl Drop for WaitingQuestion<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why shards could not be read from a node.
pub(super) enum WorkerFault {
    /// A shard is on another node.
    Moved,
    /// An idle session was lost. Another session may be opened.
    Lost,
    /// The node cannot be reached from here, or refuses the statement.
    Closed,
    /// The question fails.
    Failed(StatementError),
}

impl Worker {
    pub(super) fn new(name: String, connector: Connector, sessions_max: usize) -> Self {
        Self {
            name,
            pool: Pool::new(connector, sessions_max),
            was_reached: AtomicBool::new(false),
            is_late: AtomicBool::new(false),
            closed: Mutex::default(),
            many: sessions_max.div_ceil(2).max(1),
            waiting: AtomicUsize::new(0),
            answered: Mutex::new(Instant::now()),
        }
    }

    /// Whether a question may continue to wait for the node. If many questions wait, and the node
    /// has not answered any question for [`SILENT`], tries to open a session with the node.
    pub(super) fn may_answer(&self) -> bool {
        if self.pool.is_late() {
            return false;
        }
        let is_silent = self.answered.lock().elapsed() >= SILENT;
        if self.waiting.load(Ordering::Relaxed) < self.many || !is_silent {
            return true;
        }
        let answers = self.pool.probe();
        if answers == Some(true) {
            *self.answered.lock() = Instant::now();
        }
        answers != Some(false)
    }

    /// Returns a session with the node.
    pub(super) fn lease(&self, deadline: Option<Deadline>) -> Result<WorkerLease<'_>, WorkerFault> {
        if self.closed.lock().is_some_and(|(until, _)| Instant::now() < until) {
            return Err(WorkerFault::Closed);
        }
        let has_answered = self.was_reached.load(Ordering::Relaxed);
        let given = deadline.unwrap_or_else(|| Deadline::after(self.pool.door().timeout()));
        let quarter = (given.left() / 4).min(REACHED_WITHIN);
        let given = if has_answered { given } else { Deadline::after(quarter) };
        let is_first = self.waiting.fetch_add(1, Ordering::Relaxed) == 0;
        let waiting = WaitingQuestion(self);
        if is_first {
            *self.answered.lock() = Instant::now();
        }
        let leased = self.pool.lease(Some(given), SILENT, &mut || self.may_answer());
        let mut lease = leased.map_err(|fault| {
            let has_no_time = given.left().is_zero();
            // The coordinator would wait for a node that hangs, too. But if the node never
            // answered, perhaps the network drops only Hark's packets.
            if has_answered && (fault.is_late() || has_no_time) {
                self.late(fault)
            } else {
                self.close(&fault)
            }
        })?;
        self.was_reached.store(true, Ordering::Relaxed);
        if let Some(session) = lease.session() {
            session.deadline = deadline;
        }
        if !lease.was_idle {
            *self.answered.lock() = Instant::now();
        }
        Ok(WorkerLease { lease, waiting })
    }

    /// Notes that the node has answered a question.
    pub(super) fn answered(&self) {
        *self.answered.lock() = Instant::now();
        let was_closed = self.closed.lock().take().is_some();
        if self.is_late.swap(false, Ordering::Relaxed) || was_closed {
            tracing::info!(worker = self.name, "a worker answers questions again");
        }
    }

    /// Decides how a question continues after the fault of a statement. `was_idle` is true if the
    /// statement's session was open before.
    pub(super) fn decide(&self, fault: StatementError, was_idle: bool) -> WorkerFault {
        match fault {
            StatementError::Missing(_) => WorkerFault::Moved,
            StatementError::Late(_) => self.late(fault),
            // The coordinator would have no time left.
            StatementError::Cancelled(_) => WorkerFault::Failed(fault),
            StatementError::Away(_) if was_idle => {
                // The other idle sessions are probably lost, too.
                self.pool.close_idle();
                WorkerFault::Lost
            }
            fault => self.close(&fault),
        }
    }

    /// Reports that the node does not answer. Questions that need the node fail.
    fn late(&self, fault: StatementError) -> WorkerFault {
        if !self.is_late.swap(true, Ordering::Relaxed) {
            tracing::warn!(worker = self.name, %fault, "a worker does not answer");
        }
        WorkerFault::Failed(StatementError::Worker(Box::new(fault)))
    }

    /// Stops querying the node directly for a while.
    fn close(&self, fault: &StatementError) -> WorkerFault {
        let mut closed = self.closed.lock();
        if closed.is_none() {
            tracing::warn!(
                worker = self.name,
                %fault,
                "questions for this worker go through the coordinator"
            );
        }
        let pause = match *closed {
            Some((_, last)) if !self.was_reached.load(Ordering::Relaxed) => {
                CLOSED_MAX.min(2 * last)
            }
            _ => CLOSED,
        };
        *closed = Some((Instant::now() + pause, pause));
        WorkerFault::Closed
    }
}
