//! The dead rows of a segment.

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use super::sidecar::SidecarWords;
use crate::bits::{AtomicBits, DeadRows};
use crate::sums::ExcludedRows;

/// The dead rows and the verified rows of a segment. Both stay the same when the segment's
/// addresses are replaced.
pub struct RowMarks {
    /// Rows that are durably deleted.
    pub dead: AtomicBits,
    /// Rows that a synced batch or the current batch has deleted. `doomed` includes all rows of
    /// `dead`.
    pub doomed: AtomicBits,
    /// The number of dead rows, and the dead rows by kind.
    pub rows: DeadRows,
    /// Rows with records that had the right checksum when last verified.
    pub verified: AtomicBits,
    /// Number of dead rows in the `.dead` file.
    pub saved: AtomicU32,
    /// Rows that are excluded from sums of ids, including all dead rows; `None` before the first
    /// query for sums.
    pub excluded: Mutex<Option<ExcludedRows>>,
}

impl RowMarks {
    /// Makes the dead rows from the words of a `.dead` file. With `None`, all rows are alive.
    pub fn new(rows: u32, words: Option<&SidecarWords>) -> Self {
        let dead =
            AtomicBits::from_words(rows as usize, words.into_iter().flat_map(SidecarWords::iter));
        let all = dead.words().map(u64::count_ones).sum();
        Self {
            doomed: AtomicBits::from_words(rows as usize, dead.words()),
            dead,
            rows: DeadRows::new(all),
            verified: AtomicBits::new(rows as usize),
            saved: AtomicU32::new(all),
            excluded: Mutex::default(),
        }
    }

    /// Number of words in a `.dead` file for `rows` rows.
    pub fn words_on_disk(rows: u32) -> usize {
        rows.div_ceil(64) as usize
    }

    /// Notes that the manifest now names a `.dead` file that has all dead rows. The caller holds
    /// the writer's lock.
    pub fn note_saved(&self) {
        self.saved.store(self.rows.count(), Ordering::Relaxed);
    }

    /// The words of a `.dead` file.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.dead.words()
    }
}
