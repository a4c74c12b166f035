//! A session with a peer: archives the peer's envelopes, and answers the peer's requests.
//!
//! Three activities run concurrently, so that none waits for another. The session reads packets,
//! answers requests one after the other, and keeps the connection alive. All three share the
//! connection's writer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hark_codec::crypto::keccak256;
use hark_codec::record::{Id, Key};
use hark_codec::whisper::RlpError;
use hark_codec::whisper::keys::PublicKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{interval, timeout};

use super::delivery::PeerQuestion;
use super::status::{self, StatusError};
use super::{PeerForm, PeersState, code};
use crate::address::ClientAddress;
use crate::stop::StopSignal;
use crate::whisper::metrics::{HandshakeFate, MailSource, PeerLeave, RequestFate};
use crate::whisper::rlpx::hello::{
    BASE_CODES, DisconnectReason, NOTHING, SharedProtocol, code as base,
};
use crate::whisper::rlpx::{
    ReadAllowance, RlpxConnection, RlpxError, RlpxMessage, RlpxReader, RlpxWriter,
};

/// Maximum number of a peer's waiting requests. Further requests are refused.
const REQUESTS_WAITING_MAX: usize = 4;

/// Time limits for a peer.
#[derive(Clone, Copy, Debug)]
pub struct PeerTimes {
    /// For the key exchange and the hellos.
    pub handshake: Duration,
    /// For the next message to arrive completely.
    pub read: Duration,
    /// For the peer to read a message, or a page of an answer.
    pub write: Duration,
    /// The interval between two pings. The peer's answers show that the peer is alive.
    pub ping: Duration,
    /// For the peer to read why the connection ends.
    pub farewell: Duration,
}

impl Default for PeerTimes {
    /// The values of go-ethereum and of status-go's mail servers.
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            read: Duration::from_secs(30),
            write: Duration::from_mins(1),
            ping: Duration::from_secs(15),
            farewell: Duration::from_secs(1),
        }
    }
}

/// Why a session ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeerSessionEnd {
    /// The connection failed, or the peer closed the connection.
    #[error(transparent)]
    Connection(#[from] RlpxError),
    /// The peer exceeded a time limit; see [`PeerTimes`].
    #[error("the peer does not answer, or does not read what it asked for")]
    Timeout,
    /// See [`StatusError`].
    #[error(transparent)]
    Status(#[from] StatusError),
    /// The peer sent another packet in place of its status.
    #[error("packet {0} came before the status")]
    NoStatus(u64),
    /// A packet is not RLP of the right items.
    #[error("packet {0} cannot be read: {1}")]
    Packet(u64, RlpError),
    /// A code belongs to no sub-protocol of this connection.
    #[error("message {0} belongs to no protocol that was agreed on")]
    Code(u64),
    /// The bytes sent as an envelope are not an envelope, or too many envelopes of a packet are
    /// refused.
    #[error("{0}")]
    Envelope(String),
    /// An answer could not name the request, so the request has no answer.
    #[error("{0}")]
    Request(String),
    /// The server is shutting down.
    #[error("the server is going down")]
    Down,
}

impl PeerSessionEnd {
    /// Returns the reason for metrics.
    pub(super) fn leave(&self) -> PeerLeave {
        match self {
            Self::Connection(RlpxError::Io(_) | RlpxError::Disconnected(_)) => PeerLeave::Left,
            Self::Connection(RlpxError::Memory) => PeerLeave::Memory,
            Self::Timeout => PeerLeave::Timeout,
            Self::Down => PeerLeave::Down,
            _ => PeerLeave::Breach,
        }
    }

    /// Returns the reason to send to the peer. `None` if sending a reason is pointless.
    fn reason(&self) -> Option<DisconnectReason> {
        match self {
            Self::Connection(RlpxError::Io(_) | RlpxError::Disconnected(_)) => None,
            Self::Connection(RlpxError::Memory) => Some(DisconnectReason::TooMany),
            Self::Connection(_) | Self::Code(_) => Some(DisconnectReason::Protocol),
            Self::Timeout => Some(DisconnectReason::Timeout),
            Self::Down => Some(DisconnectReason::Quitting),
            Self::Status(_)
            | Self::NoStatus(_)
            | Self::Packet(..)
            | Self::Envelope(_)
            | Self::Request(_) => Some(DisconnectReason::SubProtocol),
        }
    }
}

/// A connected peer. Both sides have sent their hellos.
pub(super) struct PeerSession<'a, W> {
    pub(super) state: &'a PeersState,
    pub(super) form: PeerForm,
    shared: Vec<SharedProtocol>,
    offset: u64,
    pub(super) peer: PublicKey,
    pub(super) address: ClientAddress,
    /// Whether the peer wants the outcomes of its envelopes.
    pub(super) confirms: AtomicBool,
    /// Bits of the minimum proof of work that was last sent to the peer.
    told_pow: AtomicU64,
    writer: Mutex<RlpxWriter<W>>,
}

