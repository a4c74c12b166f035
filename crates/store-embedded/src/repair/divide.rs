//! Divides logs that have too many records for one head, or records at offsets that no index can
//! hold. Only earlier versions wrote such logs, because their settings had higher maximum values or
//! none. The live records are moved to new logs, in the same order.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use hark_archive::{Id, Record};

use super::from_logs::{DeletionMap, rebuild_segment};
use crate::disk::{Disk, DiskFile};
use crate::engine::open_error::ShelfOpenError;
use crate::engine::shelf_dir::random_u32;
use crate::head::bytes_of_record;
use crate::log::{self, LogEnd, LogError, LogFrame};
use crate::manifest::{LogEntry, Manifest, SegmentEntry};
use crate::options::EmbeddedOptions;
use crate::term::TermHasher;

/// Target size of a batch, in bytes of frames.
const BATCH_BYTES: usize = 1 << 20;

/// Returns the number of the first log with records at offsets that no index can hold, if there is
/// such a log.
pub(crate) fn too_long(
    disk: &dyn Disk,
    dir: &Path,
    manifest: &Manifest,
) -> Result<Option<u32>, ShelfOpenError> {
    let log_dir = dir.join("log");
    let files = disk.list(&log_dir).map_err(ShelfOpenError::io(&log_dir))?;
    let is_long = |entry: &&LogEntry| {
        let path = log::path(dir, entry.number, entry.generation);
        files.iter().any(|(name, len)| *len > log::BYTES_MAX && path.ends_with(name))
    };
    Ok(manifest.logs.iter().find(is_long).map(|entry| entry.number))
}

