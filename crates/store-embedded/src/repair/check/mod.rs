//! The check of a shelf: verifies every checksum, and compares every posting list and every rank
//! with the records.

mod faults;
mod lists;
mod logs;
mod report;
mod run;
mod segments;

pub use report::{CheckReport, FileFault};
pub use run::check;
