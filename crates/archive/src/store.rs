//! The interface of a store, which keeps and searches one shelf (the records of one network).
//!
//! The trait is expressed in records, queries and outcomes, never in rows, pages or SQL. Its design
//! rests on four choices.
//!
//! *Results are pushed in slices.* A search is bound to a snapshot. Each call hands records to a
//! sink until the work of the slice is spent; the next call continues there. So no lock or
//! transaction outlives a call, a slow reader holds up only its own search, and a record is read in
//! place, without a copy.
//!
//! *A commit is a batch with one outcome per write.* The shelf's [`Rules`](crate::effects::Rules)
//! express the effects of a record as queries. The queries find the earlier records that it
//! replaces or deletes, and the records that forbid a put. A store applies these effects under its
//! own lock or in its own transaction.
//!
//! *An id determines its record's time.* The id is a hash of the record's content, so a store needs
//! to look for an id only among the records of one time.
//!
//! *Visibility is numbered.* Every put has a sequence number, and every search knows the last
//! number that it sees. These numbers join stored and live messages without a gap or a duplicate.

use std::ops::ControlFlow;
use std::time::Duration;

use hark_codec::record::{Id, Record};

use self::ranges::IdRanges;
use crate::meter::HistogramSnapshot;
use crate::query::explain::Explanation;
use crate::query::plan::Set;
use crate::query::{Query, SearchRank};

pub mod label_values;
pub mod memory;
pub mod ranges;

/// One change to a store.
#[derive(Clone, Debug)]
pub enum Write {
    /// Stores a record, encoded as bytes (see [`hark_codec::record`]), unless a rule refuses the
    /// record.
    Put(Box<[u8]>),
    /// Deletes the records that match, in the query's order, at most its `limit`.
    Erase(Box<Query>),
}

impl Write {
    /// Returns what is left of the write after a step that deleted `erased` records.
    #[must_use]
    pub fn rest(mut self, erased: u64) -> Self {
        if let Self::Erase(query) = &mut self {
            query.limit = query.limit.saturating_sub(usize::try_from(erased).unwrap_or(usize::MAX));
        }
        self
    }
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The record is stored and durable. `seq` is its position in the sequence of all puts.
    Stored {
        /// Searches that see at least this number see the record.
        seq: u64,
    },
    /// A record with the same id is already stored.
    Duplicate,
    /// A newer version of the record is already stored.
    Superseded,
    /// A stored record forbids this one (deleted, vanished); see
    /// [`Refusal`](crate::effects::Refusal).
    Refused(crate::effects::Refusal),
    /// The number of records that were deleted.
    Erased(u64),
}

/// A record's number in the sequence of puts, and its bytes.
pub type NumberedRecord = (u64, Box<[u8]>);

/// The result of a batch that is durable.
#[derive(Clone, Debug, Default)]
pub struct CommitResult {
    /// One outcome per write, in the order of the writes. [`Store::commit_some`] may carry out only
    /// the first writes. The other writes have no outcome, and nothing of them is stored.
    pub outcomes: Vec<Outcome>,
    /// Whether the last outcome is that of one step of its write, and later writes were not begun.
    /// That outcome is the number of records that the step deleted, which may be 0. If the write is
    /// a put, its record is not stored yet. See [`Store::commit_some`].
    pub unfinished: bool,
    /// The ids of deleted records, each with the index of the deleting write. Indices ascend.
    pub erased: Vec<(usize, Id)>,
    /// Bytes written to the disk or the database for the batch.
    pub bytes: u64,
    /// Rows that were visited to find the records that the writes replace or delete, and the
    /// records that forbid the writes. Zero if the store does not count these rows.
    pub searched: u64,
    /// Records that other processes have put and this store has not reported before, with their
    /// sequence numbers, which are all lower than those of this batch.
    pub before: Vec<NumberedRecord>,
}

