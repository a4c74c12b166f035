//! Checks and stores events. One thread for each core checks, and one more thread writes. The
//! permit for an event's bytes is held until the event is durable or refused.

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

use crate::clock::now_s;
use crate::error::PeerError;
use crate::feed::{LocalFeed, MissedEvents, SeenIds};
use crate::meter::SyncMeter;
use crate::plugin::EventPlugin;
use crate::route::{BytesPermit, RelayEvent};

/// Maximum number of events that a thread removes from the queue at a time.
const CHECK_TOGETHER: usize = 64;
/// Maximum number of events in the queue. Permits bound the bytes of these events.
const WAITING_MAX: usize = 4096;
/// How long the writer waits for more events after the first event of a batch.
const GATHER: Duration = Duration::from_millis(5);

/// The outcome of writing a record, or the reason why this record alone could not be written.
pub type WriteOutcome = Result<Outcome, String>;

/// Writes records to an archive.
pub trait EventWriter: Send {
    /// Writes records, and returns the outcome of each record. The records are durable on return.
    /// The error is a text for people, and after an error nothing more can be written.
    fn put(&mut self, records: Vec<Box<[u8]>>) -> Result<Vec<WriteOutcome>, String>;
}

/// Why the rules of this archive refuse an event.
pub struct RuleRefusal {
    /// The reason for the counters, and the reason in words.
    pub reason: (&'static str, String),
    /// Whether the event is a request about its author's own data, such as a deletion. It is stored
    /// nevertheless if [`IntakeOptions::requests`] accepts the request.
    pub is_of_request: bool,
}

/// Rules of this archive that do not depend on the signature. The arguments are the event, its
/// length in bytes, and whether protected events (NIP-70) may come from peers other than their
/// authors.
pub type EventRules = Arc<dyn Fn(&Event<'_>, usize, bool) -> Option<RuleRefusal> + Send + Sync>;

/// Whether a request about its author's own data is stored although the rules refuse the author's
/// other events.
pub type RequestRule = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// A function that is called with each stored record.
pub type StoredListener = Arc<dyn Fn(&Record<'_>) + Send + Sync>;

/// Options for checking and writing events.
pub struct IntakeOptions {
    /// The network of the events.
    pub network: &'static dyn Network,
    /// Options for reading events.
    pub read: ReadOptions,
    /// The store in which known ids are looked up before a signature is verified.
    pub known: Option<Arc<dyn Store>>,
    /// Rules that refuse events, in addition to the rules of every archive.
    pub rules: EventRules,
    /// The rule for requests of authors whose other events are refused.
    pub requests: RequestRule,
    /// Maximum number of records that are made durable together.
    pub batch_records: usize,
    /// The feed, which knows the ids of records that were stored after `known` was opened.
    pub feed: Option<Arc<LocalFeed>>,
    /// This function is called with each stored record.
    pub stored: Option<StoredListener>,
}

/// The source of an event: the request for the event, and the counters.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) meter: Arc<SyncMeter>,
    pub(crate) wanted: Wanted,
    /// Remembers the ids of the relay's events.
    pub(crate) seen: Option<Arc<SeenIds>>,
    /// If the plugin fails to decide about an event, its time is noted here, so that the event is
    /// requested again.
    pub(crate) missed: Option<Arc<MissedEvents>>,
    /// The earliest time that is noted in `missed`. Without this bound, an author, who can choose
    /// any time, could cause a comparison of all events.
    pub(crate) missed_from: u64,
    /// Whether the relay may send protected events.
    pub(crate) protected: bool,
}

/// The events that were requested.
#[derive(Clone)]
pub(crate) enum Wanted {
    Ids(Arc<AskedIds>),
    Matching(Arc<Query>),
}

/// Ids of requested events that have not arrived yet.
#[derive(Default)]
pub(crate) struct AskedIds {
    left: Mutex<HashSet<Id>>,
    /// Number of events that have arrived and are not checked yet.
    unseen: AtomicUsize,
    seen: Notify,
}

impl AskedIds {
    pub(crate) fn new(ids: impl IntoIterator<Item = Id>) -> Self {
        Self { left: Mutex::new(ids.into_iter().collect()), ..Self::default() }
    }

    /// Waits until all received events are checked, and returns the ids of the events that have not
    /// arrived.
    pub(crate) async fn left(&self) -> Vec<Id> {
        loop {
            let seen = self.seen.notified();
            if self.unseen.load(Ordering::Acquire) == 0 {
                return self.left.lock().iter().copied().collect();
            }
            seen.await;
        }
    }

    fn mark_seen(&self) {
        if self.unseen.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.seen.notify_one();
        }
    }
}

/// Threads that check and write events. [`EventIntake::finish`] ends the threads.
pub struct EventIntake {
    queue: IntakeQueue,
    checkers: Vec<JoinHandle<()>>,
    writer: JoinHandle<()>,
    failed: Arc<Mutex<Option<String>>>,
}

/// The input queue of an [`EventIntake`].
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

