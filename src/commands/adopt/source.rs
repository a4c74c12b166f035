//! nostream's database: rows of `events`, by keyset, in short statements.

use std::error::Error;
use std::ops::Range;

use anyhow::{Context as _, bail};
use hark_archive::Id;
use hark_store_postgres::Address;
use tokio::runtime::Runtime;
use tokio_postgres::Client;
use tokio_postgres::types::{FromSql, ToSql, Type};

/// The columns that every version of nostream has.
const COLUMNS: [&str; 7] = [
    "event_id",
    "event_pubkey",
    "event_kind",
    "event_created_at",
    "event_content",
    "event_tags",
    "event_signature",
];
/// Rows of a random place that a sample looks at.
const NEAR: i64 = 1;

/// What is said when a question gets no answer.
const LOST: &str = "nostream's database stopped answering; what was brought over is safe. Run the \
                    adoption again: it goes on where it was";

/// A place in the order of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cursor {
    pub(super) created_at: i64,
    pub(super) id: Id,
}

impl Cursor {
    /// So many seconds earlier.
    pub(super) fn before(&self, seconds: i64) -> Self {
        Self { created_at: (self.created_at - seconds).max(0), id: [0; 32] }
    }
}

/// A row as it is there.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) id: Vec<u8>,
    pub(super) pubkey: Vec<u8>,
    pub(super) kind: i32,
    pub(super) created_at: i64,
    pub(super) content: String,
    /// JSON.
    pub(super) tags: Vec<u8>,
    pub(super) signature: Vec<u8>,
}

impl Row {
    pub(super) fn cursor(&self) -> Cursor {
        Cursor { created_at: self.created_at, id: id(&self.id) }
    }
}

/// Of other lengths than an id's, only their order counts.
fn id(bytes: &[u8]) -> Id {
    let mut id = [0; 32];
    for (to, from) in id.iter_mut().zip(bytes) {
        *to = *from;
    }
    id
}

/// The JSON of a jsonb column, as it comes.
struct Jsonb(Vec<u8>);

impl<'a> FromSql<'a> for Jsonb {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        // The version of the format stands first.
        match raw {
            [1, json @ ..] => Ok(Self(json.to_vec())),
            _ => Err("a jsonb of a version that is not known".into()),
        }
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::JSONB
    }
}

/// A connection, and what is asked on it.
pub(super) struct Source {
    runtime: Runtime,
    client: Client,
    address: Address,
    /// Rows that nostream itself would give out.
    alive: &'static str,
    /// Whether a range of pages can be read without the rest of the table: since PostgreSQL 14.
    pub(super) reads_pages: bool,
}

impl Source {
    pub(super) fn open(url: &str) -> anyhow::Result<Self> {
        let address = Address::read(url).with_context(|| {
            "no address of a database; it looks like postgres://user:password@host:5432/database"
        })?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("the system does not let Hark start its threads")?;
        let (client, connection) = runtime.block_on(address.connect()).context(
            "nostream's database could not be reached; nothing was done. Is the address right, and \
             may this machine connect (pg_hba.conf)?",
        )?;
        // Its end is told by the next question.
        runtime.spawn(connection);
        let mut source = Self { runtime, client, address, alive: "true", reads_pages: false };
        source.look()?;
        Ok(source)
    }

    /// Whether it is nostream's, and of which age.
    fn look(&mut self) -> anyhow::Result<()> {
        let sql = "SELECT column_name::text FROM information_schema.columns \
                   WHERE table_name = 'events' AND table_schema = ANY(current_schemas(false))";
        let rows = self.runtime.block_on(self.client.query(sql, &[]))?;
        let columns: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let has = |name: &str| columns.iter().any(|column| column == name);
        let missing: Vec<&str> = COLUMNS.into_iter().filter(|name| !has(name)).collect();
        if !missing.is_empty() {
            bail!(
                "this is no database of nostream: its table `events` has no {}. Nothing was done",
                missing.join(", ")
            );
        }
        if has("deleted_at") {
            self.alive = "deleted_at IS NULL";
        }
        let sql = "SELECT current_setting('server_version_num')::int >= 140000";
        self.reads_pages = self.runtime.block_on(self.client.query_one(sql, &[]))?.get(0);
        // The order is that of an index; sorting the whole table for each batch would be worse than any
        // other plan. And a reader that holds no locks waits for none.
        self.runtime.block_on(self.client.batch_execute(
            "SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off; \
             SET default_transaction_read_only = on; SET lock_timeout = '10s'",
        ))?;
        Ok(())
    }

    /// What it is called in what is remembered of it: no password, and the same however it is typed.
    pub(super) fn name(&self) -> String {
        let config = &self.address.config;
        let host = self.address.hosts().next().unwrap_or_default();
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
        format!("nostream at {host}:{port}/{database}")
    }

    /// About how many rows there are.
    pub(super) fn estimate(&self) -> anyhow::Result<u64> {
        let sql =
            "SELECT GREATEST(reltuples, 0)::bigint FROM pg_class WHERE oid = 'events'::regclass";
        let rows: i64 = self.runtime.block_on(self.client.query_one(sql, &[]))?.get(0);
        Ok(rows.unsigned_abs())
    }

