//! Switches to a new timeline of the database, and begins a new timeline in a database that has
//! replaced another database.

use crate::error::StatementError;
use crate::line::read;
use crate::session::DatabaseSession;
use crate::state::PostgresState;

/// Switches to the database's timeline if this process does not know the timeline yet. Returns
/// whether it has switched.
pub(crate) fn follow(
    inner: &PostgresState,
    session: &mut DatabaseSession,
) -> Result<bool, StatementError> {
    let lines = read(session)?;
    let Some(lost) = inner.current.switch_line(lines) else { return Ok(false) };
    // The database may have lost the records of the known ids.
    inner.forget_known();
    // Two timelines may give the same version to different lists of parts.
    inner.set_parts(inner.parts().outdated());
    if lost == 0 {
        tracing::info!(
            "the database was started anew, or another took its place; it has all \
             commits that this server has seen"
        );
    } else {
        tracing::error!(
            lost,
            "the database has lost its last records, because a standby that lagged or a backup has \
             taken its place; newer records are sent to subscribers"
        );
    }
    Ok(true)
}

/// Begins a new timeline if the last timeline began in another database, or if this process has
/// seen puts that are missing in this database. Every session calls this function before it writes.
pub(crate) fn renew_line(
    inner: &PostgresState,
    session: &mut DatabaseSession,
) -> Result<(), StatementError> {
    let here = here(session)?;
    session.batch("BEGIN")?;
    if let Err(fault) = begin(inner, session, &here) {
        session.batch("ROLLBACK")?;
        return Err(fault);
    }
    session.batch("COMMIT")
}

fn begin(
    inner: &PostgresState,
    session: &mut DatabaseSession,
    here: &str,
) -> Result<(), StatementError> {
    let text = "SELECT s.seq, s.line, l.number, l.place FROM state s JOIN line l ON l.id = s.line \
                FOR UPDATE OF s";
    let rows = session.query_once(text, &[])?;
    let Some(row) = rows.first() else {
        return Err(StatementError::Refused("its tables `state` and `line` are not whole".into()));
    };
    let (seq, line, number): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    let begun_in: &str = row.get(3);
    let is_behind = inner.current.is_ahead_of(line, seq);
    if is_behind || (begun_in != here && !begun_in.is_empty()) {
        let id = getrandom::u64().map_err(|error| StatementError::Refused(error.to_string()))?;
        let id = (id >> 1).cast_signed();
        let text = "INSERT INTO line (number, id, since, place) VALUES ($1, $2, $3, $4)";
        session.query_once(text, &[&(number + 1), &id, &seq, &here])?;
        session.query_once("UPDATE state SET line = $1", &[&id])?;
        session.batch(
            "SELECT pg_notify(current_schema(), seq || ' 1 ' || parts || ' ' || line) FROM state",
        )?;
    } else if begun_in.is_empty() {
        session.query_once("UPDATE line SET place = $2 WHERE id = $1", &[&line, &here])?;
    }
    Ok(())
}

/// Returns a text that identifies the database: the text changes if another database replaces this
/// database. The start time of the server is different on a standby and on a server with restored
/// files. The OID of the table `state` is different after a dump was restored. After a mere restart
/// of the server the text is different, too: a new timeline begins, but no put is lost.
fn here(session: &mut DatabaseSession) -> Result<String, StatementError> {
    let text = "SELECT pg_is_in_recovery(), extract(epoch FROM pg_postmaster_start_time())::text \
        || ' ' || 'state'::regclass::oid::text";
    let rows = session.query_once(text, &[])?;
    match rows.first() {
        Some(row) if row.get(0) => {
            Err(StatementError::Away("this one is a standby, which takes no writes".into()))
        }
        row => Ok(row.map_or_else(String::new, |row| row.get(1))),
    }
}
