//! Letting go of whole parts: their tables are dropped, which frees their room at once and leaves no
//! dead rows behind.
//!
//! Whatever grows with a part is done without the lock that commits take. How many records it has is
//! counted before, to a bound at a time; then, in a transaction of some milliseconds, its tables are
//! taken out of the shelf; and once nobody can change them any more they are counted again, for what came
//! or went meanwhile, and dropped. A process that ends in between leaves the tables to whoever is next.
//!
//! If the lock of the parent tables is not had at once, nobody waits behind it: the transaction is given
//! up and tried again in the next round.

use tokio_postgres::Row;

use crate::Inner;
use crate::layout::Form;
use crate::parts::Parts;
use crate::session::{Fault, Session};
use crate::time::to_db;

/// Rows of records and their tags that a part may have of what is kept. They move while commits wait; a
/// part with more of them is left to be emptied record by record.
const SPARED_MAX: i64 = 4_000;
/// Rows that are counted by one statement.
const COUNTED_MAX: i64 = 50_000;

/// Drops the oldest part that holds nothing newer than `to` and little that is of `spared` kinds, which
/// is kept. Says how many records went, if there was such a part.
pub(crate) fn oldest_part(
    inner: &Inner,
    session: &mut Session,
    to: u64,
    spared: &[u32],
) -> Result<Option<u64>, Fault> {
    // Left by a process that ended, or was refused, on the way.
    for row in session.query_once("SELECT number FROM retired ORDER BY number", &[])? {
        whole(session, |session| drop_retired(session, row.get(0)))?;
    }
    let spared: Vec<i32> = spared.iter().map(|kind| kind.cast_signed()).collect();
    let Some(number) = candidate(session, to, &spared)? else { return Ok(None) };
    let records = count(session, number, false)?;
    let moved = whole(session, |session| retire(session, number, &spared, records))?;
    let Some((moved, version)) = moved else { return Ok(None) };
    inner.set_parts(Parts::read(session, version)?);
    inner.forget_known();
    let records = whole(session, |session| drop_retired(session, number))?.unwrap_or(records);
    Ok(Some((records - moved).max(0).cast_unsigned()))
}

/// Does `work`, which begins a transaction and may end it. What it has left open is given up.
fn whole<T>(
    session: &mut Session,
    work: impl FnOnce(&mut Session) -> Result<Option<T>, Fault>,
) -> Result<Option<T>, Fault> {
    let done = work(session);
    match &done {
        Ok(Some(_)) => {}
        Err(fault) if fault.is_away() => {}
        _ => session.batch("ROLLBACK")?,
    }
    done
}

/// Number of the oldest part that can go as a whole.
fn candidate(session: &mut Session, to: u64, spared: &[i32]) -> Result<Option<i64>, Fault> {
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

/// How many records of a part are spared; nothing if these are too many to be moved.
fn count_spared(session: &mut Session, number: i64, spared: &[i32]) -> Result<Option<i64>, Fault> {
    let text = session.layout().count_spared(number);
    let rows = session.query_once(&text, &[&spared, &(SPARED_MAX + 1)])?;
    let few = rows.first().filter(|row| row.get::<_, i64>(1) <= SPARED_MAX);
    Ok(few.map(|row| row.get(0)))
}

/// Counts the records of a part, or of one that is retired, some at a time.
fn count(session: &mut Session, number: i64, retired: bool) -> Result<i64, Fault> {
    let text = session.layout().count_part(number, retired);
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

/// Takes a part out of the shelf, of which `records` were counted, all but what is spared. Says how many
/// these are, and the new version of the parts; nothing if it cannot go any more.
fn retire(
    session: &mut Session,
    number: i64,
    spared: &[i32],
    records: i64,
) -> Result<Option<(i64, i64)>, Fault> {
    session.batch("BEGIN")?;
    // No commit changes the part from here on.
    session.query(Form::Lock, &[])?;
    let there = session.query_once("SELECT FROM part WHERE number = $1", &[&number])?;
    if there.is_empty() {
        return Ok(None);
    }
    let Some(moved) = count_spared(session, number, spared)? else { return Ok(None) };
    session.batch(&session.layout().retire_part(number, spared, records, moved))?;
    let rows = session.query_once("SELECT parts FROM state", &[])?;
    session.batch("COMMIT")?;
    Ok(Some((moved, rows.first().map_or(0, |row| row.get(0)))))
}

/// Drops the tables of a part that was taken out, and sets right by how much it was miscounted. Says how
/// many records it had; nothing if another process was first.
fn drop_retired(session: &mut Session, number: i64) -> Result<Option<i64>, Fault> {
    let records = match count(session, number, true) {
        Err(Fault::Missing(_)) => return Ok(None),
        records => records?,
    };
    session.batch("BEGIN")?;
    session.query(Form::Lock, &[])?;
    let text = "DELETE FROM retired WHERE number = $1 RETURNING records";
    let rows = session.query_once(text, &[&number])?;
    let Some(counted) = rows.first().map(|row| row.get::<_, i64>(0)) else { return Ok(None) };
    session.batch(&session.layout().drop_part(number, counted, records))?;
    Ok(Some(records))
}
