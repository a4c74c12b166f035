//! A connection with a time limit for writes: a write fails if the peer reads nothing for too long.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Limits the time that an operation may wait without progress.
pub(crate) struct StallTimer {
    max: Duration,
    /// The timer, while an operation waits.
    over: Option<Pin<Box<Sleep>>>,
}

impl StallTimer {
    /// Creates a timer for operations that may wait for the time `max`.
    pub(crate) fn new(max: Duration) -> Self {
        Self { max, over: None }
    }

    /// Passes on the result of polling an operation. Returns an error once the operation has waited
    /// for the time `max`.
    pub(crate) fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.over = None;
            return polled;
        }
        let max = self.max;
        ready!(self.over.get_or_insert_with(|| Box::pin(sleep(max))).as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

/// A stream whose write fails if it makes no progress for the time `max`. Every written byte
/// restarts the time.
pub(crate) struct TimedStream<S> {
    stream: S,
    timer: StallTimer,
}

impl<S> TimedStream<S> {
    pub(crate) fn new(stream: S, max: Duration) -> Self {
        Self { stream, timer: StallTimer::new(max) }
    }

    pub(crate) fn into_inner(self) -> S {
        self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.timer.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.timer.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.timer.watch(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.timer.watch(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn who_takes_nothing_ends_the_write_and_who_takes_does_not() {
        let (ours, mut theirs) = duplex(10);
        let mut ours = TimedStream::new(ours, Duration::from_millis(50));
        let error = ours.write_all(&[0; 15]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        theirs.read_exact(&mut [0; 10]).await.unwrap();
        ours.write_all(&[0; 10]).await.unwrap();
    }
}
