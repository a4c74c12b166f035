//! Waku Store Sync: two stores find out which messages of the last hour the other store lacks
//! (`/vac/waku/reconciliation/1.0.0`). Then each store sends these messages on a separate stream
//! (`/vac/waku/transfer/1.0.0`).
//!
//! Any peer may compare its messages with this node's messages. Messages are accepted only from
//! peers that the configuration names, because the messages may be of any age.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use hark_archive::{LabelSet, Order, Query, Record, SearchProgress, Store};
use hark_codec::waku::protobuf::{ProtobufFields, put_bytes};
use hark_codec::waku::sync::{MessagePosition, PayloadWriter, SyncPayload, fingerprint};
use hark_codec::waku::{Message, MessageRecord, topic};
use hark_networks::waku::NS_PER_S;
use libp2p::{Multiaddr, PeerId, Stream, StreamProtocol};
use libp2p_stream::Control;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::incoming::IncomingStreams;
use super::reconcile::{self, Reconciliation};
use super::{NetworkHandle, frame, peers};
use crate::permits::{Share, Shares};
use crate::rate::RateSource;
use crate::stop::StopSignal;
use crate::turns::{AnswerWaiter, NotAsked, TurnAnswer};
use crate::waku::metrics::{CatchUpMethod, Direction, MessageOrigin, SyncOutcome, SyncProtocol};
use crate::waku::{AcceptResult, WakuNode};

/// The protocol that compares two stores.
pub(super) const RECONCILIATION: &str = "/vac/waku/reconciliation/1.0.0";
/// The protocol that sends missing messages.
pub(super) const TRANSFER: &str = "/vac/waku/transfer/1.0.0";
/// Maximum size of a payload, in bytes.
const PAYLOAD_MAX: usize = 4 << 20;
/// Usual maximum size of a first payload, in bytes: topics, and one fingerprint.
const PAYLOAD_SHORT: usize = 64 << 10;
/// Maximum number of sessions begun by peers. An address may have one session. Further sessions are
/// reset. Configured peers have a separate limit of the same size, and each configured peer may use
/// the whole limit.
const SESSIONS_MAX: usize = 8;
/// Maximum duration of a session that a stranger has begun, and of each of its payloads. Without
/// these bounds, the session of a slow peer would exclude other peers.
const SESSION_TIME_MAX: Duration = Duration::from_mins(2);
const PAYLOAD_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum number of payloads that a session may receive.
const ROUNDS_MAX: usize = 64;
/// Maximum number of messages in a session's time span. The session's list takes 40 bytes for each
/// message.
const ITEMS_MAX: usize = 500_000;
/// Maximum number of messages in the lists of all sessions begun by peers. A session that would
/// exceed this bound ends.
const ITEMS_ALL_MAX: usize = 1_000_000;
/// Number of list entries for which permits are acquired at once.
const ITEMS_STEP: usize = 1_000;
/// How long a configured peer may take to send its next frame.
const WAIT: Duration = Duration::from_secs(30);
/// Maximum number of received messages that are being stored at the same time.
const AT_ONCE: usize = 100;
/// Number of messages that are read from the store at once.
const READ_AT_ONCE: usize = 32;
/// Rows that a search visits between two checks whether the session has ended.
const SLICE_ROWS: u64 = 4_096;
/// The source of this node's own searches.
const OWN: RateSource = RateSource::Connection(0);

/// The interval and the time span of this node's comparisons with other stores.
#[derive(Clone, Copy, Debug)]
pub struct SyncPlan {
    /// Interval between two comparisons with each store. `None` disables these comparisons.
    pub every: Option<Duration>,
    /// Length of the compared time span, in seconds.
    pub range_s: u64,
    /// Age at which the span ends, in seconds. Younger messages may still be in transit.
    pub jitter_s: u64,
}

impl Default for SyncPlan {
    /// The values of nwaku.
    fn default() -> Self {
        Self { every: Some(Duration::from_mins(5)), range_s: 3_600, jitter_s: 20 }
    }
}

