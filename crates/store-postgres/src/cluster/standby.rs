//! The standbys of the nodes, and advice if something is missing.

use super::ClusterError;
use super::coordinator::{Coordinator, each};
use super::nodes::{ClusterNode, NodeAddress};
use super::watched::NodeSession;
use crate::error::StatementError;

/// Maximum recommended time in milliseconds between two attempts of a standby to stream. A standby
/// notices its promotion only at its next attempt.
const RETRY_MS_MAX: i64 = 1_000;

/// A standby, as reported by its primary.
#[derive(Clone, Debug)]
pub struct StandbyState {
    /// Its `application_name`, the name to use in `synchronous_standby_names`.
    pub name: String,
    /// The address from which the standby connects. Empty for a socket.
    pub address: String,
    /// `streaming`, or an earlier state: `startup`, `catchup`.
    pub state: String,
    /// `sync`, `quorum`, `potential` or `async`.
    pub sync: String,
    /// Number of bytes of the primary's log that are not durable on the standby yet. If the primary
    /// were lost, these bytes would be lost, too.
    pub behind_bytes: u64,
    /// Number of bytes of the log that the standby has not applied yet. A promotion waits until
    /// they are applied.
    pub replay_bytes: u64,
    /// Recent delay in seconds from a commit until the standby has applied the commit; `None` while
    /// nothing is written.
    pub lag_s: Option<f64>,
}

impl StandbyState {
    /// Whether the standby streams the primary's log.
    pub fn is_streaming(&self) -> bool {
        self.state == "streaming"
    }

    /// Whether commits wait for this standby.
    pub fn is_synchronous(&self) -> bool {
        self.sync == "sync" || self.sync == "quorum"
    }
}

/// A replication slot for a standby.
#[derive(Clone, Debug)]
pub struct WalSlot {
    /// The slot's name.
    pub name: String,
    /// Whether a standby uses the slot.
    pub is_active: bool,
    /// Number of bytes of the log that the node keeps because of the slot.
    pub kept_bytes: u64,
}

/// A node and its standbys.
#[derive(Clone, Debug)]
pub struct NodeStandbys {
    /// The node.
    pub node: ClusterNode,
    /// The standbys and settings that the node reports, or why the node could not be queried.
    pub found: Result<StandbySetup, String>,
    /// Recommended changes, in the order in which to make them; empty if nothing is missing.
    pub advice: Vec<String>,
}

/// The standbys of a node, and the node's settings for replication.
#[derive(Clone, Debug)]
pub struct StandbySetup {
    /// The node's standbys.
    pub standbys: Vec<StandbyState>,
    /// The node's replication slots for standbys.
    pub slots: Vec<WalSlot>,
    /// The setting `synchronous_standby_names`.
    pub synchronous_names: String,
    /// The setting `synchronous_commit`.
    pub synchronous_commit: String,
    /// The setting `wal_retrieve_retry_interval`, in milliseconds.
    pub retry_ms: i64,
}

impl NodeStandbys {
    /// Whether some standby streams the node's log.
    pub fn has_streaming(&self) -> bool {
        self.found.as_ref().is_ok_and(|found| found.standbys.iter().any(StandbyState::is_streaming))
    }
}

/// Returns the standbys of one node, or of all nodes except standbys.
pub fn standbys(
    coordinator: &mut Coordinator,
    node: Option<&NodeAddress>,
) -> Result<Vec<NodeStandbys>, ClusterError> {
    let nodes = match node {
        Some(node) => vec![coordinator.node(node)?],
        None => coordinator.nodes()?.into_iter().filter(ClusterNode::is_primary).collect(),
    };
    let asked: Vec<_> = nodes.iter().map(|node| coordinator.to_node(&node.address)).collect();
    let found = each(&asked, |connector| setup(&mut connector.open()?));
    Ok(nodes
        .into_iter()
        .zip(found)
        .map(|(node, found)| {
            let found = match found {
                Some(Ok(Some(setup))) => Ok(setup),
                Some(Ok(None)) => Err("this user may not see it; GRANT pg_monitor TO it".into()),
                Some(Err(fault)) => Err(fault.to_string()),
                None => Err("the query to it failed".into()),
            };
            let advice = found.as_ref().map_or(Vec::new(), |setup| advice(&node.address, setup));
            NodeStandbys { node, found, advice }
        })
        .collect())
}

