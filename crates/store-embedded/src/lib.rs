//! The embedded archive: an append-only log as the source of truth, a head that indexes the newest
//! records in memory, and segments that index all older records. docs/format.md describes the
//! files.
//!
//! Read in this order: [`disk`] and [`log`] (durable bytes), [`head`] and [`segment`] (indices over
//! the log), `engine` (opening, committing, searching), `maintenance` (sealing, merging, rewriting),
//! `space` (disk space), `repair` (check, rebuild, salvage), [`backup`].
#![doc = include_str!("../README.md")]

pub mod backup;
mod bits;
pub mod damage;
pub mod disk;
mod engine;
pub mod head;
mod links;
mod lock;
pub mod log;
mod maintenance;
mod manifest;
mod map;
mod mapped;
mod merged;
mod options;
pub mod permissions;
mod repair;
pub mod segment;
mod space;
mod sums;
pub mod term;
#[cfg(test)]
mod tests;
mod word_postings;

pub use engine::embedded_store::EmbeddedStore;
pub use engine::follow::FollowError;
pub use engine::open_error::ShelfOpenError;
pub use lock::{DirectoryLock, LockClaim, LockError};
pub use log::LOG_BYTES_MAX;
pub use maintenance::compact::CompactionResult;
pub use maintenance::error::MaintenanceError;
pub use manifest::ManifestError;
pub use options::{EmbeddedOptions, JobProgress, OnProgress, SEAL_RECORDS_MAX};
pub use repair::check::{CheckReport, FileFault, check};
pub use repair::rebuild::{RebuildResult, rebuild};
pub use repair::salvage::{LostPart, SalvageError, SalvageReport, salvage};
pub use space::errors::NoSpace;
pub use space::reserve::{DiskReserve, RESERVE_BYTES};
