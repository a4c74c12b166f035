//! Group commit: one thread takes all queued writes and makes the batch durable with one sync.
//!
//! While one batch is being synced, the next batch gathers, so the size of batches grows with the
//! load. A batch also waits a little if many further writes are about to come ([`Writer::expect`]),
//! since a sync costs about the same for few writes as for many. With
//! [`WriterOptions::batch_wait`], a batch waits for other writes, too, at the price of latency.
//! After the sync the listener is notified, and then the senders are answered.
//!
//! A write that deletes or searches more than a step ([`Store::commit_some`]) gets its next step
//! after the writes that have come meanwhile, and its answer after its last step.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hark_codec::record::Record;
use parking_lot::Mutex;

use crate::meter::{Counter, Histogram};
use crate::store::{CommitError, CommitResult, Outcome, Store, Write};
use crate::vital;

/// The least number of expected writes for which a batch waits. Fewer are not worth the time.
const EXPECTED_MIN: usize = 8;
/// The longest that a batch waits for expected writes.
const EXPECTED_WAIT: Duration = Duration::from_millis(2);
/// The interval at which a waiting thread polls its queue. A thread that blocked on the queue would
/// be woken by each write.
const LOOK_EVERY: Duration = Duration::from_micros(500);

/// The bounds of batches and of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterOptions {
    /// Maximum number of writes in a batch.
    pub batch_writes_max: usize,
    /// Maximum number of bytes of records in a batch, about.
    pub batch_bytes_max: usize,
    /// How long a batch waits for further writes after its first write.
    pub batch_wait: Duration,
    /// Writes that may wait for the writer. Above the bound, [`Writer::try_submit`] returns
    /// [`WriterBusy`].
    pub queue_max: usize,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            batch_writes_max: 1024,
            batch_bytes_max: 4 << 20,
            batch_wait: Duration::ZERO,
            queue_max: 4096,
        }
    }
}

/// A callback that receives the outcome of a write, once.
pub type WriteCallback = Box<dyn FnOnce(Result<Outcome, Arc<CommitError>>) + Send>;

/// Receives, on the writer's thread, the records that have just become durable.
pub trait CommitListener: Send {
    /// Receives the records of a durable batch and their sequence numbers, in order. `answer`
    /// answers the senders, and must be called once all subscribers have been notified.
    fn batch(
        &mut self,
        records: &mut dyn Iterator<Item = (u64, Record<'_>)>,
        answer: &mut dyn FnMut(),
    );
}

/// A listener without subscribers.
impl CommitListener for () {
    fn batch(&mut self, _: &mut dyn Iterator<Item = (u64, Record<'_>)>, answer: &mut dyn FnMut()) {
        answer();
    }
}

/// Makes a batch durable: by [`Store::commit_some`], or in another process that took over the
/// archive.
pub type CommitFn = Box<dyn Fn(&[Write]) -> Result<CommitResult, CommitError> + Send>;

/// The function that makes writes durable, and the listener that receives the durable records.
pub struct WriteTarget {
    /// Makes the writes durable.
    pub commit: CommitFn,
    /// Receives the durable records.
    pub listener: Box<dyn CommitListener>,
}

/// A job that runs between two batches; see [`Writer::between`].
pub type BetweenBatchesJob = Box<dyn FnOnce(&mut WriteTarget) + Send>;

/// The error if the queue is full or the writer has stopped. Gives the write back.
#[derive(Debug)]
pub struct WriterBusy(pub Write);

/// A number of writes that are about to be submitted. Dropping the value withdraws the number. See
/// [`Writer::expect`].
#[derive(Debug)]
pub struct ExpectedWrites {
    all: Arc<AtomicUsize>,
    count: usize,
}

impl ExpectedWrites {
    /// Sets the number of writes that are still to come. Must be called before a write is
    /// submitted, so that the batch with the last write need not wait.
    pub fn left(&mut self, count: usize) {
        if count > self.count {
            self.all.fetch_add(count - self.count, Ordering::Relaxed);
        } else {
            self.all.fetch_sub(self.count - count, Ordering::Relaxed);
        }
        self.count = count;
    }
}

impl Drop for ExpectedWrites {
    fn drop(&mut self) {
        self.left(0);
    }
}

enum WriterJob {
    Write(Write, WriteCallback),
    Between(BetweenBatchesJob),
}

/// Counters of the writer since its start, and its current state.
#[derive(Debug, Default)]
pub struct WriterCounters {
    /// Durations of the batches that were made durable.
    pub batches: Histogram,
    /// Writes in these batches.
    pub writes: Counter,
    /// The reason for which the writer has stopped, once the store takes no more writes.
    pub stopped: OnceLock<String>,
    /// The reason for the failure of the last batch, if the next batch may succeed.
    unavailable: Mutex<Option<String>>,
    /// The start of the commit in progress, if any.
    committing: Mutex<Option<Instant>>,
}

impl WriterCounters {
    /// Returns the time since the start of the commit in progress. `None` if no commit is in
    /// progress.
    pub fn committing_for(&self) -> Option<Duration> {
        let since = *self.committing.lock();
        since.map(|since| since.elapsed())
    }

