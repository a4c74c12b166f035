//! A batch of writes, and the result of a commit.

use hark_codec::record::{Id, RecordError};

use crate::effects::Refusal;
use crate::query::Query;

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
    pub fn remainder(mut self, erased: u64) -> Self {
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
    /// A stored record forbids this one (deleted, vanished).
    Refused(Refusal),
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
    ///
    /// [`Store::commit_some`]: super::Store::commit_some
    pub outcomes: Vec<Outcome>,
    /// Whether the last outcome is that of one step of its write, and later writes were not begun.
    /// That outcome is the number of records that the step deleted, which may be 0. If the write is
    /// a put, its record is not stored yet. See [`Store::commit_some`].
    ///
    /// [`Store::commit_some`]: super::Store::commit_some
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

/// Why a batch was not stored. After an error of [`Store::commit_some`], no write of its batch has
/// taken effect. If a failure follows after the first writes were stored, the call returns their
/// outcomes, and the next call fails.
///
/// [`Store::commit_some`]: super::Store::commit_some
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
        source: RecordError,
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

impl CommitError {
    /// The error for a store that neither carries out a batch nor returns an error.
    pub(crate) fn nothing_done() -> Self {
        Self::Stopped("a store did nothing of a batch".into())
    }
}

/// Carries out a whole batch by calling a store's [`Store::commit_some`] until nothing is left.
///
/// [`Store::commit_some`]: super::Store::commit_some
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
            (left, erased) = (Some(writes[all.outcomes.len()].clone().remainder(count)), count);
        }
    }
}
