//! The slim form of the tables, for networks whose records have exactly one label each: the records
//! themselves have an index by the term of their label, so the table of labels and the indices by
//! author and by kind are left out.
//!
//! A new shelf of such a network is slim from the start. An existing shelf is changed while servers
//! use it: the indices of each part are built while commits go on, and a short transaction at the
//! end replaces the table of labels. If the change is interrupted, the next attempt continues with
//! the parts that lack an index.

use std::time::Duration;

use super::label_storage::{LabelStorage, label_storage};
use crate::error::StatementError;
use crate::layout::LOCK_TIMEOUT_MS;
use crate::session::DatabaseSession;

/// Makes the tables slim, in one transaction.
const MAKE_SLIM: &str = include_str!("../../migrations/slim.sql");
/// Maximum number of attempts of a transaction while queries use the tables, and the pause between
/// two attempts.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(100);
/// Time limit of a statement that builds an index of a part, or checks all records.
const STATEMENT_MAX: Duration = Duration::from_mins(30);
/// The indices of a slim part: a name, and the method with the columns.
const INDICES: [(&str, &str); 2] =
    [("term_time_id", "btree ((terms[1]), time DESC, id)"), ("hashed_id", "hash (id)")];

/// Makes the tables of a shelf without records slim.
pub(crate) fn make_new_slim(session: &mut DatabaseSession) -> Result<(), StatementError> {
    let is_empty = "SELECT FROM state WHERE seq = 0 AND records = 0";
    if label_storage(session)? == LabelStorage::Rows
        && !session.query_once(is_empty, &[])?.is_empty()
        && session.query_once("SELECT FROM record LIMIT 1", &[])?.is_empty()
    {
        change_tables(session, MAKE_SLIM)?;
    }
    Ok(())
}

/// Makes the tables slim while servers use the tables. Fails, and leaves the tables as they are, if
/// a record does not have exactly one label.
pub(crate) fn make_slim(session: &mut DatabaseSession) -> Result<(), StatementError> {
    if label_storage(session)? == LabelStorage::Records {
        return Ok(());
    }
    session.batch("SET statement_timeout = 0")?;
    let done = make_slim_untimed(session);
    // The first fault is more informative than a fault of the reset.
    let reset = session.batch("RESET statement_timeout");
    done.and(reset)
}

fn make_slim_untimed(session: &mut DatabaseSession) -> Result<(), StatementError> {
    let there = "SELECT FROM pg_constraint WHERE conrelid = 'record'::regclass \
        AND conname = 'one_term'";
    if session.query_once(there, &[])?.is_empty() {
        let text = "ALTER TABLE record ADD CONSTRAINT one_term \
            CHECK (cardinality(terms) = 1) NOT VALID;";
        change_tables(session, text)?;
    }
    let checked = "ALTER TABLE record VALIDATE CONSTRAINT one_term";
    if let Err(fault) = session.batch_within(STATEMENT_MAX, checked) {
        // A record has no label or several labels.
        if matches!(fault, StatementError::Refused(_)) {
            change_tables(session, "ALTER TABLE record DROP CONSTRAINT IF EXISTS one_term;")?;
        }
        return Err(fault);
    }
    let tables = "SELECT i.inhrelid::regclass::text FROM pg_inherits i \
        WHERE i.inhparent = 'record'::regclass ORDER BY 1";
    for row in session.query_once(tables, &[])? {
        for (name, columns) in INDICES {
            build_index(session, row.get(0), name, columns)?;
        }
    }
    change_tables(session, MAKE_SLIM)
}

/// Builds an index of the table of a part, unless the table has the index. Servers read and write
/// the table meanwhile.
fn build_index(
    session: &mut DatabaseSession,
    table: &str,
    name: &str,
    columns: &str,
) -> Result<(), StatementError> {
    let name = format!("{table}_{name}_idx");
    let text = "SELECT i.indisvalid FROM pg_index i WHERE i.indexrelid = to_regclass($1::text)";
    match session.query_once(text, &[&name])?.first().map(|row| row.get(0)) {
        Some(true) => return Ok(()),
        // An earlier attempt was interrupted.
        Some(false) => {
            let text = format!("DROP INDEX CONCURRENTLY IF EXISTS {name}");
            session.batch_within(STATEMENT_MAX, &text)?;
        }
        None => {}
    }
    let build = format!("CREATE INDEX CONCURRENTLY {name} ON {table} USING {columns}");
    match session.batch_within(STATEMENT_MAX, &build) {
        // The part was dropped meanwhile.
        Err(StatementError::Missing(_)) => Ok(()),
        built => built,
    }
}

/// Changes tables in one transaction. If queries use the tables for longer than other queries may
/// wait, tries again.
fn change_tables(session: &mut DatabaseSession, change: &str) -> Result<(), StatementError> {
    let text = format!("BEGIN; SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS};\n{change}\nCOMMIT");
    let mut tries = TRIES;
    loop {
        let Err(fault) = session.batch_within(STATEMENT_MAX, &text) else { return Ok(()) };
        // The rollback fails if the connection is lost. The first fault is more informative.
        let _ = session.batch("ROLLBACK");
        if !matches!(fault, StatementError::Busy(_)) || tries == 0 {
            return Err(fault);
        }
        tries -= 1;
        std::thread::sleep(PAUSE);
    }
}
