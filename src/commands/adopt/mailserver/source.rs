//! Reads the stored rows of a mail server, each a key and an envelope, in key order.
//!
//! A key consists of the time of sending in 4 bytes, big endian, the envelope's hash and, since
//! 2019, its topic. So the order of keys is the order of time.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use hark_store_postgres::{is_database, shown};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::leveldb::LevelDb;
use crate::commands::adopt::database::{LOST, SourceDatabase};
use crate::print::CountedUnit;

/// A batch ends once its rows have at least this number of bytes.
const BATCH_BYTES_MAX: usize = 32 << 20;

/// A key and its value, as stored by the mail server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EnvelopeRow {
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
}

/// The store in which a mail server keeps its envelopes.
pub(super) enum MailSource {
    Directory { dir: PathBuf, open: Option<LevelDb> },
    Database { database: Box<SourceDatabase>, after: Vec<u8>, rows: u64 },
}

impl MailSource {
    /// Opens the source: a database if `address` is a URL, otherwise a directory.
    pub(super) fn open(address: &str) -> anyhow::Result<Self> {
        if is_database(address) {
            let database = Box::new(SourceDatabase::open(address, "the mail server")?);
            let missing = database.missing("envelopes", &["id", "data", "topic"])?;
            if !missing.is_empty() {
                bail!(
                    "this is no database of a mail server: its table `envelopes` has no {}. \
                     Nothing was done",
                    missing.join(", ")
                );
            }
            return Ok(Self::Database { database, after: Vec::new(), rows: 0 });
        }
        if address.contains("://") {
            bail!(
                "`{}` is no database; name a directory, or postgres://user@host/database",
                shown(address)
            );
        }
        let dir = PathBuf::from(address);
        let dir = dir.canonicalize().with_context(|| {
            format!("the directory {} cannot be read; nothing was done", dir.display())
        })?;
        // A directory that is not a mail server's is reported here, before anything is created.
        let open = Some(LevelDb::open(&dir, &[])?);
        Ok(Self::Directory { dir, open })
    }

    /// Returns the name under which the position in this source is saved.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Directory { dir, .. } => format!("LevelDB in {}", dir.display()),
            Self::Database { database, .. } => format!("envelopes at {}", database.name()),
        }
    }

    /// Makes the next batch begin after a key, or with the first row if the key is empty.
    /// `rows_done` is the number of rows up to this key.
    pub(super) fn begin(&mut self, key: &[u8], rows_done: u64) -> anyhow::Result<()> {
        match self {
            Self::Directory { dir, open } => *open = Some(LevelDb::open(dir, key)?),
            Self::Database { after, rows, .. } => {
                *after = key.to_vec();
                *rows = rows_done;
            }
        }
        Ok(())
    }

    /// Returns the next rows, at most `limit`. At the end of the source, the list is empty.
    pub(super) fn batch(&mut self, limit: u32) -> anyhow::Result<Vec<EnvelopeRow>> {
        let mut batch = Vec::new();
        match self {
            Self::Directory { open, .. } => {
                let Some(open) = open else { return Ok(batch) };
                let mut bytes = 0;
                while batch.len() < limit as usize && bytes < BATCH_BYTES_MAX {
                    let Some((key, value)) = open.next()? else { break };
                    bytes += value.len();
                    batch.push(EnvelopeRow { key, value });
                }
            }
            Self::Database { database, after, rows } => {
                batch = rows_after(database, after, limit)?;
                if let Some(last) = batch.last() {
                    after.clone_from(&last.key);
                }
                *rows += batch.len() as u64;
            }
        }
        Ok(batch)
    }

    /// The unit of [`MailSource::done`] and [`MailSource::total`].
    pub(super) fn unit(&self) -> CountedUnit {
        match self {
            Self::Directory { .. } => CountedUnit::Bytes,
            Self::Database { .. } => CountedUnit::Records,
        }
    }

    /// Returns how much of the source has been read, in [`MailSource::unit`].
    pub(super) fn done(&self) -> u64 {
        match self {
            Self::Directory { open, .. } => open.as_ref().map_or(0, |open| open.progress().0),
            Self::Database { rows, .. } => *rows,
        }
    }

    /// Returns the approximate size of the source; 0 if it is unknown.
    pub(super) fn total(&self) -> anyhow::Result<u64> {
        match self {
            Self::Directory { open, .. } => Ok(open.as_ref().map_or(0, |open| open.progress().1)),
            Self::Database { database, .. } => database.estimate("envelopes"),
        }
    }

    /// Returns the number of damaged parts found since [`MailSource::begin`], and a description of
    /// the first.
    pub(super) fn damage(&self) -> (u64, &str) {
        match self {
            Self::Directory { open: Some(open), .. } => open.damage(),
            _ => (0, ""),
        }
    }
}

/// Returns the rows of the table `envelopes` after a key.
fn rows_after(
    database: &SourceDatabase,
    after: &[u8],
    limit: u32,
) -> anyhow::Result<Vec<EnvelopeRow>> {
    let sql = "SELECT id, data FROM envelopes WHERE id > $1 ORDER BY id LIMIT $2";
    let row = |row: &Row| Ok(EnvelopeRow { key: row.try_get(0)?, value: row.try_get(1)? });
    let bytes = |row: &EnvelopeRow| row.value.len();
    let values: [&(dyn ToSql + Sync); 2] = [&after, &i64::from(limit)];
    database.rows(sql, &values, row, (bytes, BATCH_BYTES_MAX)).context(LOST)
}
