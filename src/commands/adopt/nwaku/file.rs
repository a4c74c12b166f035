//! Reads nwaku's SQLite database: the rows of its table `message`, by keyset pagination, in short
//! statements.

use std::path::{Path, PathBuf};

use anyhow::bail;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, params};

use super::row::{BATCH_BYTES_MAX, NwakuCursor, NwakuRow, SERVER, too_large};
use crate::commands::adopt::events::EventRowFault;
use crate::commands::adopt::rows::text;
use crate::commands::adopt::sqlite::{advice, connect, database_file, missing};
use crate::commands::refusal::RefusalReason;

/// The schema versions that are read. Older versions have times in floating-point numbers or other
/// names of columns.
const VERSION_MIN: i64 = 7;
const VERSION_MAX: i64 = 10;
/// The first version with hashes, and the first with the column `meta`.
const VERSION_OF_HASH: i64 = 8;
const VERSION_OF_META: i64 = 9;
/// Up to this version, `timestamp` is the sender's time, and `storedAt` orders the rows.
const VERSION_OF_STORED_AT: i64 = 9;

/// An open database of nwaku.
pub(super) struct NwakuFile {
    database: Connection,
    path: PathBuf,
    version: i64,
    bytes_max: usize,
    is_by_time: bool,
}

impl NwakuFile {
    /// Opens a file, or a directory with nwaku's default file, and checks its schema.
    pub(super) fn open(path: &Path, bytes_max: usize) -> anyhow::Result<Self> {
        let path = database_file(path, "store.sqlite3")?;
        let file = path.display();
        let failed = |error: rusqlite::Error| {
            let advice = advice(&error, &file.to_string(), SERVER);
            anyhow::Error::new(error)
                .context(format!("{file} cannot be read; nothing was done. {advice}"))
        };
        let (database, version) = connect(&path).map_err(failed)?;
        let common = ["pubsubTopic", "contentTopic", "payload", "version", "timestamp"];
        let missing_of_all = missing(&database, "message", &common).map_err(failed)?;
        if missing_of_all.len() == common.len() {
            bail!("{file} is no database of nwaku: it has no table `message`. Nothing was done");
        }
        if !(VERSION_MIN..=VERSION_MAX).contains(&version) {
            let way_out = if version < VERSION_MIN {
                "Start a newer nwaku on it once, which brings it up to date"
            } else {
                "A newer Hark may read it"
            };
            bail!(
                "{file} has schema version {version} of nwaku, and {VERSION_MIN} to {VERSION_MAX} \
                 are read. Nothing was done. {way_out}"
            );
        }
        let mut columns = common.to_vec();
        columns.push(if version >= VERSION_OF_HASH { "messageHash" } else { "id" });
        columns.extend((version >= VERSION_OF_META).then_some("meta"));
        columns.extend((version <= VERSION_OF_STORED_AT).then_some("storedAt"));
        let missing = missing(&database, "message", &columns).map_err(failed)?;
        if !missing.is_empty() {
            bail!(
                "{file} is no database of nwaku with schema version {version}: its table `message` \
                 has no {}. Nothing was done",
                missing.join(", ")
            );
        }
        // The primary key of version 7 begins with the time.
        let is_by_time = version < VERSION_OF_HASH
            || has_index(&database, time_column(version)).map_err(failed)?;
        Ok(Self { database, path, version, bytes_max, is_by_time })
    }

    pub(super) fn name(&self) -> String {
        let order = if self.is_by_time { time_column(self.version) } else { "messageHash" };
        format!("nwaku in {}, in the order of {order}", self.path.display())
    }

    pub(super) fn is_by_time(&self) -> bool {
        self.is_by_time
    }

    pub(super) fn total(&self) -> anyhow::Result<u64> {
        let count = self.database.query_row("SELECT count(*) FROM message", [], |row| row.get(0));
        count.map(|rows: i64| rows.unsigned_abs()).map_err(|error| self.error(error))
    }

    /// Returns the next rows after a position.
    pub(super) fn after(&self, at: &NwakuCursor, limit: u32) -> anyhow::Result<Vec<NwakuRow>> {
        self.rows_after(at, limit).map_err(|error| self.error(error))
    }

