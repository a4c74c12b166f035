//! Checks events on all cores and has them written: threads that check, and one that writes. The
//! permit of an event's bytes is held until the event is durable or refused.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hark_archive::effects::Refusal;
use hark_archive::{Id, Outcome, Query, Record, Store, vital};
use hark_codec::nostr::{Event, EventArena, REQUESTS};
use hark_networks::{LineFault, LineReader, Network, ReadOptions};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use crate::client::now_s;
use crate::error::PeerError;
use crate::feed::{LocalFeed, MissedEvents, SeenIds};
use crate::meter::SyncMeter;
use crate::plugin::EventPlugin;
use crate::route::{BytesPermit, RelayEvent};

/// Events that a thread takes at a time.
const CHECK_TOGETHER: usize = 64;
/// Events that wait for a thread. Their bytes are bounded elsewhere.
const WAITING_MAX: usize = 4096;
/// How long the writer waits for more events, from the first one on, before it writes what it has.
const GATHER: Duration = Duration::from_millis(5);

/// What became of a record that was to be written, or why it alone could not be.
pub type WriteOutcome = Result<Outcome, String>;

/// Writes records to an archive.
pub trait EventWriter: Send {
    /// Writes records, and returns the outcome of each. They are durable on return. The error is a
    /// text for people: nothing more can be written.
    fn put(&mut self, records: Vec<Box<[u8]>>) -> Result<Vec<WriteOutcome>, String>;
}

/// Returns why an event is refused here, whatever its signature: a reason under which it is counted,
/// and words. It gets the event, its bytes, and whether protected events (NIP-70) may come from
/// others than their authors.
pub type EventRules =
    Arc<dyn Fn(&Event<'_>, usize, bool) -> Option<(&'static str, String)> + Send + Sync>;

/// Is called with each record that was stored.
pub type StoredListener = Arc<dyn Fn(&Record<'_>) + Send + Sync>;

/// How events are checked and written.
pub struct IntakeOptions {
    /// The network of the events.
    pub network: &'static dyn Network,
    /// How events are read.
    pub read: ReadOptions,
    /// Where known ids are looked up before a signature is verified.
    pub known: Option<Arc<dyn Store>>,
    /// What is refused besides what no archive stores.
    pub rules: EventRules,
    /// Records that are made durable together.
    pub batch_records: usize,
    /// Knows ids that are newer than what `known` was opened on.
    pub feed: Option<Arc<LocalFeed>>,
    /// Is told of what was stored.
    pub stored: Option<StoredListener>,
}

/// Which events were asked for, and who counts them.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) meter: Arc<SyncMeter>,
    pub(crate) wanted: Wanted,
    /// Remembers that the relay has the event.
    pub(crate) seen: Option<Arc<SeenIds>>,
    /// Where it is noted that a plugin failed to decide about the event.
    pub(crate) missed: Option<Arc<MissedEvents>>,
    /// The earliest time that such an event counts as: whoever made it chose its own.
    pub(crate) missed_from: u64,
    /// Whether the relay may send protected events.
    pub(crate) protected: bool,
}

/// Which events were asked for.
#[derive(Clone)]
pub(crate) enum Wanted {
    Ids(Arc<AskedIds>),
    Matching(Arc<Query>),
}

/// Ids that were asked for and have not come yet.
#[derive(Default)]
pub(crate) struct AskedIds {
    left: Mutex<HashSet<Id>>,
    /// Events that came and are not looked at yet.
    unseen: AtomicUsize,
    seen: Notify,
}

impl AskedIds {
    pub(crate) fn new(ids: impl IntoIterator<Item = Id>) -> Self {
        Self { left: Mutex::new(ids.into_iter().collect()), ..Self::default() }
    }

    /// Waits until all events that came were looked at, and returns the ids that have not come.
    pub(crate) async fn left(&self) -> Vec<Id> {
        loop {
            let seen = self.seen.notified();
            if self.unseen.load(Ordering::Acquire) == 0 {
                return self.left.lock().iter().copied().collect();
            }
            seen.await;
        }
    }

