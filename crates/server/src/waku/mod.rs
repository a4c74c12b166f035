//! The Waku node: REST and gossip accept messages; REST and `/vac/waku/store-query/3.0.0` serve
//! history.
//!
//! `hark_networks::waku::admit` decides which messages are accepted, and [`history`] evaluates
//! queries. `rest` is the HTTP interface, and `p2p` is the libp2p interface. Both pass messages to
//! `WakuNode::take`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use hark_archive::{CommitError, Outcome, Record, Store, Write, writer};
use hark_codec::waku::{Message, MessageEncoder, ProtectedShard, RateLimitProof, Shard, signed};
use hark_networks::waku::admit;
use tokio::sync::{Semaphore, oneshot};

use crate::Clients;
use crate::limits::Rate;
use crate::metrics::SearchDriver;
use crate::permits::{Share, Shares};
use crate::rate::{RateBuckets, RateLimiter, RateSource, RateSubject};
use crate::shelf::{self, Shelf};
use crate::slow::{SearchCost, SlowLog};
use crate::turns::{AnswerWaiter, NotAsked, QuestionSlots, StoreLocation, TurnAnswer};
use history::{HistoryError, HistoryPage, PositionCache};
use metrics::{MessageFate, MessageOrigin, NodeMetrics};
use nullifiers::NullifierLog;
use poll::PollQueues;
pub use poll::TOPICS_MAX as SHARDS_MAX;
pub use rest::RestAccess;

mod door;
pub mod history;
pub mod metrics;
mod neighbours;
mod nullifiers;
#[cfg(feature = "libp2p")]
pub mod p2p;
mod poll;
mod prometheus;
mod rest;
#[cfg(feature = "libp2p")]
mod resume;

/// Maximum size of the messages that wait to be durable, in bytes. Above this bound callers wait.
const INTAKE_BYTES_MAX: usize = 64 << 20;
/// Minimum charge for a message, in bytes. The minimum ensures that no more messages wait than the
/// writer's queue holds.
const INTAKE_BYTES_MIN: usize = INTAKE_BYTES_MAX / INTAKE_MAX;
/// Maximum number of messages that wait to be durable.
const INTAKE_MAX: usize = 4_096;

/// Maximum size of the answers that clients have not read yet, in bytes: in all, and per address.
const ANSWERS_BYTES_MAX: usize = 256 << 20;
const ANSWERS_BYTES_PER_ADDRESS_MAX: usize = 64 << 20;

/// Maximum number of concurrent requests to peers on behalf of REST clients: in all, and per
/// address. A peer's answer may have 16 MiB.
const PEER_QUESTIONS_MAX: usize = 16;
const PEER_QUESTIONS_PER_ADDRESS_MAX: usize = 4;

/// Rows that a query may visit on an async worker thread, which other tasks share.
const ROWS_AT_ONCE: u64 = 20_000;

/// A Waku node, ready to be served.
pub struct NodeService {
    /// The node's configuration.
    pub config: NodeConfig,
    /// The options of the node's store.
    pub shelf: shelf::ShelfOptions,
}

/// The settings that can change while a node runs.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// How far a message's time may be from now, in nanoseconds. `None` is unlimited.
    pub window_ns: Option<u64>,
    /// Shards on which only signed messages are accepted.
    pub protected_shards: Vec<ProtectedShard>,
    /// Requests for history allowed per peer, and per client of the REST API. `None` is unlimited.
    pub queries: Option<Rate>,
    /// Maximum number of rows that a query may visit.
    pub query_rows_max: u64,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            window_ns: admit::MessageBounds::default().window_ns,
            protected_shards: Vec::new(),
            queries: None,
            query_rows_max: 5_000_000,
        }
    }
}

/// A shared handle of the current settings. Any holder can replace the settings while the node
/// runs.
pub type SharedNodeSettings = Arc<ArcSwap<NodeSettings>>;

/// Makes a shared handle that holds these settings.
pub fn shared(settings: NodeSettings) -> SharedNodeSettings {
    Arc::new(ArcSwap::from_pointee(settings))
}

/// The configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Address of the REST API. `None` disables the REST API.
    pub rest: Option<SocketAddr>,
    /// The web pages that may use the REST API, and the allowed functions of the API.
    pub access: RestAccess,
    /// Configuration of the libp2p interface. `None` disables the libp2p interface.
    #[cfg(feature = "libp2p")]
    pub p2p: Option<p2p::P2pConfig>,
    /// The cluster whose messages are kept.
    pub cluster: u16,
    /// Number of shards in the cluster, for messages that name only their content topic.
    pub shards_in_cluster: u16,
    /// The shards of the cluster that are served.
    pub shards: Vec<u16>,
    /// Whether this node relays messages and lets clients publish. Peers disconnect a node that
    /// relays messages they refuse: see [`can_forward`].
    pub forward: bool,
    /// Whether a message needs a rate-limit proof. The node checks the form, the epoch and the
    /// nullifier of the proof, but does not verify the proof.
    pub proofs: bool,
    /// Maximum size of a message, in bytes.
    pub message_bytes_max: usize,
    /// The settings that can change while the node runs.
    pub settings: SharedNodeSettings,
    /// Where the store does its work: in this process, or in a database.
    pub store_at: StoreLocation,
}

