//! Passes the lock of an embedded archive, and its shelves, from one server to the next.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use hark_archive::Record;
use hark_archive::store::LogPosition;
use hark_server::control::{Handover, HandoverError, TakeoverLock, WriteClaim};
use hark_store_embedded::{DirectoryLock, EmbeddedStore};
use parking_lot::Mutex;

/// The archive's lock, until another server takes it over.
pub(crate) struct ArchiveLock {
    /// `None` once another server has the lock.
    lock: Mutex<Option<DirectoryLock>>,
}

impl ArchiveLock {
    pub(crate) fn new(lock: DirectoryLock) -> Self {
        Self { lock: Mutex::new(Some(lock)) }
    }

    /// Calls `act` with the lock. Fails if another process has taken over the lock.
    fn with<T>(&self, act: impl FnOnce(&mut DirectoryLock) -> io::Result<T>) -> io::Result<T> {
        let given = || io::Error::other("another process holds the archive's lock");
        self.lock.lock().as_mut().ok_or_else(given).and_then(act)
    }

    /// Fails unless this process has claimed the right to write.
    fn must_be_claimed(&self) -> Result<(), HandoverError> {
        if self.lock.lock().as_ref().is_some_and(DirectoryLock::is_claimed) {
            return Ok(());
        }
        Err(HandoverError::new("this process has no right to write the archive"))
    }
}

impl Drop for ArchiveLock {
    /// Leaves the lock to the system, which releases it when all threads of this process have
    /// ended. A thread may still be in a write that did not end in time.
    fn drop(&mut self) {
        std::mem::forget(self.lock.lock().take());
    }
}

impl TakeoverLock for ArchiveLock {
    fn share(&self) -> io::Result<(OwnedFd, u64)> {
        self.with(DirectoryLock::share)
    }

    fn offer(&self) -> io::Result<()> {
        self.with(DirectoryLock::offer)
    }

    fn claim(&self) -> io::Result<WriteClaim> {
        Ok(match self.with(DirectoryLock::claim)? {
            hark_store_embedded::LockClaim::Mine => WriteClaim::Mine,
            hark_store_embedded::LockClaim::Held => WriteClaim::Held,
            hark_store_embedded::LockClaim::Late => WriteClaim::Late,
        })
    }

    fn release_for_good(&self) {
        drop(self.lock.lock().take());
    }

    fn sign(&self) -> io::Result<()> {
        self.with(|lock| lock.sign())
    }
}

/// A shelf of the archive, with the archive's lock.
pub(crate) struct LockedShelf {
    pub(crate) store: Arc<EmbeddedStore>,
    pub(crate) held: Arc<ArchiveLock>,
    /// Maximum number of the new server's records that this process reads after a takeover.
    pub(crate) records_max: u64,
}

impl Handover for LockedShelf {
    fn pause_maintenance(&self, pause: bool) {
        self.store.pause_maintenance(pause);
    }

    fn release(&self) -> Result<LogPosition, HandoverError> {
        self.store.release().map_err(HandoverError::new)
    }

    fn resume(&self) -> Result<(), HandoverError> {
        self.held.must_be_claimed()?;
        self.store.resume().map_err(HandoverError::new)
    }

    fn begin_writing(&self) -> Result<(), HandoverError> {
        self.held.must_be_claimed()?;
        self.store.begin_writing().map_err(HandoverError::new)
    }

    fn followed(&self, from: Option<LogPosition>) {
        self.store.followed(from);
    }

    fn end(&self) -> LogPosition {
        self.store.end()
    }

    fn follow(
        &self,
        to: LogPosition,
        each: &mut dyn FnMut(u64, &Record<'_>),
    ) -> Result<(), HandoverError> {
        self.store.follow(to, self.records_max, each).map_err(HandoverError::new)
    }
}
