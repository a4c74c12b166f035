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
    /// Deletes matching records in the query's order, up to the query's `limit`.
    Erase(Box<Query>),
}

impl Write {
    /// Returns the remainder of the write after a step that deleted `erased` records.
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
        /// A search sees the record if the search's own sequence number is at least `seq`.
        seq: u64,
    },
    /// A record with the same id is already stored.
    Duplicate,
    /// A newer version of the record is already stored.
    Superseded,
    /// A stored record forbids this record (see [`Refusal`]).
    Refused(Refusal),
    /// The write deleted this number of records.
    Erased(u64),
}

/// A record's number in the sequence of puts, and its bytes.
pub type NumberedRecord = (u64, Box<[u8]>);

/// The result of a batch that is durable.
#[derive(Clone, Debug, Default)]
pub struct CommitResult {
    /// One outcome per write, in the order of the writes. [`Store::commit_some`] may carry out only
    /// the first writes of the batch. The remaining writes have no outcome and no effect yet.
    ///
    /// [`Store::commit_some`]: super::Store::commit_some
    pub outcomes: Vec<Outcome>,
    /// Whether the last write with an outcome is unfinished, because only one of its steps was
    /// done. Later writes were not begun. The outcome of the unfinished write is the number of
    /// records that the step deleted, and may be 0. If the write is a put, its record is not stored
    /// yet. See [`Store::commit_some`].
    ///
    /// [`Store::commit_some`]: super::Store::commit_some
    pub unfinished: bool,
    /// The ids of the deleted records. Each id comes with the index of the write that deleted the
    /// record. The indices ascend.
    pub erased: Vec<(usize, Id)>,
    /// Number of bytes written to the disk or the database for the batch.
    pub bytes: u64,
    /// Number of rows visited to find the records that the writes replace or delete, and the
    /// records that forbid writes. Zero if the store does not count these rows.
    pub searched: u64,
    /// The records that other processes put before this commit began and that were not reported
    /// earlier, in order. Their sequence numbers are lower than the numbers of this batch.
    pub before: Vec<NumberedRecord>,
}

impl CommitResult {
    /// Keeps only the outcomes of the first `writes` writes, which must all be complete.
    pub fn cut(&mut self, writes: usize) {
        self.outcomes.truncate(writes);
        self.erased.retain(|(by, _)| *by < writes);
        self.unfinished = false;
    }

    /// Appends the result of the batch's writes from index `from` on.
    fn add(&mut self, more: Self, from: usize) {
        self.outcomes.extend(more.outcomes);
        self.erased.extend(more.erased.into_iter().map(|(at, id)| (from + at, id)));
        self.before.extend(more.before);
        self.bytes += more.bytes;
        self.searched += more.searched;
    }
}

/// Why a batch was not stored. If [`Store::commit_some`] returns an error, no write of its batch
/// has taken effect. If the store fails after it has stored the first writes, the call returns the
/// outcomes of these writes, and the next call fails.
///
/// [`Store::commit_some`]: super::Store::commit_some
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The store was opened for reading only.
    #[error("the archive is open for reading only")]
    ReadOnly,
    /// The bytes of a put are not a record.
    #[error("write {index} of the batch is not a record: {source}")]
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
        /// The maximum size of a record.
        bytes_max: usize,
    },
    /// The disk or the database failed, in this call or in an earlier call. The writer has stopped,
    /// and only a restart helps. The store does not retry the write, because the state of a disk
    /// after a failed sync is unknown.
    #[error("the archive takes no more writes: {0}")]
    Stopped(String),
    /// Another process has the right to write. The next batch may succeed.
    #[error("{0}")]
    Elsewhere(String),
    /// The database cannot be reached or refused the batch, the disk lacks space, or a part of an
    /// index cannot be read until it is rebuilt. The next batch may succeed. If the connection to a
    /// database was lost while the batch was being committed, it is unknown whether the batch is
    /// stored. Committing the batch again does no harm.
    #[error("{0}")]
    Unavailable(String),
}

impl CommitError {
    /// Returns the error for a store that carried out no write and yet returned no error.
    pub(crate) fn nothing_done() -> Self {
        Self::Stopped("a store carried out no write of a batch".into())
    }
}

/// Carries out a whole batch by calling [`Store::commit_some`] until no write is left.
///
/// [`Store::commit_some`]: super::Store::commit_some
pub fn commit_whole(
    writes: &[Write],
    mut some: impl FnMut(&[Write]) -> Result<CommitResult, CommitError>,
) -> Result<CommitResult, CommitError> {
    let mut all = CommitResult::default();
    // The remainder of the current write, and the number of records that its steps have deleted so
    // far.
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
