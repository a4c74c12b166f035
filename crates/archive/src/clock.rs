//! The clock of a shelf. Code gets the clock as an argument, so tests can set the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The source of a shelf's time.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The machine's clock.
    #[default]
    System,
    /// A clock that a test sets.
    Fake(Arc<AtomicU64>),
}

impl Clock {
    /// Makes a clock that shows `now_s` until [`Clock::set`] is called.
    pub fn fake(now_s: u64) -> Self {
        Self::Fake(Arc::new(AtomicU64::new(now_s)))
    }

    /// Sets a fake clock. The machine's clock stays unchanged.
    pub fn set(&self, now_s: u64) {
        if let Self::Fake(now) = self {
            now.store(now_s, Ordering::Relaxed);
        }
    }

    /// Returns the seconds since 1970.
    pub fn now_s(&self) -> u64 {
        match self {
            Self::System => {
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
            }
            Self::Fake(now) => now.load(Ordering::Relaxed),
        }
    }

    /// Returns the nanoseconds since 1970.
    pub fn now_ns(&self) -> u64 {
        match self {
            Self::System => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
            }
            Self::Fake(_) => self.now_s().saturating_mul(1_000_000_000),
        }
    }
}
