//! Giving a shelf to another process and following what that one writes.
//!
//! The log says all there is to say: whoever follows reads the batches that the writing process has
//! synced, from the map it has open already, and treats them as a start does. So both processes see
//! the same records, each with sequence numbers of its own.

use std::io;
use std::path::Path;
use std::sync::Arc;

use hark_archive::Record;
use hark_archive::query::prepared::Terms as _;
use hark_archive::store::Mark;

use crate::log::{self, Frame};
use crate::manifest::{Manifest, ManifestError};
use crate::open::named;
use crate::shelf::{Embedded, Shelf, Tail, Target, View, lock};

/// Why a shelf was not given away, or is not followed any further.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// It takes no more writes anyhow.
    #[error("the archive takes no more writes: {0}")]
    Stopped(String),
    /// It was opened for reading, or given away before.
    #[error("this process does not write the archive")]
    NotWriting,
    /// One process has changed what it had left to the other.
    #[error("another process has changed the archive meanwhile")]
    Changed,
    /// The log is not what the other process says.
    #[error("log {log} is not whole up to byte {bytes}")]
    NotWhole {
        /// Which log.
        log: u32,
        /// What was said of it.
        bytes: u64,
    },
    /// More is followed than is kept in memory.
    #[error("{records} records have come since: more than are followed ({records_max})")]
    TooMany {
        /// Since it was given away.
        records: u64,
        /// The bound.
        records_max: u64,
    },
    /// A file could not be read.
    #[error("the log could not be read: {0}")]
    Io(#[from] io::Error),
    /// The manifest could not be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// What a process keeps of a shelf that it has released: with it, it can go on.
pub(crate) struct Released {
    tail: Tail,
    /// As it was on the disk: in memory are also numbers that jobs without success have used up.
    manifest: Option<Manifest>,
}

impl Embedded {
    /// Lets upkeep rest, or go on. Returns once it rests, which may take as long as the job under
    /// way.
    pub fn rest(&self, rest: bool) {
        let mut signal = lock(&self.shelf.signal);
        signal.resting = rest;
        signal.work |= !rest;
        drop(signal);
        self.shelf.signalled.notify_all();
        if rest {
            drop(lock(&self.shelf.upkeep));
        }
    }

    /// Stops writing, so that another process can open the shelf and write. Upkeep must rest.
    pub fn release(&self) -> Result<Mark, FollowError> {
        let mut writing = lock(&self.shelf.writing);
        if let Some(reason) = &writing.stopped {
            return Err(FollowError::Stopped(reason.clone()));
        }
        let manifest = self.shelf.manifest_on_disk()?;
        let tail = writing.tail.take().ok_or(FollowError::NotWriting)?;
        writing.released = Some(Released { tail, manifest });
        drop(writing);
        Ok(self.end())
    }

    /// Goes on writing after [`Embedded::release`], where the other process has written nothing and
    /// never will: to know that it never will is for the caller, what it has written is seen here.
    pub fn resume(&self) -> Result<(), FollowError> {
        let mut writing = lock(&self.shelf.writing);
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

    /// Begins to write what [`Embedded::open_released`] has opened, as the process that released it
    /// does not write any more. Upkeep rests until [`Embedded::rest`] lets it go on.
    pub fn take(&self) -> Result<(), FollowError> {
        let shelf = &self.shelf;
        let mut writing = lock(&shelf.writing);
        let manifest = lock(&shelf.manifest);
        let log = Arc::clone(&shelf.view.load().active.log);
        let len = log.written();
        // If that process has gone on after all, this is too late.
        if !shelf.is_unchanged(Some(&*manifest), len)? {
            return Err(FollowError::Changed);
        }
        // Every sync of that process has succeeded, so nothing of the log need be written again.
        let path = log::path(&shelf.dir, log.number, log.generation);
        let file = shelf.options.disk.append(&path, len, len)?;
        writing.tail = Some(Tail::new(file, log.salt(), len));
        Ok(())
    }

    /// While another process follows this one, from there on: the logs that it has to read stay as
    /// they are.
    pub fn followed(&self, from: Option<Mark>) {
        lock(&self.shelf.signal).followed_from = from.map(|mark| mark.log);
    }

    /// How far the log is durable, and readers of this process see it.
    pub fn end(&self) -> Mark {
        let view = self.shelf.view.load();
        let log = &view.active.log;
        Mark { log: log.number, bytes: log.written() }
    }

    /// Takes in what another process has written up to `to`, since [`Embedded::release`] or the last
    /// time: readers see it, and `each` hears of every record with its sequence number. More than
    /// `records_max` in all are an error, as they are kept in memory.
    pub fn follow(
        &self,
        to: Mark,
        records_max: u64,
        each: &mut dyn FnMut(u64, &Record<'_>),
    ) -> Result<(), FollowError> {
        let shelf = &self.shelf;
        // Against two that follow; nobody writes.
        let mut writing = lock(&shelf.writing);
        if writing.tail.is_some() {
            return Err(FollowError::NotWriting);
        }
        loop {
            let view = shelf.view.load_full();
            let number = view.active.log.number;
            if number > to.log {
                return Ok(());
            }
            // What is not written any more is whole.
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

impl Shelf {
    fn manifest_on_disk(&self) -> Result<Option<Manifest>, ManifestError> {
        Manifest::read(&*self.options.disk, &self.dir)
    }

    /// Whether the disk has this manifest, and a log of this length to go on with.
    fn is_unchanged(&self, manifest: Option<&Manifest>, len: u64) -> Result<bool, FollowError> {
        let log = Arc::clone(&self.view.load().active.log);
        let path = log::path(&self.dir, log.number, log.generation);
        Ok(self.manifest_on_disk()?.as_ref() == manifest && self.file_bytes(&path)? == len)
    }

    /// Takes the active log in up to `to` bytes and says how many records those are.
    fn take_in(
        &self,
        view: &View,
        to: u64,
        each: &mut dyn FnMut(u64, &Record<'_>),
    ) -> Result<u64, FollowError> {
        let head = &view.active;
        let (log, from) = (&head.log, head.log.written());
        let damaged = || FollowError::NotWhole { log: log.number, bytes: to };
        if to > log.room() {
            return Err(damaged());
        }
        // Rows that readers see lie before; so this shows them nothing yet.
        log.grow(to.max(from));
        let heads = || view.frozen.iter().chain([head]);
        let (mut at, mut first) = (from as usize, head.inserted());
        let before = first;
        let (mut frames, mut terms, mut dying) = (Vec::new(), Vec::new(), Vec::new());
        while (at as u64) < to {
            let salt = log.salt();
            let bytes = log.bytes();
            let mut put = |offset: u64, frame: Frame<'_>| match frame {
                Frame::Batch(_) => {}
                Frame::Put(bytes) => {
                    if let Ok(record) = Record::new(bytes) {
                        // Below the map's length, which is that of a log at most.
                        head.insert(&record, offset as u32, &mut terms);
                    }
                }
                Frame::Delete { id, log } => {
                    let id = (&id, self.terms.id(&id));
                    named(&view.segments, heads(), id, log, &mut dying);
                }
            };
            let next = log::replay_batch(bytes, at, salt, &mut frames, &mut put);
            let next = next.ok_or_else(damaged)?;
            head.publish();
            dying.drain(..).for_each(|target: Target| target.kill());
            let mut row = first;
            log::replay_batch(bytes, at, salt, &mut frames, &mut |_, frame| {
                if let Frame::Put(bytes) = frame
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
