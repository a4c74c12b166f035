//! Reading and continuing copies of logs. Checksums are verified while a copy is read.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::BackupError;
use super::catalog::{BackupCatalog, LogCopy};
use crate::disk::{Disk, DiskFile};

/// Size of a read in bytes.
const PIECE: usize = 1 << 20;

/// Reads `bytes` bytes, passes each piece to `each`, and returns `crc` extended by these bytes
/// (CRC32C). If the file ends earlier, the result is an error.
pub(super) fn pass(
    from: &mut dyn Read,
    bytes: u64,
    mut crc: u32,
    each: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<u32> {
    let mut piece = vec![0; PIECE.min(bytes as usize)];
    let mut left = bytes;
    while left > 0 {
        let size = left.min(PIECE as u64) as usize;
        let piece = &mut piece[..size];
        from.read_exact(piece)?;
        crc = crc32c::crc32c_append(crc, piece);
        each(piece)?;
        left -= size as u64;
    }
    Ok(crc)
}

/// A log that is read from the front while it is copied.
pub(super) struct BackedUpLog {
    pub(super) from: Box<dyn Read + Send>,
    pub(super) path: PathBuf,
    /// Length of the log up to the end of its last whole batch.
    pub(super) bytes: u64,
}

impl BackedUpLog {
    /// Reads as many bytes as the copy has, and returns whether they equal the copy.
    pub(super) fn begins_with(&mut self, copy: &LogCopy) -> Result<bool, BackupError> {
        if copy.bytes > self.bytes {
            return Ok(false);
        }
        let crc = pass(&mut *self.from, copy.bytes, 0, &mut |_| Ok(()));
        Ok(crc.map_err(BackupError::io(&self.path))? == copy.crc)
    }

    /// Writes all bytes of the log after the first `copied` bytes to a file. The caller syncs the
    /// file. Returns the CRC32C of all bytes; `crc` is the CRC32C of the first `copied` bytes.
    /// `progress` receives the length of each piece.
    pub(super) fn write_remaining(
        &mut self,
        (copied, crc): (u64, u32),
        (to, path): (&mut dyn DiskFile, &Path),
        progress: &mut dyn FnMut(u64),
    ) -> Result<u32, BackupError> {
        let mut failed = None;
        let crc = pass(&mut *self.from, self.bytes - copied, crc, &mut |piece| {
            progress(piece.len() as u64);
            to.write_all(piece).map_err(|cause| {
                failed = Some(cause);
                io::ErrorKind::WriteZero.into()
            })
        });
        match (crc, failed) {
            (_, Some(cause)) => Err(BackupError::Io { path: path.into(), cause }),
            (Err(cause), None) => Err(BackupError::Io { path: self.path.clone(), cause }),
            (Ok(crc), None) => Ok(crc),
        }
    }
}

/// Reads all copies of a backup and returns the paths of damaged copies. `progress` receives the
/// length of each piece that was read.
pub fn damaged_copies(
    disk: &dyn Disk,
    dir: &Path,
    catalog: &BackupCatalog,
    progress: &mut dyn FnMut(u64),
) -> Vec<PathBuf> {
    let mut damaged = Vec::new();
    for shelf in &catalog.shelves {
        for copy in &shelf.copies {
            let path = copy.path(&dir.join(&shelf.name));
            let read = disk.read(&path).and_then(|mut file| {
                pass(&mut *file, copy.bytes, 0, &mut |piece| {
                    progress(piece.len() as u64);
                    Ok(())
                })
            });
            if !read.is_ok_and(|crc| crc == copy.crc) {
                damaged.push(path);
            }
        }
    }
    damaged
}
