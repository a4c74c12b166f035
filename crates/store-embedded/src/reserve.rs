//! The reserve: a file that takes disk space in good times and is removed when the disk is full, so
//! that a start, a deletion and a compaction have the space to give more of it back.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::disk::Disk;

/// Bytes of the reserve. A start writes MANIFEST and a part of the last log; a deletion writes 45
/// bytes for each record; sealing a head of 65,536 records of which most are deleted takes one or
/// two MiB. Twice that.
pub const RESERVE_BYTES: u64 = 4 << 20;
/// Bytes that must be free for the reserve to be made: as many are left as it takes.
const FREE_BYTES: u64 = 2 * RESERVE_BYTES;
/// Bytes that are written at once.
const CHUNK: usize = 256 << 10;
/// Bytes that must be free for a start; below that the reserve is given up.
pub(crate) const START_BYTES: u64 = 1 << 20;

const NAME: &str = "RESERVE";
const ASIDE: &str = "RESERVE.new";

/// The reserve of a data directory, which all of its shelves share.
pub struct DiskReserve {
    data: PathBuf,
    disk: Arc<dyn Disk>,
    /// Held while the file is made or removed.
    changing: Mutex<()>,
}

impl DiskReserve {
    /// The reserve of the directory `data`. Makes no file yet.
    pub fn new(data: &Path, disk: Arc<dyn Disk>) -> Self {
        Self { data: data.into(), disk, changing: Mutex::new(()) }
    }

    /// Makes the file, unless it is there or the disk has too little space for it.
    pub fn make(&self) -> io::Result<()> {
        let _changing = self.changing.lock();
        if self.is_there()? {
            return Ok(());
        }
        if self.disk.free(&self.data)? < FREE_BYTES {
            return Ok(());
        }
        let aside = self.data.join(ASIDE);
        self.write(&aside).inspect_err(|_| {
            // If this fails as well, the next attempt replaces the file.
            let _ = self.disk.remove(&aside);
        })
    }

    fn write(&self, aside: &Path) -> io::Result<()> {
        let mut file = self.disk.create(aside)?;
        // Random, since a file system that compresses would keep nothing free for zeros.
        let mut chunk = vec![0; CHUNK];
        for _ in 0..RESERVE_BYTES / CHUNK as u64 {
            getrandom::fill(&mut chunk).map_err(|error| io::Error::other(error.to_string()))?;
            file.write_all(&chunk)?;
        }
        file.sync()?;
        self.disk.rename(aside, &self.data.join(NAME))?;
        self.disk.sync_dir(&self.data)
    }

    /// Removes the file, and returns whether there was one.
    pub fn give_up(&self) -> io::Result<bool> {
        let _changing = self.changing.lock();
        match self.disk.remove(&self.data.join(NAME)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        }
        tracing::warn!(
            data = %self.data.display(),
            "the disk is full; the space that was reserved for this is used now"
        );
        Ok(true)
    }

    /// Gives the reserve up if less than `bytes` are free.
    pub(crate) fn give_up_below(&self, bytes: u64) -> io::Result<()> {
        if self.disk.free(&self.data)? < bytes {
            self.give_up()?;
        }
        Ok(())
    }

    /// Bytes that writes leave free: none while the reserve is there, and else its size. Only
    /// deletions and maintenance may use what the reserve gave back.
    pub(crate) fn missing(&self) -> u64 {
        if self.is_there().unwrap_or(true) { 0 } else { RESERVE_BYTES }
    }

    fn is_there(&self) -> io::Result<bool> {
        Ok(self.disk.list(&self.data)?.iter().any(|(name, _)| name == NAME))
    }
}
