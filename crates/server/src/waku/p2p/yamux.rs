//! yamux with a bound for the unread bytes of a connection.
//!
//! The library lets the window of a stream grow with the round-trip time. A peer that delays its
//! answer to a ping makes the time long, and could then fill a window of up to 1 GiB at once. So
//! every window keeps its first size here, [`yamux::DEFAULT_CREDIT`] (256 KiB). A stream can carry
//! this number of bytes in each round trip: 512 KiB per second if a round trip takes half a second.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::iter::{Once, once};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::{AsyncRead, AsyncWrite};
use libp2p::core::StreamMuxer;
use libp2p::core::muxing::StreamMuxerEvent;
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use yamux::{Config, Connection, ConnectionError, Mode, Stream};

/// The name of the protocol.
const PROTOCOL: &str = "/yamux/1.0.0";

/// Upgrades a connection to yamux, with the bound for unread bytes.
#[derive(Clone)]
pub(super) struct BoundedYamux(Config);

impl BoundedYamux {
    /// Allows `streams_max` streams on a connection.
    pub(super) fn new(streams_max: usize) -> Self {
        let mut config = Config::default();
        config.set_max_num_streams(streams_max);
        // The first windows of all streams use up this bound, so no window grows.
        let windows = streams_max * yamux::DEFAULT_CREDIT as usize;
        config.set_max_connection_receive_window(Some(windows));
        Self(config)
    }
}

impl UpgradeInfo for BoundedYamux {
    type Info = &'static str;
    type InfoIter = Once<&'static str>;

