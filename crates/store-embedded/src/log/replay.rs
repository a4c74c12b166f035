//! Reading a log from front to back.

use std::path::Path;

use super::error::LogError;
use super::format::{BYTES_MAX, FRAME, HEADER, LogFrame, frame, salt};
use crate::disk::Disk;
use crate::map::{Map, unreadable};

/// Where a log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// The offset at which the last whole batch begins.
    pub last: u64,
    /// The offset at which the last whole batch ends.
    pub good: u64,
    /// The length of the file.
    pub len: u64,
}

/// Maps a log to read it once, from front to back. The log's map for queries is unsuitable, since
/// it reads nothing ahead.
pub(crate) fn map(disk: &dyn Disk, path: &Path) -> Result<Map, LogError> {
    disk.map_sequential(path).map_err(|cause| LogError::Io { path: path.into(), cause })
}

/// Reads a log from front to back, and passes each frame of each whole batch to `each`, with the
/// frame's offset. A torn batch at the end is left out. Damage anywhere else is an error, and so is
/// a log that is longer than [`BYTES_MAX`].
pub fn replay(
    disk: &dyn Disk,
    path: &Path,
    id: (u32, u32),
    each: &mut dyn FnMut(u32, LogFrame<'_>),
) -> Result<LogEnd, LogError> {
    replay_mapped(&map(disk, path)?, path, id, each)
}

/// Does the same as [`replay`], for a log that is mapped.
pub(crate) fn replay_mapped(
    bytes: &Map,
    path: &Path,
    id: (u32, u32),
    each: &mut dyn FnMut(u32, LogFrame<'_>),
) -> Result<LogEnd, LogError> {
    let mut is_too_long = false;
    let end = replay_bytes(bytes, path, id, &mut |offset, frame| match u32::try_from(offset) {
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
    id: (u32, u32),
    each: &mut dyn FnMut(u64, LogFrame<'_>),
) -> Result<LogEnd, LogError> {
    replay_bytes(&map(disk, path)?, path, id, each)
}

fn replay_bytes(
    bytes: &Map,
    path: &Path,
    (number, generation): (u32, u32),
    each: &mut dyn FnMut(u64, LogFrame<'_>),
) -> Result<LogEnd, LogError> {
    let io = |cause| LogError::Io { path: path.into(), cause };
    // An unreadable end is an error: if it counted as a torn end, it would be cut off.
    let readable = || if bytes.is_unreadable() { Err(io(unreadable())) } else { Ok(()) };
    let Some(salt) = salt(bytes, number, generation) else {
        readable()?;
        return Err(LogError::Header { path: path.into() });
    };
    let mut end = LogEnd { last: HEADER, good: HEADER, len: bytes.len() as u64 };
    let mut frames = Vec::new();
    while end.good < end.len {
        let Some(next) = replay_batch(bytes, end.good as usize, salt, &mut frames, each) else {
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

/// Does the same as [`replay`], for a log that is no longer written. In such a log, a torn end
/// counts as damage, too.
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
/// is incomplete or damaged, returns `None` and passes no frame.
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

/// Returns the size of the batch at the start of `bytes`; `None` unless the batch is whole.
/// `frames` receives the sizes of the batch's frames.
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
/// batch had been synced. Only one batch is written at a time, so a crash cannot leave a batch
/// after a torn batch.
fn later_batch(bytes: &[u8], salt: u32) -> bool {
    let start = 4u32.to_le_bytes();
    let mut starts = bytes.windows(4).enumerate().skip(1).filter(|(_, four)| *four == start);
    starts.any(|(at, _)| matches!(frame(&bytes[at..], salt), Some((LogFrame::Batch(_), _))))
}

#[cfg(test)]
mod tests {
    use super::super::format::header;
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