/// Why a batch was not stored. After an error of [`Store::commit_some`], no write of its batch has
/// taken effect. If a failure follows after the first writes were stored, the call returns their
/// outcomes, and the next call fails.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The store was opened for reading only.
    #[error("the archive is open for reading only")]
    ReadOnly,
    /// The bytes of a put are not a record.
    #[error("write {index} of the batch is no record: {source}")]
    Record {
        /// Index of the write in the batch.
        index: usize,
        /// The fault in the bytes.
        source: hark_codec::record::RecordError,
    },
    /// The record is too large for any file of the store.
    #[error("a record of {bytes} bytes is above the archive's bound of {bytes_max}")]
    TooLarge {
        /// Size of the record.
        bytes: usize,
        /// The largest size of a record.
        bytes_max: usize,
    },
    /// The disk or database failed, now or before. The writer has stopped and must be restarted.
    /// Nothing is retried, as the state of the disk after a failed sync is unknown.
    #[error("the archive takes no more writes: {0}")]
    Stopped(String),
    /// Another process has the right to write. The next batch may succeed.
    #[error("{0}")]
    Elsewhere(String),
    /// The database is unreachable or refused the batch, or the disk lacks space, or a part of an
    /// index that is being rebuilt cannot be read. The next batch may succeed. If the connection to
    /// a database was lost at the very end of this batch, it is unknown whether the batch was
    /// stored; putting it again does no harm.
    #[error("{0}")]
    Unavailable(String),
}

/// Why a query could not be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The disk or database failed.
    #[error("the archive could not be read: {0}")]
    Failed(String),
    /// A part of a file could not be read. From now on its records are left out and count as
    /// damaged, so the same query is answered without them: see
    /// [`ResumedSearch`](crate::resumed::ResumedSearch).
    #[error("the archive could not be read: {0}")]
    LeftOut(String),
    /// The search was given up, as it would use more memory than is now free for searches.
    #[error("the search takes more memory than there is now; ask for less, or try again later")]
    NoMemory,
}

impl SearchError {
    /// The error of [`Store::label_values`] for a label that the store does not list.
    #[must_use]
    pub fn not_listed(name: u8) -> Self {
        let name = char::from(name).escape_default();
        Self::Failed(format!("the values of label `{name}` are not listed"))
    }
}

/// The state of a search after a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchProgress {
    /// The work of the slice is spent, or the sink asked to pause. Call again.
    Paused,
    /// All matching records were delivered, up to the limit.
    Done {
        /// True if the limit left at least one more matching record.
        more: bool,
    },
    /// The query's whole budget was spent before the end.
    Exhausted,
}

/// A query being evaluated over one snapshot.
pub trait Search: Send {
    /// Hands matching records to `sink`, in the query's order, visiting about `work` rows at most.
    /// A record at which the sink breaks counts as delivered.
    fn slice(
        &mut self,
        work: u64,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<SearchProgress, SearchError>;

    /// Returns the snapshot's sequence number: the search sees puts up to this number, and no later
    /// puts.
    fn seq(&self) -> u64;

    /// Returns the number of rows visited so far.
    fn visited(&self) -> u64;

    /// Returns how many records so far could not be read, and so were not delivered although they
    /// may match. A record may count more than once.
    fn damaged(&self) -> u64 {
        0
    }

    /// Returns the set that drives the search in the largest part opened so far. `None` if nothing
    /// in the opened parts can match.
    fn driver(&self) -> Option<Set>;

    /// Returns the approximate bytes of memory that the search uses until its next slice.
    fn bytes(&self) -> usize {
        0
    }

    /// Returns the rank of the last record delivered, if the query is ranked.
    fn last_rank(&self) -> Option<SearchRank> {
        None
    }
}

/// The space that several stores use on a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// Bytes on disk that no rewrite would free.
    pub kept: u64,
    /// Bytes of deleted records that are freed without another delete.
    pub reclaimable: u64,
}

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

/// Bounds of the files of a store, and of the deleted records in these files. The bounds can change
/// while the store is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceBounds {
    /// Bytes of a log at which its records are sealed.
    pub log_bytes_max: u64,
    /// Bytes of deleted records that may stay for ever, because they are spread thinly.
    pub dead_bytes_max: u64,
    /// Free bytes of the disk below which all space of deleted records is freed at once.
    pub free_bytes_min: u64,
    /// Time within which deleted records are gone from all files. With `None`, they stay until
    /// their space is needed.
    pub erase_within: Option<Duration>,
}

