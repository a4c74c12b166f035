//! The embedded archive and its lock, as they go from one server to the next.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hark_archive::Record;
use hark_archive::store::Mark;
use hark_server::control::{Claim, Handover};
use hark_store_embedded::{Embedded, Lock};

/// What a server has while it writes.
pub(crate) struct Held {
    store: Arc<Embedded>,
    /// None once another server has it.
    lock: Mutex<Option<Lock>>,
    /// Records that are taken in from that one.
    records_max: u64,
}

impl Held {
    pub(crate) fn new(store: Arc<Embedded>, lock: Lock, records_max: u64) -> Self {
        Self { store, lock: Mutex::new(Some(lock)), records_max }
    }

    fn held(&self) -> MutexGuard<'_, Option<Lock>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `act` does with the lock, while it is this process's.
    fn with<T>(&self, act: impl FnOnce(&mut Lock) -> io::Result<T>) -> io::Result<T> {
        let given = || io::Error::other("the archive's lock is another process's");
        self.held().as_mut().ok_or_else(given).and_then(act)
    }

    /// Fails unless this process has claimed the right to write.
    fn must_be_claimed(&self) -> Result<(), String> {
        if self.held().as_ref().is_some_and(Lock::is_claimed) {
            return Ok(());
        }
        Err("this process has no right to write the archive".into())
    }
}

impl Drop for Held {
    /// Leaves the lock to the system, which takes it back when all threads of this process have ended:
    /// one may still be at a write that did not end in time.
    fn drop(&mut self) {
        std::mem::forget(self.held().take());
    }
}

impl Handover for Held {
    fn rest(&self, rest: bool) {
        self.store.rest(rest);
    }

    fn share(&self) -> io::Result<(OwnedFd, u64)> {
        self.with(Lock::share)
    }

    fn release(&self) -> Result<Mark, String> {
        self.store.release().map_err(|error| error.to_string())
    }

    fn offer(&self) -> io::Result<()> {
        self.with(Lock::offer)
    }

    fn claim(&self) -> io::Result<Claim> {
        Ok(match self.with(Lock::claim)? {
            hark_store_embedded::Claim::Mine => Claim::Mine,
            hark_store_embedded::Claim::Held => Claim::Held,
            hark_store_embedded::Claim::Late => Claim::Late,
        })
    }

    fn resume(&self) -> Result<(), String> {
        self.must_be_claimed()?;
        self.store.resume().map_err(|error| error.to_string())
    }

    fn given(&self) {
        drop(self.held().take());
    }

    fn take(&self) -> Result<(), String> {
        self.must_be_claimed()?;
        self.store.take().map_err(|error| error.to_string())
    }

    fn taken(&self) -> io::Result<()> {
        self.store.rest(false);
        self.with(|lock| lock.sign())
    }

    fn followed(&self, from: Option<Mark>) {
        self.store.followed(from);
    }

    fn end(&self) -> Mark {
        self.store.end()
    }

    fn follow(&self, to: Mark, each: &mut dyn FnMut(u64, &Record<'_>)) -> Result<(), String> {
        self.store.follow(to, self.records_max, each).map_err(|error| error.to_string())
    }
}
