//! The cost model: how many questions per second the servers can answer.
//!
//! A server's capacity is its share of CPU divided by the CPU that a question takes there. The
//! lowest capacity of Hark, the database or coordinator, and the busiest worker bounds the whole
//! system:
//!
//! ```text
//! questions/s = min(n * H / h,  n * D / d,  S / (w * ceil(s / W) / s))
//! ```
//!
//! with h, d, w the CPU of a question in Hark, in the database or coordinator, and in all workers
//! together; H the cores of Hark; D and S the cores of the database and of a worker; n the number
//! of pairs (1 for a cluster), s the shards of a table and W the workers. The busiest worker has
//! ceil(s / W) of the s shards. The costs are the means of all measured pairs, and of all measured
//! clusters. The model assumes the same costs for any number of servers, and the check compares
//! this assumption with measured runs. Questions do not use all shards equally. If the share of the
//! busiest worker was measured, that share replaces ceil(s / W) / s.

/// The CPU that a question takes, in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[expect(clippy::struct_field_names, reason = "units stand last in names")]
pub(super) struct QuestionCpu {
    pub(super) hark_ms: f64,
    /// In the database that Hark queries: PostgreSQL without Citus, or the coordinator.
    pub(super) database_ms: f64,
    /// In all workers together. 0 without workers.
    pub(super) workers_ms: f64,
}

impl QuestionCpu {
    /// Returns the mean of several values. `None` if there are none.
    pub(super) fn mean(of: impl Iterator<Item = Self>) -> Option<Self> {
        let (mut sum, mut count) = (Self::default(), 0.0);
        for one in of {
            sum.hark_ms += one.hark_ms;
            sum.database_ms += one.database_ms;
            sum.workers_ms += one.workers_ms;
            count += 1.0;
        }
        (count > 0.0).then(|| Self {
            hark_ms: sum.hark_ms / count,
            database_ms: sum.database_ms / count,
            workers_ms: sum.workers_ms / count,
        })
    }
}

/// The CPU that servers have, in cores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ServerCores {
    pub(super) hark: f64,
    /// Cores of each worker, and of each server of PostgreSQL without Citus.
    pub(super) postgres: f64,
    pub(super) coordinator: f64,
}

/// The servers that answer together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerCount {
    /// Pairs of Hark and PostgreSQL.
    Pairs(usize),
    /// One Hark on a cluster.
    Cluster(ClusterSize),
}

impl ServerCount {
    /// Returns the number of workers; 0 if there is no cluster.
    pub(super) fn workers(self) -> usize {
        match self {
            Self::Pairs(_) => 0,
            Self::Cluster(size) => size.workers,
        }
    }

    /// Returns the number of servers that Hark connects to.
    pub(super) fn databases(self) -> usize {
        match self {
            Self::Pairs(pairs) => pairs,
            Self::Cluster(_) => 1,
        }
    }
}

impl ServerCores {
    /// Returns the cores of each server that Hark connects to.
    pub(super) fn database(self, of: ServerCount) -> f64 {
        match of {
            ServerCount::Pairs(_) => self.postgres,
            ServerCount::Cluster(_) => self.coordinator,
        }
    }
}

/// Workers of a cluster, and the shards of each table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClusterSize {
    pub(super) workers: usize,
    pub(super) shards: usize,
}

/// The questions per second that each kind of server can answer.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::struct_field_names, reason = "units stand last in names")]
pub(super) struct Throughput {
    pub(super) hark_per_s: f64,
    pub(super) database_per_s: f64,
    /// `None` without workers.
    pub(super) workers_per_s: Option<f64>,
}

impl ClusterSize {
    /// Returns the share of all shards that the busiest worker has.
    fn busiest_share(self) -> f64 {
        let Self { workers, shards } = self;
        shards.max(1).div_ceil(workers.max(1)) as f64 / shards.max(1) as f64
    }
}

impl Throughput {
    /// Predicts the throughput of these servers. `busiest` is the measured share of the busiest
    /// worker; `None` if the share was not measured.
    pub(super) fn predict(
        cpu: QuestionCpu,
        cores: ServerCores,
        servers: ServerCount,
        busiest: Option<f64>,
    ) -> Self {
        let count = servers.databases() as f64;
        let per_s = |cores: f64, ms: f64| if ms > 0.0 { cores * 1e3 / ms } else { f64::INFINITY };
        Self {
            hark_per_s: count * per_s(cores.hark, cpu.hark_ms),
            database_per_s: count * per_s(cores.database(servers), cpu.database_ms),
            workers_per_s: match servers {
                ServerCount::Pairs(_) => None,
                ServerCount::Cluster(size) => {
                    let busiest = busiest.unwrap_or_else(|| size.busiest_share());
                    Some(per_s(cores.postgres, cpu.workers_ms * busiest))
                }
            },
        }
    }

    /// Returns the questions per second that all servers together can answer.
    pub(super) fn per_s(self) -> f64 {
        let workers = self.workers_per_s.unwrap_or(f64::INFINITY);
        self.hark_per_s.min(self.database_per_s).min(workers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORES: ServerCores = ServerCores { hark: 1.0, postgres: 0.1, coordinator: 0.2 };

    #[test]
    fn the_slowest_server_bounds_the_throughput() {
        let cpu = QuestionCpu { hark_ms: 0.5, database_ms: 2.0, workers_ms: 12.0 };
        let of = |workers| {
            let size = ClusterSize { workers, shards: 12 };
            Throughput::predict(cpu, CORES, ServerCount::Cluster(size), None).per_s()
        };
        // A single worker has all 12 shards, each of 4 workers has 3, and at most 12 workers have
        // shards.
        let expected = [(1, 100.0 / 12.0), (4, 100.0 / 3.0), (12, 100.0), (64, 100.0)];
        for (workers, expected) in expected {
            assert!((of(workers) - expected).abs() < 1e-9, "{workers}: {}", of(workers));
        }
        let pairs = |cpu, pairs| Throughput::predict(cpu, CORES, ServerCount::Pairs(pairs), None);
        let alone = QuestionCpu { workers_ms: 0.0, ..cpu };
        assert_eq!(pairs(alone, 1).workers_per_s, None);
        assert!((pairs(alone, 1).per_s() - 50.0).abs() < 1e-9);
        assert!((pairs(alone, 3).per_s() - 150.0).abs() < 1e-9);
        let slow_hark = QuestionCpu { hark_ms: 50.0, ..cpu };
        let size = ServerCount::Cluster(ClusterSize { workers: 4, shards: 12 });
        let uneven = Throughput::predict(cpu, CORES, size, Some(0.5)).per_s();
        assert!((uneven - 100.0 / 6.0).abs() < 1e-9, "{uneven}");
        assert!((pairs(slow_hark, 1).per_s() - 20.0).abs() < 1e-9);
    }
}