    /// Returns the reason for the failure of the last batch, if the next batch may succeed.
    pub fn unavailable(&self) -> Option<String> {
        self.unavailable.lock().clone()
    }

    fn set_unavailable(&self, why: Option<String>) {
        *self.unavailable.lock() = why;
    }

    fn committing(&self, since: Option<Instant>) {
        *self.committing.lock() = since;
    }
}

/// The handle through which the doors submit writes to the writer's thread.
pub struct Writer {
    store: Arc<dyn Store>,
    jobs: SyncSender<WriterJob>,
    /// `None` once the writer is closed.
    thread: Mutex<Option<JoinHandle<()>>>,
    closing: Arc<AtomicBool>,
    expected: Arc<AtomicUsize>,
    counters: Arc<WriterCounters>,
}

impl Writer {
    /// Starts the writer's thread.
    pub fn start(
        store: Arc<dyn Store>,
        options: WriterOptions,
        listener: Box<dyn CommitListener>,
    ) -> Self {
        let (jobs, queue) = sync_channel(options.queue_max.max(1));
        let (counters, closing) = (Arc::new(WriterCounters::default()), Arc::default());
        let expected = Arc::default();
        let thread = vital::spawn("hark-writer", {
            let (counters, store) = (Arc::clone(&counters), Arc::clone(&store));
            let closing = Arc::clone(&closing);
            let queue = WriteQueue { jobs: queue, expected: Arc::clone(&expected), options };
            let commit = Box::new(move |writes: &[Write]| store.commit_some(writes));
            move || run(WriteTarget { commit, listener }, &queue, &closing, &counters)
        })
        .expect("the system starts a thread");
        Self { store, jobs, thread: Mutex::new(Some(thread)), closing, expected, counters }
    }

    /// Announces that `writes` writes are about to be submitted, within a millisecond or two. A
    /// batch that has begun waits for these writes.
    pub fn expect(&self, writes: usize) -> ExpectedWrites {
        let mut expected = ExpectedWrites { all: Arc::clone(&self.expected), count: 0 };
        expected.left(writes);
        expected
    }

    /// Queues a write, or gives it back at once if the queue is full. `done` is called from the
    /// writer's thread and must not block.
    pub fn try_submit(&self, write: Write, done: WriteCallback) -> Result<(), WriterBusy> {
        self.jobs.try_send(WriterJob::Write(write, done)).map_err(|refused| match refused {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => busy(job),
        })
    }

    /// Queues a write, and waits while the queue is full.
    pub fn submit(&self, write: Write, done: WriteCallback) -> Result<(), WriterBusy> {
        self.jobs.send(WriterJob::Write(write, done)).map_err(|refused| busy(refused.0))
    }

    /// Runs `job` on the writer's thread, once all earlier writes are durable, delivered and
    /// answered. Writes queued after the job wait until the job returns, and then go to the target
    /// that the job has left. The same holds for further steps of unfinished writes. Gives the job
    /// back if the queue is full or the writer has stopped.
    pub fn between(&self, job: BetweenBatchesJob) -> Result<(), BetweenBatchesJob> {
        self.jobs.try_send(WriterJob::Between(job)).map_err(|refused| match refused {
            TrySendError::Full(WriterJob::Between(job))
            | TrySendError::Disconnected(WriterJob::Between(job)) => job,
            // Not reached: the job that was sent comes back.
            TrySendError::Full(_) | TrySendError::Disconnected(_) => {
                Box::new(|_: &mut WriteTarget| {})
            }
        })
    }

