//! The devp2p interface: peers send envelopes, and ask for history (EIP-627, 6/WAKU1, 8/WAKU-MAIL).
//!
//! A peer speaks `shh/6`, as go-ethereum, or `waku/1`, as status-go. Hark is a mail server for both and
//! nothing else: it archives what peers pass on, answers what they ask, and passes no envelopes on.
//! None of the clients needs that: they publish to all of their peers, and status-go takes an envelope
//! as sent once one of these has acknowledged it, which Hark does when it is durable.
//!
//! Each connection is one task. `half_open` bounds those that have not come to a session yet,
//! `session` is what happens on one, `intake` is the way in, `mail` and `delivery` are the way
//! out.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hark_archive::limits::Rate;
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

/// Bytes that a packet may have beside an envelope of the longest kind, or in all if these are more.
const PACKET_BYTES_MIN: usize = 1 << 20;
/// Bytes of a packet around its envelopes.
const PACKET_FRAME_BYTES: usize = 1 << 10;
/// Bytes of packets that are being received, of all peers. A quarter is for one address.
const READING_BYTES_MAX: usize = 128 << 20;
/// Lines in the log about peers that come and go.
const LINES: Rate = Rate { per_minute: 60, at_once: 600 };
/// The name and version that peers are told.
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
    /// The sub-protocols of both.
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

/// Where peers are accepted, and what they may ask.
#[derive(Clone, Debug)]
pub struct PeersConfig {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The file with the node's key. A missing file is created.
    pub key: PathBuf,
    /// What requests for history must be.
    pub rules: RequestRules,
    /// The pause between two requests of a peer. Zero: none.
    pub request_pause: Duration,
    /// Nodes that may ask for all envelopes, to have the same ones: `sync` of status-go.
    pub trusted: Vec<PublicKey>,
    /// How long peers may take.
    pub times: PeerTimes,
}

/// The node's id, as peers are told where to find it: `enode://` with the key, the address and the port.
pub fn enode(id: &PublicKey, at: SocketAddr) -> String {
    let mut digits = Vec::new();
    hex::encode_into(&id.bytes(), &mut digits);
    format!("enode://{}@{at}", String::from_utf8_lossy(&digits))
}

/// Reads the node's key from a file, or creates the file.
pub fn load_key(path: &std::path::Path) -> Result<SecretKey, KeyError> {
    key_file::load(path, || SecretKey::draw(&mut fill).bytes(), SecretKey::new)
}

/// Fills a buffer with random bytes.
fn fill(out: &mut [u8]) {
    // The operating system always has some once it runs; without, no key would be safe.
    getrandom::fill(out).expect("random bytes of the operating system");
}

/// What all sessions share.
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
    /// Bounds the lines in the log.
    lines: RateBuckets,
}

/// The interface, until it is served.
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
    /// Listens, and reads the node's key.
    pub(super) fn open(config: PeersConfig, host: &mut Host<'_>) -> Result<Self, ServeError> {
        let key = load_key(&config.key).map_err(|error| ServeError::Door(error.into()))?;
        let listener = host.listen(config.listen, "`listen` in [whisper]")?;
        Ok(Self { listener, key, config })
    }

    /// The address at which peers reach this node.
    pub(super) fn enode(&self) -> String {
        enode(&self.key.public(), self.listener.addr())
    }

    /// The address that the node listens on.
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
            // Here and not in the task, which may begin long after further connections have come.
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
    /// Logs something about a peer, unless peers come and go faster than anybody reads.
    fn note(&self, log: impl FnOnce()) {
        if self.lines.take(RateSubject::Events(RateSource::Connection(0)), LINES).is_ok() {
            log();
        }
    }

    /// Serves a connection, and returns why it ended.
    async fn serve(
        &self,
        stream: TcpStream,
        peer: IpAddr,
        mut permit: HandshakePermit,
        mut stop: StopSignal,
    ) -> PeerSessionEnd {
        // Packets are written whole. Without this the answer to a request waits for an acknowledgement.
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
