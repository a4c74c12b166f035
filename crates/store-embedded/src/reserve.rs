//! The reserve: a file that takes disk space in good times and is removed when the disk is full, so
//! that a start, a deletion and a compaction have the space to give more of it back.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hark_archive::store::DiskUse;
use parking_lot::Mutex;

use crate::disk::Disk;

/// Bytes of a small archive's reserve. A start writes MANIFEST and a part of the last log; a deletion
/// writes 45 bytes for each record; sealing a head of 65,536 records of which most are deleted takes
/// one or two MiB. Twice that.
pub const RESERVE_BYTES: u64 = 4 << 20;
/// Most bytes of the reserve, for segments of 8 million records.
const BYTES_MAX: u64 = 160 << 20;
/// Bytes beside the sidecar files that a rewrite writes: its MANIFEST and the end of a copy.
const REWRITE_BYTES: u64 = 1 << 20;
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
    /// What each shelf takes of the disk, by its directory.
    shelves: Mutex<BTreeMap<PathBuf, ShelfSpace>>,
}

/// What a shelf takes of the disk, and what it needs of the reserve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShelfSpace {
    pub usage: DiskUse,
    /// Bytes of the sidecar files that a rewrite of a log writes at most.
    pub sidecars: u64,
}

impl DiskReserve {
    /// The reserve of the directory `data`. Makes no file yet.
    pub fn new(data: &Path, disk: Arc<dyn Disk>) -> Self {
        Self { data: data.into(), disk, changing: Mutex::new(()), shelves: Mutex::default() }
    }

    /// Notes what a shelf takes, and returns what all shelves take together.
    pub(crate) fn note(&self, shelf: &Path, space: ShelfSpace) -> DiskUse {
        let mut shelves = self.shelves.lock();
        shelves.insert(shelf.into(), space);
        let mut all = DiskUse::default();
        for ShelfSpace { usage, .. } in shelves.values() {
            all.kept += usage.kept;
            all.reclaimable += usage.reclaimable;
        }
        all
    }

    /// Bytes of the reserve: twice what a rewrite needs, as deletions use up to a half of it.
    pub(crate) fn bytes(&self) -> u64 {
        let sidecars = self.shelves.lock().values().map(|space| space.sidecars).max();
        let wanted = 2 * (sidecars.unwrap_or_default() + REWRITE_BYTES);
        wanted.clamp(RESERVE_BYTES, BYTES_MAX)
    }

    /// Makes the file, unless it is there and large enough, or the disk has too little space for it.
    pub fn make(&self) -> io::Result<()> {
        let _changing = self.changing.lock();
        let bytes = self.bytes();
        // The archive grows all the time; a file that is a little too small does.
        if self.len()?.is_some_and(|len| len >= bytes / 4 * 3) {
            return Ok(());
        }
        // As many are left as it takes.
        if self.disk.free(&self.data)? < 2 * bytes {
            return Ok(());
        }
        let aside = self.data.join(ASIDE);
        self.write(&aside, bytes).inspect_err(|_| {
            // If this fails as well, the next attempt replaces the file.
            let _ = self.disk.remove(&aside);
        })
    }

    fn write(&self, aside: &Path, bytes: u64) -> io::Result<()> {
        let mut file = self.disk.create(aside)?;
        // Random, since a file system that compresses would keep nothing free for zeros.
        let mut chunk = vec![0; CHUNK];
        for _ in 0..bytes.div_ceil(CHUNK as u64) {
            getrandom::fill(&mut chunk).map_err(|error| io::Error::other(error.to_string()))?;
            file.write_all(&chunk)?;
        }
        file.sync()?;
        self.disk.replace(aside, &self.data.join(NAME))
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
        // A directory that cannot be listed says nothing.
        let is_there = self.len().map_or(true, |len| len.is_some());
        if is_there { 0 } else { self.bytes() }
    }

    /// Bytes of the file, if it is there.
    fn len(&self) -> io::Result<Option<u64>> {
        let files = self.disk.list(&self.data)?;
        Ok(files.into_iter().find(|(name, _)| name == NAME).map(|(_, len)| len))
    }
}