    /// Passes records that other processes have put ([`Store::news`]) to the listener, between two
    /// batches. If the queue is full, the next batch delivers these records. If the store then
    /// reports no trouble, the stored reason for an earlier failure is cleared.
    pub fn deliver_news(&self) {
        let (store, counters) = (Arc::clone(&self.store), Arc::clone(&self.counters));
        let waiter = self.between(Box::new(move |target| {
            loop {
                let news = store.news();
                if news.is_empty() {
                    if store.trouble().is_none() {
                        counters.set_unavailable(None);
                    }
                    return;
                }
                let records = news.iter().map(|(seq, bytes)| (*seq, Record::new(bytes)));
                let mut records = records.filter_map(|(seq, record)| Some((seq, record.ok()?)));
                target.listener.batch(&mut records, &mut || {});
            }
        }));
        drop(waiter);
    }

    /// Queues a write and waits until it is durable or refused.
    pub fn write(&self, write: Write) -> Result<Outcome, Arc<CommitError>> {
        let (answer, answered) = sync_channel(1);
        let done: WriteCallback = Box::new(move |outcome| {
            // The caller waits below, so the channel is open.
            let _ = answer.send(outcome);
        });
        let stopped = || Arc::new(CommitError::Stopped("the writer has stopped".into()));
        self.submit(write, done).map_err(|WriterBusy(_)| stopped())?;
        answered.recv().map_err(|_| stopped())?
    }

    /// Returns the counters of the writer.
    pub fn counters(&self) -> &WriterCounters {
        &self.counters
    }

