//! The embedded archive: an append-only log that is the source of truth, an in-memory head over its
//! newest part, and sealed segments that index the rest. docs/format.md describes the files.
//!
//! Read in this order: [`disk`] and [`log`] (durable bytes), [`head`] and [`segment`] (indices over
//! the log), `view` (the snapshot that readers see), `shelf` (the one writer), `store` (the trait
//! of the archive), `open` (start and recovery), `maintenance` (sealing, merging, rewriting),
//! `follow` (handing over to another process), [`mod@check`], `rebuild` and `divide`, [`backup`].

pub mod backup;
mod bits;
pub mod check;
pub mod damage;
pub mod disk;
mod divide;
mod doubles;
mod follow;
pub mod head;
mod label_values;
mod lengths;
mod links;
mod lock;
pub mod log;
mod maintenance;
mod manifest;
mod map;
mod mapped;
mod merged;
mod notes;
mod open;
mod options;
pub mod permissions;
mod rebuild;
mod reserve;
mod room;
mod rule_search;
pub mod salvage;
mod scrub;
pub mod segment;
mod shelf;
mod space;
mod store;
mod sums;
mod suspect;
mod tail;
pub mod term;
#[cfg(test)]
mod tests;
mod view;
mod word_postings;

pub use check::{CheckReport, FileFault, check};
pub use follow::FollowError;
pub use lock::{DirectoryLock, LockClaim, LockError};
pub use log::LOG_BYTES_MAX;
pub use maintenance::{CompactionResult, MaintenanceError};
pub use manifest::ManifestError;
pub use open::ShelfOpenError;
pub use options::{EmbeddedOptions, JobProgress, OnProgress, SEAL_RECORDS_MAX};
pub use rebuild::{RebuildResult, rebuild};
pub use reserve::{DiskReserve, RESERVE_BYTES};
pub use room::NoSpace;
pub use salvage::{LostPart, SalvageError, SalvageReport, salvage};
pub use store::EmbeddedStore;
