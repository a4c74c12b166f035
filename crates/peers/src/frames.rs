//! Skips messages that are too long, so that one long event does not end a connection.
//!
//! The WebSocket library cannot continue after such a message, so this layer is below the library.
//! If the first frame of a message is too long, this layer passes on a short message instead. The
//! short message states the length of the long message and contains its first bytes
//! ([`crate::message`] reads this form). If only later frames make a message too long, the
//! WebSocket ends the connection.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, ready};

use serde_json::json;
use tokio::io::{AsyncBufRead as _, AsyncRead, AsyncWrite, BufReader, ReadBuf};

/// The label of the short message that replaces a long message. The label is random in each
/// process, so that no relay can send such a message itself.
pub(crate) static TOO_LONG: LazyLock<String> =
    LazyLock::new(|| format!("TOO LONG {:016x}", RandomState::new().hash_one(0)));

/// Number of bytes kept from the start of a long message, including the label and the subscription.
const BEGINNING: usize = 128;
/// The end of the answer to the handshake. Frames follow.
const HEAD_END: &[u8; 4] = b"\r\n\r\n";
const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const OPCODE: u8 = 0x0f;
const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const MASKED: u8 = 0x80;
const LEN: u8 = 0x7f;

/// A connection to a WebSocket server, before its handshake.
pub(crate) struct BoundedFrames<S> {
    inner: BufReader<S>,
    filter: FrameFilter,
    /// Number of bytes in `filter.ready` that were passed on.
    passed: usize,
}

/// Divides the received bytes into frames, and removes the frames of long messages.
struct FrameFilter {
    message_bytes_max: u64,
    at: FramePart,
    /// Bytes that the filter passes on.
    ready: Vec<u8>,
    /// The message that is being skipped: the length of its first frame, and its first bytes.
    long: Option<(u64, Vec<u8>)>,
}

/// The part of the stream to which the next bytes belong.
enum FramePart {
    /// The answer to the handshake. The number is how many bytes of [`HEAD_END`] the last received
    /// bytes match.
    Head(usize),
    /// The bytes of a frame's header that have been received.
    Header(Vec<u8>),
    /// A frame that is passed on, with the number of remaining bytes.
    Passed(u64),
    /// A frame that is skipped, with the number of remaining bytes, and whether it is the last
    /// frame of the message.
    Skipped(u64, bool),
    /// Bytes that are not valid frames of a server. They are passed on, and the WebSocket library
    /// reports the error.
    Unknown,
}

impl<S: AsyncRead> BoundedFrames<S> {
    /// Wraps `stream`, and reads up to `read_bytes` bytes at a time.
    pub(crate) fn new(stream: S, message_bytes_max: usize, read_bytes: usize) -> Self {
        let filter = FrameFilter::new(message_bytes_max as u64);
        Self { inner: BufReader::with_capacity(read_bytes, stream), filter, passed: 0 }
    }
}

impl FrameFilter {
    fn new(message_bytes_max: u64) -> Self {
        Self { message_bytes_max, at: FramePart::Head(0), ready: Vec::new(), long: None }
    }

    /// Processes some of the received bytes, and appends at most `room` bytes of them to `ready`.
    /// Returns the number of processed bytes.
    fn process(&mut self, came: &[u8], room: usize) -> usize {
        match &mut self.at {
            FramePart::Head(matched) => {
                let mut taken = 0;
                for &byte in &came[..room.min(came.len())] {
                    taken += 1;
                    *matched = match *matched {
                        have if HEAD_END[have] == byte => have + 1,
                        _ => usize::from(byte == HEAD_END[0]),
                    };
                    if *matched == HEAD_END.len() {
                        self.at = FramePart::Header(Vec::new());
                        break;
                    }
                }
                self.ready.extend_from_slice(&came[..taken]);
                taken
            }
            FramePart::Header(header) => {
                header.push(came[0]);
                if let Some(at) = frame(header) {
                    let header = std::mem::take(header);
                    self.begin(&header, at);
                }
                1
            }
            FramePart::Passed(left) => {
                let taken = limited(*left, room.min(came.len()));
                self.ready.extend_from_slice(&came[..taken]);
                *left -= taken as u64;
                if *left == 0 {
                    self.at = FramePart::Header(Vec::new());
                }
                taken
            }
            FramePart::Skipped(left, is_last) => {
                let (taken, is_last) = (limited(*left, came.len()), *is_last);
                *left -= taken as u64;
                let is_whole = *left == 0;
                if let Some((_, beginning)) = &mut self.long {
                    let kept = taken.min(BEGINNING.saturating_sub(beginning.len()));
                    beginning.extend_from_slice(&came[..kept]);
                }
                if is_whole {
                    self.end_skipped(is_last);
                }
                taken
            }
            FramePart::Unknown => {
                let taken = room.min(came.len());
                self.ready.extend_from_slice(&came[..taken]);
                taken
            }
        }
    }

    /// Begins a frame with this header and length: decides whether the frame is passed on or
    /// skipped.
    fn begin(&mut self, header: &[u8], len: FrameLength) {
        let first = header[0];
        let FrameLength::Bytes(len) = len else {
            self.ready.extend_from_slice(header);
            self.at = FramePart::Unknown;
            return;
        };
        let is_long = match first & OPCODE {
            CONTINUATION => self.long.is_some(),
            TEXT => len > self.message_bytes_max,
            _ => false,
        };
        if is_long {
            self.long.get_or_insert_with(|| (len, Vec::new()));
            self.at = FramePart::Skipped(len, first & FIN != 0);
            if len == 0 {
                self.end_skipped(first & FIN != 0);
            }
            return;
        }
        self.ready.extend_from_slice(header);
        self.at = if len == 0 { FramePart::Header(Vec::new()) } else { FramePart::Passed(len) };
    }

