//! The WebSocket, as little of it as a session needs: receive a text, feed frames, flush. The only
//! file that names the crate behind it.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use axum::http::HeaderMap;
use axum::http::header::SEC_WEBSOCKET_EXTENSIONS;
use bytes::Bytes;
use futures_util::{Sink, SinkExt};
use hark_archive::limits::Limits;
use yawc::close::CloseCode;
use yawc::{DeflatePool, Frame, HttpWebSocket, OpCode, Options, WebSocketError};

/// Bytes that gather before they are written to the connection.
const WRITE_BYTES: usize = 64 << 10;
/// Bytes of each buffer of a connection at rest.
const READ_BYTES: usize = 2 << 10;
/// Pings answered without one write getting through, before the client is given up.
const PONGS_WAITING_MAX: u32 = 256;

/// Compressors that wait for a message, for all connections together.
const COMPRESSORS_IDLE_MAX: usize = 16;

/// Whether and how messages are compressed (permessage-deflate, RFC 7692).
///
/// Neither side keeps anything from one message to the next, which the answer to the handshake says:
/// so a connection at rest holds no compressor, and these are shared.
#[derive(Debug)]
pub(crate) struct Deflate(Option<Options>);

impl Deflate {
    /// Compresses messages of `from_bytes` and more for those who offer it; 0 for nobody.
    pub(crate) fn new(from_bytes: usize) -> Self {
        let options = || {
            Options::default()
                .with_low_latency_compression()
                .server_no_context_takeover()
                .client_no_context_takeover()
                .with_deflate_pool(DeflatePool::new(COMPRESSORS_IDLE_MAX))
                .with_compression_threshold(from_bytes)
        };
        Self((from_bytes > 0).then(options))
    }

    /// How a handshake with these headers is answered.
    pub(crate) fn options(&self, limits: &Limits, headers: &HeaderMap) -> Options {
        let compressed = self.0.as_ref().filter(|_| is_offer(headers));
        compressed
            .cloned()
            .unwrap_or_default()
            // Both bounds are exclusive there. They hold for a message as it is compressed, and
            // again while it is brought back to its length.
            .with_limits(limits.message_bytes_max + 1, limits.message_bytes_max + 1)
            .with_read_buffer_capacity(READ_BYTES)
            .with_write_buffer_capacity(READ_BYTES)
            .with_backpressure_boundary(WRITE_BYTES)
    }
}

/// Whether the client offers compression on terms that can be kept. An offer with others, like a
/// smaller window for what the server sends, has to be declined as a whole.
fn is_offer(headers: &HeaderMap) -> bool {
    let offer = headers.get(SEC_WEBSOCKET_EXTENSIONS).and_then(|offer| offer.to_str().ok());
    let mut words = offer.into_iter().flat_map(|offer| offer.split(';')).map(str::trim);
    words.next() == Some("permessage-deflate")
        && words.all(|term| {
            let name = term.split('=').next().unwrap_or_default().trim();
            ["client_max_window_bits", "client_no_context_takeover", "server_no_context_takeover"]
                .contains(&name)
        })
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
    /// The end, as the client breaks the protocol.
    Broken,
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
        let frame = match ready!(self.inner.poll_next_frame(cx)) {
            Ok(frame) => frame,
            Err(WebSocketError::IoError(_) | WebSocketError::ConnectionClosed) => {
                return Poll::Ready(Received::End);
            }
            Err(_) => return Poll::Ready(Received::Broken),
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
