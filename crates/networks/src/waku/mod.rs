//! Waku (RFC 13/WAKU2-STORE): messages that are all kept, with times in nanoseconds.

pub mod admit;
pub mod json;
pub mod retention;

/// Units of time of a message's timestamp that a second has.
pub const NS_PER_S: u64 = 1_000_000_000;
