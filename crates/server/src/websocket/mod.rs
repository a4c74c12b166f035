//! The WebSocket (RFC 6455), as much of it as a session needs: receive a text, feed frames, flush.
//!
//! Frames are read where they have come to lie, and a message is copied once, to where it is kept.
//! What is fed gathers, and goes out in few writes.

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::{future::poll_fn, io, pin::Pin};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;

use buffers::{Inbox, Outbox};
pub use deflate::{Compressors, Deflate};
use frame::{Fault, Head, Opcode};
pub(crate) use handshake::Handshake;

mod buffers;
mod deflate;
mod frame;
mod handshake;

/// Bytes that gather before they are written to the connection.
const WRITE_BYTES: usize = 64 << 10;
/// Reads for one message before other tasks of the thread have their turn: whoever sends fragments
/// without end would keep the thread to itself.
const READS_AT_ONCE: usize = 8;
/// Pings answered without one write getting through, before the client is given up.
const PONGS_WAITING_MAX: u32 = 256;

/// What comes from a client.
#[derive(Debug)]
pub enum Received {
    /// A message. It may be no UTF-8.
    Text(Box<[u8]>),
    /// A binary message, which no network here has.
    Binary,
    /// A sign of life.
    Heard,
    /// The end, by a close frame or without one.
    End,
    /// The end, as the client breaks the protocol.
    Broken,
}

/// Why the server closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The server goes down.
    Away,
    /// The client has not been heard of for too long.
    Idle,
    /// The client takes too little.
    Slow,
    /// Too much of what clients have begun to send is not whole.
    Crowded,
}

/// A connection after its handshake.
pub struct Socket<S = TcpStream> {
    stream: S,
    inbox: Inbox,
    outbox: Outbox,
    deflate: Option<Arc<Compressors>>,
    message_bytes_max: usize,
    /// The message that is coming in fragments.
    begun: Option<Box<Begun>>,
    pongs_waiting: u32,
}