/// Permits for sessions that peers begin, and for the messages in their lists.
struct SyncPermits {
    /// Whether an address has at most one session. Otherwise an address may use all sessions.
    is_shared: bool,
    sessions: Shares<RateSource>,
    /// For first payloads above [`PAYLOAD_SHORT`], which arrive before the session has a permit.
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

    /// Takes a unit of `of` for a peer.
    fn take(&self, of: &Shares<RateSource>, peer: RateSource) -> Option<Share<RateSource>> {
        if self.is_shared { of.take(peer, 1) } else { of.take_any(peer, 1) }
    }
}

/// The other side of a session.
#[derive(Clone, Copy)]
struct SessionPeer {
    id: PeerId,
    /// The source that the visited rows are charged to.
    source: RateSource,
    /// How long the peer may take for a payload.
    payload_time: Duration,
}

/// Serves the comparisons that peers begin.
pub(super) fn serve(incoming: &IncomingStreams, sending: Control, waku: &Arc<WakuNode>) {
    let waku = Arc::clone(waku);
    let of_configured = Arc::new(SyncPermits::new(false));
    let of_others = Arc::new(SyncPermits::new(true));
    incoming.serve(RECONCILIATION, move |peer, stream| {
        let (waku, control) = (Arc::clone(&waku), sending.clone());
        let is_configured = waku.knows(peer.id);
        let permits = Arc::clone(if is_configured { &of_configured } else { &of_others });
        async move {
            let (payload_time, time) = if is_configured {
                (WAIT, Duration::MAX)
            } else {
                (PAYLOAD_TIME_MAX, SESSION_TIME_MAX)
            };
            let peer = SessionPeer { id: peer.id, source: peer.source, payload_time };
            let serving = serve_session(&waku, control, peer, stream, &permits);
            let ended = tokio::time::timeout(time, serving).await;
            if let Err(why) = ended.unwrap_or_else(|_| Err("it took too long".into())) {
                tracing::debug!(peer = %peer.id, why, "a comparison ended early");
            }
        }
    });
}

/// Serves a comparison that a peer begins. The session takes a permit after its first payload has
/// arrived.
async fn serve_session(
    waku: &Arc<WakuNode>,
    control: Control,
    peer: SessionPeer,
    mut stream: Stream,
    permits: &SyncPermits,
) -> Result<(), String> {
    let reading = frame::read_if(&mut stream, PAYLOAD_MAX, |len| {
        if len <= PAYLOAD_SHORT {
            Some(None)
        } else {
            permits.take(&permits.long, peer.source).map(Some)
        }
    });
    let first = tokio::time::timeout(peer.payload_time, reading).await;
    let first = first.map_err(|_| "its first payload took too long")?;
    let Some((first, _long)) = first.map_err(|error| broken(&error))? else { return Ok(()) };
    let session = permits.take(&permits.sessions, peer.source);
    let _session = session.ok_or("there are as many comparisons as there may be")?;
    waku.may_search(peer.source).map_err(|error| error.to_string())?;
    answer(waku, control, peer, stream, first, Arc::clone(&permits.items)).await
}

