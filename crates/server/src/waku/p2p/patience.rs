//! Ends streams that a peer does not read, even if the peer reads other streams of the connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{AsyncRead, AsyncWrite};
use libp2p::core::StreamMuxer;
use libp2p::core::muxing::{StreamMuxerBox, StreamMuxerEvent, SubstreamBox};

use crate::patience::StallTimer;

/// Maximum time that a write may wait while the peer reads no byte of the stream.
const STALL_MAX: Duration = Duration::from_secs(10);

/// A connection whose streams are [`PatientStream`]s. Closing the connection takes at most
/// [`STALL_MAX`].
pub(super) struct PatientMuxer {
    muxer: StreamMuxerBox,
    /// Limits how long the connection takes to close.
    timer: StallTimer,
}

impl PatientMuxer {
    pub(super) fn new(muxer: StreamMuxerBox) -> Self {
        Self { muxer, timer: StallTimer::new(STALL_MAX) }
    }
}

/// A stream whose writes fail after waiting for [`STALL_MAX`]. Every byte that the peer reads
/// resets the timer, so a burst to a slow peer does not end the stream.
pub(super) struct PatientStream {
    stream: SubstreamBox,
    /// Limits how long a write waits.
    timer: StallTimer,
}

impl PatientStream {
    fn new(stream: SubstreamBox) -> Self {
        Self { stream, timer: StallTimer::new(STALL_MAX) }
    }
}

impl StreamMuxer for PatientMuxer {
    type Substream = PatientStream;
    type Error = io::Error;

    fn poll_inbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<PatientStream>> {
        Pin::new(&mut self.muxer).poll_inbound(cx).map_ok(PatientStream::new)
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<PatientStream>> {
        Pin::new(&mut self.muxer).poll_outbound(cx).map_ok(PatientStream::new)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.muxer).poll_close(cx);
        self.timer.watch(cx, closed)
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<StreamMuxerEvent>> {
        Pin::new(&mut self.muxer).poll(cx)
    }
}

impl AsyncRead for PatientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for PatientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.timer.watch(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }
}
