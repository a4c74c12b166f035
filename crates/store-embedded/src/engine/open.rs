//! Opens a shelf, for writing or only for reading.

use std::path::Path;
use std::sync::Arc;

use hark_archive::Store as _;
use hark_archive::effects::{KeepAll, Rules};

use super::embedded_store::EmbeddedStore;
use super::load::load;
use super::open_error::ShelfOpenError;
use super::shelf_dir::{existing_manifest, first_manifest, read_manifest, remove_orphans};
use crate::disk::{FailStopDisk, make_dir};
use crate::maintenance::erase::note_all_erasable;
use crate::maintenance::thread as maintenance_thread;
use crate::options::EmbeddedOptions;
use crate::repair::scrub::thread as scrub_thread;
use crate::space::reserve::START_BYTES;

impl EmbeddedStore {
    /// Opens a shelf for reading and writing. Creates the shelf if necessary. Only one process at a
    /// time may open a shelf for writing; see [`crate::DirectoryLock`].
    pub fn open(
        dir: &Path,
        rules: Box<dyn Rules>,
        mut options: EmbeddedOptions,
    ) -> Result<Self, ShelfOpenError> {
        options.disk = Arc::new(FailStopDisk::new(options.disk));
        let disk = Arc::clone(&options.disk);
        let reserve = options.reserve.clone();
        if let Some(reserve) = &reserve {
            // This call fails for a new archive, which has no directory yet. Any other cause of
            // failure also makes a later step fail, which reports the error.
            let _ = reserve.release_below(START_BYTES);
        }
        for dir in [dir, &dir.join("log"), &dir.join("seg")] {
            make_dir(&*disk, dir).map_err(ShelfOpenError::io(dir))?;
        }
        let manifest = match read_manifest(&*disk, dir)? {
            Some(manifest) => {
                // The process that wrote this manifest may have ended before the manifest's name
                // was durable. So the manifest is written again before files of the previous
                // manifest are removed.
                manifest.write(&*disk, dir).map_err(ShelfOpenError::io(dir))?;
                manifest
            }
            None => first_manifest(&*disk, dir)?,
        };
        remove_orphans(&*disk, dir, &manifest)?;
        let background = options.background;
        let mut notes = Vec::new();
        let loaded = load(dir, rules, options, manifest, Some(&mut notes));
        if loaded.is_err() || !notes.is_empty() {
            // A rebuild of segments, even if interrupted, leaves files of old segments. Files that
            // cannot be removed now are removed at the next start.
            let tidied = read_manifest(&*disk, dir)
                .and_then(|now| now.map_or(Ok(()), |now| remove_orphans(&*disk, dir, &now)));
            if loaded.is_ok() {
                tidied?;
            }
        }
        let shelf = Arc::new(loaded?);
        note_all_erasable(&shelf.jobs, &shelf.view.load());
        if let Some(reserve) = reserve
            && let Err(error) = reserve.make()
        {
            notes
                .push(format!("no space was reserved for the time when the disk is full: {error}"));
        }
        let thread = background.then(|| maintenance_thread::start(&shelf)).transpose();
        let thread = thread.map_err(ShelfOpenError::io(dir))?;
        if thread.is_none() {
            // Without a maintenance thread, heads that a crash left unsealed are sealed by the next
            // commit that begins a new head.
            shelf.jobs.call();
        }
        let store = Self { shelf, notes, refusal: None, thread, scrubs: None };
        // This call registers the shelf's disk space, so that the shelves of a directory know from
        // the start how much space each of them uses.
        store.stats();
        store.scrubbed(dir, background)
    }

    /// Opens a shelf that another process has [released](EmbeddedStore::release). Until
    /// [`EmbeddedStore::begin_writing`], this process writes nothing to the shelf: the other
    /// process may still resume writing.
    pub fn open_released(
        dir: &Path,
        rules: Box<dyn Rules>,
        mut options: EmbeddedOptions,
    ) -> Result<Self, ShelfOpenError> {
        options.disk = Arc::new(FailStopDisk::new(options.disk));
        let manifest = existing_manifest(&*options.disk, dir)?;
        let background = options.background;
        let shelf = Arc::new(load(dir, rules, options, manifest, None)?);
        note_all_erasable(&shelf.jobs, &shelf.view.load());
        shelf.jobs.pause(true);
        let thread = background.then(|| maintenance_thread::start(&shelf)).transpose();
        let thread = thread.map_err(ShelfOpenError::io(dir))?;
        let notes = Vec::new();
        Self { shelf, notes, refusal: None, thread, scrubs: None }.scrubbed(dir, background)
    }

    /// Starts the slow check if `background` is set. If the check cannot be started, the store is
    /// dropped, which ends the maintenance thread.
    fn scrubbed(mut self, dir: &Path, background: bool) -> Result<Self, ShelfOpenError> {
        if background {
            self.scrubs = scrub_thread::start(&self.shelf).map_err(ShelfOpenError::io(dir))?;
        }
        Ok(self)
    }

    /// Opens a snapshot of a shelf only for reading. A server may be writing to the shelf.
    #[allow(clippy::needless_pass_by_value)] // as in `open`
    pub fn open_read_only(dir: &Path, options: EmbeddedOptions) -> Result<Self, ShelfOpenError> {
        let read = || existing_manifest(&*options.disk, dir);
        let mut manifest = read()?;
        loop {
            let rules = Box::new(KeepAll);
            let error = match load(dir, rules, options.clone(), manifest.clone(), None) {
                Ok(shelf) => {
                    let shelf = Arc::new(shelf);
                    let notes = Vec::new();
                    return Ok(Self { shelf, notes, refusal: None, thread: None, scrubs: None });
                }
                Err(error) => error,
            };
            let now = read()?;
            if !error.is_stale() || now == manifest {
                return Err(error);
            }
            manifest = now;
        }
    }

    /// Opens a shelf only for reading, because it cannot currently be opened for writing. Each
    /// write fails with `why`, and [`Store::trouble`](hark_archive::Store::trouble) returns `why`.
    pub fn open_refusing(
        dir: &Path,
        options: EmbeddedOptions,
        why: String,
    ) -> Result<Self, ShelfOpenError> {
        let mut store = Self::open_read_only(dir, options)?;
        store.refusal = Some(why);
        Ok(store)
    }
}
