//! A Citus cluster for tests: a coordinator and workers, each of which is a separate [`Cluster`] on
//! loopback.
//!
//! Debian has no package of Citus. If Citus is not installed in PostgreSQL's directories, the tests
//! that need Citus are skipped.

use std::sync::LazyLock;

use parking_lot::Mutex;

use crate::postgres::{Cluster, Database};
use crate::skipped::skip;

/// Settings of every node. They load Citus, and allow shards to move while writes continue.
const SETTINGS: [&str; 8] = [
    "shared_preload_libraries=citus",
    // Without this setting, Citus would create a self-signed certificate, which no client can
    // trust.
    "citus.node_conninfo=sslmode=disable",
    "wal_level=logical",
    "max_prepared_transactions=200",
    "max_wal_senders=30",
    "max_replication_slots=30",
    "citus.recover_2pc_interval=1s",
    "wal_retrieve_retry_interval=200ms",
];

/// Returns whether Citus is installed in PostgreSQL's directories. If not, the running test counts
/// as skipped.
pub fn is_installed() -> bool {
    let found = Cluster::has_extension("citus");
    if !found {
        skip("PostgreSQL has no extension `citus` here");
    }
    found
}

/// A coordinator and its workers.
pub struct CitusCluster {
    /// The node to which Hark connects.
    pub coordinator: Cluster,
    /// The nodes that have the shards.
    pub workers: Vec<Cluster>,
    making: Mutex<()>,
}

impl CitusCluster {
    /// Returns the shared cluster of three workers for all tests of this process.
    pub fn shared() -> &'static Self {
        static SHARED: LazyLock<CitusCluster> =
            LazyLock::new(|| CitusCluster::with(3, &["fsync=off"]));
        &SHARED
    }

    /// Starts a cluster whose nodes have these additional settings, each as `name=value`.
    pub fn with(workers: usize, settings: &[&str]) -> Self {
        let node = || Self::node(settings);
        Self {
            coordinator: node(),
            workers: (0..workers).map(|_| node()).collect(),
            making: Mutex::new(()),
        }
    }

    /// Starts a node that belongs to no cluster yet.
    pub fn node(settings: &[&str]) -> Cluster {
        let all: Vec<&str> = SETTINGS.iter().chain(settings).copied().collect();
        Cluster::with(&all)
    }

    /// Creates a database for a test on all nodes, and joins the nodes to a cluster in this
    /// database.
    pub fn database(&self, test: &str) -> Database<'_> {
        // The lock prevents conflicts: adding nodes to two databases at the same time would change
        // the same rows.
        let _alone = self.making.lock();
        let database = self.coordinator.database(test);
        self.join(&database);
        database
    }

    /// Creates a database on the coordinator's server only. In this database, the server is not yet
    /// a coordinator.
    pub fn alone(&self, test: &str) -> Database<'_> {
        self.coordinator.database(test)
    }

    /// Joins all nodes to a cluster in a database that [`CitusCluster::alone`] created.
    pub fn unite(&self, database: &Database<'_>) {
        let _alone = self.making.lock();
        self.join(database);
    }

    fn join(&self, database: &Database<'_>) {
        let name = &database.name;
        database.sql("CREATE EXTENSION citus");
        let port = self.coordinator.port();
        database.sql(&format!("SELECT citus_set_coordinator_host('127.0.0.1', {port})"));
        for worker in &self.workers {
            Self::prepare(worker, name);
            database.sql(&format!("SELECT citus_add_node('127.0.0.1', {})", worker.port()));
        }
    }

    /// Creates a database on a node. The node can then be added to a cluster in this database.
    pub fn prepare(node: &Cluster, database: &str) {
        node.sql("postgres", &format!("CREATE DATABASE {database}"));
        node.sql(database, "CREATE EXTENSION citus");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_spread_over_all_workers() {
        if !is_installed() {
            return;
        }
        let cluster = CitusCluster::with(2, &["fsync=off", "citus.shard_count=4"]);
        let database = cluster.database("spread");
        database.sql("CREATE TABLE t (n int); SELECT create_distributed_table('t', 'n')");
        database.sql("INSERT INTO t SELECT generate_series(1, 100)");
        assert_eq!(database.sql("SELECT count(*) FROM t"), "100");
        let nodes =
            "SELECT count(DISTINCT nodeport) FROM citus_shards WHERE table_name = 't'::regclass";
        assert_eq!(database.sql(nodes), "2");
    }
}
