//! Runs queries: finds keys in ordered index ranges, then fetches the records with these keys.
//!
//! No transaction outlives a statement. A search resumes behind the last key that it read. Records
//! stored after the search began are recognised by their sequence numbers and left out.

pub(crate) use asked::SqlQuery;
pub(crate) use pooled::start;
pub(crate) use sessions::Sessions;
pub(crate) use several::Finders;
pub(crate) use state::SearchState;
pub(crate) use steps::SearchSteps;

pub(crate) mod asked;
mod finder;
pub(crate) mod found;
mod pooled;
pub(crate) mod recent;
mod sessions;
mod several;
mod state;
mod steps;
