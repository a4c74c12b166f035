//! The layout for one server: the statements, and the steps of searches, counts and commits.
//! [`PlainLayout`] implements the layout.

pub(crate) use layout::PlainLayout;
pub(crate) use parts::make_parts;
pub(crate) use retire::oldest_part;
pub(crate) use statement::PlainStatement;

mod by_kind;
mod check;
mod choice;
mod commit;
mod count;
mod finder;
mod layout;
mod pages;
pub(crate) mod part_sql;
mod parts;
mod plan;
mod range_sql;
mod retire;
pub(crate) mod sql;
mod statement;
mod time_windows;
mod walk;
pub(crate) mod word_count;
mod word_sql;
mod word_walk;
mod words;