    /// Makes all queued writes durable and ends the thread; later writes are refused. A write that
    /// deletes more than a step is answered with an error after its current step: sending it again
    /// deletes the rest.
    pub fn close(&self) {
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            self.closing.store(true, Ordering::Release);
            // Wakes the thread; an error means that it has ended.
            let _ = self.jobs.send(WriterJob::Between(Box::new(|_| {})));
            // The thread does not panic: see `vital`.
            let _ = thread.join();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}

fn busy(job: WriterJob) -> WriterBusy {
    match job {
        WriterJob::Write(write, _) => WriterBusy(write),
        // Not reached: only writes are given back.
        WriterJob::Between(_) => WriterBusy(Write::Put(Box::default())),
    }
}

/// Writes to make durable, with their callbacks.
#[derive(Default)]
struct WriteBatch {
    writes: Vec<Write>,
    waiting: Vec<PendingWrite>,
}

struct PendingWrite {
    done: WriteCallback,
    /// Number of records that steps of the write have deleted.
    erased: u64,
    /// Whether the write has begun its turn among the unfinished writes. The turn lasts until the
    /// write is done.
    has_turn: bool,
}

impl WriteBatch {
    fn push(&mut self, write: Write, waiting: PendingWrite) {
        self.writes.push(write);
        self.waiting.push(waiting);
    }
}

/// Writes of which a step is done, in the order of their next steps.
type UnfinishedWrites = VecDeque<(Write, PendingWrite)>;

/// The input of the writer's thread.
struct WriteQueue {
    jobs: Receiver<WriterJob>,
    /// Writes that are about to come.
    expected: Arc<AtomicUsize>,
    options: WriterOptions,
}

fn run(
    mut target: WriteTarget,
    queue: &WriteQueue,
    closing: &AtomicBool,
    counters: &WriterCounters,
) {
    let (mut batch, mut unfinished) = (WriteBatch::default(), UnfinishedWrites::new());
    loop {
        let first = match unfinished.len() {
            _ if closing.load(Ordering::Acquire) => queue.jobs.try_recv().map(Some).map_err(|_| ()),
            0 => queue.jobs.recv().map(Some).map_err(|_| ()),
            // At most as many writes are unfinished as the queue may hold. No other write is begun
            // until an unfinished write is done.
            many if many >= queue.options.queue_max => Ok(None),
            _ => match queue.jobs.try_recv() {
                Ok(job) => Ok(Some(job)),
                Err(TryRecvError::Empty) => Ok(None),
                Err(TryRecvError::Disconnected) => Err(()),
            },
        };
        let Ok(first) = first else { break };
        let between = first.and_then(|first| queue.gather(first, &mut batch));
        // Each round runs one step of one unfinished write, so that new writes wait for only one
        // step. The same write continues until it is done, as a store keeps its place in the search
        // of only one write.
        if let Some((write, mut waiting)) = unfinished.pop_front() {
            waiting.has_turn = true;
            batch.push(write, waiting);
        }
        while !batch.writes.is_empty() {
            commit(&mut target, &mut batch, &mut unfinished, counters);
        }
        if let Some(between) = between {
            between(&mut target);
        }
    }
    for (_, waiting) in unfinished {
        let words = "it was stopped before all was deleted; send it again";
        (waiting.done)(Err(Arc::new(CommitError::Unavailable(words.into()))));
    }
}

/// Makes a batch or its first writes durable, notifies the listener and then answers the senders.
/// Writes that were not begun stay in the batch. A write of which only a step was done moves to
/// `unfinished`.
fn commit(
    target: &mut WriteTarget,
    batch: &mut WriteBatch,
    unfinished: &mut UnfinishedWrites,
    counters: &WriterCounters,
) {
    let WriteBatch { writes, waiting } = batch;
    let started = Instant::now();
    counters.committing(Some(started));
    let result = match (target.commit)(writes) {
        Ok(committed) if committed.outcomes.is_empty() => Err(CommitError::nothing_done()),
        result => result,
    };
    counters.committing(None);
    match result {
        Ok(committed) => {
            counters.set_unavailable(None);
            counters.batches.note(started.elapsed());
            let step = committed.outcomes.last().filter(|_| committed.unfinished);
            let whole = committed.outcomes.len() - usize::from(step.is_some());
            counters.writes.add(whole as u64);
            let before = committed.before.iter().map(|(seq, bytes)| (*seq, bytes));
            let put = writes.iter().zip(&committed.outcomes).filter_map(|pair| match pair {
                (Write::Put(bytes), Outcome::Stored { seq }) => Some((*seq, bytes)),
                _ => None,
            });
            let mut stored =
                before.chain(put).filter_map(|(seq, bytes)| Some((seq, Record::new(bytes).ok()?)));
            let mut unanswered = whole;
            let mut answer = || {
                let answered = waiting.drain(..std::mem::take(&mut unanswered));
                for (waiting, outcome) in answered.zip(&committed.outcomes) {
                    (waiting.done)(Ok(match *outcome {
                        Outcome::Erased(count) => Outcome::Erased(waiting.erased + count),
                        outcome => outcome,
                    }));
                }
            };
            target.listener.batch(&mut stored, &mut answer);
            answer();
            writes.drain(..whole);
            if let Some(Outcome::Erased(count)) = step {
                let (write, mut waiting) = (writes.remove(0), waiting.remove(0));
                waiting.erased += count;
                let rest = (write.rest(*count), waiting);
                if rest.1.has_turn {
                    unfinished.push_front(rest);
                } else {
                    unfinished.push_back(rest);
                }
            }
        }
        Err(error) => {
            if let CommitError::Stopped(reason) = &error {
                // Set once: the store does not start again by itself, so the first reason counts.
                let _ = counters.stopped.set(reason.clone());
            }
            if let CommitError::Unavailable(reason) = &error {
                counters.set_unavailable(Some(reason.clone()));
            }
            let error = Arc::new(error);
            for waiting in waiting.drain(..) {
                (waiting.done)(Err(Arc::clone(&error)));
            }
            writes.clear();
        }
    }
}

impl WriteQueue {
    /// Takes queued writes, up to the bounds or to a job, which is returned to be run after the
    /// batch.
    fn gather(&self, first: WriterJob, batch: &mut WriteBatch) -> Option<BetweenBatchesJob> {
        let began = Instant::now();
        let mut bytes = 0;
        let mut next = Some(first);
        while let Some(job) = next.take() {
            let (write, done) = match job {
                WriterJob::Write(write, done) => (write, done),
                WriterJob::Between(between) => return Some(between),
            };
            bytes += if let Write::Put(record) = &write { record.len() } else { 0 };
            batch.push(write, PendingWrite { done, erased: 0, has_turn: false });
            if batch.writes.len() >= self.options.batch_writes_max
                || bytes >= self.options.batch_bytes_max
            {
                return None;
            }
            next = self.next(began);
        }
        None
    }

