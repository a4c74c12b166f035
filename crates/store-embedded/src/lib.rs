//! The embedded archive: an append-only log that is the one truth, an in-memory head over its newest
//! part, and sealed segments that index the rest. docs/format.md draws the files.
//!
//! Read in this order: [`disk`] and [`log`] (bytes that last), [`head`] and [`segment`] (finding them
//! again), `shelf` (a shelf and its one writer), `open` (start and recovery), `upkeep` (sealing,
//! merging, rewriting), `follow` (another
//! process takes over), [`check`], `rebuild` and `divide`.

mod bits;
pub mod check;
pub mod disk;
mod divide;
mod follow;
pub mod head;
mod lock;
pub mod log;
mod manifest;
mod map;
mod mapped;
mod open;
pub mod private;
mod rebuild;
mod room;
pub mod segment;
mod shelf;
mod suspect;
pub mod term;
#[cfg(test)]
mod tests;
mod upkeep;

use std::sync::Arc;

pub use check::{Fault, Report, check};
pub use follow::FollowError;
pub use lock::{Claim, Lock, LockError};
pub use log::LOG_BYTES_MAX;
pub use manifest::ManifestError;
pub use open::OpenError;
pub use rebuild::{Rebuilt, rebuild};
pub use room::NoRoom;
pub use shelf::Embedded;
pub use upkeep::{Compacted, UpkeepError};

/// Settings of an embedded shelf.
#[derive(Clone)]
pub struct Options {
    /// Records in the head before it is sealed into a segment. More than [`SEAL_RECORDS_MAX`] count as
    /// that many.
    pub seal_records: u32,
    /// Bytes of a log before its head is sealed, however few records it has. More than
    /// [`LOG_BYTES_MAX`] count as that many.
    pub log_bytes_max: u64,
    /// Bytes of memory that a head may take, about, before it is sealed. All heads together, with those
    /// that wait to be sealed, take up to four times as many: then writes wait for sealing.
    pub head_bytes_max: u64,
    /// Segments of about the same size that are merged into one.
    pub merge_fan_in: usize,
    /// Records that a merged segment may come to. What a merge keeps in memory grows with them (some 40
    /// bytes each), and nothing is gained by fewer segments than one for so many.
    pub segment_records_max: u64,
    /// Share of a sealed log that must be dead before it is rewritten.
    pub rewrite_dead_share: f64,
    /// Dead bytes that may stay in sealed logs below that share, together. Above it the worst of those
    /// logs are rewritten, too.
    pub dead_bytes_max: u64,
    /// Whether sealing, merging and rewriting run on a thread of their own. Without, they run inside
    /// of the commit that calls for them: slower, but the same every time.
    pub background: bool,
    /// What the files are on.
    pub disk: Arc<dyn disk::Disk>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seal_records: 65_536,
            log_bytes_max: 256 << 20,
            head_bytes_max: 64 << 20,
            merge_fan_in: 8,
            segment_records_max: 8 << 20,
            rewrite_dead_share: 0.3,
            dead_bytes_max: u64::MAX,
            background: true,
            disk: Arc::new(disk::RealDisk),
        }
    }
}

/// Most records that a head waits for before it is sealed: half of its room, which leaves the other half
/// to the batch that fills it.
pub const SEAL_RECORDS_MAX: u32 = (head::ROWS_MAX / 2) as u32;

/// Heads' worth of memory that all heads together may take.
const HEADS: u64 = 4;

impl Options {
    /// Records at which a head is sealed.
    fn rows_max(&self) -> u32 {
        self.seal_records.clamp(1, SEAL_RECORDS_MAX)
    }

    /// Rows that a new head makes room for at once.
    fn rows_expected(&self) -> u32 {
        // Room for one costs as much as a quarter of a row, and there may be more lists than rows.
        let fit = self.head_bytes_max / head::ROW_BYTES / 4;
        self.rows_max().min(fit.try_into().unwrap_or(u32::MAX))
    }

    /// Whether a head of so many rows and bytes of memory, with a log of so many bytes, is to be sealed.
    fn is_full(&self, rows: u32, bytes: u64, log_bytes: u64) -> bool {
        rows >= self.rows_max()
            || log_bytes >= self.log_bytes_max.min(LOG_BYTES_MAX)
            || bytes >= self.head_bytes_max
    }

    /// Whether heads of so many bytes of memory are more than there may be.
    fn are_too_many(&self, heads_bytes: u64) -> bool {
        heads_bytes > self.head_bytes_max.saturating_mul(HEADS)
    }

    /// Whether heads that wait to be sealed leave no room for one that is written, nor for the batch
    /// that fills it.
    fn must_seal_first(&self, frozen_bytes: u64) -> bool {
        frozen_bytes > self.head_bytes_max.saturating_mul(HEADS - 2)
    }
}

/// How far long work has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub what: &'static str,
    /// Units done.
    pub done: u64,
    /// Units in all.
    pub total: u64,
}

/// Hears of progress.
pub type OnProgress<'a> = &'a mut dyn FnMut(Progress);
