//! The layouts of a shelf's tables: a trait with all steps that differ between layouts, and the
//! shared statements. [`plain`](crate::plain) is the layout for one server, [`citus`](crate::citus) the layout
//! for a cluster.

pub(crate) use shared::{
    LOCK_TIMEOUT_MS, LOWER_VALUES, MigrationText, SharedStatement, lower_values,
};
pub(crate) use steps::{Layout, LayoutFacts};

mod shared;
mod steps;
#[cfg(test)]
mod tests;
