//! The size and state of a store, for people and metrics.

use std::time::Duration;

use crate::meter::HistogramSnapshot;

/// The size and state of a store, for people and metrics. A figure that a store does not have is
/// zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Number of live records.
    pub records: u64,
    /// Number of deleted records that still take space.
    pub dead: u64,
    /// Number of bytes on disk.
    pub bytes: u64,
    /// The part of `bytes` that records use (the log).
    pub log_bytes: u64,
    /// The part of `bytes` that indices use (the segments).
    pub index_bytes: u64,
    /// Number of bytes of deleted records that will be freed or reused. The number is an estimate
    /// if the store knows only the number of these records.
    pub dead_bytes: u64,
    /// The part of `dead_bytes` that the store will free or reuse even without another delete. The
    /// remaining bytes are spread over so many files that freeing them is not worthwhile yet.
    pub reclaimable_bytes: u64,
    /// Number of records in heads, that is, records that are not sealed into a segment yet.
    pub head_records: u64,
    /// Number of sealed segments.
    pub segments: u64,
    /// Time of the oldest record, live or dead.
    pub oldest: Option<u64>,
    /// Time of the newest record.
    pub newest: Option<u64>,
    /// Number of records that were found damaged since the start and are still stored. Each record
    /// counts once.
    pub damaged: u64,
    /// Files that were found damaged or unreadable since the start and are not rebuilt yet.
    pub damaged_files: Vec<String>,
    /// Number of free bytes of the file system of the archive.
    pub free_bytes: Option<u64>,
    /// Space that all stores in the same data directory use together; `None` if unknown.
    pub disk: Option<DiskUse>,
    /// Number of bytes written to disk since the start.
    pub written_bytes: u64,
    /// Number of full heads that have not been sealed yet.
    pub heads_waiting: u64,
    /// Number of records in segments that have not been merged yet, although a merge is due.
    pub merge_due_records: u64,
    /// Durations of syncs since the start.
    pub syncs: HistogramSnapshot,
    /// Why background maintenance currently fails.
    pub maintenance_failed: Option<String>,
    /// Background maintenance done since the start.
    pub maintenance: MaintenanceStats,
    /// State of the slow check of the whole store, if the store has such a check.
    pub scrub: Option<ScrubStats>,
    /// Use of the database, if the store is in a database.
    pub database: Option<DatabaseStats>,
    /// The lag of the mirror, if the store has a mirror.
    pub mirror: Option<MirrorLag>,
}

/// The disk space that several stores use together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// Number of bytes on disk, except the bytes that a rewrite would free.
    pub kept: u64,
    /// Number of bytes that will be free even without another delete: bytes of deleted records,
    /// files that a running job writes and that will replace others, and removed files that readers
    /// still have open.
    pub reclaimable: u64,
    /// Number of free bytes that the stores need to continue. Retention by free bytes keeps as many
    /// bytes free, even if the setting is lower.
    pub free_wanted: u64,
}

/// The background maintenance of a store, which runs in parallel to the readers and the writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceStats {
    /// Makes segments from full heads.
    pub sealing: JobTotals,
    /// Makes one segment from several.
    pub merging: JobTotals,
    /// Rewrites logs without their deleted records.
    pub rewriting: JobTotals,
}

/// The totals of one kind of maintenance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobTotals {
    /// Number of processed records. A record counts each time that it is processed.
    pub records: u64,
    /// Number of bytes written.
    pub bytes: u64,
    /// Processor time that the maintenance used.
    pub cpu: Duration,
}

/// The slow check of a store. It reads the whole store again and again, in parallel to the readers
/// and the writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStats {
    /// Number of bytes read since the start.
    pub read_bytes: u64,
    /// Number of bytes read in the current pass.
    pub pass_bytes: u64,
    /// Number of bytes that a whole pass would read now.
    pub total_bytes: u64,
    /// Number of passes that have ended since the start.
    pub passes: u64,
    /// Time since the last pass ended.
    pub last_pass_age: Option<Duration>,
    /// Number of damaged segments and damaged parts of logs that the last pass found, repaired or
    /// not.
    pub last_faults: u64,
    /// Number of damaged segments that were rebuilt since the start, including segments whose
    /// damage was found in another way.
    pub repaired: u64,
}

/// The use of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatabaseStats {
    /// Number of connections that are open for queries.
    pub connections: u64,
    /// Number of connections that are in use, as a part of `connections`.
    pub connections_used: u64,
    /// Number of times since the start that a query had to wait for a connection.
    pub waits: u64,
    /// The number of queries that were sent to the replica, and the number that could not be sent.
    /// `None` without a replica.
    pub replica: Option<(u64, u64)>,
    /// Number of puts, by any process, about which subscribers have not been notified yet.
    pub news_behind: u64,
    /// Durations of statements since the start, by the name of the statement.
    pub statements: Vec<(&'static str, HistogramSnapshot)>,
}

/// How far a mirror, the second store, is behind the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorLag {
    /// Number of writes that the second store has not received yet.
    pub queued: u64,
    /// Total size of these writes, in bytes.
    pub queued_bytes: u64,
    /// Age of the oldest of these writes, in milliseconds. While the second store catches up or
    /// cannot be reached, the duration of this state.
    pub behind_ms: u64,
    /// Whether the second store has all records except the queued writes.
    pub in_step: bool,
    /// Number of records that were copied since the start.
    pub copied: u64,
    /// Number of records that only the second store has, as counted by the last walk. The number
    /// falls when the first store stores one of these records, or when the rules delete one of
    /// these records in the second store. If another process writes to the second store, the number
    /// does not change until the next walk.
    pub extra: u64,
    /// Number of records that the second store refused, as counted by the last walk.
    pub refused: u64,
    /// Why the second store currently accepts no writes.
    pub trouble: Option<String>,
    /// Time for which the second store has made no progress although writes wait, in milliseconds.
    pub idle_ms: u64,
}

impl MirrorLag {
    /// Returns how long the second store has made no progress although writes wait.
    pub fn idle_for(&self) -> Duration {
        Duration::from_millis(self.idle_ms)
    }
}
