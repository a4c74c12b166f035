//! Checks of the standby that is to replace a worker: whether the standby is a copy of the worker,
//! and whether the standby can accept writes.

use super::ClusterError;
use super::checks::check_commits;
use super::coordinator::Coordinator;
use super::events::ClusterCheck;
use super::facts::NodeFacts;
use super::nodes::{ClusterNode, NodeAddress};
use super::watched::NodeSession;
use crate::error::StatementError;

/// Maximum number of missing shards that a message names.
const NAMED_MAX: usize = 5;

/// The state of a standby.
pub(crate) struct StandbyFacts {
    pub facts: NodeFacts,
    /// Citus' number of the group to which the standby belongs; `None` without Citus.
    group: Option<i32>,
    /// PostgreSQL's system identifier, which a standby shares with its primary.
    system: i64,
    /// Age of the last transaction that the standby has applied, in seconds; `None` after the
    /// promotion.
    pub last_commit_s: Option<f64>,
    /// Shards of the worker that are missing on the standby.
    missing: Vec<String>,
    /// Whether Patroni has sessions there.
    has_patroni: bool,
}

/// Reads the state of a standby, and which of these shards it lacks.
pub(crate) fn read(
    session: &mut NodeSession,
    shards: &[String],
) -> Result<StandbyFacts, StatementError> {
    let facts = NodeFacts::read(session)?;
    let rows = session.query_once(
        "SELECT (SELECT system_identifier FROM pg_control_system()), \
                extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::float8, \
                EXISTS (SELECT FROM pg_stat_activity WHERE application_name LIKE 'Patroni %')",
        &[],
    )?;
    let (system, last_commit_s, has_patroni) = rows
        .first()
        .map_or((0, None, false), |row| (row.get(0), row.get::<_, Option<f64>>(1), row.get(2)));
    let group = if facts.citus.is_some() {
        let rows = session.query_once("SELECT groupid FROM pg_dist_local_group", &[])?;
        rows.first().map(|row| row.get(0))
    } else {
        None
    };
    let missing = missing_shards(session, shards)?;
    let last_commit_s = last_commit_s.filter(|_| facts.in_recovery);
    Ok(StandbyFacts { facts, group, system, last_commit_s, missing, has_patroni })
}

/// Checks whether the standby is a copy of the node: it must belong to the same group and have all
/// shards.
pub(crate) fn is_copy(
    node: &ClusterNode,
    standby: &NodeAddress,
    found: &StandbyFacts,
    shards: usize,
) -> Vec<ClusterCheck> {
    let on = Some(standby);
    let missing = found.missing.len();
    let named: Vec<&str> = found.missing.iter().take(NAMED_MAX).map(String::as_str).collect();
    vec![
        ClusterCheck::of(
            on,
            "copy_of",
            found.group == Some(node.group),
            match found.group {
                Some(group) => format!("group {group}"),
                None => "no Citus".into(),
            },
            format!("{} is group {}, so this is a copy of another node", node.address, node.group),
        ),
        ClusterCheck::of(
            on,
            "shards",
            missing == 0,
            format!("{} of {shards} are there", shards - missing.min(shards)),
            format!(
                "missing are {}: the standby was far behind, or is of another node. Restore what \
                     is missing from a backup first",
                named.join(", ")
            ),
        ),
        if found.facts.in_recovery {
            ClusterCheck::passed(on, "in_recovery", "yes, it is to be promoted")
        } else {
            ClusterCheck::passed(on, "in_recovery", "no, it was promoted")
        },
    ]
}

/// Checks that commits on the promoted standby would not wait for a standby of its own. Its setting
/// `synchronous_standby_names` may require such a standby, because `pg_basebackup` has copied the
/// setting from the lost node.
pub(crate) fn can_commit_alone(
    standby: &NodeAddress,
    found: &StandbyFacts,
    alone: bool,
) -> ClusterCheck {
    let remedy = "every write to it would wait for ever: give --alone to empty the setting there, or \
                  let a standby stream from it first";
    check_commits(standby, &found.facts, alone, remedy)
}

/// Checks that Patroni does not manage the standby. Patroni promotes a standby by itself, and stops
/// a server that was promoted without its key.
pub(crate) fn is_free(standby: &NodeAddress, found: &StandbyFacts) -> ClusterCheck {
    let words = if found.has_patroni { "manages this server" } else { "does not run here" };
    let remedy = "Patroni gives a standby the place of a lost worker by itself, within half a minute. \
                  To do this now, run: patronictl failover";
    ClusterCheck::of(Some(standby), "patroni", !found.has_patroni, words, remedy)
}

/// Compares the system identifiers of the standby and of a worker that still accepts connections.
pub(crate) fn same_system(
    coordinator: &Coordinator,
    dead: &NodeAddress,
    standby: &NodeAddress,
    found: &StandbyFacts,
) -> ClusterCheck {
    let (on, subject) = (Some(standby), "system_identifier");
    let asked = coordinator.to_node(dead).open().and_then(|mut session| {
        session.query_once("SELECT system_identifier FROM pg_control_system()", &[])
    });
    match asked.map(|rows| rows.first().map(|row| row.get::<_, i64>(0))) {
        Ok(theirs) => ClusterCheck::of(
            on,
            subject,
            theirs == Some(found.system),
            found.system.to_string(),
            format!("{dead} has {}, so this is a copy of another node", theirs.unwrap_or_default()),
        ),
        Err(fault) => {
            ClusterCheck::warning(on, subject, format!("{dead} was not asked for its own: {fault}"))
        }
    }
}

/// Returns the table names of a node's shards.
pub(crate) fn shard_names(
    coordinator: &mut Coordinator,
    node: &ClusterNode,
) -> Result<Vec<String>, ClusterError> {
    let rows = coordinator.query(
        "SELECT shard_name(s.logicalrelid, s.shardid, skip_qualify_public => false) \
         FROM pg_dist_placement p JOIN pg_dist_shard s USING (shardid) WHERE p.groupid = $1",
        &[&node.group],
    )?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Returns the names in `shards` that are missing on a node.
pub(crate) fn missing_shards(
    session: &mut NodeSession,
    shards: &[String],
) -> Result<Vec<String>, StatementError> {
    let rows = session.query_once(
        "SELECT name FROM unnest($1::text[]) AS name WHERE to_regclass(name) IS NULL ORDER BY 1",
        &[&shards],
    )?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
