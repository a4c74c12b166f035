//! A session with a peer: what it sends is archived, what it asks for is delivered.
//!
//! Three things happen at a time, so that none waits for another: packets are read, requests are
//! answered one after the other, and the connection is kept alive. They share the connection's writer.

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

/// Requests of a peer that wait until those before them are answered. One more is refused.
const REQUESTS_WAITING_MAX: usize = 4;

/// How long a peer may take.
#[derive(Clone, Copy, Debug)]
pub struct PeerTimes {
    /// For the key exchange and the hellos.
    pub handshake: Duration,
    /// For the next message, whole.
    pub read: Duration,
    /// To take a message, or a page of an answer.
    pub write: Duration,
    /// The pause between two pings. A peer answers each, so that it is heard of.
    pub ping: Duration,
    /// To take the reason why the connection ends.
    pub farewell: Duration,
}

impl Default for PeerTimes {
    /// Those of go-ethereum and of status-go's mail servers.
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
    /// The connection fails, or the peer closes it.
    #[error(transparent)]
    Connection(#[from] RlpxError),
    /// The peer takes longer than it may; see [`PeerTimes`].
    #[error("the peer does not answer, or does not read what it asked for")]
    Timeout,
    /// See [`StatusError`].
    #[error(transparent)]
    Status(#[from] StatusError),
    /// The peer sends another packet where its status is expected.
    #[error("packet {0} came before the status")]
    NoStatus(u64),
    /// A packet is not RLP of the right items.
    #[error("packet {0} cannot be read: {1}")]
    Packet(u64, RlpError),
    /// A code that belongs to no sub-protocol of this connection.
    #[error("message {0} belongs to no protocol that was agreed on")]
    Code(u64),
    /// What was sent as an envelope is none, or too many of a packet are refused.
    #[error("{0}")]
    Envelope(String),
    /// A request cannot be told from others, so that nothing answers it.
    #[error("{0}")]
    Request(String),
    /// The server is shutting down.
    #[error("the server is going down")]
    Down,
}

impl PeerSessionEnd {
    /// The reason in metrics.
    pub(super) fn leave(&self) -> PeerLeave {
        match self {
            Self::Connection(RlpxError::Io(_) | RlpxError::Disconnected(_)) => PeerLeave::Left,
            Self::Connection(RlpxError::Memory) => PeerLeave::Memory,
            Self::Timeout => PeerLeave::Timeout,
            Self::Down => PeerLeave::Down,
            _ => PeerLeave::Breach,
        }
    }

    /// The reason that the peer is told, if there is any use in that.
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

/// A peer, once both sides have said hello.
pub(super) struct PeerSession<'a, W> {
    pub(super) state: &'a PeersState,
    pub(super) form: PeerForm,
    shared: Vec<SharedProtocol>,
    offset: u64,
    pub(super) peer: PublicKey,
    pub(super) address: ClientAddress,
    /// Whether the peer wants to know what became of envelopes.
    pub(super) confirms: AtomicBool,
    /// Bits of the minimum proof of work that the peer was told.
    told_pow: AtomicU64,
    writer: Mutex<RlpxWriter<W>>,
}

impl<'a, W: AsyncWrite + Unpin> PeerSession<'a, W> {
    /// Serves a peer until the connection ends, and returns why. `Err` if the peer speaks none of the
    /// sub-protocols; it is told so.
    pub(super) async fn serve<R: AsyncRead + Unpin, A: ReadAllowance>(
        state: &'a PeersState,
        connection: RlpxConnection<R, W, A>,
        address: ClientAddress,
        mut stop: StopSignal,
    ) -> PeerSessionEnd {
        let RlpxConnection { reader, mut writer, peer } = connection;
        let shared = peer.share(&PeerForm::PROTOCOLS);
        let handshakes = &state.mail.metrics.handshakes;
        // The last one by name is Waku, which status-go's nodes prefer.
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

    /// Sends the packets that `write` adds, together.
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

    /// Tells the peer the minimum proof of work, if it has changed.
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
            // Pongs, and what versions to come may have.
            ..BASE_CODES => return Ok(()),
            _ => {}
        }
        let within =
            |it: &&SharedProtocol| code >= it.offset && code - it.offset < it.protocol.codes;
        let of = self.shared.iter().find(within).ok_or(PeerSessionEnd::Code(code))?;
        if of.offset != self.offset {
            // The peer speaks both. What it sends by the other one, it sends by this one too.
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
            // What a peer wants (status, proof of work, bloom filter) has no effect, as nothing is
            // passed on. Codes that are not known are ignored for the sake of later versions.
            _ => Ok(()),
        }
    }

    pub(super) fn is_trusted(&self) -> bool {
        self.state.trusted.contains(&self.peer)
    }

    /// Accepts a request, to be answered after those before it.
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
            // The other side of the channel lives as long as this one.
            Err(refused) => {
                self.state.mail.count_request(MailSource::Peer, RequestFate::TooMany);
                let why = "too many requests at a time";
                self.refuse(&refused.into_inner(), why).await
            }
        }
    }

    /// What the pause between requests is kept by: the hash of the peer's key.
    pub(super) fn key(&self) -> Key {
        keccak256(&self.peer.bytes())
    }

    /// Tells the peer that a request is refused.
    pub(super) async fn fail(&self, request: &Id, why: &str) -> Result<(), PeerSessionEnd> {
        let mut packet = Vec::new();
        hark_codec::whisper::Completion::Failed { request: *request, text: why }.write(&mut packet);
        self.send(code::COMPLETE, &[&packet]).await
    }
}

/// A peer that counts as connected, until this is dropped.
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

/// What the reading side of a session has for itself.
struct PeerReading<R, A> {
    reader: RlpxReader<R, A>,
    ask: mpsc::Sender<PeerQuestion>,
    /// Whether the peer has sent its status.
    has_status: bool,
}

/// Packets that are sent together.
pub(super) struct PeerPackets<'a, W> {
    writer: &'a mut RlpxWriter<W>,
    offset: u64,
}

impl<W: AsyncWrite + Unpin> PeerPackets<'_, W> {
    /// Adds a packet, whose content is given in parts.
    pub(super) fn add(&mut self, code: u64, parts: &[&[u8]]) -> Result<(), RlpxError> {
        self.writer.push(self.offset + code, parts)
    }
}
