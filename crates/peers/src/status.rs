//! The state of a stream, for people and metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::meter::SyncMeter;

/// The state of a stream, for people and metrics.
#[derive(Debug)]
pub struct StreamStatus {
    /// Counters of the stream.
    pub meter: Arc<SyncMeter>,
    pub(crate) connected: AtomicBool,
    in_step: AtomicBool,
    pub(crate) connections: AtomicU64,
    pub(crate) waiting: AtomicU64,
    pub(crate) last_error: Mutex<Option<String>>,
    /// The last time at which the archive and the relay were in step, or the start of the stream.
    left_step: Mutex<std::time::Instant>,
}

impl Default for StreamStatus {
    fn default() -> Self {
        Self {
            meter: Arc::default(),
            connected: AtomicBool::new(false),
            in_step: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            last_error: Mutex::default(),
            left_step: Mutex::new(std::time::Instant::now()),
        }
    }
}

impl StreamStatus {
    /// Whether the relay is connected.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Whether the archive and the relay are in step, that is, no event was missed since their last
    /// comparison.
    pub fn is_in_step(&self) -> bool {
        self.in_step.load(Ordering::Relaxed)
    }

    /// Number of connections that were made.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Seconds since the archive and the relay were last in step; 0 while both are in step.
    pub fn behind_s(&self) -> u64 {
        if self.is_in_step() { 0 } else { self.left_step.lock().elapsed().as_secs() }
    }

    pub(crate) fn set_in_step(&self, in_step: bool) {
        if self.in_step.swap(in_step, Ordering::Relaxed) && !in_step {
            *self.left_step.lock() = std::time::Instant::now();
        }
    }

    /// Number of events that wait to be sent.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Why the last connection ended or failed.
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }
}
