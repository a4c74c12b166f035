//! A shelf while it is served: one network's part of the archive, its writer thread, the
//! subscribers to new records, and retention. The code is the same for every network.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use hark_archive::clock::Clock;
use hark_archive::limits::NEWS_STEP;
use hark_archive::retention::{
    CLOCK_IS_AHEAD, HISTORY_IS_HELD, RetentionError, RetentionPolicy, RetentionState,
    RetentionThread, SweepResult,
};
use hark_archive::writer::{self, BetweenBatchesJob, CommitListener, WriteTarget, Writer};
use hark_archive::{Record, Store};
use hark_networks::Network;

use crate::admin::subscribed::RecordFeeds;
use crate::admin::takeover_parties::{Handover, Siblings};

/// How long one batch of writes may take before the archive counts as stuck.
const COMMIT_MAX: Duration = Duration::from_secs(10);

/// Compacts a store, online. The callback receives lines of progress; the result is a summary.
pub type CompactFn =
    Arc<dyn Fn(&mut dyn FnMut(&str)) -> Result<String, CompactFault> + Send + Sync>;

/// Why a store was not compacted: the store's own error.
pub type CompactFault = Box<dyn std::error::Error + Send + Sync>;

/// The parts and settings from which a shelf is opened.
#[derive(Clone)]
pub struct ShelfOptions {
    /// The network whose records the shelf holds.
    pub network: &'static dyn Network,
    /// The store of the records.
    pub store: Arc<dyn Store>,
    /// How writes are batched.
    pub writer: writer::WriterOptions,
    /// The clock of the shelf, also used by retention.
    pub clock: Clock,
    /// The policy that decides which records expire.
    pub retention: RetentionPolicy,
    /// Compacts the store. `None` if the store has nothing to compact.
    pub compact: Option<CompactFn>,
    /// Lets another process take over the store. `None` if that is not possible.
    pub handover: Option<Arc<dyn Handover>>,
}

/// The receivers of new records.
pub trait Subscribers: Send + Sync {
    /// Notifies subscribers of a record that is durable under the number `seq`. A record without a
    /// number is never stored.
    fn publish(&self, seq: Option<u64>, record: &Record<'_>);

    /// Called after the records of a batch were published, and before their senders are answered.
    fn published(&self) {}

    /// Runs `publish`, which publishes records and answers their senders, and never waits.
    fn together(&self, publish: &mut dyn FnMut()) {
        publish();
    }
}

/// No subscribers: records are dropped.
impl Subscribers for () {
    fn publish(&self, _: Option<u64>, _: &Record<'_>) {}
}

/// A shelf that another process can take over.
#[derive(Clone)]
pub(crate) struct MovableShelf {
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) store: Arc<dyn Handover>,
}

/// The writer did not take a job in time, or has stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobNotRun;

/// Interval between two attempts to queue a job while the writer's queue is full.
const RETRY: Duration = Duration::from_millis(5);
/// How long a job waits for the writer's queue.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// A shelf while it is served; see the module.
pub struct Shelf {
    network: &'static dyn Network,
    store: Arc<dyn Store>,
    writer: Arc<Writer>,
    started: SystemTime,
    clock: Clock,
    retention: ArcSwap<RetentionPolicy>,
    /// Why retention waits, and the history that retention must not delete.
    retention_state: Arc<RetentionState>,
    compact: Option<CompactFn>,
    handover: Option<Arc<dyn Handover>>,
    subscribers: Arc<dyn Subscribers>,
    /// The predecessor and the successor of this process in takeovers.
    siblings: Arc<Siblings>,
    /// Other processes that are notified of new records.
    feeds: Arc<RecordFeeds>,
}

impl Shelf {
    /// Opens a shelf and starts its writer. Retention starts later, with
    /// `Shelf::start_retention`.
    pub fn open(options: ShelfOptions, subscribers: Arc<dyn Subscribers>) -> Arc<Self> {
        let ShelfOptions { network, store, writer, clock, retention, compact, handover } = options;
        let siblings = Arc::new(Siblings::default());
        let feeds = Arc::<RecordFeeds>::default();
        let notify = ShelfListener {
            subscribers: Arc::clone(&subscribers),
            siblings: Arc::clone(&siblings),
            feeds: Arc::clone(&feeds),
        };
        let writer = Arc::new(Writer::start(Arc::clone(&store), writer, Box::new(notify)));
        let shelf = Arc::new(Self {
            network,
            store,
            writer,
            started: SystemTime::now(),
            clock,
            retention: ArcSwap::from_pointee(retention),
            retention_state: Arc::default(),
            compact,
            handover,
            subscribers,
            siblings,
            feeds,
        });
        let woken = Arc::downgrade(&shelf);
        shelf.store.on_news(Box::new(move || {
            if let Some(shelf) = woken.upgrade() {
                shelf.writer.deliver_news();
            }
        }));
        shelf
    }

