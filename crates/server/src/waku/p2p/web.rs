//! A bound for the messages of WebSockets.
//!
//! A frame states its length in its header, and the library allocates this length at once: up to
//! 256 MiB, before the peer is authenticated. The library's own bound applies only to connections
//! that this node accepts. So this module reads the bytes that arrive before the library, and breaks
//! a connection with a longer message.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::{AsyncRead, AsyncWrite};

/// Maximum length of a message, in all its frames. The frames of Noise have at most 64 KiB, and a
/// message may contain several of these frames.
const MESSAGE_MAX: u64 = 2 << 20;
/// Maximum length of the HTTP request or response with which a WebSocket begins.
const HEAD_MAX: usize = 16 << 10;

/// A connection whose WebSocket messages are bounded.
pub(super) struct BoundedMessages<C> {
    socket: C,
    reader: WebFrameReader,
}

impl<C> BoundedMessages<C> {
    pub(super) fn new(socket: C) -> Self {
        Self { socket, reader: WebFrameReader::default() }
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for BoundedMessages<C> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let read = ready!(Pin::new(&mut this.socket).poll_read(cx, into))?;
        this.reader.read(&into[..read])?;
        Poll::Ready(Ok(read))
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for BoundedMessages<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(cx)
    }
}

/// Reads the HTTP head of a WebSocket, and the headers of its frames (RFC 6455, section 5.2).
#[derive(Default)]
struct WebFrameReader {
    head: HttpHead,
    /// The bytes of the current frame's header so far.
    header: Vec<u8>,
    /// Number of bytes of the current frame that have yet to arrive.
    payload_left: u64,
    /// Length of the current message so far.
    message: u64,
}

impl WebFrameReader {
    /// Reads bytes that have arrived. Fails if a message or the HTTP head is too long.
    fn read(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some((&byte, behind)) = bytes.split_first() {
            if self.payload_left > 0 {
                let count = (bytes.len() as u64).min(self.payload_left);
                self.payload_left -= count;
                bytes = &bytes[count as usize..];
                continue;
            }
            bytes = behind;
            if !self.head.is_over {
                self.head.read(byte)?;
                continue;
            }
            self.header.push(byte);
            if self.header.len() == header_len(&self.header) {
                self.begin_frame()?;
                self.header.clear();
            }
        }
        Ok(())
    }

    /// Begins the frame whose header has arrived.
    fn begin_frame(&mut self) -> io::Result<()> {
        let (is_last, is_control) = (self.header[0] & 0x80 != 0, self.header[0] & 0x08 != 0);
        self.payload_left = payload_len(&self.header);
        // Control frames may stand between the frames of a message.
        let before = if is_control { 0 } else { self.message };
        let message = before.saturating_add(self.payload_left);
        if message > MESSAGE_MAX {
            return Err(too_long("a WebSocket message"));
        }
        if !is_control {
            self.message = if is_last { 0 } else { message };
        }
        Ok(())
    }
}

/// The length of a frame's header. Until two bytes have arrived, the length is not known, and is 2.
fn header_len(header: &[u8]) -> usize {
    let Some(second) = header.get(1) else { return 2 };
    let mask = if second & 0x80 == 0 { 0 } else { 4 };
    let extended = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    2 + extended + mask
}

/// The length of a frame's data, by the frame's header.
fn payload_len(header: &[u8]) -> u64 {
    let extended = match header[1] & 0x7f {
        126 => &header[2..4],
        127 => &header[2..10],
        short => return short.into(),
    };
    extended.iter().fold(0, |len, byte| len << 8 | u64::from(*byte))
}

/// The HTTP head of a WebSocket. It ends with an empty line. As in the library, a line may end
/// without CR, and empty lines before the first line are skipped. Otherwise a peer could make this
/// module take the head's end for a frame, and pass a long frame by.
#[derive(Default)]
struct HttpHead {
    len: usize,
    /// Whether the current line has bytes other than CR.
    has_bytes: bool,
    /// Whether a line that is not empty has ended.
    has_line: bool,
    is_over: bool,
}

impl HttpHead {
    fn read(&mut self, byte: u8) -> io::Result<()> {
        self.len += 1;
        if self.len > HEAD_MAX {
            return Err(too_long("the HTTP head of a WebSocket"));
        }
        match byte {
            b'\n' => {
                self.is_over = self.has_line && !self.has_bytes;
                self.has_line |= self.has_bytes;
                self.has_bytes = false;
            }
            b'\r' => {}
            _ => self.has_bytes = true,
        }
        Ok(())
    }
}

