//! The text side of full-text search. [`token`] divides a text into words, [`SearchText`] parses
//! the `search` of a client, and [`RecordWords`] determines whether and how well a record matches.
//! Nothing here does I/O, and nothing knows a network or a store.
#![doc = include_str!("../README.md")]

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
