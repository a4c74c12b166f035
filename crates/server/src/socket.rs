//! The WebSocket, as little of it as a session needs: receive a text, feed frames, flush. The only
//! file that names the crate behind it.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::{Sink, SinkExt};
use hark_archive::limits::Limits;
use yawc::close::CloseCode;
use yawc::{Frame, HttpWebSocket, OpCode, Options, WebSocketError};

/// Bytes that gather before they are written to the connection.
const WRITE_BYTES: usize = 64 << 10;
/// Bytes of the read buffer of a connection at rest.
const READ_BYTES: usize = 8 << 10;
/// Pings answered without one write getting through, before the client is given up.
const PONGS_WAITING_MAX: u32 = 256;

/// How the handshake is answered.
pub(crate) fn options(limits: &Limits) -> Options {
    Options::default()
        .without_compression()
        // Both bounds are exclusive there.
        .with_limits(limits.message_bytes_max + 1, limits.message_bytes_max + 1)
        .with_read_buffer_capacity(READ_BYTES)
        .with_write_buffer_capacity(READ_BYTES)
        .with_backpressure_boundary(WRITE_BYTES)
}

/// What comes from a client.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message.
    Text(Bytes),
    /// A binary message, which no network here has.
    Binary,
    /// A sign of life.
    Heard,
    /// The end, by a close frame or without one.
    End,
}

/// Why the server closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The server goes down.
    Away,
    /// The client has not been heard of for too long.
    Idle,
    /// The client takes too little.
    Slow,
}

/// A connection after its handshake.
pub(crate) struct Socket {
    inner: HttpWebSocket,
    unflushed: bool,
    pongs_waiting: u32,
}

type Result<T> = std::result::Result<T, WebSocketError>;

impl Socket {
    pub(crate) fn new(inner: HttpWebSocket) -> Self {
        Self { inner, unflushed: false, pongs_waiting: 0 }
    }

    /// The next message. What breaks the protocol ends the connection; the close frame that says so
    /// is already under way.
    pub(crate) fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Received> {
        let Ok(frame) = ready!(self.inner.poll_next_frame(cx)) else {
            return Poll::Ready(Received::End);
        };
        Poll::Ready(match frame.opcode() {
            OpCode::Text => Received::Text(frame.into_payload()),
            OpCode::Close => Received::End,
            OpCode::Ping => {
                // The pong is queued by now, and goes with the next flush.
                self.unflushed = true;
                self.pongs_waiting += 1;
                if self.pongs_waiting > PONGS_WAITING_MAX { Received::End } else { Received::Heard }
            }
            OpCode::Pong => Received::Heard,
            OpCode::Binary | OpCode::Continuation => Received::Binary,
        })
    }

    /// Whether a frame can be fed; makes room by writing where that is needed.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.inner.poll_ready_unpin(cx)
    }

    /// Adds a message to what gathers. Only after [`Socket::poll_ready`].
    pub(crate) fn feed_text(&mut self, text: Bytes) -> Result<()> {
        self.feed(Frame::text(text))
    }

    /// Adds a ping.
    pub(crate) fn feed_ping(&mut self) -> Result<()> {
        self.feed(Frame::ping(Bytes::new()))
    }

    /// Adds the close frame.
    pub(crate) fn feed_close(&mut self, reason: Reason) -> Result<()> {
        let (code, text) = match reason {
            Reason::Away => (CloseCode::Away, "the server is going down"),
            Reason::Idle => (CloseCode::Away, "nothing was heard for too long"),
            Reason::Slow => (CloseCode::Policy, "too slow: too much is waiting to be read"),
        };
        self.feed(Frame::close(code, text))
    }

    fn feed(&mut self, frame: Frame) -> Result<()> {
        self.unflushed = true;
        std::pin::Pin::new(&mut self.inner).start_send(frame)
    }

    /// Writes what has gathered.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if self.unflushed {
            ready!(self.inner.poll_ready_unpin(cx))?;
            ready!(self.inner.poll_flush_unpin(cx))?;
            self.unflushed = false;
            self.pongs_waiting = 0;
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the connection, with what is still under way.
    pub(crate) async fn close(mut self) {
        // The frame that answers the client's close, or says what broke the protocol, waits in front
        // of this, and the crate would send another in its place. Errors: whether the client still
        // hears it is its own affair.
        let _ = poll_fn(|cx| self.inner.poll_ready_unpin(cx)).await;
        let _ = self.inner.flush().await;
        let _ = self.inner.close().await;
    }
}
