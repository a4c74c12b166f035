//! Backups: a directory with copies of all shelves' logs, which can be taken beside a running
//! server and brought up to date, and from which an archive is restored.
//!
//! A backup is what its catalog ([`BackupCatalog`]) says, and the catalog is one small file that is
//! replaced in one step. Copies that the catalog names are never changed within the bytes that it
//! counts: what is new is written behind them or into new files. So a backup that was cut short, at
//! whatever point, is the former backup.
//!
//! Only logs are copied, since segments are made from them. Nothing is locked: a log never changes,
//! except that the last one grows, so a copy of all logs that one MANIFEST names is the archive as
//! it was at some moment after that MANIFEST was written. If maintenance removes a log before it is
//! copied, MANIFEST has been replaced, and the copying begins again with the new one; what was
//! copied by then counts.
//!
//! [`pack`] writes the same into one file instead, which has one moment and is never changed.

mod catalog;
mod copy;
mod pack;
mod restore;
mod shelf;
mod take;
mod unpack;

use std::io;
use std::path::{Path, PathBuf};

use crate::log::LogError;
use crate::open::ShelfOpenError;

pub use catalog::{BackupCatalog, LogCopy, SavedFile, ShelfBackup};
pub use copy::damaged_copies;
pub use pack::pack;
pub use restore::{restore, restore_unpacked};
pub use shelf::{BackupSource, SavedShelf};
pub use take::{BackupResult, BackupTask, back_up};
pub use unpack::unpack;

/// Why a backup was not taken, or could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// A file could not be read or written.
    #[error("{path}: {cause}")]
    Io {
        /// Which file or directory.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// The archive's logs or its manifest cannot be read.
    #[error(transparent)]
    Shelf(#[from] ShelfOpenError),
    /// There is nothing to back up.
    #[error("there is no archive in {0}")]
    NoArchive(PathBuf),
    /// A log of the archive is damaged.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The catalog is damaged, or no catalog.
    #[error("{0} is damaged: this backup cannot be used")]
    Catalog(PathBuf),
    /// The catalog, or the file, is of a later format.
    #[error("{path} has format {version}, which this Hark does not know: use a newer Hark")]
    Version {
        /// The catalog.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The backup is of another archive.
    #[error(
        "{backup} holds a backup of another archive ({shelf} has another secret); name another \
         directory"
    )]
    OtherArchive {
        /// The backup's directory.
        backup: PathBuf,
        /// The shelf that differs.
        shelf: String,
    },
    /// A file is no backup.
    #[error("{0} is no backup: name what `hark backup` has written")]
    Foreign(PathBuf),
    /// A backup of one file is not what was written.
    #[error("{path} is damaged from byte {offset} on, or cut short: it is not what was written")]
    Packed {
        /// The file.
        path: PathBuf,
        /// The beginning of the part that is damaged.
        offset: u64,
    },
    /// A copy in the backup is not what was written.
    #[error("{0} is not what was written: its checksum or its length is another")]
    Copy(PathBuf),
}

impl BackupError {
    fn io(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        move |cause| Self::Io { path: path.into(), cause }
    }

    /// Whether a log that MANIFEST named is gone. If MANIFEST has been replaced meanwhile, that is
    /// no fault.
    fn is_stale(&self) -> bool {
        match self {
            Self::Io { cause, .. } | Self::Log(LogError::Io { cause, .. }) => {
                cause.kind() == io::ErrorKind::NotFound
            }
            _ => false,
        }
    }
}
