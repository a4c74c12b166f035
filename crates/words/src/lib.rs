//! Full-text search, as far as it concerns text alone: how a text becomes words ([`token`]), what a
//! client may write into `search` ([`SearchText`]), and which records match it, how well
//! ([`RecordWords`]). Every store and the live index use the same functions, so that all of them find
//! the same records in the same order.
//!
//! Nothing here does I/O, and nothing knows a network or a store.

mod fold;
mod language;
mod phrases;
mod record;
mod search_text;
pub mod token;

pub use record::{CLASS_MAX, Part, RecordWords, TOKENS_MAX, WeighedWord, WeighedWords};
pub use search_text::{NeededWord, SearchText, SearchTextError};

/// The version of how texts become words and words get their classes. What was indexed by another
/// one is to be indexed anew.
pub const VERSION: u64 = 2;
