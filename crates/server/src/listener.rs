//! Listens on a port and accepts connections, in the same way for every door. Refused clients are
//! sent the reason, up to a bound on the number of such answers.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

use crate::connections::{ConnectionPermit, Connections, send_refusal};
use crate::metrics::ConnectionRefusal;
use crate::settings::SharedSettings;
use crate::stop::StopSignal;

/// Maximum number of refused connections that get the reason at the same time. Further refused
/// connections are closed without an answer.
const TURNED_AWAY_MAX: usize = 64;

/// Minimum interval between two log lines with the same message about connections.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// File descriptors that connections leave to the archive and to other sockets: an eighth of the
/// process's limit, but at least 64 and at most 1,024.
const FILES_KEPT_SHARE: u64 = 8;
const FILES_KEPT_MIN: u64 = 64;
const FILES_KEPT_MAX: u64 = 1024;

/// Returns the lowest file descriptor number at which a connection is refused. This is about the
/// maximum number of connections of the process: the system gives each file the lowest free number,
/// so a connection with this number shows that all lower numbers are in use.
pub fn files_for_connections() -> u64 {
    getrlimit(Resource::Nofile).current.map_or(u64::MAX, |allowed| {
        allowed
            - (allowed / FILES_KEPT_SHARE).clamp(FILES_KEPT_MIN, FILES_KEPT_MAX).min(allowed / 2)
    })
}

/// A log line that is written at most once per [`SAID_EVERY`], with the number of occurrences since
/// the last line.
#[derive(Default)]
struct RareLine {
    said: Option<Instant>,
    times: u64,
}

impl RareLine {
    fn due(&mut self, say: impl FnOnce(u64)) {
        self.times += 1;
        if self.said.is_none_or(|said| said.elapsed() >= SAID_EVERY) {
            say(std::mem::take(&mut self.times));
            self.said = Some(Instant::now());
        }
    }
}

/// A listening address of a door, with its connections.
pub struct Listener {
    /// `None` once the socket is served.
    socket: Mutex<Option<std::net::TcpListener>>,
    addr: SocketAddr,
    connections: Arc<Connections>,
    settings: SharedSettings,
}

impl Listener {
    /// Listens on the socket `handed`, or on a new socket.
    pub(crate) fn open(
        addr: SocketAddr,
        handed: Option<std::net::TcpListener>,
        connections: Connections,
        settings: &SharedSettings,
    ) -> io::Result<Self> {
        let socket = handed.map_or_else(|| bind(addr), Ok)?;
        socket.set_nonblocking(true)?;
        let addr = socket.local_addr()?;
        let (connections, settings) = (Arc::new(connections), Arc::clone(settings));
        Ok(Self { socket: Mutex::new(Some(socket)), addr, connections, settings })
    }

    /// The address of the socket.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// A duplicate of the socket, for a process that takes over.
    pub fn sockets(&self) -> io::Result<Vec<OwnedFd>> {
        self.socket.lock().iter().map(|socket| socket.as_fd().try_clone_to_owned()).collect()
    }

    /// The connections accepted on this address.
    pub(crate) fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// Maximum number of connections of a door.
    pub(crate) fn connections_max(&self) -> usize {
        self.settings.load().limits.connections_max
    }

    /// Admits a connection within the bounds common to all doors, or returns the reason for
    /// refusal.
    pub(crate) fn enter(
        &self,
        peer: IpAddr,
        max: usize,
    ) -> Result<ConnectionPermit, ConnectionRefusal> {
        let of_address_max = self.settings.load().limits.connections_per_address_max;
        self.connections.enter(peer, max, of_address_max)
    }

    /// Takes the socket, to be served on the current runtime. `None` if the socket is served
    /// already. If the runtime does not accept the socket, the error is logged and the result is
    /// `None`.
    pub(crate) fn take(&self) -> Option<TcpListener> {
        TcpListener::from_std(self.socket.lock().take()?)
            .inspect_err(|error| tracing::error!(%error, "an address cannot be served"))
            .ok()
    }

    /// Serves each connection in a task of its own, and returns when no connection is left.
    /// Connections that are open when the server shuts down are dropped.
    pub async fn serve<F: Future<Output = ()> + Send + 'static>(
        &self,
        stop: StopSignal,
        serve: impl Fn(TcpStream) -> F,
    ) {
        let Some(socket) = self.take() else { return };
        let enter = |peer| self.enter(peer, self.connections_max());
        let ended = stop.clone();
        let serve = |stream, _, entered| {
            let (serving, mut ended) = (serve(stream), ended.clone());
            async move {
                tokio::select! {
                    () = serving => {}
                    () = ended.serving() => {}
                }
                drop(entered);
            }
        };
        accept(socket, stop, enter, serve).await;
    }
}

/// Listens on `addr`, even while connections of an ended server are in TIME_WAIT.
fn bind(addr: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = if addr.is_ipv4() {
        tokio::net::TcpSocket::new_v4()?
    } else {
        tokio::net::TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(1024)?.into_std()
}

/// A token that the task of a connection holds until the connection ends.
pub(crate) type SessionGuard = mpsc::Sender<Infallible>;

/// Accepts connections until the server stops accepting, and returns when all connections have
/// ended. `enter` decides which connections are accepted. `serve` serves one connection in its own
/// task. The task holds the result of `enter` and a [`SessionGuard`] until the connection ends.
pub(crate) async fn accept<T, F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    mut stop: StopSignal,
    enter: impl Fn(IpAddr) -> Result<T, ConnectionRefusal>,
    serve: impl Fn(TcpStream, IpAddr, (T, SessionGuard)) -> F,
) {
    let (alive, mut all_gone) = mpsc::channel(1);
    let turning_away = Arc::new(Semaphore::new(TURNED_AWAY_MAX));
    let files_max = files_for_connections();
    let (mut few_files, mut not_accepted) = (RareLine::default(), RareLine::default());
    loop {
        let accepted = tokio::select! {
            () = stop.accepting() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            // No reason is sent: a client would hold a file descriptor until it has read the
            // reason.
            Ok((stream, _)) if stream.as_raw_fd() as u64 >= files_max => few_files.due(|refused| {
                tracing::warn!(
                    refused,
                    "connections are refused, as the process has few files left to open, which the archive needs; \
                     allow it more files (ulimit -Hn, LimitNOFILE), or lower limits.connections_max"
                );
            }),
            Ok((stream, peer)) => match enter(peer.ip()) {
                Ok(entered) => {
                    tokio::spawn(serve(stream, peer.ip(), (entered, alive.clone())));
                }
                Err(why) => {
                    if let Ok(permit) = Arc::clone(&turning_away).try_acquire_owned() {
                        tokio::spawn(async move {
                            send_refusal(stream, why).await;
                            drop(permit);
                        });
                    }
                }
            },
            // The most likely cause is a lack of file descriptors. Connections that end free some.
            Err(error) => {
                not_accepted.due(|times| {
                    tracing::warn!(%error, times, "the system does not let the server accept; it tries again");
                });
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    // The port is closed while the open connections are served to their ends.
    drop((listener, alive));
    all_gone.recv().await;
}
