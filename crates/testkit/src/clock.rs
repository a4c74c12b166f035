//! The wall clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970")
}

/// Seconds since 1970.
pub fn now_s() -> u64 {
    now().as_secs()
}

/// Number of nanoseconds since 1970.
pub fn now_ns() -> u64 {
    now().as_nanos() as u64
}