/// A message whose end has not come yet.
struct Begun {
    opcode: Opcode,
    compressed: bool,
    bytes: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Socket<S> {
    /// A connection of which so much was read before. Messages are compressed if that was agreed on.
    pub fn new(
        stream: S,
        read_before: &[u8],
        deflate: Option<Arc<Compressors>>,
        message_bytes_max: usize,
    ) -> Self {
        Self {
            stream,
            inbox: Inbox::new(read_before),
            outbox: Outbox::default(),
            deflate,
            message_bytes_max,
            begun: None,
            pongs_waiting: 0,
        }
    }

    /// The next message. What breaks the protocol ends the connection; the close frame that says so
    /// is already under way.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Received> {
        for _ in 0..READS_AT_ONCE {
            match self.next() {
                Ok(Some(received)) => return Poll::Ready(received),
                Ok(None) => {}
                Err(fault) => {
                    self.close_frame(Some(fault));
                    return Poll::Ready(Received::Broken);
                }
            }
            match ready!(self.inbox.poll_fill(&mut self.stream, cx)) {
                Ok(false) => {}
                Ok(true) | Err(_) => return Poll::Ready(Received::End),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The connection itself.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Says that nothing is received for a while.
    pub fn settle(&mut self) {
        self.inbox.settle();
    }

    /// What the frames that are here bring; none if more have to come.
    fn next(&mut self) -> Result<Option<Received>, Fault> {
        while let Some(head) = Head::read(self.inbox.rest())? {
            let begun = self.begun.as_ref().map_or(0, |begun| begun.bytes.len());
            if head.len.saturating_add(begun) > self.message_bytes_max {
                return Err(Fault::LENGTH);
            }
            let Some(payload) = self.inbox.take(head.size, head.len) else { return Ok(None) };
            frame::unmask(payload, head.mask);
            if head.compressed
                && (self.deflate.is_none() || !matches!(head.opcode, Opcode::Text | Opcode::Binary))
            {
                return Err(Fault::protocol("RSV1 is set where nothing is compressed"));
            }
            let payload = &*payload;
            let received = match head.opcode {
                Opcode::Text | Opcode::Binary if self.begun.is_some() => {
                    return Err(Fault::protocol("a message begins within another"));
                }
                Opcode::Text | Opcode::Binary if head.fin => {
                    let bytes = match &self.deflate {
                        Some(deflate) if head.compressed => {
                            deflate.decompress(payload, self.message_bytes_max)?.into()
                        }
                        _ => payload.into(),
                    };
                    message(head.opcode, bytes)
                }
                Opcode::Text | Opcode::Binary => {
                    let Head { opcode, compressed, .. } = head;
                    let bytes = payload.to_vec();
                    self.begun = Some(Box::new(Begun { opcode, compressed, bytes }));
                    continue;
                }
                Opcode::Continuation => {
                    let Some(begun) = &mut self.begun else {
                        return Err(Fault::protocol("a message goes on that has not begun"));
                    };
                    begun.bytes.extend_from_slice(payload);
                    let Some(begun) = self.begun.take_if(|_| head.fin) else { continue };
                    let Begun { opcode, compressed, mut bytes } = *begun;
                    if let Some(deflate) = self.deflate.as_ref().filter(|_| compressed) {
                        bytes = deflate.decompress(&bytes, self.message_bytes_max)?;
                    }
                    message(opcode, bytes.into())
                }
                Opcode::Ping => {
                    frame::write_head(self.outbox.end(), Opcode::Pong, false, payload.len());
                    self.outbox.end().extend_from_slice(payload);
                    self.pongs_waiting += 1;
                    let too_many = self.pongs_waiting > PONGS_WAITING_MAX;
                    if too_many { Received::End } else { Received::Heard }
                }
                Opcode::Pong => Received::Heard,
                Opcode::Close => {
                    let code = frame::closing(payload)?;
                    self.close_frame(code.map(|code| Fault(code, "")));
                    Received::End
                }
            };
            return Ok(Some(received));
        }
        Ok(None)
    }

    /// Whether a frame can be fed; makes room by writing where that is needed.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.outbox.len() < WRITE_BYTES { Poll::Ready(Ok(())) } else { self.poll_flush(cx) }
    }

    /// Adds a message, given in pieces, to what gathers. Only after [`Socket::poll_ready`].
    pub(crate) fn feed_text(&mut self, pieces: &[&[u8]]) {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        let out = self.outbox.end();
        if let Some(deflate) = self.deflate.as_ref().filter(|deflate| len >= deflate.from_bytes) {
            let mut compressed = Vec::with_capacity(len / 2);
            if deflate.compress(pieces, &mut compressed).is_some() {
                frame::write_head(out, Opcode::Text, true, compressed.len());
                out.extend_from_slice(&compressed);
                return;
            }
        }
        frame::write_head(out, Opcode::Text, false, len);
        for piece in pieces {
            out.extend_from_slice(piece);
        }
    }

    /// Adds a ping.
    pub(crate) fn feed_ping(&mut self) {
        frame::write_head(self.outbox.end(), Opcode::Ping, false, 0);
    }

    /// Adds the close frame.
    pub(crate) fn feed_close(&mut self, reason: Reason) {
        let (code, text) = match reason {
            Reason::Away => (1001, "the server is going down"),
            Reason::Idle => (1001, "nothing was heard for too long"),
            Reason::Slow => (1008, "too slow: too much is waiting to be read"),
            Reason::Crowded => (1013, "too many messages are under way; try again later"),
        };
        self.close_frame(Some(Fault(code, text)));
    }

    fn close_frame(&mut self, why: Option<Fault>) {
        let out = self.outbox.end();
        let Some(Fault(code, text)) = why else {
            return frame::write_head(out, Opcode::Close, false, 0);
        };
        frame::write_head(out, Opcode::Close, false, 2 + text.len());
        out.extend_from_slice(&code.to_be_bytes());
        out.extend_from_slice(text.as_bytes());
    }

    /// Writes what has gathered.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.outbox.len() > 0 {
            ready!(self.outbox.poll_send(&mut self.stream, cx))?;
            self.pongs_waiting = 0;
        }
        Poll::Ready(Ok(()))
    }

    /// Bytes of messages that have not come whole.
    pub(crate) fn unfinished(&self) -> usize {
        self.inbox.rest().len() + self.begun.as_ref().map_or(0, |begun| begun.bytes.capacity())
    }

    /// Bytes that are written and not sent.
    pub(crate) fn unsent(&self) -> usize {
        self.outbox.len()
    }

    /// Since when the client takes nothing, while something waits for it.
    pub(crate) fn stalled(&self) -> Option<Instant> {
        self.outbox.stalled()
    }

    /// Sends what is still under way, and says that nothing more comes.
    pub(crate) async fn finish(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_flush(cx)).await?;
        poll_fn(|cx| Pin::new(&mut self.stream).poll_shutdown(cx)).await
    }

    /// Reads what the client still sends and drops it, up to so many bytes or its end. A connection that is
    /// closed with something unread is reset, and a reset takes with it what the client has not read.
    pub(crate) async fn drain(&mut self, bytes_max: usize) {
        let mut drained = 0;
        poll_fn(|cx| {
            for _ in 0..READS_AT_ONCE {
                drained += self.inbox.clear();
                if drained > bytes_max {
                    return Poll::Ready(());
                }
                let Poll::Ready(filled) = self.inbox.poll_fill(&mut self.stream, cx) else {
                    self.inbox.settle();
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

fn message(opcode: Opcode, bytes: Box<[u8]>) -> Received {
    if opcode == Opcode::Text { Received::Text(bytes) } else { Received::Binary }
}
