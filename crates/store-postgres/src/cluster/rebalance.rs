//! Spreads shards evenly over the nodes.

use super::ClusterError;
use super::checks::{cluster_for_moves, space_for};
use super::coordinator::Coordinator;
use super::moves::{MoveTotals, move_all, report_planned};
use super::plan::{PlanGoal, TransferMode, plan};
use super::work::ClusterWork;

/// Moves shards until they are spread evenly, according to Citus' default strategy.
///
/// Reads and writes go on. If a requirement is not met, nothing is moved.
pub fn rebalance(
    coordinator: &mut Coordinator,
    mode: TransferMode,
    work: &mut ClusterWork<'_>,
) -> Result<MoveTotals, ClusterError> {
    coordinator.lock()?;
    let nodes = coordinator.nodes()?;
    let checks = cluster_for_moves(coordinator, &nodes, mode)?;
    work.require(checks)?;
    balance(coordinator, mode, work)
}

/// Moves shards until they are spread evenly. The caller must have checked all requirements except
/// disk space.
pub(crate) fn balance(
    coordinator: &mut Coordinator,
    mode: TransferMode,
    work: &mut ClusterWork<'_>,
) -> Result<MoveTotals, ClusterError> {
    let moves = plan(coordinator, PlanGoal::Balance)?;
    work.require(space_for(coordinator, &moves))?;
    if work.dry_run {
        report_planned(&moves, work);
        return Ok(MoveTotals::default());
    }
    move_all(coordinator, PlanGoal::Balance, mode, work)
}
