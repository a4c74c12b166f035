//! The frames on `control.sock`. Both ends run on the same machine with the same version of Hark.
//! Only in a takeover may the versions differ, so its first frame has the version of its protocol.
//!
//! ```text
//!  0  4  length of the rest of the frame, little endian
//!  4  1  type of the frame
//!  5  1  length of the name
//!  6  .  name of the shelf; empty if the frame is about the whole archive
//!  .  .  body
//! ```
//!
//! Requests: PUT and BRING (body: a record), ERASE (ids, 32 bytes each), COMPACT, STATS, RELOAD,
//! DOOR, LINK, and CLIENTS, KICK and MODERATE, which are about all shelves (see `clients` and
//! `moderation`). Every request has one answer, which names the same shelf. Answers come in the
//! order of the requests. PROGRESS lines may come before the answer to a COMPACT or ERASE.
//!
//! FOLLOW turns the connection into a feed. After a TEXT, the server sends each new RECORD of the
//! shelf, and LAGGED if it has left some records out.
//!
//! A takeover has a connection of its own. The new process sends TAKEOVER. The old process sends
//! the STATE of its doors, and HANDED with its listening sockets and its handle of the lock. READY,
//! GO and STARTED follow, as `handover` describes. A side that gives up sends FAILED. After
//! STARTED, the old process sends requests (PUT, ERASE). Between the answers, it receives GROWN
//! frames, which report the growth of each shelf. Both processes send EPHEMERAL.

use std::io::{self, Read, Write};

use hark_archive::effects::Refusal;
use hark_archive::store::LogPosition;
use hark_archive::{Id, Outcome};

pub(super) const PUT: u8 = 1;
pub(super) const ERASE: u8 = 2;
pub(super) const COMPACT: u8 = 3;
pub(super) const STATS: u8 = 4;
/// A process requests a takeover. The body is [`TAKEOVER_VERSION`], then the names of its shelves,
/// one per line.
pub(super) const TAKEOVER: u8 = 5;
/// The new process has opened the archive; the body is its process id as text.
pub(super) const READY: u8 = 6;
/// The new process has the right to write, and writes from now on.
pub(super) const STARTED: u8 = 7;
/// A record for subscribers that is never stored.
pub(super) const EPHEMERAL: u8 = 8;
/// A request to reload the configuration.
pub(super) const RELOAD: u8 = 9;

/// A request for the shelf's new records, from now on.
pub(super) const FOLLOW: u8 = 10;
/// A request to put a record from another store. Retention does not delete such a record for its
/// age before the operator agrees.
pub(super) const BRING: u8 = 11;

/// A request for a page of the open connections. The body and the answer are JSON.
pub(super) const CLIENTS: u8 = 12;
/// A request to close connections. The body and the answer are JSON.
pub(super) const KICK: u8 = 13;
/// A request for the report of the shelf's door. The answer is JSON.
pub(super) const DOOR: u8 = 14;
/// A request about bans, allows and the audit log. The body and the answer are JSON.
pub(super) const MODERATE: u8 = 15;
/// A request for a link that logs in once to the page for managers. The body is the maker of the
/// link as text, and the answer is JSON.
pub(super) const LINK: u8 = 16;

/// The answer to a PUT: an outcome.
pub(super) const OUTCOME: u8 = 0x81;
/// A line of progress.
pub(super) const PROGRESS: u8 = 0x82;
/// Any other answer, as text.
pub(super) const TEXT: u8 = 0x83;
/// The request failed; the body is the reason.
pub(super) const FAILED: u8 = 0x84;

/// The sockets and the lock come with the byte after this frame. The body is the last turn at which
/// the new process can claim the right to write.
pub(super) const HANDED: u8 = 0x85;
/// The new process may claim the right to write.
pub(super) const GO: u8 = 0x86;
/// The shelf is durable up to the position in the body.
pub(super) const GROWN: u8 = 0x87;
/// A part of the state of the shelf's door. The same door of the new process restores this state.
pub(super) const STATE: u8 = 0x88;

/// A new record of the shelf.
pub(super) const RECORD: u8 = 0x89;
/// Some new records were left out.
pub(super) const LAGGED: u8 = 0x8a;

/// Maximum size of a frame with a record, and of a frame between two servers, in bytes: a little
/// more than the largest record.
pub(super) const PEER_FRAME_BYTES_MAX: usize = 65 << 20;

/// The version of the takeover protocol, and of the file formats that both processes must agree on.
pub(super) const TAKEOVER_VERSION: u32 = 3;

/// Encodes a position as a body.
pub(super) fn mark_bytes(mark: LogPosition) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&mark.log.to_le_bytes());
    bytes[4..].copy_from_slice(&mark.bytes.to_le_bytes());
    bytes
}

