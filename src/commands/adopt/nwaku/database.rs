//! Reads nwaku's PostgreSQL database: the rows of its table `messages`, in short statements.
//!
//! Since schema version 2, the table has a partition for each hour. A statement reads the rows of
//! one partition, so that it locks this partition and no other. nwaku's retention removes old
//! partitions at any time. It is no error that the rows of a removed partition are not read.

use std::collections::BTreeSet;
use std::error::Error;
use std::time::Duration;

use anyhow::{Context as _, bail};
use hark_codec::hex;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, Type};

use super::row::{BATCH_BYTES_MAX, NwakuCursor, NwakuRow, SERVER, too_large};
use crate::commands::adopt::database::{LOST, SourceDatabase};
use crate::commands::adopt::events::EventRowFault;
use crate::commands::refusal::RefusalReason;
use crate::print;
use crate::when;

/// The schema versions that are read.
const VERSION_MAX: i32 = 8;
/// The first version with the column `meta`.
const VERSION_OF_META: i32 = 4;
/// Up to this version, `timestamp` is the sender's time, and `storedat` orders the rows.
const VERSION_OF_STORED_AT: i32 = 5;
/// The columns of all versions.
const COLUMNS: [&str; 6] =
    ["pubsubtopic", "contenttopic", "payload", "version", "timestamp", "messagehash"];
/// Number of times that a statement is tried while nwaku changes the table's partitions, and the
/// pause before each further time.
const TRIES: u32 = 20;
const TRY_AGAIN: Duration = Duration::from_millis(250);
/// The partitions of the table `messages`, with their bounds as SQL.
const PARTITIONS: &str = "SELECT c.relname::text, pg_get_expr(c.relpartbound, c.oid) \
                          FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
                          WHERE i.inhparent = to_regclass('messages')";

/// The unchecked bytes of a text column.
struct TextColumn(Vec<u8>);

impl<'a> FromSql<'a> for TextColumn {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw.to_vec()))
    }

    fn accepts(ty: &Type) -> bool {
        matches!(*ty, Type::TEXT | Type::VARCHAR)
    }
}

/// A connection to nwaku's database, and its queries.
pub(super) struct NwakuDatabase {
    database: SourceDatabase,
    version: i32,
    bytes_max: usize,
    /// The partitions at the start.
    partitions: BTreeSet<String>,
    /// The first and the last time of the partition that is being read.
    window: Option<(i64, i64)>,
}

impl NwakuDatabase {
    /// Connects, and checks that the database has a schema that Hark knows.
    pub(super) fn open(url: &str, bytes_max: usize) -> anyhow::Result<Self> {
        let database = SourceDatabase::open(url, SERVER)?;
        let missing = database.missing("version", &["version"])?;
        if !missing.is_empty() {
            bail!("this is no database of nwaku: it has no table `version`. Nothing was done");
        }
        let rows = database.query("SELECT version FROM version", &[]).context(LOST)?;
        let version = match &rows[..] {
            [row] => row.get(0),
            _ => bail!(
                "this is no database of nwaku: its table `version` has {}. Nothing was done",
                print::count(rows.len() as u64, "row")
            ),
        };
        if !(1..=VERSION_MAX).contains(&version) {
            bail!(
                "this database has schema version {version} of nwaku, and 1 to {VERSION_MAX} are \
                 read. Nothing was done. A newer Hark may read it"
            );
        }
        let mut columns = COLUMNS.to_vec();
        columns.extend((version >= VERSION_OF_META).then_some("meta"));
        columns.extend((version <= VERSION_OF_STORED_AT).then_some("storedat"));
        let missing = database.missing("messages", &columns)?;
        if !missing.is_empty() {
            bail!(
                "this is no database of nwaku with schema version {version}: its table `messages` \
                 has no {}. Nothing was done. If nwaku is converting the database now, wait until \
                 it has ended",
                missing.join(", ")
            );
        }
        let mut opened =
            Self { database, version, bytes_max, partitions: BTreeSet::new(), window: None };
        opened.partitions = opened.partitions()?.into_iter().map(|(name, _)| name).collect();
        opened.note_detached()?;
        Ok(opened)
    }

    pub(super) fn name(&self) -> String {
        let order = if self.is_by_time() { self.time_column() } else { "messagehash" };
        format!("nwaku at {}, in the order of {order}", self.database.name())
    }

    /// Version 1 has no index of times and no partitions.
    pub(super) fn is_by_time(&self) -> bool {
        self.version > 1
    }

