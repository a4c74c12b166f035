//! The steps of a check and of a rebuild on one server.

pub(super) use repair::PlainRepair;
pub(super) use steps::PlainCheck;

mod orphans;
mod parts;
mod repair;
pub(super) mod sql;
mod steps;
mod words;
mod wrong_rows;
