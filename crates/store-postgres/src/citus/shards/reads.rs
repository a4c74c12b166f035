//! Reads shards: sends statements to the nodes that have the shards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::call::{ShardCall, rows_here};
use super::detour::Detour;
use super::map::{MapFault, ShardMap};
use super::merge::ShardPage;
use super::worker::{SILENT, Worker, WorkerFault};
use crate::cluster::NodeAddress;
use crate::connector::Connector;
use crate::error::StatementError;
use crate::search::StepSession;
use crate::session::{DatabaseSession, StatementCall, TracedStatement};

/// Time after which the map is read again, and after which a cluster without a map is tried again.
///
/// While the coordinator cannot reach the node that had a moved shard, this node may not learn that
/// the move has ended. Then only the coordinator's map is right.
const MAP_AGE_MAX: Duration = Duration::from_secs(5);
/// How many times a question is tried, each time with a new map or with new sessions.
const ROUNDS_MAX: usize = 3;

/// Reads the shards of a shelf without the coordinator.
pub(crate) struct ShardReads {
    coordinator: Connector,
    sessions_max: usize,
    known: Mutex<KnownShards>,
    /// Whether the coordinator reaches the nodes that cannot be reached from here.
    detour: Detour,
}

/// The known shards and nodes.
#[derive(Default)]
struct KnownShards {
    /// `None` if the map must be read before the next question.
    map: Option<Arc<ShardMap>>,
    /// When the map was read, or could not be read.
    read: Option<Instant>,
    /// The hash of the nodes' addresses that was noted last.
    nodes: Option<i64>,
    /// The number of different hashes that were noted so far. If this number changes while a map is
    /// read, the map may be older than the last hash.
    changes: u64,
    /// The logged reason why questions go through the coordinator. Set until a question has been
    /// sent to the workers.
    reason: Option<String>,
    /// The sessions of each node with shards; `None` stands for the coordinator.
    workers: BTreeMap<Option<NodeAddress>, Arc<Worker>>,
}

impl KnownShards {
    /// Sends all questions through the coordinator until the map is read again.
    fn close(&mut self, reason: String) {
        if self.reason.as_ref() != Some(&reason) {
            tracing::warn!(reason, "questions go through the coordinator");
        }
        (self.map, self.read, self.reason) = (None, Some(Instant::now()), Some(reason));
    }
}

impl ShardReads {
    pub(crate) fn new(coordinator: Connector, sessions_max: usize) -> Self {
        Self { coordinator, sessions_max, known: Mutex::default(), detour: Detour::default() }
    }

    /// Notes a hash of the nodes' addresses; see [`NODES`](crate::citus::sql::NODES). If the map
    /// has another hash, the map is read again before the next question.
    pub(crate) fn note_nodes(&self, nodes: i64) {
        let mut known = self.known.lock();
        if known.nodes.replace(nodes) == Some(nodes) {
            return;
        }
        known.changes += 1;
        if known.map.as_ref().is_some_and(|map| map.nodes != nodes) {
            (known.map, known.read) = (None, None);
        }
    }

    /// Notes the result of a step of a search, which may have read shards through the coordinator.
    pub(in crate::citus) fn ended<T>(
        &self,
        result: Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        self.detour.ended(result.as_ref().err());
        result
    }

