//! Disk space for maintenance. A job begins only if it fits, and stops before it takes the space
//! that the writer needs: a disk that is full to its last byte stops the writer until a restart.

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hark_archive::limits::ERASE_STEP;
use hark_archive::{CommitError, Write};
use parking_lot::Mutex;

use crate::disk::{Disk, DiskFile};
use crate::log::{FRAME, LogFrame};
use crate::map::Map;
use crate::shelf::{EmbeddedShelf, LogWriterState};

/// Bytes that stay free beside a merge, which can wait: as many as the largest sync has.
pub(crate) const BESIDE_MERGES: u64 = 32 << 20;
/// Bytes that stay free beside sealing and rewriting, which give back memory and disk space and so
/// may use more of the disk: twice what the writer reserves ahead.
pub(crate) const BESIDE_OTHERS: u64 = 8 << 20;

/// A job does not fit on the disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is not enough room in {dir} for {job}: it needs {}, {} must stay free beside it, and {} \
     are free", ByteSize(.needs), ByteSize(.beside), ByteSize(.free)
)]
pub struct NoSpace {
    /// The job.
    pub job: &'static str,
    /// The shelf.
    pub dir: PathBuf,
    /// Bytes that the job writes at most.
    pub needs: u64,
    /// Bytes that must stay free.
    pub beside: u64,
    /// Bytes that are free.
    pub free: u64,
}

/// Bytes that stay free beside the jobs of a compaction that somebody asked for, who wants space
/// more than anything else: enough for a manifest.
pub(crate) const BESIDE_COMPACTION: u64 = 128 << 10;
/// Bytes that stay free beside a batch: enough for a manifest and the header of a log.
const BESIDE_WRITES: u64 = 128 << 10;
/// Bytes that the writer needs beside the records of a batch: for the most deletions that a step
/// has, with those of replaced records.
const DELETIONS: u64 = 2 * ERASE_STEP as u64 * LogFrame::DELETE_BYTES;

/// What is known of the disk's space.
#[derive(Debug, Default)]
pub(crate) struct DiskSpace {
    /// Why a batch was refused for lack of space; `None` once there is space again.
    lacking: Mutex<Option<String>>,
    /// Whether a compaction is under way that somebody asked for.
    pub compacting: AtomicBool,
}

impl DiskSpace {
    /// Why batches are refused for lack of space, while that is so.
    pub(crate) fn lacking(&self) -> Option<String> {
        self.lacking.lock().clone()
    }

    /// Notes that a batch is refused for lack of space, and returns the error.
    pub(crate) fn lacks(&self, why: &str) -> CommitError {
        let words = format!("the disk is full: {why}");
        *self.lacking.lock() = Some(words.clone());
        CommitError::Unavailable(words)
    }
}

impl EmbeddedShelf {
    /// Returns an error unless there is space for a batch. A batch with a deletion may use what the
    /// reserve gives back. Nothing of the batch has been written.
    pub(crate) fn check_space(
        &self,
        writing: &LogWriterState,
        writes: &[Write],
    ) -> Result<(), CommitError> {
        let bytes = |write: &Write| match write {
            Write::Put(record) => (FRAME + record.len()) as u64,
            Write::Erase(_) => 0,
        };
        let needs = writes.iter().map(bytes).sum::<u64>() + DELETIONS;
        if writing.tail.as_ref().is_some_and(|tail| tail.has_reserved(needs)) {
            return Ok(());
        }
        let deletes = writes.iter().any(|write| matches!(write, Write::Erase(_)));
        // Where the disk does not say what is free, the write itself finds out.
        let Ok(lack) = self.lack(needs, deletes) else { return Ok(()) };
        if lack == 0 {
            return Ok(());
        }
        if deletes
            && let Some(reserve) = &self.options.reserve
            && reserve.give_up().is_ok_and(|given_up| given_up)
            && self.lack(needs, true).is_ok_and(|lack| lack == 0)
        {
            return Ok(());
        }
        self.call_maintenance();
        Err(self.space.lacks(&format!(
            "{} more must be free in {} for new records; deletions and `hark compact` give room back",
            ByteSize(&lack),
            self.dir.display()
        )))
    }

    /// Bytes that must become free before a batch of `needs` bytes fits.
    fn lack(&self, needs: u64, deletes: bool) -> io::Result<u64> {
        let free = self.options.disk.free(&self.dir)?;
        let reserve = self.options.reserve.as_ref().filter(|_| !deletes);
        let kept = reserve.map_or(0, |reserve| reserve.missing());
        Ok((needs + BESIDE_WRITES + kept).saturating_sub(free))
    }

    /// Looks whether there is space again after a batch was refused, and makes the reserve again.
    pub(crate) fn look_for_space(&self) {
        if let Some(reserve) = &self.options.reserve
            && let Err(error) = reserve.make()
        {
            tracing::debug!(%error, "the reserve is not made again yet");
        }
        if self.space.lacking().is_some() && self.lack(DELETIONS, false).is_ok_and(|lack| lack == 0)
        {
            *self.space.lacking.lock() = None;
            if let Some(wake) = &*self.wake.lock() {
                wake();
            }
        }
    }
}

/// A number of bytes, for people.
struct ByteSize<'a>(&'a u64);

impl fmt::Display for ByteSize<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB", *self.0 as f64 / f64::from(1 << 20))
    }
}

/// A disk on which a job leaves space free for others.
#[derive(Clone)]
pub(crate) struct ReservingDisk {
    pub disk: Arc<dyn Disk>,
    pub dir: PathBuf,
    pub job: &'static str,
    /// Bytes that the job leaves free.
    pub beside: u64,
}

impl ReservingDisk {
    /// Returns an error unless `needs` bytes fit.
    pub(crate) fn check(&self, needs: u64) -> io::Result<()> {
        let (free, beside) = (self.disk.free(&self.dir)?, self.beside);
        if free >= needs.saturating_add(beside) {
            return Ok(());
        }
        let no_room = NoSpace { job: self.job, dir: self.dir.clone(), needs, beside, free };
        Err(io::Error::new(io::ErrorKind::StorageFull, no_room))
    }
}

/// Whether an error says that the disk is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The disk as a job sees it: full before the space kept for others is used, whatever was estimated
/// and whatever else is written meanwhile.
impl Disk for ReservingDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = self.disk.create(path)?;
        Ok(Box::new(ReservingFile { file, room: self.clone() }))
    }

    fn append(&self, path: &Path, sure: u64, len: u64) -> io::Result<Box<dyn DiskFile>> {
        self.disk.append(path, sure, len)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.sync_dir(path)
    }

    fn free(&self, path: &Path) -> io::Result<u64> {
        self.disk.free(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<(String, u64)>> {
        self.disk.list(path)
    }

    fn read(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        self.disk.read(path)
    }

    fn map_sequential(&self, path: &Path) -> io::Result<Map> {
        self.disk.map_sequential(path)
    }

    fn map(&self, path: &Path, reserve: Option<usize>) -> io::Result<Map> {
        self.disk.map(path, reserve)
    }
}

struct ReservingFile {
    file: Box<dyn DiskFile>,
    room: ReservingDisk,
}

impl DiskFile for ReservingFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.room.check(bytes.len() as u64)?;
        self.file.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()
    }

    fn reserve(&mut self, len: u64, end: u64) -> io::Result<()> {
        self.file.reserve(len, end)
    }
}
