//! The writer's thread: gathers queued writes into batches, makes each batch durable, and delivers
//! the records of other processes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use hark_codec::record::Record;

use super::counters::WriterCounters;
use super::job::{BetweenBatchesJob, WriteCallback, WriteTarget, WriterJob, WriterOptions};
use crate::limits::NEWS_STEP;
use crate::store::{CommitError, Outcome, Store, Write};

/// The minimum number of announced writes for which a batch waits. Waiting for fewer writes is not
/// worth the time.
const EXPECTED_MIN: usize = 8;
/// The maximum time that a batch waits for announced writes.
const EXPECTED_WAIT: Duration = Duration::from_millis(2);
/// The interval at which a waiting thread polls its queue. If the thread blocked on the queue, each
/// write would wake the thread.
const LOOK_EVERY: Duration = Duration::from_micros(500);

/// If a commit fails only after this time, the writes that were queued meanwhile fail, too.
/// Otherwise their senders would wait as long again, since the next commit is likely to be as slow.
const LATE: Duration = Duration::from_secs(1);

/// Writes to make durable, with their callbacks.
#[derive(Default)]
struct WriteBatch {
    writes: Vec<Write>,
    waiting: Vec<PendingWrite>,
}

struct PendingWrite {
    done: WriteCallback,
    /// Number of records that the steps of the write have deleted so far.
    erased: u64,
    /// Whether this is the unfinished write whose steps run now. It stays first in `unfinished`
    /// until its last step.
    has_turn: bool,
}

impl WriteBatch {
    fn push(&mut self, write: Write, waiting: PendingWrite) {
        self.writes.push(write);
        self.waiting.push(waiting);
    }
}

/// Unfinished writes, of which only some steps are done. The next step to run is a step of the
/// first of these writes.
type UnfinishedWrites = VecDeque<(Write, PendingWrite)>;

/// The input of the writer's thread.
pub(super) struct WriteQueue {
    pub(super) jobs: Receiver<WriterJob>,
    /// Whether the store may have news.
    pub(super) news: Arc<AtomicBool>,
    /// Whether the thread ends once the queue is empty.
    pub(super) closing: Arc<AtomicBool>,
    /// Number of announced writes.
    pub(super) expected: Arc<AtomicUsize>,
    pub(super) options: WriterOptions,
}

/// The state of the writer's thread.
pub(super) struct WriterThread {
    store: Arc<dyn Store>,
    target: WriteTarget,
    queue: WriteQueue,
    counters: Arc<WriterCounters>,
    now: Box<dyn Fn() -> Instant + Send>,
    batch: WriteBatch,
    unfinished: UnfinishedWrites,
    /// A job, not a write, that was received while queued writes were refused. It runs next.
    held: Option<WriterJob>,
    /// Whether a commit of this turn failed after [`LATE`].
    was_late: bool,
}

impl WriterThread {
    pub(super) fn new(
        store: Arc<dyn Store>,
        target: WriteTarget,
        queue: WriteQueue,
        counters: Arc<WriterCounters>,
        now: Box<dyn Fn() -> Instant + Send>,
    ) -> Self {
        let (batch, unfinished) = (WriteBatch::default(), UnfinishedWrites::new());
        Self { store, target, queue, counters, now, batch, unfinished, held: None, was_late: false }
    }

    /// Makes queued writes durable, batch by batch, until the queue ends.
    pub(super) fn run(mut self) {
        while let Ok(first) = self.next_job() {
            self.turn(first);
        }
        for (_, waiting) in self.unfinished {
            let words = "the write was stopped before its last step; send it again";
            (waiting.done)(Err(Arc::new(CommitError::Unavailable(words.into()))));
        }
    }

    /// Returns the next job, or `None` if other work is due. If there is no job and no other work,
    /// waits for a job. Returns an error if no job can follow.
    fn next_job(&mut self) -> Result<Option<WriterJob>, ()> {
        if let Some(held) = self.held.take() {
            return Ok(Some(held));
        }
        let WriteQueue { jobs, options, .. } = &self.queue;
        if self.queue.closing.load(Ordering::Acquire) {
            return jobs.try_recv().map(Some).map_err(|_| ());
        }
        // The queue's bound also bounds the number of unfinished writes. At the bound, no other
        // write is begun until an unfinished write is done.
        if self.unfinished.len() >= options.queue_max.max(1) {
            return Ok(None);
        }
        if !self.unfinished.is_empty() || self.queue.news.load(Ordering::Acquire) {
            return match jobs.try_recv() {
                Ok(job) => Ok(Some(job)),
                Err(TryRecvError::Empty) => Ok(None),
                Err(TryRecvError::Disconnected) => Err(()),
            };
        }
        let probe_in = self.counters.health().probe_in((self.now)());
        match probe_in {
            None => jobs.recv().map(Some).map_err(|_| ()),
            Some(wait) => match jobs.recv_timeout(wait) {
                Ok(job) => Ok(Some(job)),
                Err(RecvTimeoutError::Timeout) => Ok(None),
                Err(RecvTimeoutError::Disconnected) => Err(()),
            },
        }
    }

