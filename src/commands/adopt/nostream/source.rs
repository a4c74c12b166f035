//! Reads nostream's database: rows of `events`, by keyset pagination, in short statements.

use std::error::Error;
use std::ops::Range;

use anyhow::{Context as _, bail};
use hark_archive::Id;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql, Type};

use crate::commands::adopt::database::{LOST, SourceDatabase};
use crate::commands::adopt::relay::source::BATCH_BYTES_MAX;

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
/// Number of rows that a sample reads at each of its positions.
const NEAR: i64 = 1;

/// A position in the order of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowCursor {
    pub(super) created_at: i64,
    pub(super) id: Id,
}

impl RowCursor {
    /// Returns a position that is `seconds` earlier.
    pub(super) fn before(&self, seconds: i64) -> Self {
        Self { created_at: (self.created_at - seconds).max(0), id: [0; 32] }
    }
}

/// A row of nostream's table `events`.
#[derive(Clone, Debug)]
pub(super) struct NostreamRow {
    pub(super) id: Vec<u8>,
    pub(super) pubkey: Vec<u8>,
    pub(super) kind: i32,
    pub(super) created_at: i64,
    pub(super) content: String,
    /// JSON.
    pub(super) tags: Vec<u8>,
    pub(super) signature: Vec<u8>,
}

impl NostreamRow {
    pub(super) fn cursor(&self) -> RowCursor {
        RowCursor { created_at: self.created_at, id: id(&self.id) }
    }
}

/// Returns the bytes as an id: cut if they are too long, and padded with zeros if they are too
/// short. The order of ids is the order of the bytes.
fn id(bytes: &[u8]) -> Id {
    let mut id = [0; 32];
    for (to, from) in id.iter_mut().zip(bytes) {
        *to = *from;
    }
    id
}

/// The unparsed JSON of a jsonb column.
struct JsonbColumn(Vec<u8>);

impl<'a> FromSql<'a> for JsonbColumn {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        // The first byte is the version of the format.
        match raw {
            [1, json @ ..] => Ok(Self(json.to_vec())),
            _ => Err("a jsonb of an unknown version".into()),
        }
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::JSONB
    }
}

/// A connection to nostream's database, and its queries.
pub(super) struct NostreamSource {
    database: SourceDatabase,
    /// The condition for rows that nostream itself would return to clients.
    alive: &'static str,
    /// Whether the database can read a range of pages without the rest of the table (PostgreSQL 14
    /// and later).
    pub(super) reads_pages: bool,
}

impl NostreamSource {
    /// Connects, checks that the database is nostream's, and detects the features of its version.
    pub(super) fn open(url: &str) -> anyhow::Result<Self> {
        let database = SourceDatabase::open(url, "nostream")?;
        let missing = database.missing("events", &COLUMNS)?;
        if !missing.is_empty() {
            bail!(
                "this is no database of nostream: its table `events` has no {}. Nothing was done",
                missing.join(", ")
            );
        }
        let has_deleted = database.missing("events", &["deleted_at"])?.is_empty();
        let alive = if has_deleted { "deleted_at IS NULL" } else { "true" };
        let sql = "SELECT current_setting('server_version_num')::int >= 140000";
        let reads_pages = database.query_one(sql, &[])?.get(0);
        Ok(Self { database, alive, reads_pages })
    }

    /// Returns the name under which the position in this source is saved.
    pub(super) fn name(&self) -> String {
        format!("nostream at {}", self.database.name())
    }

    /// Returns the approximate number of rows.
    pub(super) fn estimate(&self) -> anyhow::Result<u64> {
        self.database.estimate("events")
    }

    /// Returns the number of rows that nostream would return to clients.
    pub(super) fn count(&self) -> anyhow::Result<u64> {
        let sql = format!("SELECT count(*) FROM events WHERE {}", self.alive);
        let rows: i64 = self.database.query_one(&sql, &[])?.get(0);
        Ok(rows.unsigned_abs())
    }

    /// Returns the next rows after a position, ordered by time and id: at most `limit`, and fewer if
    /// the events are long.
    pub(super) fn after(&self, at: &RowCursor, limit: u32) -> anyhow::Result<Vec<NostreamRow>> {
        // ORDER BY names the table, because a bare name would mean the result column, which has no
        // index.
        let rest = "event_created_at >= $1::bigint AND (event_created_at, event_id) > ($1::bigint, $2) \
                    ORDER BY events.event_created_at, events.event_id LIMIT $3";
        self.rows(rest, &[&at.created_at, &&at.id[..], &i64::from(limit)], BATCH_BYTES_MAX)
    }

