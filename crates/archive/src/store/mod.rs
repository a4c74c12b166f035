//! The interface of a store, which keeps and searches one shelf (the records of one network).
//!
//! The trait deals with records, queries and outcomes, not with rows, pages or SQL. Four choices
//! explain its design.
//!
//! *Results are pushed in slices.* A search reads one snapshot. Each call of `slice` passes records
//! to a sink until the work of the slice is spent, and the next call continues after the last of
//! these records. No lock and no transaction stays open between two calls. So a slow reader delays
//! only its own search, and records are read in place without a copy.
//!
//! *A commit is a batch with one outcome per write.* The shelf's [`Rules`](crate::effects::Rules)
//! express the effects of a record as queries. These queries find the earlier records that the new
//! record replaces or deletes, and the records that forbid the new record. A store applies these
//! effects under its own lock or in its own transaction.
//!
//! *The id of a record determines its time.* The id is a hash of the record's content, including
//! the time. So two records with the same id have the same time. To find the id of a record with a
//! known time, a store searches only the records of that time.
//!
//! *Puts are numbered.* Every put has a sequence number, and every search reports the last number
//! that it sees. These numbers join stored and live messages without a gap or a duplicate.

use std::time::Duration;

use hark_codec::record::Id;

use self::ranges::IdRanges;
use self::shares::{RecordShare, ShareBy, ShareKey};
use crate::query::Query;
use crate::query::explain::Explanation;

mod commit;
pub mod label_values;
pub mod memory;
pub mod ranges;
mod search;
pub mod shares;
mod stats;

pub use commit::{CommitError, CommitResult, NumberedRecord, Outcome, Write, commit_whole};
pub use search::{Search, SearchError, SearchProgress};
pub use stats::{
    DatabaseStats, DiskUse, JobTotals, MaintenanceStats, MirrorLag, ScrubStats, StoreStats,
};

/// Bounds for a store's files, and for deleted records in these files. The bounds can be changed
/// while the store is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceBounds {
    /// Size in bytes at which a log is full and its records are sealed.
    pub log_bytes_max: u64,
    /// Maximum number of bytes of deleted records that need not be freed because they are spread
    /// thinly over many files.
    pub dead_bytes_max: u64,
    /// Number of free bytes of the disk below which the space of all deleted records is freed at
    /// once.
    pub free_bytes_min: u64,
    /// Time within which deleted records are erased from all files. With `None`, they stay until
    /// their space is needed.
    pub erase_within: Option<Duration>,
}

/// The name of a number that a store keeps for retention; see [`Store::set_note`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetentionNote {
    /// The latest time at which the clock was trusted, in seconds since 1970.
    ClockTrusted,
    /// The time up to which rules delete nothing, so that imported history is kept.
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

/// The position up to which a store's log is durable. Other processes follow the log up to this
/// position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// Number of the log file that is being written.
    pub log: u32,
    /// Number of durable bytes of this file.
    pub bytes: u64,
}

/// A store of one shelf. All threads share the store. Only one commit runs at a time.
pub trait Store: Send + Sync {
    /// Carries out a batch. On return, all writes of the batch are durable and visible to new
    /// searches.
    fn commit(&self, writes: &[Write]) -> Result<CommitResult, CommitError>;

    /// Carries out a batch, or only a first part of the batch, so that other writes wait less. The
    /// part ends after one step of a write that deletes more than
    /// [`ERASE_STEP`](crate::limits::ERASE_STEP) records or searches more than
    /// [`SEARCH_STEP`](crate::limits::SEARCH_STEP) rows. The part also ends once its writes have
    /// searched [`SEARCH_BATCH`](crate::limits::SEARCH_BATCH) rows in total. The caller then
    /// commits the remainder of an unfinished write ([`Write::remainder`]) and the later writes.
    /// From one step to the next, the store keeps the search position of only one write: the last
    /// write of a batch. Any other write must begin its search again. So the caller commits an
    /// unfinished write alone, or as the last write of a batch.
    ///
    /// A record that deletes other records is stored last, together with the final step of its
    /// deletes. So the store never has a record together with a record that it deletes, even if the
    /// process crashes or another process continues the work. A store needs no state for this: if
    /// the record is put again, the remaining deletes follow.
    ///
    /// An empty batch tests whether the store would carry out a batch with writes now. The test
    /// writes something, if possible, but changes no record.
    fn commit_some(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        self.commit(writes)
    }

