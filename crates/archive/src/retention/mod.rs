//! Retention: deletes records that have expired, that exceed the age of a rule, or that exceed a
//! bound.
//!
//! All deletes go through the writer in small batches, like any other write. So no other write
//! waits long, and a stop takes effect after the current batch.
//!
//! Deletes by age depend on the machine's clock. A machine that starts with a clock in 2099 would
//! delete all records that a rule names. So the clock is compared with the archive's own history;
//! see `trust`. History that was brought from elsewhere and is older than a rule allows is not
//! deleted until a person allows the deletion; see `hold`. Deletes for a bound need no clock, and
//! spare no history.

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
