//! The connection of a peer with TLS, for libp2p.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::{AsyncRead, AsyncWrite};
use tokio::io::ReadBuf;

/// Both sides of a connection with TLS: the server's and the client's.
trait TlsSide: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> TlsSide for S {}

/// The connection of a peer, with TLS.
pub(super) struct TlsPeerStream(Box<dyn TlsSide>);

impl TlsPeerStream {
    pub(super) fn new(
        stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        Self(Box::new(stream))
    }
}

impl AsyncRead for TlsPeerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut into = ReadBuf::new(into);
        ready!(tokio::io::AsyncRead::poll_read(Pin::new(&mut *self.0), cx, &mut into))?;
        Poll::Ready(Ok(into.filled().len()))
    }
}

impl AsyncWrite for TlsPeerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        tokio::io::AsyncWrite::poll_write(Pin::new(&mut *self.0), cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        tokio::io::AsyncWrite::poll_flush(Pin::new(&mut *self.0), cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        tokio::io::AsyncWrite::poll_shutdown(Pin::new(&mut *self.0), cx)
    }
}
