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

use std::time::Duration;

use hark_codec::record::Id;

use self::ranges::IdRanges;
use crate::query::Query;
use crate::query::explain::Explanation;

mod commit;
pub mod label_values;
pub mod memory;
pub mod ranges;
mod search;
mod stats;

pub use commit::{CommitError, CommitResult, NumberedRecord, Outcome, Write, commit_whole};
pub use search::{Search, SearchError, SearchProgress};
pub use stats::{
    DatabaseStats, DiskUse, JobTotals, MaintenanceStats, MirrorLag, ScrubStats, StoreStats,
};

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
    /// commits the rest of that write ([`Write::remainder`]) and the later writes. Only a write that
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
