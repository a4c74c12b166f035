//! The layout for one server: the statements, and the steps of searches, counts and commits.
//! [`PlainLayout`] implements the layout.

#[cfg(test)]
pub(crate) use label_storage::LabelStorage;
pub(crate) use layout::{PlainLayout, plain_layout};
pub(crate) use listed_sizes::ListedSizes;
pub(crate) use parts::{PartMaking, make_parts};
pub(crate) use retire::oldest_part;
pub(crate) use slim::{make_new_slim, make_slim};
pub(crate) use statement::PlainStatement;
#[cfg(test)]
pub(crate) use statement::{IndexPage, WindowRows};

mod by_kind;
mod check;
mod choice;
mod commit;
mod count;
mod finder;
mod label_storage;
mod layout;
mod listed_sizes;
mod pages;
pub(crate) mod part_sql;
mod parts;
mod plan;
mod range_sql;
mod retire;
mod slim;
pub(crate) mod sql;
mod statement;
mod term_windows;
mod time_windows;
mod walk;
pub(crate) mod word_count;
mod word_sql;
mod word_walk;
mod words;
