//! The nodes of a Citus cluster: their state, and the work of adding, draining or replacing a node.
//!
//! All work is done in small steps. Each step calls one of Citus' own functions on the coordinator.
//! Progress is recorded only in Citus' own tables. So interrupted work continues when the same
//! command runs again: the command reads the state of the cluster and does the missing steps.
//!
//! Read `nodes` first (the nodes of a cluster), then `coordinator` (connections to nodes). `events`
//! and `work` report the work and can stop it between two steps. `watched` can stop it within a
//! step. `checks` and `facts` have the requirements, and `plan` and `moves` move shards. Each of
//! the other files does one kind of work.

use crate::address::AddressError;
use crate::error::StatementError;

pub use add::{AddOptions, AddResult, add};
pub use coordinator::Coordinator;
pub use drain::{DrainResult, drain};
pub use events::{CheckVerdict, ClusterCheck, ClusterEvent, ClusterStep, MoveProgress, MoveState};
pub use facts::{NodeDisk, NodeFacts};
pub use moves::MoveTotals;
pub use nodes::{ClusterNode, NodeAddress, NodeAddressError, NodeRole};
pub use plan::TransferMode;
pub use rebalance::rebalance;
pub use replace::{ReplaceOptions, ReplaceResult, replace};
pub use standby::{NodeStandbys, StandbySetup, StandbyState, WalSlot, standbys};
pub use status::{ClusterStatus, FailedJob, NodeDetails, NodeStatus, RunningMove, status};
pub use watched::StatementWatch;
pub use work::ClusterWork;

mod add;
mod checks;
mod coordinator;
mod drain;
mod events;
mod facts;
mod moves;
mod nodes;
mod plan;
mod rebalance;
mod replace;
mod standby;
mod status;
mod successor;
mod watched;
mod work;

/// Why work on a cluster was not done or not finished.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The URL cannot be used.
    #[error("the address of the database cannot be used: {0}")]
    Address(#[from] AddressError),
    /// The database is not the coordinator of a cluster.
    #[error("{0}")]
    NotCluster(String),
    /// The coordinator is unreachable.
    #[error("the coordinator does not answer: {0}")]
    Away(String),
    /// The coordinator refused a statement.
    #[error("{0}")]
    Database(String),
    /// Requirements are not met; each was reported.
    #[error("{0} of the requirements above {are} not met; nothing was changed. Mend what is said \
             there and run the command again", are = if *.0 == 1 { "is" } else { "are" })]
    Requirements(usize),
    /// The requested work would do harm, or is impossible.
    #[error("{0}")]
    Refused(String),
    /// The caller asked to stop. All steps that were begun are complete.
    #[error("stopped between two steps; what is done is complete. Run the command again to go on")]
    Interrupted,
    /// The caller asked to stop, and a part of the work may go on without this process.
    #[error("stopped; {0}. Run the command again to go on")]
    Stopped(String),
}

impl ClusterError {
    /// Refuses with `words`, unless the statement failed because the caller asked to stop.
    pub(crate) fn refused(
        fault: StatementError,
        words: impl FnOnce(StatementError) -> String,
    ) -> Self {
        match fault {
            fault @ StatementError::Stopped(_) => fault.into(),
            fault => Self::Refused(words(fault)),
        }
    }
}

impl From<StatementError> for ClusterError {
    fn from(fault: StatementError) -> Self {
        match fault {
            StatementError::Away(why) => Self::Away(why),
            StatementError::Late(_) => Self::Away(fault.to_string()),
            StatementError::Worker(fault) => Self::from(*fault),
            StatementError::Stopped(None) => Self::Interrupted,
            StatementError::Stopped(Some(may_run)) => Self::Stopped(may_run),
            fault => Self::Database(fault.to_string()),
        }
    }
}