/// The name of a number that a store keeps for retention; see [`Store::set_note`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetentionNote {
    /// The latest time at which the clock was trusted, in seconds since 1970.
    ClockTrusted,
    /// The time up to which rules delete nothing, because history was brought.
    HeldUntil,
}

impl RetentionNote {
    /// Returns the name under which a store keeps the number.
    pub fn name(self) -> &'static str {
        match self {
            Self::ClockTrusted => "clock_trusted",
            Self::HeldUntil => "held_until",
        }
    }
}

/// The position up to which a store's log is durable, for other processes that follow the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// Number of the log file that is being written.
    pub log: u32,
    /// Durable bytes of that file.
    pub bytes: u64,
}

/// Carries out a whole batch by calling a store's [`Store::commit_some`] until nothing is left.
pub fn commit_whole(
    writes: &[Write],
    some: impl Fn(&[Write]) -> Result<CommitResult, CommitError>,
) -> Result<CommitResult, CommitError> {
    let mut all = CommitResult::default();
    // The rest of the current write, and the number of records that its steps have deleted.
    let (mut left, mut erased): (Option<Write>, u64) = (None, 0);
    loop {
        let at = all.outcomes.len();
        let batch = left.as_ref().map_or(&writes[at..], std::slice::from_ref);
        if batch.is_empty() {
            return Ok(all);
        }
        let mut done = some(batch)?;
        if left.take().is_some()
            && let Some(Outcome::Erased(count)) = done.outcomes.first_mut()
        {
            *count += erased;
        }
        let unfinished = done.unfinished;
        if done.outcomes.is_empty() {
            return Err(CommitError::nothing_done());
        }
        all.add(done, at);
        if unfinished {
            let Some(Outcome::Erased(count)) = all.outcomes.pop() else {
                return Err(CommitError::nothing_done());
            };
            (left, erased) = (Some(writes[all.outcomes.len()].clone().rest(count)), count);
        }
    }
}

impl CommitError {
    /// The error for a store that neither carries out a batch nor returns an error.
    pub(crate) fn nothing_done() -> Self {
        Self::Stopped("a store did nothing of a batch".into())
    }
}

impl CommitResult {
    /// Keeps the outcomes of the first `writes`, all of which are whole.
    pub fn cut(&mut self, writes: usize) {
        self.outcomes.truncate(writes);
        self.erased.retain(|(by, _)| *by < writes);
        self.unfinished = false;
    }

    /// Appends the result of the writes from index `from` on.
    fn add(&mut self, more: Self, from: usize) {
        self.outcomes.extend(more.outcomes);
        self.erased.extend(more.erased.into_iter().map(|(at, id)| (from + at, id)));
        self.before.extend(more.before);
        self.bytes += more.bytes;
        self.searched += more.searched;
    }
}

/// A store of one shelf. All threads share the store; one commit runs at a time.
pub trait Store: Send + Sync {
    /// Carries out a batch. On return, all writes of the batch are durable and visible to new
    /// searches.
    fn commit(&self, writes: &[Write]) -> Result<CommitResult, CommitError>;

    /// Carries out a batch, or only its first part, so that other writes need not wait long. The
    /// part is the first writes and then one step of a write that deletes more than
    /// [`ERASE_STEP`](crate::limits::ERASE_STEP) records, or searches more than
    /// [`SEARCH_STEP`](crate::limits::SEARCH_STEP) rows. The part also ends after the write with
    /// which [`SEARCH_BATCH`](crate::limits::SEARCH_BATCH) rows were searched. The caller then
    /// commits the rest of that write ([`Write::rest`]) and the later writes. Only a write that
    /// comes last in its batch keeps its place in a search from one step to the next; any other
    /// write begins its search again. So the rest of a write is committed alone, or as the last
    /// write of a batch.
    ///
    /// A record that deletes others is stored last, with the final step of its deletes. So wherever
    /// the work stops (a crash, another process that continues), no stored record coexists with a
    /// record that it deletes. No state has to be kept, and putting the record again continues the
    /// deletes.
    fn commit_some(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        self.commit(writes)
    }

