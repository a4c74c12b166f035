//! The shards that have to move, according to Citus' rebalancer.

use super::ClusterError;
use super::coordinator::Coordinator;
use super::nodes::{ClusterNode, NodeAddress};

/// Shards that move together: the shards of colocated tables for the same range of hashes.
#[derive(Clone, Debug)]
pub(crate) struct ShardMove {
    /// The shard that represents its group.
    pub shard: i64,
    /// The tables of the group.
    pub tables: Vec<String>,
    /// Size in bytes of all shards of the group and their indices; 0 if unknown.
    pub bytes: u64,
    /// The node that has the shards.
    pub from: NodeAddress,
    /// The node to which the shards move.
    pub to: NodeAddress,
}

/// How shards move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferMode {
    /// By logical replication: reads and writes go on, but at the end writes wait for a moment.
    Logical,
    /// By a plain copy: writes to the shard wait until all of it is copied.
    Blocking,
}

impl TransferMode {
    /// Citus' name of the mode.
    pub fn name(self) -> &'static str {
        match self {
            Self::Logical => "force_logical",
            Self::Blocking => "block_writes",
        }
    }
}

/// The goal of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlanGoal<'a> {
    /// To spread shards evenly.
    Balance,
    /// To move all shards off this node.
    Drain(&'a NodeAddress),
}

/// Returns the moves that are still needed, in their order.
pub(crate) fn plan(
    coordinator: &mut Coordinator,
    goal: PlanGoal<'_>,
) -> Result<Vec<ShardMove>, ClusterError> {
    let rows = coordinator.query(
        "SELECT (array_agg(m.shardid ORDER BY m.at))[1], \
                array_agg(m.table_name::text ORDER BY m.at), \
                coalesce(sum(z.shard_size), 0)::bigint, \
                m.sourcename, m.sourceport, m.targetname, m.targetport \
         FROM get_rebalance_table_shards_plan(drain_only => $1) WITH ORDINALITY \
              AS m (table_name, shardid, shard_size, sourcename, sourceport, targetname, targetport, at) \
         JOIN pg_dist_shard s ON s.shardid = m.shardid \
         JOIN pg_dist_partition p ON p.logicalrelid = s.logicalrelid \
         LEFT JOIN citus_shards z ON z.shardid = m.shardid AND z.nodename = m.sourcename \
              AND z.nodeport = m.sourceport \
         GROUP BY p.colocationid, CASE WHEN p.colocationid = 0 THEN m.shardid END, s.shardminvalue, \
                  m.sourcename, m.sourceport, m.targetname, m.targetport \
         ORDER BY min(m.at)",
        &[&matches!(goal, PlanGoal::Drain(_))],
    )?;
    let moves = rows.iter().map(|row| ShardMove {
        shard: row.get(0),
        tables: row.get(1),
        bytes: row.get::<_, i64>(2).max(0).unsigned_abs(),
        from: NodeAddress::of_columns(row.get(3), row.get(4)),
        to: NodeAddress::of_columns(row.get(5), row.get(6)),
    });
    // Other nodes may be partly drained, too. Moves from those nodes are not a part of this drain.
    let wanted = |one: &ShardMove| match goal {
        PlanGoal::Balance => true,
        PlanGoal::Drain(node) => one.from == *node,
    };
    Ok(moves.filter(wanted).collect())
}

/// Returns the moves that draining this node would need. Nothing is changed.
pub(crate) fn plan_of_drain(
    coordinator: &mut Coordinator,
    node: &ClusterNode,
) -> Result<Vec<ShardMove>, ClusterError> {
    coordinator.batch("BEGIN")?;
    let planned = may_have_shards(coordinator, &node.address, false)
        .and_then(|()| plan(coordinator, PlanGoal::Drain(&node.address)));
    coordinator.batch("ROLLBACK")?;
    planned
}

/// Sets whether new shards may be placed on a node.
pub(crate) fn may_have_shards(
    coordinator: &mut Coordinator,
    node: &NodeAddress,
    may: bool,
) -> Result<(), ClusterError> {
    coordinator.query(
        "SELECT citus_set_node_property($1, $2, 'shouldhaveshards', $3)",
        &[&node.host, &node.port(), &may],
    )?;
    Ok(())
}