/// Reads the standbys of a node. Returns `None` if this user lacks the permission.
pub(crate) fn read_standbys(
    session: &mut NodeSession,
) -> Result<Option<Vec<StandbyState>>, StatementError> {
    // Base backups also stream the log, but are not standbys. Neither are sessions for logical
    // replication, by which shards move: unlike a standby, such a session belongs to a database.
    let rows = session.query_once(
        "WITH here AS (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() \
                                   ELSE pg_current_wal_lsn() END AS lsn) \
         SELECT r.application_name, coalesce(host(r.client_addr), ''), r.state, r.sync_state, \
                greatest(coalesce(pg_wal_lsn_diff(here.lsn, r.flush_lsn), 0), 0)::bigint, \
                greatest(coalesce(pg_wal_lsn_diff(here.lsn, r.replay_lsn), 0), 0)::bigint, \
                extract(epoch FROM r.replay_lag)::float8 \
         FROM pg_stat_replication r CROSS JOIN here \
         WHERE r.state IS DISTINCT FROM 'backup' AND NOT EXISTS ( \
               SELECT FROM pg_stat_activity a WHERE a.pid = r.pid AND a.datid IS NOT NULL) \
         ORDER BY r.application_name, r.pid",
        &[],
    )?;
    let mut standbys = Vec::with_capacity(rows.len());
    for row in &rows {
        let (Some(state), Some(sync)) = (row.get::<_, Option<String>>(2), row.get(3)) else {
            return Ok(None);
        };
        standbys.push(StandbyState {
            name: row.get(0),
            address: row.get(1),
            state,
            sync,
            behind_bytes: row.get::<_, i64>(4).unsigned_abs(),
            replay_bytes: row.get::<_, i64>(5).unsigned_abs(),
            lag_s: row.get(6),
        });
    }
    Ok(Some(standbys))
}

fn setup(session: &mut NodeSession) -> Result<Option<StandbySetup>, StatementError> {
    let Some(standbys) = read_standbys(session)? else { return Ok(None) };
    let slots = session.query_once(
        "SELECT slot_name::text, active, greatest(coalesce(pg_wal_lsn_diff( \
                CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() \
                     ELSE pg_current_wal_lsn() END, restart_lsn), 0), 0)::bigint \
         FROM pg_replication_slots WHERE slot_type = 'physical' ORDER BY 1",
        &[],
    )?;
    let settings = session.query_once(
        "SELECT current_setting('synchronous_standby_names'), \
                current_setting('synchronous_commit'), \
                (SELECT setting::bigint FROM pg_settings \
                 WHERE name = 'wal_retrieve_retry_interval')",
        &[],
    )?;
    let settings = settings.first();
    let text = |at| settings.map_or(String::new(), |row| row.get(at));
    Ok(Some(StandbySetup {
        standbys,
        slots: slots
            .iter()
            .map(|row| WalSlot {
                name: row.get(0),
                is_active: row.get(1),
                kept_bytes: row.get::<_, i64>(2).unsigned_abs(),
            })
            .collect(),
        synchronous_names: text(0),
        synchronous_commit: text(1),
        retry_ms: settings.map_or(0, |row| row.get(2)),
    }))
}

/// Returns the changes that are needed so that a standby can take the node's place quickly and
/// without loss.
fn advice(node: &NodeAddress, found: &StandbySetup) -> Vec<String> {
    let mut advice = Vec::new();
    let streaming: Vec<_> = found.standbys.iter().filter(|one| one.is_streaming()).collect();
    if streaming.is_empty() {
        advice.push(format!(
            "make a standby on another machine: pg_basebackup -h {} -p {} -U a_user_with_REPLICATION \
             -D its_data_directory -X stream -R -C -S a_slot_of_its_own, then start PostgreSQL there",
            node.host, node.port
        ));
    }
    if found.synchronous_names.is_empty() && !streaming.is_empty() {
        // The setting contains the names of the standbys, which are known only once the standbys
        // stream. The setting `*` would also be copied to a standby, which then could not commit
        // after its promotion.
        let names: Vec<String> =
            streaming.iter().map(|one| format!("\"{}\"", one.name.replace('"', "\"\""))).collect();
        advice.push(format!(
            "so that no acknowledged write is lost with the node: ALTER SYSTEM SET \
             synchronous_standby_names = 'ANY 1 ({})', then SELECT pg_reload_conf(). With one standby, \
             writes wait while it is away; with two they do not",
            names.join(", ")
        ));
    } else if found.synchronous_names.is_empty() {
        advice.push(
            "once it streams, so that no acknowledged write is lost with the node: run this again, which \
             names what to set"
                .into(),
        );
    } else if !streaming.is_empty() && !streaming.iter().any(|one| one.is_synchronous()) {
        advice.push(format!(
            "synchronous_standby_names is {:?}, which names none of the standbys that stream, so \
             writes wait for ever",
            found.synchronous_names
        ));
    }
    if matches!(found.synchronous_commit.as_str(), "off" | "local") {
        advice.push(format!(
            "synchronous_commit is {}, so commits wait for no standby: set it to on",
            found.synchronous_commit
        ));
    }
    if found.retry_ms > RETRY_MS_MAX {
        advice.push(format!(
            "wal_retrieve_retry_interval is {} ms, and a promotion may wait that long: set 200ms on \
             the standby",
            found.retry_ms
        ));
    }
    advice
}
