//! Runs the session of a peer: archives the peer's envelopes, and answers the peer's requests.
//!
//! A session does three things at the same time: it reads packets, answers requests one after the
//! other, and keeps the connection alive. None of the three waits for another, but all three share
//! the connection's writer.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hark_codec::hex;
use hark_codec::whisper::keys::PublicKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{interval, timeout};

use super::end::PeerSessionEnd;
use super::form::PeerForm;
use super::mail::PeerQuestion;
use super::session::PeerSession;
use super::state::PeersState;
use super::{code, status};
use crate::roster::{KeyName, OpenConnection};
use crate::stop::StopSignal;
use crate::whisper::metrics::{HandshakeFate, MailSource, RequestFate};
use crate::whisper::rlpx::hello::{BASE_CODES, DisconnectReason, SharedProtocol, code as base};
use crate::whisper::rlpx::{ReadAllowance, RlpxConnection, RlpxError, RlpxMessage, RlpxReader};

/// Maximum number of a peer's waiting requests. Further requests are refused.
const REQUESTS_WAITING_MAX: usize = 4;

/// Returns the digits of a peer's key, as in its `enode` URL.
pub(super) fn key_digits(id: &PublicKey) -> Box<str> {
    let mut digits = Vec::new();
    hex::encode_into(&id.bytes(), &mut digits);
    String::from_utf8_lossy(&digits).into()
}

/// Serves a peer until the connection ends. Returns the reason. A peer without any of the
/// sub-protocols is disconnected with the reason "useless peer".
pub(super) async fn serve<R, W, A>(
    state: &PeersState,
    connection: RlpxConnection<R, W, A>,
    entry: &OpenConnection,
    mut stop: StopSignal,
) -> PeerSessionEnd
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    A: ReadAllowance,
{
    let RlpxConnection { reader, mut writer, peer } = connection;
    let (ip, id) = (entry.ip(), key_digits(&peer.id));
    entry.set_agent(&peer.client);
    entry.add_key(KeyName { shown: id.clone(), digits: id });
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
    let _counted = CountedPeer::new(state, ip, &peer.client, form);
    let session = PeerSession {
        state,
        form,
        shared,
        offset: chosen.offset,
        peer: peer.id,
        address: ip.into(),
        confirms: AtomicBool::new(form == PeerForm::Waku),
        told_pow: AtomicU64::new(0),
        writer: Mutex::new(writer),
    };
    let (ask, asked) = mpsc::channel(REQUESTS_WAITING_MAX);
    let end = tokio::select! {
        end = session.read(reader, ask) => end,
        end = session.answer_all(asked) => end,
        end = session.keep_alive() => end,
        () = entry.kicked() => PeerSessionEnd::Kicked,
        () = stop.serving() => PeerSessionEnd::Down,
    };
    if let Some(reason) = end.reason() {
        let farewell = async { session.writer.lock().await.disconnect(reason).await };
        // The peer may be gone.
        let _ = timeout(state.times.farewell, farewell).await;
    }
    state.mail.metrics.left.of(end.leave()).add(1);
    state.note(|| tracing::info!(peer = %state.shown(ip), why = %end, "a peer is gone"));
    end
}

impl<W: AsyncWrite + Unpin> PeerSession<'_, W> {
    async fn keep_alive(&self) -> PeerSessionEnd {
        let mut ticks = interval(self.state.times.ping);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let sent = match self.send_base(base::PING).await {
                Ok(()) => self.send_pow().await,
                Err(end) => Err(end),
            };
            if let Err(end) = sent {
                return end;
            }
        }
    }

    /// Sends the peer the minimum proof of work if the minimum has changed.
    async fn send_pow(&self) -> Result<(), PeerSessionEnd> {
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
            // The peer speaks both sub-protocols and sends its packets by both. This copy arrived
            // by the sub-protocol that was not chosen, so it is ignored.
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
            code::MESSAGES => self.store_packet(payload).await,
            code::REQUEST => self.accept_request(payload, ask).await,
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

    /// Accepts a request. The answer comes after the answers to earlier requests.
    async fn accept_request(
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
            // The channel is full. It cannot be closed, because the receiver lives as long as the
            // sender.
            Err(refused) => {
                self.state.mail.count_request(MailSource::Peer, RequestFate::TooMany);
                let why = "too many requests at a time";
                self.refuse(&refused.into_inner(), why).await
            }
        }
    }
}

/// Counts a peer as connected until the value is dropped.
struct CountedPeer<'a>(&'a PeersState);

impl<'a> CountedPeer<'a> {
    fn new(state: &'a PeersState, ip: IpAddr, client: &str, form: PeerForm) -> Self {
        state.mail.metrics.peers.add(1);
        let protocol = form.protocol().name;
        state.note(|| {
            let peer = state.shown(ip);
            tracing::info!(%peer, client = ?client, protocol, "a peer is connected");
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
