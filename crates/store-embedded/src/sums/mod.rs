//! Sums of ids over ranges of time. By these sums, two archives find the records that one of them
//! lacks.
//!
//! A segment has the ids of its rows in order, and sums of these ids (`segment`). Some rows must
//! not be in such a sum: deleted rows, rows of kinds that a reader may not see, and expired
//! records. These rows are kept in memory, and their own sums are subtracted (`excluded`). A head
//! has no such sums. Its visible rows are kept in memory in order (`head`). The first query for
//! sums makes both lists, and every later deletion changes both lists. So a sum over a range visits
//! none of its rows and reads no record.

mod excluded;
mod head;
mod keys;
mod segment;

pub(crate) use excluded::ExcludedRows;
pub(crate) use head::SummedHead;
pub(crate) use segment::SummedSegment;
