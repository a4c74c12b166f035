//! A Citus cluster that grows: a coordinator and workers, and the events in their shards.

use anyhow::Context as _;
use tokio_postgres::Client;

use super::bounded::BoundedPostgres;
use super::machine::{CpuQuota, InstalledPostgres, RunDirectory, TrafficCounter};

/// The name of the database with Hark's events on every server.
pub(super) const DATABASE: &str = "hark";

/// Starts servers of PostgreSQL with the programs and the directory of a run.
pub(super) struct PostgresStarter<'a> {
    pub(super) run: &'a RunDirectory,
    pub(super) installed: &'a InstalledPostgres,
    /// Whether servers get a control group, which can bound their CPU.
    pub(super) with_quotas: bool,
}

impl PostgresStarter<'_> {
    /// Starts a server with an empty database.
    pub(super) fn start(&self, name: &str, with_citus: bool) -> anyhow::Result<BoundedPostgres> {
        let process = self.installed.start(self.run, name, with_citus)?;
        process.server()?.create(DATABASE, false)?;
        self.bounded(name, process)
    }

    /// Starts a copy of a server.
    pub(super) fn copy(&self, name: &str, of: &BoundedPostgres) -> anyhow::Result<BoundedPostgres> {
        self.bounded(name, self.installed.copy(self.run, name, &of.process)?)
    }

    fn bounded(
        &self,
        name: &str,
        process: super::machine::PostgresProcess,
    ) -> anyhow::Result<BoundedPostgres> {
        let quota = || CpuQuota::new(self.run, name, process.processes());
        let quota = self.with_quotas.then(quota).transpose()?;
        Ok(BoundedPostgres { process, quota })
    }
}

/// A coordinator and its workers.
pub(super) struct GrowingCluster {
    pub(super) coordinator: BoundedPostgres,
    pub(super) workers: Vec<BoundedPostgres>,
}

impl GrowingCluster {
    /// Starts a cluster with this number of workers, without any tables.
    pub(super) fn start(starter: &PostgresStarter<'_>, workers: usize) -> anyhow::Result<Self> {
        let coordinator = starter.start("coordinator", true)?;
        let port = coordinator.process.port();
        run_sql(
            &coordinator,
            &[
                "CREATE EXTENSION citus".into(),
                format!("SELECT citus_set_coordinator_host('127.0.0.1', {port})"),
            ],
        )?;
        let mut cluster = Self { coordinator, workers: Vec::new() };
        for _ in 0..workers {
            cluster.add_worker(starter)?;
        }
        Ok(cluster)
    }

    /// Adds a worker that has no shards yet.
    fn add_worker(&mut self, starter: &PostgresStarter<'_>) -> anyhow::Result<()> {
        let name = format!("worker-{}", self.workers.len() + 1);
        let worker = starter.start(&name, true)?;
        run_sql(&worker, &["CREATE EXTENSION citus".into()])?;
        let add = format!("SELECT citus_add_node('127.0.0.1', {})", worker.process.port());
        run_sql(&self.coordinator, &[add])?;
        self.workers.push(worker);
        Ok(())
    }

    /// Adds workers up to this number, and moves shards until every worker has the same number of
    /// shards.
    pub(super) fn grow(
        &mut self,
        starter: &PostgresStarter<'_>,
        workers: usize,
    ) -> anyhow::Result<()> {
        while self.workers.len() < workers {
            self.add_worker(starter)?;
        }
        let balance = "SELECT rebalance_table_shards(shard_transfer_mode => 'block_writes', \
            rebalance_strategy => 'by_shard_count')";
        run_sql(&self.coordinator, &["SET client_min_messages = warning".into(), balance.into()])
            .context("the shards could not be spread over the new workers")?;
        self.run_maintenance()
    }

    /// Runs on all nodes the maintenance that PostgreSQL would otherwise run during the
    /// measurement.
    pub(super) fn run_maintenance(&self) -> anyhow::Result<()> {
        for node in std::iter::once(&self.coordinator).chain(&self.workers) {
            node.process.server()?.run_maintenance(DATABASE)?;
        }
        Ok(())
    }

    /// Returns the number of shards of the events.
    pub(super) fn shards(&self) -> anyhow::Result<usize> {
        let (runtime, client) = self.coordinator.process.server()?.connect(DATABASE)?;
        let sql = "SELECT count(*) FROM pg_dist_shard s JOIN pg_class c \
            ON c.oid = s.logicalrelid WHERE c.relname = 'record'";
        let row = runtime.block_on(client.query_one(sql, &[]));
        let shards: i64 = row.context("the shards could not be counted")?.get(0);
        Ok(usize::try_from(shards)?)
    }

    /// Connects the coordinator to its workers through ports that count the traffic.
    pub(super) fn count_traffic(&self) -> anyhow::Result<Vec<TrafficCounter>> {
        let mut counters = Vec::with_capacity(self.workers.len());
        for worker in &self.workers {
            let port = worker.process.port();
            let counter = TrafficCounter::new(port)?;
            self.move_worker(port, counter.port())?;
            counters.push(counter);
        }
        Ok(counters)
    }

    /// Connects the coordinator directly to its workers again.
    pub(super) fn count_no_traffic(&self, counters: &[TrafficCounter]) -> anyhow::Result<()> {
        for (worker, counter) in self.workers.iter().zip(counters) {
            self.move_worker(counter.port(), worker.process.port())?;
        }
        // All nodes must know each other's ports before another node is added.
        let sync = "SELECT start_metadata_sync_to_all_nodes()".into();
        run_sql(&self.coordinator, &["SET client_min_messages = warning".into(), sync])
    }

    fn move_worker(&self, from: u16, to: u16) -> anyhow::Result<()> {
        let sql = format!(
            "SELECT citus_update_node(nodeid, '127.0.0.1', {to}) FROM pg_dist_node \
             WHERE nodeport = {from}"
        );
        run_sql(&self.coordinator, &[sql])
    }
}

/// Runs statements in the database of a server, each by itself.
fn run_sql(on: &BoundedPostgres, statements: &[String]) -> anyhow::Result<()> {
    let (runtime, client): (_, Client) = on.process.server()?.connect(DATABASE)?;
    for sql in statements {
        runtime.block_on(client.batch_execute(sql)).with_context(|| sql.clone())?;
    }
    Ok(())
}
