//! Distributes the tables of a shelf, which are on one server, over the workers of a Citus cluster.
//!
//! The new tables are filled in a separate schema, with some thousand records per transaction, in
//! the order of the records' numbers. The last transaction replaces the old schema with the new
//! schema. Then the old schema is dropped. So at any time the shelf is either complete in the old
//! tables or complete in the new tables, and a run that was interrupted continues at the number
//! that it had reached. No process may write to the shelf during a run: if the old tables have
//! changed since a run began, the next run starts over.

use std::ops::ControlFlow;
use std::time::Duration;

use tokio_postgres::types::ToSql;

use crate::citus::{CitusLayout, exists, has_workers};
use crate::error::StatementError;
use crate::layout::Layout as _;
use crate::migrate::{self, MigrateError};
use crate::open::{DatabaseOpenError, check_version, connector, schema};
use crate::options::PostgresOptions;
use crate::plain::PlainLayout;
use crate::session::DatabaseSession;

/// Number of records in one transaction.
const BATCH: i64 = 5_000;
/// Time limit of a statement. The longest statements, at the end, count all records.
const STATEMENT_TIMEOUT: Duration = Duration::from_hours(24);
/// How many times to check for other open connections, and the pause between two checks.
const LOOKS: usize = 20;
const LOOK: Duration = Duration::from_millis(100);
/// The row of `meta` that has the progress of a run: the number of the last copied record, and the
/// version of the old tables (their newest number and their number of records).
const REACHED: &str = "distributed";

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// The shelf's tables are distributed now; the value is the number of records.
    Done(u64),
    /// The shelf's tables were already distributed.
    Already,
    /// The caller stopped the run. The next run continues at the same record.
    Stopped,
}

/// Why the tables were not distributed.
#[derive(Debug, thiserror::Error)]
pub enum DistributeError {
    /// The database is unreachable, or refused a statement.
    #[error(transparent)]
    Database(#[from] DatabaseOpenError),
    /// The database is not the coordinator of a cluster that has workers.
    #[error(
        "the database is no Citus cluster with workers: `hark cluster add` adds one (the server needs the \
         extension citus)"
    )]
    NoCluster,
    /// The database does not have this shelf.
    #[error(
        "the database has no archive of {0}; `hark serve` makes a new one divided from the start"
    )]
    NoShelf(String),
    /// Other processes of Hark are connected to the database.
    #[error(
        "{0} connections of Hark to this database are open: stop its servers and commands first, as \
         nothing may be written while tables are divided; nothing was changed"
    )]
    Used(i64),
    /// Another process has written to the old tables.
    #[error(
        "records were written while their tables were divided; the archive still has its old tables. Stop \
         all servers, and run the command again"
    )]
    Changed,
    /// The new tables do not have all records and labels of the old tables.
    #[error(
        "the new tables have {found} instead of {expected}; the archive still has its old tables. Run the \
         command again, and tell us if this stays so"
    )]
    Differs {
        /// The numbers of records and labels in the new tables.
        found: String,
        /// The numbers of records and labels in the old tables.
        expected: String,
    },
}

impl From<StatementError> for DistributeError {
    fn from(fault: StatementError) -> Self {
        Self::Database(fault.into())
    }
}

impl From<MigrateError> for DistributeError {
    fn from(fault: MigrateError) -> Self {
        Self::Database(fault.into())
    }
}

/// The version of the old tables' content. Each put raises `seq` and each deletion lowers
/// `records`, so every change changes at least one of these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TableVersion {
    seq: i64,
    records: i64,
}