    fn error(&self, error: rusqlite::Error) -> anyhow::Error {
        let file = self.path.display().to_string();
        let advice = advice(&error, &file, SERVER);
        anyhow::Error::new(error).context(format!(
            "the rest of {file} cannot be read; what was brought over is safe. {advice}"
        ))
    }

    fn rows_after(&self, at: &NwakuCursor, limit: u32) -> rusqlite::Result<Vec<NwakuRow>> {
        let (time, has_hash) = (time_column(self.version), self.version >= VERSION_OF_HASH);
        let key = if has_hash { "messageHash" } else { "id" };
        let order = match (self.is_by_time, has_hash) {
            (true, true) => format!("({time}, {key}) > (?1, ?2) ORDER BY {time}, {key}"),
            (true, false) => format!(
                "({time}, {key}, pubsubTopic) > (?1, ?2, ?5) ORDER BY {time}, {key}, pubsubTopic"
            ),
            (false, _) => format!("{key} > ?2 ORDER BY {key}"),
        };
        let meta = if self.version >= VERSION_OF_META { "meta" } else { "NULL" };
        // ?5 is never NULL, so the limit is always ?3. The limit mentions ?5, which just one order
        // needs, so that every statement has five parameters.
        let sql = format!(
            "SELECT {time}, {key}, pubsubTopic, contentTopic, version, timestamp, \
             octet_length(payload), CASE WHEN octet_length(payload) <= ?4 THEN payload END, {meta} \
             FROM message WHERE {time} >= ?1 AND {order} LIMIT iif(?5 IS NULL, 0, ?3)"
        );
        let mut statement = self.database.prepare(&sql)?;
        let bytes_max = i64::try_from(self.bytes_max).unwrap_or(i64::MAX);
        let mut found = statement.query(params![at.time, at.key, limit, bytes_max, at.topic])?;
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while bytes < BATCH_BYTES_MAX {
            let Some(row) = found.next()? else { break };
            let row = self.row(row, at)?;
            bytes += row.bytes();
            rows.push(row);
        }
        Ok(rows)
    }

    fn row(&self, row: &Row<'_>, after: &NwakuCursor) -> rusqlite::Result<NwakuRow> {
        let key = bytes(row.get_ref(1)?).unwrap_or_default();
        let pubsub_topic = bytes(row.get_ref(2)?).unwrap_or_default();
        let has_hash = self.version >= VERSION_OF_HASH;
        Ok(NwakuRow {
            hash: if has_hash { text(&key) } else { String::new() },
            at: NwakuCursor {
                time: if self.is_by_time { row.get(0)? } else { after.time },
                key,
                topic: if has_hash { Vec::new() } else { pubsub_topic.clone() },
            },
            pubsub_topic,
            content_topic: bytes(row.get_ref(3)?).unwrap_or_default(),
            version: row.get(4)?,
            timestamp: row.get(5)?,
            payload: self.payload(row.get_ref(6)?, row.get_ref(7)?),
            meta: bytes(row.get_ref(8)?).unwrap_or_default(),
        })
    }

    fn payload(&self, len: ValueRef<'_>, payload: ValueRef<'_>) -> Result<Vec<u8>, EventRowFault> {
        match (len, payload) {
            (ValueRef::Null, _) => Ok(Vec::new()),
            (ValueRef::Integer(len), ValueRef::Null) => {
                Err(too_large(len.unsigned_abs(), self.bytes_max))
            }
            (_, payload) => bytes(payload)
                .ok_or_else(|| (RefusalReason::Malformed, "its payload is a number".into())),
        }
    }
}

/// The column that orders the rows.
fn time_column(version: i64) -> &'static str {
    if version <= VERSION_OF_STORED_AT { "storedAt" } else { "timestamp" }
}

/// Whether an index of the messages begins with a column.
fn has_index(database: &Connection, column: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM pragma_index_list('message') AS list \
               JOIN pragma_index_info(list.name) AS part \
               WHERE part.seqno = 0 AND part.name = ?1 COLLATE NOCASE AND list.partial = 0";
    database.query_row(sql, [column], |row| row.get::<_, i64>(0)).map(|count| count > 0)
}

fn bytes(value: ValueRef<'_>) -> Option<Vec<u8>> {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(bytes.to_vec()),
        _ => None,
    }
}
