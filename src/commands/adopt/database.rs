//! The connection to another server's PostgreSQL database, which is only read.

use std::time::Duration;

use anyhow::Context as _;
use futures_util::StreamExt as _;
use hark_store_postgres::DatabaseAddress;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Error, Row};

/// The error message if a query gets no answer.
pub(super) const LOST: &str = "the database stopped answering; what was brought over is safe. Run \
                               the adoption again: it continues where it stopped";

/// Time after which a host that does not answer counts as lost.
const LOST_AFTER: Duration = Duration::from_mins(1);
/// Interval of probes while the host sends nothing.
const PROBE_EVERY: Duration = Duration::from_secs(15);

/// A connection to a database. A method that runs a statement blocks the thread until the result
/// arrives.
pub(super) struct SourceDatabase {
    runtime: Runtime,
    client: Client,
    address: DatabaseAddress,
}

impl SourceDatabase {
    /// Connects to the database. `owner` is the name of the program that owns the database, for
    /// error messages. Statements can only read. They read rows in the order of an index instead of
    /// sorting a table, and fail after waiting 10 s for a lock.
    pub(super) fn open(url: &str, owner: &str) -> anyhow::Result<Self> {
        let mut address = DatabaseAddress::read(url).with_context(|| {
            "no address of a database; it looks like postgres://user:password@host:5432/database"
        })?;
        notice_loss(&mut address.config);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("the system does not let Hark start its threads")?;
        // A host that hangs may accept a connection and then send nothing.
        let connected = runtime.block_on(async { timeout(LOST_AFTER, address.connect()).await });
        let connected = connected.map_err(anyhow::Error::from).and_then(|done| Ok(done?));
        let (client, connection) = connected.with_context(|| {
            format!(
                "{owner}'s database could not be reached; nothing was done. Is the address right, \
                 and may this machine connect (pg_hba.conf)?"
            )
        })?;
        // If the connection ends, the next query fails.
        runtime.spawn(connection);
        // Rows are read in the order of an index. Sorting the whole table for each batch would be
        // slower than any other plan.
        runtime.block_on(client.batch_execute(
            "SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off; \
             SET default_transaction_read_only = on; SET lock_timeout = '10s'",
        ))?;
        Ok(Self { runtime, client, address })
    }

    /// Returns the name under which positions in this database are saved. The name contains no
    /// password, and does not depend on the spelling of the address.
    pub(super) fn name(&self) -> String {
        let config = &self.address.config;
        let host = self.address.hosts().next().unwrap_or_default();
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
        format!("{host}:{port}/{database}")
    }

    /// Returns the rows of a query.
    pub(super) fn query(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.runtime.block_on(self.client.query(sql, values))
    }

    /// Returns the only row of a query.
    pub(super) fn query_one(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, Error> {
        self.runtime.block_on(self.client.query_one(sql, values))
    }

    /// Returns the rows of a query, as `row` converts them, until the rows have at least `bytes_max`
    /// bytes. The rows are fetched one at a time, so that a long result is never in memory as a
    /// whole.
    pub(super) fn rows<R>(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
        row: impl Fn(&Row) -> Result<R, Error>,
        (bytes_of, bytes_max): (impl Fn(&R) -> usize, usize),
    ) -> Result<Vec<R>, Error> {
        let values = values.iter().map(|value| *value as &dyn ToSql).collect::<Vec<_>>();
        self.runtime.block_on(async {
            let mut found = std::pin::pin!(self.client.query_raw(sql, values).await?);
            let (mut rows, mut bytes) = (Vec::new(), 0);
            while bytes < bytes_max {
                let Some(found) = found.next().await else { break };
                let row = row(&found?)?;
                bytes += bytes_of(&row);
                rows.push(row);
            }
            Ok(rows)
        })
    }

    /// Returns the names in `columns` that are not columns of the table; all names if the table
    /// does not exist.
    pub(super) fn missing<'a>(
        &self,
        table: &str,
        columns: &[&'a str],
    ) -> Result<Vec<&'a str>, Error> {
        let sql = "SELECT column_name::text FROM information_schema.columns \
                   WHERE table_name = $1 AND table_schema = ANY(current_schemas(false))";
        let rows = self.query(sql, &[&table])?;
        let found: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let is_missing = |name: &&&str| !found.iter().any(|column| column == **name);
        Ok(columns.iter().filter(is_missing).copied().collect())
    }

    /// Returns the approximate number of a table's rows.
    pub(super) fn estimate(&self, table: &str) -> anyhow::Result<u64> {
        let sql = "SELECT GREATEST(reltuples, 0)::bigint FROM pg_class WHERE oid = to_regclass($1)";
        let rows: i64 = self.query_one(sql, &[&table]).context(LOST)?.get(0);
        Ok(rows.unsigned_abs())
    }
}

/// Has the system report a host that is gone. Otherwise, a query whose answer can no longer come
/// would wait for hours.
fn notice_loss(config: &mut Config) {
    config.connect_timeout(LOST_AFTER);
    config.keepalives_idle(PROBE_EVERY);
    config.keepalives_interval(PROBE_EVERY);
    config.tcp_user_timeout(LOST_AFTER);
}