/// Receives the messages that configured peers send.
pub(super) fn receive(incoming: &IncomingStreams, waku: &Arc<WakuNode>) {
    let waku = Arc::clone(waku);
    incoming.serve(TRANSFER, move |peer, stream| {
        let waku = Arc::clone(&waku);
        async move {
            if waku.knows(peer.id) {
                take(&waku, stream).await;
            }
        }
    });
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
                if let Err(why) = compared {
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
) -> Result<(), String> {
    let peer = network.connect(store.clone()).await?;
    let mut control = network.control.clone();
    let stream = control.open_stream(peer, StreamProtocol::new(RECONCILIATION)).await;
    let mut stream = stream.map_err(|error| error.to_string())?;
    let sync = waku.config.p2p.as_ref().map(|config| config.sync).unwrap_or_default();
    let stop = waku.now_ns().saturating_sub(sync.jitter_s * NS_PER_S);
    let start = stop.saturating_sub(sync.range_s * NS_PER_S);
    // This node begins one session at a time, so its list does not count against the bound for
    // peers.
    let items = Arc::new(Semaphore::new(ITEMS_MAX + ITEMS_STEP));
    // This node's own searches are not charged to any source: they come only once in minutes.
    let peer = SessionPeer { id: peer, source: OWN, payload_time: WAIT };
    let own = OwnMessages::load(waku, OWN, span(waku, start, stop), items).await?;
    let mut first = PayloadWriter::new(&topics(waku), start, PAYLOAD_MAX);
    first.fingerprint((stop, [0; 32]), &fingerprint(&own.items));
    say(waku, &mut stream, &first.finish().0).await?;
    let received = next_payload(&mut stream, PAYLOAD_MAX, WAIT).await?;
    session(waku, control, peer, stream, received, (start, own)).await
}

/// Answers a comparison that a peer has begun with the payload `first`.
async fn answer(
    waku: &Arc<WakuNode>,
    control: Control,
    peer: SessionPeer,
    stream: Stream,
    first: Vec<u8>,
    items: Arc<Semaphore>,
) -> Result<(), String> {
    let (start, query) = match SyncPayload::parse(&first).map_err(|error| error.to_string())? {
        Some(payload) => (payload.start, asked(waku, &payload)),
        // An empty payload ends the session.
        None => return Ok(()),
    };
    let own = OwnMessages::load(waku, peer.source, query, items).await?;
    session(waku, control, peer, stream, Some(first), (start, own)).await
}

/// This store's messages that a session compares, sorted by time and hash.
struct OwnMessages {
    items: Vec<MessagePosition>,
    _room: Vec<OwnedSemaphorePermit>,
}

impl OwnMessages {
    /// Loads the messages that match a query.
    async fn load(
        waku: &Arc<WakuNode>,
        source: RateSource,
        mut query: Query,
        room: Arc<Semaphore>,
    ) -> Result<Self, String> {
        query.normalise();
        let loaded = waku.ask(source, move |store, asker| {
            let (mut items, mut held, mut full) = (Vec::new(), Vec::new(), false);
            let mut count = 0;
            each(store, asker, &query, &mut |record| {
                count += 1;
                if items.len() == held.len() * ITEMS_STEP {
                    let more = Arc::clone(&room).try_acquire_many_owned(ITEMS_STEP as u32);
                    let Ok(more) = more else {
                        full = true;
                        return ControlFlow::Break(());
                    };
                    held.push(more);
                }
                // Other stores refuse a message without a payload each time.
                if MessageRecord::new(*record).has_payload() {
                    items.push((record.time(), *record.id()));
                }
                ControlFlow::Continue(())
            })?;
            if full {
                return Err("more is being compared than there is room for".to_owned());
            }
            if count > ITEMS_MAX {
                return Err(format!("there are more than {ITEMS_MAX} messages to compare"));
            }
            Ok(Self { items, _room: held })
        });
        answered(loaded.await)
    }
}

/// Runs a comparison to its end, starting with the peer's payload `received`. Then sends the peer
/// the messages that the peer lacks.
async fn session(
    waku: &Arc<WakuNode>,
    control: Control,
    peer: SessionPeer,
    mut stream: Stream,
    mut received: Option<Vec<u8>>,
    (start, own): (u64, OwnMessages),
) -> Result<(), String> {
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
        let payload = SyncPayload::parse(&bytes).map_err(|error| error.to_string())?;
        let Some(payload) = payload else { break };
        let mut next = PayloadWriter::new(&topics, payload.start, PAYLOAD_MAX);
        reconcile::answer(&own.items, &payload, &mut found, &mut next);
        drop(bytes);
        let (next, says) = next.finish();
        say(waku, &mut stream, &next).await?;
        if !says || round_trips == ROUNDS_MAX {
            break;
        }
        drop(next);
        received = next_payload(&mut stream, PAYLOAD_MAX, peer.payload_time).await?;
    }
    // The session ends even if the peer does not receive the end of the stream.
    let _ = frame::end(&mut stream).await;
    let OwnMessages { items: mut lacks, _room } = own;
    found.keep_lacked(&mut lacks);
    counts.round_trips.note(round_trips as u64);
    counts.differences.note((lacks.len() + found.missed) as u64);
    let count = lacks.len();
    let Some(network) = waku.network.as_ref().filter(|_| count > 0) else { return Ok(()) };
    network.sent.take_out(peer.id, start, &mut lacks);
    let sent = if lacks.is_empty() { 0 } else { send(waku, control, peer, &lacks).await? };
    network.sent.note(peer.id, lacks.into_iter());
    tracing::info!(peer = %peer.id, lacks = count, sent, "sent what another store lacked");
    Ok(())
}

