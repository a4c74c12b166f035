//! The embedded archive: an append-only log that is the one truth, an in-memory head over its newest
//! part, and sealed segments that index the rest. docs/format.md draws the files.
//!
//! Read in this order: [`disk`] and [`log`] (bytes that last), [`head`] and [`segment`] (finding them
//! again), `shelf` (a shelf and its one writer), `open` (start and recovery), `upkeep` (sealing,
//! merging, rewriting), `follow` (another
//! process takes over), [`check`] and `rebuild`.

mod bits;
pub mod check;
pub mod disk;
mod follow;
pub mod head;
mod lock;
pub mod log;
mod manifest;
mod map;
mod open;
mod rebuild;
pub mod segment;
mod shelf;
pub mod term;
mod upkeep;

use std::sync::Arc;

pub use check::{Fault, Report, check};
pub use follow::FollowError;
pub use lock::{Lock, LockError};
pub use manifest::ManifestError;
pub use open::OpenError;
pub use rebuild::{Rebuilt, rebuild};
pub use shelf::Embedded;
pub use upkeep::{Compacted, UpkeepError};

/// Settings of an embedded shelf.
#[derive(Clone)]
pub struct Options {
    /// Records in the head before it is sealed into a segment.
    pub seal_records: u32,
    /// Bytes of a log before its head is sealed, however few records it has.
    pub log_bytes_max: u64,
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
            merge_fan_in: 8,
            segment_records_max: 8 << 20,
            rewrite_dead_share: 0.3,
            dead_bytes_max: u64::MAX,
            background: true,
            disk: Arc::new(disk::RealDisk),
        }
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
