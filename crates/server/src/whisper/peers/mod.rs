//! The devp2p interface: peers send envelopes, and request history (EIP-627, 6/WAKU1, 8/WAKU-MAIL).
//!
//! A peer speaks `shh/6`, like go-ethereum, or `waku/1`, like status-go. Hark is only a mail server
//! for both: it archives the envelopes that peers forward, answers requests, and forwards no
//! envelopes. No client needs forwarding, because clients publish to all of their peers. status-go
//! considers an envelope sent once any peer has acknowledged the envelope. Hark acknowledges an
//! envelope once the envelope is durable.
//!
//! Each connection is one task. `half_open` bounds the connections before a session, and `session`
//! handles a connection. `intake` receives envelopes, and `mail` and `delivery` answer requests.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hark_codec::hex;
use hark_codec::whisper::keys::{PublicKey, SecretKey};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::MailServer;
use super::metrics::HandshakeFate;
use super::rlpx::hello::{Hello, SubProtocol};
use super::rlpx::{ReadAllowance, RlpxError, RlpxStream};
use crate::ServeError;
use crate::budget::{Budget, BudgetShare};
use crate::door::Host;
use crate::key_file::{self, KeyError};
use crate::limits::Rate;
use crate::listener::{Listener, accept};
use crate::rate::{RateBuckets, RateSource, RateSubject};
use crate::stop::StopSignal;
use half_open::{HalfOpenConnections, HandshakePermit};
pub use mail::RequestRules;
pub use session::PeerTimes;
use session::{PeerSession, PeerSessionEnd};

mod code;
mod delivery;
mod half_open;
mod intake;
mod mail;
mod session;
mod status;

/// Minimum for the maximum size of a packet, in bytes. The maximum grows with the longest allowed
/// envelope.
const PACKET_BYTES_MIN: usize = 1 << 20;
/// Bytes of a packet around its envelopes.
const PACKET_FRAME_BYTES: usize = 1 << 10;
/// Maximum size of the packets that are being received from all peers, in bytes. One address may
/// use a quarter.
const READING_BYTES_MAX: usize = 128 << 20;
/// Rate limit for log lines about peers that connect and disconnect.
const LINES: Rate = Rate { per_minute: 60, at_once: 600 };
/// The name and version that this node sends to peers.
const CLIENT: &str = concat!("hark/v", env!("CARGO_PKG_VERSION"));

/// The sub-protocol that a peer speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerForm {
    /// `shh/6`: Whisper, as in go-ethereum.
    Shh,
    /// `waku/1`: Waku 1, as in status-go.
    Waku,
}

impl PeerForm {
    /// Both sub-protocols.
    const PROTOCOLS: [SubProtocol; 2] = [
        SubProtocol { name: "shh", version: 6, codes: 128 },
        SubProtocol { name: "waku", version: 1, codes: 128 },
    ];

    fn protocol(self) -> SubProtocol {
        let [shh, waku] = Self::PROTOCOLS;
        match self {
            Self::Shh => shh,
            Self::Waku => waku,
        }
    }

    fn of(protocol: SubProtocol) -> Option<Self> {
        match protocol.name {
            "shh" => Some(Self::Shh),
            "waku" => Some(Self::Waku),
            _ => None,
        }
    }
}

/// The configuration of the devp2p interface.
#[derive(Clone, Debug)]
pub struct PeersConfig {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The file with the node's key. A missing file is created.
    pub key: PathBuf,
    /// The rules for requests for history.
    pub rules: RequestRules,
    /// Minimum pause between two requests of a peer. Zero disables the pause.
    pub request_pause: Duration,
    /// Nodes that may request all envelopes, to have the same envelopes (`sync` of status-go).
    pub trusted: Vec<PublicKey>,
    /// The time limits of peers.
    pub times: PeerTimes,
}

/// Formats the node's id for peers: `enode://` with the key, the address and the port.
pub fn enode(id: &PublicKey, at: SocketAddr) -> String {
    let mut digits = Vec::new();
    hex::encode_into(&id.bytes(), &mut digits);
    format!("enode://{}@{at}", String::from_utf8_lossy(&digits))
}

/// Reads the node's key from a file. Creates a missing file.
pub fn load_key(path: &std::path::Path) -> Result<SecretKey, KeyError> {
    key_file::load(path, || SecretKey::draw(&mut fill).bytes(), SecretKey::new)
}

/// Fills a buffer with random bytes.
fn fill(out: &mut [u8]) {
    // A running operating system always provides random bytes. Without them, no key would be safe.
    getrandom::fill(out).expect("random bytes of the operating system");
}

