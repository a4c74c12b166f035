//! The frames on `control.sock`. Both ends are of the same version of Hark, on the same machine; but
//! for a takeover, which says first how it is spoken.
//!
//! ```text
//!  0  4  length of what follows, little endian
//!  4  1  what it is
//!  5  .  body
//! ```
//!
//! Requests: PUT (body: a record), ERASE (a Nostr filter as JSON), COMPACT, STATS. Every request has
//! one answer, in the order of the requests; PROGRESS lines may come before that of a COMPACT or
//! ERASE.
//!
//! A takeover is a connection of its own. The new process says TAKEOVER, the old one HANDED with its
//! listening sockets and its hold on the lock; then READY, GO, STARTED as `give` tells. From then on
//! the old process is the one that asks (PUT, ERASE), and between the answers it is told how far the
//! archive has GROWN. EPHEMERAL goes both ways.

use std::io::{self, Read, Write};

use hark_archive::Outcome;
use hark_archive::admission::Refusal;
use hark_archive::store::Mark;

pub(super) const PUT: u8 = 1;
pub(super) const ERASE: u8 = 2;
pub(super) const COMPACT: u8 = 3;
pub(super) const STATS: u8 = 4;
/// A process wants to take over; the body is [`TAKEOVER_VERSION`].
pub(super) const TAKEOVER: u8 = 5;
/// It has opened the archive.
pub(super) const READY: u8 = 6;
/// It writes from now on; the body is the mark where it begins.
pub(super) const STARTED: u8 = 7;
/// A record that is passed on and never stored.
pub(super) const EPHEMERAL: u8 = 8;

/// The answer to a PUT: an outcome.
pub(super) const OUTCOME: u8 = 0x81;
/// A line of progress.
pub(super) const PROGRESS: u8 = 0x82;
/// Any other answer, as text.
pub(super) const TEXT: u8 = 0x83;
/// It could not be done; the body says why.
pub(super) const FAILED: u8 = 0x84;

/// Sockets and lock come with the byte behind this frame.
pub(super) const HANDED: u8 = 0x85;
/// The new process may write.
pub(super) const GO: u8 = 0x86;
/// The archive is durable up to the mark in the body.
pub(super) const GROWN: u8 = 0x87;

/// Bytes of a frame between two servers: as many as a record may have in the archive, and some.
pub(super) const PEER_FRAME_BYTES_MAX: usize = 65 << 20;

/// How a takeover is spoken, and what of the archive's files both processes have to read alike.
pub(super) const TAKEOVER_VERSION: u32 = 1;

/// A mark as a body.
pub(super) fn mark_bytes(mark: Mark) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&mark.log.to_le_bytes());
    bytes[4..].copy_from_slice(&mark.bytes.to_le_bytes());
    bytes
}

/// The mark that a body says.
pub(super) fn mark(bytes: &[u8]) -> Option<Mark> {
    let (log, bytes) = bytes.split_first_chunk()?;
    let bytes: [u8; 8] = bytes.try_into().ok()?;
    Some(Mark { log: u32::from_le_bytes(*log), bytes: u64::from_le_bytes(bytes) })
}

/// Writes a frame.
pub(super) fn write(out: &mut impl Write, what: u8, body: &[u8]) -> io::Result<()> {
    let Ok(len) = u32::try_from(body.len() + 1) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "frame is too long"));
    };
    out.write_all(&len.to_le_bytes())?;
    out.write_all(&[what])?;
    out.write_all(body)
}

/// Reads a frame into `body` and says what it is. None at the end of the stream.
pub(super) fn read(
    from: &mut impl Read,
    body: &mut Vec<u8>,
    bytes_max: usize,
) -> io::Result<Option<u8>> {
    let mut head = [0; 5];
    match from.read(&mut head[..1])? {
        0 => return Ok(None),
        _ => from.read_exact(&mut head[1..])?,
    }
    let [a, b, c, d, what] = head;
    let len = u32::from_le_bytes([a, b, c, d]) as usize;
    if len == 0 || len > bytes_max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "frame is empty or too long"));
    }
    body.clear();
    let read = from.take(len as u64 - 1).read_to_end(body)?;
    if read == len - 1 { Ok(Some(what)) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// An outcome as a body.
pub(super) fn outcome_bytes(outcome: Outcome) -> [u8; 9] {
    let (code, number) = match outcome {
        Outcome::Stored { seq } => (0, seq),
        Outcome::Duplicate => (1, 0),
        Outcome::Superseded => (2, 0),
        Outcome::Refused(Refusal::Deleted) => (3, 0),
        Outcome::Refused(Refusal::Vanished) => (4, 0),
        Outcome::Erased(count) => (5, count),
    };
    let mut bytes = [code; 9];
    bytes[1..].copy_from_slice(&u64::to_le_bytes(number));
    bytes
}

/// The outcome that a body says.
pub(super) fn outcome(bytes: &[u8]) -> Option<Outcome> {
    let (code, number) = bytes.split_first()?;
    let number = u64::from_le_bytes(*number.first_chunk()?);
    Some(match code {
        0 => Outcome::Stored { seq: number },
        1 => Outcome::Duplicate,
        2 => Outcome::Superseded,
        3 => Outcome::Refused(Refusal::Deleted),
        4 => Outcome::Refused(Refusal::Vanished),
        5 => Outcome::Erased(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_and_outcomes_come_back_and_cuts_are_errors() {
        let mut bytes = Vec::new();
        write(&mut bytes, PUT, b"abc").unwrap();
        write(&mut bytes, STATS, b"").unwrap();
        let (mut from, mut body) = (&bytes[..], Vec::new());
        assert_eq!(read(&mut from, &mut body, 4).unwrap(), Some(PUT));
        assert_eq!(body, b"abc");
        assert_eq!(read(&mut from, &mut body, 4).unwrap(), Some(STATS));
        assert_eq!(read(&mut from, &mut body, 4).unwrap(), None);
        for cut in 1..8 {
            assert!(read(&mut &bytes[..cut], &mut body, 4).is_err(), "cut at {cut}");
        }
        assert!(read(&mut &bytes[..], &mut body, 3).is_err());
        let outcomes = [
            Outcome::Stored { seq: 7 },
            Outcome::Duplicate,
            Outcome::Superseded,
            Outcome::Refused(Refusal::Deleted),
            Outcome::Refused(Refusal::Vanished),
            Outcome::Erased(u64::MAX),
        ];
        for each in outcomes {
            assert_eq!(outcome(&outcome_bytes(each)), Some(each));
        }
        assert_eq!(outcome(&[]), None);
    }
}
