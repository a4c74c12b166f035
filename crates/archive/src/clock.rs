//! Time, handed in, so that tests can turn it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where a shelf gets its time from.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The machine's clock.
    #[default]
    System,
    /// A clock that a test sets.
    Fake(Arc<AtomicU64>),
}

impl Clock {
    /// A clock that stands at `now_s` until it is set.
    pub fn fake(now_s: u64) -> Self {
        Self::Fake(Arc::new(AtomicU64::new(now_s)))
    }

    /// Sets a fake clock; the machine's is left alone.
    pub fn set(&self, now_s: u64) {
        if let Self::Fake(now) = self {
            now.store(now_s, Ordering::Relaxed);
        }
    }

    /// Seconds since 1970.
    pub fn now_s(&self) -> u64 {
        match self {
            Self::System => {
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
            }
            Self::Fake(now) => now.load(Ordering::Relaxed),
        }
    }

    /// Nanoseconds since 1970.
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
