//! What takes part in a takeover: the lock and the shelves that go from process to process, the part
//! that a process plays, and the processes next to it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use hark_archive::Record;
use hark_archive::store::Mark;

/// The lock of an archive: it keeps third processes away while the right to write goes from one process
/// to the next.
pub trait WriteLock: Send + Sync {
    /// Another hold on the lock, and the turn up to which its holder can claim the right to write.
    fn share(&self) -> io::Result<(OwnedFd, u64)>;

    /// Lets the right to write go, which the other process can claim then.
    fn offer(&self) -> io::Result<()>;

    /// Claims the right to write: of two processes that hold the lock one has it, for as long as it
    /// lives or until it offers it.
    fn claim(&self) -> io::Result<Claim>;

    /// The other process writes: this one lets go of the lock for good.
    fn given(&self);

    /// Has LOCK name this process as the one that writes. Failing costs no more than that name.
    fn sign(&self) -> io::Result<()>;
}

/// A shelf's store that another process can take over while this one goes on serving it. The right to
/// write is for its [`WriteLock`] to say.
pub trait Handover: Send + Sync {
    /// Lets upkeep rest, or go on; returns once it rests.
    fn rest(&self, rest: bool);

    /// Stops writing. What is durable by then is where the other process begins.
    fn release(&self) -> Result<Mark, String>;

    /// Goes on writing after [`Handover::release`], with the right to. Fails if the other process has
    /// written meanwhile.
    fn resume(&self) -> Result<(), String>;

    /// Begins to write, with the right to, upkeep apart. Fails if the other process has written since
    /// the store was opened here.
    fn take(&self) -> Result<(), String>;

    /// Another process follows this one from there on, or none does any more.
    fn followed(&self, from: Option<Mark>);

    /// How far the store is durable, and readers here see it.
    fn end(&self) -> Mark;

    /// Takes in what the other process has written up to there; `each` gets every record and its
    /// number in this process.
    fn follow(&self, to: Mark, each: &mut dyn FnMut(u64, &Record<'_>)) -> Result<(), String>;
}

/// What became of claiming the right to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is this process's.
    Mine,
    /// Another process has it.
    Held,
    /// It is free, but was a third process's meanwhile, or was offered to one.
    Late,
}

/// The part that this process plays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It writes and accepts.
    Serving,
    /// Another process is about to take over; it may fail.
    Giving,
    /// Another process writes and accepts; this one serves its connections to their end.
    Following,
    /// And that other process is gone.
    Lost(String),
}

impl Role {
    /// Whether another process has taken over.
    pub(crate) fn is_given(&self) -> bool {
        matches!(self, Self::Following | Self::Lost(_))
    }
}

/// A process on the other end of a takeover, for one shelf: that which this one follows, or one that
/// follows this.
pub(crate) trait Sibling: Send + Sync {
    /// A record that is never stored, for its subscribers.
    fn pass_on(&self, record: &Record<'_>);

    /// More is durable.
    fn grown(&self);
}

/// The siblings of a shelf.
#[derive(Default)]
pub(crate) struct Siblings {
    known: RwLock<Vec<Arc<dyn Sibling>>>,
    trouble: Mutex<Option<String>>,
}

impl Siblings {
    pub(super) fn add(&self, sibling: Arc<dyn Sibling>) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).push(sibling);
    }

    pub(super) fn remove(&self, sibling: &Arc<dyn Sibling>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|known| !Arc::ptr_eq(known, sibling));
    }

    /// Why no writes are taken, while another process has the right to write and does not.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Tells all but the one that it comes `from`.
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

    /// They are told outside of the lock, as that may take time.
    fn all(&self) -> Vec<Arc<dyn Sibling>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
