//! The Waku node: messages in by REST and by gossip, history out by REST and by
//! `/vac/waku/store-query/3.0.0`.
//!
//! `hark_networks::waku::admit` says which messages come in, [`history`] what a question means; [`rest`] is the door for
//! HTTP, `p2p` that for peers. Both hand messages to [`Waku::take`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use hark_archive::limits::Rate;
use hark_archive::retention::{Keeper, Policy};
use hark_archive::writer::{self, Writer};
use hark_archive::{CommitError, Outcome, Record, Store, Write};
use hark_codec::waku::{Encoder, Message, MessageRecord, ProtectedShard, Shard, signed};
use hark_networks::waku::admit;
use hark_networks::waku::retention::Retention;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use crate::admin::http::trouble;
use crate::rate::{Buckets, Meter, Source};
use crate::vital::vital;
use crate::{Clients, ServeError, Shelf};
use history::{Page, Places, Refusal};
use metrics::{Fate, Metrics, Origin};
use poll::Poll;
pub use rest::Access;
pub use turns::StoreAt;
use turns::Turns;

pub mod history;
pub mod metrics;
mod neighbours;
#[cfg(feature = "libp2p")]
pub mod p2p;
mod poll;
pub(crate) mod prometheus;
mod rest;
#[cfg(feature = "libp2p")]
mod resume;
mod turns;

/// Bytes of messages that wait to be durable, at most; above it whoever brings more waits.
const INTAKE_BYTES_MAX: usize = 64 << 20;
/// Bytes that a message counts for at least, so that there are never more of them than the writer's
/// queue holds.
const INTAKE_BYTES_MIN: usize = INTAKE_BYTES_MAX / INTAKE_MAX;
/// Messages that wait to be durable, at most.
const INTAKE_MAX: usize = 4_096;

/// Bytes of answers that clients have not taken yet, at most.
const ANSWERS_BYTES_MAX: usize = 256 << 20;

/// Rows that a question may visit on a thread that others wait for.
const ROWS_AT_ONCE: u64 = 20_000;

/// What to serve.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the REST door listens, if there is one.
    pub rest: Option<SocketAddr>,
    /// Which web pages may ask there, and what may be asked for.
    pub access: Access,
    /// How peers reach the node, if they do.
    #[cfg(feature = "libp2p")]
    pub p2p: Option<p2p::Config>,
    /// The cluster whose messages are kept.
    pub cluster: u16,
    /// How many shards the cluster has, for messages that name only their content topic.
    pub shards_in_cluster: u16,
    /// Those of them that are served.
    pub shards: Vec<u16>,
    /// Whether messages are passed on, and may be published here. A node that passes on what others
    /// refuse is cut off by them: see [`can_forward`].
    pub forward: bool,
    /// Shards on which only signed messages are taken.
    pub protected_shards: Vec<ProtectedShard>,
    /// Bounds of messages.
    pub bounds: admit::Bounds,
    /// How fast one peer, or one client of the REST door, may ask; none is without end.
    pub queries: Option<Rate>,
    /// Rows that a question may visit.
    pub query_rows_max: u64,
    /// Where the store does its work.
    pub store_at: StoreAt,
    /// What is not kept for ever.
    pub retention: Policy,
    /// Whose connections are taken.
    pub clients: Clients,
}

impl Default for Config {
    /// The Waku Network (RFC 64/WAKU2-NETWORK), for 30 days, behind no door.
    fn default() -> Self {
        Self {
            rest: None,
            access: Access::default(),
            #[cfg(feature = "libp2p")]
            p2p: None,
            cluster: 1,
            shards_in_cluster: 8,
            shards: (0..8).collect(),
            forward: can_forward(1),
            protected_shards: Vec::new(),
            bounds: admit::Bounds::default(),
            queries: None,
            query_rows_max: 5_000_000,
            store_at: StoreAt::Process,
            retention: Retention::default().policy,
            clients: Clients::default(),
        }
    }
}

/// Whether this node can tell which messages a cluster's nodes refuse. On The Waku Network (1) each
/// needs a rate-limit proof (RFC 32/RLN-V1), which this node neither checks nor makes.
pub fn can_forward(cluster: u16) -> bool {
    cluster != 1
}

impl Config {
    /// The shards that are served.
    fn served(&self) -> impl Iterator<Item = Shard> {
        self.shards.iter().map(|&index| Shard { cluster: self.cluster, index })
    }
}

/// What the doors share.
pub(crate) struct Waku {
    store: Arc<dyn Store>,
    writer: Arc<Writer>,
    poll: Arc<Poll>,
    pub(crate) metrics: Metrics,
    /// Bytes of messages that may come in now.
    room: Arc<Semaphore>,
    turns: Turns,
    places: Arc<Places>,
    /// Bytes of answers that may be told now.
    answers: Arc<Semaphore>,
    buckets: Buckets,
    #[cfg(feature = "libp2p")]
    network: Option<p2p::Handle>,
    config: Config,
}

