//! Group commit: one thread gathers all queued writes into a batch, and makes the batch durable
//! with one sync.
//!
//! While one batch is being synced, the next writes gather in the queue, so the size of batches
//! grows with the load. A batch also waits up to two milliseconds if many further writes are
//! announced ([`Writer::expect`]). The wait pays off because a sync of many writes costs about as
//! much as a sync of a few. With [`WriterOptions::batch_wait`], a batch also waits for writes that
//! are not announced, which adds latency. After the sync, the thread notifies the listener and then
//! answers the senders.
//!
//! Records that other processes have put ([`Store::news`]) never cut a batch short. A commit itself
//! reports the records that were put before the commit ([`CommitResult::before`]). The thread reads
//! news from the store only in a turn without a successful commit, and only if there may be news.
//!
//! [`CommitResult::before`]: crate::store::CommitResult::before
//!
//! A write that deletes or searches more than one step allows ([`Store::commit_some`]) is answered
//! after its last step. Writes that came in the meantime are committed between two steps of that
//! write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::Mutex;

use crate::store::{CommitError, Outcome, Store, Write};
use crate::vital;
use job::WriterJob;
use thread::{WriteQueue, WriterThread};

pub use counters::WriterCounters;
pub use job::{
    BetweenBatchesJob, CommitFn, CommitListener, WriteCallback, WriteTarget, WriterOptions,
};

mod counters;
mod health;
mod job;
mod thread;

/// The error if the queue is full or the writer has stopped. It contains the write.
#[derive(Debug)]
pub struct WriterBusy(pub Write);

/// An announcement of writes that are about to be submitted. Dropping the value withdraws the
/// announcement. See [`Writer::expect`].
#[derive(Debug)]
pub struct ExpectedWrites {
    all: Arc<AtomicUsize>,
    count: usize,
}

impl ExpectedWrites {
    /// Sets the number of announced writes that are still to come. The caller must lower the number
    /// before it submits a write, so that the batch with the last write does not wait for more.
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

/// The handle through which callers submit writes to the writer's thread.
pub struct Writer {
    jobs: SyncSender<WriterJob>,
    /// Whether the store may have news. The thread clears this flag when it begins to deliver the
    /// news.
    news: Arc<AtomicBool>,
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
        let (writer, thread) = Self::prepare(store, options, listener, Box::new(Instant::now));
        let running = vital::spawn("hark-writer", move || thread.run());
        *writer.thread.lock() = Some(running.expect("the system starts a thread"));
        writer
    }

    /// Makes a writer and the work of its thread. `now` is the clock of the thread.
    fn prepare(
        store: Arc<dyn Store>,
        options: WriterOptions,
        listener: Box<dyn CommitListener>,
        now: Box<dyn Fn() -> Instant + Send>,
    ) -> (Self, WriterThread) {
        let (jobs, queue) = sync_channel(options.queue_max.max(1));
        let writer = Self {
            jobs,
            news: Arc::default(),
            thread: Mutex::default(),
            closing: Arc::default(),
            expected: Arc::default(),
            counters: Arc::default(),
        };
        let queue = WriteQueue {
            jobs: queue,
            news: Arc::clone(&writer.news),
            closing: Arc::clone(&writer.closing),
            expected: Arc::clone(&writer.expected),
            options,
        };
        let commit = {
            let store = Arc::clone(&store);
            Box::new(move |writes: &[Write]| store.commit_some(writes))
        };
        let target = WriteTarget { commit, listener };
        let thread = WriterThread::new(store, target, queue, Arc::clone(&writer.counters), now);
        (writer, thread)
    }

    /// Announces that `writes` writes are about to be submitted, within a millisecond or two. A
    /// batch that is being gathered waits for these writes.
    pub fn expect(&self, writes: usize) -> ExpectedWrites {
        let mut expected = ExpectedWrites { all: Arc::clone(&self.expected), count: 0 };
        expected.left(writes);
        expected
    }

    /// Queues a write, or returns it at once if the queue is full. `done` is called from the
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
    /// answered, except unfinished writes. Their further steps, and writes that are queued after
    /// the job, wait until the job returns. If the job has replaced the target, these steps and
    /// writes go to the new target. Returns the job if the queue is full or the writer has stopped.
    pub fn between(&self, job: BetweenBatchesJob) -> Result<(), BetweenBatchesJob> {
        self.jobs.try_send(WriterJob::Between(job)).map_err(|refused| match refused {
            TrySendError::Full(WriterJob::Between(job))
            | TrySendError::Disconnected(WriterJob::Between(job)) => job,
            // Not reached, because the error contains the job that was sent.
            TrySendError::Full(_) | TrySendError::Disconnected(_) => {
                Box::new(|_: &mut WriteTarget| {})
            }
        })
    }

    /// Notes that the store may have records that other processes have put ([`Store::news`]). The
    /// next batch delivers these records; if no write comes, the writer's thread reads and delivers
    /// the records.
    pub fn deliver_news(&self) {
        if !self.news.swap(true, Ordering::AcqRel) {
            // If the queue is full, the thread is awake and will take another turn.
            let _ = self.jobs.try_send(WriterJob::Wake);
        }
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
    /// needs further steps is answered with an error after its current step. The caller may submit
    /// the write again, and the remaining steps follow.
    pub fn close(&self) {
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            self.closing.store(true, Ordering::Release);
            // The send wakes the thread; an error means that the thread has ended.
            let _ = self.jobs.send(WriterJob::Wake);
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
        // Not reached, because the error contains the write that was sent.
        WriterJob::Between(_) | WriterJob::Wake => WriterBusy(Write::Put(Box::default())),
    }
}

#[cfg(test)]
mod tests;
