//! The rows of a head, in the order of arrival.

use std::sync::OnceLock;

use hark_archive::Id;

use super::size::ROWS_MAX;
use crate::bits::AtomicBits;

/// Number of rows per chunk of the row table.
pub(super) const CHUNK: usize = 1024;
/// The sort key of a row: newer times first, then the first 16 bytes of the id. A search for two
/// ids with the same first 16 bytes takes 2^64 tries.
pub(super) type Rank = (u64, [u64; 2]);

/// The first 16 bytes of an id, as numbers with the same order.
pub fn id_prefix(id: &Id) -> [u64; 2] {
    [0, 8].map(|at| id[at..].first_chunk().map_or(0, |eight| u64::from_be_bytes(*eight)))
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct HeadRow {
    /// The record's time.
    pub time: u64,
    /// The first bytes of the record's id.
    pub id: [u64; 2],
    /// The hash of the record's id.
    pub hash: u64,
    /// The offset of the record's frame in the log.
    pub offset: u32,
    /// The record's kind.
    pub kind: u32,
}

pub(super) struct TableChunk {
    pub(super) rows: Box<[OnceLock<HeadRow>]>,
    /// Rows that are durably deleted.
    pub(super) dead: AtomicBits,
    /// Rows that a synced batch or the current batch has deleted. `doomed` includes all rows of
    /// `dead`.
    pub(super) doomed: AtomicBits,
    /// Rows with records that were verified by their checksums since the last
    /// [`super::Head::forget_verified`].
    pub(super) verified: AtomicBits,
}

/// All rows, in the order of arrival.
pub(super) struct RowTable(Box<[OnceLock<TableChunk>]>);

impl RowTable {
    pub(super) fn new() -> Self {
        Self((0..ROWS_MAX / CHUNK).map(|_| OnceLock::new()).collect())
    }

    pub(super) fn set(&self, at: u32, row: HeadRow) {
        let chunk = self.0[at as usize / CHUNK].get_or_init(|| TableChunk {
            rows: (0..CHUNK).map(|_| OnceLock::new()).collect(),
            dead: AtomicBits::new(CHUNK),
            doomed: AtomicBits::new(CHUNK),
            verified: AtomicBits::new(CHUNK),
        });
        chunk.rows[at as usize % CHUNK].get_or_init(|| row);
    }

    #[inline]
    pub(super) fn chunk(&self, row: u32) -> Option<&TableChunk> {
        self.0.get(row as usize / CHUNK)?.get()
    }

    #[inline]
    pub(super) fn get(&self, row: u32) -> Option<&HeadRow> {
        self.chunk(row)?.rows[row as usize % CHUNK].get()
    }

    /// The key by which all lists are sorted.
    #[inline]
    pub(super) fn sort_key(&self, row: u32) -> (Rank, u32) {
        (self.rank(row), row)
    }

    #[inline]
    pub(super) fn rank(&self, row: u32) -> Rank {
        self.get(row).map_or((u64::MAX, [u64::MAX; 2]), |row| (!row.time, row.id))
    }
}
