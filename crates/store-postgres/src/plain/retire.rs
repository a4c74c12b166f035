//! Drops whole parts with their tables. The disk space is freed at once, and no dead rows are left.
//!
//! Work that takes longer for larger parts does not hold the lock of commits. First, the part's
//! records are counted, a limited number per statement. Then a transaction of some milliseconds
//! detaches the part's tables from the shelf. From then on no process can change these tables. Some
//! records may have been added or deleted in the meantime, so the records are counted again, and
//! the tables are dropped. If a process ends in between, the next process that drops parts drops
//! these tables.
//!
//! If the lock of the parent tables is not free at once, the transaction is rolled back, so that
//! queries do not wait. The next round tries again.

use std::collections::HashMap;

use hark_archive::store::RetentionNote;
use tokio_postgres::Row;

use super::label_storage::label_storage;
use super::part_sql;
use super::statement::PlainStatement;
use crate::error::StatementError;
use crate::failover::renew_line;
use crate::layout::{LOCK_TIMEOUT_MS, lower_values};
use crate::parts::Parts;
use crate::session::DatabaseSession;
use crate::state::PostgresState;
use crate::time::to_db;

/// Maximum number of rows (of spared records, their tags and their words) in a part that is dropped
/// as a whole. Commits wait while these rows are moved. If a part has more such rows, its records
/// must be deleted individually.
const SPARED_MAX: i64 = 4_000;
/// Maximum number of rows that one statement counts.
const COUNTED_MAX: i64 = 50_000;

/// Drops the oldest part that has no record newer than `to` and few records of `spared` kinds.
/// These few records are kept. Returns the number of removed records; `None` if there is no such
/// part.
pub(crate) fn oldest_part(
    inner: &PostgresState,
    session: &mut DatabaseSession,
    to: u64,
    spared: &[u32],
) -> Result<Option<u64>, StatementError> {
    // Another process has detached these parts, but has not dropped their tables.
    for row in session.query_once("SELECT number FROM retired ORDER BY number", &[])? {
        session.whole(|session| drop_retired(inner, session, row.get(0)))?;
    }
    let spared: Vec<i32> = spared.iter().map(|kind| kind.cast_signed()).collect();
    let Some(number) = candidate(session, to, &spared)? else { return Ok(None) };
    let records = count(session, number, false)?;
    // Detaching the part raises the number of the newest put, as a commit does.
    renew_line(inner, session)?;
    let moved = session.whole(|session| retire(inner, session, number, (&spared, records)))?;
    let Some((moved, version)) = moved else { return Ok(None) };
    inner.set_parts(Parts::read(session, version)?);
    inner.forget_known();
    let records = session.whole(|session| drop_retired(inner, session, number))?.unwrap_or(records);
    Ok(Some((records - moved).max(0).cast_unsigned()))
}

