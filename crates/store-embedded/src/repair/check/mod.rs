//! The check of a shelf: verifies every checksum, and compares all rows and posting lists with the
//! records.

mod faults;
mod lists;
mod logs;
mod report;
mod run;
mod segments;

pub use report::{CheckReport, FileFault};
pub use run::check;
