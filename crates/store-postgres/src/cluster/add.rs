//! Adds a node to a cluster, and then moves shards until they are spread evenly over all nodes.

use std::thread;
use std::time::Duration;

use tokio_postgres::types::ToSql;

use super::ClusterError;
use super::checks::{cluster_can_commit, cluster_for_moves, for_moves};
use super::coordinator::{Coordinator, NODE_ANSWERS};
use super::events::ClusterCheck;
use super::facts::NodeFacts;
use super::moves::{MOVE_MAX, MoveTotals};
use super::nodes::{ClusterNode, NodeAddress, NodeRole};
use super::plan::{TransferMode, may_have_shards};
use super::rebalance::balance;
use super::watched::NodeSession;
use super::work::ClusterWork;
use crate::error::StatementError;

/// Maximum number of attempts to add a node if Citus refuses, and the pause between two attempts.
const TRIES: usize = 3;
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// A database that every PostgreSQL server has.
const MAINTENANCE: &str = "postgres";

/// Options for adding a node.
#[derive(Clone, Copy, Debug)]
pub struct AddOptions {
    /// Whether to move shards to the node at once.
    pub rebalance: bool,
    /// How the shards move.
    pub mode: TransferMode,
}

/// The result of adding a node.
#[derive(Clone, Copy, Debug)]
pub struct AddResult {
    /// Whether the node was already in the cluster.
    pub was_there: bool,
    /// The groups of shards that were moved.
    pub totals: MoveTotals,
}

/// Adds a node unless it is in the cluster, and then moves shards until they are spread evenly.
///
/// Creates the database and the extension on the node if they are missing. If the node was being
/// drained, allows shards on the node again.
pub fn add(
    coordinator: &mut Coordinator,
    address: &NodeAddress,
    options: AddOptions,
    work: &mut ClusterWork<'_>,
) -> Result<AddResult, ClusterError> {
    coordinator.lock()?;
    let nodes = coordinator.nodes()?;
    let known = nodes.iter().find(|node| node.address == *address);
    if let Some(known) = known.filter(|node| node.role != NodeRole::Worker) {
        return Err(ClusterError::Refused(format!(
            "{address} is in the cluster as its {}; nothing was changed",
            known.role.name()
        )));
    }
    let (session, facts) = arrive(coordinator, address, work)?;
    let own = NodeFacts::read(&mut coordinator.another(NODE_ANSWERS)?)?;
    let mut checks = same_programs(address, &facts, &own);
    checks.extend(for_moves(address, &facts, options.mode, 1));
    checks.extend(if options.rebalance {
        cluster_for_moves(coordinator, &nodes, options.mode)?
    } else {
        cluster_can_commit(coordinator, &nodes)
    });
    work.require(checks)?;
    let session = match session {
        Some(session) => Some(session),
        None => make_database(coordinator, address, work)?,
    };
    let session = match session {
        Some(session) => make_extension(session, address, &facts, &own, work)?,
        None => None,
    };
    if let Some(mut session) = session {
        let checks = connections(coordinator, &mut session, address, &nodes)?;
        work.require(checks)?;
    } else {
        work.note("whether the nodes reach each other is checked once the database exists");
    }
    name_coordinator(coordinator, address, &nodes, work)?;
    join(coordinator, address, known, work)?;
    let mut totals = MoveTotals::default();
    if options.rebalance {
        if work.dry_run && known.is_none_or(|known| !known.may_have_shards) {
            work.step("rebalance", "shards move until they are spread evenly", || Ok(()))?;
        } else {
            copy_reference_tables(coordinator, options.mode, work)?;
            totals = balance(coordinator, options.mode, work)?;
        }
    }
    Ok(AddResult { was_there: known.is_some(), totals })
}

