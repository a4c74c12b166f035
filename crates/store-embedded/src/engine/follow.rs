//! Handing a shelf over to another process, and following the writes of that process.
//!
//! A process that follows needs only the log. Through its open map of the log, it reads the synced
//! batches of the writing process, and applies these batches as a starting server does. So both
//! processes see the same records, though each process has its own sequence numbers.

use std::io;
use std::sync::Arc;

use hark_archive::Record;
use hark_archive::query::prepared::TermMap as _;
use hark_archive::store::LogPosition;

use super::embedded_store::EmbeddedStore;
use super::files::ShelfFiles;
use super::shelf_view::{LiveRow, ShelfView, named};
use super::tail::LogTail;
use super::writer::ReleasedShelf;
use crate::log::{self, Log, LogFrame};
use crate::manifest::{Manifest, ManifestError};
use crate::term::{TermBuffers, TermHasher};

/// Why a shelf was not handed over, or cannot be followed any longer.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// Writing to the shelf has already stopped.
    #[error("the archive takes no more writes: {0}")]
    Stopped(String),
    /// The shelf was opened for reading, or has already been handed over.
    #[error("this process does not write the archive")]
    NotWriting,
    /// Another process has changed the shelf in the meantime.
    #[error("another process has changed the archive meanwhile")]
    Changed,
    /// The log does not reach the position that the other process reported, or is damaged.
    #[error("log {log} is shorter than {bytes} bytes, or damaged")]
    NotWhole {
        /// The log's number.
        log: u32,
        /// The log's length according to the other process.
        bytes: u64,
    },
    /// The process has followed more records than it may keep in memory.
    #[error("{records} records were written since the handover, more than {records_max}")]
    TooMany {
        /// Number of records since the shelf was handed over.
        records: u64,
        /// Maximum number of records allowed.
        records_max: u64,
    },
    /// A file could not be read.
    #[error("the log could not be read: {0}")]
    Io(#[from] io::Error),
    /// The manifest could not be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

impl EmbeddedStore {
    /// Pauses or resumes maintenance. A pause waits until the current job has ended.
    pub fn pause_maintenance(&self, pause: bool) {
        self.shelf.jobs.pause(pause);
    }

    /// Stops writing, so that another process can open the shelf and write. Maintenance must be
    /// paused.
    pub fn release(&self) -> Result<LogPosition, FollowError> {
        let mut writing = self.shelf.writer.lock();
        if let Some(reason) = &writing.stopped {
            return Err(FollowError::Stopped(reason.clone()));
        }
        let manifest = manifest_on_disk(&self.shelf.files)?;
        let tail = writing.tail.take().ok_or(FollowError::NotWriting)?;
        writing.released = Some(ReleasedShelf { tail, manifest });
        writing.searches.forget();
        drop(writing);
        Ok(self.end())
    }

    /// Resumes writing after [`EmbeddedStore::release`]. Returns an error if the other process has
    /// written anything. The caller ensures that the other process will never write.
    pub fn resume(&self) -> Result<(), FollowError> {
        let mut writing = self.shelf.writer.lock();
        let released = writing.released.take().ok_or(FollowError::NotWriting)?;
        let log = Arc::clone(&self.shelf.view.load().active.log);
        match is_unchanged(&self.shelf.files, &log, released.manifest.as_ref(), released.tail.len())
        {
            Ok(true) => writing.tail = Some(released.tail),
            other => {
                let error = other.err().unwrap_or(FollowError::Changed);
                writing.stopped = Some(error.to_string());
                return Err(error);
            }
        }
        drop(writing);
        self.pause_maintenance(false);
        Ok(())
    }

    /// Begins to write to the shelf that [`EmbeddedStore::open_released`] has opened. The process
    /// that released the shelf must not write any more. Maintenance stays paused until a call of
    /// [`EmbeddedStore::pause_maintenance`] with `false`.
    pub fn begin_writing(&self) -> Result<(), FollowError> {
        let shelf = &self.shelf;
        let mut writing = shelf.writer.lock();
        let manifest = shelf.writer.manifest();
        let log = Arc::clone(&shelf.view.load().active.log);
        let len = log.written();
        // If the other process has resumed writing, this process must not write.
        if !is_unchanged(&shelf.files, &log, Some(&*manifest), len)? {
            return Err(FollowError::Changed);
        }
        // The other process hands the shelf over only if all its syncs have succeeded. So all bytes
        // of the log are durable, and this process only appends.
        let path = log::path(shelf.files.dir(), log.number, log.generation);
        let file = shelf.files.disk().append(&path, len, len)?;
        writing.tail = Some(LogTail::new(file, log.salt(), len));
        Ok(())
    }

    /// Notes the position from which another process follows the log; `None` if no process follows.
    /// While a process follows, maintenance does not rewrite the logs that the other process has
    /// to read.
    pub fn followed(&self, from: Option<LogPosition>) {
        self.shelf.jobs.set_followed_from(from.map(|mark| mark.log));
    }

    /// The end of the log: all bytes before this position are durable, and visible to readers of
    /// this process.
    pub fn end(&self) -> LogPosition {
        let view = self.shelf.view.load();
        let log = &view.active.log;
        LogPosition { log: log.number, bytes: log.written() }
    }

    /// Reads the batches up to `to` that another process has written since
    /// [`EmbeddedStore::release`] or since the last call. Readers see the new records, and `each`
    /// receives every record with its sequence number. If the calls together read more than
    /// `records_max` records, the result is an error, since these records stay in memory.
    pub fn follow(
        &self,
        to: LogPosition,
        records_max: u64,
        each: &mut dyn FnMut(u64, &Record<'_>),
    ) -> Result<(), FollowError> {
        let shelf = &self.shelf;
        // The lock keeps a second thread from following at the same time. No thread of this process
        // is writing.
        let mut writing = shelf.writer.lock();
        if writing.tail.is_some() {
            return Err(FollowError::NotWriting);
        }
        loop {
            let view = shelf.view.load_full();
            let number = view.active.log.number;
            if number > to.log {
                return Ok(());
            }
            // A log before `to.log` is complete.
            let bytes = if number == to.log {
                to.bytes
            } else {
                shelf.files.log_file_bytes(&log::path(shelf.files.dir(), number, 0))?
            };
            writing.followed += read_new_part(shelf.files.terms(), &view, bytes, each)?;
            if writing.followed > records_max {
                let records = writing.followed;
                return Err(FollowError::TooMany { records, records_max });
            }
            if number == to.log {
                return Ok(());
            }
            let log = shelf.files.open_growing(number + 1, 0, log::HEADER)?;
            let base = view.active.base + u64::from(view.active.inserted());
            shelf.view.begin_head(&shelf.files.new_head(log, base));
        }
    }
}

fn manifest_on_disk(files: &ShelfFiles) -> Result<Option<Manifest>, ManifestError> {
    Manifest::read(files.disk(), files.dir())
}

/// Whether the disk still has this manifest, and the active log still has `len` bytes.
fn is_unchanged(
    files: &ShelfFiles,
    log: &Log,
    manifest: Option<&Manifest>,
    len: u64,
) -> Result<bool, FollowError> {
    let path = log::path(files.dir(), log.number, log.generation);
    Ok(manifest_on_disk(files)?.as_ref() == manifest && files.log_file_bytes(&path)? == len)
}

/// Reads the new part of the active log, up to byte `to`, and returns its number of records.
fn read_new_part(
    hasher: &TermHasher,
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
    // The rows of these bytes are not published yet, so readers see no new record.
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
                    // The offset fits into 32 bits: it is below the map's length, which is at most
                    // the maximum length of a log.
                    head.insert(&record, offset as u32, &mut terms);
                }
            }
            LogFrame::Delete { id, log } => {
                head.log.note_deletions(1);
                let id = (&id, hasher.id(&id));
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
