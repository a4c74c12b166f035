//! Replaces a lost worker by its standby.

use std::net::{TcpStream, ToSocketAddrs as _};
use std::thread;
use std::time::{Duration, Instant};

use super::ClusterError;
use super::checks::notices_lost_nodes;
use super::coordinator::{Coordinator, NODE_ANSWERS};
use super::events::ClusterCheck;
use super::facts::NodeFacts;
use super::nodes::{ClusterNode, NodeAddress, NodeRole};
use super::successor::{
    StandbyFacts, can_commit_alone, is_copy, is_free, missing_shards, read, same_system,
    shard_names,
};
use super::work::ClusterWork;
use crate::error::StatementError;

/// How long to wait for the lost worker to accept a connection, and then to answer.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);
/// Time limit for the coordinator to give the worker's place to the standby. Citus ends the
/// transactions that hold locks on the worker's shards, so the limit is reached only if such a
/// transaction cannot end.
const UPDATE_MAX: Duration = Duration::from_mins(1);
/// Time limit for ending transactions in doubt.
const RECOVER_MAX: Duration = Duration::from_secs(30);
/// Time limit of a promotion, in seconds.
const PROMOTION_S: i32 = 60;
/// Time in milliseconds after which Citus ends transactions that hold locks on the lost worker's
/// shards.
const LOCK_COOLDOWN_MS: i32 = 1_000;

/// Whether a worker that is to be replaced still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignOfLife {
    /// The worker accepts no connections.
    None,
    /// The worker accepts connections, but does not answer: it may be frozen, and resume later.
    Silent,
    /// The worker answers. The text names the process that got the answer.
    Answers(&'static str),
}

/// Options for replacing a worker.
#[derive(Clone, Copy, Debug)]
pub struct ReplaceOptions {
    /// Whether to replace a worker even if it still answers.
    pub force: bool,
    /// Whether to replace a worker even if it accepts connections without answering.
    pub unfenced: bool,
    /// Whether to change the standby's settings so that its commits do not wait for a standby of
    /// its own.
    pub alone: bool,
}

/// The result of a replacement.
#[derive(Clone, Debug)]
pub struct ReplaceResult {
    /// Whether the standby already had the worker's place before this run.
    pub was_done: bool,
    /// Number of shards of the replaced node.
    pub shards: usize,
    /// Number of in-doubt transactions over several nodes that this run committed or rolled back.
    pub recovered: i32,
    /// Time from the start until the standby had taken the worker's place, in seconds.
    pub seconds: f64,
    /// Age in seconds of the last transaction that the standby had applied before its promotion.
    /// `None` if the standby was promoted before this run, or has applied no transaction.
    pub last_commit_s: Option<f64>,
}

