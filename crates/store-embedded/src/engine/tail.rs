//! The end of the log that is being written.

use std::io;
use std::time::Instant;

use hark_archive::meter::Histogram;

use crate::disk::DiskFile;
use crate::space::errors::is_full;

/// Maximum number of bytes per sync. A larger batch is written and synced in several pieces.
pub(crate) const SYNC_BYTES_MAX: usize = 32 << 20;
/// Minimum and maximum of the disk space that is reserved after the end of the log. Within these
/// bounds, a quarter of the log's length is reserved.
const AHEAD_MIN: u64 = 64 << 10;
const AHEAD_MAX: u64 = 4 << 20;

/// Why a batch was not appended.
pub(crate) enum AppendError {
    /// The disk is full. The file is unchanged, so a later batch may succeed.
    Full(io::Error),
    /// An error after which it is unknown whether the batch is in the file.
    Failed(io::Error),
}

/// The end of the log that is being written.
pub(crate) struct LogTail {
    file: Box<dyn DiskFile>,
    pub(crate) salt: u32,
    pub(crate) len: u64,
    /// Offset up to which disk space is reserved.
    reserved: u64,
    /// Whether a part of a batch was cut off after the last sync. After a power cut, the file may
    /// have this part again.
    is_cut: bool,
}

impl LogTail {
    /// Makes the end of a log from its file of `len` bytes.
    pub fn new(file: Box<dyn DiskFile>, salt: u32, len: u64) -> Self {
        Self { file, salt, len, reserved: len, is_cut: false }
    }

    /// Length of the log. All bytes up to here are durable.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether disk space for `bytes` more bytes is reserved.
    pub(crate) fn has_reserved(&self, bytes: u64) -> bool {
        self.len + bytes <= self.reserved
    }

    /// Reserves disk space for `bytes` more bytes, and some more for later batches. An error means
    /// that the disk is full. If the file system does not support reservations, the call succeeds,
    /// because there may be enough space.
    pub(crate) fn reserve_for(&mut self, bytes: u64) -> io::Result<()> {
        let end = self.len + bytes;
        if end <= self.reserved {
            return Ok(());
        }
        let ahead = end + (end / 4).clamp(AHEAD_MIN, AHEAD_MAX).max(bytes);
        for end in [ahead, end] {
            match self.file.reserve(self.len, end) {
                Ok(()) => {
                    self.reserved = end;
                    return Ok(());
                }
                Err(error) if !is_full(&error) => return Ok(()),
                Err(_) => {}
            }
        }
        Err(io::ErrorKind::StorageFull.into())
    }

    /// Appends a batch. On return the batch is durable.
    pub(crate) fn append(&mut self, batch: &[u8], syncs: &Histogram) -> Result<(), AppendError> {
        let end = self.len + batch.len() as u64;
        self.reserve_for(batch.len() as u64).map_err(AppendError::Full)?;
        if let Err(error) = self.file.write_all(batch) {
            // With quotas or copy-on-write, some file systems report the lack of space only now.
            let is_undone = is_full(&error) && self.file.cut(self.len).is_ok();
            (self.reserved, self.is_cut) = (self.len, true);
            return Err(if is_undone {
                AppendError::Full(error)
            } else {
                AppendError::Failed(error)
            });
        }
        let started = Instant::now();
        self.file.sync().map_err(AppendError::Failed)?;
        syncs.note(started.elapsed());
        self.is_cut = false;
        self.len = end;
        Ok(())
    }

    /// Makes sure that the file ends with the last whole batch. Only then may another log begin,
    /// because only the last log may have a torn end.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        if self.is_cut {
            self.file.sync()?;
            self.is_cut = false;
        }
        Ok(())
    }

    /// Releases the reserved disk space that was not used.
    pub(crate) fn finish(mut self) {
        // If this fails, the space is released when the log is opened again.
        let _ = self.file.reserve(self.len, self.len);
    }
}
