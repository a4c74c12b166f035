//! Waku Store Sync: two stores find out which messages of the last hour the other lacks
//! (`/vac/waku/reconciliation/1.0.0`), and each sends them on a stream of its own
//! (`/vac/waku/transfer/1.0.0`).
//!
//! Anybody may ask what this node has. Messages are taken from the peers in the configuration only, as
//! they may be of any age.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use hark_archive::{LabelSet, Order, Progress, Query, Record, Store};
use hark_codec::record::Id;
use hark_codec::waku::protobuf::{Fields, put_bytes};
use hark_codec::waku::sync::{Payload, Place, Range, Said, fingerprint};
use hark_codec::waku::{Message, MessageRecord, topic};
use libp2p::{Multiaddr, PeerId, Stream, StreamProtocol};
use libp2p_stream::Control;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::incoming::Incoming;
use super::{Handle, frame, peers, reconcile};
use crate::waku::metrics::{CatchUp, Direction, Origin, Outcome, SyncProtocol};
use crate::waku::{NS_PER_S, Taken, Waku, now_ns};

/// The name of comparing.
pub(super) const RECONCILIATION: &str = "/vac/waku/reconciliation/1.0.0";
/// The name of sending.
pub(super) const TRANSFER: &str = "/vac/waku/transfer/1.0.0";
/// Bytes of a payload, at most.
const PAYLOAD_MAX: usize = 4 << 20;
/// Sessions that others have begun, at a time: each holds a list of its span. One more is reset.
const SESSIONS_MAX: usize = 4;
/// Payloads that a session may take.
const ROUNDS_MAX: usize = 64;
/// Messages of a session's span, at most.
const ITEMS_MAX: usize = 500_000;
/// How long the other side may take to say something.
const WAIT: Duration = Duration::from_secs(30);
/// Messages that are read from the archive, or on their way into it, at a time.
const AT_ONCE: usize = 100;

/// How often what is compared.
#[derive(Clone, Copy, Debug)]
pub struct SyncPlan {
    /// Time between two comparisons with each store; none if never.
    pub every: Option<Duration>,
    /// How much is compared, in seconds up to now.
    pub range_s: u64,
    /// Less these last ones, which may still be under way.
    pub jitter_s: u64,
}

impl Default for SyncPlan {
    /// nwaku's.
    fn default() -> Self {
        Self { every: Some(Duration::from_mins(5)), range_s: 3_600, jitter_s: 20 }
    }
}

/// Answers those who compare.
pub(super) fn serve(incoming: &Incoming, sending: Control, waku: &Arc<Waku>) {
    let waku = Arc::clone(waku);
    let sessions = Arc::new(Semaphore::new(SESSIONS_MAX));
    incoming.serve(RECONCILIATION, move |peer, mut stream| {
        let (waku, control) = (Arc::clone(&waku), sending.clone());
        let sessions = Arc::clone(&sessions);
        async move {
            let Ok(_session) = sessions.try_acquire_owned() else { return };
            let first = tokio::time::timeout(WAIT, frame::read(&mut stream, PAYLOAD_MAX));
            let Ok(Ok(Some(first))) = first.await else { return };
            if let Err(why) = session(&waku, control, peer, stream, Some(first)).await {
                tracing::debug!(%peer, why, "a comparison ended early");
            }
        }
    });
}

/// Takes what configured peers send.
pub(super) fn receive(incoming: &Incoming, waku: &Arc<Waku>) {
    let waku = Arc::clone(waku);
    incoming.serve(TRANSFER, move |peer, stream| {
        let waku = Arc::clone(&waku);
        async move {
            if waku.knows(peer) {
                take(&waku, stream).await;
            }
        }
    });
}

/// Compares with each store in turn, until told to leave.
pub(in crate::waku) async fn run(waku: Arc<Waku>, mut leaving: watch::Receiver<bool>) {
    let Some(config) = &waku.config.p2p else { return };
    let (Some(every), Some(network)) = (config.sync.every, &waku.network) else { return };
    let comparing = async {
        loop {
            tokio::time::sleep(every).await;
            for store in &config.stores {
                let compared = compare(&waku, network, store).await;
                let outcome = if compared.is_ok() { Outcome::Done } else { Outcome::Failed };
                waku.metrics.caught_up.of(CatchUp::Sync).of(outcome).add(1);
                if let Err(why) = compared {
                    tracing::warn!(%store, why, "could not compare with a store");
                }
            }
        }
    };
    tokio::select! {
        _ = leaving.wait_for(|leaving| *leaving) => {}
        () = comparing => {}
    }
}