    /// The column that orders the rows, and by which the table is partitioned.
    fn time_column(&self) -> &'static str {
        if self.version <= VERSION_OF_STORED_AT { "storedat" } else { "timestamp" }
    }

    pub(super) fn total(&self) -> anyhow::Result<u64> {
        let sql = "SELECT coalesce(sum(greatest(reltuples, 0)), 0)::bigint FROM pg_class \
                   WHERE (oid = to_regclass('messages') AND relkind = 'r') OR oid IN \
                   (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass('messages'))";
        let rows: i64 = self.database.query_one(sql, &[]).context(LOST)?.get(0);
        Ok(rows.unsigned_abs())
    }

    pub(super) fn dropped_partitions(&self) -> anyhow::Result<Vec<String>> {
        let present: BTreeSet<String> =
            self.partitions()?.into_iter().map(|(name, _)| name).collect();
        Ok(self.partitions.difference(&present).cloned().collect())
    }

    /// Returns the names of the partitions, and the last time of each; `None` for a partition
    /// without an upper bound.
    fn partitions(&self) -> anyhow::Result<Vec<(String, Option<i64>)>> {
        let rows = self.database.query(PARTITIONS, &[]).context(LOST)?;
        let partition = |row: &Row| {
            let bound: Option<String> = row.get(1);
            (row.get(0), bound.and_then(|bound| last_time(&bound)))
        };
        Ok(rows.iter().map(partition).collect())
    }

    /// Reports partitions that nwaku has detached and not dropped.
    fn note_detached(&self) -> anyhow::Result<()> {
        let sql = "SELECT relname::text FROM pg_class c WHERE relkind = 'r' \
                   AND relname ~ '^messages_[0-9]+_[0-9]+$' AND pg_table_is_visible(c.oid) \
                   AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = c.oid) ORDER BY 1";
        let rows = self.database.query(sql, &[]).context(LOST)?;
        // nwaku makes each partition ahead of its time and attaches it later, so only a table whose
        // time is over has been detached.
        let has_ended = |name: &String| {
            let end = name.rsplit('_').next().and_then(|end| end.parse::<u64>().ok());
            end.is_some_and(|end| end < when::now_s())
        };
        let names: Vec<String> = rows.iter().map(|row| row.get(0)).filter(has_ended).collect();
        if let Some(first) = names.first() {
            print::note!(
                "hark: tables that nwaku has detached from `messages`, and that are not read: {}; \
                 the first is {first}",
                print::number(names.len() as u64)
            );
        }
        Ok(())
    }

    /// Returns the next rows after a position. Skips partitions without further rows.
    pub(super) fn after(&mut self, at: &NwakuCursor, limit: u32) -> anyhow::Result<Vec<NwakuRow>> {
        let mut at = at.clone();
        loop {
            let end = self.window_end(at.time)?;
            let rows = self.window_rows(&at, end, limit)?;
            if !rows.is_empty() || end == i64::MAX {
                return Ok(rows);
            }
            at = NwakuCursor::since(end + 1);
        }
    }

    /// Returns the last time of the partition that covers `time`, or else of the next partition.
    fn window_end(&mut self, time: i64) -> anyhow::Result<i64> {
        if !self.is_by_time() {
            return Ok(i64::MAX);
        }
        if let Some((begin, end)) = self.window
            && (begin..=end).contains(&time)
            // The window without an end may have got new partitions.
            && end < i64::MAX
        {
            return Ok(end);
        }
        let ends = self.partitions()?.into_iter().filter_map(|(_, end)| end);
        let end = ends.filter(|end| *end >= time).min().unwrap_or(i64::MAX);
        self.window = Some((time, end));
        Ok(end)
    }

    /// Returns rows after a position, up to the time `end`.
    fn window_rows(&self, at: &NwakuCursor, end: i64, limit: u32) -> anyhow::Result<Vec<NwakuRow>> {
        let time = self.time_column();
        let order = if self.is_by_time() {
            format!(
                "({time}, messagehash) > ($1::bigint, $2) \
                 ORDER BY messages.{time}, messages.messagehash"
            )
        } else {
            "messagehash > $2 ORDER BY messages.messagehash".into()
        };
        let meta = if self.version >= VERSION_OF_META { "meta" } else { "NULL::varchar" };
        let sql = format!(
            "SELECT {time}, messagehash, pubsubtopic, contenttopic, version, timestamp, \
             octet_length(payload), CASE WHEN octet_length(payload) <= $5::bigint THEN payload END, \
             {meta} FROM messages WHERE {time} >= $1::bigint AND {time} <= $3::bigint AND {order} \
             LIMIT $4::bigint"
        );
        let key = str::from_utf8(&at.key).context("the saved position is not of this source")?;
        let mut tries = 1;
        loop {
            match self.rows_of(&sql, (at, key), end, limit) {
                Ok(rows) => return Ok(rows),
                Err(error) if tries < TRIES && is_about_partitions(&error) => {
                    tries += 1;
                    std::thread::sleep(TRY_AGAIN);
                }
                Err(error) => return Err(error).context(LOST),
            }
        }
    }

    /// Runs a statement.
    fn rows_of(
        &self,
        sql: &str,
        (at, key): (&NwakuCursor, &str),
        end: i64,
        limit: u32,
    ) -> Result<Vec<NwakuRow>, tokio_postgres::Error> {
        let digits_max = i64::try_from(self.bytes_max.saturating_mul(2)).unwrap_or(i64::MAX);
        self.database.rows(
            sql,
            &[&at.time, &key, &end, &i64::from(limit), &digits_max],
            |row| self.row(row, at),
            (NwakuRow::bytes, BATCH_BYTES_MAX),
        )
    }

    fn row(&self, row: &Row, after: &NwakuCursor) -> Result<NwakuRow, tokio_postgres::Error> {
        let text = |column: usize| row.try_get::<_, Option<TextColumn>>(column);
        let bytes = |column: usize| Ok(text(column)?.map_or_else(Vec::new, |text| text.0));
        let key = bytes(1)?;
        let time = if self.is_by_time() { row.try_get(0)? } else { after.time };
        let digits =
            row.try_get::<_, Option<i32>>(6)?.map(|digits| u64::from(digits.unsigned_abs()));
        let mut payload = match (text(7)?, digits) {
            (Some(TextColumn(digits)), _) => decode(&digits, "payload"),
            (None, Some(digits)) => Err(too_large(digits / 2, self.bytes_max)),
            (None, None) => Ok(Vec::new()),
        };
        let meta = decode(&bytes(8)?, "meta").unwrap_or_else(|fault| {
            payload = Err(fault);
            Vec::new()
        });
        Ok(NwakuRow {
            hash: String::from_utf8_lossy(&key).into_owned(),
            at: NwakuCursor { time, key, topic: Vec::new() },
            pubsub_topic: bytes(2)?,
            content_topic: bytes(3)?,
            version: row.try_get::<_, i32>(4)?.into(),
            timestamp: row.try_get(5)?,
            payload,
            meta,
        })
    }
}

