//! Restoring a shelf from its backup.

use std::path::Path;

use hark_archive::store::RetentionNote;

use super::BackupError;
use super::catalog::ShelfBackup;
use super::copy::pass;
use crate::disk::{Disk, make_dir};
use crate::engine::retention_notes;
use crate::log;
use crate::options::{EmbeddedOptions, JobProgress, OnProgress};
use crate::repair::rebuild::{RebuildResult, rebuild};

/// Restores a shelf from its backup in `from` into `shelf`, an empty or missing directory, and
/// rebuilds the segments. Every byte is verified by a checksum. The backup itself is not changed.
/// On return the shelf is durable, except that its directory may have no durable name yet.
pub fn restore(
    backup: &ShelfBackup,
    disk: &dyn Disk,
    from: &Path,
    shelf: &Path,
    options: &EmbeddedOptions,
    progress: OnProgress<'_>,
) -> Result<RebuildResult, BackupError> {
    let to = &*options.disk;
    let dir = shelf.join("log");
    make_dir(to, &dir).map_err(BackupError::io(&dir))?;
    let total = backup.manifest.logs.len() as u64;
    for (done, log) in backup.manifest.logs.iter().enumerate() {
        progress(JobProgress { what: "logs", done: done as u64, total });
        // The parser of the catalog has checked that each log has a copy.
        let Some(copy) = backup.copy_of(log) else { continue };
        let source = copy.path(from);
        let path = log::path(shelf, log.number, log.generation);
        let mut file = to.create(&path).map_err(BackupError::io(&path))?;
        let mut reader = disk.read(&source).map_err(BackupError::io(&source))?;
        let mut failed = None;
        let crc = pass(&mut *reader, copy.bytes, 0, &mut |piece| {
            file.write_all(piece).map_err(|cause| {
                failed = Some(cause);
                std::io::ErrorKind::WriteZero.into()
            })
        });
        if let Some(cause) = failed {
            return Err(BackupError::Io { path, cause });
        }
        match crc {
            Ok(crc) if crc == copy.crc => {}
            Err(cause) if cause.kind() != std::io::ErrorKind::UnexpectedEof => {
                return Err(BackupError::Io { path: source, cause });
            }
            _ => return Err(BackupError::Copy(source)),
        }
        file.sync().map_err(BackupError::io(&path))?;
    }
    restore_unpacked(backup, shelf, options, progress)
}

/// Holds the history of a restored shelf up to this time, as in the archive of the backup.
pub fn hold(disk: &dyn Disk, shelf: &Path, until: u64) -> Result<(), BackupError> {
    let held = retention_notes::write(disk, shelf, RetentionNote::HeldUntil, Some(until));
    held.map_err(BackupError::io(shelf))
}

/// Completes a shelf in the directory `shelf`, which already has the logs, and rebuilds the
/// segments. On return the shelf is durable, except that its directory may have no durable name
/// yet.
pub fn restore_unpacked(
    backup: &ShelfBackup,
    shelf: &Path,
    options: &EmbeddedOptions,
    progress: OnProgress<'_>,
) -> Result<RebuildResult, BackupError> {
    let to = &*options.disk;
    let segments = shelf.join("seg");
    make_dir(to, &segments).map_err(BackupError::io(&segments))?;
    let dir = shelf.join("log");
    to.sync_dir(&dir).map_err(BackupError::io(&dir))?;
    backup.manifest.write(to, shelf).map_err(BackupError::io(shelf))?;
    Ok(rebuild(shelf, options, progress)?)
}