impl Default for NodeConfig {
    /// The Waku Network (RFC 64/WAKU2-NETWORK), without REST and libp2p.
    fn default() -> Self {
        Self {
            rest: None,
            access: RestAccess::default(),
            #[cfg(feature = "libp2p")]
            p2p: None,
            cluster: 1,
            shards_in_cluster: 8,
            shards: (0..8).collect(),
            forward: can_forward(1),
            proofs: !can_forward(1),
            message_bytes_max: admit::MessageBounds::default().message_bytes_max,
            settings: SharedNodeSettings::default(),
            store_at: StoreLocation::Process,
        }
    }
}

/// Whether this node can tell which messages a cluster's nodes refuse. Each message on cluster 1,
/// The Waku Network, needs a rate-limit proof (RFC 58/RLN-V2), which this node neither verifies nor
/// creates.
pub fn can_forward(cluster: u16) -> bool {
    cluster != 1
}

impl NodeConfig {
    /// Returns the served shards.
    fn served(&self) -> impl Iterator<Item = Shard> {
        self.shards.iter().map(|&index| Shard { cluster: self.cluster, index })
    }
}

/// The state that the REST and libp2p interfaces share.
pub(crate) struct WakuNode {
    shelf: Arc<Shelf>,
    poll: Arc<PollQueues>,
    pub(crate) metrics: NodeMetrics,
    slow: SlowLog,
    /// Permits, in bytes, for messages that wait to be durable.
    room: Arc<Semaphore>,
    turns: QuestionSlots,
    positions: Arc<PositionCache>,
    /// Permits, in bytes, for answers in transmission.
    answers: Shares<RateSource>,
    /// Permits for clients' requests to peers.
    peer_questions: Shares<RateSource>,
    /// The nullifiers of the messages that need proofs.
    nullifiers: NullifierLog,
    buckets: RateBuckets,
    /// Bounds for the rows that an address's requests visit, shared by all networks.
    rates: RateLimiter,
    clients: Clients,
    #[cfg(feature = "libp2p")]
    network: Option<p2p::NetworkHandle>,
    config: NodeConfig,
}

/// A page, and the memory permit for its answer.
struct PageWithPermit {
    page: HistoryPage,
    room: Share<RateSource>,
}

/// The result for an accepted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcceptResult {
    /// Durable.
    Stored,
    /// The message was stored before.
    Duplicate,
    /// Relayed and not stored.
    Ephemeral,
}

/// Why a message was not accepted or not stored.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum MessageRejection {
    /// The message is not admissible.
    #[error(transparent)]
    Refused(#[from] admit::MessageRefusal),
    /// The archive failed to commit the message.
    #[error("the message was not stored: {0}")]
    Store(Arc<CommitError>),
    /// The node is shutting down.
    #[error("the message was not stored: the node is going down")]
    Down,
}

impl WakuNode {
    /// Returns the current settings.
    fn settings(&self) -> Guard<Arc<NodeSettings>> {
        self.config.settings.load()
    }

    /// The current time, in nanoseconds since 1970.
    fn now_ns(&self) -> u64 {
        self.shelf.clock().now_ns()
    }

    /// Whether messages of this topic are accepted.
    fn serves(&self, pubsub_topic: &str) -> bool {
        pubsub_topic.parse::<Shard>().is_ok_and(|shard| self.serves_shard(shard))
    }

    /// Whether messages of this shard are accepted.
    fn serves_shard(&self, shard: Shard) -> bool {
        self.config.served().any(|served| served == shard)
    }

    /// Checks a message and stores it: see [`WakuNode::admit`] and [`WakuNode::keep`].
    pub(crate) async fn take(
        &self,
        origin: MessageOrigin,
        message: &Message<'_>,
        bytes: usize,
        pubsub_topic: &str,
    ) -> Result<AcceptResult, MessageRejection> {
        self.admit(origin, message, bytes, pubsub_topic)?;
        self.keep(origin, message, pubsub_topic).await
    }

