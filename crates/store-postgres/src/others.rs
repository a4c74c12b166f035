//! Detects other processes that write to the shelf, and reads the number of the newest put.
//!
//! A query must see every record that any node has acknowledged before. But a process learns of
//! other processes' puts only some time after they were committed. So while other processes write,
//! each query first reads the number of the newest put. To be detected, every session that is going
//! to write acquires a shared advisory lock, holds it until the session ends, and notifies the
//! other processes.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::StatementError;
use crate::session::DatabaseSession;

/// The first key of the lock of sessions that write. The second key is the hash of the name of the
/// shelf's schema.
const WRITING: i32 = 72_354_198;

/// The content of the notification that a process is going to write.
pub(crate) const ARRIVED: &str = "arrived";

/// Acquires the lock of sessions that write, and notifies the other processes.
pub(crate) fn announce(session: &mut DatabaseSession) -> Result<(), StatementError> {
    let text = format!(
        "SELECT pg_advisory_lock_shared({WRITING}, hashtext(current_schema())), \
         pg_notify(current_schema(), '{ARRIVED}')"
    );
    session.query_once(&text, &[]).map(drop)
}

/// Returns a column expression that counts the sessions that write, except the session of the
/// PostgreSQL backend with PID $1.
pub(crate) fn counted() -> String {
    format!(
        "(SELECT count(*) FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted \
         AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) \
         AND l.classid = {WRITING}::oid AND l.objid = hashtext(current_schema())::oid \
         AND l.objsubid = 2 AND l.pid <> $1)"
    )
}

/// Whether other processes may write to the shelf. The value is true until a check finds no such
/// process.
#[derive(Debug)]
pub(crate) struct OtherWriters(AtomicBool);

impl Default for OtherWriters {
    fn default() -> Self {
        Self(AtomicBool::new(true))
    }
}

impl OtherWriters {
    pub(crate) fn note(&self, there_are: bool) {
        self.0.store(there_are, Ordering::Relaxed);
    }

    /// Whether other processes may write.
    pub(crate) fn may_be(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
