//! Holds imported, adopted or copied records that rules by age would delete at once. The records
//! are held until a person allows their deletion.

use std::sync::atomic::{AtomicBool, Ordering};

use hark_codec::record::Record;
use parking_lot::{Mutex, MutexGuard};

use super::policy::RetentionPolicy;
use crate::clock::Clock;
use crate::store::{CommitError, RetentionNote, SearchError, Store};

/// The decisions that retention leaves to a person, and the history that retention must not delete.
/// Imports and status reports share this state.
#[derive(Debug, Default)]
pub struct RetentionState {
    /// The time up to which history is held; `None` if this process knows of no hold. The mutex
    /// stays locked while the time is written to the store.
    held_until: Mutex<Option<u64>>,
    /// Locked while rules delete records that are not held. A new hold waits for this lock.
    sweeping: Mutex<()>,
    /// Whether this process has already checked if the store is new.
    has_begun: AtomicBool,
    clock_doubted: AtomicBool,
    history_held: AtomicBool,
}

impl RetentionState {
    /// Returns whether rules delete no records by age because the clock is not trusted.
    pub fn is_clock_doubted(&self) -> bool {
        self.clock_doubted.load(Ordering::Relaxed)
    }

    /// Returns whether any records are held that rules would otherwise delete.
    pub fn is_history_held(&self) -> bool {
        self.history_held.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, clock_doubted: bool, history_held: bool) {
        self.clock_doubted.store(clock_doubted, Ordering::Relaxed);
        self.history_held.store(history_held, Ordering::Relaxed);
    }

    /// Must be called before an imported record is put. If rules would delete the record at once,
    /// extends the hold to all records that these rules would currently delete. Returns whether the
    /// record is held.
    pub fn prepare_import(
        &self,
        policy: &RetentionPolicy,
        store: &dyn Store,
        clock: &Clock,
        record: &Record<'_>,
    ) -> Result<bool, HoldError> {
        if !self.has_begun.load(Ordering::Relaxed) {
            let is_new =
                store.note(RetentionNote::ClockTrusted)?.is_none() && store.stats().records == 0;
            if is_new {
                // A new archive comes into use now, even if the imported records are older, so its
                // first trusted time is now.
                store.set_note(RetentionNote::ClockTrusted, Some(clock.now_s()))?;
            }
            self.has_begun.store(true, Ordering::Relaxed);
        }
        if policy.delete_brought {
            return Ok(false);
        }
        let Some(until) = policy.would_delete(record, clock.now_s()) else { return Ok(false) };
        let is_held = self.held_until.lock().is_some_and(|until| record.time() <= until);
        if !is_held {
            let _waited = self.sweeping.lock();
            self.hold(store, until)?;
        }
        Ok(true)
    }

    /// Makes new holds wait until the guard is dropped, so that the caller can delete records that
    /// are not held.
    pub(super) fn sweep(&self) -> MutexGuard<'_, ()> {
        self.sweeping.lock()
    }

    /// Keeps rules from deleting records whose time is at most `until`.
    pub(super) fn hold(&self, store: &dyn Store, until: u64) -> Result<(), HoldError> {
        let mut held_until = self.held_until.lock();
        let until = until.max(store.note(RetentionNote::HeldUntil)?.unwrap_or(0));
        store.set_note(RetentionNote::HeldUntil, Some(until))?;
        *held_until = Some(until);
        Ok(())
    }

    /// Lets rules delete the held records.
    pub(super) fn release(&self, store: &dyn Store) -> Result<(), HoldError> {
        let mut held_until = self.held_until.lock();
        *held_until = None;
        Ok(store.set_note(RetentionNote::HeldUntil, None)?)
    }
}

/// Why a hold could not be read or stored.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// The hold could not be read.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// The hold could not be stored.
    #[error(transparent)]
    Commit(#[from] CommitError),
}
