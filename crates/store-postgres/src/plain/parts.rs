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

/// Makes parts within the transaction of a commit. Readers and writers of other parts need not
/// wait. Returns false and makes no part if the tables for times outside all parts are in use for
/// longer than a commit may wait.
pub(crate) fn make_parts(
    session: &mut DatabaseSession,
    numbers: &[u64],
    grid: &PartGrid,
) -> Result<bool, StatementError> {
    let labels = label_storage(session)?;
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

/// Locks the tables for times outside all parts; their records move to the new parts. Returns false
/// if the tables are in use.
///
/// A search may lock the same tables in another order, which can end in a deadlock. PostgreSQL
/// would end the deadlock with an error of the search. So each wait is shorter than the time after
/// which PostgreSQL looks for deadlocks, and all locks are released before the next try.
pub(super) fn lock_outside(
    session: &mut DatabaseSession,
    labels: LabelStorage,
) -> Result<bool, StatementError> {
    let tag = if labels == LabelStorage::Rows { "tag_other, " } else { "" };
    for _ in 0..LOCK_TRIES {
        let locked = session.batch(&format!(
            "SAVEPOINT outside; SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS};
                 LOCK TABLE record_other, {tag}word_other, worded_other
                     IN ACCESS EXCLUSIVE MODE;
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