    /// Checks whether a message of `bytes` bytes is admissible. Counts refused messages.
    fn admit(
        &self,
        origin: MessageOrigin,
        message: &Message<'_>,
        bytes: usize,
        pubsub_topic: &str,
    ) -> Result<(), admit::MessageRefusal> {
        let settings = self.settings();
        let bounds = admit::MessageBounds {
            message_bytes_max: self.config.message_bytes_max,
            window_ns: settings.window_ns,
            epoch_ns: self.config.proofs.then_some(admit::EPOCH_NS),
        };
        let admitted = match origin {
            MessageOrigin::Rest if !self.config.forward => Err(admit::MessageRefusal::Listener),
            MessageOrigin::Store => bounds.admit_old(message, bytes).map(drop),
            _ => bounds.admit(message, bytes, self.now_ns()),
        };
        let admitted = admitted
            .and_then(|()| self.admit_signed(origin, message, pubsub_topic))
            .and_then(|()| self.admit_proved(origin, message, pubsub_topic));
        admitted.inspect_err(|refusal| self.count(origin, (*refusal).into()))
    }

    /// Checks the signature of a message if the message's shard is protected. Messages from other
    /// stores also need a signature, but may be of any age.
    fn admit_signed(
        &self,
        origin: MessageOrigin,
        message: &Message<'_>,
        pubsub_topic: &str,
    ) -> Result<(), admit::MessageRefusal> {
        let settings = self.settings();
        let protected = &settings.protected_shards;
        let shard = if protected.is_empty() { None } else { pubsub_topic.parse::<Shard>().ok() };
        let on = |shard: Shard| protected.iter().find(|protected| protected.shard == shard.index);
        let Some(protected) = shard.and_then(on) else { return Ok(()) };
        let time = message.timestamp.unwrap_or_default().cast_unsigned();
        let in_time =
            origin == MessageOrigin::Store || self.now_ns().abs_diff(time) < signed::WINDOW_NS;
        if in_time && protected.key.has_signed(message, pubsub_topic) {
            Ok(())
        } else {
            Err(admit::MessageRefusal::Unsigned)
        }
    }

    /// Checks that no other message has the same nullifier, if the message needs a proof.
    fn admit_proved(
        &self,
        origin: MessageOrigin,
        message: &Message<'_>,
        pubsub_topic: &str,
    ) -> Result<(), admit::MessageRefusal> {
        if !self.config.proofs || origin == MessageOrigin::Store {
            return Ok(());
        }
        let proof = message.proof.and_then(RateLimitProof::parse);
        let proof = proof.ok_or(admit::MessageRefusal::Proof)?;
        let is_first =
            self.nullifiers.note((proof.epoch, *proof.nullifier), &message.hash(pubsub_topic));
        if is_first { Ok(()) } else { Err(admit::MessageRefusal::Nullifier) }
    }

    /// Stores an admitted message. On return the message is durable, unless it is ephemeral.
    async fn keep(
        &self,
        origin: MessageOrigin,
        message: &Message<'_>,
        pubsub_topic: &str,
    ) -> Result<AcceptResult, MessageRejection> {
        if origin != MessageOrigin::Store {
            self.metrics.payload_bytes.note(message.payload.len() as u64);
        }
        let began = Instant::now();
        let accepted = self.store(message, pubsub_topic).await;
        let fate = match &accepted {
            Ok(AcceptResult::Stored) => {
                self.metrics.insert.note(began.elapsed());
                if let Ok(shard) = pubsub_topic.parse::<Shard>() {
                    self.metrics.stored(shard.index);
                }
                MessageFate::Stored
            }
            Ok(AcceptResult::Duplicate) => MessageFate::Duplicate,
            Ok(AcceptResult::Ephemeral) => MessageFate::Ephemeral,
            Err(_) => MessageFate::Insert,
        };
        self.count(origin, fate);
        accepted
    }

    fn count(&self, origin: MessageOrigin, fate: MessageFate) {
        self.metrics.messages.of(origin).of(fate).add(1);
    }

    async fn store(
        &self,
        message: &Message<'_>,
        pubsub_topic: &str,
    ) -> Result<AcceptResult, MessageRejection> {
        if message.ephemeral == Some(true) {
            // Ephemeral messages are not written, so there is no wait for the disk.
            let (hash, mut record) = (message.hash(pubsub_topic), Vec::new());
            MessageEncoder::default().encode(message, pubsub_topic, &hash, &mut record);
            let _proof = self.poll.expect(hash, message.proof.unwrap_or_default());
            if let Ok(record) = Record::new(&record) {
                self.shelf.pass_on(&record);
            }
            return Ok(AcceptResult::Ephemeral);
        }
        let (hash, mut record) = (message.hash(pubsub_topic), Vec::new());
        MessageEncoder::default().encode(message, pubsub_topic, &hash, &mut record);
        let share = record.len().clamp(INTAKE_BYTES_MIN, INTAKE_BYTES_MAX) as u32;
        let room = Arc::clone(&self.room).acquire_many_owned(share).await;
        let room = room.map_err(|_| MessageRejection::Down)?;
        let (reply, replied) = oneshot::channel();
        let done: writer::WriteCallback = Box::new(move |outcome| {
            drop(room);
            // The receiver may be dropped.
            let _ = reply.send(outcome);
        });
        let put = Write::Put(record.into());
        let proof = self.poll.expect(hash, message.proof.unwrap_or_default());
        self.shelf.writer().try_submit(put, done).map_err(|_| MessageRejection::Down)?;
        let outcome = replied.await;
        drop(proof);
        match outcome {
            Ok(Ok(Outcome::Duplicate)) => Ok(AcceptResult::Duplicate),
            Ok(Ok(_)) => Ok(AcceptResult::Stored),
            Ok(Err(error)) => Err(MessageRejection::Store(error)),
            Err(_) => Err(MessageRejection::Down),
        }
    }