    /// Ends a skipped frame. After the last frame of the message, passes on a short message
    /// instead.
    fn end_skipped(&mut self, is_last: bool) {
        self.at = FramePart::Header(Vec::new());
        if !is_last {
            return;
        }
        if let Some((len, beginning)) = self.long.take() {
            let text = json!([*TOO_LONG, len.to_string(), String::from_utf8_lossy(&beginning)]);
            let text = text.to_string();
            // Escaping makes the text at most six times as long as `BEGINNING`, so its length fits
            // into 16 bits.
            let [high, low] = (text.len() as u16).to_be_bytes();
            self.ready.extend_from_slice(&[FIN | TEXT, 126, high, low]);
            self.ready.extend_from_slice(text.as_bytes());
        }
    }
}

fn limited(left: u64, room: usize) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(room)
}

/// The length in a frame's header.
#[derive(Clone, Copy)]
enum FrameLength {
    Bytes(u64),
    /// The header of a frame that no server sends.
    Unknown,
}

/// Reads the length of a frame once its header is complete.
fn frame(header: &[u8]) -> Option<FrameLength> {
    let (&[first, second], rest) = header.split_first_chunk()?;
    if first & RESERVED != 0 || second & MASKED != 0 {
        return Some(FrameLength::Unknown);
    }
    Some(FrameLength::Bytes(match second & LEN {
        126 => u16::from_be_bytes(rest.try_into().ok()?).into(),
        127 => u64::from_be_bytes(rest.try_into().ok()?),
        len => len.into(),
    }))
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedFrames<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { inner, filter, passed } = self.get_mut();
        loop {
            let ready = filter.ready.get(*passed..).unwrap_or_default();
            if !ready.is_empty() || buf.remaining() == 0 {
                let count = buf.remaining().min(ready.len());
                buf.put_slice(&ready[..count]);
                *passed += count;
                return Poll::Ready(Ok(()));
            }
            filter.ready.clear();
            *passed = 0;
            let came = ready!(Pin::new(&mut *inner).poll_fill_buf(context))?;
            if came.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let mut taken = 0;
            while taken < came.len() && filter.ready.len() < buf.remaining() {
                let room = buf.remaining() - filter.ready.len();
                taken += filter.process(&came[taken..], room);
            }
            Pin::new(&mut *inner).consume(taken);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for BoundedFrames<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(context, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let len = payload.len();
        let mut frame = vec![first];
        match len {
            0..126 => frame.push(len as u8),
            126..65_536 => frame.extend([&[126][..], &(len as u16).to_be_bytes()].concat()),
            _ => frame.extend([&[127][..], &(len as u64).to_be_bytes()].concat()),
        }
        [frame, payload.to_vec()].concat()
    }

    /// Returns the bytes that the filter passes on if `frames` arrive in pieces of `step` bytes.
    fn passed(frames: &[u8], step: usize) -> Vec<u8> {
        let mut filter = FrameFilter::new(1000);
        let all = [&b"HTTP/1.1 101\r\nX: \r\r\n\r\n"[..], frames].concat();
        for mut came in all.chunks(step) {
            while !came.is_empty() {
                let taken = filter.process(came, 7);
                assert!(taken > 0);
                came = &came[taken..];
            }
        }
        let head = filter.ready.windows(4).position(|end| end == HEAD_END).unwrap() + 4;
        filter.ready[head..].to_vec()
    }

    #[test]
    fn a_long_message_is_replaced_and_all_others_pass() {
        let long = format!("[\"EVENT\",\"h1\",{{\"id\":\"{}", "é".repeat(40_000));
        let short =
            [frame(FIN | TEXT, b"[1]"), frame(0x89, b"ping"), frame(FIN | TEXT, b"")].concat();
        let whole = [
            short.clone(),
            frame(FIN | TEXT, long.as_bytes()),
            short.clone(),
            // A long message in parts, with a control frame between the parts.
            frame(TEXT, long.as_bytes()),
            frame(0x89, b"x"),
            frame(CONTINUATION, &[b'y'; 300]),
            frame(FIN, b""),
            // A short message in parts.
            frame(TEXT, &[b'a'; 700]),
            frame(FIN, &[b'b'; 900]),
        ];
        for step in [1, 2, 3, 64, 1 << 20] {
            let got = passed(&whole.concat(), step);
            let said = String::from_utf8_lossy(&got);
            let message =
                format!("[\"{}\",\"{}\",\"[\\\"EVENT\\\",\\\"h1\\\",", *TOO_LONG, long.len());
            assert_eq!(said.matches(&message).count(), 2, "{step}: {said}");
            assert!(got.len() < 4_000 && got.starts_with(&short), "{step}");
            assert!(got.ends_with(&[&whole[7][..], &whole[8]].concat()), "{step}");
            let ping = frame(0x89, b"x");
            assert!(got.windows(ping.len()).any(|some| some == ping), "{step}");
        }
    }

    #[test]
    fn what_is_no_frame_of_a_server_is_left_to_the_websocket() {
        for odd in [&b"<html>not a frame"[..], &[0x81, 0x85, 1, 2, 3, 4, 9, 9, 9, 9, 9]] {
            assert_eq!(passed(&[odd, &[7; 3000]].concat(), 50), [odd, &[7; 3000]].concat());
        }
    }
}
