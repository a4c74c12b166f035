//! Detects other processes that write to the shelf, and reads the number of their newest put.
//!
//! A query must see every record that any node has acknowledged. A process receives the puts of
//! other processes some time after their commits. So while other processes write, each query first
//! reads the number of the newest put. To make writers known, every session that is going to write
//! holds a shared lock until it ends, and notifies the other processes.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::StatementError;
use crate::session::DatabaseSession;

/// The first key of the lock of writing sessions. The second key is the hash of the shelf's schema.
const WRITING: i32 = 72_354_198;

/// The content of the notification of a process that is going to write.
pub(crate) const ARRIVED: &str = "arrived";

/// Takes the lock of writing sessions, and notifies the other processes.
pub(crate) fn announce(session: &mut DatabaseSession) -> Result<(), StatementError> {
    let text = format!(
        "SELECT pg_advisory_lock_shared({WRITING}, hashtext(current_schema())), \
         pg_notify(current_schema(), '{ARRIVED}')"
    );
    session.query_once(&text, &[]).map(drop)
}

/// Returns a column that counts the writing sessions other than that of the database's process $1.
pub(crate) fn counted() -> String {
    format!(
        "(SELECT count(*) FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted \
         AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) \
         AND l.classid = {WRITING}::oid AND l.objid = hashtext(current_schema())::oid \
         AND l.objsubid = 2 AND l.pid <> $1)"
    )
}

/// Whether other processes may write to the shelf: `true` until a check finds no other writer.
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