    /// Returns the oldest transaction that has not ended. Rows that are not visible yet were
    /// written by this transaction or by later ones.
    pub(super) fn transaction(&self) -> anyhow::Result<u64> {
        let sql = "SELECT txid_snapshot_xmin(txid_current_snapshot())";
        let transaction: i64 = self.database.query_one(sql, &[])?.get(0);
        Ok(transaction.unsigned_abs())
    }

    /// Returns the number of the table's pages.
    pub(super) fn pages(&self) -> anyhow::Result<u64> {
        let sql = "SELECT pg_relation_size('events') / current_setting('block_size')::bigint";
        let pages: i64 = self.database.query_one(sql, &[])?.get(0);
        Ok(pages.unsigned_abs())
    }

    /// Returns the ids of rows on these pages that transaction `since` or a later transaction
    /// wrote, and whose events are older than `created_at`.
    pub(super) fn written(
        &self,
        since: u64,
        pages: Range<u64>,
        created_at: i64,
    ) -> anyhow::Result<Vec<Id>> {
        let page = |page: u64| page.min(u32::MAX.into());
        // A row stores the low half of its transaction number. The first three numbers are
        // reserved. The numbers wrap around, so the query skips very old rows whose number seems to
        // lie in the future.
        let since = (since & u64::from(u32::MAX)).max(3);
        let sql = format!(
            "SELECT event_id FROM events \
             WHERE ctid >= '({},0)'::tid AND ctid < '({},0)'::tid \
             AND age(xmin) BETWEEN 0 AND age('{since}'::xid) AND event_created_at < $1::bigint",
            page(pages.start),
            page(pages.end),
        );
        let rows = self.database.query(&sql, &[&created_at]).context(LOST)?;
        Ok(rows.iter().map(|row| id(row.get(0))).collect())
    }

    /// Returns the rows with these ids.
    pub(super) fn of_ids(&self, ids: &[Id]) -> anyhow::Result<Vec<NostreamRow>> {
        let ids: Vec<&[u8]> = ids.iter().map(|id| &id[..]).collect();
        self.rows("event_id = ANY($1)", &[&ids], usize::MAX)
    }

    /// Returns the row with this id, or else the row with the next higher id.
    pub(super) fn near(&self, id: &Id) -> anyhow::Result<Vec<NostreamRow>> {
        self.rows("event_id >= $1 ORDER BY event_id LIMIT $2", &[&&id[..], &NEAR], usize::MAX)
    }

    /// Returns the positions of the next rows, ordered by time and id, including deleted rows.
    pub(super) fn places(&self, after: &RowCursor, limit: i64) -> anyhow::Result<Vec<RowCursor>> {
        let sql = "SELECT event_created_at::bigint, event_id FROM events \
                   WHERE event_created_at >= $1::bigint \
                   AND (event_created_at, event_id) > ($1::bigint, $2) \
                   ORDER BY events.event_created_at, events.event_id LIMIT $3";
        let values: [&(dyn ToSql + Sync); 3] = [&after.created_at, &&after.id[..], &limit];
        let rows = self.database.query(sql, &values)?;
        let location = |row: &Row| RowCursor { created_at: row.get(0), id: id(row.get(1)) };
        Ok(rows.iter().map(location).collect())
    }

    /// Returns rows until they have at least `bytes_max` bytes.
    fn rows(
        &self,
        rest: &str,
        values: &[&(dyn ToSql + Sync)],
        bytes_max: usize,
    ) -> anyhow::Result<Vec<NostreamRow>> {
        let sql = format!(
            "SELECT event_id, event_pubkey, event_kind::int, event_created_at::bigint, event_content, \
             event_tags, event_signature FROM events WHERE {} AND {rest}",
            self.alive
        );
        let row = |row: &Row| {
            Ok(NostreamRow {
                id: row.try_get(0)?,
                pubkey: row.try_get(1)?,
                kind: row.try_get(2)?,
                created_at: row.try_get(3)?,
                content: row.try_get(4)?,
                tags: row
                    .try_get::<_, Option<JsonbColumn>>(5)?
                    .map_or_else(|| b"[]".to_vec(), |json| json.0),
                signature: row.try_get(6)?,
            })
        };
        let bytes = |row: &NostreamRow| row.content.len() + row.tags.len();
        self.database.rows(&sql, values, row, (bytes, bytes_max)).context(LOST)
    }
}