    fn looked_at(&self) {
        if self.unseen.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.seen.notify_one();
        }
    }
}

/// Threads that check and write events. [`EventIntake::finish`] ends them.
pub struct EventIntake {
    queue: IntakeQueue,
    checkers: Vec<JoinHandle<()>>,
    writer: JoinHandle<()>,
    failed: Arc<Mutex<Option<String>>>,
}

/// The entrance of an [`EventIntake`].
#[derive(Clone)]
pub struct IntakeQueue {
    events: mpsc::Sender<(RelayEvent, Origin)>,
    plugin: Option<Arc<EventPlugin>>,
    pace: Option<Arc<EventPace>>,
    failed: Arc<Mutex<Option<String>>>,
}

/// A record on its way to the writer.
type CheckedRecord = (Box<[u8]>, Origin, BytesPermit);

impl EventIntake {
    /// Starts the threads.
    pub fn start(options: IntakeOptions, writer: Box<dyn EventWriter>) -> io::Result<Self> {
        let (events, waiting) = mpsc::channel(WAITING_MAX);
        let (checked, to_write) = sync_channel(options.batch_records.max(1));
        let failed = Arc::new(Mutex::new(None));
        let (waiting, options) = (Arc::new(Mutex::new(waiting)), Arc::new(options));
        let writer = vital::spawn("hark-write", {
            let (options, failed) = (Arc::clone(&options), Arc::clone(&failed));
            move || write(&options, &to_write, writer, &failed)
        })?;
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let mut checkers = Vec::with_capacity(threads);
        for _ in 0..threads {
            let (waiting, options) = (Arc::clone(&waiting), Arc::clone(&options));
            let checked = checked.clone();
            checkers.push(vital::spawn("hark-check", move || check(&options, &waiting, &checked))?);
        }
        let queue = IntakeQueue { events, plugin: None, pace: None, failed: Arc::clone(&failed) };
        Ok(Self { queue, checkers, writer, failed })
    }

    /// The entrance.
    pub fn queue(&self) -> IntakeQueue {
        self.queue.clone()
    }

    /// Waits until everything that came in is written. All other entrances must be dropped. The
    /// error says why the archive took no more.
    pub fn finish(self) -> Result<(), PeerError> {
        drop(self.queue);
        for thread in self.checkers.into_iter().chain([self.writer]) {
            // Its panic has ended the process.
            let _ = thread.join();
        }
        let failed = self.failed.lock().take();
        failed.map_or(Ok(()), |why| Err(PeerError::Archive(why)))
    }
}

impl IntakeQueue {
    /// Why the archive takes no more, if so.
    pub(crate) fn failure(&self) -> Option<PeerError> {
        self.failed.lock().clone().map(PeerError::Archive)
    }

    /// An entrance in front of which a plugin decides what may pass.
    pub(crate) fn with_plugin(&self, plugin: Option<Arc<EventPlugin>>) -> Self {
        Self { plugin, ..self.clone() }
    }

    /// An entrance through which only so many events pass in a second, of all its clones.
    pub(crate) fn with_pace(&self, per_s_max: Option<u32>) -> Self {
        Self { pace: per_s_max.map(|rate| Arc::new(EventPace::new(rate))), ..self.clone() }
    }

    /// An entrance that only a plugin stands at, and nothing behind it.
    #[cfg(test)]
    pub(crate) fn failing(plugin: EventPlugin) -> Self {
        let (events, _) = mpsc::channel(1);
        Self { events, plugin: Some(Arc::new(plugin)), pace: None, failed: Arc::default() }
    }

