//! The listening sockets of a door: opened anew or handed over by another process, and served.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::net::{SocketAddrUnix, getsockname, sockopt};
use tokio::net::{TcpListener, UnixListener};

use crate::listen_address::ListenAddress;
use crate::stream::{AcceptedStream, ClientStream};
use crate::tls::TlsEndpoint;
use crate::unix_socket::{self, SocketFile};

/// The address assigned to the clients of Unix sockets: loopback. So the settings for a proxy on
/// this machine apply to both kinds of sockets.
pub(crate) const UNIX_PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A socket that a door needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WantedSocket {
    /// A TCP socket.
    Ip {
        /// The address. Port 0 stands for any free port.
        addr: SocketAddr,
        /// Whether `[::]` stands for the IPv6 addresses alone, because the door has another socket
        /// for IPv4. Ignored for other addresses.
        is_ipv6_only: bool,
    },
    /// A Unix socket with this path.
    Unix(PathBuf),
}

impl WantedSocket {
    /// Whether `socket`, which comes from another process, is bound as wanted.
    pub(crate) fn is_met_by(&self, socket: &OwnedFd) -> bool {
        let Ok(bound) = getsockname(socket) else { return false };
        match self {
            Self::Ip { addr: wanted, is_ipv6_only } => {
                let is_there = SocketAddr::try_from(bound).is_ok_and(|addr| {
                    addr.ip() == wanted.ip() && [addr.port(), 0].contains(&wanted.port())
                });
                is_there
                    && (!is_every_ipv6(*wanted)
                        || sockopt::ipv6_v6only(socket).is_ok_and(|only| only == *is_ipv6_only))
            }
            Self::Unix(path) => SocketAddrUnix::try_from(bound)
                .is_ok_and(|addr| addr.path_bytes() == Some(path.as_os_str().as_bytes())),
        }
    }

    /// The port, if the address stands for all addresses.
    fn every_address_port(&self) -> Option<u16> {
        match self {
            Self::Ip { addr, .. } if addr.ip().is_unspecified() => Some(addr.port()),
            _ => None,
        }
    }

    /// Whether this socket and `socket`, which belongs to another process, are both bound to all
    /// addresses (`0.0.0.0` or `[::]`) and to the same port. Then only one of them can be open.
    pub(crate) fn excludes(&self, socket: &OwnedFd) -> bool {
        let bound = getsockname(socket).ok().and_then(|bound| SocketAddr::try_from(bound).ok());
        let port = bound.filter(|addr| addr.ip().is_unspecified()).map(|addr| addr.port());
        port.is_some() && port == self.every_address_port()
    }

    /// The port of an IPv4 address.
    pub(crate) fn ipv4_port(&self) -> Option<u16> {
        match self {
            Self::Ip { addr, .. } if addr.is_ipv4() => Some(addr.port()),
            _ => None,
        }
    }
}

impl fmt::Display for WantedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip { addr, .. } => addr.fmt(f),
            Self::Unix(path) => ListenAddress::Unix(path.clone()).fmt(f),
        }
    }
}

/// Whether an address is `[::]`, which stands for all addresses.
fn is_every_ipv6(addr: SocketAddr) -> bool {
    addr.is_ipv6() && addr.ip().is_unspecified()
}

/// A listening socket, with its address or file.
pub(crate) enum BoundSocket {
    Tcp(std::net::TcpListener, SocketAddr),
    Unix(std::os::unix::net::UnixListener, SocketFile),
}

impl BoundSocket {
    /// Listens on the socket `handed`, or on a new socket.
    pub(crate) fn open(wanted: &WantedSocket, handed: Option<OwnedFd>) -> io::Result<Self> {
        match wanted {
            WantedSocket::Ip { addr, is_ipv6_only } => {
                let socket = match handed {
                    Some(handed) => handed.into(),
                    None => bind(*addr, *is_ipv6_only)?,
                };
                socket.set_nonblocking(true)?;
                let addr = socket.local_addr()?;
                Ok(Self::Tcp(socket, addr))
            }
            WantedSocket::Unix(path) => {
                // A handed socket whose file is missing is not used, since clients could not
                // connect.
                let socket = match handed.filter(|_| SocketFile::find(path).is_ok()) {
                    Some(handed) => handed.into(),
                    None => unix_socket::bind(path)?,
                };
                socket.set_nonblocking(true)?;
                Ok(Self::Unix(socket, SocketFile::find(path)?))
            }
        }
    }

