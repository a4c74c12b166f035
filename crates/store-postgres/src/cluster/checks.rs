//! Requirements that are checked before anything is changed. Each has a remedy.

use std::collections::BTreeMap;

use super::ClusterError;
use super::coordinator::{Coordinator, each};
use super::events::ClusterCheck;
use super::facts::{NodeDisk, NodeFacts};
use super::nodes::{ClusterNode, NodeAddress};
use super::plan::{ShardMove, TransferMode};

/// Checks that commits on a node do not wait for standbys that do not stream. Otherwise every step
/// would wait without end, because every step commits on the nodes.
pub(crate) fn can_commit(node: &NodeAddress, facts: &NodeFacts) -> ClusterCheck {
    let remedy = "every commit on it waits for ever, and so would this command: start its standby, or \
                  empty the setting there (ALTER SYSTEM SET synchronous_standby_names = '', then SELECT \
                  pg_reload_conf())";
    check_commits(node, facts, false, remedy)
}

/// Checks whether commits on a node wait for standbys that do not stream. If `is_mended`, the check
/// passes in any case, because the caller empties `synchronous_standby_names` on the node.
pub(crate) fn check_commits(
    node: &NodeAddress,
    facts: &NodeFacts,
    is_mended: bool,
    remedy: &str,
) -> ClusterCheck {
    let found = if facts.waits_for_none {
        "requires more standbys than stream from this node"
    } else {
        "commits do not wait for a standby that is not there"
    };
    let met = !facts.waits_for_none || is_mended;
    ClusterCheck::of(Some(node), "synchronous_standby_names", met, found, remedy)
}

/// Warns if a node notices late that the machine of another node has vanished. Returns `None` if
/// the setting is unknown.
pub(crate) fn notices_lost_nodes(node: &NodeAddress, facts: &NodeFacts) -> Option<ClusterCheck> {
    let conninfo = facts.node_conninfo.as_ref()?;
    let (on, subject) = (Some(node), "tcp_user_timeout");
    Some(match facts.tcp_user_timeout_ms()? {
        0 => ClusterCheck::warning(
            on,
            subject,
            format!(
                "missing in citus.node_conninfo, so commits may wait for a vanished machine for many \
                 minutes; on this node: ALTER SYSTEM SET citus.node_conninfo = '{}', then SELECT \
                 pg_reload_conf()",
                format!("{conninfo} tcp_user_timeout=8000").trim_start().replace('\'', "''")
            ),
        ),
        set => ClusterCheck::passed(on, subject, format!("{set} ms")),
    })
}

/// Checks whether shards can move to and from a node. A move needs `slots` replication slots.
pub(crate) fn for_moves(
    node: &NodeAddress,
    facts: &NodeFacts,
    mode: TransferMode,
    slots: i64,
) -> Vec<ClusterCheck> {
    let on = Some(node);
    let mut checks = vec![
        can_commit(node, facts),
        ClusterCheck::of(
            on,
            "max_prepared_transactions",
            facts.prepared_max > 0,
            facts.prepared_max.to_string(),
            "without prepared transactions no commit can span two nodes: set it to at least \
             max_connections and restart the node",
        ),
    ];
    checks.extend(notices_lost_nodes(node, facts));
    if mode == TransferMode::Blocking {
        return checks;
    }
    checks.push(ClusterCheck::of(
        on,
        "wal_level",
        facts.wal_level == "logical",
        &facts.wal_level,
        "shards that are written meanwhile move by logical replication: set wal_level = logical and \
         restart the node, or let writes wait while each shard moves (--blocking)",
    ));
    for (subject, (most, used)) in
        [("max_replication_slots", facts.slots), ("max_wal_senders", facts.senders)]
    {
        checks.push(ClusterCheck::of(
            on,
            subject,
            most - used >= slots,
            format!("{used} of {most} in use"),
            format!(
                "a move takes {slots}: set it higher and restart the node, or remove what is \
                     not used any more (pg_replication_slots, pg_stat_replication)"
            ),
        ));
    }
    checks.push(ClusterCheck::of(
        on,
        "max_logical_replication_workers",
        facts.apply_workers_max >= slots,
        facts.apply_workers_max.to_string(),
        format!("a move takes {slots}: set it higher and restart the node"),
    ));
    checks
}

/// Checks whether shards can move to and from every node that has shards or may receive shards.
pub(crate) fn cluster_for_moves(
    coordinator: &mut Coordinator,
    nodes: &[ClusterNode],
    mode: TransferMode,
) -> Result<Vec<ClusterCheck>, ClusterError> {
    let slots = slots_of_a_move(coordinator)?;
    let mut checks = each_node(coordinator, nodes, |node, facts| {
        // The coordinator takes part in moves only if it may have shards.
        let takes_part = node.group != 0 || node.may_have_shards;
        let needed = if takes_part { slots } else { 0 };
        let mode = if takes_part { mode } else { TransferMode::Blocking };
        for_moves(&node.address, facts, mode, needed)
    });
    if mode == TransferMode::Logical {
        checks.push(tables_have_identities(coordinator)?);
    }
    checks.push(no_rebalancing_runs(coordinator)?);
    Ok(checks)
}

