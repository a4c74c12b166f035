//! What a run starts on this machine, measures and ends: servers of PostgreSQL and of Hark, each a
//! process of its own, in one directory that is removed after the run.

mod directory;
mod hark;
mod postgres;
mod quota;
mod traffic;

pub(super) use directory::RunDirectory;
pub(super) use hark::HarkProcess;
pub(super) use postgres::{InstalledPostgres, PostgresProcess, url};
pub(super) use quota::CpuQuota;
pub(super) use traffic::{TrafficCounter, TrafficCounts};