    /// Reads shards: executes the statements that `plan` makes. Returns a page for each statement,
    /// in order. All pages together have about `bytes_max` bytes at most. Returns `None` if the
    /// question must go through the coordinator, or needs a session with the coordinator to read
    /// the map.
    pub(in crate::citus) fn read<'a>(
        &self,
        coordinator: &mut StepSession<'_>,
        bytes_max: usize,
        plan: impl Fn(&ShardMap) -> Option<Vec<ShardCall<'a>>>,
    ) -> Result<Option<Vec<ShardPage>>, StatementError> {
        let mut old: Option<Arc<ShardMap>> = None;
        for _ in 0..ROUNDS_MAX {
            let Some(map) = self.map(coordinator, old.as_ref())? else { return Ok(None) };
            let Some(calls) = plan(&map) else { return Ok(None) };
            match self.ask(coordinator, &map, &calls, bytes_max) {
                Ok(pages) => {
                    if self.known.lock().reason.take().is_some() {
                        tracing::info!("questions are sent to the workers again");
                    }
                    return Ok(Some(pages));
                }
                Err(WorkerFault::Moved) => old = Some(map),
                Err(WorkerFault::Lost) => {}
                // The coordinator may reach the node, or wait for it in vain.
                Err(WorkerFault::Closed) => {
                    return self.detour.admit().map(|()| None);
                }
                Err(WorkerFault::Failed(fault)) => return Err(fault),
            }
        }
        // Either a move is about to end, or the nodes do not have the metadata of the cluster. The
        // caller has a session: the map could not have been read again without a session.
        self.known
            .lock()
            .close("the workers do not have the shards that the coordinator names".into());
        Ok(None)
    }

    /// Returns the map. Reads the map again if it is too old, or if it is still `old`.
    fn map(
        &self,
        coordinator: &mut StepSession<'_>,
        old: Option<&Arc<ShardMap>>,
    ) -> Result<Option<Arc<ShardMap>>, StatementError> {
        let mut known = self.known.lock();
        let is_young = known.read.is_some_and(|read| read.elapsed() < MAP_AGE_MAX);
        let is_other = match (&known.map, old) {
            (Some(map), Some(old)) => !Arc::ptr_eq(map, old),
            _ => true,
        };
        if is_young && is_other {
            return Ok(known.map.clone());
        }
        if !is_other {
            (known.map, known.read) = (None, None);
        }
        let Some(coordinator) = &mut coordinator.session else { return Ok(None) };
        // While this question reads the map, other questions use the old map.
        known.read = known.map.is_some().then(Instant::now);
        let changes = known.changes;
        drop(known);
        let read = ShardMap::read(coordinator);
        let mut known = self.known.lock();
        if known.changes != changes {
            // This question began before the other hash was noted, and does not depend on the hash.
            return Ok(read.ok().map(Arc::new));
        }
        known.read = Some(Instant::now());
        match read {
            Ok(map) => {
                let addresses: Vec<_> = map.addresses.values().cloned().collect();
                known.workers.retain(|address, _| addresses.contains(address));
                known.map = Some(Arc::new(map));
                Ok(known.map.clone())
            }
            // This question runs on a replica, whose map may be old.
            Err(MapFault::Standby) => {
                (known.map, known.read) = (None, Some(Instant::now()));
                Ok(None)
            }
            Err(MapFault::Database(fault)) if fault.is_away() => {
                (known.map, known.read) = (None, None);
                Err(fault)
            }
            Err(fault) => {
                known.close(fault.to_string());
                Ok(None)
            }
        }
    }

    /// Returns the sessions of a node.
    fn worker(&self, map: &ShardMap, group: i32) -> Option<Arc<Worker>> {
        let address = map.addresses.get(&group)?;
        let mut known = self.known.lock();
        let worker = known.workers.entry(address.clone()).or_insert_with(|| {
            let (name, connector) = match address {
                Some(address) => (address.to_string(), self.coordinator.to_worker(address)),
                None => (self.coordinator.name(), self.coordinator.on_shards()),
            };
            Arc::new(Worker::new(name, connector, self.sessions_max))
        });
        Some(Arc::clone(worker))
    }

    /// Executes statements, on all nodes at the same time.
    fn ask(
        &self,
        coordinator: &mut StepSession<'_>,
        map: &ShardMap,
        calls: &[ShardCall<'_>],
        bytes_max: usize,
    ) -> Result<Vec<ShardPage>, WorkerFault> {
        let mut groups: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
        for (at, call) in calls.iter().enumerate() {
            groups.entry(call.group).or_default().push(at);
        }
        let values: Vec<_> = calls.iter().map(ShardCall::values).collect();
        let mut workers = Vec::with_capacity(groups.len());
        for (group, calls_of) in groups {
            let worker = self.worker(map, group).ok_or(WorkerFault::Moved)?;
            let statements: Vec<StatementCall<'_>> =
                calls_of.iter().map(|at| (calls[*at].statement(), &values[*at][..])).collect();
            workers.push((worker, calls_of, statements));
        }
        // All questions lease sessions in the same order, which prevents a deadlock.
        let mut leases = Vec::with_capacity(workers.len());
        for (worker, ..) in &workers {
            match worker.lease(coordinator.deadline) {
                Ok(lease) => leases.push(lease),
                Err(fault) => {
                    for lease in leases {
                        lease.end(None);
                    }
                    return Err(fault);
                }
            }
        }
        let bytes_max = bytes_max / calls.len().max(1);
        let mut has_failed = false;
        let sessions = leases.iter_mut().zip(&workers).map(|(lease, (_, _, statements))| {
            // The first fault may have used up the time of the question. A statement that begins
            // now on another session would wrongly count as late.
            if has_failed {
                return None;
            }
            let away = || StatementError::Away("the session was lost".into());
            let session = lease.lease.session().ok_or_else(away);
            let begun = session.and_then(|session| session.begin(statements, bytes_max));
            has_failed = begun.is_err();
            Some(begun)
        });
        let running: Vec<_> = sessions.collect();
        let answers = running.into_iter().zip(&workers).map(|(running, (worker, ..))| {
            running.map(|running| running?.wait(SILENT, &mut || worker.may_answer()))
        });
        let answers: Vec<_> = answers.collect();
        let mut pages: Vec<Option<ShardPage>> = calls.iter().map(|_| None).collect();
        let mut failed = None;
        for ((mut leased, (worker, calls_of, statements)), answer) in
            leases.into_iter().zip(&workers).zip(answers)
        {
            let Some(answer) = answer else {
                leased.end(None);
                continue;
            };
            let answer = answer.and_then(|answer| {
                let traced = coordinator.session.as_mut().filter(|session| session.is_traced());
                if let Some((traced, session)) = traced.zip(leased.lease.session()) {
                    trace(traced, session, &worker.name, statements, &answer)?;
                }
                Ok(answer)
            });
            let was_idle = leased.lease.was_idle;
            leased.end(answer.as_ref().err());
            match answer {
                Ok(answer) => {
                    worker.answered();
                    for (at, (rows, is_cut)) in calls_of.iter().zip(answer) {
                        pages[*at] = rows_here(rows).map(|rows| ShardPage { rows, is_cut });
                    }
                }
                Err(fault) => failed = Some(worker.decide(fault, was_idle)),
            }
        }
        match failed {
            Some(fault) => Err(fault),
            None => pages.into_iter().collect::<Option<_>>().ok_or(WorkerFault::Moved),
        }
    }
}

/// Notes the statements that a worker has executed, with their plans.
fn trace(
    coordinator: &mut DatabaseSession,
    session: &mut DatabaseSession,
    worker: &str,
    statements: &[StatementCall<'_>],
    answers: &[(Vec<tokio_postgres::Row>, bool)],
) -> Result<(), StatementError> {
    for ((form, values), (rows, _)) in statements.iter().zip(answers) {
        let text = form.text();
        let plan = session.explain(&text, values)?;
        let worker = Some(worker.to_owned());
        coordinator.add_trace(TracedStatement {
            form: *form,
            worker,
            text,
            rows: rows.len(),
            plan,
        });
    }
    Ok(())
}