/// A page, and room for the answer that it is told in.
struct Told {
    page: Page,
    room: OwnedSemaphorePermit,
}

/// What became of a message that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Durable.
    Stored,
    /// It was there.
    Duplicate,
    /// Passed on and forgotten.
    Ephemeral,
}

/// Why a message was not.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum NotTaken {
    /// It must not be.
    #[error(transparent)]
    Refused(#[from] admit::Refusal),
    /// The archive could not.
    #[error("the message was not stored: {0}")]
    Store(Arc<CommitError>),
    /// The node goes down.
    #[error("the message was not stored: the node is going down")]
    Down,
}

impl Waku {
    /// Whether messages under this topic are taken.
    fn serves(&self, pubsub_topic: &str) -> bool {
        pubsub_topic.parse::<Shard>().is_ok_and(|shard| self.serves_shard(shard))
    }

    /// The same for its shard.
    fn serves_shard(&self, shard: Shard) -> bool {
        self.config.served().any(|served| served == shard)
    }

    /// Takes a message in, if it may be: see [`Waku::admit`] and [`Waku::keep`].
    pub(crate) async fn take(
        &self,
        origin: Origin,
        message: &Message<'_>,
        bytes: usize,
        pubsub_topic: &str,
    ) -> Result<Taken, NotTaken> {
        self.admit(origin, message, bytes, pubsub_topic)?;
        self.keep(origin, message, pubsub_topic).await
    }

    /// Whether a message of so many bytes may come in. One that may not is counted.
    fn admit(
        &self,
        origin: Origin,
        message: &Message<'_>,
        bytes: usize,
        pubsub_topic: &str,
    ) -> Result<(), admit::Refusal> {
        let bounds = &self.config.bounds;
        let admitted = match origin {
            Origin::Rest if !self.config.forward => Err(admit::Refusal::Listener),
            Origin::Store => bounds.admit_old(message, bytes).map(drop),
            _ => bounds.admit(message, bytes, now_ns()),
        };
        let admitted = admitted.and_then(|()| self.admit_signed(origin, message, pubsub_topic));
        admitted.inspect_err(|refusal| self.count(origin, (*refusal).into()))
    }

    /// Whether a message may come in on its shard, where that one is protected. What other stores hand
    /// over is signed as well, whatever its age.
    fn admit_signed(
        &self,
        origin: Origin,
        message: &Message<'_>,
        pubsub_topic: &str,
    ) -> Result<(), admit::Refusal> {
        let protected = &self.config.protected_shards;
        let shard = if protected.is_empty() { None } else { pubsub_topic.parse::<Shard>().ok() };
        let on = |shard: Shard| protected.iter().find(|protected| protected.shard == shard.index);
        let Some(protected) = shard.and_then(on) else { return Ok(()) };
        let time = message.timestamp.unwrap_or_default().cast_unsigned();
        let in_time = origin == Origin::Store || now_ns().abs_diff(time) < signed::WINDOW_NS;
        if in_time && protected.key.has_signed(message, pubsub_topic) {
            Ok(())
        } else {
            Err(admit::Refusal::Unsigned)
        }
    }

    /// Takes in a message that may be: on return it is durable, if it is to be kept at all.
    async fn keep(
        &self,
        origin: Origin,
        message: &Message<'_>,
        pubsub_topic: &str,
    ) -> Result<Taken, NotTaken> {
        if origin != Origin::Store {
            self.metrics.payload_bytes.note(message.payload.len() as u64);
        }
        let began = Instant::now();
        let taken = self.store(message, pubsub_topic).await;
        let fate = match &taken {
            Ok(Taken::Stored) => {
                self.metrics.insert.note(began.elapsed());
                if let Ok(shard) = pubsub_topic.parse::<Shard>() {
                    self.metrics.stored(shard.index);
                }
                Fate::Stored
            }
            Ok(Taken::Duplicate) => Fate::Duplicate,
            Ok(Taken::Ephemeral) => Fate::Ephemeral,
            Err(_) => Fate::Insert,
        };
        self.count(origin, fate);
        taken
    }

    fn count(&self, origin: Origin, fate: Fate) {
        self.metrics.messages.of(origin).of(fate).add(1);
    }

