//! The text side of full-text search. [`token`] divides a text into words, [`SearchText`] parses
//! the `search` of a client, and [`RecordWords`] determines whether and how well a record matches.
//! The crate does no I/O, and knows no network and no store.
#![doc = include_str!("../README.md")]

mod fold;
mod language;
mod phrases;
mod record;
mod search_text;
pub mod token;

pub use record::{CLASS_MAX, Part, RecordWords, TOKENS_MAX, WeighedWord, WeighedWords};
pub use search_text::{NeededWord, SearchText, SearchTextError};

/// The version of the rules by which texts are divided into words and words get their classes. The
/// words of records that were indexed with another version must be indexed again.
pub const VERSION: u64 = 3;