/// Returns the number of the oldest part that can be dropped as a whole.
fn candidate(
    session: &mut DatabaseSession,
    to: u64,
    spared: &[i32],
) -> Result<Option<i64>, StatementError> {
    let found = session.query_once(
        "SELECT number FROM part WHERE stop <= $1 ORDER BY start",
        &[&to_db(to.saturating_add(1))],
    )?;
    for number in found.iter().map(|row| row.get::<_, i64>(0)) {
        if count_spared(session, number, spared)?.is_some() {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// Counts the spared records of a part; `None` if they are too many to be moved.
fn count_spared(
    session: &mut DatabaseSession,
    number: i64,
    spared: &[i32],
) -> Result<Option<i64>, StatementError> {
    let text = part_sql::count_spared(number);
    let rows = session.query_once(&text, &[&spared, &(SPARED_MAX + 1)])?;
    let few = rows.first().filter(|row| row.get::<_, i64>(1) <= SPARED_MAX);
    Ok(few.map(|row| row.get(0)))
}

/// Counts the records of a part, or of a retired part, with a limited number per statement.
pub(super) fn count(
    session: &mut DatabaseSession,
    number: i64,
    retired: bool,
) -> Result<i64, StatementError> {
    let text = part_sql::count_part(number, retired);
    let (mut records, mut seq) = (0, i64::MIN);
    loop {
        let rows = session.query_once(&text, &[&seq, &COUNTED_MAX])?;
        let Some(last) = rows.first().and_then(|row: &Row| row.get::<_, Option<i64>>(1)) else {
            return Ok(records);
        };
        records += rows.first().map_or(0, |row| row.get::<_, i64>(0));
        seq = last;
    }
}

/// Detaches a part from the shelf, and keeps the part's records of `spared` kinds in the shelf.
/// `records` is the number of the part's records that was counted before. Returns the number of
/// spared records, and the new version of the parts. Returns `None` if the part is gone, or if it
/// now has too many spared records.
fn retire(
    inner: &PostgresState,
    session: &mut DatabaseSession,
    number: i64,
    (spared, records): (&[i32], i64),
) -> Result<Option<(i64, i64)>, StatementError> {
    session.batch("BEGIN")?;
    // From here on, no commit can change the part.
    session.lock(PlainStatement::Lock)?;
    // Another process may be importing into the part.
    let held = format!("SELECT FROM meta WHERE name = '{}'", RetentionNote::HeldUntil.name());
    if !session.query_once(&held, &[])?.is_empty() {
        return Ok(None);
    }
    let text = "SELECT start, stop, to_regclass('word_' || number) IS NULL \
        OR to_regclass('worded_' || number) IS NULL FROM part WHERE number = $1";
    let there = session.query_once(text, &[&number])?;
    let Some(part) = there.first() else { return Ok(None) };
    if part.get(2) {
        // The part was made by a version of Hark without tables of words. So its words are in the
        // tables for times outside all parts.
        let (start, stop) = (part.get(0), part.get(1));
        session.batch(&format!("SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))?;
        for text in part_sql::make_word_tables(number.cast_unsigned(), start, stop) {
            session.batch(&text)?;
        }
    }
    let Some(moved) = count_spared(session, number, spared)? else { return Ok(None) };
    let labels = label_storage(session)?;
    session.batch(&part_sql::retire_part(number, (spared, records, moved), labels))?;
    if !inner.shelf.listed_labels.is_empty() {
        session.batch(part_sql::KEEP_SPARED_VALUES)?;
    }
    let rows = session.query_once("SELECT parts FROM state", &[])?;
    session.batch("COMMIT")?;
    Ok(Some((moved, rows.first().map_or(0, |row| row.get(0)))))
}

/// Counts the records of a retired part for each listed value, with a limited number per statement.
pub(super) fn count_values(
    session: &mut DatabaseSession,
    number: i64,
) -> Result<HashMap<i64, i64>, StatementError> {
    let text = part_sql::count_values(number);
    let (mut values, mut seq) = (HashMap::new(), i64::MIN);
    loop {
        let rows = session.query_once(&text, &[&seq, &COUNTED_MAX])?;
        let Some(last) = rows.first().and_then(|row| row.get::<_, Option<i64>>(0)) else {
            return Ok(values);
        };
        for row in &rows {
            if let (Some(term), Some(records)) = (row.get(1), row.get::<_, Option<i64>>(2)) {
                *values.entry(term).or_default() += records;
            }
        }
        seq = last;
    }
}

/// Drops the tables of a detached part, and corrects the shelf's numbers of records and of values.
/// Returns the number of the part's records; `None` if another process has already dropped the
/// part.
fn drop_retired(
    inner: &PostgresState,
    session: &mut DatabaseSession,
    number: i64,
) -> Result<Option<i64>, StatementError> {
    let records = match count(session, number, true) {
        Err(StatementError::Missing(_)) => return Ok(None),
        records => records?,
    };
    let values = match inner.shelf.listed_labels {
        [] => HashMap::new(),
        _ => count_values(session, number)?,
    };
    session.batch("BEGIN")?;
    session.lock(PlainStatement::Lock)?;
    let text = "DELETE FROM retired WHERE number = $1 RETURNING records";
    let rows = session.query_once(text, &[&number])?;
    let Some(counted) = rows.first().map(|row| row.get::<_, i64>(0)) else { return Ok(None) };
    if !values.is_empty() {
        let (terms, records): (Vec<i64>, Vec<i64>) = values.into_iter().unzip();
        session.query_once(&lower_values(), &[&terms, &records])?;
    }
    session.batch(&part_sql::drop_part(number, counted, records))?;
    Ok(Some(records))
}
