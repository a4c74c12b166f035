//! Listens on addresses and accepts connections, in the same way for every door. Refused clients
//! receive the reason, but only a bounded number of clients at a time.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use tokio::sync::{Semaphore, mpsc};

use crate::connections::{ConnectionPermit, Connections, send_refusal};
use crate::listen_address::ListenAddress;
use crate::metrics::ConnectionRefusal;
use crate::settings::SharedSettings;
use crate::sockets::{BoundSocket, ServedSockets};
use crate::stop::StopSignal;
use crate::stream::AcceptedStream;
pub use crate::stream::ClientStream;
use crate::tls::TlsEndpoint;

/// Maximum number of refused connections that get the reason at the same time. Further refused
/// connections are closed without an answer.
const TURNED_AWAY_MAX: usize = 64;

/// Minimum interval between two log lines with the same message about connections.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// Number of file descriptors that connections leave to the archive and to other sockets: an eighth
/// of the process's limit, but at least 64 and at most 1,024.
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

/// The listening sockets of a door, and the connections that they accept.
pub struct Listener {
    /// The sockets, until they are served.
    sockets: Mutex<Vec<BoundSocket>>,
    addresses: Vec<ListenAddress>,
    connections: Arc<Connections>,
    settings: SharedSettings,
    /// The TLS of the sockets for IP addresses. `None` for a door without TLS.
    tls: Option<Arc<TlsEndpoint>>,
}

impl Listener {
    /// Creates a listener for these sockets, whose connections share their bounds.
    pub(crate) fn new(
        sockets: Vec<BoundSocket>,
        connections: Connections,
        settings: &SharedSettings,
    ) -> Self {
        let (connections, settings) = (Arc::new(connections), Arc::clone(settings));
        let addresses = sockets.iter().map(BoundSocket::address).collect();
        Self { sockets: Mutex::new(sockets), addresses, connections, settings, tls: None }
    }

    /// Makes the sockets for IP addresses speak TLS, if `tls` is present.
    pub(crate) fn with_tls(self, tls: Option<Arc<TlsEndpoint>>) -> Self {
        Self { tls, ..self }
    }

    /// Whether the sockets for IP addresses speak TLS.
    pub(crate) fn speaks_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The URLs at which clients reach the sockets. `scheme` is the scheme without TLS: `ws` or
    /// `http`.
    pub(crate) fn urls(&self, scheme: &'static str) -> impl Iterator<Item = String> {
        let scheme = format!("{scheme}{}", if self.speaks_tls() { "s" } else { "" });
        self.addresses.iter().map(move |address| address.url(&scheme))
    }

    /// The IP addresses of the sockets.
    pub(crate) fn ip_addrs(&self) -> Vec<SocketAddr> {
        let addresses = self.addresses.iter();
        addresses.filter_map(ListenAddress::ip).collect()
    }

    /// Duplicates of the sockets, for a process that takes over.
    pub fn sockets(&self) -> io::Result<Vec<OwnedFd>> {
        self.sockets.lock().iter().map(|socket| socket.as_fd().try_clone_to_owned()).collect()
    }

    /// The connections accepted on these addresses.
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
        let of_address_max = self.settings.load().connections_of(peer);
        self.connections.enter(peer, max, of_address_max)
    }

    /// Takes the sockets, to be served on the current runtime. `None` if the sockets are served
    /// already. A socket that the runtime does not accept is logged and left out.
    pub(crate) fn take(&self) -> Option<ServedSockets> {
        let sockets = std::mem::take(&mut *self.sockets.lock()).into_iter().filter_map(|socket| {
            let served = socket.serve();
            served.inspect_err(|error| tracing::error!(%error, "an address cannot be served")).ok()
        });
        let sockets: Vec<_> = sockets.collect();
        (!sockets.is_empty()).then(|| ServedSockets::new(sockets, self.tls.clone()))
    }

    /// Serves each connection in a task of its own, and returns when no connection is left.
    /// Connections that are open when the server shuts down are dropped.
    pub async fn serve<F: Future<Output = ()> + Send + 'static>(
        &self,
        stop: StopSignal,
        serve: impl Fn(ClientStream, IpAddr) -> F,
    ) {
        let Some(sockets) = self.take() else { return };
        let enter = |peer| self.enter(peer, self.connections_max());
        let ended = stop.clone();
        let serve = |accepted: AcceptedStream, peer, entered| {
            // No listener that is served here has TLS.
            let (serving, mut ended) = (serve(accepted.stream, peer), ended.clone());
            async move {
                tokio::select! {
                    () = serving => {}
                    () = ended.serving() => {}
                }
                drop(entered);
            }
        };
        accept(sockets, stop, enter, serve).await;
    }
}

/// A token that the task of a connection holds until the connection ends.
pub(crate) type SessionGuard = mpsc::Sender<Infallible>;

/// Accepts connections until the server stops accepting, and returns when all connections have
/// ended. `enter` decides which connections are accepted. `serve` serves one connection in its own
/// task. The task holds the result of `enter` and a [`SessionGuard`] until the connection ends.
pub(crate) async fn accept<T, F: Future<Output = ()> + Send + 'static>(
    mut sockets: ServedSockets,
    mut stop: StopSignal,
    enter: impl Fn(IpAddr) -> Result<T, ConnectionRefusal>,
    serve: impl Fn(AcceptedStream, IpAddr, (T, SessionGuard)) -> F,
) {
    let (alive, mut all_gone) = mpsc::channel(1);
    let turning_away = Arc::new(Semaphore::new(TURNED_AWAY_MAX));
    let files_max = files_for_connections();
    let (mut few_files, mut not_accepted) = (RareLine::default(), RareLine::default());
    loop {
        let accepted = tokio::select! {
            () = stop.accepting() => break,
            accepted = sockets.accept() => accepted,
        };
        match accepted {
            // No reason is sent: a client would hold a file descriptor until it has read the
            // reason.
            Ok((accepted, _)) if accepted.stream.as_raw_fd() as u64 >= files_max => {
                few_files.due(|refused| {
                    tracing::warn!(
                        refused,
                        "connections are refused, as the process has few files left to open, which the archive \
                         needs; allow it more files (ulimit -Hn, LimitNOFILE), or lower limits.connections_max"
                    );
                });
            }
            Ok((accepted, peer)) => match enter(peer) {
                Ok(entered) => {
                    tokio::spawn(serve(accepted, peer, (entered, alive.clone())));
                }
                // A client would get the reason only after a TLS handshake. A refused client must
                // not cause the work of a handshake.
                Err(_) if accepted.tls.is_some() => {}
                Err(why) => {
                    if let Ok(permit) = Arc::clone(&turning_away).try_acquire_owned() {
                        tokio::spawn(async move {
                            send_refusal(accepted.stream, why).await;
                            drop(permit);
                        });
                    }
                }
            },
            // The most likely cause is a lack of file descriptors. Descriptors become free when
            // connections end.
            Err(error) => {
                not_accepted.due(|times| {
                    tracing::warn!(%error, times, "the system does not let the server accept; it tries again");
                });
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    // The addresses are closed while the open connections are served to their ends.
    sockets.close(stop.is_replaced());
    drop(alive);
    all_gone.recv().await;
}
