//! Counts matches in the database, with one statement that is made from the query's conditions.
//!
//! Labels are compared only by their terms, which are keyed 64-bit hashes. So an accidental
//! collision of two terms would make a count too high.

pub(crate) use run::{CountedRows, all_matches, count, explain, number, read};
pub(crate) use text::{CountStatements, StatementText, conditions, lists, signed};

mod run;
mod text;