/// Decodes a position from a body.
pub(super) fn mark(bytes: &[u8]) -> Option<LogPosition> {
    let (log, bytes) = bytes.split_first_chunk()?;
    let bytes: [u8; 8] = bytes.try_into().ok()?;
    Some(LogPosition { log: u32::from_le_bytes(*log), bytes: u64::from_le_bytes(bytes) })
}

/// Encodes ids as a body.
pub(super) fn ids_bytes(ids: &[Id]) -> Vec<u8> {
    ids.concat()
}

/// Decodes ids from a body.
pub(super) fn ids(bytes: &[u8]) -> Option<Vec<Id>> {
    let (ids, rest) = bytes.as_chunks();
    rest.is_empty().then(|| ids.to_vec())
}

/// Writes a frame. `shelf` is empty if the frame is about the whole archive.
pub(super) fn write(out: &mut impl Write, what: u8, shelf: &str, body: &[u8]) -> io::Result<()> {
    let invalid = |_| io::Error::new(io::ErrorKind::InvalidInput, "frame is too long");
    let name = u8::try_from(shelf.len()).map_err(invalid)?;
    let len = u32::try_from(2 + shelf.len() + body.len()).map_err(invalid)?;
    out.write_all(&len.to_le_bytes())?;
    out.write_all(&[what, name])?;
    out.write_all(shelf.as_bytes())?;
    out.write_all(body)
}

/// A received frame.
#[derive(Debug, Default)]
pub(super) struct ControlFrame {
    /// The type of the frame, such as [`PUT`].
    pub(super) what: u8,
    /// The frame after its type: the length of the name, the name, and the body.
    bytes: Vec<u8>,
}

impl ControlFrame {
    /// The name of the shelf that the frame is about. Empty for a frame about the whole archive.
    pub(super) fn shelf(&self) -> &str {
        self.parts().map_or("", |(shelf, _)| shelf)
    }

    /// The body. If the frame has no valid shelf name, all its bytes are the body: frames of older
    /// versions have no such name.
    pub(super) fn body(&self) -> &[u8] {
        self.parts().map_or(&self.bytes, |(_, body)| body)
    }

    fn parts(&self) -> Option<(&str, &[u8])> {
        let (len, rest) = self.bytes.split_first()?;
        let (name, body) = rest.split_at_checked(usize::from(*len))?;
        Some((str::from_utf8(name).ok()?, body))
    }

    /// The body as text.
    pub(super) fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.body())
    }

    /// Reads the next frame into `self`. Returns false at the end of the stream.
    pub(super) fn read(&mut self, from: &mut impl Read, bytes_max: usize) -> io::Result<bool> {
        self.read_bounded(from, |_| bytes_max)
    }

    /// Like [`ControlFrame::read`], with a maximum size for each type of frame.
    pub(super) fn read_bounded(
        &mut self,
        from: &mut impl Read,
        bytes_max: impl FnOnce(u8) -> usize,
    ) -> io::Result<bool> {
        let mut head = [0; 5];
        match from.read(&mut head[..1])? {
            0 => return Ok(false),
            _ => from.read_exact(&mut head[1..])?,
        }
        let [a, b, c, d, what] = head;
        let len = length([a, b, c, d], bytes_max(what))?;
        self.what = what;
        self.bytes.clear();
        let read = from.take(len as u64 - 1).read_to_end(&mut self.bytes)?;
        if read == len - 1 { Ok(true) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// Decodes the length of the rest of a frame. Fails if the length is 0 or more than `bytes_max`.
fn length(bytes: [u8; 4], bytes_max: usize) -> io::Result<usize> {
    let len = u32::from_le_bytes(bytes) as usize;
    if len == 0 || len > bytes_max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "frame is empty or too long"));
    }
    Ok(len)
}

/// Reads frames from a stream with a read timeout. Bytes of an incomplete frame are kept across a
/// timeout for the next call. A call never reads bytes beyond its frame.
#[derive(Default)]
pub(super) struct FrameReader(Vec<u8>);

