//! A log file, open for reading.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use hark_archive::Record;

use super::error::TOO_LONG;
use super::format::{BYTES_MAX, FRAME, LogFrame, body_bytes, frame, path, put_of, salt};
use crate::damage::DamagedRecords;
use crate::disk::Disk;
use crate::map::Map;

/// Number of bytes that are read ahead for a record. Most records fit into this length.
const RECORD_BYTES: usize = 2048;

/// A log file, open for reading.
pub struct Log {
    /// The log's number; logs are ordered by number.
    pub number: u32,
    /// Number of times that the log was rewritten.
    pub generation: u32,
    path: PathBuf,
    salt: u32,
    map: Map,
    /// Number of bytes written.
    end: AtomicU64,
    /// The damaged records of the shelf.
    damage: Arc<DamagedRecords>,
    /// Whether a part of the file is known to be damaged.
    is_damaged: AtomicBool,
    /// Number of written bytes of dead records and of deletions.
    pub dead_bytes: AtomicU64,
    /// Number of dead records in the file.
    pub dead_records: AtomicU64,
    /// Data of the rewrite that made this file; unset if no rewrite, or an earlier process, made
    /// the file.
    rewritten: OnceLock<LogRewrite>,
}

/// Data of a rewrite of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogRewrite {
    /// Number of deletions that the rewrite kept, because the deleted records may still be in their
    /// logs.
    pub kept: u64,
    /// Numbers of the logs in which these deleted records may be.
    pub kept_of: BTreeSet<u32>,
    /// The position of the last deletion that had been applied when the rewrite began: the number
    /// of the active log, and an offset.
    pub purged_to: (u32, u64),
}

