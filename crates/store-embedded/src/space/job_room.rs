//! Disk space for the jobs of maintenance. A job begins only if its files fit, and stops before it
//! uses the space that the writer needs. If a job left no free space, the writer would stop until a
//! restart.

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::pressure::lacks_space;
use crate::disk::{Disk, DiskFile};
use crate::engine::files::ShelfFiles;
use crate::maintenance::jobs::ShelfJobs;
use crate::map::Map;

/// Number of bytes that a merge leaves free: as many as the largest sync writes. A merge can be
/// postponed.
pub(crate) const BESIDE_MERGES: u64 = 32 << 20;
/// Number of bytes that sealing and rewriting leave free: twice as many as the writer reserves in
/// advance. These jobs free memory or disk space, so they may use more of the disk than merges.
pub(crate) const BESIDE_OTHERS: u64 = 8 << 20;

/// The files of a job do not fit on the disk.
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
    /// Maximum number of bytes that the job writes.
    pub needs: u64,
    /// Number of bytes that must stay free.
    pub beside: u64,
    /// Number of bytes that are free.
    pub free: u64,
}

/// Number of bytes that the jobs of a requested compaction leave free: enough for a manifest. A
/// compaction may use nearly all space, because an operator requests a compaction to free space.
const BESIDE_COMPACTION: u64 = 128 << 10;

/// Returns a disk for a job that writes at most `needs` bytes and leaves `beside` bytes free.
/// Returns an error if fewer than `needs` plus `beside` bytes are free.
pub(crate) fn room_for(
    (files, jobs): (&ShelfFiles, &ShelfJobs),
    job: &'static str,
    beside: u64,
    needs: u64,
) -> io::Result<ReservingDisk> {
    let disk = Arc::clone(&files.options().disk);
    let gives_space = jobs.space().is_compacting() || lacks_space(files);
    let beside = match files.bounds().free_bytes_min {
        _ if gives_space => BESIDE_COMPACTION,
        0 => beside,
        // Retention deletes nothing while `free_bytes_min` bytes are free. If jobs had to leave as
        // many bytes free, both could stop.
        free_min => beside.min(free_min / 2),
    };
    let written = jobs.space().begin_job();
    let room = ReservingDisk { disk, dir: files.dir().into(), job, beside, written };
    room.check(needs)?;
    Ok(room)
}

/// A number of bytes, formatted for people.
pub(crate) struct ByteSize<'a>(pub &'a u64);

impl fmt::Display for ByteSize<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB", *self.0 as f64 / f64::from(1 << 20))
    }
}

/// A disk on which a job must leave some space free.
#[derive(Clone)]
pub(crate) struct ReservingDisk {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    job: &'static str,
    /// Number of bytes that the job leaves free.
    beside: u64,
    /// Number of bytes that the job has written.
    written: Arc<AtomicU64>,
}

impl ReservingDisk {
    /// Returns an error unless `needs` bytes fit on the disk.
    fn check(&self, needs: u64) -> io::Result<()> {
        let (free, beside) = (self.disk.free(&self.dir)?, self.beside);
        if free >= needs.saturating_add(beside) {
            return Ok(());
        }
        let no_room = NoSpace { job: self.job, dir: self.dir.clone(), needs, beside, free };
        Err(io::Error::new(io::ErrorKind::StorageFull, no_room))
    }
}

/// The disk that a job uses. It fails like a full disk before the job uses the space that must stay
/// free, even if the job's estimate was wrong or other programs write at the same time.
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

    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.replace(from, to)
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
        let len = bytes.len() as u64;
        self.room.check(len)?;
        // The bytes are counted first, so that retention never misses bytes that the disk lacks.
        self.room.written.fetch_add(len, Ordering::Relaxed);
        self.file.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()
    }

    fn reserve(&mut self, len: u64, end: u64) -> io::Result<()> {
        self.file.reserve(len, end)
    }

    fn cut(&mut self, len: u64) -> io::Result<()> {
        self.file.cut(len)
    }
}
