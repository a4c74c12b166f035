//! Whether the disk has space for the writer, according to the last batches and checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hark_archive::CommitError;
use parking_lot::Mutex;

/// The state of the disk's space.
#[derive(Default)]
pub(crate) struct DiskSpace {
    /// The reason why a batch was refused for lack of space; `None` once the disk has space again.
    lacking: Mutex<Option<String>>,
    /// Whether a requested compaction is running.
    compacting: AtomicBool,
    /// Number of free bytes without which the last batch was refused; 0 once so many bytes are
    /// free.
    wanted: AtomicU64,
    /// Number of bytes that the running job has written. The job's files replace other files, or
    /// are removed after a failure, so the disk gets about as many bytes back.
    borrowed: Arc<AtomicU64>,
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

    /// Notes the number of free bytes without which a batch was refused, or 0.
    pub(super) fn set_wanted(&self, bytes: u64) {
        self.wanted.store(bytes, Ordering::Relaxed);
    }

    /// Number of free bytes without which the last batch was refused; 0 once so many bytes are
    /// free.
    pub(super) fn wanted_bytes(&self) -> u64 {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Notes that the disk has space again.
    pub(super) fn suffices(&self) {
        *self.lacking.lock() = None;
    }

    /// Whether a requested compaction is running.
    pub(super) fn is_compacting(&self) -> bool {
        self.compacting.load(Ordering::Relaxed)
    }

    /// Begins the count of the bytes that a job writes, and returns the count.
    pub(super) fn begin_job(&self) -> Arc<AtomicU64> {
        self.end_job();
        Arc::clone(&self.borrowed)
    }

    /// Notes that the files of the last job have replaced other files or were removed.
    pub(crate) fn end_job(&self) {
        self.borrowed.store(0, Ordering::Relaxed);
    }

    /// Number of bytes that the running job has written.
    pub(super) fn borrowed_bytes(&self) -> u64 {
        self.borrowed.load(Ordering::Relaxed)
    }

    /// Notes whether a requested compaction is running.
    pub(crate) fn set_compacting(&self, compacting: bool) {
        self.compacting.store(compacting, Ordering::Relaxed);
    }
}
