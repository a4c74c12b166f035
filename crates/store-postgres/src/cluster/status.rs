//! The state of a cluster: nodes, moves of shards, and failed jobs.

use std::time::{Duration, Instant};

use tokio_postgres::Row;

use super::ClusterError;
use super::coordinator::{Coordinator, NODE_ANSWERS, each};
use super::facts::{NodeDisk, NodeFacts};
use super::nodes::{ClusterNode, NodeAddress, NodeRole};
use super::plan::{PlanGoal, plan};
use super::standby::{StandbyState, read_standbys};
use super::watched::NodeSession;
use crate::error::StatementError;

/// Maximum number of failed jobs that are shown; newer jobs come first.
const JOBS_MAX: i64 = 10;

/// Time limit for the sizes of all shards. The coordinator requests these sizes from all nodes.
const SIZES_MAX: Duration = Duration::from_secs(10);

/// The state of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterStatus {
    /// All nodes, the coordinator first.
    pub nodes: Vec<NodeStatus>,
    /// Moves of shards that are under way.
    pub moves: Vec<RunningMove>,
    /// Number of moves after which the shards would be spread evenly, or why the number is unknown.
    pub moves_needed: Result<usize, String>,
    /// Background jobs of Citus that have failed, newest first.
    pub failed_jobs: Vec<FailedJob>,
}

/// The state of a node.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// The node according to the cluster's tables.
    pub node: ClusterNode,
    /// Number of shards on the node, including copies of reference tables.
    pub shards: u64,
    /// Size of the shards with their indices; `None` if it is unknown, because the node does not
    /// answer or another node answers too late.
    pub bytes: Option<u64>,
    /// The details that the node reports, or why the node could not be queried.
    pub details: Result<NodeDetails, String>,
}

/// Details that a node reports.
#[derive(Clone, Debug)]
pub struct NodeDetails {
    /// The node's settings and state.
    pub facts: NodeFacts,
    /// Time that the node took to accept a connection and to answer, in milliseconds.
    pub answer_ms: f64,
    /// The file system of the node's data; `None` if it is unknown.
    pub disk: Option<NodeDisk>,
    /// The node's standbys; `None` if this user lacks the permission.
    pub standbys: Option<Vec<StandbyState>>,
    /// Number of prepared transactions. A prepared transaction older than a second or two is in
    /// doubt: its coordinator has neither committed nor rolled back the transaction.
    pub prepared: u64,
    /// Age of the oldest prepared transaction, in seconds.
    pub prepared_oldest_s: f64,
}

/// A move that is under way.
#[derive(Clone, Debug)]
pub struct RunningMove {
    /// The coordinator's process that moves the shards.
    pub process: i32,
    /// Time since the move began, in seconds.
    pub seconds: f64,
    /// The tables whose shards move.
    pub tables: Vec<String>,
    /// The node that has the shards; `None` while Citus prepares the move.
    pub from: Option<NodeAddress>,
    /// The node to which the shards move; `None` while Citus prepares the move.
    pub to: Option<NodeAddress>,
    /// Size of the shards.
    pub bytes: u64,
    /// Number of bytes that have arrived.
    pub bytes_arrived: u64,
    /// The phase that Citus reports for the move.
    pub phase: String,
}

/// A background job of Citus that has failed.
#[derive(Clone, Debug)]
pub struct FailedJob {
    /// The job's number.
    pub id: i64,
    /// The job's description.
    pub description: String,
    /// When the job ended, in PostgreSQL's format; empty if unknown.
    pub ended: String,
    /// Errors of the job's tasks.
    pub errors: Vec<String>,
}

impl ClusterStatus {
    /// Whether any worker is in the cluster.
    pub fn has_workers(&self) -> bool {
        self.nodes.iter().any(|one| one.node.role == NodeRole::Worker)
    }
}

/// Returns the state of a cluster. A node that does not answer is also listed, with the reason.
pub fn status(coordinator: &mut Coordinator) -> Result<ClusterStatus, ClusterError> {
    let nodes = coordinator.nodes()?;
    let counts =
        coordinator.query("SELECT groupid, count(*) FROM pg_dist_placement GROUP BY 1", &[])?;
    let asked: Vec<_> = nodes.iter().map(|node| coordinator.to_node(&node.address)).collect();
    let details = each(&asked, |connector| {
        let started = Instant::now();
        let mut session = connector.open()?;
        details(&mut session, started)
    });
    let sizes = sizes(coordinator);
    let nodes: Vec<NodeStatus> = nodes
        .into_iter()
        .zip(details)
        .map(|(node, details)| {
            // A node and its standbys are one group.
            let count = counts.iter().find(|row| row.get::<_, i32>(0) == node.group);
            let shards = count.filter(|_| node.is_primary()).map_or(0, |row| row.get::<_, i64>(1));
            let details = match details {
                Some(details) => details.map_err(|fault: StatementError| fault.to_string()),
                None => Err("the query to it failed".into()),
            };
            let bytes = sizes.as_ref().ok().filter(|_| details.is_ok()).and_then(|sizes| {
                let size = sizes.iter().find(|row| row.get::<_, i32>(0) == node.id);
                let Some(size) = size else { return Some(0) };
                size.get::<_, Option<i64>>(1).filter(|_| !size.get::<_, bool>(2))
            });
            // Citus lists the shards of a worker again for each registered standby.
            let bytes = if node.is_primary() { bytes } else { Some(0) };
            let bytes = bytes.map(|bytes| bytes.max(0).unsigned_abs());
            NodeStatus { node, shards: shards.max(0).unsigned_abs(), bytes, details }
        })
        .collect();
    let away = nodes.iter().find(|one| one.details.is_err());
    let moves_needed = match away {
        Some(away) => Err(format!("{} does not answer", away.node.address)),
        None => plan(coordinator, PlanGoal::Balance)
            .map(|moves| moves.len())
            .map_err(|fault| fault.to_string()),
    };
    let moves = running_moves(coordinator)?;
    Ok(ClusterStatus { nodes, moves, moves_needed, failed_jobs: failed_jobs(coordinator)? })
}

