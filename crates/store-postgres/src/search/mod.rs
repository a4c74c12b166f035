//! Runs queries: finds keys in ordered index ranges, then fetches the records of these keys.
//!
//! No transaction lasts longer than a statement. The next statement of a search continues after the
//! last key that was read. A record that was stored after the search began is left out, because its
//! sequence number is too high.

pub(crate) use asked::SqlQuery;
pub(crate) use pooled::start;
pub(crate) use sessions::{Sessions, StepSession};
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
