//! The threads that search: a few, for all connections, taking turns between slices, so that a long
//! question delays a short one by a slice and not by its whole length. Those that have just come go
//! before those that were at work already: most are done in one slice.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::bell::Bell;
use crate::line::Line;

/// A question being answered.
pub(crate) trait Job: Send {
    /// Does a slice of the work.
    fn turn(&mut self) -> Turn;

    /// Says that it can not be answered, after a turn that panicked.
    fn fail(&mut self);

    /// Whom the answer is for.
    fn line(&self) -> Arc<Line>;
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// There is more to do.
    More,
    /// The question is answered, or not asked any more.
    Done,
}

/// The queue that the threads work on. It is as long as the connections' bounds on questions let
/// it be.
#[derive(Default)]
pub(crate) struct Readers {
    queue: Mutex<Queue>,
    work: Bell,
}

#[derive(Default)]
struct Queue {
    fresh: VecDeque<Box<dyn Job>>,
    begun: VecDeque<Box<dyn Job>>,
    /// Fresh ones since the last that had begun.
    fresh_in_a_row: u32,
    closed: bool,
}

/// Fresh questions that may go before one that has begun, so that none of those waits for ever.
const FRESH_IN_A_ROW_MAX: u32 = 4;

impl Queue {
    fn next(&mut self) -> Option<Box<dyn Job>> {
        if self.fresh_in_a_row < FRESH_IN_A_ROW_MAX
            && let Some(job) = self.fresh.pop_front()
        {
            self.fresh_in_a_row += 1;
            return Some(job);
        }
        self.fresh_in_a_row = 0;
        self.begun.pop_front().or_else(|| self.fresh.pop_front())
    }
}

impl Readers {
    /// Starts `threads` threads. They end after [`Readers::close`].
    pub(crate) fn start(threads: usize) -> std::io::Result<(Arc<Self>, Vec<JoinHandle<()>>)> {
        let readers = Arc::new(Self::default());
        let spawn = |n| {
            let readers = Arc::clone(&readers);
            let name = format!("hark-read-{n}");
            std::thread::Builder::new().name(name).spawn(move || readers.run())
        };
        let handles = (0..threads.max(1)).map(spawn).collect::<Result<_, _>>()?;
        Ok((readers, handles))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a question.
    pub(crate) fn push(&self, job: Box<dyn Job>) {
        let mut queue = self.queue();
        if !queue.closed {
            queue.fresh.push_back(job);
            self.work.ring(queue);
        }
    }

    /// Queues a question that has had a turn.
    pub(crate) fn go_on(&self, job: Box<dyn Job>) {
        let mut queue = self.queue();
        if !queue.closed {
            queue.begun.push_back(job);
            self.work.ring(queue);
        }
    }

    /// Drops what waits and ends the threads.
    pub(crate) fn close(&self) {
        let mut queue = self.queue();
        queue.closed = true;
        let waiting = (std::mem::take(&mut queue.fresh), std::mem::take(&mut queue.begun));
        drop(queue);
        drop(waiting);
        self.work.ring_for_all();
    }

    fn next(&self) -> Option<Box<dyn Job>> {
        let mut queue = self.queue();
        loop {
            if queue.closed {
                return None;
            }
            if let Some(job) = queue.next() {
                return Some(job);
            }
            queue = self.work.wait(queue);
        }
    }

    fn run(&self) {
        while let Some(mut job) = self.next() {
            // A panic is a bug of ours; it costs one answer, and not the thread that others need.
            match catch_unwind(AssertUnwindSafe(|| job.turn())) {
                Ok(Turn::More) => {}
                Ok(Turn::Done) => continue,
                Err(_) => {
                    job.fail();
                    continue;
                }
            }
            let line = job.line();
            if let Some(job) = line.park(job) {
                self.go_on(job);
            }
        }
    }
}
