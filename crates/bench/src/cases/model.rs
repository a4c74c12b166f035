//! The cost model: how many questions a second servers can answer.
//!
//! A server's capacity is its share of CPU divided by the CPU that a question takes of it. The least
//! capacity among the coordinator, the busiest worker and Hark bounds all of them together:
//!
//! ```text
//! questions/s = min(H / h,  D / d,  S / (w * ceil(s / W) / s))
//! ```
//!
//! with h, d, w the CPU of a question in Hark, in the database or coordinator, and in all workers
//! together; H the cores of Hark; D and S the cores of the database and of a worker; s the shards of
//! a table and W the workers. The busiest worker has ceil(s / W) of the s shards. The costs are
//! those of one size of the cluster: that they stay the same with more workers, as the shards do, is
//! an assumption, which the check compares with runs.

/// The CPU that a question takes, in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[expect(clippy::struct_field_names, reason = "units stand last in names")]
pub(super) struct QuestionCpu {
    pub(super) hark_ms: f64,
    /// In the database that Hark asks: PostgreSQL by itself, or the coordinator.
    pub(super) database_ms: f64,
    /// In all workers together. 0 without workers.
    pub(super) workers_ms: f64,
}

/// The CPU that servers have, in cores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ServerCores {
    pub(super) hark: f64,
    /// Of each server of PostgreSQL.
    pub(super) postgres: f64,
}

/// Workers of a cluster, and the shards of each table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClusterSize {
    pub(super) workers: usize,
    pub(super) shards: usize,
}

/// The questions a second that the servers can answer, each by itself and all together.
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
    /// Predicts the throughput of one database, or of a cluster of this size.
    pub(super) fn predict(
        cpu: QuestionCpu,
        cores: ServerCores,
        cluster: Option<ClusterSize>,
    ) -> Self {
        let per_s = |cores: f64, ms: f64| if ms > 0.0 { cores * 1e3 / ms } else { f64::INFINITY };
        Self {
            hark_per_s: per_s(cores.hark, cpu.hark_ms),
            database_per_s: per_s(cores.postgres, cpu.database_ms),
            workers_per_s: cluster
                .map(|size| per_s(cores.postgres, cpu.workers_ms * size.busiest_share())),
        }
    }

    /// The questions a second of all servers together.
    pub(super) fn per_s(self) -> f64 {
        let workers = self.workers_per_s.unwrap_or(f64::INFINITY);
        self.hark_per_s.min(self.database_per_s).min(workers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORES: ServerCores = ServerCores { hark: 1.0, postgres: 0.1 };

    #[test]
    fn the_slowest_server_bounds_the_throughput() {
        let cpu = QuestionCpu { hark_ms: 0.5, database_ms: 1.0, workers_ms: 12.0 };
        let of = |workers| {
            let size = ClusterSize { workers, shards: 12 };
            Throughput::predict(cpu, CORES, Some(size)).per_s()
        };
        // One worker has all 12 shards, of 4 workers each has 3, and no more than 12 have any.
        let expected = [(1, 100.0 / 12.0), (4, 100.0 / 3.0), (12, 100.0), (64, 100.0)];
        for (workers, expected) in expected {
            assert!((of(workers) - expected).abs() < 1e-9, "{workers}: {}", of(workers));
        }
        let alone = Throughput::predict(QuestionCpu { workers_ms: 0.0, ..cpu }, CORES, None);
        assert_eq!(alone.workers_per_s, None);
        assert!((alone.per_s() - 100.0).abs() < 1e-9);
        let slow_hark = QuestionCpu { hark_ms: 50.0, ..cpu };
        assert!((Throughput::predict(slow_hark, CORES, None).per_s() - 20.0).abs() < 1e-9);
    }
}