/// Connects to the new node. Returns no session if the database is missing on the node.
fn arrive(
    coordinator: &Coordinator,
    address: &NodeAddress,
    work: &mut ClusterWork<'_>,
) -> Result<(Option<NodeSession>, NodeFacts), ClusterError> {
    let unreachable = |fault: &StatementError| {
        ClusterCheck::of(
            Some(address),
            "reachable",
            false,
            fault.to_string(),
            "it must accept the coordinator's user from here: look at listen_addresses and \
             pg_hba.conf there, and at firewalls in between",
        )
    };
    let fault = match coordinator.to_node(address).open() {
        Ok(mut session) => match NodeFacts::read(&mut session) {
            Ok(facts) => return Ok((Some(session), facts)),
            Err(fault) => fault,
        },
        Err(fault @ StatementError::Refused(_)) => {
            // The node may lack the database.
            let opened = coordinator.to_database(address, MAINTENANCE).open();
            match opened.and_then(|mut session| find_missing_database(coordinator, &mut session)) {
                Ok(Some(facts)) => return Ok((None, facts)),
                Ok(None) | Err(_) => fault,
            }
        }
        Err(fault) => fault,
    };
    work.require(vec![unreachable(&fault)])?;
    Err(fault.into())
}

/// Returns the settings and the state of the node if the database is missing there.
fn find_missing_database(
    coordinator: &Coordinator,
    session: &mut NodeSession,
) -> Result<Option<NodeFacts>, StatementError> {
    let there = session.query_once(
        "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)",
        &[&coordinator.database()],
    )?;
    if there.first().is_none_or(|row| row.get(0)) {
        return Ok(None);
    }
    NodeFacts::read(session).map(Some)
}

/// Checks whether the node runs the same versions of PostgreSQL and Citus as the coordinator.
fn same_programs(node: &NodeAddress, facts: &NodeFacts, own: &NodeFacts) -> Vec<ClusterCheck> {
    let on = Some(node);
    let found = facts.citus.as_ref().or(facts.citus_available.as_ref());
    vec![
        ClusterCheck::of(
            on,
            "version",
            facts.major == own.major,
            format!("PostgreSQL {}", facts.short_version()),
            format!(
                "the coordinator runs {}, and all nodes must run the same major version",
                own.short_version()
            ),
        ),
        ClusterCheck::of(
            on,
            "citus",
            found == own.citus.as_ref(),
            found.map_or("not installed".into(), |version| format!("Citus {version}")),
            format!(
                "the coordinator has {}, and all nodes must have the same version: install its \
                 package there, or bring the database up with ALTER EXTENSION citus UPDATE",
                own.citus.as_deref().unwrap_or("none")
            ),
        ),
        ClusterCheck::of(
            on,
            "shared_preload_libraries",
            facts.is_loaded,
            if facts.is_loaded { "has citus" } else { "does not have citus" },
            "set shared_preload_libraries = 'citus' (before other libraries) and restart the node",
        ),
        ClusterCheck::of(
            on,
            "in_recovery",
            !facts.in_recovery,
            if facts.in_recovery { "yes, it is a standby" } else { "no" },
            "a standby takes a worker's place with hark cluster replace",
        ),
    ]
}

/// Creates the database with the coordinator's encoding and locale. Returns `None` in a dry run.
fn make_database(
    coordinator: &mut Coordinator,
    address: &NodeAddress,
    work: &mut ClusterWork<'_>,
) -> Result<Option<NodeSession>, ClusterError> {
    let rows = coordinator.query(
        "SELECT format('CREATE DATABASE %I TEMPLATE template0 ENCODING %L LC_COLLATE %L LC_CTYPE %L', \
                datname, pg_encoding_to_char(encoding), datcollate, datctype) \
         FROM pg_database WHERE datname = current_database()",
        &[],
    )?;
    let text: String = rows.first().map_or(String::new(), |row| row.get(0));
    let words = format!("the database {} is made on {address}", coordinator.database());
    work.step("database", words, || {
        let made = coordinator.to_database(address, MAINTENANCE).open();
        made.and_then(|mut session| session.batch(&text)).map_err(|fault| {
            ClusterError::refused(fault, |fault| {
                format!(
                    "the database could not be made on {address}: {fault}. Make it there by hand \
                     ({text}) and run the command again"
                )
            })
        })?;
        Ok(coordinator.to_database(address, &coordinator.database()).open()?)
    })
}

