//! Units of time.

/// Number of units of a message's timestamp in one second.
pub const NS_PER_S: u64 = 1_000_000_000;