    /// The name of the shelf's network.
    pub fn name(&self) -> &'static str {
        self.network.name()
    }

    /// The network whose records the shelf holds.
    pub(crate) fn network(&self) -> &'static dyn Network {
        self.network
    }

    /// The network's word for its records.
    pub(crate) fn records(&self) -> &'static str {
        self.network.records()
    }

    /// The store of the records.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The writer: the only way to write to the shelf.
    pub fn writer(&self) -> &Arc<Writer> {
        &self.writer
    }

    /// Runs work on the writer's thread, between two batches.
    pub(crate) fn between<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut WriteTarget) -> T + Send + 'static,
    ) -> Result<T, JobNotRun> {
        let (done, outcome) = sync_channel(1);
        let job: BetweenBatchesJob = Box::new(move |target: &mut WriteTarget| {
            // The sending fails only if nobody waits for the outcome any more.
            let _ = done.send(work(target));
        });
        self.queue_between(job, Some(Instant::now() + WAIT_MAX))?;
        outcome.recv().map_err(|_| JobNotRun)
    }

    /// Queues a job for the writer's thread, between two batches. Waits while the writer's queue is
    /// full, but not beyond `until`.
    pub(crate) fn queue_between(
        &self,
        mut job: BetweenBatchesJob,
        until: Option<Instant>,
    ) -> Result<(), JobNotRun> {
        while let Err(refused) = self.writer.between(job) {
            if until.is_some_and(|until| Instant::now() > until) {
                return Err(JobNotRun);
            }
            job = refused;
            std::thread::sleep(RETRY);
        }
        Ok(())
    }

    /// Notifies subscribers of all records that other processes have put before this call.
    pub(crate) fn learn_news(&self) -> Result<(), JobNotRun> {
        let store = Arc::clone(&self.store);
        self.between(move |target| while publish_news(&*store, target) >= NEWS_STEP {})
    }

    /// The clock of the shelf, also used by retention.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The policy that decides which records expire.
    pub fn retention(&self) -> Arc<RetentionPolicy> {
        self.retention.load_full()
    }

    /// Replaces the policy that [`Shelf::retention`] returns. The caller notifies the retention
    /// thread.
    pub(crate) fn set_retention(&self, policy: RetentionPolicy) {
        self.retention.store(Arc::new(policy));
    }

    pub(crate) fn compact(&self) -> Option<&CompactFn> {
        self.compact.as_ref()
    }

    /// The time at which the shelf was opened, in seconds since 1970.
    pub(crate) fn since_s(&self) -> u64 {
        self.started.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    /// The shelf with its [`Handover`]. `None` if no other process can take it over.
    pub(crate) fn movable(self: &Arc<Self>) -> Option<MovableShelf> {
        let store = Arc::clone(self.handover.as_ref()?);
        Some(MovableShelf { shelf: Arc::clone(self), store })
    }

    pub(crate) fn subscribers(&self) -> &dyn Subscribers {
        &*self.subscribers
    }

    pub(crate) fn feeds(&self) -> &RecordFeeds {
        &self.feeds
    }

    pub(crate) fn siblings(&self) -> &Siblings {
        &self.siblings
    }

    /// Sends a record that is never stored to the subscribers of this process and of its sibling
    /// processes in a takeover.
    pub fn pass_on(&self, record: &Record<'_>) {
        self.subscribers.together(&mut || self.subscribers.publish(None, record));
        // This call is outside `together`, because it may wait for another process.
        self.siblings.pass_on(record, None);
    }

    /// Starts retention: a thread that removes expired records. The thread writes to the shelf.
    pub(crate) fn start_retention(&self) -> std::io::Result<RetentionThread> {
        RetentionThread::start(
            RetentionPolicy::clone(&self.retention.load()),
            Arc::clone(&self.store),
            Arc::clone(&self.writer),
            (self.clock.clone(), Arc::clone(&self.retention_state)),
            {
                let shelf = self.name();
                move |swept| report_swept(shelf, swept)
            },
        )
    }

    /// Prepares retention for a record that a command imports: retention keeps the record even if
    /// it is older than the rules allow.
    pub(crate) fn prepare_import(&self, record: &Record<'_>) -> Result<(), RetentionError> {
        let policy = self.retention.load();
        self.retention_state.prepare_import(&policy, &*self.store, &self.clock, record)?;
        Ok(())
    }

    /// Decisions that the operator has to make although the shelf is healthy.
    pub(crate) fn questions(&self) -> impl Iterator<Item = &'static str> {
        self.retention_state.is_history_held().then_some(HISTORY_IS_HELD).into_iter()
    }

    /// The reason why the shelf accepts no writes or does not report every record. `None` if
    /// neither is the case.
    pub fn trouble(&self) -> Option<String> {
        self.siblings.trouble().or_else(|| self.not_writing()).or_else(|| self.store.trouble())
    }

    /// All reasons why the shelf is not healthy: the reason of [`Shelf::trouble`], a mirror without
    /// progress for `mirror_stuck_after`, damage, and a clock that is not trusted.
    pub(crate) fn troubles(&self, mirror_stuck_after: Option<Duration>) -> Vec<String> {
        let mut all = Vec::new();
        let own = [self.siblings.trouble(), self.not_writing(), self.store.trouble()];
        for reason in own.into_iter().flatten() {
            // A failed write and the store may both report the same cause.
            if !all.iter().any(|other: &String| other.contains(&reason)) {
                all.push(reason);
            }
        }
        let lag = self.store.mirror().zip(mirror_stuck_after);
        // After a takeover, the previous process holds the lock of a mirror in files until it ends.
        // Meanwhile this process cannot write to the mirror.
        let stuck = lag
            .filter(|(lag, after)| lag.idle_for() >= *after && self.siblings.alone_for() >= *after);
        if let Some((lag, _)) = stuck {
            let reason = lag.trouble.as_deref().unwrap_or("it does not finish a write");
            let idle_s = lag.idle_for().as_secs();
            all.push(format!("the mirror has made no progress for {idle_s} s: {reason}"));
        }
        all.extend(self.damage());
        all.extend(self.retention_state.is_clock_doubted().then(|| CLOCK_IS_AHEAD.into()));
        all
    }

    /// A summary of the damage found in the archive. `None` if no damage was found.
    pub fn damage(&self) -> Option<String> {
        let (damaged, files) = self.store.damage();
        let records = self.records();
        (damaged + files > 0).then(|| {
            format!("damaged {records}: {damaged}, damaged files: {files}; see `hark check`")
        })
    }

    fn not_writing(&self) -> Option<String> {
        let counters = self.writer.counters();
        if let Some(reason) = counters.stopped.get() {
            return Some(format!("the archive takes no more writes: {reason}"));
        }
        if let Some(reason) = counters.unavailable() {
            return Some(format!("the last {} were not kept: {reason}", self.records()));
        }
        let stuck = counters.committing_for().filter(|time| *time > COMMIT_MAX)?;
        let (medium, stuck_s) = (self.store.medium(), stuck.as_secs());
        Some(format!("{medium} has not finished a write for {stuck_s} s"))
    }
}

