//! Which other processes write to the shelf, and what they have put last.
//!
//! A question is answered with every record that has got its OK, on whichever node. A process learns of
//! the puts of others some time after their commits, so while there are others, a question first asks for
//! the number of the newest put. To know whether there are others, every session that is going to write
//! holds a shared lock as long as it lasts, and notifies those that are there.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::layout::StatementForm;
use crate::line::TimelinePosition;
use crate::session::{DatabaseSession, StatementError};
use crate::state::PostgresState;

/// The lock of writing sessions, beside the hash of the shelf's schema.
const WRITING: i32 = 72_354_198;

/// The content of the notification that a process is going to write.
pub(crate) const ARRIVED: &str = "arrived";

/// Says that this session is going to write.
pub(crate) fn announce(session: &mut DatabaseSession) -> Result<(), StatementError> {
    let text = format!(
        "SELECT pg_advisory_lock_shared({WRITING}, hashtext(current_schema())), \
         pg_notify(current_schema(), '{ARRIVED}')"
    );
    session.query_once(&text, &[]).map(drop)
}

/// The column of a statement that counts other processes that write than that of the session of process $1.
pub(crate) fn counted() -> String {
    format!(
        "(SELECT count(*) FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted \
         AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) \
         AND l.classid = {WRITING}::oid AND l.objid = hashtext(current_schema())::oid \
         AND l.objsubid = 2 AND l.pid <> $1)"
    )
}

/// Whether other processes may write to the shelf. They may, until it is known that there are none.
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

    fn may_be(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns the position of a question that sees everything that was acknowledged before it.
pub(crate) fn newest(inner: &PostgresState) -> TimelinePosition {
    let mut position = inner.current.now();
    // A cluster frees the number of a commit before its workers have committed.
    if inner.pool.door().layout().is_distributed() || !inner.others.may_be() {
        return position;
    }
    let read = inner.pool.with(|session| session.query(StatementForm::Newest, &[]));
    // If the database is away, or another took its place, the question itself says more.
    if let Ok([row]) = read.as_deref()
        && row.get::<_, i64>(0) == position.line
    {
        position.seen = position.seen.max(row.get(1));
    }
    position
}
