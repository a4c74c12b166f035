//! The layouts of a shelf's tables: a trait for all steps in which layouts differ, and the
//! statements that layouts share. [`plain`](crate::plain) is the layout for one server, and
//! [`citus`](crate::citus) is the layout for a cluster.

pub(crate) use shared::{
    LOCK_TIMEOUT_MS, LOWER_VALUES, MigrationText, SharedStatement, lower_values,
};
pub(crate) use steps::{Layout, LayoutFacts};

mod shared;
mod steps;
#[cfg(test)]
mod tests;
