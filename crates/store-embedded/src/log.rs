//! The log: the source of truth of a shelf. Frames are appended to a log and read back.
//! docs/format.md describes the format.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use hark_archive::{Id, Record};

use crate::damage::DamagedRecords;
use crate::disk::Disk;
use crate::map::{Map, unreadable};

/// First bytes of a log file: the file's type and the format's version.
pub const MAGIC: &[u8; 8] = b"HARKlog1";
/// Number of bytes before the first frame: magic, number, generation, salt, and the CRC32C of these
/// fields.
pub const HEADER: u64 = 24;
/// Number of bytes of a frame before its body: length of the body, CRC32C of all other bytes of the
/// frame, type.
pub const FRAME: usize = 9;
/// Maximum length of a frame's body; a frame that claims more is damaged.
pub const BODY_MAX: usize = 64 << 20;

/// Maximum length of a log: addresses have 32 bits for a frame's offset. The tests of this crate
/// use a smaller maximum, to write less.
pub const BYTES_MAX: u64 = if cfg!(test) { 1 << 20 } else { u32::MAX as u64 };
/// Length at which the next log is begun at the latest. The batch that reaches this length may need
/// as much again: a request to vanish can delete millions of records at once.
pub const LOG_BYTES_MAX: u64 = BYTES_MAX.div_ceil(2);

/// A length that most records do not exceed.
const RECORD_BYTES: usize = 2048;

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFrame<'a> {
    /// The start of a batch: this many bytes of frames follow, all synced together. An unfinished
    /// batch at the end of the last log was never acknowledged.
    Batch(u32),
    /// A record was put.
    Put(&'a [u8]),
    /// A record was deleted.
    Delete {
        /// The record's id.
        id: Id,
        /// The number of the log with the record's put.
        log: u32,
    },
}

impl<'a> LogFrame<'a> {
    pub(crate) const BATCH: u8 = 1;
    pub(crate) const PUT: u8 = 2;
    pub(crate) const DELETE: u8 = 3;
    /// Total size of a batch frame.
    pub const BATCH_BYTES: usize = FRAME + 4;
    /// Total size of a deletion.
    pub const DELETE_BYTES: u64 = FRAME as u64 + 36;

    fn parse(kind: u8, body: &'a [u8]) -> Option<Self> {
        match kind {
            Self::BATCH if body.len() == 4 => {
                Some(Self::Batch(u32::from_le_bytes(*body.first_chunk()?)))
            }
            Self::PUT => Some(Self::Put(body)),
            Self::DELETE if body.len() == 36 => Some(Self::Delete {
                id: *body.first_chunk()?,
                log: u32::from_le_bytes(*body.last_chunk()?),
            }),
            _ => None,
        }
    }

    /// Appends the frame's bytes, for a log with this salt.
    pub fn write(&self, salt: u32, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; FRAME]);
        let kind = match self {
            Self::Batch(bytes) => {
                out.extend_from_slice(&bytes.to_le_bytes());
                Self::BATCH
            }
            Self::Put(record) => {
                out.extend_from_slice(record);
                Self::PUT
            }
            Self::Delete { id, log } => {
                out.extend_from_slice(id);
                out.extend_from_slice(&log.to_le_bytes());
                Self::DELETE
            }
        };
        let body_bytes = (out.len() - start - FRAME) as u32;
        out[start..start + 4].copy_from_slice(&body_bytes.to_le_bytes());
        out[start + 8] = kind;
        let sum = checksum(&out[start..], salt);
        out[start + 4..start + 8].copy_from_slice(&sum.to_le_bytes());
    }
}

/// CRC32C of a frame's length, type and body. The log's salt is the seed, so that nobody can hide a
/// frame in a message.
pub(crate) fn checksum(frame: &[u8], salt: u32) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(salt, &frame[..4]), &frame[8..])
}

/// Returns the body length of the frame at the start of `bytes`, if `bytes` has the whole frame.
fn body_bytes(bytes: &[u8]) -> Option<usize> {
    let len = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
    (len <= BODY_MAX && bytes.len() >= FRAME + len).then_some(len)
}

