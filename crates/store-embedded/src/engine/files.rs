//! The files of an open shelf: their directory, the ways to open them, and the bounds of their disk
//! space.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use hark_archive::store::SpaceBounds;

use super::open_error::ShelfOpenError;
use super::shelf_dir::random_u32;
use super::tail::LogTail;
use crate::damage::DamagedRecords;
use crate::disk::Disk;
use crate::head::Head;
use crate::log::{self, Log};
use crate::manifest::{Manifest, SegmentEntry};
use crate::options::EmbeddedOptions;
use crate::segment::marks::RowMarks;
use crate::segment::open::open_segment;
use crate::segment::opened::Segment;
use crate::term::TermHasher;

/// The files of a shelf.
pub(crate) struct ShelfFiles {
    dir: PathBuf,
    options: EmbeddedOptions,
    /// The current bounds; at the start, the bounds in `options`.
    bounds: ArcSwap<SpaceBounds>,
    terms: TermHasher,
    damage: Arc<DamagedRecords>,
    written_bytes: AtomicU64,
}

impl ShelfFiles {
    pub(super) fn new(
        dir: &Path,
        options: EmbeddedOptions,
        terms: TermHasher,
        damage: Arc<DamagedRecords>,
    ) -> Self {
        Self {
            dir: dir.into(),
            bounds: ArcSwap::from_pointee(options.space_bounds()),
            options,
            terms,
            damage,
            written_bytes: AtomicU64::new(0),
        }
    }

    /// The shelf's directory.
    #[inline]
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    #[inline]
    pub(crate) fn disk(&self) -> &dyn Disk {
        &*self.options.disk
    }

    #[inline]
    pub(crate) fn options(&self) -> &EmbeddedOptions {
        &self.options
    }

    #[inline]
    pub(crate) fn terms(&self) -> &TermHasher {
        &self.terms
    }

    /// Records that could not be read.
    pub(crate) fn damage(&self) -> &DamagedRecords {
        &self.damage
    }

    /// The bounds of disk space. They can change while the shelf is open.
    #[inline]
    pub(crate) fn bounds(&self) -> SpaceBounds {
        **self.bounds.load()
    }

    /// Sets the bounds of the space. Returns whether the bounds have changed.
    pub(crate) fn set_bounds(&self, bounds: &SpaceBounds) -> bool {
        let is_new = self.bounds() != *bounds;
        if is_new {
            self.bounds.store(Arc::new(*bounds));
        }
        is_new
    }

    /// Free bytes of the disk.
    pub(crate) fn free_bytes(&self) -> io::Result<u64> {
        self.options.disk.free(&self.dir)
    }

    /// Number of bytes written to the shelf's files since the shelf was opened.
    #[inline]
    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn note_written(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Creates a log file with a durable header and returns its tail.
    pub(super) fn new_log(&self, number: u32) -> io::Result<LogTail> {
        let salt = random_u32()?;
        let mut file = self.options.disk.create(&log::path(&self.dir, number, 0))?;
        file.write_all(&log::header(number, 0, salt))?;
        file.sync()?;
        self.options.disk.sync_dir(&self.dir.join("log"))?;
        Ok(LogTail::new(file, salt, log::HEADER))
    }

    /// Opens a log for reading while it is being written.
    pub(crate) fn open_growing(
        &self,
        number: u32,
        generation: u32,
        len: u64,
    ) -> io::Result<Arc<Log>> {
        let log = Log::open(self.disk(), &self.dir, (number, generation), len, true)?;
        Ok(Arc::new(log.noting_in(&self.damage)))
    }

    /// Makes an empty head for a log.
    pub(super) fn new_head(&self, log: Arc<Log>, base: u64) -> Arc<Head> {
        Arc::new(Head::new(log, self.terms.clone(), base, self.options.rows_expected()))
    }

    /// Opens a segment through `disk`. `dead` contains the segment's dead rows if they are already
    /// loaded.
    pub(crate) fn open_segment(
        &self,
        disk: &dyn Disk,
        entry: &SegmentEntry,
        manifest: &Manifest,
        dead: Option<Arc<RowMarks>>,
    ) -> Result<Segment, ShelfOpenError> {
        let terms = self.terms.clone();
        open_segment((disk, &self.dir), entry, manifest, terms, dead, &self.damage)
    }

    /// Length of a file in the directory of the logs.
    pub(super) fn log_file_bytes(&self, path: &Path) -> io::Result<u64> {
        let name = path.file_name().unwrap_or_default();
        let files = self.options.disk.list(&self.dir.join("log"))?;
        let found = files.into_iter().find(|(file, _)| **file == *name);
        found.map(|(_, bytes)| bytes).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}
