//! The connection that a task serves, and the bytes of its stream.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::futures::TaskLocalFuture;

use super::connection::OpenConnection;
use super::refusals::ClientRefusal;
use crate::rate::{ClientRates, RateGroups};

tokio::task_local! {
    /// The connection that this task serves. Nothing is counted in a task that serves no connection
    /// of the list, such as a fetch from another node.
    static SERVED: Arc<OpenConnection>;
}

/// Runs `work` for a connection, without waiting.
#[cfg(feature = "libp2p")]
pub(crate) fn serve_now<T>(connection: &Arc<OpenConnection>, work: impl FnOnce() -> T) -> T {
    SERVED.sync_scope(Arc::clone(connection), work)
}

/// Runs `work` for a connection. Within `work`, [`serving`] returns the connection.
pub(crate) fn while_serving<F: Future>(
    connection: &Arc<OpenConnection>,
    work: F,
) -> TaskLocalFuture<Arc<OpenConnection>, F> {
    SERVED.scope(Arc::clone(connection), work)
}

/// The connection that this task serves. `None` for a task that serves no connection, and for a
/// connection that is in no list.
pub(crate) fn serving() -> Option<Arc<OpenConnection>> {
    SERVED.try_with(Arc::clone).ok()
}

/// Returns the groups of the client whose connection this task serves. `None` if the rates are the
/// same for everyone, or if this task serves no connection.
pub(crate) fn find_rates(groups: &Arc<RateGroups>) -> Option<Arc<ClientRates>> {
    SERVED.try_with(|connection| connection.rates(groups)).ok().flatten()
}

/// Counts a question of the client whose connection this task serves.
pub(crate) fn count_question() {
    let _ = SERVED.try_with(|connection| connection.counts.questions.add(1));
}

/// Counts a record of the client whose connection this task serves, as accepted.
pub(crate) fn count_accepted() {
    let _ = SERVED.try_with(|connection| connection.counts.accepted.add(1));
}

/// Counts a refusal of the client whose connection this task serves.
pub(crate) fn count_refusal(refusal: &ClientRefusal<'_>) {
    let _ = SERVED.try_with(|connection| connection.refuse(refusal));
}

/// Adds rows that a question has visited to the connection that this task serves.
pub(crate) fn charge_rows(rows: u64) {
    let _ = SERVED.try_with(|connection| connection.counts.rows.add(rows));
}

/// A stream that counts its bytes for a connection.
pub(crate) struct CountedStream<S> {
    stream: S,
    connection: Arc<OpenConnection>,
}

impl<S> CountedStream<S> {
    pub(crate) fn new(stream: S, connection: &Arc<OpenConnection>) -> Self {
        Self { stream, connection: Arc::clone(connection) }
    }

    fn count_sent(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = written {
            self.connection.counts.send(*bytes);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        self.connection.counts.receive(into.filled().len() - before);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.count_sent(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.count_sent(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
