//! The check of a shelf (`hark check`): compares each record with its message, and all other rows
//! with the records. Nothing is written.
//!
//! 1. [`run`] reads all records, some hundred at a time. [`record`] compares the columns of a
//!    record with its bytes, and derives the other rows that the record must have.
//! 2. [`page`] compares these rows with the database, for all records of a page at once.
//! 3. [`totals`] compares the numbers that commits keep, and looks for rows without a record.
//!
//! On one server, all of this happens in one snapshot, so commits go on meanwhile. A cluster has no
//! snapshot of all nodes. There, rows that seem faulty are compared once more while no process can
//! commit ([`steps::CheckSteps::is_snapshot`]).

pub(crate) use record::{ExpectedRecord, IndexedTexts, LabelRows, PageRows};
pub use report::{DatabaseCheck, DatabaseFault, FaultSort, Remedy};
pub use run::{CheckProgress, MessageCheck, check};

mod page;
mod record;
mod report;
mod run;
pub(crate) mod steps;
mod totals;