    async fn store(&self, message: &Message<'_>, pubsub_topic: &str) -> Result<Taken, NotTaken> {
        if message.ephemeral == Some(true) {
            // Nobody waits for the disk.
            let mut wire = Vec::new();
            message.write(&mut wire);
            self.poll.add(pubsub_topic, message.content_topic, &wire, None);
            return Ok(Taken::Ephemeral);
        }
        let (hash, mut record) = (message.hash(pubsub_topic), Vec::new());
        Encoder::default().encode(message, pubsub_topic, &hash, &mut record);
        let share = record.len().clamp(INTAKE_BYTES_MIN, INTAKE_BYTES_MAX) as u32;
        let room = Arc::clone(&self.room).acquire_many_owned(share).await;
        let room = room.map_err(|_| NotTaken::Down)?;
        let (tell, told) = oneshot::channel();
        let done: writer::Done = Box::new(move |outcome| {
            drop(room);
            // Who has asked may be gone.
            let _ = tell.send(outcome);
        });
        let put = Write::Put(record.into());
        let proof = self.poll.expect(hash, message.proof.unwrap_or_default());
        self.writer.try_submit(put, done).map_err(|_| NotTaken::Down)?;
        let told = told.await;
        drop(proof);
        match told {
            Ok(Ok(Outcome::Duplicate)) => Ok(Taken::Duplicate),
            Ok(Ok(_)) => Ok(Taken::Stored),
            Ok(Err(error)) => Err(NotTaken::Store(error)),
            Err(_) => Err(NotTaken::Down),
        }
    }

    /// Why the archive takes no writes, or does not tell of all, while that is so.
    pub(crate) fn trouble(&self) -> Option<String> {
        trouble(&self.writer).or_else(|| self.store.trouble())
    }

    /// A page of history for whoever asks, and notes how long it took.
    async fn page(&self, from: Source, request: &[u8]) -> Result<Told, Refusal> {
        let began = Instant::now();
        if let Some(rate) = self.config.queries
            && self.buckets.take(Meter::Questions(from), rate).is_err()
        {
            return Err(Refusal::TooMany);
        }
        let page = self.find(request).await;
        self.metrics.asked(began.elapsed());
        let page = page?;
        let bytes = u32::try_from(page.answer_bytes()).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.answers).try_acquire_many_owned(bytes);
        let room = room.map_err(|_| Refusal::Busy)?;
        self.metrics.told.add(page.records.len() as u64);
        Ok(Told { page, room })
    }

    async fn find(&self, request: &[u8]) -> Result<Page, Refusal> {
        let rows_max = self.config.query_rows_max;
        if self.config.store_at == StoreAt::Process {
            // To change the thread would take longer than nearly all questions do.
            let few = rows_max.min(ROWS_AT_ONCE);
            let page = history::page_of(&*self.store, &self.places, request, few);
            if few == rows_max || !matches!(page, Err(Refusal::TooDear)) {
                return page;
            }
        }
        let (request, places) = (request.to_vec(), Arc::clone(&self.places));
        let asked =
            self.ask(move |store| history::page_of(store, &places, &request, rows_max)).await;
        asked.unwrap_or(Err(Refusal::Down))
    }

    /// Runs a question where it may wait for the disk or the database, when it is its turn.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn Store) -> T + Send + 'static,
    ) -> Option<T> {
        let store = Arc::clone(&self.store);
        self.turns.run(move || question(&*store)).await
    }
}

/// Nanoseconds since 1970.
fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Hears of what is durable, for those who poll.
struct Tell(Arc<Poll>);

impl writer::Listener for Tell {
    fn batch(
        &mut self,
        records: &mut dyn Iterator<Item = (u64, Record<'_>)>,
        answer: &mut dyn FnMut(),
    ) {
        for (_, record) in records {
            let record = MessageRecord::new(record);
            let topics = (
                std::str::from_utf8(record.pubsub_topic()),
                std::str::from_utf8(record.content_topic()),
            );
            if let (Ok(pubsub_topic), Ok(content_topic)) = topics {
                self.0.add(pubsub_topic, content_topic, record.message(), Some(record.hash()));
            }
        }
        answer();
    }
}

/// A node with its sockets open and its threads running.
pub struct Node {
    doors: Doors,
    runtime: Runtime,
}

/// What a node serves.
struct Doors {
    waku: Arc<Waku>,
    rest: Option<TcpListener>,
    #[cfg(feature = "libp2p")]
    network: Option<p2p::Network>,
    keeper: Keeper,
}

impl Node {
    /// Opens the sockets and starts the threads. Nothing is served before [`Node::run`].
    pub async fn bind(config: Config, shelf: Shelf) -> Result<Self, ServeError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_name("hark-waku")
            .enable_all()
            .build()
            .map_err(ServeError::Thread)?;
        let runtime = Runtime(Some(runtime));
        let opened = runtime.run(Doors::open(config, shelf)).await;
        // Not reached: nothing ends it.
        let gone = || ServeError::Thread(std::io::Error::other("the Waku node's threads ended"));
        Ok(Self { doors: opened.ok_or_else(gone)??, runtime })
    }