/// Moves the live records of the log numbered `first` and of all later logs to new logs. The
/// records of each new log fit into one head. If an earlier log has no segment, the division begins
/// with this earlier log, since every log without a segment must come after all logs with segments.
/// All new logs except the last get a segment. On return the manifest names the new logs and
/// segments instead of the old ones. No other thread or process may write to the shelf during this
/// call.
pub(crate) fn divide(
    dir: &Path,
    options: &EmbeddedOptions,
    manifest: &Manifest,
    first: u32,
) -> Result<Manifest, ShelfOpenError> {
    let disk = &*options.disk;
    let is_first = |log: &&LogEntry| log.number >= first || !manifest.is_sealed(log.number);
    let first = manifest.logs.iter().find(is_first).map_or(first, |log| log.number);
    // `deleted` has the last deletion of each record in these logs; `kept` has all deletions of
    // records in earlier logs.
    let mut deleted: HashMap<(Id, u32), (u32, u64)> = HashMap::new();
    let mut kept = Vec::new();
    read(disk, dir, manifest, first, &mut |at, frame| {
        match frame {
            LogFrame::Delete { id, log } if log >= first => {
                deleted.insert((id, log), at);
            }
            LogFrame::Delete { id, log } => kept.push((id, log)),
            _ => {}
        }
        Ok(())
    })?;
    let next_log = manifest.logs.last().map_or(1, |last| last.number + 1);
    let log_dir = dir.join("log");
    let io = ShelfOpenError::io(&log_dir);
    let terms = &TermHasher::new(&manifest.secret, options);
    let mut into = NewLogs { disk, dir, options, terms, logs: Vec::new(), fresh: None, next_log };
    read(disk, dir, manifest, first, &mut |at, frame| match frame {
        LogFrame::Put(bytes) => match Record::new(bytes) {
            Ok(record) if deleted.get(&(*record.id(), at.0)).is_none_or(|gone| *gone < at) => {
                into.put(bytes)
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    })?;
    let logs = into.finish(&kept).map_err(&io)?;
    disk.sync_dir(&log_dir).map_err(&io)?;
    let mut next = manifest.clone();
    next.logs.retain(|log| log.number < first);
    next.segments.retain(|segment| segment.first_log < first);
    if let Some(last) = next.segments.last_mut() {
        last.last_log = last.last_log.min(first.saturating_sub(1));
    }
    let (_, sealed) = logs.split_last().unwrap_or((&0, &[]));
    next.logs.extend(logs.iter().map(|&number| LogEntry::new(number)));
    for &log in sealed {
        let number = next.next_segment;
        next.next_segment += 1;
        let segment = SegmentEntry { number, first_log: log, last_log: log, addresses: 0, dead: 0 };
        rebuild_segment(disk, dir, &segment, &mut next, &DeletionMap::none(), terms)?;
        next.segments.push(segment);
    }
    next.write(disk, dir).map_err(ShelfOpenError::io(dir))?;
    Ok(next)
}

/// A callback that receives frames, each with the number of its log and its offset in the log.
type OnFrame<'a> = &'a mut dyn FnMut((u32, u64), LogFrame<'_>) -> io::Result<()>;

/// Passes the frames of log `first` and of all later logs to `each`.
fn read(
    disk: &dyn Disk,
    dir: &Path,
    manifest: &Manifest,
    first: u32,
    each: OnFrame<'_>,
) -> Result<(), ShelfOpenError> {
    for entry in manifest.logs.iter().filter(|entry| entry.number >= first) {
        let last = manifest.logs.last().is_some_and(|last| last.number == entry.number);
        let path = log::path(dir, entry.number, entry.generation);
        let id = (entry.number, entry.generation);
        let mut done = Ok(());
        let LogEnd { good, len, .. } = log::replay_any(disk, &path, id, &mut |offset, frame| {
            if done.is_ok() {
                done = each((entry.number, offset), frame);
            }
        })?;
        if good < len && !last {
            return Err(LogError::Damaged { path, offset: good }.into());
        }
        done.map_err(ShelfOpenError::io(&dir.join("log")))?;
    }
    Ok(())
}

/// The new logs.
struct NewLogs<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    options: &'a EmbeddedOptions,
    terms: &'a TermHasher,
    /// Numbers of the logs that are complete.
    logs: Vec<u32>,
    /// The log being written.
    fresh: Option<NewLog>,
    next_log: u32,
}

/// A new log.
struct NewLog {
    number: u32,
    file: Box<dyn DiskFile>,
    salt: u32,
    /// Number of bytes in the file.
    end: u64,
    /// The frames of the next batch.
    frames: Vec<u8>,
    /// Number of records in the log, and the bytes of memory that they take in a head.
    rows: u32,
    head_bytes: u64,
}

impl NewLogs<'_> {
    fn put(&mut self, record: &[u8]) -> io::Result<()> {
        let head_bytes = bytes_of_record(record, self.terms);
        let is_full = |fresh: &NewLog| {
            let log_bytes = fresh.end + fresh.frames.len() as u64;
            let (rows, head_bytes) = (fresh.rows, fresh.head_bytes + head_bytes);
            let log_bytes_max = self.options.log_bytes_max;
            rows > 0 && self.options.is_full(rows, head_bytes, log_bytes, log_bytes_max)
        };
        if self.fresh.as_ref().is_some_and(is_full) {
            self.end_log()?;
        }
        let fresh = self.fresh()?;
        LogFrame::Put(record).write(fresh.salt, &mut fresh.frames);
        fresh.rows += 1;
        fresh.head_bytes += head_bytes;
        if fresh.frames.len() >= BATCH_BYTES { fresh.flush() } else { Ok(()) }
    }

    /// Returns the log being written, and begins a new log if there is none.
    fn fresh(&mut self) -> io::Result<&mut NewLog> {
        let fresh = match self.fresh.take() {
            Some(fresh) => fresh,
            None => self.begin()?,
        };
        Ok(self.fresh.insert(fresh))
    }

    fn begin(&mut self) -> io::Result<NewLog> {
        let (number, salt) = (self.next_log, random_u32()?);
        self.next_log += 1;
        let mut file = self.disk.create(&self.path(number).with_extension("new"))?;
        file.write_all(&log::header(number, 0, salt))?;
        let (end, frames) = (log::HEADER, Vec::new());
        Ok(NewLog { number, file, salt, end, frames, rows: 0, head_bytes: 0 })
    }

    fn path(&self, number: u32) -> std::path::PathBuf {
        log::path(self.dir, number, 0)
    }

    fn end_log(&mut self) -> io::Result<()> {
        let Some(mut fresh) = self.fresh.take() else { return Ok(()) };
        fresh.flush()?;
        fresh.file.sync()?;
        let path = self.path(fresh.number);
        self.disk.rename(&path.with_extension("new"), &path)?;
        self.logs.push(fresh.number);
        Ok(())
    }

    /// Appends the deletions of records in older logs to the last log, and returns the numbers of
    /// the new logs. No segment covers the last log, so the next start reads the log and applies
    /// these deletions.
    fn finish(mut self, deletes: &[(Id, u32)]) -> io::Result<Vec<u32>> {
        let fresh = self.fresh()?;
        for &(id, log) in deletes {
            LogFrame::Delete { id, log }.write(fresh.salt, &mut fresh.frames);
            if fresh.frames.len() >= BATCH_BYTES {
                fresh.flush()?;
            }
        }
        self.end_log()?;
        Ok(self.logs)
    }
}

impl NewLog {
    /// Writes the gathered frames as a batch.
    fn flush(&mut self) -> io::Result<()> {
        if self.frames.is_empty() {
            return Ok(());
        }
        let mut batch = Vec::with_capacity(self.frames.len() + LogFrame::BATCH_BYTES);
        LogFrame::Batch(self.frames.len() as u32).write(self.salt, &mut batch);
        batch.append(&mut self.frames);
        self.end += batch.len() as u64;
        self.file.write_all(&batch)
    }
}
