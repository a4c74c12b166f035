//! Maintains the index of words. Searches walk this index in `plain/word_walk.rs`.

pub(crate) mod index;
pub(crate) mod mark;
pub(crate) mod rows;
pub(crate) mod state;