/// Creates the extension if it is missing. In a dry run, returns `None` if the extension is
/// missing.
fn make_extension(
    mut session: NodeSession,
    address: &NodeAddress,
    facts: &NodeFacts,
    own: &NodeFacts,
    work: &mut ClusterWork<'_>,
) -> Result<Option<NodeSession>, ClusterError> {
    if facts.citus.is_some() {
        return Ok(Some(session));
    }
    // `same_programs` has checked that the node's server would install this version.
    let version = own.citus.as_deref().unwrap_or_default();
    let made = work.step("extension", format!("Citus {version} is made on {address}"), || {
        session.batch("CREATE EXTENSION IF NOT EXISTS citus").map_err(|fault| {
            ClusterError::refused(fault, |fault| {
                format!(
                    "the extension could not be made on {address}: {fault}. As a superuser, run \
                     CREATE EXTENSION citus in its database and run the command again"
                )
            })
        })
    })?;
    Ok(made.map(|()| session))
}

/// Checks whether Citus can connect the nodes with each other, and whether the new node already
/// belongs to another cluster.
fn connections(
    coordinator: &mut Coordinator,
    session: &mut NodeSession,
    address: &NodeAddress,
    nodes: &[ClusterNode],
) -> Result<Vec<ClusterCheck>, ClusterError> {
    let remedy = "check listen_addresses and pg_hba.conf on the one, and the password (.pgpass, \
                  citus.node_conninfo) on the other";
    let text = "SELECT citus_check_connection_to_node($1, $2)";
    let mut checks = Vec::new();
    let reached = coordinator.query(text, &[&address.host, &address.port()])?;
    let reached = reached.first().is_some_and(|row| row.get(0));
    let words =
        if reached { "reached by the coordinator" } else { "not reached by the coordinator" };
    checks.push(ClusterCheck::of(Some(address), "connections", reached, words, remedy));
    let other = session.query_once(
        "SELECT nodename, nodeport FROM pg_dist_node WHERE groupid = 0 AND noderole = 'primary'",
        &[],
    )?;
    let other = other.first().map(|row| NodeAddress::of_columns(row.get(0), row.get(1)));
    let ours = own_address(coordinator, address, nodes);
    let is_free = other.is_none() || other == ours;
    checks.push(ClusterCheck::of(
        Some(address),
        "other_cluster",
        is_free,
        other.map_or("none".into(), |other| format!("the coordinator of its cluster is {other}")),
        "remove it from that cluster first; if that is another name of this coordinator, use it",
    ));
    let others = nodes.iter().filter(|node| node.role == NodeRole::Worker && node.is_active);
    let others = others.map(|node| node.address.clone()).filter(|one| one != address);
    for other in ours.into_iter().chain(others) {
        let reached = session.query_once(text, &[&other.host, &other.port()])?;
        let reached = reached.first().is_some_and(|row| row.get(0));
        let words = if reached { "reaches" } else { "does not reach" };
        let words = format!("{words} {other}");
        checks.push(ClusterCheck::of(Some(address), "connections", reached, words, remedy));
    }
    Ok(checks)
}

/// The address at which workers reach the coordinator: the recorded address, or the address to
/// record.
fn own_address(
    coordinator: &Coordinator,
    new: &NodeAddress,
    nodes: &[ClusterNode],
) -> Option<NodeAddress> {
    let known = nodes.iter().find(|node| node.role == NodeRole::Coordinator);
    let known = known.map(|node| node.address.clone());
    // Citus records `localhost` by default, which is useless on other machines.
    known.filter(|at| at.host != "localhost" || new.host == at.host).or(coordinator.own_address())
}