/// Returns the frame at the start of `bytes` and its size; `None` if the frame is damaged or cut
/// short.
pub fn frame(bytes: &[u8], salt: u32) -> Option<(LogFrame<'_>, usize)> {
    let size = FRAME + body_bytes(bytes)?;
    let bytes = &bytes[..size];
    let sum = u32::from_le_bytes(*bytes[4..].first_chunk()?);
    if checksum(bytes, salt) != sum {
        return None;
    }
    Some((LogFrame::parse(bytes[8], &bytes[FRAME..])?, size))
}

/// Returns the record of the put at the start of `bytes`. The function checks bounds, but not the
/// checksum.
#[inline]
pub(crate) fn put_of(bytes: &[u8]) -> Option<Record<'_>> {
    let len = body_bytes(bytes)?;
    if *bytes.get(8)? != LogFrame::PUT {
        return None;
    }
    Record::new(&bytes[FRAME..FRAME + len]).ok()
}

/// The header of a log file.
pub fn header(number: u32, generation: u32, salt: u32) -> [u8; HEADER as usize] {
    let mut out = [0; HEADER as usize];
    out[..8].copy_from_slice(MAGIC);
    out[8..12].copy_from_slice(&number.to_le_bytes());
    out[12..16].copy_from_slice(&generation.to_le_bytes());
    out[16..20].copy_from_slice(&salt.to_le_bytes());
    let sum = crc32c::crc32c(&out[..20]);
    out[20..].copy_from_slice(&sum.to_le_bytes());
    out
}

/// Returns the salt of a log file, if `bytes` start with the expected header.
pub fn salt(bytes: &[u8], number: u32, generation: u32) -> Option<u32> {
    let salt = u32::from_le_bytes(*bytes.get(16..)?.first_chunk()?);
    (bytes.get(..HEADER as usize)? == header(number, generation, salt)).then_some(salt)
}

/// The path of a log file of a shelf.
pub fn path(shelf: &Path, number: u32, generation: u32) -> PathBuf {
    shelf.join("log").join(format!("{number:08}-{generation}.log"))
}

/// The number and the generation of a log, from the name of its file.
pub(crate) fn parse_name(name: &str) -> Option<(u32, u32)> {
    let (number, generation) = name.strip_suffix(".log")?.split_once('-')?;
    Some((number.parse().ok()?, generation.parse().ok()?))
}

/// A log file, open for reading.
pub struct Log {
    /// The log's number; logs are ordered by number.
    pub number: u32,
    /// How many times the log was rewritten.
    pub generation: u32,
    path: PathBuf,
    salt: u32,
    map: Map,
    /// Bytes written.
    end: AtomicU64,
    /// The damaged records of the shelf.
    damage: Arc<DamagedRecords>,
    /// Whether a part of the file is known to be damaged.
    is_damaged: AtomicBool,
    /// Number of written bytes that belong to dead records and to deletions.
    pub dead_bytes: AtomicU64,
    /// Number of dead records in the file.
    pub dead_records: AtomicU64,
    /// The last rewrite of the log; unknown after a start.
    rewritten: OnceLock<LogRewrite>,
}

/// A rewrite of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogRewrite {
    /// Number of deletions that were kept, because the deleted records may still be in their logs.
    pub kept: u64,
    /// Numbers of the logs that these deletions name.
    pub kept_of: BTreeSet<u32>,
    /// The position up to which deletions were applied: the log that was being written then, and an
    /// offset.
    pub purged_to: (u32, u64),
}

impl Log {
    /// Opens a log with `len` written bytes. A log that `grows` can be read up to [`BYTES_MAX`],
    /// for all settings of the writing process.
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

    /// Returns the log, which from now on records its damaged records in `damage`.
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

    /// The seed of the checksums of the log's frames.
    pub fn salt(&self) -> u32 {
        self.salt
    }

    /// Bytes written.
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

    /// Notes that `count` deletions were appended. Deletions count as dead bytes: a rewrite drops a
    /// deletion once the deleted record is gone from its log.
    pub fn note_deletions(&self, count: u64) {
        self.dead_bytes.fetch_add(count * LogFrame::DELETE_BYTES, Ordering::Relaxed);
    }