    /// Queues an event. Waits while too many are waiting.
    pub(crate) async fn put(&self, event: RelayEvent, origin: Origin) -> Result<(), PeerError> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        origin.meter.add(|meter| &meter.received, 1);
        if let Some(plugin) = self.plugin.as_ref().filter(|_| !is_request(event.json()))
            && let Err(refusal) = plugin.accept(event.json()).await
        {
            origin.meter.refuse_here("plugin", &refusal.words);
            // It has come, and is not asked for again.
            if let (Wanted::Ids(ids), Some((id, _))) = (&origin.wanted, refusal.event) {
                ids.left.lock().remove(&id);
            }
            if let (Some(missed), Some((_, time)), true) =
                (&origin.missed, refusal.event, refusal.is_failure)
            {
                missed.add_failed(time.max(origin.missed_from));
            }
            return Ok(());
        }
        if let Some(pace) = &self.pace {
            pace.turn().await;
        }
        if let Wanted::Ids(ids) = &origin.wanted {
            ids.unseen.fetch_add(1, Ordering::AcqRel);
        }
        let ended = |_| PeerError::Archive("the threads that check events have ended".into());
        self.events.send((event, origin)).await.map_err(ended)
    }
}

/// Whether an event is a request about its author's own data, about which no plugin decides.
fn is_request(json: &str) -> bool {
    let event = Event::parse(json.as_bytes(), &mut EventArena::new()).map(|event| event.kind());
    event.is_ok_and(|kind| REQUESTS.contains(&kind))
}

/// Lets so many events pass in a second.
struct EventPace {
    step: Duration,
    next: Mutex<tokio::time::Instant>,
}

impl EventPace {
    fn new(per_s_max: u32) -> Self {
        let step = Duration::from_secs(1) / per_s_max.max(1);
        Self { step, next: Mutex::new(tokio::time::Instant::now()) }
    }

    /// Waits for the turn of one event. What was not used of the last second may pass at once.
    async fn turn(&self) {
        let at = {
            let mut next = self.next.lock();
            let now = tokio::time::Instant::now();
            let at = (*next).max(now.checked_sub(Duration::from_secs(1)).unwrap_or(now));
            *next = at + self.step;
            at
        };
        tokio::time::sleep_until(at).await;
    }
}

fn check(
    options: &IntakeOptions,
    waiting: &Mutex<mpsc::Receiver<(RelayEvent, Origin)>>,
    checked: &SyncSender<CheckedRecord>,
) {
    let mut checker = EventChecker {
        options,
        reader: options.network.lines().reader(&options.read),
        unverified: {
            let unverified = ReadOptions { trusted: true, ..options.read.clone() };
            options.network.lines().reader(&unverified)
        },
        arena: EventArena::new(),
        record: Vec::new(),
    };
    let mut events = Vec::with_capacity(CHECK_TOGETHER);
    while waiting.lock().blocking_recv_many(&mut events, CHECK_TOGETHER) > 0 {
        for (event, origin) in events.drain(..) {
            let passed = checker.check(event.json(), &origin);
            if let Wanted::Ids(ids) = &origin.wanted {
                ids.looked_at();
            }
            match passed {
                Ok(()) => {
                    let record = checker.record.as_slice().into();
                    if checked.send((record, origin, event.permit)).is_err() {
                        return;
                    }
                }
                Err(Some((reason, words))) => origin.meter.refuse_here(reason, &words),
                Err(None) => origin.meter.add(|meter| &meter.unasked, 1),
            }
        }
    }
}

/// One thread's buffers.
struct EventChecker<'a> {
    options: &'a IntakeOptions,
    reader: Box<dyn LineReader>,
    /// Makes records of events that are not verified yet.
    unverified: Box<dyn LineReader>,
    arena: EventArena,
    record: Vec<u8>,
}