fn details(session: &mut NodeSession, started: Instant) -> Result<NodeDetails, StatementError> {
    let facts = NodeFacts::read(session)?;
    let answer_ms = started.elapsed().as_secs_f64() * 1e3;
    let prepared = session.query_once(
        "SELECT count(*), coalesce(extract(epoch FROM now() - min(prepared)), 0)::float8 \
         FROM pg_prepared_xacts WHERE database = current_database()",
        &[],
    )?;
    let prepared = prepared.first().map_or((0, 0.0), |row| (row.get::<_, i64>(0), row.get(1)));
    let standbys = read_standbys(session)?;
    let disk = NodeDisk::read(session).ok().filter(|disk| disk.size > 0);
    Ok(NodeDetails {
        facts,
        answer_ms,
        disk,
        standbys,
        prepared: prepared.0.max(0).unsigned_abs(),
        prepared_oldest_s: prepared.1,
    })
}

/// Returns the sizes of the shards of each node. Fails if a node answers too late.
fn sizes(coordinator: &Coordinator) -> Result<Vec<Row>, ClusterError> {
    let mut session = coordinator.another(SIZES_MAX)?;
    let wait = NODE_ANSWERS.as_millis();
    session.batch(&format!("SET citus.node_connection_timeout TO {wait}"))?;
    Ok(session.query_once(
        "SELECT n.nodeid, sum(z.shard_size)::bigint, bool_or(z.shard_size IS NULL) \
         FROM citus_shards z JOIN pg_dist_node n USING (nodename, nodeport) GROUP BY 1",
        &[],
    )?)
}

/// Returns the moves that other sessions of the coordinator are making.
pub(crate) fn running_moves(
    coordinator: &mut Coordinator,
) -> Result<Vec<RunningMove>, ClusterError> {
    // Because of the brackets, this pattern does not match the text of this query in other
    // sessions.
    let rows = coordinator.query(
        "SELECT a.pid, coalesce(extract(epoch FROM clock_timestamp() - a.query_start), 0)::float8, \
                coalesce(g.tables, '{}'), g.sourcename, g.sourceport, g.targetname, g.targetport, \
                coalesce(g.bytes, 0), coalesce(g.arrived, 0), coalesce(g.phase, '') \
         FROM pg_stat_activity a LEFT JOIN ( \
              SELECT sessionid, array_agg(table_name::text ORDER BY shardid) AS tables, \
                     min(sourcename) AS sourcename, min(sourceport) AS sourceport, \
                     min(targetname) AS targetname, min(targetport) AS targetport, \
                     sum(source_shard_size)::bigint AS bytes, \
                     sum(target_shard_size)::bigint AS arrived, max(status) AS phase \
              FROM get_rebalance_progress() WHERE progress = 1 GROUP BY sessionid \
         ) g ON g.sessionid = a.pid \
         WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.state = 'active' \
           AND a.query ~ '(move_shard_[p]lacement|rebalance_table_[s]hards|citus_drain_[n]ode) *[(]' \
         ORDER BY a.query_start",
        &[],
    )?;
    let node =
        |name: Option<String>, port: Option<i32>| Some(NodeAddress::of_columns(name?, port?));
    let bytes = |value: i64| value.max(0).unsigned_abs();
    Ok(rows
        .iter()
        .map(|row| RunningMove {
            process: row.get(0),
            seconds: row.get(1),
            tables: row.get(2),
            from: node(row.get(3), row.get(4)),
            to: node(row.get(5), row.get(6)),
            bytes: bytes(row.get(7)),
            bytes_arrived: bytes(row.get(8)),
            phase: row.get(9),
        })
        .collect())
}

fn failed_jobs(coordinator: &mut Coordinator) -> Result<Vec<FailedJob>, ClusterError> {
    let rows = coordinator.query(
        "SELECT j.job_id, j.description, coalesce(j.finished_at::timestamptz(0)::text, ''), \
                coalesce(array_agg(t.message ORDER BY t.task_id) FILTER (WHERE t.message <> ''), '{}') \
         FROM pg_dist_background_job j \
         LEFT JOIN pg_dist_background_task t ON t.job_id = j.job_id AND t.status::text = 'error' \
         WHERE j.state::text IN ('failed', 'failing') \
         GROUP BY j.job_id ORDER BY j.job_id DESC LIMIT $1",
        &[&JOBS_MAX],
    )?;
    let job = |row: &Row| FailedJob {
        id: row.get(0),
        description: row.get(1),
        ended: row.get(2),
        errors: row.get::<_, Vec<String>>(3).iter().map(|text| text.trim().into()).collect(),
    };
    Ok(rows.iter().map(job).collect())
}
