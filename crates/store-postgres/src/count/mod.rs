//! Counts matches in the database with one statement, which is built from the query's conditions.
//!
//! Labels are compared by their terms alone, so a chance collision of a keyed 64-bit hash would add
//! one to the count.

pub(crate) use run::{CountedRows, all_matches, count, explain, number, read};
pub(crate) use text::{CountStatements, StatementText, conditions, lists, signed};

mod run;
mod text;
