//! Sums of ids over ranges of time. By comparing these sums, two archives find the records that
//! only one archive has.
//!
//! A segment has the ids of its rows in order, and sums of these ids (`segment`). Some rows must
//! not count: deleted rows, rows of kinds that a reader may not see, and expired rows. These rows
//! are kept in memory, and their sums are subtracted (`excluded`). A head has no sums of its own,
//! so its visible rows are kept in memory in order (`head`). The first query for sums makes both
//! lists, and every later deletion changes both lists. So a sum over a range visits none of its
//! rows and reads no record.

mod excluded;
mod head;
mod keys;
mod segment;

pub(crate) use excluded::ExcludedRows;
pub(crate) use head::SummedHead;
pub(crate) use segment::SummedSegment;
