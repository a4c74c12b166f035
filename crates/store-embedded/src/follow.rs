//! Handing a shelf over to another process, and following what that process writes.
//!
//! The log is all that is needed: the following process reads the batches that the writing process
//! has synced, from the map it has open already, and applies them as a start does. So both
//! processes see the same records, each with sequence numbers of its own.

use std::io;
use std::path::Path;
use std::sync::Arc;

use hark_archive::Record;
use hark_archive::query::prepared::TermMap as _;
use hark_archive::store::LogPosition;

use crate::log::{self, LogFrame};
use crate::manifest::{Manifest, ManifestError};
use crate::open::named;
use crate::shelf::EmbeddedShelf;
use crate::store::EmbeddedStore;
use crate::tail::LogTail;
use crate::term::TermBuffers;
use crate::view::{LiveRow, ShelfView};

/// Why a shelf was not handed over, or is no longer followed.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// Writing to the shelf has stopped before.
    #[error("the archive takes no more writes: {0}")]
    Stopped(String),
    /// The shelf was opened for reading, or handed over before.
    #[error("this process does not write the archive")]
    NotWriting,
    /// One process has changed the shelf that it had left to the other.
    #[error("another process has changed the archive meanwhile")]
    Changed,
    /// The log is not what the other process says.
    #[error("log {log} is not whole up to byte {bytes}")]
    NotWhole {
        /// Which log.
        log: u32,
        /// The length that the other process says the log has.
        bytes: u64,
    },
    /// More records were followed than may be kept in memory.
    #[error("{records} records have come since: more than are followed ({records_max})")]
    TooMany {
        /// Records since the shelf was handed over.
        records: u64,
        /// The most records allowed.
        records_max: u64,
    },
    /// A file could not be read.
    #[error("the log could not be read: {0}")]
    Io(#[from] io::Error),
    /// The manifest could not be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// What a process keeps of a shelf that it has released, to resume writing.
pub(crate) struct ReleasedShelf {
    tail: LogTail,
    /// The manifest on the disk. The one in memory also has the numbers that failed jobs have used.
    manifest: Option<Manifest>,
}

impl EmbeddedStore {
    /// Pauses or resumes maintenance. To pause, it waits until the current job has ended.
    pub fn rest(&self, rest: bool) {
        let mut signal = self.shelf.signal.lock();
        signal.resting = rest;
        signal.work |= !rest;
        drop(signal);
        self.shelf.signalled.notify_all();
        if rest {
            drop(self.shelf.maintenance.lock());
        }
    }

    /// Stops writing, so that another process can open the shelf and write. Maintenance must be
    /// paused.
    pub fn release(&self) -> Result<LogPosition, FollowError> {
        let mut writing = self.shelf.writing.lock();
        if let Some(reason) = &writing.stopped {
            return Err(FollowError::Stopped(reason.clone()));
        }
        let manifest = self.shelf.manifest_on_disk()?;
        let tail = writing.tail.take().ok_or(FollowError::NotWriting)?;
        writing.released = Some(ReleasedShelf { tail, manifest });
        writing.searches.forget();
        drop(writing);
        Ok(self.end())
    }

    /// Resumes writing after [`EmbeddedStore::release`], if the other process has written nothing, which
    /// is checked here. The caller makes sure that the other process never will.
    pub fn resume(&self) -> Result<(), FollowError> {
        let mut writing = self.shelf.writing.lock();
        let released = writing.released.take().ok_or(FollowError::NotWriting)?;
        match self.shelf.is_unchanged(released.manifest.as_ref(), released.tail.len()) {
            Ok(true) => writing.tail = Some(released.tail),
            other => {
                let error = other.err().unwrap_or(FollowError::Changed);
                writing.stopped = Some(error.to_string());
                return Err(error);
            }
        }
        drop(writing);
        self.rest(false);
        Ok(())
    }

    /// Begins to write the shelf that [`EmbeddedStore::open_released`] has opened; the process that
    /// released it no longer writes. Maintenance is paused until [`EmbeddedStore::rest`] resumes it.
    pub fn take(&self) -> Result<(), FollowError> {
        let shelf = &self.shelf;
        let mut writing = shelf.writing.lock();
        let manifest = shelf.manifest.lock();
        let log = Arc::clone(&shelf.view.load().active.log);
        let len = log.written();
        // If that process has resumed writing after all, this one is too late.
        if !shelf.is_unchanged(Some(&*manifest), len)? {
            return Err(FollowError::Changed);
        }
        // Every sync of that process has succeeded, so nothing of the log need be written again.
        let path = log::path(&shelf.dir, log.number, log.generation);
        let file = shelf.options.disk.append(&path, len, len)?;
        writing.tail = Some(LogTail::new(file, log.salt(), len));
        Ok(())
    }

    /// Notes where another process follows this one from; `None` if none does. The logs that the
    /// follower has to read are not rewritten.
    pub fn followed(&self, from: Option<LogPosition>) {
        self.shelf.signal.lock().followed_from = from.map(|mark| mark.log);
    }

    /// The end of the log: up to here it is durable, and visible to readers of this process.
    pub fn end(&self) -> LogPosition {
        let view = self.shelf.view.load();
        let log = &view.active.log;
        LogPosition { log: log.number, bytes: log.written() }
    }

    /// Reads what another process has written up to `to`, since [`EmbeddedStore::release`] or the last
    /// call. Readers see the new records, and `each` receives every record with its sequence
    /// number. More than `records_max` records in all are an error, since they are kept in memory.
    pub fn follow(
        &self,
        to: LogPosition,
        records_max: u64,
        each: &mut dyn FnMut(u64, &Record<'_>),
    ) -> Result<(), FollowError> {
        let shelf = &self.shelf;
        // Held so that no second thread follows; no thread writes.
        let mut writing = shelf.writing.lock();
        if writing.tail.is_some() {
            return Err(FollowError::NotWriting);
        }
        loop {
            let view = shelf.view.load_full();
            let number = view.active.log.number;
            if number > to.log {
                return Ok(());
            }
            // A log that is no longer written is complete.
            let bytes = if number == to.log { to.bytes } else { shelf.log_bytes(number)? };
            writing.followed += shelf.take_in(&view, bytes, each)?;
            if writing.followed > records_max {
                let records = writing.followed;
                return Err(FollowError::TooMany { records, records_max });
            }
            if number == to.log {
                return Ok(());
            }
            let log = shelf.open_growing(number + 1, 0, log::HEADER)?;
            let base = view.active.base + u64::from(view.active.inserted());
            shelf.begin_head(&shelf.new_head(log, base));
        }
    }
}

impl EmbeddedShelf {
    fn manifest_on_disk(&self) -> Result<Option<Manifest>, ManifestError> {
        Manifest::read(&*self.options.disk, &self.dir)
    }

    /// Whether the disk has this manifest, and an active log of `len` bytes.
    fn is_unchanged(&self, manifest: Option<&Manifest>, len: u64) -> Result<bool, FollowError> {
        let log = Arc::clone(&self.view.load().active.log);
        let path = log::path(&self.dir, log.number, log.generation);
        Ok(self.manifest_on_disk()?.as_ref() == manifest && self.file_bytes(&path)? == len)
    }

    /// Reads the new part of the active log, up to byte `to`, and returns its number of records.
    fn take_in(
        &self,
        view: &ShelfView,
        to: u64,
        each: &mut dyn FnMut(u64, &Record<'_>),
    ) -> Result<u64, FollowError> {
        let head = &view.active;
        let (log, from) = (&head.log, head.log.written());
        let damaged = || FollowError::NotWhole { log: log.number, bytes: to };
        if to > log.room() {
            return Err(damaged());
        }
        // Rows that readers see lie before these bytes, so this shows readers nothing yet.
        log.grow(to.max(from));
        let heads = || view.frozen.iter().chain([head]);
        let (mut at, mut first) = (from as usize, head.inserted());
        let before = first;
        let (mut frames, mut terms, mut dying) = (Vec::new(), TermBuffers::default(), Vec::new());
        while (at as u64) < to {
            let salt = log.salt();
            let bytes = log.bytes();
            let mut put = |offset: u64, frame: LogFrame<'_>| match frame {
                LogFrame::Batch(_) => {}
                LogFrame::Put(bytes) => {
                    if let Ok(record) = Record::new(bytes) {
                        // The offset is below the map's length, which is at most that of a log.
                        head.insert(&record, offset as u32, &mut terms);
                    }
                }
                LogFrame::Delete { id, log } => {
                    head.log.note_deletions(1);
                    let id = (&id, self.terms.id(&id));
                    named(&view.segments, heads(), id, log, &mut dying);
                }
            };
            let next = log::replay_batch(bytes, at, salt, &mut frames, &mut put);
            let next = next.ok_or_else(damaged)?;
            head.publish();
            dying.drain(..).for_each(|target: LiveRow| target.kill());
            let mut row = first;
            log::replay_batch(bytes, at, salt, &mut frames, &mut |_, frame| {
                if let LogFrame::Put(bytes) = frame
                    && let Ok(record) = Record::new(bytes)
                {
                    row += 1;
                    each(head.base + u64::from(row), &record);
                }
            });
            (at, first) = (next, row);
        }
        Ok(u64::from(first - before))
    }

    /// Bytes of a log that is complete.
    fn log_bytes(&self, number: u32) -> io::Result<u64> {
        self.file_bytes(&log::path(&self.dir, number, 0))
    }

    fn file_bytes(&self, path: &Path) -> io::Result<u64> {
        let name = path.file_name().unwrap_or_default();
        let files = self.options.disk.list(&self.dir.join("log"))?;
        let found = files.into_iter().find(|(file, _)| **file == *name);
        found.map(|(_, bytes)| bytes).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}