    /// Returns whether `id` is known to be stored: the cheap check before a signature is verified.
    /// A store that cannot find out cheaply may return false; the commit finds duplicates anyway.
    fn knows(&self, id: &Id) -> Result<bool, SearchError>;

    /// Starts a search for `query` over the current state.
    fn search(&self, query: &Query) -> Result<Box<dyn Search>, SearchError>;

    /// Counts the records that match, ignoring limit and cursor. `None` if the budget did not
    /// suffice, or if a record that may match could not be read; a search then gives the details.
    /// Adds to `visited` the rows that the count has visited, and the lookups that count as rows.
    fn count_visiting(&self, query: &Query, visited: &mut u64) -> Result<Option<u64>, SearchError>;

    /// Counts the same for a caller that does not charge for rows.
    fn count(&self, query: &Query) -> Result<Option<u64>, SearchError> {
        self.count_visiting(query, &mut 0)
    }

    /// Returns the ids of the records that match, by ranges. `None` if the store keeps no sums that
    /// answer the query, or if the sums are not available now; see [`Query::window_without`].
    fn ranges(&self, _: &Query) -> Result<Option<Box<dyn IdRanges>>, SearchError> {
        Ok(None)
    }

    /// Passes each value of a label to `each`, with the number of stored records that have the
    /// value. Every value is passed once, in no particular order. A store counts only the labels
    /// that its options list; for any other label it may return an error. After an error, the
    /// values passed so far are incomplete.
    fn label_values(&self, name: u8, each: &mut dyn FnMut(&[u8], u64)) -> Result<(), SearchError>;

    /// Returns the ids of up to `limit` stored records that have expired by `now`.
    fn expired(&self, now: u64, limit: usize) -> Result<Vec<Id>, SearchError>;

    /// Returns this store's plan for a search, and its expected cost.
    fn explain(&self, query: &Query) -> Result<Explanation, SearchError>;

    /// Returns this store's plan for a count, and its expected cost.
    fn explain_count(&self, query: &Query) -> Result<Explanation, SearchError> {
        self.explain(query)
    }

    /// Returns the size and state of the store.
    fn stats(&self) -> StoreStats;

    /// Returns the number of records, and of files, that were found damaged since the start and are
    /// not repaired. Cheap.
    fn damage(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Drops the oldest part of the store at once, except for records of the `spared` kinds, if the
    /// store is partitioned by time and that part holds nothing newer than `to`. Returns the number
    /// of records dropped, or `None` if there is no such part.
    fn drop_part(&self, _to: u64, _spared: &[u32]) -> Result<Option<u64>, SearchError> {
        Ok(None)
    }

    /// Returns the number that [`Store::set_note`] has kept under this name.
    fn note(&self, _: RetentionNote) -> Result<Option<u64>, SearchError> {
        Ok(None)
    }

    /// Keeps a number beside the records, for this process and later ones. Durable on return. A
    /// store that does not outlive its process may ignore the number.
    fn set_note(&self, _: RetentionNote, _: Option<u64>) -> Result<(), CommitError> {
        Ok(())
    }

    /// Announces whether more deletes follow at once. Meanwhile, a store need not free the space of
    /// earlier deletes.
    fn deletes_follow(&self, _follow: bool) {}

    /// Applies new bounds of the store's files, if the store has files.
    fn set_space(&self, _bounds: &SpaceBounds) {}

    /// Returns the reason if the store currently takes no puts, or if subscribers are not notified
    /// of all puts.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Returns the lag of this store's mirror, if any. Cheap.
    fn mirror(&self) -> Option<MirrorLag> {
        None
    }

    /// Returns some of the records that other processes have put and that no
    /// [`CommitResult::before`] has reported, in order. Empty once all are reported. Called between
    /// commits, by the thread that commits.
    fn news(&self) -> Vec<NumberedRecord> {
        Vec::new()
    }

    /// Registers `wake`, which a thread of the store calls whenever [`Store::news`] may have
    /// records. `wake` must not block.
    fn on_news(&self, _wake: Box<dyn Fn() + Send>) {}
}
