//! Moves every shard off a node, and removes the node.

use super::ClusterError;
use super::checks::{cluster_for_moves, space_for};
use super::coordinator::Coordinator;
use super::events::ClusterCheck;
use super::moves::{MoveTotals, clean_up, move_all, report_planned};
use super::nodes::{ClusterNode, NodeAddress, NodeRole};
use super::plan::{PlanGoal, TransferMode, may_have_shards, plan_of_drain};
use super::work::ClusterWork;

/// The result of a drain.
#[derive(Clone, Copy, Debug)]
pub struct DrainResult {
    /// The groups of shards that this run moved.
    pub totals: MoveTotals,
    /// Whether the node was removed. False in a dry run.
    pub is_removed: bool,
}

/// Moves every shard off a node while reads and writes go on, and then removes the node from the
/// cluster.
///
/// First the node is marked to get no new shards. Then the shards move, one group after another.
/// Finally the node is removed. If a drain is interrupted, the next run continues the drain.
pub fn drain(
    coordinator: &mut Coordinator,
    address: &NodeAddress,
    mode: TransferMode,
    work: &mut ClusterWork<'_>,
) -> Result<DrainResult, ClusterError> {
    coordinator.lock()?;
    let node = coordinator.node(address)?;
    match node.role {
        NodeRole::Worker => {}
        NodeRole::Coordinator => {
            return Err(ClusterError::Refused(format!(
                "{address} is the coordinator, which every query goes through; it cannot be \
                 drained. Nothing was changed"
            )));
        }
        NodeRole::Standby => {
            return Err(ClusterError::Refused(format!(
                "{address} is a standby and has no shards of its own; forget it with SELECT \
                 citus_remove_node('{}', {}) on the coordinator. Nothing was changed",
                address.host, address.port
            )));
        }
    }
    let nodes = coordinator.nodes()?;
    let mut checks = vec![check_shard_targets(&node, &nodes)];
    checks.push(ClusterCheck::of(
        Some(address),
        "active",
        node.is_active,
        if node.is_active { "yes" } else { "no" },
        "Citus does not use it: SELECT citus_activate_node(host, port) on the coordinator, or give \
         its place to its standby",
    ));
    checks.extend(cluster_for_moves(coordinator, &nodes, mode)?);
    work.require(checks)?;
    let moves = plan_of_drain(coordinator, &node)?;
    work.require(space_for(coordinator, &moves))?;
    if node.may_have_shards {
        work.step("close", format!("{address} gets no new shards"), || {
            may_have_shards(coordinator, address, false)
        })?;
    }
    if work.dry_run {
        report_planned(&moves, work);
        work.step("remove", format!("{address} is removed from the cluster"), || Ok(()))?;
        return Ok(DrainResult { totals: MoveTotals::default(), is_removed: false });
    }
    let totals = move_all(coordinator, PlanGoal::Drain(address), mode, work)?;
    // The moved shards are dropped from the old node now, because Citus cannot reach a node that is
    // removed.
    clean_up(coordinator, work)?;
    nothing_is_lost(coordinator, &node)?;
    for standby in nodes.iter().filter(|one| one.group == node.group && one.id != node.id) {
        work.step("forget", format!("its standby {} is forgotten", standby.address), || {
            remove(coordinator, &standby.address)
        })?;
    }
    work.step("remove", format!("{address} is removed from the cluster"), || {
        remove(coordinator, address)
    })?;
    Ok(DrainResult { totals, is_removed: true })
}

/// Checks whether other nodes can take the shards.
fn check_shard_targets(node: &ClusterNode, nodes: &[ClusterNode]) -> ClusterCheck {
    let takes = |one: &&ClusterNode| {
        one.is_primary() && one.is_active && one.may_have_shards && one.id != node.id
    };
    let takers: Vec<String> =
        nodes.iter().filter(takes).map(|one| one.address.to_string()).collect();
    let found = if takers.is_empty() {
        format!("{} is the last node that may have shards", node.address)
    } else {
        format!("shards can go to {}", takers.join(", "))
    };
    let remedy = "add another one first (hark cluster add)";
    ClusterCheck::of(None, "other_nodes", !takers.is_empty(), found, remedy)
}

/// Fails if any shard has its only copy on the node.
fn nothing_is_lost(coordinator: &mut Coordinator, node: &ClusterNode) -> Result<(), ClusterError> {
    let rows = coordinator.query(
        "SELECT count(*), coalesce(min(shard_name(s.logicalrelid, s.shardid)), '') \
         FROM pg_dist_placement p JOIN pg_dist_shard s USING (shardid) \
         WHERE p.groupid = $1 AND NOT EXISTS (SELECT FROM pg_dist_placement o \
               WHERE o.shardid = p.shardid AND o.groupid <> p.groupid)",
        &[&node.group],
    )?;
    let (left, name) = rows.first().map_or((0, String::new()), |row| (row.get(0), row.get(1)));
    if left == 0_i64 {
        return Ok(());
    }
    Err(ClusterError::Refused(format!(
        "{} still has the only copy of {left} shards ({name} is one), which Citus' rebalancer does \
         not move; the node was not removed. Move them with SELECT citus_move_shard_placement(…), or \
         drop their tables, and run the command again",
        node.address
    )))
}

fn remove(coordinator: &mut Coordinator, node: &NodeAddress) -> Result<(), ClusterError> {
    coordinator.query("SELECT citus_remove_node($1, $2)", &[&node.host, &node.port()])?;
    Ok(())
}