async fn compare(waku: &Arc<Waku>, network: &Handle, store: &Multiaddr) -> Result<(), String> {
    let peer = network.connect(store.clone()).await?;
    let mut control = network.control.clone();
    let stream = control.open_stream(peer, StreamProtocol::new(RECONCILIATION)).await;
    let stream = stream.map_err(|error| error.to_string())?;
    session(waku, control, peer, stream, None).await
}

/// A comparison to its end, begun by the other side with `first`, or else by this one. Then the other
/// side gets what it lacks.
async fn session(
    waku: &Arc<Waku>,
    control: Control,
    peer: PeerId,
    mut stream: Stream,
    first: Option<Vec<u8>>,
) -> Result<(), String> {
    let broken = |error: std::io::Error| format!("the stream broke: {error}");
    let counts = &waku.metrics.sync;
    let bytes_of = counts.bytes.of(SyncProtocol::Reconciliation);
    let (mut lacks, mut missed, mut round_trips) = (Vec::new(), 0, 0);
    let (mut heard, mut own) = (first, None);
    for _ in 0..ROUNDS_MAX {
        let (bytes, over) = if let Some(bytes) = heard.take() {
            bytes_of.of(Direction::Received).add(bytes.len() as u64);
            round_trips += 1;
            let payload = Payload::parse(&bytes).map_err(|error| error.to_string())?;
            let Some(payload) = payload else { break };
            if own.is_none() {
                own = Some(load(waku, &payload).await?);
            }
            let answer = reconcile::answer(own.as_deref().unwrap_or_default(), &payload);
            lacks.extend(answer.lacks);
            missed += answer.missed;
            written(waku, payload.start, answer.ranges)
        } else {
            let (payload, items) = begin(waku).await?;
            own = Some(items);
            written(waku, payload.start, payload.ranges)
        };
        frame::write(&mut stream, &bytes).await.map_err(broken)?;
        bytes_of.of(Direction::Sent).add(bytes.len() as u64);
        if over {
            break;
        }
        let next = tokio::time::timeout(WAIT, frame::read(&mut stream, PAYLOAD_MAX)).await;
        heard = match next {
            Ok(next) => next.map_err(broken)?,
            Err(_) => return Err(format!("nothing was heard for {} s", WAIT.as_secs())),
        };
        if heard.is_none() {
            break;
        }
    }
    // Whether the peer hears it is its own affair.
    let _ = frame::end(&mut stream).await;
    lacks.sort_unstable();
    lacks.dedup();
    counts.round_trips.note(round_trips);
    counts.differences.note((lacks.len() + missed) as u64);
    if lacks.is_empty() {
        return Ok(());
    }
    let count = lacks.len();
    let sent = send(waku, control, peer, lacks).await?;
    tracing::info!(%peer, lacks = count, sent, "sent what another store lacked");
    Ok(())
}

/// A payload's bytes, and whether they end the session.
fn written(waku: &Waku, start: u64, ranges: Vec<Range>) -> (Vec<u8>, bool) {
    let pubsub_topics = waku.config.served().map(|shard| shard.to_string()).collect();
    let mut bytes = Vec::new();
    Payload { pubsub_topics, content_topics: Vec::new(), start, ranges }.write(&mut bytes);
    let over = bytes.len() <= 1;
    (bytes, over)
}

/// The first payload: a fingerprint of all there is.
async fn begin(waku: &Arc<Waku>) -> Result<(Payload, Vec<Place>), String> {
    let sync = waku.config.p2p.as_ref().map(|config| config.sync).unwrap_or_default();
    let stop = now_ns().saturating_sub(sync.jitter_s * NS_PER_S);
    let start = stop.saturating_sub(sync.range_s * NS_PER_S);
    let end = (stop, [0; 32]);
    let mut payload = Payload { start, ..Payload::default() };
    payload.ranges.push(Range { end, said: Said::Skip });
    let own = load(waku, &payload).await?;
    payload.ranges[0].said = Said::Fingerprint(fingerprint(&own));
    Ok((payload, own))
}