    /// Where the REST door listens.
    pub fn rest_addr(&self) -> Option<SocketAddr> {
        self.doors.rest.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Where peers reach it.
    pub fn addresses(&self) -> Vec<String> {
        self.doors.waku.addresses()
    }

    /// What its doors share.
    pub(crate) fn shared(&self) -> Arc<Waku> {
        Arc::clone(&self.doors.waku)
    }

    /// Serves until told to leave; what was taken by then is durable and answered.
    pub(crate) async fn run(self, leaving: watch::Receiver<bool>) {
        self.runtime.run(vital("the Waku node", self.doors.serve(leaving))).await;
    }
}

/// Threads of the node's own: a question may wait for the disk on them, and the relay's go on.
struct Runtime(Option<tokio::runtime::Runtime>);

impl Runtime {
    /// What comes of `work`, unless it panics.
    async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.0.as_ref()?.spawn(work).await.ok()
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // Without waiting: this may be a thread of another runtime.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Doors {
    async fn open(config: Config, shelf: Shelf) -> Result<Self, ServeError> {
        let rest = match config.rest {
            None => None,
            Some(addr) => {
                let failed = |cause| ServeError::Rest { addr, cause };
                Some(TcpListener::bind(addr).await.map_err(failed)?)
            }
        };
        #[cfg(feature = "libp2p")]
        let (network, handle) = match config.p2p.clone() {
            None => (None, None),
            Some(p2p) => {
                let (network, handle) = p2p::Network::bind(p2p, &config).await?;
                (Some(network), Some(handle))
            }
        };
        if !config.forward {
            tracing::info!(
                cluster = config.cluster,
                "this Waku node keeps messages and passes none on ([waku] forward)"
            );
        }
        let poll = Arc::new(Poll::default());
        let options = writer::Options {
            // Retention's writes come on top.
            queue_max: INTAKE_MAX + 64,
            ..shelf.writer
        };
        let tell = Box::new(Tell(Arc::clone(&poll)));
        let writer = Arc::new(Writer::start(Arc::clone(&shelf.store), options, tell));
        let waku = Arc::new(Waku {
            store: shelf.store,
            writer,
            poll,
            metrics: Metrics::new(&config.shards),
            room: Arc::new(Semaphore::new(INTAKE_BYTES_MAX)),
            turns: Turns::new(config.store_at),
            places: Arc::default(),
            answers: Arc::new(Semaphore::new(ANSWERS_BYTES_MAX)),
            buckets: Buckets::default(),
            #[cfg(feature = "libp2p")]
            network: handle,
            config,
        });
        let topics = waku.config.served().map(|shard| poll::Topic::Pubsub(shard.to_string()));
        // As many as there are shards to configure.
        let _ = waku.poll.subscribe(topics);
        let woken = Arc::downgrade(&waku.writer);
        waku.store.on_news(Box::new(move || {
            if let Some(writer) = woken.upgrade() {
                writer.tell_news();
            }
        }));
        let keeper = Keeper::start(
            waku.config.retention.clone(),
            Arc::clone(&waku.store),
            Arc::clone(&waku.writer),
            shelf.clock,
            crate::listen::report_swept,
        )
        .map_err(ServeError::Thread)?;
        Ok(Self {
            waku,
            rest,
            #[cfg(feature = "libp2p")]
            network,
            keeper,
        })
    }

    async fn serve(self, leaving: watch::Receiver<bool>) {
        let mut left = leaving.clone();
        #[cfg(feature = "libp2p")]
        let resume = resume::Resume::new(&self.waku);
        let doors = [
            self.rest.map(|listener| {
                let door = rest::serve(listener, leaving.clone(), Arc::clone(&self.waku));
                tokio::spawn(vital("Waku's REST door", door))
            }),
            #[cfg(feature = "libp2p")]
            resume.map(|resume| {
                let resume = resume.run(Arc::clone(&self.waku), leaving.clone());
                tokio::spawn(vital("what asks other stores", resume))
            }),
            #[cfg(feature = "libp2p")]
            Some(tokio::spawn(vital(
                "Waku's sync",
                p2p::sync::run(Arc::clone(&self.waku), leaving.clone()),
            ))),
            #[cfg(feature = "libp2p")]
            self.network.map(|network| {
                tokio::spawn(vital("Waku's network", network.run(self.waku, leaving)))
            }),
        ];
        // An error means that the server is gone.
        let _ = left.wait_for(|leaving| *leaving).await;
        for door in doors.into_iter().flatten() {
            // None panics: see `vital`.
            let _ = door.await;
        }
        let keeper = self.keeper;
        // Its thread may have to wait for a write.
        let stop = tokio::task::spawn_blocking(move || drop(keeper));
        let _ = stop.await;
    }
}
