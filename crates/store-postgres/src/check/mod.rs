//! The check of a shelf (`hark check`): compares each record with its message, and all other rows
//! with the records. Nothing is written, except in a rebuild.
//!
//! 1. [`run`] reads all records, some hundred at a time. [`record`] compares the columns of a
//!    record with its bytes, and derives the other rows that the record must have.
//! 2. [`page`] compares these rows with the database, for all records of a page at once.
//! 3. [`totals`] compares the counters that commits maintain, and looks for rows without a record.
//!
//! On one server, one snapshot contains all of these rows, so processes can commit during the
//! check. A cluster has no snapshot of all nodes. There, rows that seem faulty are compared again
//! while no process can commit ([`steps::CheckSteps::is_snapshot`]).
//!
//! In a rebuild, [`repair`] repairs the faults at once, on a separate session. While no process can
//! commit, the suspected records are compared again, and one step of [`repair_steps`] repairs each
//! sort of fault.

pub(crate) use record::{ExpectedRecord, IndexedTexts, LabelRows, PageRows};
pub(crate) use repair::Repairer;
pub(crate) use repair_steps::{RepairSteps, WrongRows};
pub use report::{DatabaseCheck, DatabaseFault, FaultSort, Remedy};
pub use run::{CheckProgress, MessageCheck, check};
pub(crate) use run::{CheckedShelf, STATEMENT_TIMEOUT, run};

mod page;
mod record;
mod repair;
mod repair_steps;
mod report;
mod run;
pub(crate) mod steps;
mod totals;