/// What this store has of a payload's span and topics.
async fn load(waku: &Arc<Waku>, payload: &Payload) -> Result<Vec<Place>, String> {
    let theirs = &payload.pubsub_topics;
    let served = waku.config.served().map(|shard| shard.to_string());
    let shared = served.filter(|topic| theirs.is_empty() || theirs.contains(topic));
    let values = shared.map(|topic| topic.into_bytes().into()).collect();
    let mut labels = vec![LabelSet { name: topic::PUBSUB, values }];
    if !payload.content_topics.is_empty() {
        let topics = payload.content_topics.iter();
        let values = topics.map(|topic| topic.clone().into_bytes().into()).collect();
        labels.push(LabelSet { name: topic::CONTENT, values });
    }
    let end = payload.ranges.last().map_or(payload.start, |range| range.end.0);
    let (from, order, limit) = (payload.start, Order::OldestFirst, ITEMS_MAX + 1);
    let budget = waku.config.query_rows_max;
    let mut query = Query { labels, from, to: end, order, limit, budget, ..Query::default() };
    query.normalise();
    let loaded = waku.ask(move |store| {
        let mut items = Vec::new();
        each(store, &query, &mut |record| items.push((record.time(), *record.id())))?;
        Ok::<_, String>(items)
    });
    let items = loaded.await.ok_or("the node is going down")??;
    if items.len() > ITEMS_MAX {
        return Err(format!("there are more than {ITEMS_MAX} messages to compare"));
    }
    Ok(items)
}

/// Hands over all that a query finds.
fn each(store: &dyn Store, query: &Query, sink: &mut dyn FnMut(&Record<'_>)) -> Result<(), String> {
    let failed = |error: hark_archive::SearchError| error.to_string();
    let mut search = store.search(query).map_err(failed)?;
    let mut sink = |record: &Record<'_>| {
        sink(record);
        ControlFlow::Continue(())
    };
    loop {
        match search.slice(u64::MAX, &mut sink).map_err(failed)? {
            Progress::Paused => {}
            Progress::Done { .. } => return Ok(()),
            Progress::Exhausted => return Err("too much would have to be read".into()),
        }
    }
}

/// Sends messages, and says how many.
async fn send(
    waku: &Arc<Waku>,
    mut control: Control,
    peer: PeerId,
    hashes: Vec<Id>,
) -> Result<usize, String> {
    let stream = control.open_stream(peer, StreamProtocol::new(TRANSFER)).await;
    let mut stream = stream.map_err(|error| error.to_string())?;
    let mut sent = 0;
    for some in hashes.chunks(AT_ONCE) {
        let query = Query { ids: Some(some.to_vec()), ..Query::default() };
        let found = waku.ask(move |store| {
            let mut frames = Vec::new();
            each(store, &query, &mut |record| {
                let record = MessageRecord::new(*record);
                let mut frame = Vec::with_capacity(record.message().len() + 64);
                put_bytes(&mut frame, 1, record.pubsub_topic());
                put_bytes(&mut frame, 2, record.message());
                frames.push(frame);
            })?;
            Ok::<_, String>(frames)
        });
        for message in found.await.ok_or("the node is going down")?? {
            frame::write(&mut stream, &message).await.map_err(|error| error.to_string())?;
            transferred(waku, Direction::Sent, message.len());
            sent += 1;
        }
    }
    frame::end(&mut stream).await.map_err(|error| error.to_string())?;
    Ok(sent)
}

/// A message went over.
fn transferred(waku: &Waku, direction: Direction, bytes: usize) {
    let counts = &waku.metrics.sync;
    counts.bytes.of(SyncProtocol::Transfer).of(direction).add(bytes as u64);
    counts.messages.of(direction).add(1);
}

/// Takes messages in until there are no more.
async fn take(waku: &Arc<Waku>, mut stream: Stream) {
    // Room for the topic.
    let bytes_max = waku.config.bounds.message_bytes_max + 1_024;
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

/// Takes in one message with its topic; whether it is new.
async fn one(waku: &Waku, bytes: &[u8]) -> bool {
    let (mut pubsub_topic, mut message) = ("", None);
    for field in Fields::new(bytes).flatten() {
        match field.number {
            1 => pubsub_topic = field.string().unwrap_or_default(),
            2 => message = field.bytes().ok(),
            _ => {}
        }
    }
    let Some(bytes) = message.filter(|_| waku.serves(pubsub_topic)) else { return false };
    let Ok(message) = Message::parse(bytes) else { return false };
    let taken = waku.take(Origin::Store, &message, bytes.len(), pubsub_topic).await;
    matches!(taken, Ok(Taken::Stored))
}

impl Waku {
    /// Whether the configuration names this peer.
    fn knows(&self, peer: PeerId) -> bool {
        self.config.p2p.as_ref().is_some_and(|config| {
            config.peers.iter().chain(&config.stores).any(|addr| peers::id(addr) == Some(peer))
        })
    }
}