    /// Commits a batch that begins with this job, and delivers news.
    pub(super) fn turn(&mut self, first: Option<WriterJob>) {
        let between = first.and_then(|first| self.queue.gather(first, &mut self.batch));
        // Each round runs one step of one unfinished write, so new writes wait for only one step.
        // The same write runs in each round until it is done, because a store keeps the search
        // position of only one write.
        if let Some((write, mut waiting)) = self.unfinished.pop_front() {
            waiting.has_turn = true;
            self.batch.push(write, waiting);
        }
        // The flag is cleared first: a notice that comes from now on may concern a record that no
        // commit of this turn reports.
        let mut has_news = self.queue.news.swap(false, Ordering::AcqRel);
        if self.batch.writes.is_empty() && self.counters.health().begin_probe((self.now)()) {
            has_news &= !self.commit();
        }
        while !self.batch.writes.is_empty() {
            has_news &= !self.commit();
        }
        if self.was_late {
            // Reading the news now would probably take as long as the late commit. The flag makes
            // the thread read the news in its next turn without writes.
            self.was_late = false;
            if has_news {
                self.queue.news.store(true, Ordering::Release);
            }
        } else if has_news {
            self.deliver_news();
        }
        if let Some(between) = between {
            between(&mut self.target);
        }
    }

    /// Runs turns until there is nothing to do, without waiting.
    #[cfg(test)]
    pub(super) fn work(&mut self) {
        loop {
            let held = self.held.take();
            let job = held.or_else(|| self.queue.jobs.try_recv().ok());
            let probe_in = self.counters.health().probe_in((self.now)());
            let is_idle = self.unfinished.is_empty()
                && !self.queue.news.load(Ordering::Acquire)
                && probe_in != Some(Duration::ZERO);
            if job.is_none() && is_idle {
                return;
            }
            self.turn(job);
        }
    }

    /// Passes to the listener some of the records that other processes have put.
    fn deliver_news(&mut self) {
        let news = self.store.news();
        if news.len() >= NEWS_STEP {
            self.queue.news.store(true, Ordering::Release);
        }
        if !news.is_empty() {
            let records = news.iter().map(|(seq, bytes)| (*seq, Record::new(bytes)));
            let mut records = records.filter_map(|(seq, record)| Some((seq, record.ok()?)));
            self.target.listener.batch(&mut records, &mut || {});
        }
    }

    /// Answers all queued writes with an error, up to the first job that is not a write.
    fn refuse_queued(&mut self, error: &Arc<CommitError>) {
        for _ in 0..self.queue.options.queue_max {
            let Ok(job) = self.queue.jobs.try_recv() else { return };
            match job {
                WriterJob::Write(_, done) => done(Err(Arc::clone(error))),
                WriterJob::Wake => {}
                WriterJob::Between(_) => {
                    self.held = Some(job);
                    return;
                }
            }
        }
    }

    /// Makes the batch or its first writes durable, notifies the listener and then answers the
    /// senders. Writes that were not begun stay in the batch. A write of which only one step was
    /// done moves to `unfinished`. An empty batch tests whether writes would succeed. Returns
    /// whether the commit succeeded.
    fn commit(&mut self) -> bool {
        let Self { target, batch, unfinished, counters, now, .. } = self;
        let WriteBatch { writes, waiting } = batch;
        let is_probe = writes.is_empty();
        let (started, began) = (Instant::now(), now());
        counters.committing(Some(started));
        let result = match (target.commit)(writes) {
            Ok(committed) if committed.outcomes.is_empty() && !is_probe => {
                Err(CommitError::nothing_done())
            }
            result => result,
        };
        counters.committing(None);
        let committed = match result {
            Ok(committed) => committed,
            Err(error) => {
                if let CommitError::Stopped(reason) = &error {
                    // Only the first reason is kept: a store that has stopped stays stopped.
                    let _ = counters.stopped.set(reason.clone());
                    counters.health().reset();
                }
                let ended = now();
                let mut is_late = false;
                if let CommitError::Unavailable(reason) = &error {
                    counters.health().failed(reason.clone(), ended);
                    is_late = ended.saturating_duration_since(began) >= LATE;
                }
                let error = Arc::new(error);
                for waiting in waiting.drain(..) {
                    (waiting.done)(Err(Arc::clone(&error)));
                }
                writes.clear();
                if is_late {
                    self.was_late = true;
                    self.refuse_queued(&error);
                }
                return false;
            }
        };
        if is_probe {
            counters.health().note_probe();
        } else {
            counters.health().reset();
            counters.batches.note(started.elapsed());
        }
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
            let rest = (write.remainder(*count), waiting);
            if rest.1.has_turn {
                unfinished.push_front(rest);
            } else {
                unfinished.push_back(rest);
            }
        }
        true
    }
}

impl WriteQueue {
    /// Receives queued writes until the batch is full or the next job is not a write. Such a job is
    /// returned, and the caller runs it after the batch.
    fn gather(&self, first: WriterJob, batch: &mut WriteBatch) -> Option<BetweenBatchesJob> {
        let began = Instant::now();
        let mut bytes = 0;
        let mut next = Some(first);
        while let Some(job) = next.take() {
            match job {
                WriterJob::Write(write, done) => {
                    bytes += if let Write::Put(record) = &write { record.len() } else { 0 };
                    batch.push(write, PendingWrite { done, erased: 0, has_turn: false });
                    if batch.writes.len() >= self.options.batch_writes_max
                        || bytes >= self.options.batch_bytes_max
                    {
                        return None;
                    }
                }
                WriterJob::Between(between) => return Some(between),
                WriterJob::Wake => {}
            }
            // Only a batch that has begun waits for further writes.
            let has_begun = !batch.writes.is_empty();
            next = if has_begun { self.next(began) } else { self.jobs.try_recv().ok() };
        }
        None
    }

    /// Returns the next job of a batch that began at `began`. Returns `None` if the batch should
    /// wait no longer.
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
