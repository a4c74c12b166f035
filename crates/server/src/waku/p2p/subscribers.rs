//! The subscribers of the filter protocol, and the messages that wait for each subscriber.
//!
//! The writer's thread passes each new message to [`FilterSubscribers::publish`], which never
//! waits: a message that does not fit into the outbox of a subscriber is dropped for this
//! subscriber, and counted. The messages that wait are bounded in bytes: for a subscriber, for the
//! subscribers of an address, and in total together with all other answers (`answers.rs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use hark_codec::waku::protobuf::put_varint;
use hark_codec::waku::{FilterPush, Shard};
use libp2p::PeerId;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::criteria::{CriteriaBounds, CriteriaIndex, SubscriptionRefusal};
use super::incoming::StreamPeer;
use crate::answers::Answers;
use crate::permits::{Share, Shares};
use crate::rate::RateSource;
use crate::roster::OpenConnection;
use crate::waku::config::SharedNodeSettings;
use crate::waku::metrics::{FilterMetrics, PushOutcome};
use crate::waku::peer_status::PeerSubscriptions;

/// Maximum number of topics of a subscriber, as in nwaku.
pub(super) const CRITERIA_MAX: usize = 1_000;
/// Time after the last request until the subscriptions of a peer end, as in nwaku.
const LIFETIME: Duration = Duration::from_mins(5);
/// Maximum size of the messages that wait for one subscriber, in bytes. One message always fits.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// Memory that a waiting message takes in addition to its bytes.
const OVERHEAD_BYTES: usize = 256;

/// The subscribers; see the module.
pub(in crate::waku) struct FilterSubscribers {
    index: Mutex<CriteriaIndex<PushQueue>>,
    /// Permits for subscribers, by address.
    slots: Shares<RateSource>,
    answers: Answers,
    cluster: u16,
    settings: SharedNodeSettings,
    pub(super) metrics: Arc<FilterMetrics>,
}

/// The messages that wait for a subscriber.
pub(super) struct PushQueue {
    waiting: mpsc::UnboundedSender<WaitingPush>,
    room: Arc<Semaphore>,
    source: RateSource,
    count: SubscriptionCount,
    _slot: Share<RateSource>,
}

/// A message that waits for a subscriber, or is being sent.
pub(super) struct WaitingPush {
    /// The push, with its length in front.
    pub(super) frame: Arc<[u8]>,
    /// The time at which the message became durable.
    pub(super) since: Instant,
    /// Whether the message has been written to a stream, and counted as sent.
    pub(super) is_sent: bool,
    _own_room: OwnedSemaphorePermit,
    _room: Share<RateSource>,
}

/// The subscriptions that a connection has in the list of open connections.
struct SubscriptionCount {
    listed: Arc<OpenConnection>,
    count: u64,
}

impl SubscriptionCount {
    /// Sets the number of subscriptions, and the connection that has the subscriptions.
    fn set(&mut self, listed: &Arc<OpenConnection>, count: usize) {
        self.listed.counts.subscriptions.sub(self.count);
        self.listed = Arc::clone(listed);
        self.count = count as u64;
        self.listed.counts.subscriptions.add(self.count);
    }
}

impl Drop for SubscriptionCount {
    fn drop(&mut self) {
        self.listed.counts.subscriptions.sub(self.count);
    }
}

impl PushQueue {
    /// Adds a message to the outbox. Returns false if the message does not fit.
    fn add(&self, frame: &Arc<[u8]>, answers: &Answers, since: Instant) -> bool {
        let bytes = frame.len() + OVERHEAD_BYTES;
        let own = bytes.min(WAITING_BYTES_MAX) as u32;
        let Ok(own_room) = Arc::clone(&self.room).try_acquire_many_owned(own) else { return false };
        let Some(room) = answers.reserve(self.source, bytes) else { return false };
        let frame = Arc::clone(frame);
        let push = WaitingPush { frame, since, is_sent: false, _own_room: own_room, _room: room };
        self.waiting.send(push).is_ok()
    }
}

impl FilterSubscribers {
    pub(in crate::waku) fn new(
        (cluster, settings): (u16, SharedNodeSettings),
        answers: Answers,
        metrics: Arc<FilterMetrics>,
    ) -> Self {
        // `subscribe` sets the bounds of `slots` from the settings before it acquires a slot.
        let (index, slots) = (Mutex::default(), Shares::new(0, 0));
        Self { index, slots, answers, cluster, settings, metrics }
    }

    fn bounds(&self) -> CriteriaBounds {
        let subscribers_max = self.settings.load().filter_peers_max;
        CriteriaBounds { subscribers_max, criteria_max: CRITERIA_MAX, lifetime: LIFETIME }
    }

