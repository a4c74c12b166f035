//! The options of a shelf in a database.

use std::sync::Arc;
use std::time::Duration;

use hark_archive::TextSource;

/// Options for a shelf in a database. Options may contain a password, so they do not implement
/// `Debug`.
#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "options that are independent of each other")]
pub struct PostgresOptions {
    /// URL of a replica. The replica answers queries while it is up to date.
    pub read_url: Option<String>,
    /// Maximum number of connections for queries to the primary, and the same number to the
    /// replica.
    pub pool_max: usize,
    /// Time limit of a statement. If a statement takes longer, its query fails.
    pub statement_timeout: Duration,
    /// Time limit for the database to accept a connection.
    pub connect_timeout: Duration,
    /// The length of a part of a new shelf, in seconds. A part is a range of time with its own
    /// tables.
    pub part_s: u64,
    /// The earliest time that may be in a part, in seconds since 1970.
    pub parts_from_s: u64,
    /// Maximum number of parts of a shelf.
    pub parts_max: usize,
    /// Number of the network's units of time in a second.
    pub units_per_s: u64,
    /// Whether all records have kind 0, so that kinds need not be looked up.
    pub one_kind: bool,
    /// Whether each record has exactly one label. The tables of a new shelf are then slim: the
    /// labels have no rows of their own.
    pub one_label: bool,
    /// Names of labels whose values are common: each value is in a large part of all records. If a
    /// search has another condition with an index, such a label drives the search only if hardly
    /// any record turns out to match.
    pub common_labels: &'static [u8],
    /// Names of the labels whose values are listed, for
    /// [`Store::label_values`](hark_archive::Store::label_values). Private labels are never listed.
    pub listed_labels: &'static [u8],
    /// The texts whose words are indexed. With `None`, a search for words reads the records.
    pub texts: Option<Arc<dyn TextSource>>,
    /// Whether queries read the shards of a Citus cluster from the workers, without the
    /// coordinator.
    pub shard_reads: bool,
    /// Number of shards of a new shelf's tables, if the database is a Citus cluster.
    pub shards: u32,
    /// Whether missing migrations are applied.
    pub migrate: bool,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            read_url: None,
            pool_max: 8,
            statement_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            part_s: 365 * 86_400,
            // This is the year 2015: the networks are not much older.
            parts_from_s: 1_420_070_400,
            parts_max: 1_000,
            units_per_s: 1,
            one_kind: false,
            one_label: false,
            common_labels: &[],
            listed_labels: &[],
            texts: None,
            shard_reads: true,
            shards: 12,
            migrate: true,
        }
    }
}
