//! What has been done since the start, counted. Plain numbers; the page for Prometheus reads them.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that goes up, or up and down.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// One more.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// One less, for what goes up and down.
    pub fn sub(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    /// How many.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Connections that were made.
    pub connections: Count,
    /// Connections that are open.
    pub connections_open: Count,
    /// Connections that were closed at once, being one too many.
    pub connections_refused: Count,
    /// Connections that were closed for taking too little.
    pub slow_closed: Count,
    /// Messages that came in.
    pub messages_in: Count,
    /// Bytes of them.
    pub bytes_in: Count,
    /// Messages that went out.
    pub messages_out: Count,
    /// Bytes of them.
    pub bytes_out: Count,
    /// Events that came in.
    pub events: Count,
    /// Events that were kept, or passed on if ephemeral.
    pub events_kept: Count,
    /// Events that were here already.
    pub events_duplicate: Count,
    /// Events that were refused.
    pub events_refused: Count,
    /// Nanoseconds spent on checking signatures.
    pub verify_ns: Count,
    /// REQs that were answered to the end.
    pub questions: Count,
    /// REQs and COUNTs that were refused or given up.
    pub questions_refused: Count,
    /// COUNTs that were answered.
    pub counts: Count,
    /// Rows visited for them.
    pub rows_visited: Count,
    /// Records told.
    pub records_told: Count,
}