    /// Copies the figures of dead bytes and dead records, and the last rewrite, from another map of
    /// the log.
    pub fn copy_dead(&self, other: &Self) {
        self.dead_bytes.store(other.dead_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        self.dead_records.store(other.dead_records.load(Ordering::Relaxed), Ordering::Relaxed);
        self.copy_kept(other);
    }

    /// Copies the data of the last rewrite from another map of the log.
    pub fn copy_kept(&self, other: &Self) {
        if let Some(rewritten) = other.rewritten.get() {
            // If the log was rewritten since, the newer data stay.
            let _ = self.rewritten.set(rewritten.clone());
        }
    }

    /// Records the rewrite that has made this file.
    pub fn note_rewrite(&self, rewrite: LogRewrite) {
        self.note_deletions(rewrite.kept);
        // Only the rewrite that has made the file calls this, once.
        let _ = self.rewritten.set(rewrite);
    }

    /// The last rewrite of the log, if it is known.
    pub fn rewritten(&self) -> Option<&LogRewrite> {
        self.rewritten.get()
    }

    /// Whether the log keeps deletions of records in one of these logs.
    pub fn keeps_deletions_of(&self, logs: &BTreeSet<u32>) -> bool {
        self.rewritten().is_some_and(|rewrite| !rewrite.kept_of.is_disjoint(logs))
    }

    /// Number of dead bytes that a rewrite would free, without the deletions that the last rewrite
    /// had to keep.
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

    /// Length up to which the log may grow and stay readable through this map.
    pub(crate) fn room(&self) -> u64 {
        self.map.len() as u64
    }

    /// All bytes written.
    pub fn bytes(&self) -> &[u8] {
        let end = self.written() as usize;
        self.map.get(..end).unwrap_or_default()
    }

    /// Whether a read of the log has failed; such a read returned zeros.
    #[inline]
    pub fn is_unreadable(&self) -> bool {
        self.faults() > 0
    }

    /// Number of failed reads of the log.
    #[inline]
    pub fn faults(&self) -> u32 {
        self.map.faults()
    }

    /// Whether a part of the log is known to be damaged or could not be read. If so, each read of a
    /// record verifies the checksum.
    #[inline]
    pub fn is_doubtful(&self) -> bool {
        self.is_damaged.load(Ordering::Relaxed) || self.is_unreadable()
    }

    /// Notes that a part of the log is damaged.
    pub(crate) fn doubt(&self) {
        self.is_damaged.store(true, Ordering::Relaxed);
    }

    /// Returns the record put at `offset`. Bounds are always checked; the checksum only if `verify`
    /// is set or the log [is doubtful](Log::is_doubtful).
    #[inline]
    pub fn record(&self, offset: u32, verify: bool) -> Option<Record<'_>> {
        let bytes = self.bytes().get(offset as usize..)?;
        if verify || self.is_doubtful() {
            frame(bytes, self.salt)?;
        }
        put_of(bytes)
    }

    /// Records that a part of the file is lost.
    pub(crate) fn note_lost(&self) {
        self.map.note_lost();
    }

    /// Notes that the record at `offset` could not be read.
    pub fn note_damaged(&self, offset: u32) {
        self.doubt();
        self.damage.note(&self.path, self.number, offset);
    }

    /// Prefetches the record at `offset` into the processor's cache.
    #[inline]
    pub fn prefetch(&self, offset: u32) {
        self.map.prefetch(offset as usize);
    }

    /// Makes the system read the record at `offset` from the disk, up to the size of most records.
    pub fn read_ahead(&self, offset: u32) {
        let at = offset as usize;
        self.map.read_ahead(at..self.bytes().len().min(at + RECORD_BYTES));
    }

    /// The path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Size of the frame at `offset`; 0 without a whole frame.
    pub fn frame_bytes(&self, offset: u32) -> u64 {
        let bytes = self.bytes().get(offset as usize..).unwrap_or_default();
        body_bytes(bytes).map_or(0, |len| (FRAME + len) as u64)
    }
}

