//! Whether the disk has space for the writer, according to the last batches and checks.

use std::sync::atomic::{AtomicBool, Ordering};

use hark_archive::CommitError;
use parking_lot::Mutex;

/// The state of the disk's space.
#[derive(Default)]
pub(crate) struct DiskSpace {
    /// The reason why a batch was refused for lack of space; `None` once the disk has space again.
    lacking: Mutex<Option<String>>,
    /// Whether a requested compaction is running.
    compacting: AtomicBool,
}

impl DiskSpace {
    /// Why batches are refused for lack of space; `None` while batches are accepted.
    pub(crate) fn lacking(&self) -> Option<String> {
        self.lacking.lock().clone()
    }

    /// Notes that a batch is refused for lack of space, and returns the error.
    pub(super) fn lacks(&self, why: &str) -> CommitError {
        let words = format!("the disk is full: {why}");
        *self.lacking.lock() = Some(words.clone());
        CommitError::Unavailable(words)
    }

    /// Notes that the disk has space again.
    pub(super) fn suffices(&self) {
        *self.lacking.lock() = None;
    }

    /// Whether a requested compaction is running.
    pub(super) fn is_compacting(&self) -> bool {
        self.compacting.load(Ordering::Relaxed)
    }

    /// Notes whether a requested compaction is running.
    pub(crate) fn set_compacting(&self, compacting: bool) {
        self.compacting.store(compacting, Ordering::Relaxed);
    }
}
