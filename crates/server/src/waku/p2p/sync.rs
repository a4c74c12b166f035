//! Waku Store Sync: two stores find out which messages of the last hour the other store lacks
//! (`/vac/waku/reconciliation/1.0.0`). Then each store sends these messages: see `transfer`.
//!
//! Any peer may compare its messages with this node's messages.

use std::sync::Arc;
use std::time::Duration;

use hark_codec::waku::sync::{PayloadWriter, SyncPayload, fingerprint};
use hark_networks::waku::NS_PER_S;
use hark_networks::waku::history::HistoryError;
use libp2p::{Multiaddr, PeerId, Stream};
use tokio::sync::Semaphore;

use super::handle::NetworkHandle;
use super::incoming::IncomingStreams;
use super::outgoing::StreamOpener;
use super::own_messages::{ITEMS_MAX, ITEMS_STEP, OwnMessages, payload_query, span, topics};
use super::reconcile::{self, Reconciliation};
use super::sync_fault::SyncFault;
use super::transfer::WAIT;
use super::{frame, transfer};
use crate::permits::{Share, Shares};
use crate::rate::RateSource;
use crate::service::TooManyQuestions;
use crate::stop::StopSignal;
use crate::waku::metrics::{CatchUpMethod, Direction, SyncOutcome, SyncProtocol};
use crate::waku::node::WakuNode;

/// The protocol that compares two stores.
pub(super) const PROTOCOL: &str = "/vac/waku/reconciliation/1.0.0";
/// Maximum size of a payload, in bytes.
const PAYLOAD_MAX: usize = 4 << 20;
/// Maximum size of a short first payload, in bytes: topics, and one fingerprint. A longer first
/// payload needs a permit.
const PAYLOAD_SHORT: usize = 64 << 10;
/// Maximum number of sessions begun by peers. An address may have one session. Further sessions are
/// reset. Configured peers have a separate limit of the same size, and each configured peer may use
/// the whole limit.
const SESSIONS_MAX: usize = 8;
/// Maximum duration of a session that a stranger has begun, and of the wait for each payload.
/// Without these bounds, the session of a slow peer would exclude other peers.
const SESSION_TIME_MAX: Duration = Duration::from_mins(2);
const PAYLOAD_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum number of payloads that a session may receive.
const ROUNDS_MAX: usize = 64;
/// Maximum number of messages in the lists of all sessions begun by peers. A session that would
/// exceed this bound ends.
const ITEMS_ALL_MAX: usize = 1_000_000;
/// The source of this node's own searches.
const OWN: RateSource = RateSource::Connection(0);

/// Permits for sessions that peers begin, and for the messages in their lists.
struct SyncPermits {
    /// Whether each address has at most one session. If false, one address may use all sessions.
    is_shared: bool,
    sessions: Shares<RateSource>,
    /// Permits for first payloads above [`PAYLOAD_SHORT`]. A first payload arrives before the
    /// session has a permit.
    long: Shares<RateSource>,
    items: Arc<Semaphore>,
}

impl SyncPermits {
    fn new(is_shared: bool) -> Self {
        Self {
            is_shared,
            sessions: Shares::new(SESSIONS_MAX, 1),
            long: Shares::new(SESSIONS_MAX, 1),
            items: Arc::new(Semaphore::new(ITEMS_ALL_MAX)),
        }
    }

    /// Acquires a permit from `of` for a peer.
    fn acquire(&self, of: &Shares<RateSource>, peer: RateSource) -> Option<Share<RateSource>> {
        if self.is_shared { of.acquire(peer, 1) } else { of.acquire_any(peer, 1) }
    }
}

/// The peer of a session.
#[derive(Clone, Copy)]
struct SessionPeer {
    id: PeerId,
    /// The source to which visited rows are charged.
    source: RateSource,
    /// How long the peer may take for a payload.
    payload_time: Duration,
}

