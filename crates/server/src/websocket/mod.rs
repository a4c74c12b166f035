//! The part of the WebSocket protocol (RFC 6455) that a session needs: receive a text, feed frames,
//! flush.
//!
//! Frames are parsed in place in the read buffer, and a message is copied once, out of that buffer.
//! Frames to send are buffered, and written together.

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::{future::poll_fn, io, pin::Pin};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use buffers::{ReadBuffer, WriteBuffer};
pub use deflate::{Compressors, DeflateOptions};
use frame::{CloseFault, FrameHeader, Opcode};
pub(crate) use framing::{FramedMessages, Framing};
pub use handshake::HandshakeFault;
pub(crate) use handshake::{Handshake, lost_upgrade};

use crate::stream::ClientStream;

mod buffers;
mod deflate;
mod frame;
mod framing;
mod handshake;

/// Number of bytes that are buffered before they are written to the connection.
const WRITE_BYTES: usize = 64 << 10;
/// Maximum number of reads for one message before the task yields to other tasks of its thread.
/// Otherwise a client that sends endless fragments would occupy the thread.
const READS_AT_ONCE: usize = 8;
/// Maximum number of pings that are answered without a successful write. One more ping ends the
/// connection.
const PONGS_WAITING_MAX: u32 = 256;

/// Input received from a client.
#[derive(Debug)]
pub enum ClientInput {
    /// A text message, which may be invalid UTF-8.
    Text(Box<[u8]>),
    /// A binary message, which no network here uses.
    Binary,
    /// A control frame that only shows that the client is alive.
    Alive,
    /// The connection ended, with or without a close frame.
    End,
    /// The connection ended, because the client violated the protocol.
    Broken,
}

/// Why the server closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The server shuts down.
    Away,
    /// Nothing was received from the client for too long.
    Idle,
    /// The client reads too slowly.
    Slow,
    /// The incomplete messages of all clients take too much memory.
    Crowded,
}

/// Maximum number of bytes of the text in a close frame (RFC 6455, section 5.5).
const CLOSE_TEXT_BYTES_MAX: usize = 123;

/// A connection after its handshake.
pub struct Socket<S = ClientStream> {
    stream: S,
    inbox: ReadBuffer,
    outbox: WriteBuffer,
    framing: Framing,
    message_bytes_max: usize,
    /// The fragmented message that is being received.
    begun: Option<Box<PartialMessage>>,
    pongs_waiting: u32,
}

