//! Reads the values that are fixed when a shelf is made, and the current sizes of a shelf.

use hark_archive::store::{DatabaseStats, StoreStats};

use crate::error::StatementError;
use crate::session::DatabaseSession;
use crate::state::PostgresState;
use crate::terms::SECRET;
use crate::time::from_db;

/// Returns the shelf's secret, and the length of its parts. A new shelf gets parts of length
/// `width`.
pub(crate) fn open_stats(
    session: &mut DatabaseSession,
    width: u64,
) -> Result<([u8; SECRET], u64), StatementError> {
    let text = "INSERT INTO meta VALUES ('part_width', $1) ON CONFLICT DO NOTHING";
    session.query_once(text, &[&width.to_be_bytes().as_slice()])?;
    let rows = session.query_once("SELECT name, value FROM meta", &[])?;
    let value = |name: &str| {
        let row = rows.iter().find(|row| row.get::<_, &str>(0) == name);
        row.map(|row| row.get::<_, &[u8]>(1))
    };
    let secret = value("secret").and_then(|secret| secret.try_into().ok());
    let width = value("part_width").and_then(|width| width.try_into().ok());
    match (secret, width) {
        (Some(secret), Some(width)) => Ok((secret, u64::from_be_bytes(width).max(1))),
        _ => Err(not_whole()),
    }
}

/// Reads the shelf's secret.
pub(crate) fn secret(session: &mut DatabaseSession) -> Result<[u8; SECRET], StatementError> {
    let rows = session.query_once("SELECT value FROM meta WHERE name = 'secret'", &[])?;
    let secret = rows.first().and_then(|row| row.get::<_, &[u8]>(0).try_into().ok());
    secret.ok_or_else(not_whole)
}

pub(crate) fn not_whole() -> StatementError {
    StatementError::Refused("its table `meta` is not whole".into())
}

/// Returns the sizes that PostgreSQL reports; zeros while the database cannot be reached.
pub(crate) fn stats(inner: &PostgresState, schema: &str) -> StoreStats {
    let read = inner.pool.with(|session| session.query_once(inner.layout.sizes(), &[&schema]));
    let rows = match read {
        Ok(rows) => rows,
        Err(fault) => {
            tracing::debug!(%fault, "sizes are not known");
            return StoreStats::default();
        }
    };
    let Some(row) = rows.first() else { return StoreStats::default() };
    let counters = &inner.pool.counters;
    let database = DatabaseStats {
        connections: counters.open.get(),
        connections_used: counters.used.get(),
        waits: counters.waits.get(),
        replica: inner.replica.as_ref().map(|replica| (replica.asked.get(), replica.passed.get())),
        news_behind: row
            .get::<_, i64>(6)
            .saturating_sub(inner.current.now().seen)
            .max(0)
            .cast_unsigned(),
        statements: inner.pool.door().statement_times.read(),
    };
    let number = |at: usize| row.get::<_, i64>(at).max(0).cast_unsigned();
    let (records, bytes, dead) = (number(0), number(1), number(3));
    let share_dead = dead as f64 / (records + dead).max(1) as f64;
    let dead_bytes = (bytes as f64 * share_dead) as u64;
    StoreStats {
        records,
        bytes,
        index_bytes: number(2),
        log_bytes: bytes.saturating_sub(number(2)),
        dead,
        dead_bytes,
        // After a vacuum, new rows can use the space of dead rows.
        reclaimable_bytes: dead_bytes,
        segments: inner.parts().len() as u64,
        oldest: row.get::<_, Option<i64>>(4).map(from_db),
        newest: row.get::<_, Option<i64>>(5).map(from_db),
        database: Some(database),
        ..StoreStats::default()
    }
}
