//! The bounds of one step of a commit. All stores keep these bounds, so that no write delays the
//! other writes for long.

/// Maximum number of records that one commit deletes. A write that deletes more (a request to
/// vanish, an erase without a limit) is carried out in steps of this size, and other writes are
/// committed between the steps. A step takes some tens of milliseconds in a database.
pub const ERASE_STEP: usize = 1_000;

/// Maximum number of rows that one write searches in one step of a commit. The searches find the
/// records to replace or delete, and the records that forbid the write. A longer search continues
/// in the write's next step, and other writes are committed between the steps. A step takes a tenth
/// of a millisecond, or some hundred milliseconds if each row is read from a disk.
pub const SEARCH_STEP: u64 = 4_096;

/// Rows that all writes of a step may search together. The step then ends, and the remaining writes
/// are in the next step.
pub const SEARCH_BATCH: u64 = 4 * SEARCH_STEP;