    /// Returns true if a record with this id is known to be stored. Callers check this before they
    /// verify a signature, so the check must be cheap. A store without a cheap check may return
    /// false; the commit finds duplicates anyway.
    fn knows(&self, id: &Id) -> Result<bool, SearchError>;

    /// Starts a search for `query` over the current state.
    fn search(&self, query: &Query) -> Result<Box<dyn Search>, SearchError>;

    /// Counts the records that match, ignoring limit and cursor. Returns `None` if the budget did
    /// not suffice, or if a record that may match could not be read. A search for the same query
    /// then shows the reason. Adds the number of visited rows, including lookups, to `visited`.
    fn count_visiting(&self, query: &Query, visited: &mut u64) -> Result<Option<u64>, SearchError>;

    /// Does the same as [`Store::count_visiting`], for a caller that does not charge for rows.
    fn count(&self, query: &Query) -> Result<Option<u64>, SearchError> {
        self.count_visiting(query, &mut 0)
    }

    /// Returns an object that counts and lists the matching records by ranges. Returns `None` if
    /// the store keeps no sums of ids for this query, or if the sums are not available now; see
    /// [`Query::window_without`].
    fn ranges(&self, _: &Query) -> Result<Option<Box<dyn IdRanges>>, SearchError> {
        Ok(None)
    }

    /// Calls `each` once for each value of a label, in no particular order, with the number of
    /// stored records that have the value. A store needs to count only the labels that its options
    /// list. For any other label it may return an error. After an error, the values are incomplete.
    fn label_values(&self, name: u8, each: &mut dyn FnMut(&[u8], u64)) -> Result<(), SearchError>;

    /// Passes each group of records and its share to `each`, in ascending order of the groups. All
    /// stored records count, including expired records that are not deleted yet. By default, the
    /// store reads all its records.
    fn shares(
        &self,
        by: ShareBy,
        each: &mut dyn FnMut(ShareKey, RecordShare),
    ) -> Result<(), SearchError> {
        shares::scan_shares(by, &mut || self.search(&Query::default()), each)
    }

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

    /// Returns the number of records, and the number of files, that were found damaged since the
    /// start and are not repaired. The call must be cheap.
    fn damage(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Drops the oldest part of a store that is partitioned by time, except records of the `spared`
    /// kinds. This is done only if the part has no record newer than `to`. Returns the number of
    /// dropped records; `None` if there is no such part.
    fn drop_part(&self, _to: u64, _spared: &[u32]) -> Result<Option<u64>, SearchError> {
        Ok(None)
    }

    /// Returns the number that [`Store::set_note`] has stored under this name.
    fn note(&self, _: RetentionNote) -> Result<Option<u64>, SearchError> {
        Ok(None)
    }

    /// Stores a number beside the records, for this process and later ones. The number is durable
    /// on return. A store that does not outlive its process may ignore the call.
    fn set_note(&self, _: RetentionNote, _: Option<u64>) -> Result<(), CommitError> {
        Ok(())
    }

    /// Announces whether further deletes follow at once. While they do, a store need not free the
    /// space of earlier deletes.
    fn deletes_follow(&self, _follow: bool) {}

    /// Applies new bounds to the store's files, if the store has files.
    fn set_space(&self, _bounds: &SpaceBounds) {}

    /// Returns a name for the medium to which the store writes, as in "the disk has not finished".
    fn medium(&self) -> &'static str {
        "the archive"
    }

    /// Returns the reason if the store currently accepts no puts, or cannot notify subscribers of
    /// all puts.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// If the store has a mirror, returns how far the mirror is behind. The call must be cheap.
    fn mirror(&self) -> Option<MirrorLag> {
        None
    }

    /// Returns the next records that other processes have put, in order. Records that were reported
    /// in a [`CommitResult::before`] are left out. The result has at most
    /// [`NEWS_STEP`](crate::limits::NEWS_STEP) records; if it has fewer, no further records are
    /// waiting. The committing thread calls this method between two commits.
    fn news(&self) -> Vec<NumberedRecord> {
        Vec::new()
    }

    /// Whether other processes may put records, so that [`Store::news`] may have records at any
    /// time. The call must be cheap.
    fn has_other_writers(&self) -> bool {
        false
    }

    /// Registers a callback. A thread of the store calls `wake` whenever [`Store::news`] may have
    /// records. `wake` must not block.
    fn on_news(&self, _wake: Box<dyn Fn() + Send>) {}
}
