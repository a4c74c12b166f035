//! The writes of a batch before the commit, and the result of the commit.

use hark_archive::effects::Effects;
use hark_archive::{CommitResult, Record};

use crate::error::StatementError;
use crate::line::TimelinePosition;
use crate::time::{IndexKey, from_db};

/// A record, and its effects according to the rules.
pub(crate) struct PreparedPut<'a> {
    pub(crate) record: Record<'a>,
    pub(crate) key: IndexKey,
    pub(crate) effects: Effects,
}

/// A durable batch, and earlier puts of other processes that are delivered together with the batch.
pub(crate) struct CommittedBatch {
    pub(crate) committed: CommitResult,
    /// The position of this process before the batch.
    pub(crate) position: TimelinePosition,
    /// The number of the database's newest put before the batch.
    pub(crate) seq_before: i64,
    /// The number of the newest put after the batch.
    pub(crate) seq: i64,
    /// Keys of the records that the batch has stored, each with the record's number.
    pub(crate) kept: Vec<(IndexKey, i64)>,
    /// Keys of the records that the batch has deleted.
    pub(crate) deleted: Vec<IndexKey>,
}

/// The result of an attempt to commit; `None` if this process has seen puts that are missing in the
/// database.
pub(crate) type CommitAttempt = Result<Option<CommittedBatch>, StatementError>;

/// The state of a shelf after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShelfAdvance {
    /// The number of the newest put.
    pub(crate) seq: i64,
    /// The number of stored records.
    pub(crate) records: i64,
    /// Whether the batch deletes records.
    pub(crate) has_deleted: bool,
    /// The words of all puts up to this number are indexed, and no words of later puts.
    pub(crate) words_seq: i64,
}

/// Returns a key's time in the network's units.
pub(crate) fn time(key: &IndexKey) -> u64 {
    from_db(key.time)
}
