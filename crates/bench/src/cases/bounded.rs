//! A server of PostgreSQL whose CPU may be bounded.

use super::machine::{CpuQuota, PostgresProcess};

/// A server of PostgreSQL with its CPU quota.
pub(super) struct BoundedPostgres {
    pub(super) process: PostgresProcess,
    /// `None` if its CPU cannot be bounded on this machine.
    pub(super) quota: Option<CpuQuota>,
}
