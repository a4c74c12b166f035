//! The workers of the cluster to which a shelf's database belongs.

use crate::error::StatementError;
use crate::session::DatabaseSession;

/// Whether the database is the coordinator of a cluster with workers.
pub(crate) fn has_workers(session: &mut DatabaseSession) -> Result<bool, StatementError> {
    if !exists(session, "pg_catalog.pg_dist_node")? {
        return Ok(false);
    }
    let workers = "SELECT FROM pg_dist_node WHERE noderole = 'primary' AND groupid > 0 LIMIT 1";
    Ok(!session.query_once(workers, &[])?.is_empty())
}

/// Whether the database has a table of this name.
pub(crate) fn exists(session: &mut DatabaseSession, table: &str) -> Result<bool, StatementError> {
    let rows = session.query_once("SELECT to_regclass($1::text) IS NOT NULL", &[&table])?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

/// Disables sequential scans, JIT and parallel plans for the sessions of this user in this database
/// on all nodes. Workers have no useful statistics of a shard that was just filled or moved, so
/// PostgreSQL would read whole tables.
pub(crate) fn set_planning(session: &mut DatabaseSession) -> Result<(), StatementError> {
    let text = "SELECT coalesce(bool_or('enable_seqscan=off' = ANY(s.setconfig)), false) \
        FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase \
        JOIN pg_roles r ON r.oid = s.setrole \
        WHERE d.datname = current_database() AND r.rolname = current_user";
    if session.query_once(text, &[])?.first().is_some_and(|row| row.get(0)) {
        return Ok(());
    }
    session.batch(
        "DO $$ DECLARE setting text; BEGIN
             FOREACH setting IN ARRAY ARRAY['enable_seqscan = off', 'jit = off',
                 'max_parallel_workers_per_gather = 0'] LOOP
                 EXECUTE format('ALTER ROLE %I IN DATABASE %I SET %s', current_user,
                     current_database(), setting);
             END LOOP;
         END $$",
    )
}
