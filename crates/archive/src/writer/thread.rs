//! The writer's thread: gathers queued writes into batches, and makes each batch durable.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use hark_codec::record::Record;

use super::counters::WriterCounters;
use super::job::{BetweenBatchesJob, WriteCallback, WriteTarget, WriterJob, WriterOptions};
use crate::store::{CommitError, Outcome, Write};

/// The minimum number of announced writes for which a batch waits. Waiting for fewer writes is not
/// worth the time.
const EXPECTED_MIN: usize = 8;
/// The maximum time that a batch waits for announced writes.
const EXPECTED_WAIT: Duration = Duration::from_millis(2);
/// The interval at which a waiting thread polls its queue. If the thread blocked on the queue, each
/// write would wake the thread.
const LOOK_EVERY: Duration = Duration::from_micros(500);

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
    /// Whether this is the unfinished write whose steps run now. The turn ends with the last step.
    has_turn: bool,
}

impl WriteBatch {
    fn push(&mut self, write: Write, waiting: PendingWrite) {
        self.writes.push(write);
        self.waiting.push(waiting);
    }
}

/// Unfinished writes: some steps are done. The first write runs its next step first.
type UnfinishedWrites = VecDeque<(Write, PendingWrite)>;

/// The input of the writer's thread.
pub(super) struct WriteQueue {
    pub(super) jobs: Receiver<WriterJob>,
    /// Number of announced writes.
    pub(super) expected: Arc<AtomicUsize>,
    pub(super) options: WriterOptions,
}

/// Makes queued writes durable, batch by batch, until the queue ends.
pub(super) fn run(
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
            // The queue's bound also bounds the number of unfinished writes. At the bound, no other
            // write is begun until an unfinished write is done.
            many if many >= queue.options.queue_max => Ok(None),
            _ => match queue.jobs.try_recv() {
                Ok(job) => Ok(Some(job)),
                Err(TryRecvError::Empty) => Ok(None),
                Err(TryRecvError::Disconnected) => Err(()),
            },
        };
        let Ok(first) = first else { break };
        let between = first.and_then(|first| queue.gather(first, &mut batch));
        // Each round runs one step of one unfinished write, so new writes wait for only one step.
        // The same write runs in each round until it is done, because a store remembers the
        // position of a search for only one write.
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
/// Writes that were not begun stay in `batch`. A write of which only one step was done moves to
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
                let rest = (write.remainder(*count), waiting);
                if rest.1.has_turn {
                    unfinished.push_front(rest);
                } else {
                    unfinished.push_back(rest);
                }
            }
        }
        Err(error) => {
            if let CommitError::Stopped(reason) = &error {
                // The reason is set once: the store never starts again by itself, so the first
                // reason counts.
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
    /// Takes queued writes until the batch is full or a job comes. The job is returned, to be run
    /// after the batch.
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

    /// Returns the next job of a batch that began at `began`. Returns `None` once the batch waits
    /// no longer.
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
