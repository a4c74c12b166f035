//! The door of peers: accepts connections, exchanges keys, and begins sessions.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use hark_codec::whisper::keys::{PublicKey, SecretKey};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::config::PeersConfig;
use super::end::PeerSessionEnd;
use super::form::PeerForm;
use super::half_open::HandshakePermit;
use super::run;
use super::state::PeersState;
use crate::ServeError;
use crate::budget::BudgetShare;
use crate::door::Host;
use crate::key_file::{self, KeyError};
use crate::listener::{ClientStream, Listener, accept};
use crate::rate::RateBuckets;
use crate::roster::{ConnectionForm, CountedStream, OpenConnection, while_serving};
use crate::stop::StopSignal;
use crate::stream::AcceptedStream;
use crate::whisper::mail_server::MailServer;
use crate::whisper::metrics::HandshakeFate;
use crate::whisper::rlpx::hello::Hello;
use crate::whisper::rlpx::{ReadAllowance, RlpxError, RlpxStream};

/// Lower bound for the maximum size of a packet, in bytes. The maximum grows with the longest
/// allowed envelope.
const PACKET_BYTES_MIN: usize = 1 << 20;
/// Number of bytes allowed in a packet in addition to the envelopes.
const PACKET_FRAME_BYTES: usize = 1 << 10;
/// Maximum total size of the packets that are being received from all peers, in bytes. One address
/// may use a quarter of this size.
const READING_BYTES_MAX: usize = 128 << 20;
/// The name and version that this node sends to peers.
const CLIENT: &str = concat!("hark/v", env!("CARGO_PKG_VERSION"));

/// Formats the node's id for peers: `enode://` with the key, the address and the port.
pub fn enode(id: &PublicKey, at: SocketAddr) -> String {
    format!("enode://{}@{at}", run::key_digits(id))
}

/// Reads the node's key from a file. Creates a missing file.
pub fn load_key(path: &Path) -> Result<SecretKey, KeyError> {
    key_file::load(path, || SecretKey::draw(&mut fill).bytes(), SecretKey::new)
}

/// Fills a buffer with random bytes.
fn fill(out: &mut [u8]) {
    // A running operating system always provides random bytes. Without them, no key would be safe.
    getrandom::fill(out).expect("random bytes of the operating system");
}

/// The devp2p interface, before it is served.
pub(in crate::whisper) struct PeersDoor {
    listener: Listener,
    addr: SocketAddr,
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
    pub(in crate::whisper) fn open(
        config: PeersConfig,
        host: &mut Host<'_>,
    ) -> Result<Self, ServeError> {
        let key = load_key(&config.key).map_err(|error| ServeError::Door(error.into()))?;
        let (listener, addr) = host.listen(config.listen, "`listen` in [whisper]")?;
        Ok(Self { listener, addr, key, config })
    }

    /// Returns the address at which peers reach this node.
    pub(in crate::whisper) fn enode(&self) -> String {
        enode(&self.key.public(), self.addr)
    }

    /// Returns the listener of the interface.
    pub(in crate::whisper) fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Serves until `stop` is signalled and all connections have ended.
    pub(in crate::whisper) async fn serve(&self, mail: Arc<MailServer>, stop: StopSignal) {
        let Some(sockets) = self.listener.take() else { return };
        let PeersConfig { rules, request_pause, trusted, times, .. } = self.config.clone();
        let port = self.addr.port();
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
        let serve = |accepted: AcceptedStream, peer: IpAddr, entered| {
            // The permit is taken before the task starts, because further connections may be
            // accepted before the task runs.
            let permit = state.half_open.begin(peer.into());
            let (state, ended) = (Arc::clone(&state), ended.clone());
            let of = (state.mail.service.shelf.name(), ConnectionForm::Peer);
            let entry = self.listener.connections().clients().list(of, peer);
            async move {
                // The door listens on a TCP address only, so all connections are TCP.
                let ClientStream::Tcp(stream) = accepted.stream else { return };
                let serving = Box::pin(state.serve(stream, &entry, permit, ended));
                let end = while_serving(&entry, serving).await;
                let peer = state.shown(peer);
                tracing::debug!(%peer, %end, "a connection has ended");
                drop((entry, entered));
            }
        };
        accept(sockets, stop, enter, serve).await;
    }
}

impl PeersState {
    /// Serves a connection. Returns why the connection ended.
    async fn serve(
        &self,
        stream: TcpStream,
        entry: &Arc<OpenConnection>,
        mut permit: HandshakePermit,
        mut stop: StopSignal,
    ) -> PeerSessionEnd {
        // Each packet is written in one write. With Nagle's algorithm, an answer would wait for a
        // TCP acknowledgement.
        if let Err(error) = stream.set_nodelay(true) {
            return RlpxError::Io(error).into();
        }
        let address = entry.ip().into();
        let envelope_bytes_max = self.mail.settings().bounds.envelope_bytes_max;
        let (read, write) = stream.into_split();
        let handshake = RlpxStream {
            read: CountedStream::new(read, entry),
            write: CountedStream::new(write, entry),
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
            () = entry.kicked() => return PeerSessionEnd::Kicked,
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
        Box::pin(run::serve(self, connection, entry, stop)).await
    }
}