/// Decodes a column of hex digits.
fn decode(digits: &[u8], column: &str) -> Result<Vec<u8>, EventRowFault> {
    let mut bytes = Vec::with_capacity(digits.len() / 2);
    if hex::decode_into(digits, &mut bytes) {
        return Ok(bytes);
    }
    Err((RefusalReason::Malformed, format!("its {column} is not hex digits")))
}

/// Returns the last time of a partition, from its bound as SQL: `FOR VALUES FROM ('1') TO ('3')`.
fn last_time(bound: &str) -> Option<i64> {
    let (_, upper) = bound.split_once(" TO (")?;
    let upper: i64 = upper.trim_end_matches(')').trim_matches('\'').parse().ok()?;
    upper.checked_sub(1)
}

/// Whether a statement failed because nwaku was removing or adding a partition.
fn is_about_partitions(error: &tokio_postgres::Error) -> bool {
    let Some(error) = error.as_db_error() else { return false };
    [SqlState::UNDEFINED_TABLE, SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED]
        .contains(error.code())
        || (*error.code() == SqlState::INTERNAL_ERROR
            && error.message().starts_with("could not open relation"))
}

#[cfg(test)]
mod tests {
    use super::last_time;

    #[test]
    fn the_last_time_of_a_partition_is_before_its_upper_bound() {
        let bound = "FOR VALUES FROM ('1700000000000000000') TO ('1700003600000000000')";
        assert_eq!(last_time(bound), Some(1_700_003_599_999_999_999));
        for bound in ["DEFAULT", "FOR VALUES FROM ('1') TO (MAXVALUE)", ""] {
            assert_eq!(last_time(bound), None, "{bound}");
        }
    }
}