/// A message whose last fragment has not been received.
struct PartialMessage {
    opcode: Opcode,
    compressed: bool,
    bytes: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Socket<S> {
    /// A socket on a connection. `read_before` holds the bytes that were read already, and
    /// `deflate` is present if both sides agreed on compression.
    pub fn new(
        stream: S,
        read_before: &[u8],
        deflate: Option<Arc<Compressors>>,
        message_bytes_max: usize,
    ) -> Self {
        Self {
            stream,
            inbox: ReadBuffer::new(read_before),
            outbox: WriteBuffer::default(),
            framing: Framing(deflate),
            message_bytes_max,
            begun: None,
            pongs_waiting: 0,
        }
    }

    /// Returns the next message. On [`ClientInput::Broken`], a close frame with the reason is
    /// already buffered.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<ClientInput> {
        for _ in 0..READS_AT_ONCE {
            match self.next() {
                Ok(Some(received)) => return Poll::Ready(received),
                Ok(None) => {}
                Err(fault) => {
                    self.close_frame(Some(fault));
                    return Poll::Ready(ClientInput::Broken);
                }
            }
            match ready!(self.inbox.poll_fill(&mut self.stream, cx)) {
                Ok(false) => {}
                Ok(true) | Err(_) => return Poll::Ready(ClientInput::End),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The connection itself.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Shrinks the read buffer to its unread bytes, as nothing is read for a while.
    pub fn shrink_buffers(&mut self) {
        self.inbox.shrink_buffers();
    }

    /// Takes the next message from the buffered frames. `None` if the message needs more bytes.
    fn next(&mut self) -> Result<Option<ClientInput>, CloseFault> {
        while let Some(head) = FrameHeader::read(self.inbox.unread())? {
            let begun = self.begun.as_ref().map_or(0, |begun| begun.bytes.len());
            if head.len.saturating_add(begun) > self.message_bytes_max {
                return Err(CloseFault::LENGTH);
            }
            let Some(payload) = self.inbox.take(head.size, head.len) else { return Ok(None) };
            frame::unmask(payload, head.mask);
            if head.compressed
                && (self.framing.0.is_none()
                    || !matches!(head.opcode, Opcode::Text | Opcode::Binary))
            {
                return Err(CloseFault::protocol("RSV1 is set where nothing is compressed"));
            }
            let payload = &*payload;
            let received = match head.opcode {
                Opcode::Text | Opcode::Binary if self.begun.is_some() => {
                    return Err(CloseFault::protocol("a message begins within another"));
                }
                Opcode::Text | Opcode::Binary if head.fin => {
                    let bytes = match &self.framing.0 {
                        Some(deflate) if head.compressed => {
                            deflate.decompress(payload, self.message_bytes_max)?.into()
                        }
                        _ => payload.into(),
                    };
                    message(head.opcode, bytes)
                }
                Opcode::Text | Opcode::Binary => {
                    let FrameHeader { opcode, compressed, .. } = head;
                    let bytes = payload.to_vec();
                    self.begun = Some(Box::new(PartialMessage { opcode, compressed, bytes }));
                    continue;
                }
                Opcode::Continuation => {
                    let Some(begun) = &mut self.begun else {
                        return Err(CloseFault::protocol(
                            "a continuation frame has no message to continue",
                        ));
                    };
                    begun.bytes.extend_from_slice(payload);
                    let Some(begun) = self.begun.take_if(|_| head.fin) else { continue };
                    let PartialMessage { opcode, compressed, mut bytes } = *begun;
                    if let Some(deflate) = self.framing.0.as_ref().filter(|_| compressed) {
                        bytes = deflate.decompress(&bytes, self.message_bytes_max)?;
                    }
                    message(opcode, bytes.into())
                }
                Opcode::Ping => {
                    frame::write_head(self.outbox.end(), Opcode::Pong, false, payload.len());
                    self.outbox.end().extend_from_slice(payload);
                    self.pongs_waiting += 1;
                    let too_many = self.pongs_waiting > PONGS_WAITING_MAX;
                    if too_many { ClientInput::End } else { ClientInput::Alive }
                }
                Opcode::Pong => ClientInput::Alive,
                Opcode::Close => {
                    let code = frame::closing(payload)?;
                    self.close_frame(code.map(|code| CloseFault(code, "")));
                    ClientInput::End
                }
            };
            return Ok(Some(received));
        }
        Ok(None)
    }

    /// Waits until a frame can be fed. Flushes the buffer if it is full.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.outbox.len() < WRITE_BYTES { Poll::Ready(Ok(())) } else { self.poll_flush(cx) }
    }

    /// The encoder of this connection's messages.
    pub(crate) fn framing(&self) -> &Framing {
        &self.framing
    }

    /// Buffers a message, given in pieces. To be called only after [`Socket::poll_ready`].
    pub(crate) fn feed_text(&mut self, pieces: &[&[u8]]) {
        self.framing.write(self.outbox.end(), pieces);
    }

    /// Buffers messages that are frames already. To be called only after [`Socket::poll_ready`].
    pub(crate) fn feed_framed(&mut self, messages: FramedMessages) {
        self.outbox.append(messages.bytes);
    }

    /// Buffers a ping.
    pub(crate) fn feed_ping(&mut self) {
        frame::write_head(self.outbox.end(), Opcode::Ping, false, 0);
    }

    /// Buffers the close frame.
    pub(crate) fn feed_close(&mut self, reason: CloseReason) {
        let (code, text) = match reason {
            CloseReason::Away => (1001, "the server is going down"),
            CloseReason::Idle => (1001, "nothing was received for too long"),
            CloseReason::Slow => (1008, "too slow: too much is waiting to be read"),
            CloseReason::Crowded => (1013, "too many messages are under way; try again later"),
        };
        self.close_frame(Some(CloseFault(code, text)));
    }

    /// Buffers the close frame with a text of the operator, which is cut if it is too long.
    pub(crate) fn feed_close_text(&mut self, code: u16, text: &str) {
        let text = &text[..text.floor_char_boundary(CLOSE_TEXT_BYTES_MAX)];
        let out = self.outbox.end();
        frame::write_head(out, Opcode::Close, false, 2 + text.len());
        out.extend_from_slice(&code.to_be_bytes());
        out.extend_from_slice(text.as_bytes());
    }

    fn close_frame(&mut self, why: Option<CloseFault>) {
        let Some(CloseFault(code, text)) = why else {
            return frame::write_head(self.outbox.end(), Opcode::Close, false, 0);
        };
        self.feed_close_text(code, text);
    }

    /// Writes the buffered frames to the connection.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.outbox.is_pending() {
            ready!(self.outbox.poll_send(&mut self.stream, cx))?;
            self.pongs_waiting = 0;
        }
        Poll::Ready(Ok(()))
    }

    /// Number of bytes that were received, and that were sent, over the whole connection. The bytes
    /// of TLS are not included.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        (self.inbox.received, self.outbox.sent_before)
    }

    /// Memory of incomplete messages, in bytes.
    pub(crate) fn unfinished(&self) -> usize {
        self.inbox.memory() + self.begun.as_ref().map_or(0, |begun| begun.bytes.capacity())
    }

    /// Number of bytes that are buffered and not sent.
    pub(crate) fn unsent(&self) -> usize {
        self.outbox.len()
    }

    /// The time since which the client reads nothing although bytes wait. `None` if the client
    /// reads.
    pub(crate) fn stalled(&self) -> Option<Instant> {
        self.outbox.stalled()
    }

    /// Sends the buffered bytes, and shuts down the sending side.
    pub(crate) async fn finish(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_flush(cx)).await?;
        poll_fn(|cx| Pin::new(&mut self.stream).poll_shutdown(cx)).await
    }

    /// Reads and drops the client's further data, up to `bytes_max` bytes or the end of the stream.
    /// Closing a connection with unread bytes resets the connection, and a reset discards the bytes
    /// that the client has not read.
    pub(crate) async fn drain(&mut self, bytes_max: usize) {
        let mut drained = 0;
        poll_fn(|cx| {
            for _ in 0..READS_AT_ONCE {
                drained += self.inbox.clear();
                if drained > bytes_max {
                    return Poll::Ready(());
                }
                let Poll::Ready(filled) = self.inbox.poll_fill(&mut self.stream, cx) else {
                    self.inbox.shrink_buffers();
                    return Poll::Pending;
                };
                if !matches!(filled, Ok(false)) {
                    return Poll::Ready(());
                }
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

fn message(opcode: Opcode, bytes: Box<[u8]>) -> ClientInput {
    if opcode == Opcode::Text { ClientInput::Text(bytes) } else { ClientInput::Binary }
}