/// Records the address at which workers reach the coordinator, unless the cluster already has such
/// an address.
fn name_coordinator(
    coordinator: &mut Coordinator,
    address: &NodeAddress,
    nodes: &[ClusterNode],
    work: &mut ClusterWork<'_>,
) -> Result<(), ClusterError> {
    let known = nodes.iter().find(|node| node.role == NodeRole::Coordinator);
    let Some(ours) = own_address(coordinator, address, nodes) else {
        return Err(ClusterError::Refused(
            "workers need the coordinator's host and port, and its URL names a folder of sockets; \
             name them with SELECT citus_set_coordinator_host('host', port) there, and run the \
             command again"
                .into(),
        ));
    };
    if known.is_some_and(|known| known.address == ours) {
        return Ok(());
    }
    work.step("coordinator", format!("workers reach the coordinator at {ours}"), || {
        coordinator.query("SELECT citus_set_coordinator_host($1, $2)", &[&ours.host, &ours.port()])
    })?;
    Ok(())
}

/// Adds the node. If the node is already in the cluster, allows shards on the node again.
fn join(
    coordinator: &mut Coordinator,
    address: &NodeAddress,
    known: Option<&ClusterNode>,
    work: &mut ClusterWork<'_>,
) -> Result<(), ClusterError> {
    match known {
        None => {
            let words = format!("{address} is added to the cluster");
            work.step("add", words, || add_node(coordinator, address))?;
        }
        Some(known) => {
            work.note(format!("{address} is in the cluster already"));
            if !known.is_active {
                work.step("activate", format!("{address} is used again"), || {
                    coordinator.query(
                        "SELECT citus_activate_node($1, $2)",
                        &[&address.host, &address.port()],
                    )
                })?;
            }
            if !known.may_have_shards {
                work.step("open", format!("{address} gets shards again"), || {
                    may_have_shards(coordinator, address, true)
                })?;
            }
        }
    }
    Ok(())
}

/// Adds the node completely or not at all. Citus copies the roles to the node, and the roles of a
/// server belong to all its databases. So adding the node fails if another cluster adds the same
/// server at the same time.
fn add_node(coordinator: &mut Coordinator, address: &NodeAddress) -> Result<(), ClusterError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let values: [&(dyn ToSql + Sync); 2] = [&address.host, &address.port()];
        match coordinator.query("SELECT citus_add_node($1, $2)", &values) {
            Ok(_) => return Ok(()),
            Err(ClusterError::Database(_)) if tries < TRIES => thread::sleep(TRY_AGAIN),
            Err(fault) => return Err(fault),
        }
    }
}

/// Copies reference tables to the nodes on which they are missing.
fn copy_reference_tables(
    coordinator: &mut Coordinator,
    mode: TransferMode,
    work: &mut ClusterWork<'_>,
) -> Result<(), ClusterError> {
    let missing = coordinator.query(
        "SELECT count(DISTINCT s.shardid) FROM pg_dist_partition t JOIN pg_dist_shard s USING (logicalrelid) \
         CROSS JOIN pg_dist_node n \
         WHERE t.partmethod = 'n' AND t.repmodel = 't' AND n.noderole = 'primary' AND n.isactive \
           AND n.groupid > 0 AND NOT EXISTS (SELECT FROM pg_dist_placement p \
               WHERE p.shardid = s.shardid AND p.groupid = n.groupid)",
        &[],
    )?;
    let missing = missing.first().map_or(0, |row| row.get::<_, i64>(0));
    if missing > 0 {
        work.step(
            "reference_tables",
            format!(
                "{missing} reference table{} copied",
                if missing == 1 { " is" } else { "s are" }
            ),
            || {
                let mut session = coordinator.another(MOVE_MAX)?;
                session.query_once(
                    "SELECT replicate_reference_tables($1::text::citus.shard_transfer_mode)",
                    &[&mode.name()],
                )?;
                Ok(())
            },
        )?;
    }
    Ok(())
}
