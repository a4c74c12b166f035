//! Checking a shelf: every checksum, and every posting list and rank against the records.

mod faults;
mod lists;
mod logs;
mod report;
mod run;
mod segments;

pub use report::{CheckReport, FileFault};
pub use run::check;
