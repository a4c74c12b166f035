//! Backups: a directory with copies of the logs of all shelves. A backup can be taken and updated
//! while a server runs, and an archive can be restored from the backup.
//!
//! One small file, the catalog ([`BackupCatalog`]), lists the contents of a backup and is replaced
//! atomically. The copied bytes that the catalog lists never change: new bytes are appended after
//! these bytes, or go to new files. So if a backup is interrupted at any point, the former backup
//! is still valid.
//!
//! Only logs are copied, since segments are derived from logs. A backup needs no lock, because logs
//! never change, except that the last log grows. A copy of all logs that one MANIFEST names is
//! therefore a state of the archive at some moment after this MANIFEST was written. Maintenance
//! writes a new MANIFEST before it removes a log. If a log is gone before the backup has copied it,
//! the backup begins again with the new MANIFEST and reuses its finished copies.
//!
//! [`pack`] instead writes a backup into one file. This file has the state of the archive at one
//! moment and never changes.
//!
//! A store without logs, such as a database, is backed up in the same format: `puts` writes
//! logs of its records. [`backed_up_records`] reads the records of any backup, for a restore into such
//! a store.

mod catalog;
mod copy;
mod pack;
mod puts;
mod records;
mod restore;
mod shelf_copy;
mod take;
mod unpack;

use std::io;
use std::path::{Path, PathBuf};

use crate::engine::open_error::ShelfOpenError;
use crate::log::LogError;

pub use catalog::{BackupCatalog, CATALOG_ASIDE, LogCopy, PutListCopy, SavedFile, ShelfBackup};
pub use copy::damaged_copies;
pub use pack::pack;
pub use puts::{PutSource, SourceError, SourceOpener, back_up_puts, pack_puts};
pub use records::{LogFolder, VerifiedShelf, backed_up_records, verify_records};
pub use restore::{hold, restore, restore_unpacked};
pub use shelf_copy::{BackupSource, PutTotals, SavedShelf};
pub use take::{BackupResult, BackupTask, back_up};
pub use unpack::unpack;

/// Why a backup was not taken, or could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// A file could not be read or written.
    #[error("{path}: {cause}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error of the operation.
        cause: io::Error,
    },
    /// The archive's logs or its manifest cannot be read.
    #[error(transparent)]
    Shelf(#[from] ShelfOpenError),
    /// There is nothing to back up.
    #[error("there is no archive in {0}")]
    NoArchive(PathBuf),
    /// The store could not be read.
    #[error("{shelf} could not be read: {cause}")]
    Source {
        /// The shelf.
        shelf: String,
        /// The error of the store.
        cause: SourceError,
    },
    /// A log of the archive is damaged.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The catalog is damaged, or the file is no catalog.
    #[error("{0} is damaged: this backup cannot be used")]
    Catalog(PathBuf),
    /// The catalog, or the file, has a later format.
    #[error("{path} has format {version}, which this Hark does not know: use a newer Hark")]
    Version {
        /// The catalog.
        path: PathBuf,
        /// The catalog's version.
        version: u32,
    },
    /// The directory has a backup of another archive.
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
    /// The file is not a backup.
    #[error("{0} is not a backup: name a directory or a file that `hark backup` has written")]
    Foreign(PathBuf),
    /// The bytes of a backup in one file differ from the bytes that were written.
    #[error("{path} is damaged from byte {offset} on, or cut short: it is not what was backed up")]
    Packed {
        /// The file.
        path: PathBuf,
        /// The offset at which the damaged part begins.
        offset: u64,
    },
    /// The bytes of a copy in the backup differ from the bytes that were written.
    #[error("{0} is not what was written: its checksum or its length differs")]
    Copy(PathBuf),
}

impl BackupError {
    fn io(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        move |cause| Self::Io { path: path.into(), cause }
    }

    /// Whether the error means that a log of an older MANIFEST is gone. If a newer MANIFEST exists,
    /// the backup begins again instead of failing.
    fn is_stale(&self) -> bool {
        match self {
            Self::Io { cause, .. } | Self::Log(LogError::Io { cause, .. }) => {
                cause.kind() == io::ErrorKind::NotFound
            }
            _ => false,
        }
    }
}