impl Log {
    /// Opens a log that has `len` written bytes. If `grows`, the log can later be read up to
    /// [`BYTES_MAX`], because the writing process may append frames.
    pub fn open(
        disk: &dyn Disk,
        shelf: &Path,
        (number, generation): (u32, u32),
        len: u64,
        grows: bool,
    ) -> io::Result<Self> {
        let room = grows.then_some(BYTES_MAX as usize);
        let path = path(shelf, number, generation);
        let map = disk.map(&path, room)?;
        if map.len() as u64 > BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, TOO_LONG));
        }
        let Some(salt) = salt(&map, number, generation) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its header is damaged"));
        };
        let end = AtomicU64::new(len.min(map.len() as u64));
        let (dead_bytes, dead_records) = (AtomicU64::new(0), AtomicU64::new(0));
        let (damage, is_damaged) = (Arc::default(), AtomicBool::new(false));
        let rewritten = OnceLock::new();
        Ok(Self {
            number,
            generation,
            path,
            salt,
            map,
            end,
            damage,
            is_damaged,
            dead_bytes,
            dead_records,
            rewritten,
        })
    }

    /// Makes the log add its damaged records to `damage`.
    #[must_use]
    pub fn noting_in(self, damage: &Arc<DamagedRecords>) -> Self {
        Self { damage: Arc::clone(damage), ..self }
    }

    /// Makes an empty log without a file.
    pub fn empty() -> Self {
        Self {
            number: 0,
            generation: 0,
            path: PathBuf::new(),
            salt: 0,
            map: Map::default(),
            end: AtomicU64::new(0),
            damage: Arc::default(),
            is_damaged: AtomicBool::new(false),
            dead_bytes: AtomicU64::new(0),
            dead_records: AtomicU64::new(0),
            rewritten: OnceLock::new(),
        }
    }

    /// The seed for the checksums of the log's frames.
    pub fn salt(&self) -> u32 {
        self.salt
    }

    /// Number of bytes written.
    pub fn written(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Notes that the file has grown to `len` bytes.
    pub fn grow(&self, len: u64) {
        self.end.store(len, Ordering::Release);
    }

    /// Notes that the record at `offset` has died.
    pub fn note_dead(&self, offset: u32) {
        self.dead_bytes.fetch_add(self.frame_bytes(offset), Ordering::Relaxed);
        self.dead_records.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that `count` deletions were appended. Deletions count as dead bytes, because a rewrite
    /// drops a deletion once the deleted record is gone from its log.
    pub fn note_deletions(&self, count: u64) {
        self.dead_bytes.fetch_add(count * LogFrame::DELETE_BYTES, Ordering::Relaxed);
    }

    /// Copies the dead bytes, the dead records and the data of the last rewrite from another map of
    /// the log.
    pub fn copy_dead(&self, other: &Self) {
        self.dead_bytes.store(other.dead_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        self.dead_records.store(other.dead_records.load(Ordering::Relaxed), Ordering::Relaxed);
        self.copy_rewrite_data(other);
    }

    /// Copies the data of the last rewrite from another map of the log.
    pub fn copy_rewrite_data(&self, other: &Self) {
        if let Some(rewritten) = other.rewritten.get() {
            // If a newer rewrite has made this file, that rewrite has already set `rewritten`. Then
            // `set` fails, as intended, and the newer data stay.
            let _ = self.rewritten.set(rewritten.clone());
        }
    }

    /// Sets the data of the rewrite that made this file.
    pub fn note_rewrite(&self, rewrite: LogRewrite) {
        self.note_deletions(rewrite.kept);
        // This is called once, by the rewrite that made the file.
        let _ = self.rewritten.set(rewrite);
    }

    /// The data of the rewrite that made this file, if known.
    pub fn rewritten(&self) -> Option<&LogRewrite> {
        self.rewritten.get()
    }

    /// Whether the log keeps deletions of records in one of these logs.
    pub fn has_deletions_of(&self, logs: &BTreeSet<u32>) -> bool {
        self.rewritten().is_some_and(|rewrite| !rewrite.kept_of.is_disjoint(logs))
    }

    /// Number of dead bytes that a rewrite would free. The deletions that the last rewrite had to
    /// keep do not count.
    pub fn droppable_bytes(&self) -> u64 {
        let kept = self.rewritten().map_or(0, |rewrite| rewrite.kept * LogFrame::DELETE_BYTES);
        self.dead_bytes.load(Ordering::Relaxed).saturating_sub(kept)
    }

    /// Whether the log has dead records or deletions.
    pub fn has_dead(&self) -> bool {
        self.dead_bytes.load(Ordering::Relaxed) > 0
    }

    /// Share of the written bytes that a rewrite would free.
    pub fn dead_share(&self) -> f64 {
        self.droppable_bytes() as f64 / self.written().max(1) as f64
    }

    /// Maximum length of the log at which this map can still read the whole log.
    pub(crate) fn room(&self) -> u64 {
        self.map.len() as u64
    }

    /// All written bytes.
    pub fn bytes(&self) -> &[u8] {
        let end = self.written() as usize;
        self.map.get(..end).unwrap_or_default()
    }

    /// Whether a read of the log has failed and returned zeros.
    #[inline]
    pub fn is_unreadable(&self) -> bool {
        self.faults() > 0
    }

    /// Number of failed reads of the log.
    #[inline]
    pub fn faults(&self) -> u32 {
        self.map.faults()
    }

    /// Whether a part of the log is damaged or could not be read. In such a log, each read of a
    /// record verifies the checksum.
    #[inline]
    pub fn is_doubtful(&self) -> bool {
        self.is_damaged.load(Ordering::Relaxed) || self.is_unreadable()
    }

    /// Notes that a part of the log is damaged.
    pub(crate) fn note_damage(&self) {
        self.is_damaged.store(true, Ordering::Relaxed);
    }

    /// Returns the record of the put at `offset`. Bounds are always checked. The checksum is
    /// checked only if `verify` is set or the log [is doubtful](Log::is_doubtful).
    #[inline]
    pub fn record(&self, offset: u32, verify: bool) -> Option<Record<'_>> {
        let bytes = self.bytes().get(offset as usize..)?;
        if verify || self.is_doubtful() {
            frame(bytes, self.salt)?;
        }
        put_of(bytes)
    }

    /// Notes that a part of the file is lost.
    pub(crate) fn note_lost(&self) {
        self.map.note_lost();
    }

    /// Notes that the record at `offset` could not be read.
    pub fn note_damaged(&self, offset: u32) {
        self.note_damage();
        self.damage.note(&self.path, self.number, offset);
    }

    /// Prefetches the record at `offset` into the processor's cache.
    #[inline]
    pub fn prefetch(&self, offset: u32) {
        self.map.prefetch(offset as usize);
    }

    /// Makes the system read the record at `offset` from the disk. Only the usual size of a record
    /// is read.
    pub fn read_ahead(&self, offset: u32) {
        let at = offset as usize;
        self.map.read_ahead(at..self.bytes().len().min(at + RECORD_BYTES));
    }

    /// The path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Size of the frame at `offset`; 0 if there is no whole frame.
    pub fn frame_bytes(&self, offset: u32) -> u64 {
        let bytes = self.bytes().get(offset as usize..).unwrap_or_default();
        body_bytes(bytes).map_or(0, |len| (FRAME + len) as u64)
    }
}