    /// The address, with the port in use.
    pub(crate) fn address(&self) -> ListenAddress {
        match self {
            Self::Tcp(_, addr) => ListenAddress::Ip(*addr),
            Self::Unix(_, file) => ListenAddress::Unix(file.path().to_owned()),
        }
    }

    /// Registers the socket with the current runtime.
    pub(crate) fn serve(self) -> io::Result<ServedSocket> {
        Ok(match self {
            Self::Tcp(socket, _) => ServedSocket::Tcp(TcpListener::from_std(socket)?),
            Self::Unix(socket, file) => ServedSocket::Unix(UnixListener::from_std(socket)?, file),
        })
    }
}

impl AsFd for BoundSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket, _) => socket.as_fd(),
            Self::Unix(socket, _) => socket.as_fd(),
        }
    }
}

/// Opens a TCP socket, even while connections of an ended server are in TIME_WAIT.
fn bind(addr: SocketAddr, is_ipv6_only: bool) -> io::Result<std::net::TcpListener> {
    let socket = if addr.is_ipv4() {
        tokio::net::TcpSocket::new_v4()?
    } else {
        tokio::net::TcpSocket::new_v6()?
    };
    if is_every_ipv6(addr) {
        sockopt::set_ipv6_v6only(&socket, is_ipv6_only)?;
    }
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(1024)?.into_std()
}

/// A socket that a runtime serves.
pub(crate) enum ServedSocket {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

impl ServedSocket {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(ClientStream, IpAddr)>> {
        match self {
            Self::Tcp(socket) => {
                let accepted = socket.poll_accept(cx);
                accepted.map_ok(|(stream, peer)| (ClientStream::Tcp(stream), peer.ip()))
            }
            Self::Unix(socket, _) => {
                let accepted = socket.poll_accept(cx);
                accepted.map_ok(|(stream, _)| (ClientStream::Unix(stream), UNIX_PEER))
            }
        }
    }
}

/// The sockets of a door that are being served.
pub(crate) struct ServedSockets {
    sockets: Vec<ServedSocket>,
    /// Index of the socket that is polled first. The index rotates, so that every socket gets its
    /// turn.
    next: usize,
    /// The TLS of the sockets for IP addresses, if the door speaks TLS.
    tls: Option<Arc<TlsEndpoint>>,
}

impl ServedSockets {
    pub(crate) fn new(sockets: Vec<ServedSocket>, tls: Option<Arc<TlsEndpoint>>) -> Self {
        Self { sockets, next: 0, tls }
    }

    /// Accepts the next connection of any socket. No connection is lost if the future is dropped.
    pub(crate) async fn accept(&mut self) -> io::Result<(AcceptedStream, IpAddr)> {
        let accepted = std::future::poll_fn(|cx| {
            let count = self.sockets.len();
            for at in (0..count).map(|from_next| (self.next + from_next) % count) {
                if let Poll::Ready(accepted) = self.sockets[at].poll_accept(cx) {
                    self.next = (at + 1) % count;
                    return Poll::Ready(accepted);
                }
            }
            Poll::Pending
        });
        let (stream, peer) = accepted.await?;
        let tls = self.tls.as_ref().filter(|_| matches!(stream, ClientStream::Tcp(_)));
        Ok((AcceptedStream { tls: tls.map(Arc::clone), stream }, peer))
    }

    /// Closes the sockets, and removes the files of Unix sockets. After a takeover, a file stays if
    /// the other process serves its socket.
    pub(crate) fn close(self, is_replaced: bool) {
        for socket in self.sockets {
            let ServedSocket::Unix(socket, file) = socket else { continue };
            let removed = if is_replaced {
                drop(socket);
                file.remove_unused().map(drop)
            } else {
                file.remove()
            };
            if let Err(error) = removed {
                let path = file.path().display();
                tracing::warn!(
                    %error,
                    %path,
                    "the file of a socket could not be removed; the next start replaces the file"
                );
            }
        }
    }
}