    /// Returns the next job of a batch that began at `began`. `None` if the batch waits no longer.
    fn next(&self, began: Instant) -> Option<WriterJob> {
        loop {
            if let Ok(job) = self.jobs.try_recv() {
                return Some(job);
            }
            let is_worth_it = self.expected.load(Ordering::Relaxed) >= EXPECTED_MIN;
            if !is_worth_it || began.elapsed() >= EXPECTED_WAIT {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let wait = self.options.batch_wait.checked_sub(began.elapsed())?;
        self.jobs.recv_timeout(wait).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use hark_codec::record::{RecordHeader, write};

    use super::*;
    use crate::effects::KeepAll;
    use crate::query::Query;
    use crate::store::memory::MemoryStore;

    fn put(n: u16) -> Write {
        let mut id = [0; 32];
        id[..2].copy_from_slice(&n.to_be_bytes());
        let mut out = Vec::new();
        let head = RecordHeader { id, time: u64::from(n), author: None, kind: 1, expires: None };
        write(&mut out, &head, b"{}", std::iter::empty());
        Write::Put(out.into())
    }

    /// Sends the number of records of each batch.
    struct CountingListener(std::sync::mpsc::Sender<usize>);

    impl CommitListener for CountingListener {
        fn batch(
            &mut self,
            records: &mut dyn Iterator<Item = (u64, Record<'_>)>,
            answer: &mut dyn FnMut(),
        ) {
            self.0.send(records.count()).unwrap();
            answer();
        }
    }

    #[test]
    fn a_batch_waits_for_many_expected_writes_but_not_for_ever() {
        let (counts, batches) = channel();
        let store = Arc::new(MemoryStore::new(KeepAll));
        let listener = Box::new(CountingListener(counts));
        let writer = Arc::new(Writer::start(store as _, WriterOptions::default(), listener));
        let mut expected = writer.expect(20);
        for n in 0..20 {
            expected.left(19 - usize::from(n));
            assert!(writer.submit(put(n), Box::new(|_| {})).is_ok());
        }
        let mut came = 0;
        while came < 20 {
            came += batches.recv().unwrap();
        }
        // Expected writes that never come do not hold up other writes.
        expected.left(1_000);
        writer.write(put(20)).unwrap();
        assert_eq!(batches.recv().unwrap(), 1);
        drop(expected);
        assert_eq!(writer.expected.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_write_that_deletes_much_lets_others_by_between_its_steps() {
        let store = Arc::new(MemoryStore::new(KeepAll).with_erase_step(10));
        store.commit(&(0..95).map(put).collect::<Vec<_>>()).unwrap();
        let writer = Writer::start(Arc::clone(&store) as _, WriterOptions::default(), Box::new(()));
        // Holds the writer until all writes below are queued.
        let (go, wait) = channel::<()>();
        let held = writer.between(Box::new(move |_| wait.recv().unwrap()));
        assert!(held.is_ok());
        let (sender, receiver) = channel();
        let submit = |name: &'static str, write| {
            let sender = sender.clone();
            let done = move |outcome: Result<_, _>| sender.send((name, outcome.unwrap())).unwrap();
            writer.submit(write, Box::new(done)).unwrap();
        };
        let erase =
            |from, limit| Write::Erase(Box::new(Query { from, to: 94, limit, ..Query::default() }));
        submit("all but", erase(0, 85));
        submit("one", put(1_000));
        submit("rest", erase(0, usize::MAX));
        submit("another", put(1_001));
        go.send(()).unwrap();
        let all: Vec<_> = (0..4).map(|_| receiver.recv().unwrap()).collect();
        let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        assert_eq!(names[..2], ["one", "another"]);
        // Together the two erases deleted each record once, and each reports its own number.
        let erased = all[2..].iter().map(|(_, outcome)| match outcome {
            Outcome::Erased(count) => *count,
            other => panic!("{other:?}"),
        });
        assert_eq!(erased.sum::<u64>(), 95);
        // On close, an unfinished write is answered with an error.
        store.commit(&(0..95).map(put).collect::<Vec<_>>()).unwrap();
        let (go, wait) = channel::<()>();
        assert!(writer.between(Box::new(move |_| wait.recv().unwrap())).is_ok());
        let (sender, receiver) = channel();
        let done = move |outcome| sender.send(outcome).unwrap();
        writer.submit(erase(0, usize::MAX), Box::new(done)).unwrap();
        std::thread::scope(|threads| {
            threads.spawn(|| writer.close());
            while !writer.closing.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            go.send(()).unwrap();
        });
        let outcome: Result<Outcome, Arc<CommitError>> = receiver.recv().unwrap();
        assert!(matches!(*outcome.unwrap_err(), CommitError::Unavailable(_)));
        assert!(writer.submit(put(1_002), Box::new(|_| {})).is_err(), "and nothing is taken");
        writer.close();
    }
}