/// The fault of a log of more than [`BYTES_MAX`].
const TOO_LONG: &str = "it is longer than indices reach, so that its last records could not be \
                        found: stop what writes the archive and run `hark rebuild`, which divides it";

/// Why a log cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file could not be read.
    #[error("{path} could not be read: {cause}")]
    Io {
        /// The log's file.
        path: PathBuf,
        /// The error of the operation.
        cause: io::Error,
    },
    /// The first bytes are not the header of this log.
    #[error("the header of {path} is damaged, or that of another log")]
    Header {
        /// The log's file.
        path: PathBuf,
    },
    /// The log has records at offsets that no index can hold.
    #[error("{path}: {TOO_LONG}")]
    TooLong {
        /// The log's file.
        path: PathBuf,
    },
    /// A damaged frame had been synced, or is followed by other frames.
    #[error("{path} is damaged at byte {offset}, in what had been synced")]
    Damaged {
        /// The log's file.
        path: PathBuf,
        /// The offset at which the damage starts.
        offset: u64,
    },
}

/// Where a log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// The offset of the last whole batch.
    pub last: u64,
    /// The end of the last whole batch.
    pub good: u64,
    /// The length of the file.
    pub len: u64,
}

/// Reads a log from front to back and passes every frame of every whole batch, with its offset, to
/// `each`. A torn batch at the end is left out; damage anywhere else is an error, and so is a log
/// of more than [`BYTES_MAX`].
pub fn replay(
    disk: &dyn Disk,
    path: &Path,
    id: (u32, u32),
    each: &mut dyn FnMut(u32, LogFrame<'_>),
) -> Result<LogEnd, LogError> {
    let mut is_too_long = false;
    let end = replay_any(disk, path, id, &mut |offset, frame| match u32::try_from(offset) {
        Ok(offset) if u64::from(offset) < BYTES_MAX => each(offset, frame),
        _ => is_too_long = true,
    })?;
    if is_too_long || end.good > BYTES_MAX {
        return Err(LogError::TooLong { path: path.into() });
    }
    Ok(end)
}

/// Does the same as [`replay`], for a log of any length.
pub(crate) fn replay_any(
    disk: &dyn Disk,
    path: &Path,
    (number, generation): (u32, u32),
    each: &mut dyn FnMut(u64, LogFrame<'_>),
) -> Result<LogEnd, LogError> {
    let io = |cause| LogError::Io { path: path.into(), cause };
    // A separate map: the map for queries expects random access and reads nothing ahead.
    let bytes = disk.map_sequential(path).map_err(io)?;
    // An unreadable end is an error, since a torn end would be cut off.
    let readable = || if bytes.is_unreadable() { Err(io(unreadable())) } else { Ok(()) };
    let Some(salt) = salt(&bytes, number, generation) else {
        readable()?;
        return Err(LogError::Header { path: path.into() });
    };
    let mut end = LogEnd { last: HEADER, good: HEADER, len: bytes.len() as u64 };
    let mut frames = Vec::new();
    while end.good < end.len {
        let Some(next) = replay_batch(&bytes, end.good as usize, salt, &mut frames, each) else {
            break;
        };
        (end.last, end.good) = (end.good, next as u64);
    }
    let damaged = later_batch(&bytes[end.good as usize..], salt);
    readable()?;
    if damaged {
        return Err(LogError::Damaged { path: path.into(), offset: end.good });
    }
    Ok(end)
}

/// Does the same as [`replay`], for a log that is no longer written: here a torn end is damage,
/// too.
pub fn replay_whole(
    disk: &dyn Disk,
    path: &Path,
    id: (u32, u32),
    each: &mut dyn FnMut(u32, LogFrame<'_>),
) -> Result<LogEnd, LogError> {
    let end = replay(disk, path, id, each)?;
    if end.good < end.len {
        return Err(LogError::Damaged { path: path.into(), offset: end.good });
    }
    Ok(end)
}

/// Passes the frames of the batch at `at` to `each` and returns the end of the batch. If the batch
/// is not whole, returns `None` and passes no frame.
pub(crate) fn replay_batch(
    bytes: &[u8],
    at: usize,
    salt: u32,
    frames: &mut Vec<usize>,
    each: &mut dyn FnMut(u64, LogFrame<'_>),
) -> Option<usize> {
    let whole = batch(bytes.get(at..)?, salt, frames)?;
    let mut offset = at + LogFrame::BATCH_BYTES;
    for size in frames.iter() {
        if let Some(parsed) =
            LogFrame::parse(bytes[offset + 8], &bytes[offset + FRAME..offset + size])
        {
            each(offset as u64, parsed);
        }
        offset += size;
    }
    Some(at + whole)
}

/// Returns the size of the batch at the start of `bytes`, if the batch is whole. `frames` receives
/// the sizes of the batch's frames.
fn batch(bytes: &[u8], salt: u32, frames: &mut Vec<usize>) -> Option<usize> {
    frames.clear();
    let (LogFrame::Batch(inner), start) = frame(bytes, salt)? else { return None };
    let whole = start + inner as usize;
    let mut rest = bytes.get(start..whole)?;
    while !rest.is_empty() {
        let (_, size) = frame(rest, salt)?;
        frames.push(size);
        rest = &rest[size..];
    }
    Some(whole)
}

/// Whether another batch follows the damaged batch at the start of `bytes`. If so, the damaged
/// batch had been synced: only one batch is written at a time, so a crash alone cannot leave a
/// batch after a torn batch.
fn later_batch(bytes: &[u8], salt: u32) -> bool {
    let start = 4u32.to_le_bytes();
    let mut starts = bytes.windows(4).enumerate().skip(1).filter(|(_, four)| *four == start);
    starts.any(|(at, _)| matches!(frame(&bytes[at..], salt), Some((LogFrame::Batch(_), _))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    fn write_log(batches: &[&[LogFrame<'_>]]) -> Vec<u8> {
        let mut out = header(3, 0, 77).to_vec();
        for frames in batches {
            let mut inner = Vec::new();
            frames.iter().for_each(|frame| frame.write(77, &mut inner));
            LogFrame::Batch(inner.len() as u32).write(77, &mut out);
            out.extend_from_slice(&inner);
        }
        out
    }

    fn read(bytes: &[u8], name: &str) -> Result<(usize, LogEnd), LogError> {
        let path = std::env::temp_dir().join(format!("hark-log-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let mut frames = 0;
        let end = replay(&RealDisk, &path, (3, 0), &mut |_, _| frames += 1);
        std::fs::remove_file(&path).unwrap();
        end.map(|end| (frames, end))
    }

    #[test]
    fn a_log_cut_anywhere_gives_its_whole_batches() {
        let delete = LogFrame::Delete { id: [5; 32], log: 1 };
        let log = write_log(&[&[LogFrame::Put(b"one"), delete], &[LogFrame::Put(b"two")], &[]]);
        assert_eq!(read(&log, "whole").unwrap().0, 3);
        for cut in HEADER as usize..log.len() {
            let (frames, end) = read(&log[..cut], "cut").unwrap();
            assert!([0, 2, 3].contains(&frames), "cut at {cut}: {frames}");
            assert!(end.good <= cut as u64);
        }
    }

    #[test]
    fn damage_before_a_later_batch_is_refused_and_in_the_last_batch_is_a_torn_tail() {
        let log = write_log(&[
            &[LogFrame::Put(b"one")],
            &[LogFrame::Put(b"two")],
            &[LogFrame::Put(b"three")],
        ]);
        let last = log.len() - (LogFrame::BATCH_BYTES + FRAME + 5);
        for at in HEADER as usize..log.len() {
            let mut bad = log.clone();
            bad[at] ^= 0x40;
            let result = read(&bad, "flip");
            if at < last {
                assert!(matches!(result, Err(LogError::Damaged { .. })), "byte {at}");
            } else {
                assert_eq!(result.unwrap().0, 2, "byte {at}");
            }
        }
    }
}