impl<'a, W: AsyncWrite + Unpin> PeerSession<'a, W> {
    /// Serves a peer until the connection ends. Returns the reason. A peer without any of the
    /// sub-protocols is disconnected with the reason "useless peer".
    pub(super) async fn serve<R: AsyncRead + Unpin, A: ReadAllowance>(
        state: &'a PeersState,
        connection: RlpxConnection<R, W, A>,
        address: ClientAddress,
        mut stop: StopSignal,
    ) -> PeerSessionEnd {
        let RlpxConnection { reader, mut writer, peer } = connection;
        let shared = peer.share(&PeerForm::PROTOCOLS);
        let handshakes = &state.mail.metrics.handshakes;
        // The last protocol by name is Waku, which status-go's nodes prefer.
        let Some((form, chosen)) =
            shared.iter().rev().find_map(|it| Some((PeerForm::of(it.protocol)?, *it)))
        else {
            handshakes.of(HandshakeFate::Useless).add(1);
            // The peer may be gone.
            let useless = writer.disconnect(DisconnectReason::Useless);
            let _ = timeout(state.times.farewell, useless).await;
            return RlpxError::Disconnected(DisconnectReason::Useless).into();
        };
        handshakes.of(HandshakeFate::Connected).add(1);
        let _counted = CountedPeer::new(state, address, &peer.client, form);
        let session = PeerSession {
            state,
            form,
            shared,
            offset: chosen.offset,
            peer: peer.id,
            address,
            confirms: AtomicBool::new(form == PeerForm::Waku),
            told_pow: AtomicU64::new(0),
            writer: Mutex::new(writer),
        };
        let (ask, asked) = mpsc::channel(REQUESTS_WAITING_MAX);
        let end = tokio::select! {
            end = session.read(reader, ask) => end,
            end = session.answer_all(asked) => end,
            end = session.keep_alive() => end,
            () = stop.serving() => PeerSessionEnd::Down,
        };
        if let Some(reason) = end.reason() {
            let farewell = async { session.writer.lock().await.disconnect(reason).await };
            // The peer may be gone.
            let _ = timeout(state.times.farewell, farewell).await;
        }
        state.mail.metrics.left.of(end.leave()).add(1);
        state.note(|| tracing::info!(peer = %address, why = %end, "a peer is gone"));
        end
    }

    /// Sends a packet.
    pub(super) async fn send(&self, code: u64, parts: &[&[u8]]) -> Result<(), PeerSessionEnd> {
        self.send_with(|packets| packets.add(code, parts)).await
    }

