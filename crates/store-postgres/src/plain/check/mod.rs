//! The steps of a check on one server.

pub(super) use steps::PlainCheck;

mod orphans;
mod parts;
pub(super) mod sql;
mod steps;
mod words;
