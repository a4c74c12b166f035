//! A door: the endpoint to which the clients of one network connect. The relay's WebSocket, REST
//! interfaces and the connections of peers are doors, or parts of a door.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::{fmt, io};

use hark_archive::Record;
use serde_json::{Map, Value};

pub use crate::admin::http::Operators;
use crate::admin::takeover::Takeover;
use crate::answers::Answers;
use crate::connections::Connections;
use crate::listen_address::ListenAddress;
use crate::listener::Listener;
use crate::metrics::MetricsPage;
use crate::moderation::Moderation;
use crate::settings::SharedSettings;
use crate::sockets::{BoundSocket, UNIX_PEER, WantedSocket};
use crate::stop::StopSignal;
use crate::tls::TlsEndpoint;
use crate::{Clients, ServeError, Shelf, blocking};

/// The open endpoints of one network.
pub trait Door: Send + Sync {
    /// The addresses at which clients reach this door.
    fn addresses(&self) -> Vec<DoorAddress>;

    /// The listening sockets of this door. A process that takes over continues to use the sockets.
    /// Open connections do not move: at a takeover, the door serves them until they end, or closes
    /// them so that the clients connect to the new process.
    fn listeners(&self) -> io::Result<Vec<OwnedFd>>;

    /// The state that a takeover transfers in addition to the sockets, in parts. The new process
    /// restores these parts, so that no client loses anything.
    fn state(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// Restores one part of the [`Door::state`] that the same door had in the previous process.
    fn restore(&self, part: &[u8]) {
        let _ = part;
    }

    /// Sends a record to this node's peers. After a takeover, only the new process has connections
    /// to peers, but a client may still publish at the previous process, which passes the record to
    /// the new process.
    fn forward(&self, record: &Record<'_>) {
        let _ = record;
    }

    /// Whether an operator has banned a record that a command or another relay has sent. Records of
    /// the door's clients are checked by the door itself.
    fn refuses(&self, record: &Record<'_>) -> bool {
        let _ = record;
        false
    }

    /// Writes the door's own metrics for Prometheus. The metrics of the shelves are written
    /// elsewhere.
    fn metrics(&self, page: &mut MetricsPage) {
        let _ = page;
    }

    /// The door's statistics for `hark stats`: as fields for programs, and as rows for people.
    fn stats(&self) -> (Map<String, Value>, Vec<StatusRow>) {
        (Map::new(), Vec::new())
    }

    /// The report of the door's state for operators, as JSON of at most 1 MiB. `None` if the door
    /// has no report. Called on a thread that may block.
    fn report(&self) -> Option<Value> {
        None
    }

    /// Makes a link that logs in once to the door's page for managers, for the person `maker`. The
    /// answer has the link as `url`, or only its path as `path` if the address of the page is not
    /// known.
    fn admin_link(&self, maker: &str) -> Result<Value, AdminLinkFault> {
        let _ = maker;
        Err(AdminLinkFault::NoPage)
    }

    /// The configured host names under which clients reach this server.
    fn host_names(&self) -> Vec<String> {
        Vec::new()
    }

    /// Advice for the operator while the door serves, one line per item.
    fn advice(&self) -> Vec<String> {
        Vec::new()
    }

    /// Logs each burst of refusals as one line, and ends connections that stop the answers to all
    /// others. Called every ten seconds.
    fn check_load(&self) {}

    /// Serves until `stop` is signalled and every connection has ended.
    fn serve(self: Arc<Self>, operators: Operators, stop: StopSignal) -> DoorFuture;

    /// Finishes the accepted work. Called when no connection is served any more.
    fn close(&self) {}
}

/// An address at which clients reach a door, printed as a line of output once the door is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoorAddress {
    /// The words before the address: `listening on` for the first door.
    pub what: &'static str,
    /// A URL, or another address in the form that the network's clients use.
    pub at: String,
}

impl fmt::Display for DoorAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.what, self.at)
    }
}

/// Why a link to the page for managers was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdminLinkFault {
    /// The door has no such page.
    #[error("this network has no page for managers")]
    NoPage,
    /// The operator has disabled the page.
    #[error("the page /admin is off: [manage] page is false")]
    Off,
    /// The secret of the link could not be made.
    #[error("the system has no random bytes; try again")]
    Random,
}

