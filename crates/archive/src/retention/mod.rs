//! Retention: deletes records that have expired, that are older than a rule allows, or that exceed
//! a bound.
//!
//! All deletes go through the writer in small batches, like any other write. So no other write
//! waits long, and a shutdown waits only for the current batch.
//!
//! Deletes by age depend on the machine's clock. If the clock wrongly showed the year 2099,
//! retention would delete all records to which a rule applies. So the clock is compared with the
//! archive's own history; see `trust`. Imported history that is older than a rule allows is kept
//! until a person allows its deletion; see `hold`. Bounds (on bytes and records) need no clock, and
//! also delete imported history.

mod hold;
mod policy;
mod sweep;
mod thread;
mod trust;

pub use hold::{HoldError, RetentionState};
pub use policy::{RetentionPolicy, RetentionRule};
pub use sweep::{CLOCK_IS_AHEAD, HISTORY_IS_HELD, RetentionError, SweepResult};
pub use thread::RetentionThread;

#[cfg(test)]
mod tests;