/// Replaces the worker `dead` by `standby`. Promotes `standby` if it is not promoted yet.
///
/// Refuses if `dead` still answers, unless forced: if two nodes accepted writes, some writes would
/// be lost. A frozen worker may resume at any moment, so it is replaced only once it is fenced,
/// that is, once it certainly does not come back. Also refuses if `standby` is a copy of a node
/// other than `dead`.
pub fn replace(
    coordinator: &mut Coordinator,
    dead: &NodeAddress,
    standby: &NodeAddress,
    options: ReplaceOptions,
    work: &mut ClusterWork<'_>,
) -> Result<ReplaceResult, ClusterError> {
    let started = Instant::now();
    coordinator.lock()?;
    let nodes = coordinator.nodes()?;
    let was_done = is_done(&nodes, dead, standby)?;
    let node = coordinator.node(if was_done { standby } else { dead })?;
    let shards = shard_names(coordinator, &node)?;
    let (life, found) = ask_both(coordinator, dead, standby, &shards)?;
    let found = found.map_err(|fault| {
        ClusterError::refused(fault, |fault| {
            format!("the standby {standby} does not answer: {fault}. Nothing was changed")
        })
    })?;
    let own = NodeFacts::read(&mut coordinator.another(NODE_ANSWERS)?)?;
    let mut checks = vec![sign_of_life(dead, life, options)];
    checks.extend(is_copy(&node, standby, &found, shards.len()));
    checks.push(is_free(standby, &found));
    checks.push(can_commit_alone(standby, &found, options.alone));
    let name = nodes.iter().find(|node| node.role == NodeRole::Coordinator);
    checks.extend(name.and_then(|name| notices_lost_nodes(&name.address, &own)));
    if options.force && matches!(life, SignOfLife::Answers(_)) {
        checks.push(same_system(coordinator, dead, standby, &found));
    }
    work.require(checks)?;
    if was_done {
        work.note(format!("{standby} has taken the place of {dead} already"));
    }
    if found.facts.waits_for_none {
        work.step("alone", format!("{standby} does not wait for a standby of its own"), || {
            clear_sync_standbys(coordinator, standby)
        })?;
    }
    if found.facts.in_recovery {
        work.step("promote", format!("{standby} is promoted"), || promote(coordinator, standby))?;
    }
    if !was_done {
        if nodes.iter().any(|one| one.address == *standby) {
            work.step("forget", format!("{standby} is no standby any more"), || {
                coordinator
                    .query("SELECT citus_remove_node($1, $2)", &[&standby.host, &standby.port()])
            })?;
        }
        work.step("update", format!("{standby} takes the place of {dead}"), || {
            update_node(coordinator, &node, standby)
        })?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let recovered =
        work.step("recover", "transactions in doubt are ended", || recover(coordinator))?;
    if let Some(Err(fault)) = &recovered {
        work.note(format!(
            "transactions in doubt are not ended yet ({fault}); the coordinator tries this again \
             every citus.recover_2pc_interval"
        ));
    }
    if !work.dry_run {
        work.require(vec![takes_writes(coordinator, standby, &shards)?])?;
    }
    Ok(ReplaceResult {
        was_done,
        shards: shards.len(),
        recovered: recovered.and_then(Result::ok).unwrap_or(0),
        seconds,
        last_commit_s: found.last_commit_s,
    })
}

/// Returns whether the standby already has the worker's place. Fails if the two nodes do not have
/// the required roles.
fn is_done(
    nodes: &[ClusterNode],
    dead: &NodeAddress,
    standby: &NodeAddress,
) -> Result<bool, ClusterError> {
    let refuse =
        |words: String| Err(ClusterError::Refused(format!("{words}. Nothing was changed")));
    let find = |address: &NodeAddress| nodes.iter().find(|node| node.address == *address);
    if dead == standby {
        return refuse(format!("{dead} cannot take its own place"));
    }
    match (find(dead), find(standby)) {
        (None, Some(node)) if node.role == NodeRole::Worker => Ok(true),
        (None, _) => {
            let known: Vec<String> = nodes.iter().map(|node| node.address.to_string()).collect();
            refuse(format!("{dead} is no node of this cluster; its nodes are {}", known.join(", ")))
        }
        (Some(node), _) if node.role != NodeRole::Worker => {
            refuse(format!("{dead} is no worker but the cluster's {}", node.role.name()))
        }
        (Some(node), Some(other)) if other.group != node.group => {
            refuse(format!("{standby} is a node of this cluster, and no standby of {dead}"))
        }
        (Some(_), _) => Ok(false),
    }
}

/// Gives the worker's place to the standby.
fn update_node(
    coordinator: &Coordinator,
    node: &ClusterNode,
    standby: &NodeAddress,
) -> Result<(), ClusterError> {
    let mut session = coordinator.another(UPDATE_MAX)?;
    let started = Instant::now();
    let updated = session.query_once(
        "SELECT citus_update_node($1, $2, $3, force => true, lock_cooldown => $4)",
        &[&node.id, &standby.host, &standby.port(), &LOCK_COOLDOWN_MS],
    );
    match updated {
        Err(fault @ (StatementError::Cancelled(_) | StatementError::Refused(_)))
            if started.elapsed() >= UPDATE_MAX =>
        {
            Err(ClusterError::Refused(format!(
                "{standby} could not take the place of {} within {} s ({fault}), because a session of \
                 the coordinator keeps locks on the worker's shards and does not end, as happens \
                 while a worker is frozen. Stop the machine of {}, and run the command again",
                node.address,
                UPDATE_MAX.as_secs(),
                node.address
            )))
        }
        updated => Ok(updated.map(drop)?),
    }
}

/// Ends transactions in doubt, and returns their number. The coordinator also ends such
/// transactions by itself. If it is doing so now and waits for a frozen node, returns the error of
/// the database.
fn recover(coordinator: &Coordinator) -> Result<Result<i32, StatementError>, ClusterError> {
    let mut session = coordinator.another(RECOVER_MAX)?;
    match session.query_once("SELECT recover_prepared_transactions()", &[]) {
        Ok(rows) => Ok(Ok(rows.first().map_or(0, |row| row.get(0)))),
        Err(fault @ (StatementError::Refused(_) | StatementError::Cancelled(_))) => Ok(Err(fault)),
        Err(fault) => Err(fault.into()),
    }
}

/// Queries the standby, and at the same time tries to reach the lost worker, from here and from the
/// coordinator. Returns whether the lost worker still runs, and the standby's state.
fn ask_both(
    coordinator: &Coordinator,
    dead: &NodeAddress,
    standby: &NodeAddress,
    shards: &[String],
) -> Result<(SignOfLife, Result<StandbyFacts, StatementError>), ClusterError> {
    let mut from_there = coordinator.another(NODE_ANSWERS)?;
    let standby = coordinator.to_node(standby);
    let to_dead = coordinator.to_node(dead);
    let (here, there, found) = thread::scope(|scope| {
        let here = scope.spawn(|| {
            if !accepts(dead) {
                return SignOfLife::None;
            }
            // An error before the time limit is an answer, too. A frozen server sends nothing until
            // the time limit.
            let started = Instant::now();
            let opened = to_dead.open_within(SIGN_OF_LIFE);
            if opened.is_ok() || started.elapsed() < SIGN_OF_LIFE {
                SignOfLife::Answers("answers here")
            } else {
                SignOfLife::Silent
            }
        });
        let there = scope.spawn(|| {
            from_there.batch(&format!(
                "SET citus.node_connection_timeout TO {}",
                SIGN_OF_LIFE.as_millis()
            ))?;
            let rows = from_there.query_once(
                "SELECT citus_check_connection_to_node($1, $2)",
                &[&dead.host, &dead.port()],
            )?;
            Ok::<_, StatementError>(rows.first().is_some_and(|row| row.get(0)))
        });
        let found = standby.open().and_then(|mut session| read(&mut session, shards));
        (here.join().unwrap_or(SignOfLife::Silent), there.join(), found)
    });
    let there = match there {
        // The coordinator had no answer from the worker in time.
        Ok(Err(StatementError::Refused(_) | StatementError::Cancelled(_))) => false,
        Ok(there) => there?,
        Err(_) => return Err(ClusterError::Away("the query to it has failed".into())),
    };
    Ok((if there { SignOfLife::Answers("answers the coordinator") } else { here }, found))
}

/// Returns whether a server accepts connections at this address. A suspended server accepts
/// connections, too.
fn accepts(node: &NodeAddress) -> bool {
    let addresses = (node.host.as_str(), node.port).to_socket_addrs();
    addresses
        .into_iter()
        .flatten()
        .any(|one| TcpStream::connect_timeout(&one, SIGN_OF_LIFE).is_ok())
}

fn sign_of_life(dead: &NodeAddress, life: SignOfLife, options: ReplaceOptions) -> ClusterCheck {
    let on = Some(dead);
    match life {
        SignOfLife::None => ClusterCheck::passed(on, "lost", "it does not answer"),
        SignOfLife::Answers(how) if options.force => {
            ClusterCheck::warning(on, "lost", format!("it {how}, and is replaced by --force"))
        }
        SignOfLife::Answers(how) => ClusterCheck::of(
            on,
            "lost",
            false,
            format!("it {how}"),
            "a worker that runs must not be replaced, or writes go to two nodes and some are lost. \
             Stop it, so that it cannot come back, or give --force",
        ),
        SignOfLife::Silent if options.unfenced => ClusterCheck::warning(
            on,
            "lost",
            "it accepts connections but does not answer, and is replaced by --unfenced",
        ),
        SignOfLife::Silent => ClusterCheck::of(
            on,
            "lost",
            false,
            "it accepts connections but does not answer, so it may be frozen and go on at any moment",
            "until it is gone, sessions of the coordinator wait for it and keep locks, and what it \
             then writes is lost. Fence it: power its machine off, or kill its PostgreSQL with -9, \
             and run the command again. If that is impossible, give --unfenced",
        ),
    }
}

/// Clears `synchronous_standby_names`, the setting that [`can_commit`] checks.
fn clear_sync_standbys(
    coordinator: &Coordinator,
    standby: &NodeAddress,
) -> Result<(), ClusterError> {
    let mut session = coordinator.to_node(standby).open()?;
    session.batch("ALTER SYSTEM SET synchronous_standby_names = ''")?;
    session.batch("SELECT pg_reload_conf()")?;
    Ok(())
}

fn promote(coordinator: &Coordinator, standby: &NodeAddress) -> Result<(), ClusterError> {
    let mut session = coordinator.to_database(standby, &coordinator.database()).open()?;
    let rows = session.query_once("SELECT pg_promote(true, $1)", &[&PROMOTION_S])?;
    if rows.first().is_some_and(|row| row.get(0)) {
        return Ok(());
    }
    Err(ClusterError::Refused(format!(
        "{standby} was asked to take over, but still replays its log after {PROMOTION_S} s; the \
         cluster was not changed. Look at its log, and run the command again"
    )))
}

/// Checks whether the coordinator reaches the node, and whether the node accepts writes and has all
/// shards.
fn takes_writes(
    coordinator: &mut Coordinator,
    node: &NodeAddress,
    shards: &[String],
) -> Result<ClusterCheck, ClusterError> {
    let reached = coordinator
        .query("SELECT citus_check_connection_to_node($1, $2)", &[&node.host, &node.port()])?;
    let reached = reached.first().is_some_and(|row| row.get(0));
    let mut session = coordinator.to_node(node).open()?;
    let missing = missing_shards(&mut session, shards)?.len();
    let facts = NodeFacts::read(&mut session)?;
    Ok(ClusterCheck::of(
        Some(node),
        "takes_writes",
        reached && missing == 0 && !facts.in_recovery,
        format!("{} of {} shards are there", shards.len() - missing, shards.len()),
        if reached {
            "look at its log"
        } else {
            "the coordinator does not reach it: look at listen_addresses and pg_hba.conf there"
        },
    ))
}
