//! The participants of a takeover: the lock and the shelves that are handed over, the role of a
//! process, and its sibling processes.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hark_archive::Record;
use hark_archive::store::LogPosition;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

/// Poll interval for events that no message announces.
pub(super) const RETRY: Duration = Duration::from_millis(20);

/// The lock of an archive. While one process hands over the right to write, the lock keeps out
/// every process except these two.
pub trait TakeoverLock: Send + Sync {
    /// Returns a second handle of the lock, and the last turn at which its holder can claim the
    /// right to write. The turn is a counter, which grows with each claim and each offer of the
    /// right.
    fn share(&self) -> io::Result<(OwnedFd, u64)>;

    /// Releases the right to write. The other process can then claim this right.
    fn offer(&self) -> io::Result<()>;

    /// Claims the right to write. Only one of the processes that hold the lock can have the right.
    /// That process keeps the right until it ends or calls [`TakeoverLock::offer`].
    fn claim(&self) -> io::Result<WriteClaim>;

    /// Releases the lock permanently, after the other process has started to write.
    fn release_for_good(&self);

    /// Writes this process's id to LOCK, for messages that name the writer. After a failure, the
    /// messages name another process, but the lock still works.
    fn sign(&self) -> io::Result<()>;
}

/// A shelf's store that another process can take over while this process still serves the store.
/// The [`TakeoverLock`] decides which process may write.
pub trait Handover: Send + Sync {
    /// Pauses maintenance (`true`) or resumes maintenance (`false`). Returns once maintenance has
    /// paused.
    fn pause_maintenance(&self, pause: bool);

    /// Stops writing. Returns the position up to which the store is durable, where the other
    /// process starts.
    fn release(&self) -> Result<LogPosition, HandoverError>;

    /// Continues to write after [`Handover::release`]. The process must have the right to write.
    /// Fails if the other process has written in the meantime.
    fn resume(&self) -> Result<(), HandoverError>;

    /// Begins to write, but without maintenance. The process must have the right to write. Fails if
    /// the other process has written since this process opened the store.
    fn begin_writing(&self) -> Result<(), HandoverError>;

    /// Sets the position from which another process follows this store. `None` means that no
    /// process follows any more.
    fn followed(&self, from: Option<LogPosition>);

    /// The position up to which the store is durable and visible to readers in this process.
    fn end(&self) -> LogPosition;

    /// Reads the other process's writes up to `to`. `each` receives every record and its sequence
    /// number in this process.
    fn follow(
        &self,
        to: LogPosition,
        each: &mut dyn FnMut(u64, &Record<'_>),
    ) -> Result<(), HandoverError>;
}

/// Why a step of a handover failed: the error of the store.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct HandoverError(Box<dyn std::error::Error + Send + Sync>);

impl HandoverError {
    /// Creates the error of a step that failed for this reason.
    pub fn new(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(reason.into())
    }
}

/// The result of claiming the right to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteClaim {
    /// This process has the right now.
    Mine,
    /// Another process has the right.
    Held,
    /// The right is free, but has changed since it was offered to this process: another process has
    /// claimed the right, or the right was offered again.
    Late,
}

/// The role of this process in a takeover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// This process writes, and accepts connections.
    Serving,
    /// Another process is about to take over; the takeover may still fail.
    Giving,
    /// Another process writes and accepts connections. This process serves its open connections
    /// until they end.
    Following,
    /// The process that this process followed is gone, for this reason.
    Lost(String),
}

impl Role {
    /// Whether another process has taken over.
    pub(crate) fn is_superseded(&self) -> bool {
        matches!(self, Self::Following | Self::Lost(_))
    }
}

/// Shows whether another process has taken over from this process.
#[derive(Clone, Debug)]
pub struct TakeoverState(pub(crate) watch::Receiver<Role>);

impl TakeoverState {
    /// Whether another process has taken over.
    pub fn is_superseded(&self) -> bool {
        self.0.borrow().is_superseded()
    }
}

/// The process at the other end of a takeover, for one shelf. Either the sibling follows this
/// process, or this process follows the sibling.
pub(crate) trait Sibling: Send + Sync {
    /// Sends a record that is never stored, for the sibling's subscribers.
    fn pass_on(&self, record: &Record<'_>);

    /// Notifies the sibling that more records are durable.
    fn grown(&self);
}

/// The siblings of a shelf.
#[derive(Default)]
pub(crate) struct Siblings {
    known: RwLock<Vec<Arc<dyn Sibling>>>,
    trouble: Mutex<Option<String>>,
    /// The time when a sibling was last removed.
    left_at: Mutex<Option<Instant>>,
}

impl Siblings {
    pub(super) fn add(&self, sibling: Arc<dyn Sibling>) {
        self.known.write().push(sibling);
    }

    pub(super) fn remove(&self, sibling: &Arc<dyn Sibling>) {
        let mut known = self.known.write();
        known.retain(|known| !Arc::ptr_eq(known, sibling));
        *self.left_at.lock() = Some(Instant::now());
    }

    /// How long the shelf has had no sibling. `Duration::MAX` if it never had a sibling.
    pub(crate) fn alone_for(&self) -> Duration {
        if !self.known.read().is_empty() {
            return Duration::ZERO;
        }
        self.left_at.lock().map_or(Duration::MAX, |at| at.elapsed())
    }

    /// The reason for which this process refuses writes, while another process has the right to
    /// write but has not started to write.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock() = trouble;
    }

    /// Sends a record to all siblings except `from`, its origin.
    pub(crate) fn pass_on(&self, record: &Record<'_>, from: Option<&Arc<dyn Sibling>>) {
        for sibling in self.all() {
            if from.is_none_or(|from| !Arc::ptr_eq(from, &sibling)) {
                sibling.pass_on(record);
            }
        }
    }

    pub(crate) fn grown(&self) {
        self.all().iter().for_each(|sibling| sibling.grown());
    }

    /// Returns a copy of the list. Notifying siblings may take time, so the caller notifies them
    /// without the lock.
    fn all(&self) -> Vec<Arc<dyn Sibling>> {
        self.known.read().clone()
    }
}
