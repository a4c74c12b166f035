//! The size of a head.

/// Maximum number of rows in a head, even if a single batch has more records. The tests of this
/// crate use a smaller maximum.
pub const ROWS_MAX: usize = if cfg!(test) { 1 << 14 } else { 1 << 22 };

/// Approximate memory of a row in bytes: its entries in the table, in the id index, in the list of
/// all rows, and in the list of its kind.
pub(crate) const ROW_BYTES: u64 = 80;