/// A row of a table for people: its subject, its value and a remark.
pub type StatusRow = (&'static str, String, String);

/// The future that serves a door.
pub type DoorFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A network that is to be served.
pub trait ServableNetwork: Send {
    /// Opens the network's shelf and its door. Nothing is served before [`Door::serve`].
    fn open<'a>(self: Box<Self>, host: &'a mut Host<'_>) -> OpenFuture<'a>;
}

/// The future that opens a network.
pub type OpenFuture<'a> =
    Pin<Box<dyn Future<Output = Result<OpenNetwork, ServeError>> + Send + 'a>>;

/// A network that has been opened.
#[derive(Clone)]
pub struct OpenNetwork {
    /// The network's part of the archive.
    pub shelf: Arc<Shelf>,
    /// The endpoint of the network's clients.
    pub door: Arc<dyn Door>,
}

/// The settings and services that a server provides to its doors.
pub struct Host<'a> {
    /// Bounds and lists that can change while the server runs.
    pub(crate) settings: SharedSettings,
    /// Decides which clients may connect.
    pub clients: Clients,
    /// The bans and allows that are kept in the archive.
    pub moderation: Moderation,
    /// Bounds the answers that clients of these doors have not read yet.
    pub(crate) answers: Answers,
    /// Whether rate limits are disabled, for tests and benchmarks.
    pub unlimited: bool,
    /// The TLS of the relay. `None` if the relay does not speak TLS.
    pub(crate) tls: Option<Arc<TlsEndpoint>>,
    /// The TLS of the REST doors. `None` if these doors do not speak TLS.
    pub(crate) rest_tls: Option<Arc<TlsEndpoint>>,
    /// The TLS of peers' addresses that name TLS. `None` if the server has no certificate.
    #[cfg(feature = "libp2p")]
    pub(crate) peer_tls: Option<Arc<TlsEndpoint>>,
    /// The takeover under way. `None` if this server does not take over.
    pub(crate) taking: Option<&'a mut Takeover>,
}

impl Host<'_> {
    /// Whether this process takes over from a process that still serves.
    pub fn is_taking_over(&self) -> bool {
        self.taking.is_some()
    }

    /// Listens on one address. Returns the listener, and the address with the port in use. Errors
    /// name `setting`, the setting by which an operator can choose another address.
    pub fn listen(
        &mut self,
        addr: SocketAddr,
        setting: &'static str,
    ) -> Result<(Listener, SocketAddr), ServeError> {
        let wanted = WantedSocket::Ip { addr, is_ipv6_only: false };
        let socket = self.open(&wanted, setting, &addr)?;
        let addr = socket.address().ip().unwrap_or(addr);
        Ok((self.listener(vec![socket]), addr))
    }

    /// Listens on the configured Unix sockets, and on every address to which the other configured
    /// addresses resolve, once per address.
    pub async fn listen_on(
        &mut self,
        addresses: &[ListenAddress],
        setting: &'static str,
    ) -> Result<Listener, ServeError> {
        let mut wanted: Vec<(WantedSocket, &ListenAddress)> = Vec::new();
        for address in addresses {
            for socket in resolve(address, setting).await? {
                if wanted.iter().all(|(known, _)| *known != socket) {
                    wanted.push((socket, address));
                }
            }
        }
        let max = ListenAddress::OF_DOOR_MAX;
        if wanted.len() > max {
            return Err(ServeError::TooManyAddresses { max, setting });
        }
        let ports = wanted.iter().filter_map(|(socket, _)| socket.ipv4_port());
        let ipv4_ports: Vec<u16> = ports.collect();
        let mut sockets = Vec::with_capacity(wanted.len());
        for (mut socket, address) in wanted {
            if let WantedSocket::Ip { addr, is_ipv6_only } = &mut socket {
                *is_ipv6_only = ipv4_ports.contains(&addr.port());
            } else if !self.clients.is_proxy(UNIX_PEER) {
                tracing::warn!(
                    "all clients of {address} count as one client, {UNIX_PEER}, since no proxy is \
                     trusted at this address. If only a proxy that names its clients connects there, \
                     add \"{UNIX_PEER}\" to server.trusted_proxies"
                );
            }
            sockets.push(self.open(&socket, setting, address)?);
        }
        Ok(self.listener(sockets))
    }

    /// Opens a socket: the socket that the previous process handed over, or a new socket.
    fn open(
        &mut self,
        wanted: &WantedSocket,
        setting: &'static str,
        configured: &dyn fmt::Display,
    ) -> Result<BoundSocket, ServeError> {
        let handed = self.taking.as_mut().and_then(|taking| taking.socket(wanted));
        BoundSocket::open(wanted, handed).map_err(|cause| {
            let (addr, configured) = (wanted.to_string(), configured.to_string());
            let named = if configured == addr { addr } else { format!("{addr} ({configured})") };
            let is_excluded = self.taking.as_ref().is_some_and(|taking| taking.excludes(wanted));
            if cause.kind() == io::ErrorKind::AddrInUse && is_excluded {
                return ServeError::OtherSockets { addr: named };
            }
            ServeError::Listen { addr: named, setting, cause }
        })
    }

    fn listener(&self, sockets: Vec<BoundSocket>) -> Listener {
        let connections = Connections::new(self.clients.clone(), self.unlimited);
        Listener::new(sockets, connections, &self.settings)
    }
}

/// Returns the sockets of an address. A name is resolved on a thread that may block, because the
/// resolver may wait for a DNS server.
async fn resolve(
    address: &ListenAddress,
    setting: &'static str,
) -> Result<Vec<WantedSocket>, ServeError> {
    if let ListenAddress::Unix(path) = address {
        return Ok(vec![WantedSocket::Unix(path.clone())]);
    }
    let resolving = blocking::run({
        let address = address.clone();
        move || address.resolve()
    });
    let resolved = resolving.await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
    let address = address.to_string();
    let addrs = resolved.map_err(|cause| ServeError::Resolve { address, setting, cause })?;
    Ok(addrs.into_iter().map(|addr| WantedSocket::Ip { addr, is_ipv6_only: false }).collect())
}
