//! Whether the disk has space for the writer, as the last batches and checks have found.

use std::sync::atomic::{AtomicBool, Ordering};

use hark_archive::CommitError;
use parking_lot::Mutex;

/// Callback to call once the shelf can be written again; the callback wakes the delivery of new
/// records.
type WakeDelivery = Box<dyn Fn() + Send>;

/// The state of the disk's space.
#[derive(Default)]
pub(crate) struct DiskSpace {
    /// The reason why a batch was refused for lack of space; `None` once the disk has space again.
    lacking: Mutex<Option<String>>,
    /// Whether a requested compaction is running.
    compacting: AtomicBool,
    wake: Mutex<Option<WakeDelivery>>,
}

impl DiskSpace {
    /// The reason why batches are refused for lack of space; `None` while batches are accepted.
    pub(crate) fn lacking(&self) -> Option<String> {
        self.lacking.lock().clone()
    }

    /// Records that a batch is refused for lack of space, and returns the error.
    pub(super) fn lacks(&self, why: &str) -> CommitError {
        let words = format!("the disk is full: {why}");
        *self.lacking.lock() = Some(words.clone());
        CommitError::Unavailable(words)
    }

    /// Records that the disk has space again, and wakes the delivery of new records.
    pub(super) fn suffices(&self) {
        *self.lacking.lock() = None;
        if let Some(wake) = &*self.wake.lock() {
            wake();
        }
    }

    /// Sets the callback to call once the shelf can be written again.
    pub(crate) fn set_wake(&self, wake: WakeDelivery) {
        *self.wake.lock() = Some(wake);
    }

    /// Whether a requested compaction is running.
    pub(super) fn is_compacting(&self) -> bool {
        self.compacting.load(Ordering::Relaxed)
    }

    /// Records whether a requested compaction is running.
    pub(crate) fn set_compacting(&self, compacting: bool) {
        self.compacting.store(compacting, Ordering::Relaxed);
    }
}
