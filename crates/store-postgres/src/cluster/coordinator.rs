//! Connections to the coordinator and to the other nodes.
//!
//! A node is reached at the host and port that the cluster knows. The user, password, database and
//! TLS settings come from the coordinator's URL.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::ClusterError;
use super::nodes::{ClusterNode, NodeAddress};
use super::watched::{LOOK_EVERY, NodeSession, StatementWatch};
use crate::address::DatabaseAddress;
use crate::connector::Connector;
use crate::error::StatementError;

/// Time limit of a statement that moves no rows. The longest such statement adds a node: it writes
/// all tables of the cluster to the node.
pub(crate) const STATEMENT_MAX: Duration = Duration::from_mins(15);
/// Time limit for a node to accept a connection, and for a query about the node itself.
pub(crate) const NODE_ANSWERS: Duration = Duration::from_secs(5);
/// Maximum number of nodes that are queried at once.
const NODES_AT_ONCE: usize = 16;
/// The number of the advisory lock on the coordinator that is held while shards are moved: the
/// letters of "hark" and "move".
const LOCK: i64 = 0x6861_726b_6d6f_7665;
/// How long to wait for the lock. The connection of a killed process may be closed late.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// The name of the coordinator in reports.
const NAME: &str = "the coordinator";

/// A connection to the coordinator of a cluster.
pub struct Coordinator {
    address: DatabaseAddress,
    session: NodeSession,
}

impl Coordinator {
    /// Connects to the database at `url`. It must be the coordinator of a cluster.
    pub fn open(url: &str) -> Result<Self, ClusterError> {
        let address = DatabaseAddress::read(url)?;
        let connector = Connector::to_node(address.clone(), STATEMENT_MAX);
        let watch = StatementWatch::default();
        let mut session = NodeSession::open(&connector, NAME, NODE_ANSWERS, &watch)?;
        let found = "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus')";
        if !session.query_once(found, &[])?.first().is_some_and(|row| row.get(0)) {
            return Err(ClusterError::NotCluster(format!(
                "{} has no extension `citus`, so it is no cluster; name the coordinator of one with \
                 --store postgres://user@host/database, or make this database one: CREATE EXTENSION \
                 citus",
                connector.name()
            )));
        }
        // With this timeout, statements do not wait long for a node that does not answer.
        session
            .batch(&format!("SET citus.node_connection_timeout TO {}", NODE_ANSWERS.as_millis()))?;
        let mut found = Self { address, session };
        let group = found.query("SELECT groupid FROM pg_dist_local_group", &[])?;
        if group.first().is_some_and(|row| row.get::<_, i32>(0) != 0) {
            let nodes = found.nodes()?;
            let real = nodes.iter().find(|node| node.group == 0);
            let real = real.map_or(String::new(), |node| format!(", which is {}", node.address));
            return Err(ClusterError::NotCluster(format!(
                "{} is a worker of its cluster; name the coordinator{real} with --store",
                connector.name()
            )));
        }
        Ok(found)
    }

    /// Sets what happens while statements wait, on the coordinator and on the other nodes.
    pub fn watch(&mut self, watch: StatementWatch) {
        self.session.watch(watch);
    }

