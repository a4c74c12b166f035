//! The steps of a check on one server.

pub(super) use steps::PlainCheck;

mod orphans;
mod parts;
mod steps;
mod words;
