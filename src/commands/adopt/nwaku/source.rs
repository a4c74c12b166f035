//! The database of an nwaku Store node.

use anyhow::bail;
use hark_store_postgres::{is_database, shown};

use super::database::NwakuDatabase;
use super::file::NwakuFile;
use super::row::{NwakuCursor, NwakuRow};

/// A database of nwaku, which is only read.
pub(super) enum NwakuSource {
    Database(Box<NwakuDatabase>),
    File(NwakuFile),
}

impl NwakuSource {
    /// Opens the source: PostgreSQL if `address` is a URL, otherwise a file. Payloads longer than
    /// `bytes_max` are not read.
    pub(super) fn open(address: &str, bytes_max: usize) -> anyhow::Result<Self> {
        if is_database(address) {
            return Ok(Self::Database(Box::new(NwakuDatabase::open(address, bytes_max)?)));
        }
        // nwaku's own spelling of --store-message-db-url.
        let path = address.strip_prefix("sqlite://").unwrap_or(address);
        if path.contains("://") {
            bail!(
                "`{}` is no database; name a file, or postgres://user@host/database",
                shown(address)
            );
        }
        Ok(Self::File(NwakuFile::open(path.as_ref(), bytes_max)?))
    }

    /// Returns the name under which the position in this source is saved. The name contains the
    /// order of rows, since a position is valid only in this order.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Database(database) => database.name(),
            Self::File(file) => file.name(),
        }
    }

    /// Whether rows are in the order of their time.
    pub(super) fn is_by_time(&self) -> bool {
        match self {
            Self::Database(database) => database.is_by_time(),
            Self::File(file) => file.is_by_time(),
        }
    }

    /// Returns the next rows after a position, at most `limit`. At the end, the list is empty.
    pub(super) fn after(&mut self, at: &NwakuCursor, limit: u32) -> anyhow::Result<Vec<NwakuRow>> {
        match self {
            Self::Database(database) => database.after(at, limit),
            Self::File(file) => file.after(at, limit),
        }
    }

    /// Returns the approximate number of rows.
    pub(super) fn total(&self) -> anyhow::Result<u64> {
        match self {
            Self::Database(database) => database.total(),
            Self::File(file) => file.total(),
        }
    }

    /// Returns the names of the partitions that nwaku has removed since the start.
    pub(super) fn dropped_partitions(&self) -> anyhow::Result<Vec<String>> {
        match self {
            Self::Database(database) => database.dropped_partitions(),
            Self::File(_) => Ok(Vec::new()),
        }
    }
}