/// Checks that every node answers and can commit.
pub(crate) fn cluster_can_commit(
    coordinator: &Coordinator,
    nodes: &[ClusterNode],
) -> Vec<ClusterCheck> {
    each_node(coordinator, nodes, |node, facts| {
        let notices = notices_lost_nodes(&node.address, facts);
        std::iter::once(can_commit(&node.address, facts)).chain(notices).collect()
    })
}

/// Checks that every node except standbys answers, and calls the given checks on the facts of each
/// node.
fn each_node(
    coordinator: &Coordinator,
    nodes: &[ClusterNode],
    check: impl Fn(&ClusterNode, &NodeFacts) -> Vec<ClusterCheck>,
) -> Vec<ClusterCheck> {
    let nodes: Vec<_> = nodes.iter().filter(|node| node.is_primary()).collect();
    let asked: Vec<_> = nodes.iter().map(|node| coordinator.to_node(&node.address)).collect();
    let facts = each(&asked, |connector| NodeFacts::read(&mut connector.open()?));
    let mut checks = Vec::new();
    for (node, facts) in nodes.into_iter().zip(facts) {
        let on = Some(&node.address);
        match facts {
            Some(Ok(facts)) => checks.extend(check(node, &facts)),
            Some(Err(fault)) => checks.push(ClusterCheck::of(
                on,
                "reachable",
                false,
                fault.to_string(),
                "every node must answer; if this one is lost, give its place to its standby first \
                 (hark cluster replace)",
            )),
            None => checks.push(ClusterCheck::of(on, "reachable", false, "asking failed", "retry")),
        }
    }
    checks
}

/// Returns the number of replication slots that a move needs: one for each owner of distributed
/// tables.
fn slots_of_a_move(coordinator: &mut Coordinator) -> Result<i64, ClusterError> {
    let rows = coordinator.query(
        "SELECT greatest(1, count(DISTINCT c.relowner)) FROM pg_dist_partition p \
         JOIN pg_class c ON c.oid = p.logicalrelid",
        &[],
    )?;
    Ok(rows.first().map_or(1, |row| row.get(0)))
}

/// Checks that every table has a replica identity. Otherwise rows could not be updated or deleted
/// during a move by logical replication.
fn tables_have_identities(coordinator: &mut Coordinator) -> Result<ClusterCheck, ClusterError> {
    let rows = coordinator.query(
        "SELECT c.oid::regclass::text FROM pg_dist_partition p \
         JOIN pg_class c ON c.oid = p.logicalrelid \
         WHERE p.partmethod = 'h' AND c.relkind = 'r' AND c.relreplident IN ('d', 'n') \
           AND (c.relreplident = 'n' OR NOT EXISTS \
                (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)) \
         ORDER BY 1 LIMIT 20",
        &[],
    )?;
    let tables: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    Ok(if tables.is_empty() {
        ClusterCheck::passed(None, "replica_identity", "every table has one")
    } else {
        ClusterCheck::warning(
            None,
            "replica_identity",
            format!(
                "{} have no primary key: while one of their shards moves, UPDATE and DELETE on them \
                 fail (inserts do not)",
                tables.join(", ")
            ),
        )
    })
}

/// Checks that Citus runs no rebalancing in the background.
fn no_rebalancing_runs(coordinator: &mut Coordinator) -> Result<ClusterCheck, ClusterError> {
    let rows = coordinator.query(
        "SELECT job_id FROM pg_dist_background_job \
         WHERE state::text IN ('scheduled', 'running', 'cancelling') ORDER BY job_id LIMIT 1",
        &[],
    )?;
    let job: Option<i64> = rows.first().map(|row| row.get(0));
    Ok(ClusterCheck::of(
        None,
        "background_jobs",
        job.is_none(),
        job.map_or("none runs".into(), |job| format!("job {job} of Citus runs")),
        "wait for it (SELECT citus_job_wait(job)) or stop it (SELECT citus_rebalance_stop())",
    ))
}

/// Checks whether the target nodes have enough disk space for the shards.
pub(crate) fn space_for(coordinator: &Coordinator, moves: &[ShardMove]) -> Vec<ClusterCheck> {
    let mut needed: BTreeMap<&NodeAddress, u64> = BTreeMap::new();
    for one in moves {
        *needed.entry(&one.to).or_default() += one.bytes;
    }
    let asked: Vec<_> =
        needed.into_iter().map(|(node, bytes)| (node, bytes, coordinator.to_node(node))).collect();
    let free = each(&asked, |(_, _, connector)| NodeDisk::read(&mut connector.open()?));
    let megabytes = |bytes: u64| bytes.div_ceil(1 << 20);
    asked
        .iter()
        .zip(free)
        .map(|((node, bytes, _), free)| match free {
            Some(Ok(disk)) => ClusterCheck::of(
                Some(node),
                "disk_space",
                disk.free > *bytes,
                format!("{} MiB free, {} MiB come", megabytes(disk.free), megabytes(*bytes)),
                "make space there, or add another node first (hark cluster add)",
            ),
            Some(Err(fault)) => ClusterCheck::warning(
                Some(node),
                "disk_space",
                format!("cannot be found out ({fault}); {} MiB come", megabytes(*bytes)),
            ),
            None => ClusterCheck::warning(Some(node), "disk_space", "cannot be found out"),
        })
        .collect()
}
