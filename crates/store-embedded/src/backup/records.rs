//! The records of a backup, for a restore into a store without logs.

use std::path::{Path, PathBuf};

use hark_archive::Record;

use super::BackupError;
use super::catalog::{LogCopy, ShelfBackup};
use crate::disk::Disk;
use crate::log::{self, LogError, LogFrame};
use crate::map::{Map, unreadable};
use crate::repair::from_logs::DeletionMap;
use crate::segment::RecordAddress;

/// The directory with the logs of a shelf's backup.
#[derive(Clone, Copy)]
pub struct LogFolder<'a> {
    /// The disk.
    pub disk: &'a dyn Disk,
    /// The shelf's directory.
    pub shelf: &'a Path,
    /// Whether the logs have the names of an archive's logs, as in an unpacked backup.
    pub is_unpacked: bool,
}

impl LogFolder<'_> {
    /// Maps the backed-up bytes of a log.
    fn open(&self, copy: &LogCopy) -> Result<MappedCopy, BackupError> {
        let path = if self.is_unpacked {
            log::path(self.shelf, copy.number, copy.generation)
        } else {
            copy.path(self.shelf)
        };
        let map = log::map(self.disk, &path)?;
        if (map.len() as u64) < copy.bytes {
            return Err(BackupError::Copy(path));
        }
        Ok(MappedCopy { path, map, bytes: copy.bytes as usize })
    }
}

/// A log that is read from front to back.
struct MappedCopy {
    path: PathBuf,
    map: Map,
    bytes: usize,
}

impl MappedCopy {
    fn bytes(&self) -> &[u8] {
        self.map.get(..self.bytes).unwrap_or_default()
    }

    /// Fails if bytes could not be read.
    fn must_be_readable(&self) -> Result<(), BackupError> {
        let cause = if self.map.is_unreadable() { Err(unreadable()) } else { Ok(()) };
        cause.map_err(BackupError::io(&self.path))
    }
}

/// The copies of a shelf's logs, in the order of the logs. The parser of the catalog has checked
/// that each log has a copy.
fn copies(backup: &ShelfBackup) -> impl Iterator<Item = &LogCopy> {
    backup.manifest.logs.iter().filter_map(|entry| backup.copy_of(entry))
}

/// The deletions in the backup of a shelf, whose bytes have all been verified.
pub struct VerifiedShelf(DeletionMap);

/// Verifies each byte of a shelf's backup by its checksum, and reads the deletions. `progress`
/// receives the number of bytes of each log.
pub fn verify_records(
    backup: &ShelfBackup,
    folder: LogFolder<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<VerifiedShelf, BackupError> {
    let mut deletions = DeletionMap::none();
    for copy in copies(backup) {
        let mapped = folder.open(copy)?;
        if crc32c::crc32c(mapped.bytes()) != copy.crc {
            mapped.must_be_readable()?;
            return Err(BackupError::Copy(mapped.path));
        }
        each_frame(copy, &mapped.path, mapped.bytes(), &mut |at, frame| {
            if let LogFrame::Delete { id, log } = frame {
                deletions.add(id, log, at);
            }
            Ok::<_, BackupError>(())
        })?;
        mapped.must_be_readable()?;
        progress(copy.bytes);
    }
    Ok(VerifiedShelf(deletions))
}

/// Passes each record that the backup of a shelf has and that was not deleted to `each`, in the
/// order of the logs.
pub fn backed_up_records<E: From<BackupError>>(
    backup: &ShelfBackup,
    folder: LogFolder<'_>,
    verified: &VerifiedShelf,
    each: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    for copy in copies(backup) {
        let mapped = folder.open(copy)?;
        each_frame(copy, &mapped.path, mapped.bytes(), &mut |at, frame| match frame {
            LogFrame::Put(bytes) => match Record::new(bytes) {
                Ok(record) if !verified.0.hit(record.id(), at) => each(bytes),
                _ => Ok(()),
            },
            _ => Ok(()),
        })?;
        mapped.must_be_readable()?;
    }
    Ok(())
}

/// Passes each frame of a log to `each`, with the frame's address.
fn each_frame<E: From<BackupError>>(
    copy: &LogCopy,
    path: &Path,
    bytes: &[u8],
    each: &mut dyn FnMut(RecordAddress, LogFrame<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let LogCopy { number, generation, .. } = *copy;
    let salt = log::salt(bytes, number, generation)
        .ok_or_else(|| BackupError::from(LogError::Header { path: path.into() }))?;
    let (mut at, mut frames) = (log::HEADER as usize, Vec::new());
    while at < bytes.len() {
        let mut result = Ok(());
        let next = log::replay_batch(bytes, at, salt, &mut frames, &mut |offset, frame| {
            if result.is_ok() {
                // A log has at most 4 GiB.
                result = each(RecordAddress { log: number, offset: offset as u32 }, frame);
            }
        });
        result?;
        let damaged = || LogError::Damaged { path: path.into(), offset: at as u64 };
        at = next.ok_or_else(|| BackupError::from(damaged()))?;
    }
    Ok(())
}