/// Serves the comparisons that peers begin.
pub(super) fn serve(incoming: &IncomingStreams, opener: StreamOpener, waku: &Arc<WakuNode>) {
    let waku = Arc::clone(waku);
    let of_configured = Arc::new(SyncPermits::new(false));
    let of_others = Arc::new(SyncPermits::new(true));
    incoming.serve(PROTOCOL, move |peer, stream| {
        let (waku, opener) = (Arc::clone(&waku), opener.clone());
        let is_configured = waku.knows(peer.id);
        let permits = Arc::clone(if is_configured { &of_configured } else { &of_others });
        async move {
            let (payload_time, time) = if is_configured {
                (WAIT, Duration::MAX)
            } else {
                (PAYLOAD_TIME_MAX, SESSION_TIME_MAX)
            };
            let peer = SessionPeer { id: peer.id, source: peer.source, payload_time };
            let serving = serve_session(&waku, &opener, peer, stream, &permits);
            let ended = tokio::time::timeout(time, serving).await;
            if let Err(fault) = ended.unwrap_or(Err(SyncFault::Time)) {
                let why = fault.to_string();
                tracing::debug!(peer = %peer.id, why, "a comparison ended early");
            }
        }
    });
}

/// Serves a comparison that a peer begins. The session takes a permit after its first payload has
/// arrived.
async fn serve_session(
    waku: &Arc<WakuNode>,
    opener: &StreamOpener,
    peer: SessionPeer,
    mut stream: Stream,
    permits: &SyncPermits,
) -> Result<(), SyncFault> {
    let reading = frame::read_if(&mut stream, PAYLOAD_MAX, |len| {
        if len <= PAYLOAD_SHORT {
            Some(None)
        } else {
            permits.acquire(&permits.long, peer.source).map(Some)
        }
    });
    let first = tokio::time::timeout(peer.payload_time, reading).await;
    let first = first.map_err(|_| SyncFault::FirstPayload)?;
    let Some((first, _long)) = first.map_err(SyncFault::Broken)? else { return Ok(()) };
    let session = permits.acquire(&permits.sessions, peer.source);
    let _session = session.ok_or(SyncFault::Sessions)?;
    let within = waku.service.questions.may_search(peer.source);
    within.map_err(|TooManyQuestions| SyncFault::Refused(HistoryError::TooMany))?;
    answer(waku, opener, peer, stream, first, Arc::clone(&permits.items)).await
}

/// Compares with each configured store in turn, until `stop`.
pub(in crate::waku) async fn run(waku: Arc<WakuNode>, mut stop: StopSignal) {
    let Some(config) = &waku.config.p2p else { return };
    let (Some(every), Some(network)) = (config.sync.every, &waku.network) else { return };
    let comparing = async {
        loop {
            tokio::time::sleep(every).await;
            for store in &config.stores {
                let compared = compare(&waku, network, store).await;
                let outcome =
                    if compared.is_ok() { SyncOutcome::Done } else { SyncOutcome::Failed };
                waku.metrics.caught_up.of(CatchUpMethod::Sync).of(outcome).add(1);
                if let Err(fault) = compared {
                    let why = fault.to_string();
                    tracing::warn!(%store, why, "could not compare with a store");
                }
            }
        }
    };
    tokio::select! {
        () = stop.accepting() => {}
        () = comparing => {}
    }
}

/// Begins a comparison with a store.
async fn compare(
    waku: &Arc<WakuNode>,
    network: &NetworkHandle,
    store: &Multiaddr,
) -> Result<(), SyncFault> {
    let peer = network.connect(store.clone()).await?;
    let opener = &network.opener;
    let mut stream = opener.open(peer, PROTOCOL).await?;
    let sync = waku.config.p2p.as_ref().map(|config| config.sync).unwrap_or_default();
    let stop = waku.now_ns().saturating_sub(sync.jitter_s * NS_PER_S);
    let start = stop.saturating_sub(sync.range_s * NS_PER_S);
    // This node begins one session at a time, so the session's list does not count against
    // [`ITEMS_ALL_MAX`].
    let items = Arc::new(Semaphore::new(ITEMS_MAX + ITEMS_STEP));
    // This node's own searches are not charged to any source: they run only once every few minutes.
    let peer = SessionPeer { id: peer, source: OWN, payload_time: WAIT };
    let own = OwnMessages::load(waku, OWN, span(waku, start, stop), items).await?;
    let mut first = PayloadWriter::new(&topics(waku), start, PAYLOAD_MAX);
    first.fingerprint((stop, [0; 32]), &fingerprint(&own.items));
    send_payload(waku, &mut stream, &first.finish().0).await?;
    let received = next_payload(&mut stream, PAYLOAD_MAX, WAIT).await?;
    session(waku, opener, peer, stream, received, (start, own)).await
}

