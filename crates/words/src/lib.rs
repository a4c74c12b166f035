//! The part of full-text search that deals with texts. [`token`] divides a text into words,
//! [`SearchText`] parses the `search` field of a client, and [`RecordWords`] decides whether and
//! how well a record matches. Every store and the live index use the same functions, so that all of
//! them find the same records in the same order.
//!
//! Nothing in this crate does I/O or knows a network or a store.

mod fold;
mod language;
mod phrases;
mod record;
mod search_text;
pub mod token;

pub use record::{CLASS_MAX, Part, RecordWords, TOKENS_MAX, WeighedWord, WeighedWords};
pub use search_text::{NeededWord, SearchText, SearchTextError};

/// The version of the rules that divide texts into words and give words their classes. If records
/// were indexed with another version, their words must be indexed again.
pub const VERSION: u64 = 2;