    /// How many rows there are that nostream would give out.
    pub(super) fn count(&self) -> anyhow::Result<u64> {
        let sql = format!("SELECT count(*) FROM events WHERE {}", self.alive);
        let rows: i64 = self.runtime.block_on(self.client.query_one(&sql, &[]))?.get(0);
        Ok(rows.unsigned_abs())
    }

    /// The next rows behind a place, by time and id.
    pub(super) fn after(&self, at: &Cursor, limit: u32) -> anyhow::Result<Vec<Row>> {
        // Named with its table, or it would be the column of the answer, which no index has.
        let rest = "event_created_at >= $1::bigint AND (event_created_at, event_id) > ($1::bigint, $2) \
                    ORDER BY events.event_created_at, events.event_id LIMIT $3";
        self.rows(rest, &[&at.created_at, &&at.id[..], &i64::from(limit)])
    }

    /// The oldest transaction that had not ended: all that this database does not show yet is of this
    /// one or of later ones.
    pub(super) fn transaction(&self) -> anyhow::Result<u64> {
        let sql = "SELECT txid_snapshot_xmin(txid_current_snapshot())";
        let transaction: i64 = self.runtime.block_on(self.client.query_one(sql, &[]))?.get(0);
        Ok(transaction.unsigned_abs())
    }

    /// How many pages the table has.
    pub(super) fn pages(&self) -> anyhow::Result<u64> {
        let sql = "SELECT pg_relation_size('events') / current_setting('block_size')::bigint";
        let pages: i64 = self.runtime.block_on(self.client.query_one(sql, &[]))?.get(0);
        Ok(pages.unsigned_abs())
    }

    /// Ids of rows on these pages that have a time before `created_at` and were written by transaction
    /// `since` or a later one.
    pub(super) fn written(
        &self,
        since: u64,
        pages: Range<u64>,
        created_at: i64,
    ) -> anyhow::Result<Vec<Id>> {
        let page = |page: u64| page.min(u32::MAX.into());
        // A row has the low half of its transaction's number, of which the first three are none. A row
        // so old that its number seems to lie ahead is none of these.
        let since = (since & u64::from(u32::MAX)).max(3);
        let sql = format!(
            "SELECT event_id FROM events \
             WHERE ctid >= '({},0)'::tid AND ctid < '({},0)'::tid \
             AND age(xmin) BETWEEN 0 AND age('{since}'::xid) AND event_created_at < $1::bigint",
            page(pages.start),
            page(pages.end),
        );
        let rows = self.runtime.block_on(self.client.query(&sql, &[&created_at])).context(LOST)?;
        Ok(rows.iter().map(|row| id(row.get(0))).collect())
    }

    /// The rows of these ids.
    pub(super) fn of_ids(&self, ids: &[Id]) -> anyhow::Result<Vec<Row>> {
        let ids: Vec<&[u8]> = ids.iter().map(|id| &id[..]).collect();
        self.rows("event_id = ANY($1)", &[&ids])
    }

    /// The row behind a random place.
    pub(super) fn near(&self, id: &Id) -> anyhow::Result<Vec<Row>> {
        self.rows("event_id >= $1 ORDER BY event_id LIMIT $2", &[&&id[..], &NEAR])
    }

    /// The next places by time and id, of rows dead or alive.
    pub(super) fn places(&self, after: &Cursor, limit: i64) -> anyhow::Result<Vec<Cursor>> {
        let sql = "SELECT event_created_at::bigint, event_id FROM events \
                   WHERE event_created_at >= $1::bigint \
                   AND (event_created_at, event_id) > ($1::bigint, $2) \
                   ORDER BY events.event_created_at, events.event_id LIMIT $3";
        let values: [&(dyn ToSql + Sync); 3] = [&after.created_at, &&after.id[..], &limit];
        let rows = self.runtime.block_on(self.client.query(sql, &values))?;
        let place =
            |row: &tokio_postgres::Row| Cursor { created_at: row.get(0), id: id(row.get(1)) };
        Ok(rows.iter().map(place).collect())
    }

    fn rows(&self, rest: &str, values: &[&(dyn ToSql + Sync)]) -> anyhow::Result<Vec<Row>> {
        let sql = format!(
            "SELECT event_id, event_pubkey, event_kind::int, event_created_at::bigint, event_content, \
             event_tags, event_signature FROM events WHERE {} AND {rest}",
            self.alive
        );
        let rows = self.runtime.block_on(self.client.query(&sql, values)).context(LOST)?;
        let row = |row: &tokio_postgres::Row| Row {
            id: row.get(0),
            pubkey: row.get(1),
            kind: row.get(2),
            created_at: row.get(3),
            content: row.get(4),
            tags: row.get::<_, Option<Jsonb>>(5).map_or_else(|| b"[]".to_vec(), |json| json.0),
            signature: row.get(6),
        };
        Ok(rows.iter().map(row).collect())
    }
}