/// Distributes the tables of a shelf over the workers. `progress` receives the number of copied
/// records and the number of all records. It may stop the run between two transactions.
pub fn distribute(
    url: &str,
    shelf: &str,
    options: &PostgresOptions,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Distribution, DistributeError> {
    let options = PostgresOptions { statement_timeout: STATEMENT_TIMEOUT, ..options.clone() };
    let old = schema(shelf)?;
    let (new, before) = (format!("{old}_divided"), format!("{old}_before"));
    let mut session = connector(url, &new, &options, &CitusLayout)?.open()?;
    check_version(&mut session)?;
    // This is the lock for migrations. It is released when the session ends.
    session.batch("SELECT pg_advisory_lock(7235419860234518)")?;
    if exists(&mut session, &format!("{old}.id_place"))? {
        // An earlier run may have ended before dropping the old tables.
        drop_schema(&mut session, &before)?;
        return Ok(Distribution::Already);
    }
    if !exists(&mut session, &format!("{old}.state"))? {
        return Err(DistributeError::NoShelf(shelf.into()));
    }
    if !has_workers(&mut session)? {
        return Err(DistributeError::NoCluster);
    }
    check_migrated(url, &old, shelf, &options)?;
    check_alone(&mut session)?;

    let version = version(&mut session, &old)?;
    let mut reached = match reached(&mut session, &new)? {
        Some((reached, of)) if of == version => reached,
        _ => {
            drop_schema(&mut session, &new)?;
            CitusLayout.begin_migrations(&mut session, options.shards)?;
            migrate::apply(&mut session, &CitusLayout, &new)?;
            CitusLayout.end_migrations(&mut session)?;
            retain_reached(&mut session, 0, version)?;
            0
        }
    };
    let counted = format!("SELECT count(*) FROM {old}.record WHERE seq <= $1");
    let mut done = first(&mut session, &counted, &[&reached])?;
    while let Some(last) = next(&mut session, &old, reached)? {
        if progress(done.cast_unsigned(), version.records.cast_unsigned()).is_break() {
            return Ok(Distribution::Stopped);
        }
        done += copy(&mut session, &old, (reached, last), version)?;
        reached = last;
    }
    check_counts(&mut session, &old)?;
    switch(&mut session, [&old, &new, &before], version)?;
    drop_schema(&mut session, &before)?;
    Ok(Distribution::Done(version.records.cast_unsigned()))
}

/// Fails if the old tables lack migrations.
fn check_migrated(
    url: &str,
    old: &str,
    shelf: &str,
    options: &PostgresOptions,
) -> Result<(), DistributeError> {
    let mut session = connector(url, old, options, &PlainLayout::LABELLED)?.open()?;
    let all = migrate::status(&mut session, &PlainLayout::LABELLED, old)?;
    match all.iter().filter(|one| one.applied.is_none()).count() {
        0 => Ok(()),
        missing => Err(MigrateError::Missing { missing, shelf: shelf.into() }.into()),
    }
}

/// Executes a query, and returns the number in the first row.
fn first(
    session: &mut DatabaseSession,
    text: &str,
    values: &[&(dyn ToSql + Sync)],
) -> Result<i64, StatementError> {
    Ok(session.query_once(text, values)?.first().map_or(0, |row| row.get(0)))
}

/// Fails if other processes of Hark are connected to the database.
fn check_alone(session: &mut DatabaseSession) -> Result<(), DistributeError> {
    let text = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
        AND usename = current_user AND backend_type = 'client backend' \
        AND application_name = current_setting('application_name') AND pid <> pg_backend_pid()";
    // The database may list a connection for a moment after it was closed.
    let mut others = first(session, text, &[])?;
    for _ in 0..LOOKS {
        if others == 0 {
            break;
        }
        std::thread::sleep(LOOK);
        others = first(session, text, &[])?;
    }
    if others == 0 { Ok(()) } else { Err(DistributeError::Used(others)) }
}

fn version(session: &mut DatabaseSession, schema: &str) -> Result<TableVersion, StatementError> {
    let rows = session.query_once(&format!("SELECT seq, records FROM {schema}.state"), &[])?;
    let values = rows.first().map_or((0, 0), |row| (row.get(0), row.get(1)));
    Ok(TableVersion { seq: values.0, records: values.1 })
}

/// Returns the number of the last record that an earlier run has copied, and the version of the old
/// tables when that run began.
fn reached(
    session: &mut DatabaseSession,
    new: &str,
) -> Result<Option<(i64, TableVersion)>, StatementError> {
    if !exists(session, &format!("{new}.meta"))? {
        return Ok(None);
    }
    let rows = session.query_once("SELECT value FROM meta WHERE name = $1", &[&REACHED])?;
    let value: Option<[u8; 24]> =
        rows.first().and_then(|row| row.get::<_, &[u8]>(0).try_into().ok());
    let number = |value: &[u8; 24], at: usize| {
        i64::from_be_bytes(value[at..at + 8].try_into().unwrap_or_default())
    };
    Ok(value.map(|value| {
        let of = TableVersion { seq: number(&value, 8), records: number(&value, 16) };
        (number(&value, 0), of)
    }))
}

fn retain_reached(
    session: &mut DatabaseSession,
    reached: i64,
    of: TableVersion,
) -> Result<(), StatementError> {
    let value = [reached, of.seq, of.records].map(i64::to_be_bytes).concat();
    let text =
        "INSERT INTO meta VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value";
    session.query_once(text, &[&REACHED, &value])?;
    Ok(())
}

/// Returns the number of the last record in the next batch; `None` if no records are left.
fn next(
    session: &mut DatabaseSession,
    old: &str,
    reached: i64,
) -> Result<Option<i64>, StatementError> {
    let text = format!(
        "SELECT max(seq) FROM (SELECT seq FROM {old}.record WHERE seq > $1 ORDER BY seq LIMIT $2) s"
    );
    let rows = session.query_once(&text, &[&reached, &BATCH])?;
    Ok(rows.first().and_then(|row| row.get(0)))
}

/// Copies the records with numbers above `range.0` and up to `range.1`, and stores the progress in
/// the same transaction. Returns the number of copied records.
fn copy(
    session: &mut DatabaseSession,
    old: &str,
    range: (i64, i64),
    of: TableVersion,
) -> Result<i64, StatementError> {
    let (after, last) = range;
    let of_range = format!("FROM {old}.record WHERE seq > {after} AND seq <= {last}");
    let copied = session.whole(|session| {
        session.batch(&format!(
            "BEGIN;
             INSERT INTO record (place, id_head, seq, time, expires, kind, id, author, terms, body)
                 SELECT coalesce(author, id), ('x' || encode(substr(id, 1, 8), 'hex'))::bit(64)::bigint,
                     seq, time, expires, kind, id, author, terms, body {of_range};
             INSERT INTO id_place (id, place) SELECT id, coalesce(author, id) {of_range};
             INSERT INTO tag (term, time, kind, id, place)
                 SELECT unnest(terms), time, kind, id, coalesce(author, id) {of_range}"
        ))?;
        retain_reached(session, last, of)?;
        let copied = first(session, &format!("SELECT count(*) {of_range}"), &[])?;
        session.batch("COMMIT")?;
        Ok(Some(copied))
    })?;
    Ok(copied.unwrap_or(0))
}

/// Fails unless the new tables have as many records and tags as the old tables.
fn check_counts(session: &mut DatabaseSession, old: &str) -> Result<(), DistributeError> {
    let mut counts = |text: &str| -> Result<String, StatementError> {
        let rows = session.query_once(text, &[])?;
        let value = rows.first().map_or((0, 0), |row| (row.get::<_, i64>(0), row.get::<_, i64>(1)));
        Ok(format!("{} records and {} labels", value.0, value.1))
    };
    let expected = counts(&format!(
        "SELECT (SELECT count(*) FROM {old}.record), (SELECT count(*) FROM {old}.tag)"
    ))?;
    let found = counts("SELECT (SELECT count(*) FROM record), (SELECT count(*) FROM tag)")?;
    let places = counts("SELECT (SELECT count(*) FROM id_place), (SELECT count(*) FROM tag)")?;
    if found != expected || places != expected {
        return Err(DistributeError::Differs { found, expected });
    }
    Ok(())
}

/// Copies the small tables, and replaces the old schema with the new schema. Fails if the old
/// tables have changed, or if another process is connected.
fn switch(
    session: &mut DatabaseSession,
    [old, new, before]: [&str; 3],
    of: TableVersion,
) -> Result<(), DistributeError> {
    session.batch(&format!("BEGIN; LOCK TABLE {old}.state IN ACCESS EXCLUSIVE MODE"))?;
    let checked = check_alone(session).and_then(|()| {
        let is_same = version(session, old)? == of;
        if is_same { Ok(()) } else { Err(DistributeError::Changed) }
    });
    if let Err(error) = checked {
        session.batch("ROLLBACK")?;
        return Err(error);
    }
    session.batch(&format!(
        "DELETE FROM meta;
         INSERT INTO meta SELECT * FROM {old}.meta;
         DELETE FROM state;
         INSERT INTO state (seq, records, line) SELECT seq, records, line FROM {old}.state;
         DELETE FROM line;
         INSERT INTO line SELECT * FROM {old}.line;
         INSERT INTO forbid (key, time, id, place)
             SELECT f.key, f.time, f.id, coalesce(r.author, f.id)
             FROM {old}.forbid f LEFT JOIN {old}.record r ON r.id = f.id;
         INSERT INTO label_value SELECT * FROM {old}.label_value;
         INSERT INTO listed_label SELECT * FROM {old}.listed_label;
         ALTER SCHEMA {old} RENAME TO {before};
         ALTER SCHEMA {new} RENAME TO {old};
         COMMIT"
    ))?;
    Ok(())
}

/// Drops a schema if it exists. The tables are dropped one by one, because a transaction that drops
/// very many parts needs more locks than a server has by default.
fn drop_schema(session: &mut DatabaseSession, schema: &str) -> Result<(), StatementError> {
    let text = "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c \
        JOIN pg_namespace n ON n.oid = c.relnamespace \
        WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') ORDER BY c.relispartition DESC, 1";
    for row in session.query_once(text, &[&schema])? {
        session.batch(&format!("DROP TABLE IF EXISTS {} CASCADE", row.get::<_, &str>(0)))?;
    }
    session.batch(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE"))
}
