//! Group commit: one thread takes what has queued up and makes it durable with one sync.
//!
//! While one batch is being synced the next one gathers, so batches grow with the load by
//! themselves; [`Options::batch_wait`] makes them grow sooner, at the price of latency. Answers go
//! out only after the sync, listeners first.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hark_codec::record::Record;

use crate::meter::{Count, Histogram};
use crate::store::{CommitError, Committed, Outcome, Store, Write};
use crate::vital;

/// How batches are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Writes in a batch, at most.
    pub batch_writes_max: usize,
    /// Bytes of records in a batch, about at most.
    pub batch_bytes_max: usize,
    /// How long a batch waits for company after its first write.
    pub batch_wait: Duration,
    /// Writes that may wait for the writer; above it [`Writer::try_submit`] says so.
    pub queue_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            batch_writes_max: 1024,
            batch_bytes_max: 4 << 20,
            batch_wait: Duration::ZERO,
            queue_max: 4096,
        }
    }
}

/// Called once with what became of a write.
pub type Done = Box<dyn FnOnce(Result<Outcome, Arc<CommitError>>) + Send>;

/// Hears, on the writer's thread, of what has just become durable.
pub trait Listener: Send {
    /// A batch is durable: its records and their sequence numbers, in order. `answer` tells their
    /// senders, and is to be called when all who listen have heard of them.
    fn batch(
        &mut self,
        records: &mut dyn Iterator<Item = (u64, Record<'_>)>,
        answer: &mut dyn FnMut(),
    );
}

/// Nobody hears.
impl Listener for () {
    fn batch(&mut self, _: &mut dyn Iterator<Item = (u64, Record<'_>)>, answer: &mut dyn FnMut()) {
        answer();
    }
}

/// What makes a batch durable: [`Store::commit`], or another process that took the archive over.
pub type Commit = Box<dyn Fn(&[Write]) -> Result<Committed, CommitError> + Send>;

/// Where writes go, and who hears of them.
pub struct Target {
    /// Makes them durable.
    pub commit: Commit,
    /// Hears of them.
    pub listener: Box<dyn Listener>,
}

/// Done between two batches; see [`Writer::between`].
pub type Between = Box<dyn FnOnce(&mut Target) + Send>;

/// The queue is full, or the writer has stopped. The write comes back.
#[derive(Debug)]
pub struct Busy(pub Write);

enum Job {
    Write(Write, Done),
    Between(Between),
}

/// What the writer has done since it started.
#[derive(Debug, Default)]
pub struct Counters {
    /// How long each batch took that was made durable.
    pub batches: Histogram,
    /// Writes in them.
    pub writes: Count,
    /// Why the store takes no more writes, once it does not.
    pub stopped: OnceLock<String>,
    /// Why the last batch was not kept, if it was not and the next one may be.
    unavailable: Mutex<Option<String>>,
    /// Since when a batch is under way, if one is.
    committing: Mutex<Option<Instant>>,
}

impl Counters {
    /// How long the batch that is under way has taken so far.
    pub fn committing_for(&self) -> Option<Duration> {
        let since = *self.committing.lock().unwrap_or_else(PoisonError::into_inner);
        since.map(|since| since.elapsed())
    }

