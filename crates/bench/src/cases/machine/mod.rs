//! Starts, measures and ends the servers of a run on this machine. Each server of PostgreSQL or of
//! Hark is a separate process. All use one directory, which is removed after the run.

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
