//! Nostr (NIP-01): events that replace and delete each other.

pub mod admit;
pub mod query;
pub mod rules;