    /// Why the last batch was not kept, if it was not and the next one may be.
    pub fn unavailable(&self) -> Option<String> {
        self.unavailable.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_unavailable(&self, why: Option<String>) {
        *self.unavailable.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    fn committing(&self, since: Option<Instant>) {
        *self.committing.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }
}

/// The writer's end that the doors hold.
pub struct Writer {
    store: Arc<dyn Store>,
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
    counters: Arc<Counters>,
}

impl Writer {
    /// Starts the writer's thread.
    pub fn start(store: Arc<dyn Store>, options: Options, listener: Box<dyn Listener>) -> Self {
        let (jobs, queue) = sync_channel(options.queue_max.max(1));
        let counters = Arc::new(Counters::default());
        let thread = vital::spawn("hark-writer", {
            let (counters, store) = (Arc::clone(&counters), Arc::clone(&store));
            let commit = Box::new(move |writes: &[Write]| store.commit(writes));
            move || run(Target { commit, listener }, options, &queue, &counters)
        })
        .expect("the system starts a thread");
        Self { store, jobs: Some(jobs), thread: Some(thread), counters }
    }

    /// Queues a write, or gives it back at once if the queue is full. `done` is called from the
    /// writer's thread and must not block.
    pub fn try_submit(&self, write: Write, done: Done) -> Result<(), Busy> {
        let Some(jobs) = &self.jobs else { return Err(Busy(write)) };
        jobs.try_send(Job::Write(write, done)).map_err(|refused| match refused {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => busy(job),
        })
    }

    /// Queues a write, waiting for room.
    pub fn submit(&self, write: Write, done: Done) -> Result<(), Busy> {
        let Some(jobs) = &self.jobs else { return Err(Busy(write)) };
        jobs.send(Job::Write(write, done)).map_err(|refused| busy(refused.0))
    }

    /// Runs `job` on the writer's thread, once all that was queued before it is durable, told and
    /// answered. What is queued after it waits until it returns, and goes to what it left as the
    /// target. Comes back if the queue is full, or the writer has stopped.
    pub fn between(&self, job: Between) -> Result<(), Between> {
        let Some(jobs) = &self.jobs else { return Err(job) };
        jobs.try_send(Job::Between(job)).map_err(|refused| match refused {
            TrySendError::Full(Job::Between(job))
            | TrySendError::Disconnected(Job::Between(job)) => job,
            // Not reached: what was sent comes back.
            TrySendError::Full(_) | TrySendError::Disconnected(_) => Box::new(|_: &mut Target| {}),
        })
    }

    /// Tells the listener, between two batches, what other processes have put ([`Store::news`]). Where
    /// the queue is full the next batch does so.
    pub fn tell_news(&self) {
        let store = Arc::clone(&self.store);
        let told = self.between(Box::new(move |target| {
            loop {
                let news = store.news();
                if news.is_empty() {
                    return;
                }
                let records = news.iter().map(|(seq, bytes)| (*seq, Record::new(bytes)));
                let mut records = records.filter_map(|(seq, record)| Some((seq, record.ok()?)));
                target.listener.batch(&mut records, &mut || {});
            }
        }));
        drop(told);
    }

    /// Queues a write and waits until it is durable or refused.
    pub fn write(&self, write: Write) -> Result<Outcome, Arc<CommitError>> {
        let (answer, answered) = sync_channel(1);
        let done: Done = Box::new(move |outcome| {
            // The asker waits below, so the channel is open.
            let _ = answer.send(outcome);
        });
        let stopped = || Arc::new(CommitError::Stopped("the writer has stopped".into()));
        self.submit(write, done).map_err(|Busy(_)| stopped())?;
        answered.recv().map_err(|_| stopped())?
    }

    /// What the writer has done so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Makes all that was queued durable and ends the thread.
    pub fn close(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It does not panic: see `vital`.
            let _ = thread.join();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}

fn busy(job: Job) -> Busy {
    match job {
        Job::Write(write, _) => Busy(write),
        // Not reached: only writes are given back.
        Job::Between(_) => Busy(Write::Put(Box::default())),
    }
}

fn run(mut target: Target, options: Options, queue: &Receiver<Job>, counters: &Counters) {
    let mut writes = Vec::new();
    let mut waiting = Vec::new();
    while let Ok(first) = queue.recv() {
        let between = gather(first, options, queue, &mut writes, &mut waiting);
        commit(&mut target, &mut writes, &mut waiting, counters);
        if let Some(between) = between {
            between(&mut target);
        }
    }
}

/// Makes a batch durable, tells the listener and then the senders.
fn commit(
    target: &mut Target,
    writes: &mut Vec<Write>,
    waiting: &mut Vec<Done>,
    counters: &Counters,
) {
    if writes.is_empty() {
        return;
    }
    let started = Instant::now();
    counters.committing(Some(started));
    let result = (target.commit)(writes);
    counters.committing(None);
    match result {
        Ok(committed) => {
            counters.set_unavailable(None);
            counters.batches.note(started.elapsed());
            counters.writes.add(writes.len() as u64);
            let before = committed.before.iter().map(|(seq, bytes)| (*seq, bytes));
            let put = writes.iter().zip(&committed.outcomes).filter_map(|pair| match pair {
                (Write::Put(bytes), Outcome::Stored { seq }) => Some((*seq, bytes)),
                _ => None,
            });
            let mut stored =
                before.chain(put).filter_map(|(seq, bytes)| Some((seq, Record::new(bytes).ok()?)));
            target.listener.batch(&mut stored, &mut || {
                for (done, outcome) in waiting.drain(..).zip(&committed.outcomes) {
                    done(Ok(*outcome));
                }
            });
        }
        Err(error) => {
            if let CommitError::Stopped(reason) = &error {
                // Set once: it does not start again by itself, so the first reason is the one.
                let _ = counters.stopped.set(reason.clone());
            }
            if let CommitError::Unavailable(reason) = &error {
                counters.set_unavailable(Some(reason.clone()));
            }
            let error = Arc::new(error);
            for done in waiting.drain(..) {
                done(Err(Arc::clone(&error)));
            }
        }
    }
    writes.clear();
}

/// Takes what is there, up to the bounds, or to what is to be done after this batch.
fn gather(
    first: Job,
    options: Options,
    queue: &Receiver<Job>,
    writes: &mut Vec<Write>,
    waiting: &mut Vec<Done>,
) -> Option<Between> {
    let until = Instant::now() + options.batch_wait;
    let mut bytes = 0;
    let mut next = Some(first);
    while let Some(job) = next.take() {
        let (write, done) = match job {
            Job::Write(write, done) => (write, done),
            Job::Between(between) => return Some(between),
        };
        bytes += if let Write::Put(record) = &write { record.len() } else { 0 };
        writes.push(write);
        waiting.push(done);
        if writes.len() >= options.batch_writes_max || bytes >= options.batch_bytes_max {
            return None;
        }
        next = match queue.try_recv() {
            Ok(job) => Some(job),
            Err(_) if options.batch_wait.is_zero() => None,
            Err(_) => queue.recv_timeout(until.saturating_duration_since(Instant::now())).ok(),
        };
    }
    None
}
