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

/// The least number of expected writes for which a batch waits. Fewer are not worth the time.
const EXPECTED_MIN: usize = 8;
/// The longest that a batch waits for expected writes.
const EXPECTED_WAIT: Duration = Duration::from_millis(2);
/// The interval at which a waiting thread polls its queue. A thread that blocked on the queue would
/// be woken by each write.
const LOOK_EVERY: Duration = Duration::from_micros(500);

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
pub(super) struct WriteQueue {
    pub(super) jobs: Receiver<WriterJob>,
    /// Writes that are about to come.
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
        // step. The same write has all rounds until the write is done, because a store keeps the
        // place in a search for only one write.
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