    fn protocol_info(&self) -> Self::InfoIter {
        once(PROTOCOL)
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> InboundConnectionUpgrade<C> for BoundedYamux {
    type Output = YamuxMuxer<C>;
    type Error = Infallible;
    type Future = Ready<Result<YamuxMuxer<C>, Infallible>>;

    fn upgrade_inbound(self, socket: C, _: &'static str) -> Self::Future {
        ready(Ok(YamuxMuxer::new(socket, self.0, Mode::Server)))
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> OutboundConnectionUpgrade<C> for BoundedYamux {
    type Output = YamuxMuxer<C>;
    type Error = Infallible;
    type Future = Ready<Result<YamuxMuxer<C>, Infallible>>;

    fn upgrade_outbound(self, socket: C, _: &'static str) -> Self::Future {
        ready(Ok(YamuxMuxer::new(socket, self.0, Mode::Client)))
    }
}

/// A connection with yamux.
pub(super) struct YamuxMuxer<C> {
    connection: Connection<C>,
    /// Streams that the peer has opened and that wait for [`StreamMuxer::poll_inbound`]. The
    /// connection bounds the number of its streams.
    opened: VecDeque<Stream>,
}

impl<C: AsyncRead + AsyncWrite + Unpin> YamuxMuxer<C> {
    fn new(socket: C, config: Config, mode: Mode) -> Self {
        Self { connection: Connection::new(socket, config, mode), opened: VecDeque::new() }
    }

    /// Reads from the connection until the peer opens a stream.
    fn poll_opened(&mut self, cx: &mut Context<'_>) -> Poll<Result<Stream, ConnectionError>> {
        let opened = ready!(self.connection.poll_next_inbound(cx));
        Poll::Ready(opened.unwrap_or(Err(ConnectionError::Closed)))
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> StreamMuxer for YamuxMuxer<C> {
    type Substream = Stream;
    type Error = ConnectionError;

    fn poll_inbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Stream, ConnectionError>> {
        match self.opened.pop_front() {
            Some(stream) => Poll::Ready(Ok(stream)),
            None => self.poll_opened(cx),
        }
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Stream, ConnectionError>> {
        self.connection.poll_new_outbound(cx)
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ConnectionError>> {
        self.connection.poll_close(cx)
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<StreamMuxerEvent, ConnectionError>> {
        let stream = ready!(self.poll_opened(cx))?;
        self.opened.push_back(stream);
        // The task polls the connection again after its other work.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::task::Waker;

    use libp2p::core::muxing::StreamMuxerExt as _;

    use super::*;

    const WINDOW: usize = yamux::DEFAULT_CREDIT as usize;
    /// Length of a frame's header.
    const HEADER: usize = 12;
    /// The types and the flags of frames.
    const DATA: u8 = 0;
    const WINDOW_UPDATE: u8 = 1;
    const PING: u8 = 2;
    const SYN: u8 = 1;
    const ACK: u8 = 2;

    /// A header: version, type, flags, number of the stream, and a length.
    fn header(kind: u8, flags: u8, stream: u32, len: u32) -> Vec<u8> {
        let mut bytes = vec![0, kind, 0, flags];
        bytes.extend(stream.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes
    }

    /// A peer that sends as many bytes as the window of its stream allows, and answers the first
    /// ping only after `pong_after` bytes.
    struct Flood {
        pong_after: usize,
        /// Bytes that the peer may send, and bytes that the peer has sent.
        credit: usize,
        sent: usize,
        ping: Option<u32>,
        /// Bytes on the way to the node, and bytes that the node has written.
        sending: VecDeque<u8>,
        received: Vec<u8>,
    }

    impl Flood {
        fn new(pong_after: usize) -> Self {
            let sending = header(WINDOW_UPDATE, SYN, 1, 0).into();
            Self { pong_after, credit: WINDOW, sent: 0, ping: None, sending, received: Vec::new() }
        }

        /// Reads the frames of the node.
        fn receive(&mut self) {
            while self.received.len() >= HEADER {
                let (kind, flags) = (self.received[1], self.received[3]);
                let value = u32::from_be_bytes(self.received[8..HEADER].try_into().unwrap());
                match kind {
                    WINDOW_UPDATE => self.credit += value as usize,
                    PING if flags & ACK == 0 => self.ping = Some(value),
                    _ => panic!("the node writes no data"),
                }
                self.received.drain(..HEADER);
            }
        }
    }

    impl AsyncRead for Flood {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            into: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            if self.sending.is_empty() {
                self.receive();
                let is_late = self.sent >= self.pong_after;
                if let Some(ping) = self.ping.take_if(|_| is_late) {
                    self.sending.extend(header(PING, ACK, 0, ping));
                }
                let len = self.credit.min(16 << 10);
                if len > 0 {
                    self.sending.extend(header(DATA, 0, 1, len as u32));
                    self.sending.extend(std::iter::repeat_n(7, len));
                    self.credit -= len;
                    self.sent += len;
                }
            }
            if self.sending.is_empty() {
                return Poll::Pending;
            }
            let read = io::Read::read(&mut self.sending, into)?;
            Poll::Ready(Ok(read))
        }
    }

    impl AsyncWrite for Flood {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.received.extend_from_slice(bytes);
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_stream_of_a_peer_that_answers_late_holds_no_more_than_its_first_window() {
        const PONG_AFTER: usize = 16 << 20;
        let upgrade = BoundedYamux::new(144);
        let mut muxer = upgrade.upgrade_inbound(Flood::new(PONG_AFTER), PROTOCOL).await.unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        let mut stream = loop {
            if let Poll::Ready(stream) = muxer.poll_inbound_unpin(&mut cx) {
                break stream.unwrap();
            }
        };
        let (mut bytes, mut read, mut longest) = (vec![0; WINDOW], 0, 0);
        while read < 4 * PONG_AFTER {
            assert!(muxer.poll_unpin(&mut cx).is_pending());
            let mut held = 0;
            while let Poll::Ready(count) = Pin::new(&mut stream).poll_read(&mut cx, &mut bytes) {
                held += count.unwrap();
            }
            assert!(held > 0, "the peer sends on");
            read += held;
            longest = longest.max(held);
        }
        assert!(longest <= WINDOW, "the stream held {longest} bytes");
    }
}
