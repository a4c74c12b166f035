//! Sums of ids over ranges of time, by which two archives find out what each of them lacks.
//!
//! A segment has the ids of its rows in their order, and sums of them, written with it (`segment`). What
//! such a sum must not have (deleted rows, kinds that a reader may not see, expired records) is
//! taken away: those rows are kept in memory, with sums of their own (`excluded`). A head has no sums of
//! all its rows; those that readers see are kept in memory in order (`head`). Both are made when sums are
//! first asked for, and kept up by every deletion from then on. So a range is summed without
//! visiting it, and no record is read.

mod excluded;
mod head;
mod keys;
mod ranges;

pub(crate) use excluded::ExcludedRows;
pub(crate) use head::SummedHead;