impl EventChecker<'_> {
    /// Makes a record of an event. The error is the reason why it is refused with details, or
    /// `None` if it was not asked for.
    fn check(&mut self, json: &str, origin: &Origin) -> Result<(), Option<(&'static str, String)>> {
        let Self { options, reader, unverified, arena, record } = self;
        let event = match Event::parse(json.as_bytes(), arena) {
            Ok(event) => event,
            Err(error) => return Err(Some(("malformed", plain(&error.to_string())))),
        };
        if let Wanted::Ids(ids) = &origin.wanted
            && !ids.left.lock().remove(event.id())
        {
            return Err(None);
        }
        if let Some(seen) = &origin.seen {
            seen.insert(*event.id());
        }
        // A stream runs for long, and an event may expire meanwhile.
        if event.expiration().is_some_and(|at| at <= now_s()) {
            return Err(Some(("expired", String::new())));
        }
        if let Some((reason, words)) = (options.rules)(&event, json.len(), origin.protected) {
            return Err(Some((reason, words)));
        }
        // If a lookup fails, the store reports the failure later, when records are put.
        let known = |id: &Id| {
            options.feed.as_ref().is_some_and(|feed| feed.has_stored(id))
                || options.known.as_ref().is_some_and(|store| store.knows(id).unwrap_or(false))
        };
        let read = |fault| Some(reason_of(fault));
        if let Wanted::Matching(query) = &origin.wanted {
            // A signature costs far more to verify than all else.
            unverified.read(json.as_bytes(), &known, record).map_err(read)?;
            if !Record::new(record).is_ok_and(|record| query.matches(&record)) {
                return Err(None);
            }
            reader.read(json.as_bytes(), &|_| false, record).map_err(read)?;
        } else {
            reader.read(json.as_bytes(), &known, record).map_err(read)?;
        }
        origin.meter.add(|meter| &meter.verified, 1);
        Ok(())
    }
}

/// Returns the words without the prefix that they have in an answer to a client.
fn plain(words: &str) -> String {
    words.strip_prefix("invalid: ").unwrap_or(words).into()
}

fn reason_of(fault: LineFault) -> (&'static str, String) {
    match fault {
        LineFault::Malformed(words) => ("malformed", plain(&words)),
        LineFault::TooLarge(words) => ("too large", words),
        LineFault::Id => ("bad id", String::new()),
        LineFault::Signature => ("bad signature", String::new()),
        LineFault::Ephemeral => ("ephemeral", String::new()),
        LineFault::Expired => ("expired", String::new()),
        LineFault::Kept => ("duplicate", String::new()),
    }
}

/// Writes what was checked, in large batches, until there is no more. After a failure it refuses
/// the rest, so that nobody waits.
fn write(
    options: &IntakeOptions,
    checked: &Receiver<CheckedRecord>,
    mut writer: Box<dyn EventWriter>,
    failed: &Mutex<Option<String>>,
) {
    let batch_max = options.batch_records.max(1);
    let (mut records, mut origins) = (Vec::new(), Vec::new());
    while let Ok(first) = checked.recv() {
        let until = Instant::now() + GATHER;
        let mut next = Some(first);
        while let Some((record, origin, permit)) = next {
            records.push(record);
            origins.push((origin, permit));
            next = if records.len() >= batch_max {
                None
            } else {
                // What was checked is written, too, when there is no more.
                checked.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
            };
        }
        if failed.lock().is_none() {
            let told: Vec<Box<[u8]>> =
                if options.stored.is_some() { records.clone() } else { Vec::new() };
            match writer.put(std::mem::take(&mut records)) {
                Ok(outcomes) => {
                    for (at, outcome) in outcomes.into_iter().enumerate() {
                        let Some((origin, _)) = origins.get(at) else { break };
                        if !count(origin, outcome) {
                            continue;
                        }
                        let record = told.get(at).and_then(|record| Record::new(record).ok());
                        if let (Some(stored), Some(record)) = (&options.stored, record) {
                            stored(&record);
                        }
                    }
                }
                Err(why) => {
                    failed.lock().get_or_insert(why);
                }
            }
        }
        records.clear();
        origins.clear();
    }
}

/// Counts an outcome. Returns whether the record is stored now.
fn count(origin: &Origin, outcome: WriteOutcome) -> bool {
    let meter = &origin.meter;
    let reason = match outcome {
        Ok(Outcome::Stored { .. } | Outcome::Erased(_)) => {
            meter.add(|meter| &meter.stored, 1);
            return true;
        }
        Ok(Outcome::Duplicate) => "duplicate",
        Ok(Outcome::Superseded) => "superseded",
        Ok(Outcome::Refused(Refusal::Deleted)) => "deleted",
        Ok(Outcome::Refused(Refusal::Vanished)) => "vanished",
        Err(why) => {
            meter.refuse_here("not stored", &why);
            return false;
        }
    };
    meter.refuse_here(reason, "");
    false
}
