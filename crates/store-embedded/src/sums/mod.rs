//! Sums of ids over ranges of time, with which two archives find the records that each archive
//! lacks.
//!
//! A segment has the ids of its rows in order, and sums of these ids (`segment`). Some rows must
//! not be in such a sum: deleted rows, rows of kinds that a reader may not see, and expired
//! records. These rows are kept in memory with their own sums, which are subtracted (`excluded`). A
//! head has no sums of all its rows; the visible rows are kept in memory in order (`head`). The
//! first question for sums makes both lists, and every later deletion updates both. So a range is
//! summed without visiting its rows, and no record is read.

mod excluded;
mod head;
mod keys;
mod segment;

pub(crate) use excluded::ExcludedRows;
pub(crate) use head::SummedHead;
pub(crate) use segment::SummedSegment;
