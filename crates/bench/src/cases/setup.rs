//! The setups to which questions are sent: servers of Hark, and their servers of PostgreSQL.

use std::time::Duration;

use super::bounded::BoundedPostgres;
use super::cluster::GrowingCluster;
use super::machine::HarkProcess;
use super::model::{ClusterSize, ServerCores, ServerCount};
use crate::process::{ProcessTree, TreeCpuTime};
use crate::websocket::Url;
use crate::words::number;

/// The duty of a server in a setup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerDuty {
    /// Answers questions.
    Hark,
    /// Answers Hark's statements: PostgreSQL without Citus, or the coordinator of a cluster.
    Database,
    /// Has shards of a cluster.
    Worker,
}

/// Servers that answer together.
pub(super) struct CaseSetup<'a> {
    /// The name in tables.
    pub(super) name: String,
    pub(super) count: ServerCount,
    /// The addresses to which questions are sent, one after the other.
    pub(super) urls: Vec<Url>,
    pub(super) harks: Vec<HarkProcess>,
    pub(super) databases: Vec<&'a BoundedPostgres>,
    pub(super) workers: Vec<&'a BoundedPostgres>,
}

/// Returns the name of a cluster in tables.
pub(super) fn cluster_name(workers: usize) -> String {
    let plural = if workers == 1 { "" } else { "s" };
    format!("Citus, {} worker{plural}", number(workers as u64))
}

/// The CPU time of each server of a setup at one moment. The order of the servers never changes.
pub(super) struct SetupCpu(Vec<(ServerDuty, TreeCpuTime)>);

/// The CPU time that the servers of a setup have used between two moments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SpentCpu {
    /// CPU time of all servers of Hark.
    pub(super) hark: Duration,
    /// CPU time of the databases that Hark queries.
    pub(super) database: Duration,
    /// CPU time of all workers, and of the busiest worker alone.
    pub(super) workers: Duration,
    pub(super) busiest: Duration,
}

impl<'a> CaseSetup<'a> {
    /// Makes a setup of running servers, of which only the addresses are known.
    pub(super) fn elsewhere(urls: &[Url]) -> Self {
        let count = urls.len();
        let name = if count == 1 { "1 server".into() } else { format!("{count} servers") };
        let none = Vec::new();
        let (urls, harks, workers) = (urls.to_vec(), Vec::new(), Vec::new());
        Self { name, count: ServerCount::Pairs(count), urls, harks, databases: none, workers }
    }

    /// Makes a setup of started pairs of Hark and PostgreSQL.
    pub(super) fn pairs(harks: Vec<HarkProcess>, databases: Vec<&'a BoundedPostgres>) -> Self {
        let pairs = databases.len();
        let name = if pairs == 1 { "1 pair".into() } else { format!("{pairs} pairs") };
        let urls = harks.iter().map(|hark| hark.url().clone()).collect();
        let (count, workers) = (ServerCount::Pairs(pairs), Vec::new());
        Self { name, count, urls, harks, databases, workers }
    }

    /// Makes a setup of one started Hark on this cluster.
    pub(super) fn cluster(
        hark: HarkProcess,
        cluster: &'a GrowingCluster,
        size: ClusterSize,
    ) -> Self {
        Self {
            name: cluster_name(size.workers),
            count: ServerCount::Cluster(size),
            urls: vec![hark.url().clone()],
            harks: vec![hark],
            databases: vec![&cluster.coordinator],
            workers: cluster.workers.iter().collect(),
        }
    }

    fn processes(&self) -> impl Iterator<Item = (ServerDuty, ProcessTree)> {
        let of = |duty| move |server: &&BoundedPostgres| (duty, server.process.processes());
        let harks = self.harks.iter().map(|hark| (ServerDuty::Hark, hark.processes()));
        harks
            .chain(self.databases.iter().map(of(ServerDuty::Database)))
            .chain(self.workers.iter().map(of(ServerDuty::Worker)))
    }

    /// Returns the CPU time that each server has used so far.
    pub(super) fn used(&self) -> anyhow::Result<SetupCpu> {
        let used = self.processes().map(|(duty, tree)| Ok((duty, tree.used()?)));
        Ok(SetupCpu(used.collect::<anyhow::Result<_>>()?))
    }

    /// Bounds the CPU of each server of PostgreSQL. `None` removes the bounds. Returns whether all
    /// servers could be bounded.
    pub(super) fn bound(&self, cores: Option<ServerCores>) -> anyhow::Result<bool> {
        let of_database = cores.map(|cores| cores.database(self.count));
        let of_worker = cores.map(|cores| cores.postgres);
        let databases = self.databases.iter().map(|server| (server, of_database));
        let workers = self.workers.iter().map(|server| (server, of_worker));
        let mut all = true;
        for (server, cores) in databases.chain(workers) {
            match &server.quota {
                Some(quota) => quota.set(cores)?,
                None => all = false,
            }
        }
        Ok(all && !self.databases.is_empty())
    }
}

impl SetupCpu {
    pub(super) fn minus(&self, before: &Self) -> SpentCpu {
        let mut spent = SpentCpu::default();
        for ((duty, used), (_, before)) in self.0.iter().zip(&before.0) {
            let time = used.minus(before);
            match duty {
                ServerDuty::Hark => spent.hark += time,
                ServerDuty::Database => spent.database += time,
                ServerDuty::Worker => {
                    spent.workers += time;
                    spent.busiest = spent.busiest.max(time);
                }
            }
        }
        spent
    }
}

impl SpentCpu {
    pub(super) fn add(&mut self, other: &Self) {
        self.hark += other.hark;
        self.database += other.database;
        self.workers += other.workers;
        self.busiest += other.busiest;
    }
}
