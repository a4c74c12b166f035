//! Disk space for the jobs of maintenance. A job begins only if its files fit, and stops before it
//! uses the space that the writer needs. If a job left no free space, the writer would stop until a
//! restart.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::errors::NoSpace;
use super::rule::{JobSpace, SpaceState, SpaceUse};
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

/// Returns a disk for a job. Returns an error if the job's files do not fit.
pub(crate) fn room_for(
    (files, jobs): (&ShelfFiles, &ShelfJobs),
    job: &JobSpace,
) -> io::Result<ReservingDisk> {
    let disk = Arc::clone(&files.options().disk);
    let beside = SpaceState::read(files, jobs)?.beside(SpaceUse::Job(job));
    let written = jobs.space().begin_job();
    let room = ReservingDisk { disk, dir: files.dir().into(), job: job.name, beside, written };
    room.check(job.needs)?;
    Ok(room)
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
