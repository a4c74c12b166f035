//! The bytes of a log: header and frames. docs/format.md describes the format.

use std::path::{Path, PathBuf};

use hark_archive::{Id, Record};

/// First bytes of a log file: the file's type and the format's version.
pub const MAGIC: &[u8; 8] = b"HARKlog1";
/// Number of bytes before the first frame: magic, number, generation, salt, and the CRC32C of these
/// fields.
pub const HEADER: u64 = 24;
/// Number of bytes of a frame before its body: the body's length, the CRC32C of all other bytes of
/// the frame, and the type.
pub const FRAME: usize = 9;
/// Maximum length of a frame's body. A frame with a greater length is damaged.
pub const BODY_MAX: usize = 64 << 20;

/// Maximum length of a log, because an address has 32 bits for the offset of a frame. The tests of
/// this crate use a smaller maximum, so they write less.
pub const BYTES_MAX: u64 = if cfg!(test) { 1 << 20 } else { u32::MAX as u64 };
/// Length of a log at which the next log begins, even if the settings allow longer logs. The other
/// half of the maximum length is for the last batch, which may be very long: a request to vanish
/// can delete millions of records at once.
pub const LOG_BYTES_MAX: u64 = BYTES_MAX.div_ceil(2);

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFrame<'a> {
    /// The start of a batch, with the total size of the frames that follow. All frames of a batch
    /// are synced together. If a batch at the end of the last log is unfinished, none of its writes
    /// was acknowledged.
    Batch(u32),
    /// The put of a record.
    Put(&'a [u8]),
    /// The deletion of a record.
    Delete {
        /// The record's id.
        id: Id,
        /// The number of the log in which the record was put.
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

    #[inline]
    pub(super) fn parse(kind: u8, body: &'a [u8]) -> Option<Self> {
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

    /// Appends the frame's bytes. `salt` is the salt of the log.
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

/// CRC32C of a frame's length, type and body. The log's secret salt is the seed, so no sender can
/// put the bytes of a valid frame into a message.
fn checksum(frame: &[u8], salt: u32) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(salt, &frame[..4]), &frame[8..])
}

/// If `bytes` begins with a whole frame, returns the length of the frame's body.
#[inline]
pub(super) fn body_bytes(bytes: &[u8]) -> Option<usize> {
    let len = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
    (len <= BODY_MAX && bytes.len() >= FRAME + len).then_some(len)
}

/// Returns the frame at the start of `bytes` and its size; `None` if the frame is damaged or
/// incomplete.
pub fn frame(bytes: &[u8], salt: u32) -> Option<(LogFrame<'_>, usize)> {
    let size = FRAME + body_bytes(bytes)?;
    let bytes = &bytes[..size];
    let sum = u32::from_le_bytes(*bytes[4..].first_chunk()?);
    if checksum(bytes, salt) != sum {
        return None;
    }
    Some((LogFrame::parse(bytes[8], &bytes[FRAME..])?, size))
}

/// Returns the record if `bytes` begins with a put. Checks bounds, but not the checksum.
#[inline]
pub(crate) fn put_of(bytes: &[u8]) -> Option<Record<'_>> {
    let len = body_bytes(bytes)?;
    if *bytes.get(8)? != LogFrame::PUT {
        return None;
    }
    Record::new(&bytes[FRAME..FRAME + len]).ok()
}

/// Makes the header of a log file.
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

/// Returns the salt of a log file; `None` unless `bytes` begin with the expected header.
pub fn salt(bytes: &[u8], number: u32, generation: u32) -> Option<u32> {
    let salt = u32::from_le_bytes(*bytes.get(16..)?.first_chunk()?);
    (bytes.get(..HEADER as usize)? == header(number, generation, salt)).then_some(salt)
}

/// The path of a log file of a shelf.
pub fn path(shelf: &Path, number: u32, generation: u32) -> PathBuf {
    shelf.join("log").join(format!("{number:08}-{generation}.log"))
}

/// Reads the number and the generation of a log from the name of its file.
pub(crate) fn parse_name(name: &str) -> Option<(u32, u32)> {
    let (number, generation) = name.strip_suffix(".log")?.split_once('-')?;
    Some((number.parse().ok()?, generation.parse().ok()?))
}
