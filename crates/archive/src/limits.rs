//! The bounds of one step of a commit. All stores observe these bounds, so no write delays other
//! writes for long.

/// Maximum number of records that one step of a commit deletes. A write that deletes more records
/// (a request to vanish, an erase without a limit) takes several steps of this size. Other writes
/// are committed between the steps. A step takes some tens of milliseconds in a database.
pub const ERASE_STEP: usize = 1_000;

/// Maximum number of records that one call of [`Store::news`] returns. Further records follow after
/// the next batch.
///
/// [`Store::news`]: crate::store::Store::news
pub const NEWS_STEP: usize = 500;

/// Maximum number of rows that one write searches in one step of a commit. The searches find the
/// records to replace or delete, and the records that forbid the write. A longer search continues
/// in the write's next step, and other writes are committed between the steps. The searches of a
/// step take a tenth of a millisecond, or a few hundred milliseconds if each row is read from a
/// disk.
pub const SEARCH_STEP: u64 = 4_096;

/// Maximum number of rows that one step searches for all its writes together. At this bound the step
/// ends, and the remaining writes wait for the next step.
pub const SEARCH_BATCH: u64 = 4 * SEARCH_STEP;
