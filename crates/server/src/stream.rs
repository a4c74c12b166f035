//! The connection of a client, by TCP, with or without TLS, or by a Unix socket.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::stop::StopSignal;
use crate::tls::{EncryptedStream, TlsEndpoint};

/// The connection of a client.
#[derive(Debug)]
pub enum ClientStream {
    /// A client, or a proxy, that connects to an IP address.
    Tcp(TcpStream),
    /// A client that connects to an IP address, with TLS.
    Tls(Box<EncryptedStream<TcpStream>>),
    /// A proxy on this machine.
    Unix(UnixStream),
}

/// A connection that was accepted, before its TLS handshake if the door speaks TLS.
pub(crate) struct AcceptedStream {
    /// The connection, still without TLS.
    pub(crate) stream: ClientStream,
    /// The TLS of the door. `None` for a door without TLS, and for a Unix socket.
    pub(crate) tls: Option<Arc<TlsEndpoint>>,
}

impl AcceptedStream {
    /// The server's IP address on the connection. `None` for a Unix socket.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        match &self.stream {
            ClientStream::Tcp(stream) => stream.local_addr().ok(),
            ClientStream::Tls(_) | ClientStream::Unix(_) => None,
        }
    }

    /// Performs the TLS handshake if the door speaks TLS. `None` if the handshake fails or the
    /// server shuts down meanwhile; the connection is then closed.
    pub(crate) async fn open(self, stop: &mut StopSignal) -> Option<ClientStream> {
        match (self.stream, self.tls) {
            (ClientStream::Tcp(stream), Some(tls)) => {
                // On the heap, so that the tasks of connections without TLS stay small.
                let handshake = Box::pin(tls.accept(stream));
                let accepted = tokio::select! {
                    biased;
                    accepted = handshake => accepted,
                    () = stop.serving() => None,
                };
                accepted.map(|stream| ClientStream::Tls(Box::new(stream)))
            }
            (stream, _) => Some(stream),
        }
    }
}

impl ClientStream {
    /// Disables Nagle's algorithm, which would only delay answers, as these are written whole.
    pub(crate) fn send_at_once(&self) {
        if let Self::Tcp(stream) = self {
            // A failure only delays answers.
            let _ = stream.set_nodelay(true);
        }
    }
}

impl AsRawFd for ClientStream {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Tls(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, into),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, into),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
