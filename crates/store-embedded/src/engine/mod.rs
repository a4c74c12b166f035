//! The engine of a shelf that this process has opened.
//!
//! Read in this order: `shelf` (the four parts), `files`, `writer` and `current_view` (three of
//! these parts; the fourth is in `maintenance::jobs`), `open` and `load` (start and recovery),
//! `embedded_store` (the implementation of `Store`), `commit` and `apply` (the only writer),
//! `search`, and `follow` (handing over to another process).

mod apply;
pub(crate) mod commit;
pub(crate) mod current_view;
pub(crate) mod embedded_store;
pub(crate) mod faults;
pub(crate) mod files;
pub(crate) mod follow;
pub(crate) mod heads;
mod id_ranges;
mod label_values;
mod load;
mod open;
pub(crate) mod open_error;
pub(crate) mod retention_notes;
mod rule_search;
mod search;
pub(crate) mod shelf;
pub(crate) mod shelf_dir;
pub(crate) mod shelf_view;
mod stats;
pub(crate) mod tail;
pub(crate) mod writer;