    /// Sends the packets that `write` adds, in one write.
    pub(super) async fn send_with(
        &self,
        write: impl FnOnce(&mut PeerPackets<'_, W>) -> Result<(), RlpxError>,
    ) -> Result<(), PeerSessionEnd> {
        let sending = async {
            let mut writer = self.writer.lock().await;
            write(&mut PeerPackets { writer: &mut writer, offset: self.offset })?;
            writer.flush().await
        };
        match timeout(self.state.times.write, sending).await {
            Ok(sent) => Ok(sent?),
            Err(_) => Err(PeerSessionEnd::Timeout),
        }
    }

    async fn send_base(&self, code: u64) -> Result<(), PeerSessionEnd> {
        let sending = async { self.writer.lock().await.write(code, &[&NOTHING]).await };
        match timeout(self.state.times.write, sending).await {
            Ok(sent) => Ok(sent?),
            Err(_) => Err(PeerSessionEnd::Timeout),
        }
    }

    async fn keep_alive(&self) -> PeerSessionEnd {
        let mut ticks = interval(self.state.times.ping);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let sent = match self.send_base(base::PING).await {
                Ok(()) => self.tell_pow().await,
                Err(end) => Err(end),
            };
            if let Err(end) = sent {
                return end;
            }
        }
    }

    /// Sends the peer the minimum proof of work if the minimum has changed.
    async fn tell_pow(&self) -> Result<(), PeerSessionEnd> {
        let pow_min = self.state.mail.settings().bounds.pow_min;
        if self.told_pow.swap(pow_min.to_bits(), Ordering::Relaxed) == pow_min.to_bits() {
            return Ok(());
        }
        let mut packet = Vec::new();
        status::write_pow(self.form, pow_min, &mut packet);
        let code = match self.form {
            PeerForm::Shh => code::POW,
            PeerForm::Waku => code::STATUS_UPDATE,
        };
        self.send(code, &[&packet]).await
    }

    async fn read<R: AsyncRead + Unpin, A: ReadAllowance>(
        &self,
        reader: RlpxReader<R, A>,
        ask: mpsc::Sender<PeerQuestion>,
    ) -> PeerSessionEnd {
        let mut reading = PeerReading { reader, ask, has_status: false };
        match self.greet().await {
            Ok(()) => {}
            Err(end) => return end,
        }
        loop {
            let read = timeout(self.state.times.read, reading.reader.read()).await;
            let handled = match read {
                Ok(Ok(message)) => {
                    self.handle(message, &reading.ask, &mut reading.has_status).await
                }
                Ok(Err(error)) => Err(error.into()),
                Err(_) => Err(PeerSessionEnd::Timeout),
            };
            if let Err(end) = handled {
                return end;
            }
        }
    }

    /// Sends this node's status.
    async fn greet(&self) -> Result<(), PeerSessionEnd> {
        let mut own = Vec::new();
        let pow_min = self.state.mail.settings().bounds.pow_min;
        self.told_pow.store(pow_min.to_bits(), Ordering::Relaxed);
        status::write(self.form, pow_min, &mut own);
        self.send(code::STATUS, &[&own]).await
    }

    async fn handle(
        &self,
        message: RlpxMessage<'_>,
        ask: &mpsc::Sender<PeerQuestion>,
        has_status: &mut bool,
    ) -> Result<(), PeerSessionEnd> {
        let RlpxMessage { code, payload } = message;
        match code {
            base::DISCONNECT => {
                return Err(RlpxError::Disconnected(DisconnectReason::read(payload)).into());
            }
            base::PING => return self.send_base(base::PONG).await,
            // Pongs, and messages of later versions.
            ..BASE_CODES => return Ok(()),
            _ => {}
        }
        let within =
            |it: &&SharedProtocol| code >= it.offset && code - it.offset < it.protocol.codes;
        let of = self.shared.iter().find(within).ok_or(PeerSessionEnd::Code(code))?;
        if of.offset != self.offset {
            // The peer speaks both sub-protocols, and also sends this packet by the chosen
            // sub-protocol.
            return Ok(());
        }
        let packet = code - self.offset;
        if !*has_status {
            if packet != code::STATUS {
                return Err(PeerSessionEnd::NoStatus(packet));
            }
            self.confirms.store(status::check(self.form, payload)?, Ordering::Relaxed);
            *has_status = true;
            return Ok(());
        }
        match packet {
            code::MESSAGES => self.take(payload).await,
            code::REQUEST => self.asked(payload, ask).await,
            code::SYNC_REQUEST if self.form == PeerForm::Shh && self.is_trusted() => {
                self.enqueue(PeerQuestion::Sync(payload.into()), ask).await
            }
            code::SYNC_REQUEST if self.form == PeerForm::Shh => {
                self.state.mail.count_request(MailSource::Peer, RequestFate::Refused);
                self.end_sync(
                    None,
                    false,
                    "the node is not among those that may fetch all envelopes",
                )
                .await
            }
            // A peer's wishes (status, proof of work, bloom filter) have no effect, because this
            // node forwards no envelopes. Unknown codes are ignored, to be compatible with later
            // versions.
            _ => Ok(()),
        }
    }