    /// Adds topics of a shard to a peer's subscriptions. For a new subscriber, `start` starts a
    /// task that sends the messages of the outbox; its first argument is the subscriber's number.
    pub(super) fn subscribe<'t>(
        &self,
        peer: &StreamPeer,
        shard: u16,
        topics: impl Iterator<Item = &'t str> + Clone,
        start: impl Fn(u64, mpsc::UnboundedReceiver<WaitingPush>),
    ) -> Result<(), SubscriptionRefusal> {
        let (bounds, now) = (self.bounds(), Instant::now());
        let source = peer.source;
        let outbox = |number| {
            self.slots.set_bounds(bounds.subscribers_max, bounds.subscribers_max);
            let slot = self.slots.acquire(source, 1)?;
            let (waiting, receiver) = mpsc::unbounded_channel();
            start(number, receiver);
            let room = Arc::new(Semaphore::new(WAITING_BYTES_MAX));
            let count = SubscriptionCount { listed: Arc::clone(&peer.listed), count: 0 };
            Some(PushQueue { waiting, room, source, count, _slot: slot })
        };
        let subscribe = |index: &mut CriteriaIndex<PushQueue>, topics| {
            let subscribed = index.subscribe(peer.id, (shard, topics), (&bounds, now), outbox);
            subscribed.map(|subscriber| {
                let topics = subscriber.topics();
                subscriber.outbox.count.set(&peer.listed, topics);
            })
        };
        let mut index = self.index.lock();
        let subscribed = subscribe(&mut index, topics.clone());
        // A page that is loaded again has a new id, and its earlier subscriber is gone.
        if matches!(subscribed, Err(SubscriptionRefusal::Address))
            && index.remove_oldest_disconnected(|outbox| outbox.source == source)
        {
            return subscribe(&mut index, topics);
        }
        subscribed
    }

    /// Extends the lifetime of a peer's subscriptions. Returns false if there are none.
    pub(super) fn ping(&self, peer: &StreamPeer) -> bool {
        let mut index = self.index.lock();
        let subscriber = index.ping(peer.id, LIFETIME, Instant::now());
        let Some(subscriber) = subscriber else { return false };
        let topics = subscriber.topics();
        subscriber.outbox.count.set(&peer.listed, topics);
        true
    }

    /// Removes topics of a shard from a peer's subscriptions. Returns false if the peer was not
    /// subscribed to all of these topics.
    pub(super) fn unsubscribe<'t>(
        &self,
        peer: &StreamPeer,
        shard: u16,
        topics: impl Iterator<Item = &'t str>,
    ) -> bool {
        let had_all = {
            let mut index = self.index.lock();
            index.unsubscribe(peer.id, (shard, topics), LIFETIME, Instant::now())
        };
        self.ping(peer);
        had_all
    }

    /// Removes all subscriptions of a peer. Returns false if there were none.
    pub(super) fn remove(&self, peer: PeerId) -> bool {
        self.index.lock().remove(peer, LIFETIME, Instant::now())
    }

    /// Removes a subscriber. Returns the connection of its last request, or `None` if it is gone
    /// already.
    pub(super) fn remove_number(&self, number: u64) -> Option<Arc<OpenConnection>> {
        let removed = self.index.lock().remove_number(number)?;
        Some(Arc::clone(&removed.outbox.count.listed))
    }

    /// Removes the subscribers whose lifetime has ended.
    pub(super) fn expire(&self) {
        self.index.lock().expire(LIFETIME, Instant::now());
    }

    /// Records whether a peer is connected.
    pub(super) fn set_connected(&self, peer: PeerId, is_connected: bool) {
        self.index.lock().set_connected(peer, is_connected);
    }

    /// Number of subscribers.
    pub(in crate::waku) fn count(&self) -> usize {
        self.index.lock().len()
    }

    /// All subscribers, each with its topics: pubsub topic and content topic.
    pub(in crate::waku) fn all(&self) -> Vec<PeerSubscriptions> {
        let all = self.index.lock().all();
        let pubsub = |index| Shard { cluster: self.cluster, index }.to_string();
        let named = all.into_iter().map(|(peer, topics)| {
            let topics = topics.into_iter().map(|(shard, topic)| (pubsub(shard), topic));
            (peer.to_string(), topics.collect())
        });
        named.collect()
    }

    /// Queues a new message for its subscribers. Never waits.
    pub(in crate::waku) fn publish(&self, pubsub_topic: &str, content_topic: &str, message: &[u8]) {
        let Ok(shard) = pubsub_topic.parse::<Shard>() else { return };
        if shard.cluster != self.cluster {
            return;
        }
        let (now, mut shared) = (Instant::now(), None);
        let index = self.index.lock();
        for subscriber in index.subscribers_of((shard.index, content_topic), LIFETIME, now) {
            let frame = shared.get_or_insert_with(|| encode_push(message, pubsub_topic));
            if !subscriber.outbox.add(frame, &self.answers, now) {
                self.metrics.pushes.of(PushOutcome::Dropped).add(1);
            }
        }
    }
}

/// Encodes a push, with its length in front.
fn encode_push(message: &[u8], pubsub_topic: &str) -> Arc<[u8]> {
    let mut push = Vec::with_capacity(message.len() + pubsub_topic.len() + 16);
    FilterPush { message, pubsub_topic }.write(&mut push);
    let mut frame = Vec::with_capacity(push.len() + 5);
    put_varint(&mut frame, push.len() as u64);
    frame.extend_from_slice(&push);
    frame.into()
}