    /// The input queue.
    pub fn queue(&self) -> IntakeQueue {
        self.queue.clone()
    }

    /// Waits until all queued events are written. All other clones of the queue must be dropped.
    /// The error is the reason why the archive stopped accepting records.
    pub fn finish(self) -> Result<(), PeerError> {
        drop(self.queue);
        for thread in self.checkers.into_iter().chain([self.writer]) {
            // A panic of the thread has already ended the process.
            let _ = thread.join();
        }
        let failed = self.failed.lock().take();
        failed.map_or(Ok(()), |why| Err(PeerError::Archive(why)))
    }
}

impl IntakeQueue {
    /// The failure of the archive, after which it accepts no more records.
    pub(crate) fn failure(&self) -> Option<PeerError> {
        self.failed.lock().clone().map(PeerError::Archive)
    }

    /// Returns a queue that drops the events that `plugin` refuses.
    pub(crate) fn with_plugin(&self, plugin: Option<Arc<EventPlugin>>) -> Self {
        Self { plugin, ..self.clone() }
    }

    /// Returns a queue that accepts at most `per_s_max` events a second, counted over all its
    /// clones.
    pub(crate) fn with_pace(&self, per_s_max: Option<u32>) -> Self {
        Self { pace: per_s_max.map(|rate| Arc::new(EventPace::new(rate))), ..self.clone() }
    }

    /// Returns a queue with a plugin but without an intake.
    #[cfg(test)]
    pub(crate) fn failing(plugin: EventPlugin) -> Self {
        let (events, _) = mpsc::channel(1);
        Self { events, plugin: Some(Arc::new(plugin)), pace: None, failed: Arc::default() }
    }