    /// Counts a request for history, or refuses the request because its source exceeds the rate
    /// limit.
    fn admit_question(&self, from: RateSource) -> Result<(), HistoryError> {
        if let Some(rate) = self.settings().queries {
            let taken = self.buckets.take(RateSubject::Questions(from), rate);
            taken.map_err(|_| HistoryError::TooMany)?;
        }
        self.may_search(from)
    }

    /// Admits a request that a peer is to answer: the answer takes memory and time here as well.
    fn admit_peer_question(&self, from: RateSource) -> Result<Share<RateSource>, HistoryError> {
        self.admit_question(from)?;
        self.peer_questions.take(from, 1).ok_or(HistoryError::TooMany)
    }

    /// Checks that the requests of a source have not visited too many rows.
    fn may_search(&self, from: RateSource) -> Result<(), HistoryError> {
        self.rates.look(RateSubject::Rows(from)).map_err(|_| HistoryError::TooMany)
    }

    /// Returns the page of history for a request, and records how long the request took.
    async fn page(&self, from: RateSource, request: &[u8]) -> Result<PageWithPermit, HistoryError> {
        let began = Instant::now();
        self.admit_question(from)?;
        let TurnAnswer { answer: page, waited } = self.find(from, request).await?;
        let time = began.elapsed();
        self.metrics.asked(time);
        if self.slow.is_slow(time) {
            self.note_slow(request, (time, waited), &page);
        }
        let page = page?;
        let room = self.answers.take(from, page.answer_bytes()).ok_or(HistoryError::Busy)?;
        self.metrics.sent.add(page.records.len() as u64);
        self.metrics.damaged.add(page.damaged.into());
        Ok(PageWithPermit { page, room })
    }

    fn note_slow(
        &self,
        request: &[u8],
        (time, waited): (Duration, Duration),
        page: &Result<HistoryPage, HistoryError>,
    ) {
        let Some(query) = history::query_of(request) else { return };
        let (rows, plan) = match page {
            Ok(page) => (page.rows, SearchDriver::from(page.driver)),
            Err(HistoryError::TooDear) => {
                (self.settings().query_rows_max, SearchDriver::from(None))
            }
            Err(_) => (0, SearchDriver::from(None)),
        };
        let spent = SearchCost { time, waited, rows, plan };
        self.slow.note("STORE", &spent, std::iter::once((&query, query.limit)));
    }

    /// Returns the page for a request, or the reason for having no page.
    async fn find(
        &self,
        from: RateSource,
        request: &[u8],
    ) -> Result<TurnAnswer<Result<HistoryPage, HistoryError>>, HistoryError> {
        let rows_max = self.settings().query_rows_max;
        if self.config.store_at == StoreLocation::Process {
            // Switching threads would take longer than nearly every query.
            let (few, asker) = (rows_max.min(ROWS_AT_ONCE), AnswerWaiter::default());
            let store = &**self.shelf.store();
            let page = history::page_of(store, &self.positions, request, few, &asker);
            self.rates.visited(from, asker.visited());
            if few == rows_max || !matches!(page, Err(HistoryError::TooDear)) {
                return Ok(TurnAnswer { answer: page, waited: Duration::ZERO });
            }
        }
        let (request, positions) = (request.to_vec(), Arc::clone(&self.positions));
        let question = move |store: &dyn Store, asker: &AnswerWaiter| {
            history::page_of(store, &positions, &request, rows_max, asker)
        };
        self.ask(from, question).await.map_err(HistoryError::from)
    }

    /// Runs a query on a thread that may block on the disk or the database, once it is the source's
    /// turn. Charges the visited rows to the source.
    async fn ask<T: Send + 'static>(
        &self,
        from: RateSource,
        question: impl FnOnce(&dyn Store, &AnswerWaiter) -> T + Send + 'static,
    ) -> Result<TurnAnswer<T>, NotAsked> {
        let (store, rates) = (Arc::clone(self.shelf.store()), self.rates.clone());
        let question = move |asker: &AnswerWaiter| question(&*store, asker);
        self.turns.run_for(from, question, move |rows| rates.visited(from, rows)).await
    }
}
