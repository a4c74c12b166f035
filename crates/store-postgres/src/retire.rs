//! Letting go of whole parts: their tables are dropped, which frees their room at once and leaves no
//! dead rows behind.
//!
//! What takes time is done before the parent tables are locked. If the lock is not had at once, nobody
//! waits behind it: the transaction is given up and tried again in the next round.

use crate::Inner;
use crate::parts::Parts;
use crate::session::{Fault, Session};
use crate::sql::Form;
use crate::time::to_db;

/// How long questions may be kept waiting for the lock.
const LOCK_TIMEOUT_MS: u32 = 50;

/// Drops the oldest part if it holds nothing newer than `to`, and keeps of it what is of `spared`
/// kinds. Says how many records went, if there was such a part.
pub(crate) fn oldest_part(
    inner: &Inner,
    session: &mut Session,
    to: u64,
    spared: &[u32],
) -> Result<Option<u64>, Fault> {
    let found = session.query_once(
        "SELECT number FROM part WHERE stop <= $1 ORDER BY start LIMIT 1",
        &[&to_db(to.saturating_add(1))],
    )?;
    let Some(number) = found.first().map(|row| row.get::<_, i64>(0)) else { return Ok(None) };
    match drop_part(session, number, spared) {
        Ok((records, version)) => {
            inner.set_parts(Parts::read(session, version)?);
            inner.forget_known();
            Ok(Some(records))
        }
        Err(fault) if fault.is_away() => Err(fault),
        Err(fault) => {
            session.batch("ROLLBACK")?;
            Err(fault)
        }
    }
}

fn drop_part(session: &mut Session, number: i64, spared: &[u32]) -> Result<(u64, i64), Fault> {
    let spared: Vec<String> = spared.iter().map(|kind| kind.cast_signed().to_string()).collect();
    let spared = format!("kind = ANY('{{{}}}'::int[])", spared.join(","));
    session.batch("BEGIN")?;
    // No commit changes the part from here on.
    session.query(Form::Lock, &[])?;
    session.batch(&format!(
        "CREATE TEMP TABLE spared_record ON COMMIT DROP AS SELECT * FROM record_{number} WHERE {spared};
         CREATE TEMP TABLE spared_tag ON COMMIT DROP AS SELECT * FROM tag_{number} WHERE {spared}"
    ))?;
    let rows = session.query_once(
        &format!("SELECT count(*) - (SELECT count(*) FROM spared_record) FROM record_{number}"),
        &[],
    )?;
    let records: i64 = rows.first().map_or(0, |row| row.get(0));
    session.batch(&format!(
        "SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS};
         ALTER TABLE record DETACH PARTITION record_{number};
         ALTER TABLE tag DETACH PARTITION tag_{number};
         INSERT INTO record SELECT * FROM spared_record;
         INSERT INTO tag SELECT * FROM spared_tag;
         DROP TABLE record_{number}, tag_{number};
         DELETE FROM part WHERE number = {number};
         UPDATE state SET parts = parts + 1, records = records - {records};
         SELECT pg_notify(current_schema(), seq || ' 1 ' || parts) FROM state;"
    ))?;
    let rows = session.query_once("SELECT parts FROM state", &[])?;
    session.batch("COMMIT")?;
    Ok((records.max(0).cast_unsigned(), rows.first().map_or(0, |row| row.get(0))))
}
