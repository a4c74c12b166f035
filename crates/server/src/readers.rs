//! The threads that search: a few, for all connections, taking turns between slices, so that a long
//! question delays a short one by a slice and not by its whole length.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

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
    work: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Box<dyn Job>>,
    closed: bool,
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
            queue.jobs.push_back(job);
            self.work.notify_one();
        }
    }

    /// Drops what waits and ends the threads.
    pub(crate) fn close(&self) {
        let mut queue = self.queue();
        queue.closed = true;
        let waiting = std::mem::take(&mut queue.jobs);
        drop(queue);
        drop(waiting);
        self.work.notify_all();
    }

    fn next(&self) -> Option<Box<dyn Job>> {
        let mut queue = self.queue();
        loop {
            if queue.closed {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
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
                self.push(job);
            }
        }
    }
}
