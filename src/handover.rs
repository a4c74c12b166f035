//! The embedded archive and its lock, as they go from one server to the next.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hark_archive::Record;
use hark_archive::store::Mark;
use hark_server::control::Handover;
use hark_store_embedded::{Embedded, Lock};

/// What a server has while it writes.
pub(crate) struct Held {
    store: Arc<Embedded>,
    // Dropped after the store. None once another server has it.
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
}

fn given() -> io::Error {
    io::Error::other("the archive's lock is another process's")
}

impl Handover for Held {
    fn rest(&self, rest: bool) {
        self.store.rest(rest);
    }

    fn lock(&self) -> io::Result<OwnedFd> {
        self.held().as_ref().ok_or_else(given)?.share()
    }

    fn release(&self) -> Result<Mark, String> {
        self.store.release().map_err(|error| error.to_string())
    }

    fn resume(&self) -> Result<(), String> {
        self.store.resume().map_err(|error| error.to_string())
    }

    fn given(&self) {
        drop(self.held().take());
    }

    fn take(&self) -> Result<(), String> {
        self.store.take().map_err(|error| error.to_string())
    }

    fn taken(&self) -> io::Result<()> {
        self.held().as_ref().ok_or_else(given)?.sign()?;
        self.store.rest(false);
        Ok(())
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