/// Sends a payload.
async fn say(waku: &WakuNode, stream: &mut Stream, bytes: &[u8]) -> Result<(), String> {
    frame::write(stream, bytes).await.map_err(|error| broken(&error))?;
    let counts = &waku.metrics.sync.bytes;
    counts.of(SyncProtocol::Reconciliation).of(Direction::Sent).add(bytes.len() as u64);
    Ok(())
}

/// Receives the peer's next payload. Returns `None` if the peer has ended the stream.
async fn next_payload(
    stream: &mut Stream,
    bytes_max: usize,
    time: Duration,
) -> Result<Option<Vec<u8>>, String> {
    match tokio::time::timeout(time, frame::read(stream, bytes_max)).await {
        Ok(next) => next.map_err(|error| broken(&error)),
        Err(_) => Err(format!("no whole payload was received for {} s", time.as_secs())),
    }
}

/// Returns the result of a search.
fn answered<T>(ran: Result<TurnAnswer<Result<T, String>>, NotAsked>) -> Result<T, String> {
    match ran {
        Ok(asked) => asked.answer,
        Err(NotAsked::Line) => Err("too many questions wait".into()),
        Err(NotAsked::Panicked) => Err("the node is going down".into()),
    }
}

fn broken(error: &std::io::Error) -> String {
    format!("the stream broke: {error}")
}

/// Returns the pubsub topics of the shards that this node serves.
fn topics(waku: &WakuNode) -> Vec<String> {
    waku.config.served().map(|shard| shard.to_string()).collect()
}

/// Returns the query for this store's messages of a time span.
fn span(waku: &WakuNode, from: u64, to: u64) -> Query {
    let values = topics(waku).into_iter().map(|topic| topic.into_bytes().into()).collect();
    let labels = vec![LabelSet { name: topic::PUBSUB, values }];
    let (order, limit, budget) =
        (Order::OldestFirst, ITEMS_MAX + 1, waku.settings().query_rows_max);
    Query { labels, from, to, order, limit, budget, ..Query::default() }
}

/// Returns the query for this store's messages of a payload's time span and topics.
fn asked(waku: &WakuNode, payload: &SyncPayload<'_>) -> Query {
    let mut query = span(waku, payload.start, payload.end);
    let theirs = payload.pubsub_topics;
    if !theirs.is_empty() {
        query.labels[0]
            .values
            .retain(|topic| theirs.iter().any(|name| name.as_bytes() == &**topic));
    }
    if !payload.content_topics.is_empty() {
        let topics = payload.content_topics.iter();
        let values = topics.map(|topic| topic.as_bytes().into()).collect();
        query.labels.push(LabelSet { name: topic::CONTENT, values });
    }
    query
}

/// Passes the records that match a query to `sink`, until `sink` breaks.
fn each(
    store: &dyn Store,
    asker: &AnswerWaiter,
    query: &Query,
    sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
) -> Result<(), String> {
    let failed = |error: hark_archive::SearchError| error.to_string();
    let mut search = store.search(query).map_err(failed)?;
    let enough = Cell::new(false);
    let mut sink = |record: &Record<'_>| {
        let flow = sink(record);
        enough.set(flow.is_break());
        flow
    };
    let mut noted = 0;
    loop {
        if asker.has_gone() {
            return Err("nobody waits for the answer".into());
        }
        let progress = search.slice(SLICE_ROWS, &mut sink);
        asker.visit(search.visited() - noted);
        noted = search.visited();
        match progress.map_err(failed)? {
            SearchProgress::Paused if enough.get() => return Ok(()),
            SearchProgress::Paused => {}
            SearchProgress::Done { .. } => return Ok(()),
            SearchProgress::Exhausted => return Err("too much would have to be read".into()),
        }
    }
}

