//! Makes the tables of parts.

use super::label_storage::{LabelStorage, label_storage};
use super::part_sql;
use crate::error::StatementError;
use crate::layout::LOCK_TIMEOUT_MS;
use crate::parts::PartGrid;
use crate::session::DatabaseSession;
use crate::time::to_db;

/// How many times a commit tries to lock the tables for times outside all parts.
const LOCK_TRIES: u32 = 10;

/// Maximum time in milliseconds of a statement that makes a part. Commits and searches wait for
/// this statement.
const MAKE_MAX_MS: u32 = 3_000;

/// Whether parts were made.
pub(crate) enum PartMaking {
    Made,
    /// The tables are in use for longer than a commit may wait.
    InUse,
    /// The tables for times outside all parts have too many records to be moved within a commit.
    TooLong,
}

/// Makes parts within the transaction of a commit. Readers of the tables of other parts need not
/// wait.
pub(crate) fn make_parts(
    session: &mut DatabaseSession,
    numbers: &[u64],
    grid: &PartGrid,
) -> Result<PartMaking, StatementError> {
    let labels = label_storage(session)?;
    session.batch(&format!(
        "SELECT set_config('hark.usual_timeout', current_setting('statement_timeout'), true);
         SAVEPOINT parts; SET LOCAL statement_timeout = {MAKE_MAX_MS}"
    ))?;
    let made = match make_locked(session, numbers, grid, labels) {
        Ok(true) => PartMaking::Made,
        Ok(false) => PartMaking::InUse,
        Err(StatementError::Cancelled(_)) => PartMaking::TooLong,
        Err(fault) => return Err(fault),
    };
    session.batch(match made {
        PartMaking::Made => {
            "RELEASE SAVEPOINT parts; \
             SELECT set_config('statement_timeout', current_setting('hark.usual_timeout'), true)"
        }
        PartMaking::InUse | PartMaking::TooLong => {
            "ROLLBACK TO SAVEPOINT parts; RELEASE SAVEPOINT parts"
        }
    })?;
    Ok(made)
}

/// Makes parts, and returns true; returns false if the tables are in use.
fn make_locked(
    session: &mut DatabaseSession,
    numbers: &[u64],
    grid: &PartGrid,
    labels: LabelStorage,
) -> Result<bool, StatementError> {
    if !lock_outside(session, labels)? {
        return Ok(false);
    }
    for number in numbers {
        let start = to_db(number * grid.width);
        let stop = to_db((number + 1).saturating_mul(grid.width));
        for text in part_sql::make_part(*number, start, stop, labels) {
            session.batch(&text)?;
        }
    }
    session.batch("UPDATE state SET parts = parts + 1")?;
    Ok(true)
}

/// Locks the tables for times outside all parts; their records move to the new parts. Also locks
/// the parents of all parts, but not the tables of other parts. Returns false if the tables are in
/// use.
///
/// If the parents were not locked, a statement could be planned without a new part, then wait for
/// the tables outside all parts, and so miss the records that have moved to the part.
///
/// A search may lock the same tables in another order, which can end in a deadlock. PostgreSQL
/// would end the deadlock with an error of the search. So each wait is shorter than the time after
/// which PostgreSQL looks for deadlocks, and all locks are released before the next try.
pub(super) fn lock_outside(
    session: &mut DatabaseSession,
    labels: LabelStorage,
) -> Result<bool, StatementError> {
    let tag = if labels == LabelStorage::Rows { "ONLY tag, tag_other, " } else { "" };
    for _ in 0..LOCK_TRIES {
        let locked = session.batch(&format!(
            "SAVEPOINT outside; SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS};
                 LOCK TABLE ONLY record, record_other, {tag}ONLY word, word_other,
                     ONLY worded, worded_other IN ACCESS EXCLUSIVE MODE;
                 SET LOCAL lock_timeout = DEFAULT; RELEASE SAVEPOINT outside"
        ));
        match locked {
            Ok(()) => return Ok(true),
            Err(StatementError::Busy(_)) => {
                session.batch("ROLLBACK TO SAVEPOINT outside; RELEASE SAVEPOINT outside")?;
            }
            Err(fault) => return Err(fault),
        }
    }
    Ok(false)
}