fn too_long(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what} is too long"))
}

#[cfg(test)]
mod tests {
    use futures_util::AsyncReadExt as _;
    use futures_util::io::Cursor;
    use hark_testkit::random::Random;

    use super::*;

    const HEAD: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";
    const MAX: usize = MESSAGE_MAX as usize;

    /// A frame with `len` bytes of data.
    fn frame(first: u8, is_masked: bool, len: usize) -> Vec<u8> {
        let mask = if is_masked { 0x80 } else { 0 };
        let mut bytes = vec![first];
        match len {
            0..126 => bytes.push(mask | len as u8),
            126..0x1_0000 => {
                bytes.push(mask | 0x7e);
                bytes.extend((len as u16).to_be_bytes());
            }
            _ => {
                bytes.push(mask | 0x7f);
                bytes.extend((len as u64).to_be_bytes());
            }
        }
        if is_masked {
            bytes.extend([1, 2, 3, 4]);
        }
        // Data that looks like the header of a long frame.
        bytes.resize(bytes.len() + len, 0xff);
        bytes
    }

    /// Reads these bytes as a peer's connection, in pieces of random lengths.
    async fn read(bytes: &[u8], random: &mut Random) -> io::Result<()> {
        let mut socket = BoundedMessages::new(Cursor::new(bytes));
        let mut into = vec![0; 1 << 16];
        loop {
            let max = 1 + random.below(into.len());
            if socket.read(&mut into[..max]).await? == 0 {
                return Ok(());
            }
        }
    }

    #[tokio::test]
    async fn messages_up_to_the_bound_pass_and_longer_ones_break_the_connection() {
        let mut random = Random::new(3);
        let ping = frame(0x89, true, 125);
        for is_masked in [false, true] {
            let whole = |len| frame(0x82, is_masked, len);
            let (begin, next) = (|len| frame(0x02, is_masked, len), |len| frame(0, is_masked, len));
            let last = |len| frame(0x80, is_masked, len);
            for (frames, passes) in [
                (vec![whole(0), whole(125), whole(126), whole(0xffff), whole(0x1_0000)], true),
                (vec![whole(MAX), ping.clone(), whole(MAX)], true),
                (vec![whole(MAX + 1)], false),
                (vec![begin(MAX - 2), next(1), ping.clone(), last(1), whole(MAX)], true),
                (vec![begin(MAX - 2), next(1), ping.clone(), last(2)], false),
                (vec![begin(1), frame(0x89, is_masked, MAX + 1)], false),
            ] {
                let bytes = [HEAD, &frames.concat()].concat();
                for _ in 0..20 {
                    assert_eq!(read(&bytes, &mut random).await.is_ok(), passes);
                }
            }
        }
    }

    #[tokio::test]
    async fn a_header_alone_breaks_the_connection_and_is_not_passed_on() {
        let long = [0x82, 127, 0, 0, 0, 0, 0x10, 0, 0, 0];
        let bytes = [HEAD, &long].concat();
        let mut socket = BoundedMessages::new(Cursor::new(bytes));
        let mut read = vec![0; HEAD.len() + 9];
        socket.read_exact(&mut read).await.unwrap();
        assert!(socket.read(&mut [0]).await.is_err());
    }

    #[tokio::test]
    async fn an_http_head_is_bounded_and_ends_where_the_library_ends_it() {
        let long = frame(0x82, false, MAX + 1);
        let random = &mut Random::new(4);
        for head in [
            "\r\n\n\r\nHTTP/1.1 101 a\r\nb: c\r\n\r\n",
            "GET / HTTP/1.1\nb: c\n\n",
            "GET / HTTP/1.1\nb: c\r\n\n",
            "GET / HTTP/1.1\r\n\r\n",
        ] {
            assert!(read(head.as_bytes(), random).await.is_ok());
            let bytes = [head.as_bytes(), &frame(0x82, false, 7), &long].concat();
            assert!(read(&bytes, random).await.is_err(), "{head:?}");
        }
        let endless = [b"GET / HTTP/1.1\r\na: ".as_slice(), &[b'b'; HEAD_MAX]].concat();
        assert!(read(&endless, random).await.is_err());
    }
}