/// Sends messages to a peer. Returns the number of messages sent.
async fn send(
    waku: &Arc<WakuNode>,
    mut control: Control,
    peer: SessionPeer,
    positions: &[MessagePosition],
) -> Result<usize, String> {
    let stream = control.open_stream(peer.id, StreamProtocol::new(TRANSFER)).await;
    let mut stream = stream.map_err(|error| error.to_string())?;
    let mut sent = 0;
    for some in positions.chunks(READ_AT_ONCE) {
        let ids = Some(some.iter().map(|position| position.1).collect());
        let mut query = Query { ids, ..Query::default() };
        query.normalise();
        let found = waku.ask(peer.source, move |store, asker| {
            let mut frames = Vec::new();
            each(store, asker, &query, &mut |record| {
                let record = MessageRecord::new(*record);
                let mut frame = Vec::with_capacity(record.message().len() + 64);
                put_bytes(&mut frame, 1, record.pubsub_topic());
                put_bytes(&mut frame, 2, record.message());
                frames.push(frame);
                ControlFlow::Continue(())
            })?;
            Ok::<_, String>(frames)
        });
        for message in answered(found.await)? {
            frame::write(&mut stream, &message).await.map_err(|error| error.to_string())?;
            transferred(waku, Direction::Sent, message.len());
            sent += 1;
        }
    }
    frame::end(&mut stream).await.map_err(|error| error.to_string())?;
    Ok(sent)
}

/// Counts a transferred message.
fn transferred(waku: &WakuNode, direction: Direction, bytes: usize) {
    let counts = &waku.metrics.sync;
    counts.bytes.of(SyncProtocol::Transfer).of(direction).add(bytes as u64);
    counts.messages.of(direction).add(1);
}

/// Stores the messages of a stream until the stream ends.
async fn take(waku: &Arc<WakuNode>, mut stream: Stream) {
    // A topic may have 1,024 bytes.
    let bytes_max = waku.config.message_bytes_max + 1_024;
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    let (mut taking, mut new) = (JoinSet::new(), 0_u64);
    while let Ok(Ok(Some(bytes))) =
        tokio::time::timeout(WAIT, frame::read(&mut stream, bytes_max)).await
    {
        transferred(waku, Direction::Received, bytes.len());
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let waku = Arc::clone(waku);
        taking.spawn(async move {
            let taken = one(&waku, &bytes).await;
            drop(slot);
            taken
        });
        while let Some(taken) = taking.try_join_next() {
            new += u64::from(taken.unwrap_or_default());
        }
    }
    while let Some(taken) = taking.join_next().await {
        new += u64::from(taken.unwrap_or_default());
    }
    if new > 0 {
        tracing::info!(new, "another store sent what this one lacked");
    }
}

/// Stores one message with its topic. Returns whether the message is new.
async fn one(waku: &WakuNode, bytes: &[u8]) -> bool {
    let (mut pubsub_topic, mut message) = ("", None);
    for field in ProtobufFields::new(bytes).flatten() {
        match field.number {
            1 => pubsub_topic = field.string().unwrap_or_default(),
            2 => message = field.bytes().ok(),
            _ => {}
        }
    }
    let Some(bytes) = message.filter(|_| waku.serves(pubsub_topic)) else { return false };
    let Ok(message) = Message::parse(bytes) else { return false };
    let taken = waku.take(MessageOrigin::Store, &message, bytes.len(), pubsub_topic).await;
    matches!(taken, Ok(AcceptResult::Stored))
}

impl WakuNode {
    /// Whether the configuration names this peer.
    fn knows(&self, peer: PeerId) -> bool {
        self.config.p2p.as_ref().is_some_and(|config| {
            config.peers.iter().chain(&config.stores).any(|addr| peers::id(addr) == Some(peer))
        })
    }
}