/// Notifies subscribers and sibling processes of durable records.
struct ShelfListener {
    subscribers: Arc<dyn Subscribers>,
    siblings: Arc<Siblings>,
    feeds: Arc<RecordFeeds>,
}

impl CommitListener for ShelfListener {
    fn batch(
        &mut self,
        records: &mut dyn Iterator<Item = (u64, Record<'_>)>,
        answer: &mut dyn FnMut(),
    ) {
        self.subscribers.together(&mut || {
            for (seq, record) in &mut *records {
                self.subscribers.publish(Some(seq), &record);
                self.feeds.publish(&record);
            }
            self.subscribers.published();
            self.siblings.grown();
            answer();
        });
    }
}

/// Logs the result of a retention run.
fn report_swept(shelf: &'static str, swept: Result<SweepResult, RetentionError>) {
    match swept {
        Ok(swept) => tracing::info!(
            shelf,
            expired = swept.expired,
            aged = swept.aged,
            crowded = swept.crowded,
            "records let go"
        ),
        Err(question) if question.is_question() => tracing::warn!(shelf, "{question}"),
        Err(error) => tracing::error!(shelf, %error, "retention failed; trying again next round"),
    }
}

/// Notifies the listener of the next records of other processes. Returns their number.
fn publish_news(store: &dyn Store, target: &mut WriteTarget) -> usize {
    let news = store.news();
    let records = news.iter().filter_map(|(seq, bytes)| Some((*seq, Record::new(bytes).ok()?)));
    let mut records = records.peekable();
    if records.peek().is_some() {
        target.listener.batch(&mut records, &mut || {});
    }
    news.len()
}