    /// Executes a statement with values on the coordinator.
    pub(crate) fn query(
        &mut self,
        text: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, ClusterError> {
        Ok(self.session.query_once(text, values)?)
    }

    /// Executes statements without values on the coordinator.
    pub(crate) fn batch(&mut self, text: &str) -> Result<(), ClusterError> {
        Ok(self.session.batch(text)?)
    }

    /// Opens another session with the coordinator, with `limit` as the time limit of a statement.
    pub(crate) fn another(&self, limit: Duration) -> Result<NodeSession, ClusterError> {
        let connector = Connector::to_node(self.address.clone(), limit);
        Ok(NodeSession::open(&connector, NAME, NODE_ANSWERS, self.session.watch_of())?)
    }

    /// The name of the database.
    pub(crate) fn database(&self) -> String {
        self.address.config.get_dbname().or(self.address.config.get_user()).unwrap_or("").into()
    }

    /// The first host and port of the coordinator's URL; `None` if the host is a directory of
    /// sockets.
    pub(crate) fn own_address(&self) -> Option<NodeAddress> {
        let host = self.address.hosts().next().filter(|host| !host.starts_with('/'))?;
        let port = self.address.config.get_ports().first().copied().unwrap_or(5432);
        Some(NodeAddress { host, port })
    }

    /// Returns a connector for a node.
    pub(crate) fn to_node(&self, node: &NodeAddress) -> NodeConnector {
        self.connector(node, None, NODE_ANSWERS)
    }

    /// Returns a connector for another database of a node.
    pub(crate) fn to_database(&self, node: &NodeAddress, database: &str) -> NodeConnector {
        self.connector(node, Some(database), STATEMENT_MAX)
    }

    fn connector(
        &self,
        node: &NodeAddress,
        database: Option<&str>,
        limit: Duration,
    ) -> NodeConnector {
        let connector = Connector::to_node(self.address.of_node(node, database), limit);
        let watch = self.session.watch_of().clone();
        NodeConnector { connector, node: node.to_string(), watch }
    }

    /// Returns all nodes, the coordinator first.
    pub fn nodes(&mut self) -> Result<Vec<ClusterNode>, ClusterError> {
        Ok(self.query(ClusterNode::QUERY, &[])?.iter().map(ClusterNode::of_row).collect())
    }

    /// Returns the node with this address.
    pub(crate) fn node(&mut self, address: &NodeAddress) -> Result<ClusterNode, ClusterError> {
        let nodes = self.nodes()?;
        let known: Vec<String> = nodes.iter().map(|node| node.address.to_string()).collect();
        nodes.into_iter().find(|node| node.address == *address).ok_or_else(|| {
            ClusterError::Refused(format!(
                "{address} is no node of this cluster; its nodes are {}. Nothing was changed",
                known.join(", ")
            ))
        })
    }

    /// Acquires the lock for moving shards. Only one process at a time can have this lock. The lock
    /// is released when the connection ends, even if this process is killed.
    pub(crate) fn lock(&mut self) -> Result<(), ClusterError> {
        let until = Instant::now() + LOCK_WAIT;
        loop {
            let taken = self.query("SELECT pg_try_advisory_lock($1)", &[&LOCK])?;
            if taken.first().is_some_and(|row| row.get(0)) {
                return Ok(());
            }
            if self.session.watch_of().stop.load(Ordering::Relaxed) {
                return Err(ClusterError::Interrupted);
            }
            if Instant::now() > until {
                return Err(ClusterError::Refused(
                    "another `hark cluster` changes this cluster; nothing was changed here. Run the \
                     command again when the other is done"
                        .into(),
                ));
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// Opens sessions on one node.
#[derive(Clone)]
pub(crate) struct NodeConnector {
    connector: Connector,
    node: String,
    watch: StatementWatch,
}

impl NodeConnector {
    /// Opens a session.
    pub(crate) fn open(&self) -> Result<NodeSession, StatementError> {
        self.open_within(NODE_ANSWERS)
    }

    /// Opens a session, or fails after `limit`.
    pub(crate) fn open_within(&self, limit: Duration) -> Result<NodeSession, StatementError> {
        NodeSession::open(&self.connector, &self.node, limit, &self.watch)
    }
}

/// Calls `ask` for each item, up to `NODES_AT_ONCE` items at the same time, and returns the results
/// in order. If a call panics, its result is `None`.
pub(crate) fn each<T: Sync, R: Send>(items: &[T], ask: impl Fn(&T) -> R + Sync) -> Vec<Option<R>> {
    let ask = &ask;
    let mut results = Vec::with_capacity(items.len());
    for some in items.chunks(NODES_AT_ONCE) {
        thread::scope(|scope| {
            let threads: Vec<_> = some.iter().map(|item| scope.spawn(move || ask(item))).collect();
            results.extend(threads.into_iter().map(|thread| thread.join().ok()));
        });
    }
    results
}
