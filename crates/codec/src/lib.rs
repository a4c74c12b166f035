//! Pure functions that decode and encode messages: no I/O, no clock and, with reused buffers, no
//! allocation.
#![doc = include_str!("../README.md")]

pub mod crypto;
pub mod hex;
pub mod id_sum;
pub mod nostr;
pub mod record;
pub mod scan;
pub mod waku;
pub mod whisper;
