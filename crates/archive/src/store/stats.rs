//! The size and state of a store, for people and metrics.

use std::time::Duration;

use crate::meter::HistogramSnapshot;

/// The size and state of a store, for people and metrics. Zero where a store has no such figure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Live records.
    pub records: u64,
    /// Deleted records that still take space.
    pub dead: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// The part of `bytes` that belongs to records (the log).
    pub log_bytes: u64,
    /// The part of `bytes` that belongs to indices (the segments).
    pub index_bytes: u64,
    /// Bytes of deleted records that will be freed or reused. An estimate where a store knows only
    /// the number of these records.
    pub dead_bytes: u64,
    /// The part of `dead_bytes` that the store frees or reuses without another delete. The rest is
    /// spread too thinly to be worth freeing yet.
    pub reclaimable_bytes: u64,
    /// Records not sealed into a segment yet.
    pub head_records: u64,
    /// Sealed segments.
    pub segments: u64,
    /// Time of the oldest record, live or dead.
    pub oldest: Option<u64>,
    /// Time of the newest record.
    pub newest: Option<u64>,
    /// Records that were found damaged since the start and are still stored, each counted once.
    pub damaged: u64,
    /// Files that were found damaged or unreadable since the start and are not rebuilt.
    pub damaged_files: Vec<String>,
    /// Bytes that are free in the file system that the archive is in.
    pub free_bytes: Option<u64>,
    /// Space that this store and the other stores on the same disk use together; `None` if unknown.
    pub disk: Option<DiskUse>,
    /// Bytes written to disk since the start.
    pub written_bytes: u64,
    /// Full heads that wait to be sealed.
    pub heads_waiting: u64,
    /// Records in segments that wait to be merged.
    pub merge_due_records: u64,
    /// Durations of syncs since the start.
    pub syncs: HistogramSnapshot,
    /// The reason for which background maintenance currently fails.
    pub maintenance_failed: Option<String>,
    /// Background maintenance done since the start.
    pub maintenance: MaintenanceStats,
    /// State of the slow check of the whole store, if the store has such a check.
    pub scrub: Option<ScrubStats>,
    /// Use of the database, if the store is in a database.
    pub database: Option<DatabaseStats>,
    /// Lag of the mirror, if there is a second store that receives all records of this store.
    pub mirror: Option<MirrorLag>,
}

/// The space that several stores use on a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// Bytes on disk that no rewrite would free.
    pub kept: u64,
    /// Bytes of deleted records that are freed without another delete.
    pub reclaimable: u64,
}

/// The background maintenance of a store, done beside its readers and its writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceStats {
    /// Making segments from full heads.
    pub sealing: JobTotals,
    /// Making one segment from several.
    pub merging: JobTotals,
    /// Rewriting logs without their deleted records.
    pub rewriting: JobTotals,
}

/// The totals of one kind of maintenance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobTotals {
    /// Records processed. A record counts each time that it is processed.
    pub records: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Processor time used.
    pub cpu: Duration,
}

/// The slow check of a store, which reads the whole store again and again, beside its readers and
/// its writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStats {
    /// Bytes read since the start.
    pub read_bytes: u64,
    /// Bytes read in the current pass.
    pub pass_bytes: u64,
    /// Bytes of a whole pass through the current store.
    pub total_bytes: u64,
    /// Whole passes that have ended since the start.
    pub passes: u64,
    /// Time since the last whole pass ended.
    pub last_pass_age: Option<Duration>,
    /// Faults that the last whole pass found, repaired or not: damaged segments, and damaged parts
    /// of logs.
    pub last_faults: u64,
    /// Damaged segments that were rebuilt since the start, including those that the check did not
    /// find.
    pub repaired: u64,
}

/// The use of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatabaseStats {
    /// Connections that are open for queries.
    pub connections: u64,
    /// The part of `connections` that is in use.
    pub connections_used: u64,
    /// How often a query had to wait for a connection, since the start.
    pub waits: u64,
    /// Queries sent to the replica, and queries that could not be sent, if there is a replica.
    pub replica: Option<(u64, u64)>,
    /// Number of puts, by any process, that subscribers have not been notified of yet.
    pub news_behind: u64,
    /// Durations of statements since the start, by the form of the statement.
    pub statements: Vec<(&'static str, HistogramSnapshot)>,
}

/// How far a mirror, the second store, is behind the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorLag {
    /// Writes that wait for the second store.
    pub queued: u64,
    /// Bytes of these writes.
    pub queued_bytes: u64,
    /// Age of the oldest of these writes. While the second store catches up or cannot be reached,
    /// the duration of this state.
    pub behind_ms: u64,
    /// Whether the second store has everything except the queued writes.
    pub in_step: bool,
    /// Records that were copied since the start.
    pub copied: u64,
    /// Records that only the second store has. The count comes from the last walk. Records that the
    /// first store has put since, and records that the rules have deleted in the second, are
    /// subtracted. Writes of other processes to the second store are not counted.
    pub extra: u64,
    /// Records that the second store refused, as of the last walk.
    pub refused: u64,
    /// The reason for which the second store currently takes no writes.
    pub trouble: Option<String>,
    /// How long nothing has moved although something waits for the second store, in milliseconds.
    pub idle_ms: u64,
}

impl MirrorLag {
    /// Returns how long nothing has moved although something waits for the second store.
    pub fn idle_for(&self) -> Duration {
        Duration::from_millis(self.idle_ms)
    }
}