    /// Queues an event. Waits while the queue is full.
    pub(crate) async fn put(&self, event: RelayEvent, origin: Origin) -> Result<(), PeerError> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        origin.meter.add(|meter| &meter.received, 1);
        if let Some(plugin) = self.plugin.as_ref().filter(|_| !is_request(event.json()))
            && let Err(refusal) = plugin.accept(event.json()).await
        {
            origin.meter.refuse_here("plugin", &refusal.words);
            // The event has arrived, so the fetcher does not request it again.
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

/// Whether an event is a deletion or a request to vanish. Plugins do not decide about these events.
fn is_request(json: &str) -> bool {
    let event = Event::parse(json.as_bytes(), &mut EventArena::new()).map(|event| event.kind());
    event.is_ok_and(|kind| REQUESTS.contains(&kind))
}

/// Limits the number of events per second.
struct EventPace {
    step: Duration,
    next: Mutex<tokio::time::Instant>,
}

impl EventPace {
    fn new(per_s_max: u32) -> Self {
        let step = Duration::from_secs(1) / per_s_max.max(1);
        Self { step, next: Mutex::new(tokio::time::Instant::now()) }
    }

    /// Waits until one more event is allowed. After a pause, as many events as one second allows
    /// may pass together.
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
                ids.mark_seen();
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

/// Checks events in one thread, with buffers that are reused.
struct EventChecker<'a> {
    options: &'a IntakeOptions,
    reader: Box<dyn LineReader>,
    /// Makes records of events without verifying their signatures.
    unverified: Box<dyn LineReader>,
    arena: EventArena,
    record: Vec<u8>,
}

impl EventChecker<'_> {
    /// Checks an event, and makes its record. The error has the reason for the refusal and details,
    /// or is `None` if the event was not requested.
    fn check(&mut self, json: &str, origin: &Origin) -> Result<(), Option<(&'static str, String)>> {
        let Self { options, reader, unverified, arena, record } = self;
        let event = match Event::parse(json.as_bytes(), arena) {
            Ok(event) => event,
            Err(error) => return Err(Some(("malformed", error.to_string()))),
        };
        if let Wanted::Ids(ids) = &origin.wanted
            && !ids.left.lock().remove(event.id())
        {
            return Err(None);
        }
        if let Some(seen) = &origin.seen {
            seen.insert(*event.id());
        }
        // The read options contain the time at which the stream began, and the event may have
        // expired since then.
        if event.expiration().is_some_and(|at| at <= now_s()) {
            return Err(Some(("expired", String::new())));
        }
        let refusal = (options.rules)(&event, json.len(), origin.protected);
        let unless_heard = match refusal {
            Some(refusal) if !refusal.is_of_request => return Err(Some(refusal.reason)),
            refusal => refusal,
        };
        // If a lookup fails, the store reports the failure when records are put.
        let known = |id: &Id| {
            options.feed.as_ref().is_some_and(|feed| feed.has_stored(id))
                || options.known.as_ref().is_some_and(|store| store.knows(id).unwrap_or(false))
        };
        let read = |fault| Some(reason_of(fault));
        if let Wanted::Matching(query) = &origin.wanted {
            // The signature is verified last, because this check costs far more than all others.
            unverified.read(json.as_bytes(), &known, record).map_err(read)?;
            if !Record::new(record).is_ok_and(|record| query.matches(&record)) {
                return Err(None);
            }
            reader.read(json.as_bytes(), &|_| false, record).map_err(read)?;
        } else {
            reader.read(json.as_bytes(), &known, record).map_err(read)?;
        }
        origin.meter.add(|meter| &meter.verified, 1);
        match unless_heard {
            Some(refusal) if !(options.requests)(record) => Err(Some(refusal.reason)),
            _ => Ok(()),
        }
    }
}

fn reason_of(fault: LineFault) -> (&'static str, String) {
    match fault {
        LineFault::Malformed(words) => ("malformed", words),
        LineFault::TooLarge(words) => ("too large", words),
        LineFault::Id => ("bad id", String::new()),
        LineFault::Signature => ("bad signature", String::new()),
        LineFault::Ephemeral => ("ephemeral", String::new()),
        LineFault::Expired => ("expired", String::new()),
        LineFault::Kept => ("duplicate", String::new()),
    }
}

/// Writes checked records in large batches, until the channel is closed. After a failure, the
/// remaining records are discarded, so that no sender blocks.
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
                // When the channel is closed, the gathered records are still written.
                checked.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
            };
        }
        if failed.lock().is_none() {
            let told: Vec<Box<[u8]>> =
                if options.stored.is_some() { records.clone() } else { Vec::new() };
            let time = |record: &[u8]| Record::new(record).map_or(0, |record| record.time());
            let times: Vec<u64> = records.iter().map(|record| time(record)).collect();
            match writer.put(std::mem::take(&mut records)) {
                Ok(outcomes) => {
                    for (at, outcome) in outcomes.into_iter().enumerate() {
                        let Some((origin, _)) = origins.get(at) else { break };
                        if let (Err(_), Some(missed)) = (&outcome, &origin.missed) {
                            missed.add_failed(times[at].max(origin.missed_from));
                        }
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

/// Counts an outcome. Returns whether the record was newly stored.
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
        Ok(Outcome::Refused(Refusal::Banned)) => "banned",
        Err(why) => {
            meter.refuse_here("not stored", &why);
            return false;
        }
    };
    meter.refuse_here(reason, "");
    false
}