/// Answers a comparison that a peer has begun with the payload `first`.
async fn answer(
    waku: &Arc<WakuNode>,
    opener: &StreamOpener,
    peer: SessionPeer,
    stream: Stream,
    first: Vec<u8>,
    items: Arc<Semaphore>,
) -> Result<(), SyncFault> {
    let (start, query) = match SyncPayload::parse(&first)? {
        Some(payload) => (payload.start, payload_query(waku, &payload)),
        // An empty payload ends the session.
        None => return Ok(()),
    };
    let own = OwnMessages::load(waku, peer.source, query, items).await?;
    session(waku, opener, peer, stream, Some(first), (start, own)).await
}

/// Runs a comparison to its end, starting with the peer's payload `received`. Then sends the peer
/// the messages that the peer lacks.
async fn session(
    waku: &Arc<WakuNode>,
    opener: &StreamOpener,
    peer: SessionPeer,
    mut stream: Stream,
    mut received: Option<Vec<u8>>,
    (start, own): (u64, OwnMessages),
) -> Result<(), SyncFault> {
    let counts = &waku.metrics.sync;
    let (mut found, mut round_trips) = (Reconciliation::default(), 0);
    let topics = topics(waku);
    while let Some(bytes) = received.take() {
        counts
            .bytes
            .of(SyncProtocol::Reconciliation)
            .of(Direction::Received)
            .add(bytes.len() as u64);
        round_trips += 1;
        let Some(payload) = SyncPayload::parse(&bytes)? else { break };
        let mut next = PayloadWriter::new(&topics, payload.start, PAYLOAD_MAX);
        reconcile::answer(&own.items, &payload, &mut found, &mut next);
        drop(bytes);
        let (next, says) = next.finish();
        send_payload(waku, &mut stream, &next).await?;
        if !says || round_trips == ROUNDS_MAX {
            break;
        }
        drop(next);
        received = next_payload(&mut stream, PAYLOAD_MAX, peer.payload_time).await?;
    }
    // The session ends even if the peer does not receive the end of the stream.
    let _ = frame::end(&mut stream).await;
    let OwnMessages { items: mut lacks, _room } = own;
    found.retain_lacked(&mut lacks);
    counts.round_trips.note(round_trips as u64);
    counts.differences.note((lacks.len() + found.missed) as u64);
    let count = lacks.len();
    let Some(network) = waku.network.as_ref().filter(|_| count > 0) else { return Ok(()) };
    network.sent.remove_sent(peer.id, start, &mut lacks);
    let sent = if lacks.is_empty() {
        0
    } else {
        transfer::send(waku, opener, (peer.id, peer.source), &lacks).await?
    };
    network.sent.note(peer.id, lacks.into_iter());
    tracing::info!(peer = %peer.id, lacks = count, sent, "sent another store the missing messages");
    Ok(())
}

/// Sends a payload.
async fn send_payload(waku: &WakuNode, stream: &mut Stream, bytes: &[u8]) -> Result<(), SyncFault> {
    frame::write(stream, bytes).await.map_err(SyncFault::Broken)?;
    let counts = &waku.metrics.sync.bytes;
    counts.of(SyncProtocol::Reconciliation).of(Direction::Sent).add(bytes.len() as u64);
    Ok(())
}

/// Receives the peer's next payload. Returns `None` if the peer has ended the stream.
async fn next_payload(
    stream: &mut Stream,
    bytes_max: usize,
    time: Duration,
) -> Result<Option<Vec<u8>>, SyncFault> {
    match tokio::time::timeout(time, frame::read(stream, bytes_max)).await {
        Ok(next) => next.map_err(SyncFault::Broken),
        Err(_) => Err(SyncFault::NextPayload(time)),
    }
}
