//! Reads nostr-rs-relay's database: the rows of its table `event`, by keyset pagination, in short
//! statements.

use std::path::{Path, PathBuf};

use anyhow::bail;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, params};

use crate::commands::adopt::relay::source::{BATCH_BYTES_MAX, RelayRow, RelaySource};
use crate::commands::adopt::source_file::FileIdentity;
use crate::commands::adopt::sqlite::{advice, connect, database_file, missing};
use crate::commands::refusal::RefusalReason;

/// The schema versions in which the columns in [`COLUMNS`] have the same meaning. Older versions
/// lack the column `hidden`.
const SCHEMA_MIN: i64 = 2;
const SCHEMA_MAX: i64 = 18;
/// The columns that are read.
const COLUMNS: [&str; 3] = ["id", "hidden", "content"];
/// The noun for the server in advice.
const SERVER: &str = "relay";
/// The database of a nostr-rs-relay.
pub(super) struct NostrRsSource {
    database: Connection,
    path: PathBuf,
    /// The file that was opened.
    file: Option<FileIdentity>,
    event_bytes_max: usize,
}

impl NostrRsSource {
    /// Opens a file, or a data directory, and checks that it is the database of a nostr-rs-relay.
    /// Events longer than `event_bytes_max` bytes are not read.
    pub(super) fn open(path: &Path, event_bytes_max: usize) -> anyhow::Result<Self> {
        let path = database_file(path, "nostr.db")?;
        let shown = path.display();
        let file = FileIdentity::at(&path)?;
        let opened = connect(&path).and_then(|(database, schema)| {
            let missing = missing(&database, "event", &COLUMNS)?;
            Ok((database, schema, missing))
        });
        let (database, schema, missing) = opened.map_err(|error| {
            let advice = advice(&error, &shown.to_string(), SERVER);
            anyhow::Error::new(error)
                .context(format!("{shown} cannot be read; nothing was done. {advice}"))
        })?;
        if !missing.is_empty() {
            bail!(
                "{shown} is no database of nostr-rs-relay: its table `event` has no {}. Nothing was \
                 done",
                missing.join(", ")
            );
        }
        if !(SCHEMA_MIN..=SCHEMA_MAX).contains(&schema) {
            let way_out = if schema < SCHEMA_MIN {
                "Start a newer nostr-rs-relay on it once, which brings it up to date"
            } else {
                "A newer Hark may read it"
            };
            bail!(
                "{shown} has schema {schema} of nostr-rs-relay, and {SCHEMA_MIN} to {SCHEMA_MAX} are \
                 read. Nothing was done. {way_out}"
            );
        }
        Ok(Self { database, path, file, event_bytes_max })
    }

    /// Opens the database again if another file has taken its place, as after a compaction.
    fn follow_path(&mut self) -> anyhow::Result<()> {
        if FileIdentity::is_replaced(&self.path, self.file)? {
            *self = Self::open(&self.path.clone(), self.event_bytes_max)?;
        }
        Ok(())
    }

    fn error(&self, error: rusqlite::Error) -> anyhow::Error {
        let file = self.path.display().to_string();
        let advice = advice(&error, &file, SERVER);
        anyhow::Error::new(error).context(format!(
            "the rest of {file} cannot be read; what was brought over is safe. {advice}"
        ))
    }

    fn rows_after(&self, after: i64, limit: u32) -> rusqlite::Result<Vec<RelayRow>> {
        let sql = "SELECT id, hidden, octet_length(content), \
                   CASE WHEN octet_length(content) <= ?3 THEN content END \
                   FROM event WHERE id > ?1 ORDER BY id LIMIT ?2";
        let mut statement = self.database.prepare(sql)?;
        let bytes_max = i64::try_from(self.event_bytes_max).unwrap_or(i64::MAX);
        let mut found = statement.query(params![after, limit, bytes_max])?;
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while bytes < BATCH_BYTES_MAX {
            let Some(row) = found.next()? else { break };
            let row = self.row(row)?;
            bytes += row.event.as_ref().map_or(0, Vec::len);
            rows.push(row);
        }
        Ok(rows)
    }

    fn row(&self, row: &Row<'_>) -> rusqlite::Result<RelayRow> {
        let number = row.get::<_, i64>(0)?.unsigned_abs();
        let event = match (row.get_ref(1)?, row.get_ref(2)?, row.get_ref(3)?) {
            (ValueRef::Integer(hidden), ..) if hidden != 0 => {
                Err((RefusalReason::Gone, String::new()))
            }
            (.., ValueRef::Text(json) | ValueRef::Blob(json)) => Ok(json.to_vec()),
            (_, ValueRef::Integer(len), ValueRef::Null) => {
                let words =
                    format!("{len} bytes; limits.event_bytes_max is {}", self.event_bytes_max);
                Err((RefusalReason::TooLarge, words))
            }
            _ => Err((RefusalReason::Malformed, "its content is no text".into())),
        };
        Ok(RelayRow { number, event })
    }
}

impl RelaySource for NostrRsSource {
    fn name(&self) -> String {
        format!("nostr-rs-relay in {}", self.path.display())
    }

    fn file(&self) -> Option<FileIdentity> {
        self.file
    }

    fn batch(&mut self, after: u64, limit: u32) -> anyhow::Result<Vec<RelayRow>> {
        self.follow_path()?;
        let Ok(after) = i64::try_from(after) else { return Ok(Vec::new()) };
        self.rows_after(after, limit).map_err(|error| self.error(error))
    }

    fn last(&mut self) -> anyhow::Result<u64> {
        self.follow_path()?;
        let sql = "SELECT coalesce(max(id), 0) FROM event";
        let last = self.database.query_row(sql, [], |row| row.get::<_, i64>(0));
        last.map(|last| u64::try_from(last).unwrap_or(0)).map_err(|error| self.error(error))
    }
}