impl FrameReader {
    /// Reads until the next frame is complete. Returns `None` at the end of the stream.
    pub(super) fn read(
        &mut self,
        from: &mut impl Read,
        bytes_max: usize,
    ) -> io::Result<Option<ControlFrame>> {
        loop {
            let whole = match self.0.first_chunk() {
                None => 5,
                Some(len) => 4 + length(*len, bytes_max)?,
            };
            let has = self.0.len();
            if has == whole {
                let bytes = self.0.split_off(5);
                let frame = ControlFrame { what: self.0[4], bytes };
                self.0.clear();
                return Ok(Some(frame));
            }
            self.0.resize(whole, 0);
            let read = from.read(&mut self.0[has..]);
            self.0.truncate(has + read.as_ref().map_or(0, |read| *read));
            match read {
                Ok(0) if has == 0 => return Ok(None),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The number that follows the code of a refusal if the reason is a ban. The code is that of a
/// deleted record, because a version without bans ignores the number and knows only this code.
const BANNED: u64 = 1;

/// Encodes an outcome as a body.
pub(super) fn outcome_bytes(outcome: Outcome) -> [u8; 9] {
    let (code, number) = match outcome {
        Outcome::Stored { seq } => (0, seq),
        Outcome::Duplicate => (1, 0),
        Outcome::Superseded => (2, 0),
        Outcome::Refused(Refusal::Deleted) => (3, 0),
        Outcome::Refused(Refusal::Vanished) => (4, 0),
        Outcome::Refused(Refusal::Banned) => (3, BANNED),
        Outcome::Erased(count) => (5, count),
    };
    let mut bytes = [code; 9];
    bytes[1..].copy_from_slice(&u64::to_le_bytes(number));
    bytes
}

/// Decodes an outcome from a body.
pub(super) fn outcome(bytes: &[u8]) -> Option<Outcome> {
    let (code, number) = bytes.split_first()?;
    let number = u64::from_le_bytes(*number.first_chunk()?);
    Some(match code {
        0 => Outcome::Stored { seq: number },
        1 => Outcome::Duplicate,
        2 => Outcome::Superseded,
        3 if number == BANNED => Outcome::Refused(Refusal::Banned),
        3 => Outcome::Refused(Refusal::Deleted),
        4 => Outcome::Refused(Refusal::Vanished),
        5 => Outcome::Erased(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one byte at a time, and `WouldBlock` before each.
    struct Slow<'a>(&'a [u8], bool);

    impl Read for Slow<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 { self.0.read(&mut out[..1]) } else { Err(io::ErrorKind::WouldBlock.into()) }
        }
    }

    #[test]
    fn a_frame_that_comes_in_pieces_is_read_whole_and_nothing_behind_it() {
        let mut bytes = Vec::new();
        write(&mut bytes, GROWN, "waku", &mark_bytes(LogPosition { log: 1, bytes: 2 })).unwrap();
        write(&mut bytes, READY, "", b"").unwrap();
        bytes.extend([9, 9]);
        let (mut from, mut pieces, mut frames) = (Slow(&bytes, false), FrameReader::default(), 0);
        while frames < 2 {
            match pieces.read(&mut from, 64) {
                Ok(Some(frame)) if frame.what == GROWN => {
                    assert_eq!(frame.shelf(), "waku");
                    frames += usize::from(mark(frame.body()).is_some());
                }
                Ok(Some(frame)) => frames += usize::from(frame.what == READY),
                other => assert_eq!(other.unwrap_err().kind(), io::ErrorKind::WouldBlock),
            }
        }
        assert_eq!(from.0, [9, 9]);
        assert!(FrameReader::default().read(&mut &b""[..], 64).unwrap().is_none());
        for bad in [&[0, 0, 0, 0, 7][..], &[65, 0, 0, 0, 7], &[2, 0, 0, 0, 7]] {
            assert!(FrameReader::default().read(&mut &bad[..], 64).is_err());
            assert!(ControlFrame::default().read(&mut &bad[..], 64).is_err());
        }
    }

    #[test]
    fn a_frame_without_a_name_is_all_body() {
        for body in [&b""[..], b"it takes over in another way", b"\x02x", b"\x01\xff"] {
            let frame = ControlFrame { what: FAILED, bytes: body.to_vec() };
            assert_eq!((frame.shelf(), frame.body()), ("", body));
        }
    }

    #[test]
    fn frames_and_outcomes_come_back_and_cuts_are_errors() {
        let mut bytes = Vec::new();
        write(&mut bytes, PUT, "nostr", b"abc").unwrap();
        write(&mut bytes, STATS, "", b"").unwrap();
        let (mut from, mut frame) = (&bytes[..], ControlFrame::default());
        assert!(frame.read(&mut from, 10).unwrap());
        assert_eq!((frame.what, frame.shelf(), frame.body()), (PUT, "nostr", &b"abc"[..]));
        assert!(frame.read(&mut from, 10).unwrap());
        assert_eq!((frame.what, frame.shelf(), frame.body()), (STATS, "", &b""[..]));
        assert!(!frame.read(&mut from, 10).unwrap());
        for cut in 1..14 {
            assert!(frame.read(&mut &bytes[..cut], 10).is_err(), "cut at {cut}");
        }
        assert!(frame.read(&mut &bytes[..], 9).is_err());
        let outcomes = [
            Outcome::Stored { seq: 7 },
            Outcome::Duplicate,
            Outcome::Superseded,
            Outcome::Refused(Refusal::Deleted),
            Outcome::Refused(Refusal::Vanished),
            Outcome::Refused(Refusal::Banned),
            Outcome::Erased(u64::MAX),
        ];
        for each in outcomes {
            assert_eq!(outcome(&outcome_bytes(each)), Some(each));
        }
        assert_eq!(outcome(&[]), None);
        let some = [[1; 32], [2; 32]];
        assert_eq!(ids(&ids_bytes(&some)), Some(some.to_vec()));
        assert_eq!(ids(&[0; 33]), None);
    }
}
