//! The index of words: what keeps it in step with the records. Searches walk it in `search/words.rs`.

pub(crate) mod index;
pub(crate) mod mark;
pub(crate) mod rows;
pub(crate) mod state;
