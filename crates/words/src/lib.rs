//! The text side of full-text search. [`token`] divides a text into words, [`SearchText`] parses
//! the `search` of a client, and [`RecordWords`] determines whether and how well a record matches.
//! Every store and the live index use the same functions, so that all of them find the same records
//! in the same order.
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

/// The version of the rules that divide texts into words and give words their classes. Records that
/// were indexed with another version must be indexed anew.
pub const VERSION: u64 = 2;
