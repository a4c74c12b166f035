//! The layout for a Citus cluster: the statements, and the steps of searches, counts and commits.
//! [`CitusLayout`] implements the layout.

pub(crate) use density::RecordDensity;
pub(crate) use layout::CitusLayout;
pub(crate) use shards::ShardReads;
#[cfg(test)]
pub(crate) use shards::ShardSet;
pub(crate) use statement::CitusStatement;
#[cfg(test)]
pub(crate) use statement::{ShardForm, ValueCount, WindowForm, WindowTable};
pub(crate) use workers::{exists, has_workers};

mod check;
mod commit;
mod count;
mod density;
mod finder;
mod layout;
mod places;
mod reader;
mod shards;
pub(crate) mod sql;
mod statement;
mod windows;
mod workers;
