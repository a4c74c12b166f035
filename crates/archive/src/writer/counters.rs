//! Counters and state of the writer.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::health::WriteHealth;
use crate::meter::{Counter, Histogram};

/// Counters of the writer since its start, and its current state.
#[derive(Debug, Default)]
pub struct WriterCounters {
    /// Durations of the commits of batches.
    pub batches: Histogram,
    /// Number of writes in these batches.
    pub writes: Counter,
    /// Why the writer has stopped, once the store takes no more writes.
    pub stopped: OnceLock<String>,
    health: Mutex<WriteHealth>,
    /// When the commit in progress began.
    committing: Mutex<Option<Instant>>,
}

impl WriterCounters {
    /// Returns the duration of the commit in progress so far; `None` if no commit is in progress.
    pub fn committing_for(&self) -> Option<Duration> {
        let since = *self.committing.lock();
        since.map(|since| since.elapsed())
    }

    /// Returns why the last batch failed, if the next batch may succeed. Only a successful commit
    /// ends this state; the writer also commits an empty batch from time to time.
    pub fn unavailable(&self) -> Option<String> {
        self.health.lock().trouble().cloned()
    }

    pub(super) fn health(&self) -> MutexGuard<'_, WriteHealth> {
        self.health.lock()
    }

    pub(super) fn committing(&self, since: Option<Instant>) {
        *self.committing.lock() = since;
    }
}
