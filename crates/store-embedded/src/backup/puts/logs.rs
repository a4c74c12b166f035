//! Logs that are written for the records of a store without logs.

use std::io::Cursor;
use std::path::Path;

use hark_archive::Id;

use crate::backup::BackupError;
use crate::backup::catalog::LogCopy;
use crate::backup::copy::BackedUpLog;
use crate::backup::shelf_copy::CopyTarget;
use crate::engine::shelf_dir::random_u32;
use crate::log::{self, LogFrame};
use crate::manifest::{LogEntry, Manifest, SegmentEntry};

/// Size at which a log is complete and the next log begins.
const LOG_BYTES: u64 = if cfg!(test) { 1 << 16 } else { 64 << 20 };
/// Size of the frames of a batch.
const BATCH_BYTES: usize = 1 << 20;
/// Once this many bytes are gathered, they are written, if the target can extend a log.
const WRITE_BYTES: usize = 8 << 20;

/// The logs of one shelf's backup, of which the last may grow.
pub(super) struct LogWriter<'a> {
    target: &'a mut dyn CopyTarget,
    pub(super) manifest: Manifest,
    pub(super) copies: Vec<LogCopy>,
    /// Bytes of the last log that are not written yet.
    bytes: Vec<u8>,
    /// Frames of the last batch.
    batch: Vec<u8>,
    /// The number of the first log, if there is no log yet.
    first: u32,
    /// The log that was written last.
    last_written: Option<u32>,
    /// Number of logs and bytes written.
    pub(super) logs_copied: u64,
    pub(super) bytes_copied: u64,
}

impl<'a> LogWriter<'a> {
    /// Continues the logs of a backup. If the backup has no log yet, the first log gets the number
    /// `first`.
    pub(super) fn new(
        target: &'a mut dyn CopyTarget,
        (manifest, copies): (Manifest, Vec<LogCopy>),
        first: u32,
    ) -> Self {
        Self {
            target,
            manifest,
            copies,
            bytes: Vec::new(),
            batch: Vec::new(),
            first,
            last_written: None,
            logs_copied: 0,
            bytes_copied: 0,
        }
    }

    /// Writes a record, and returns the number of its log.
    pub(super) fn put(&mut self, record: &[u8]) -> Result<u32, BackupError> {
        self.frame(LogFrame::Put(record))
    }

    /// Writes the deletion of a record that is in the log numbered `log`.
    pub(super) fn delete(&mut self, id: Id, log: u32) -> Result<(), BackupError> {
        let logs = &mut self.manifest.logs;
        if let Ok(at) = logs.binary_search_by_key(&log, |entry| entry.number) {
            logs[at].dead_records += 1;
        }
        self.frame(LogFrame::Delete { id, log }).map(drop)
    }

    fn frame(&mut self, frame: LogFrame<'_>) -> Result<u32, BackupError> {
        let (number, salt) = self.open_log()?;
        frame.write(salt, &mut self.batch);
        if self.batch.len() >= BATCH_BYTES {
            self.end_batch(salt);
            if self.target.can_extend() && self.bytes.len() >= WRITE_BYTES {
                self.write()?;
            }
        }
        Ok(number)
    }

    fn end_batch(&mut self, salt: u32) {
        if !self.batch.is_empty() {
            LogFrame::Batch(self.batch.len() as u32).write(salt, &mut self.bytes);
            self.bytes.append(&mut self.batch);
        }
    }

    /// Returns the number and the salt of the log that grows. Begins a new log if there is none or
    /// the last log is complete.
    fn open_log(&mut self) -> Result<(u32, u32), BackupError> {
        let unwritten = (self.bytes.len() + self.batch.len()) as u64;
        if let Some(last) = self.copies.last() {
            if last.bytes + unwritten < LOG_BYTES {
                return Ok((last.number, last.salt));
            }
            self.write()?;
        }
        if let Some(last) = self.manifest.logs.last() {
            // The next restore makes the segment of this log.
            let (number, log) = (self.manifest.next_segment, last.number);
            let segment =
                SegmentEntry { number, first_log: log, last_log: log, addresses: 0, dead: 0 };
            self.manifest.segments.push(segment);
            self.manifest.next_segment += 1;
        }
        let number = self.manifest.logs.last().map_or(self.first, |last| last.number + 1);
        let salt = random_u32().map_err(BackupError::io(Path::new("the new log")))?;
        self.bytes.extend_from_slice(&log::header(number, 0, salt));
        self.manifest.logs.push(LogEntry::new(number));
        self.copies.push(LogCopy { number, generation: 0, salt, bytes: 0, crc: 0, copy: 0 });
        Ok((number, salt))
    }

    /// Writes all frames durably. A target that cannot extend a log is written only at the end.
    pub(super) fn write(&mut self) -> Result<(), BackupError> {
        let Some(salt) = self.copies.last().map(|copy| copy.salt) else { return Ok(()) };
        self.end_batch(salt);
        let Some(copy) = self.copies.last_mut().filter(|_| !self.bytes.is_empty()) else {
            return Ok(());
        };
        let (added, bytes) = (self.bytes.len() as u64, copy.bytes + self.bytes.len() as u64);
        let from = Box::new(Cursor::new(std::mem::take(&mut self.bytes)));
        let mut source = BackedUpLog { from, path: "the new log".into(), bytes };
        let crc = self.target.write(copy, &mut source, &mut |_| {})?;
        (copy.bytes, copy.crc) = (bytes, crc);
        self.bytes_copied += added;
        self.logs_copied += u64::from(self.last_written != Some(copy.number));
        self.last_written = Some(copy.number);
        Ok(())
    }

    /// Writes all frames, and makes the names of all logs durable.
    pub(super) fn end(&mut self) -> Result<(), BackupError> {
        self.open_log()?;
        self.write()?;
        self.target.end_shelf()
    }
}
