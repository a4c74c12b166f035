//! Signed events, and clients of relays.

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "client")]
pub mod compare;
mod events;
mod publisher;

pub use events::{contents, event, event_json, event_line, keys, note, pubkey, publication};
pub use publisher::publish;