/// The state that all sessions share.
struct PeersState {
    mail: Arc<MailServer>,
    rules: RequestRules,
    request_pause: Duration,
    trusted: Vec<PublicKey>,
    times: PeerTimes,
    key: SecretKey,
    hello: Hello,
    half_open: Arc<HalfOpenConnections>,
    budget: Arc<Budget>,
    /// The rate limiter for log lines.
    lines: RateBuckets,
}

/// The interface before it is served.
pub(super) struct PeersDoor {
    listener: Listener,
    key: SecretKey,
    config: PeersConfig,
}

/// The memory of packets that are being received from a peer.
struct ReadShare(BudgetShare);

impl ReadAllowance for ReadShare {
    fn resize(&mut self, bytes: usize) -> bool {
        self.0.resize(bytes, READING_BYTES_MAX)
    }
}

impl PeersDoor {
    /// Opens the listener, and reads the node's key.
    pub(super) fn open(config: PeersConfig, host: &mut Host<'_>) -> Result<Self, ServeError> {
        let key = load_key(&config.key).map_err(|error| ServeError::Door(error.into()))?;
        let listener = host.listen(config.listen, "`listen` in [whisper]")?;
        Ok(Self { listener, key, config })
    }

    /// Returns the address at which peers reach this node.
    pub(super) fn enode(&self) -> String {
        enode(&self.key.public(), self.listener.addr())
    }

    /// Returns the listener of the interface.
    pub(super) fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Serves until `stop`, and until all connections have ended.
    pub(super) async fn serve(&self, mail: Arc<MailServer>, stop: StopSignal) {
        let Some(socket) = self.listener.take() else { return };
        let PeersConfig { rules, request_pause, trusted, times, .. } = self.config.clone();
        let port = self.listener.addr().port();
        let state = Arc::new(PeersState {
            hello: Hello::new(CLIENT, &PeerForm::PROTOCOLS, port, self.key.public()),
            mail,
            rules,
            request_pause,
            trusted,
            times,
            key: self.key.clone(),
            half_open: Arc::default(),
            budget: Arc::default(),
            lines: RateBuckets::default(),
        });
        let ended = stop.clone();
        let enter = |peer| self.listener.enter(peer, self.listener.connections_max());
        let serve = |stream, peer: IpAddr, entered| {
            // The permit is taken before the task starts, because further connections may come in
            // between.
            let permit = state.half_open.begin(peer.into());
            let (state, ended) = (Arc::clone(&state), ended.clone());
            async move {
                let end = Box::pin(state.serve(stream, peer, permit, ended)).await;
                tracing::debug!(%peer, %end, "a connection has ended");
                drop(entered);
            }
        };
        accept(socket, stop, enter, serve).await;
    }
}

impl PeersState {
    /// Logs a line about a peer, unless the log already has too many such lines.
    fn note(&self, log: impl FnOnce()) {
        if self.lines.take(RateSubject::Events(RateSource::Connection(0)), LINES).is_ok() {
            log();
        }
    }

    /// Serves a connection. Returns why the connection ended.
    async fn serve(
        &self,
        stream: TcpStream,
        peer: IpAddr,
        mut permit: HandshakePermit,
        mut stop: StopSignal,
    ) -> PeerSessionEnd {
        // Packets are written whole. Without this option, an answer waits for a TCP
        // acknowledgement.
        if let Err(error) = stream.set_nodelay(true) {
            return RlpxError::Io(error).into();
        }
        let address = peer.into();
        let envelope_bytes_max = self.mail.settings().bounds.envelope_bytes_max;
        let (read, write) = stream.into_split();
        let handshake = RlpxStream {
            read,
            write,
            message_bytes_max: PACKET_BYTES_MIN.max(envelope_bytes_max) + PACKET_FRAME_BYTES,
            allowance: ReadShare(self.budget.share(Some(address))),
        };
        let handshake = handshake.accept(&self.key, &self.hello, fill);
        let connected = tokio::select! {
            connected = timeout(self.times.handshake, handshake) => match connected {
                Ok(Ok(connection)) => Ok(connection),
                Ok(Err(error)) => Err((HandshakeFate::Failed, error.into())),
                Err(_) => Err((HandshakeFate::Timeout, PeerSessionEnd::Timeout)),
            },
            () = permit.dropped() => Err((HandshakeFate::Timeout, PeerSessionEnd::Timeout)),
            () = stop.serving() => return PeerSessionEnd::Down,
        };
        drop(permit);
        let connection = match connected {
            Ok(connection) => connection,
            Err((fate, end)) => {
                self.mail.metrics.handshakes.of(fate).add(1);
                return end;
            }
        };
        Box::pin(PeerSession::serve(self, connection, address, stop)).await
    }
}
