//! The reserve: a file that occupies disk space in normal times and is removed when the disk is
//! full. The removal gives a start, a deletion or a compaction enough space to free more.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hark_archive::store::DiskUse;
use parking_lot::Mutex;

use crate::disk::{Disk, DiskFile};

/// Length of a small archive's reserve. A start writes MANIFEST and a part of the last log, and a
/// deletion writes 45 bytes for each record. Sealing a head of 65,536 mostly deleted records takes
/// one or two MiB, and the reserve has twice this space.
pub const RESERVE_BYTES: u64 = 4 << 20;
/// Maximum length of the reserve. It suffices for segments of 8 million records.
const BYTES_MAX: u64 = 160 << 20;
/// Number of bytes that a rewrite writes in addition to sidecar files: MANIFEST and the end of a
/// copy.
const REWRITE_BYTES: u64 = 1 << 20;
/// Size of a write in bytes.
const CHUNK: usize = 256 << 10;
/// Minimum number of free bytes for a start. If fewer bytes are free, the start removes the
/// reserve.
pub(crate) const START_BYTES: u64 = 1 << 20;

const NAME: &str = "RESERVE";
const ASIDE: &str = "RESERVE.new";

/// The reserve of a data directory. All shelves of the directory share this reserve.
pub struct DiskReserve {
    data: PathBuf,
    disk: Arc<dyn Disk>,
    /// Locked while the file is created or removed.
    changing: Mutex<()>,
    /// The disk space of each shelf, by the shelf's directory.
    shelves: Mutex<BTreeMap<PathBuf, (ShelfSpace, LentBytes)>>,
}

/// Returns the number of bytes that the disk gets back from a shelf when the running job and the
/// present readers end. This number changes fast, so other shelves ask for the present number.
pub(crate) type LentBytes = Box<dyn Fn() -> u64 + Send + Sync>;

/// The disk space that a shelf uses, and the space that it needs in the reserve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShelfSpace {
    pub usage: DiskUse,
    /// Upper bound for the bytes of sidecar files that a rewrite of a log writes.
    pub sidecars: u64,
}

impl DiskReserve {
    /// Makes the reserve of the directory `data`. No file is created yet.
    pub fn new(data: &Path, disk: Arc<dyn Disk>) -> Self {
        Self { data: data.into(), disk, changing: Mutex::new(()), shelves: Mutex::default() }
    }

    /// Notes the disk space that a shelf uses, and returns the total of all shelves.
    pub(crate) fn note(&self, shelf: &Path, space: ShelfSpace, lent: LentBytes) -> DiskUse {
        let mut shelves = self.shelves.lock();
        shelves.insert(shelf.into(), (space, lent));
        let mut all = DiskUse::default();
        for (ShelfSpace { usage, .. }, lent) in shelves.values() {
            all.kept += usage.kept;
            all.reclaimable += usage.reclaimable + lent();
            all.free_wanted = all.free_wanted.max(usage.free_wanted);
        }
        all
    }

    /// Length of the reserve: twice the space that a rewrite needs, because deletions may use half
    /// of the reserve.
    pub(crate) fn bytes(&self) -> u64 {
        let sidecars = self.shelves.lock().values().map(|(space, _)| space.sidecars).max();
        let wanted = 2 * (sidecars.unwrap_or_default() + REWRITE_BYTES);
        wanted.clamp(RESERVE_BYTES, BYTES_MAX)
    }

    /// Creates the file, unless it exists and is large enough, or the disk has too little space.
    pub fn make(&self) -> io::Result<()> {
        let _changing = self.changing.lock();
        let bytes = self.bytes();
        let len = self.len()?;
        // A slightly smaller file suffices. Otherwise the file would be extended again and again
        // while the archive grows.
        if len.is_some_and(|len| len >= bytes / 4 * 3) {
            return Ok(());
        }
        // The disk must have twice the length of the reserve free.
        if self.disk.free(&self.data)? < 2 * bytes {
            return Ok(());
        }
        let path = self.data.join(NAME);
        if let Some(len) = len {
            // A second file of the new length would use space that retention would then free.
            return fill(self.disk.append(&path, len, len)?, bytes - len);
        }
        let aside = self.data.join(ASIDE);
        let written = self.disk.create(&aside).and_then(|file| fill(file, bytes));
        written.and_then(|()| self.disk.replace(&aside, &path)).inspect_err(|_| {
            // If the removal fails, too, the next attempt replaces the file.
            let _ = self.disk.remove(&aside);
        })
    }

    /// Removes the file. Returns whether the file existed.
    pub fn remove_file(&self) -> io::Result<bool> {
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

    /// Removes the reserve if fewer than `bytes` bytes are free.
    pub(crate) fn release_below(&self, bytes: u64) -> io::Result<()> {
        if self.disk.free(&self.data)? < bytes {
            self.remove_file()?;
        }
        Ok(())
    }

    /// Number of bytes that a write must leave free: 0 while the reserve exists, and the length of
    /// the reserve after it was removed. Only deletions and maintenance may use the space of the
    /// removed reserve.
    pub(crate) fn missing(&self) -> u64 {
        // If the directory cannot be listed, the reserve is assumed to exist.
        let is_there = self.len().map_or(true, |len| len.is_some());
        if is_there { 0 } else { self.bytes() }
    }

    /// Length of the file, if the file exists.
    fn len(&self) -> io::Result<Option<u64>> {
        let files = self.disk.list(&self.data)?;
        Ok(files.into_iter().find(|(name, _)| name == NAME).map(|(_, len)| len))
    }
}

/// Appends at least `bytes` bytes to a file, and syncs the file. The bytes are random, because a
/// file system with compression would allocate no space for zeros.
fn fill(mut file: Box<dyn DiskFile>, bytes: u64) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    for _ in 0..bytes.div_ceil(CHUNK as u64) {
        getrandom::fill(&mut chunk).map_err(|error| io::Error::other(error.to_string()))?;
        file.write_all(&chunk)?;
    }
    file.sync()
}

#[cfg(test)]
mod tests {
    use hark_testkit::disk::scratch;

    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn a_reserve_grows_in_place() {
        let data = scratch("reserve-grows");
        std::fs::create_dir_all(&data).unwrap();
        let reserve = DiskReserve::new(&data, Arc::new(RealDisk));
        reserve.make().unwrap();
        assert_eq!(reserve.len().unwrap(), Some(RESERVE_BYTES));
        // With this directory, a second file cannot be created.
        std::fs::create_dir(data.join(ASIDE)).unwrap();
        let space = ShelfSpace { sidecars: 3 << 20, ..ShelfSpace::default() };
        reserve.note(&data, space, Box::new(|| 0));
        reserve.make().unwrap();
        assert_eq!(reserve.len().unwrap(), Some(2 * RESERVE_BYTES));
        std::fs::remove_dir_all(&data).unwrap();
    }
}