    pub(super) fn is_trusted(&self) -> bool {
        self.state.trusted.contains(&self.peer)
    }

    /// Accepts a request. The answer comes after the answers to earlier requests.
    async fn asked(
        &self,
        packet: &[u8],
        ask: &mpsc::Sender<PeerQuestion>,
    ) -> Result<(), PeerSessionEnd> {
        let pow_min = self.state.mail.settings().bounds.pow_min;
        match self.state.rules.open(packet, pow_min, self.state.mail.now_s()) {
            Ok(request) => self.enqueue(PeerQuestion::Mail(request), ask).await,
            Err(refused) => {
                self.state.mail.count_request(MailSource::Peer, RequestFate::Refused);
                let why = refused.why.to_string();
                match refused.id {
                    Some(id) => self.fail(&id, &why).await,
                    None => Err(PeerSessionEnd::Request(why)),
                }
            }
        }
    }

    async fn enqueue(
        &self,
        question: PeerQuestion,
        ask: &mpsc::Sender<PeerQuestion>,
    ) -> Result<(), PeerSessionEnd> {
        match ask.try_send(question) {
            Ok(()) => Ok(()),
            // The receiver of the channel lives as long as the sender.
            Err(refused) => {
                self.state.mail.count_request(MailSource::Peer, RequestFate::TooMany);
                let why = "too many requests at a time";
                self.refuse(&refused.into_inner(), why).await
            }
        }
    }

    /// Returns the hash of the peer's key, which identifies the peer for the pause between
    /// requests.
    pub(super) fn key(&self) -> Key {
        keccak256(&self.peer.bytes())
    }

    /// Reports to the peer that a request is refused.
    pub(super) async fn fail(&self, request: &Id, why: &str) -> Result<(), PeerSessionEnd> {
        let mut packet = Vec::new();
        hark_codec::whisper::Completion::Failed { request: *request, text: why }.write(&mut packet);
        self.send(code::COMPLETE, &[&packet]).await
    }
}

/// Counts a peer as connected until the value is dropped.
struct CountedPeer<'a>(&'a PeersState);

impl<'a> CountedPeer<'a> {
    fn new(state: &'a PeersState, address: ClientAddress, client: &str, form: PeerForm) -> Self {
        state.mail.metrics.peers.add(1);
        let protocol = form.protocol().name;
        state.note(|| {
            tracing::info!(peer = %address, client = ?client, protocol, "a peer is connected");
        });
        Self(state)
    }
}

impl Drop for CountedPeer<'_> {
    fn drop(&mut self) {
        self.0.mail.metrics.peers.sub(1);
    }
}

/// The state of a session's reading side.
struct PeerReading<R, A> {
    reader: RlpxReader<R, A>,
    ask: mpsc::Sender<PeerQuestion>,
    /// Whether the peer has sent its status.
    has_status: bool,
}

/// Packets that are sent in one write.
pub(super) struct PeerPackets<'a, W> {
    writer: &'a mut RlpxWriter<W>,
    offset: u64,
}

impl<W: AsyncWrite + Unpin> PeerPackets<'_, W> {
    /// Adds a packet. `parts` are the parts of the packet's content.
    pub(super) fn add(&mut self, code: u64, parts: &[&[u8]]) -> Result<(), RlpxError> {
        self.writer.push(self.offset + code, parts)
    }
}
