//! Bytes to messages and back: pure, no I/O, no clock and, on reused buffers, no allocation.

pub mod crypto;
pub mod hex;
pub mod nostr;
pub mod record;
pub mod scan;
pub mod waku;
