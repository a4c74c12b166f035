//! The reader threads: a few threads search for all connections. They work in time slices, so that
//! a long question delays a short one by a slice and not by its whole length.
//!
//! Connections share the threads by time (start-time fair queueing): the next question is one whose
//! connection has had the least time. So a connection with many or expensive questions waits for
//! its own, and a question of a connection that has been quiet is next.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use hark_archive::vital;
use parking_lot::{Condvar, Mutex};

use super::outbox::Outbox;

/// A question being answered.
pub(crate) trait ReaderJob: Send {
    /// Does a time slice of the work.
    fn turn(&mut self) -> SliceResult;

    /// Answers the client with an error, after a time slice that panicked.
    fn fail(&mut self);

    /// The outbox to the client that gets the answer.
    fn outbox(&self) -> Arc<Outbox>;

    /// Whether the job sends anything, and so must wait while its client does not read.
    fn sends_records(&self) -> bool {
        true
    }
}

/// How a time slice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SliceResult {
    /// There is more to do.
    More,
    /// The question is answered, or its client no longer wants the answer.
    Done,
}

/// The queue that the threads work on. Its length is bounded only by the number of questions that
/// each connection may have under way.
#[derive(Default)]
pub(crate) struct Readers {
    queue: Mutex<FairQueue>,
    /// Notified of each arrival, which costs no system call while all threads are at work.
    work: Condvar,
}

#[derive(Default)]
struct FairQueue {
    /// Jobs by their start time in the fair queue (ns), then in order of arrival.
    waiting: BTreeMap<(u64, u64), Box<dyn ReaderJob>>,
    /// The latest start time of a job taken so far.
    reached_ns: u64,
    came: u64,
    closed: bool,
}

/// The time that is charged for a slice before its real duration is known, so that the questions of
/// one connection do not all get the same start time.
const TURN_NS: u64 = 20_000;

impl FairQueue {
    fn push(&mut self, job: Box<dyn ReaderJob>) {
        let outbox = job.outbox();
        // A connection that was quiet does not accumulate credit.
        let starts_ns = outbox.had_ns().max(self.reached_ns);
        outbox.has_had(starts_ns + TURN_NS);
        self.came += 1;
        self.waiting.insert((starts_ns, self.came), job);
    }

    fn next(&mut self) -> Option<Box<dyn ReaderJob>> {
        let ((starts_ns, _), job) = self.waiting.pop_first()?;
        self.reached_ns = self.reached_ns.max(starts_ns);
        Some(job)
    }
}

impl Readers {
    /// Starts `threads` threads. They end after [`Readers::close`].
    pub(crate) fn start(threads: usize) -> std::io::Result<(Arc<Self>, Vec<JoinHandle<()>>)> {
        let readers = Arc::new(Self::default());
        let spawn = |n| {
            let readers = Arc::clone(&readers);
            let name = format!("hark-read-{n}");
            vital::spawn(&name, move || readers.run())
        };
        let handles = (0..threads.max(1)).map(spawn).collect::<Result<_, _>>()?;
        Ok((readers, handles))
    }

    /// Queues a question.
    pub(crate) fn push(&self, job: Box<dyn ReaderJob>) {
        let mut queue = self.queue.lock();
        if !queue.closed {
            queue.push(job);
            drop(queue);
            self.work.notify_one();
        }
    }

    /// Drops the queued jobs and ends the threads.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        drop(waiting);
        self.work.notify_all();
    }

    fn next(&self) -> Option<Box<dyn ReaderJob>> {
        let mut queue = self.queue.lock();
        loop {
            if queue.closed {
                return None;
            }
            if let Some(job) = queue.next() {
                return Some(job);
            }
            self.work.wait(&mut queue);
        }
    }

    fn run(&self) {
        while let Some(job) = self.next() {
            self.work(job);
        }
    }

    /// Runs a question for a time slice, unless its client's outbox has no capacity for the result.
    fn work(&self, job: Box<dyn ReaderJob>) {
        let outbox = job.outbox();
        let Some(mut job) = outbox.park(job) else { return };
        let begun = Instant::now();
        // A panic is a bug of the server. It costs one answer, but not the thread.
        let turn = catch_unwind(AssertUnwindSafe(|| job.turn()));
        let took_ns = begun.elapsed().as_nanos() as u64;
        outbox.has_had(outbox.had_ns() + took_ns.saturating_sub(TURN_NS));
        match turn {
            Ok(SliceResult::More) => self.push(job),
            Ok(SliceResult::Done) => {}
            Err(_) => job.fail(),
        }
    }
}

#[cfg(test)]
mod tests {
    use hark_archive::limits::Limits;

    use super::*;
    use crate::nostr::outbox::OutboxItem;

    /// A question whose answer is one page.
    struct PageQuestion(Arc<Outbox>);

    impl ReaderJob for PageQuestion {
        fn turn(&mut self) -> SliceResult {
            self.0.put(OutboxItem::Page(vec![0; 64 << 10], vec![64 << 10]));
            SliceResult::Done
        }

        fn fail(&mut self) {}

        fn outbox(&self) -> Arc<Outbox> {
            Arc::clone(&self.0)
        }
    }

    /// Questions are short and answers are long: those that have not begun must wait as well.
    #[test]
    fn questions_wait_before_their_first_page_while_the_client_takes_nothing() {
        let limits = Limits::default();
        let outbox = Arc::new(Outbox::alone(&limits));
        let readers = Readers::default();
        for _ in 0..limits.searches_per_connection_max {
            readers.push(Box::new(PageQuestion(Arc::clone(&outbox))));
        }
        let work = || {
            while let Some(job) = { readers.queue.lock().next() } {
                readers.work(job);
            }
        };
        work();
        let page = OutboxItem::Page(vec![0; 64 << 10], vec![64 << 10]).size();
        let (full, mut taken) = (limits.outbox_pause_bytes + page, 0);
        // All questions are answered once the client reads.
        loop {
            assert!(outbox.waiting() <= full, "{} bytes wait", outbox.waiting());
            let mut parts = std::collections::VecDeque::new();
            assert!(outbox.take(&mut parts), "it is not too slow");
            if parts.is_empty() {
                break;
            }
            taken += parts.len();
            outbox
                .sent(parts.iter().map(OutboxItem::weight).sum(), 0)
                .into_iter()
                .for_each(|job| readers.push(job));
            work();
        }
        assert_eq!(taken, limits.searches_per_connection_max);
    }

    /// A question of the given line that takes the given number of time slices.
    struct SlicedQuestion(Arc<Outbox>, u32);

    impl ReaderJob for SlicedQuestion {
        fn turn(&mut self) -> SliceResult {
            self.1 -= 1;
            if self.1 == 0 { SliceResult::Done } else { SliceResult::More }
        }

        fn fail(&mut self) {}

        fn outbox(&self) -> Arc<Outbox> {
            Arc::clone(&self.0)
        }
    }

    fn outbox() -> Arc<Outbox> {
        Arc::new(Outbox::alone(&Limits { outbox_pause_bytes: 1, ..Limits::default() }))
    }

    /// Returns the order in which lines are served, given the duration of each line's slices (ns).
    fn order(queue: &mut FairQueue, outboxes: &[(Arc<Outbox>, u64)]) -> Vec<usize> {
        let mut order = Vec::new();
        while let Some(mut job) = queue.next() {
            let whose = job.outbox();
            let at = outboxes.iter().position(|(outbox, _)| Arc::ptr_eq(outbox, &whose)).unwrap();
            order.push(at);
            whose.has_had(whose.had_ns() + outboxes[at].1 - TURN_NS);
            if job.turn() == SliceResult::More {
                queue.push(job);
            }
        }
        order
    }

    #[test]
    fn one_question_of_a_quiet_connection_does_not_wait_for_many_of_another() {
        let outboxes = [(outbox(), TURN_NS), (outbox(), TURN_NS)];
        let mut queue = FairQueue::default();
        for _ in 0..5 {
            queue.push(Box::new(SlicedQuestion(Arc::clone(&outboxes[0].0), 1)));
        }
        queue.push(Box::new(SlicedQuestion(Arc::clone(&outboxes[1].0), 1)));
        assert_eq!(order(&mut queue, &outboxes), [0, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn what_takes_long_waits_for_what_does_not_and_gets_its_share() {
        let outboxes = [(outbox(), 4 * TURN_NS), (outbox(), TURN_NS)];
        let mut queue = FairQueue::default();
        queue.push(Box::new(SlicedQuestion(Arc::clone(&outboxes[0].0), 3)));
        for _ in 0..9 {
            queue.push(Box::new(SlicedQuestion(Arc::clone(&outboxes[1].0), 1)));
        }
        assert_eq!(order(&mut queue, &outboxes), [0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0]);
    }

    #[test]
    fn who_was_quiet_has_saved_nothing_up() {
        let outboxes = [(outbox(), TURN_NS), (outbox(), TURN_NS)];
        let mut queue = FairQueue::default();
        queue.push(Box::new(SlicedQuestion(Arc::clone(&outboxes[0].0), 50)));
        assert_eq!(order(&mut queue, &outboxes), [0; 50]);
        for _ in 0..2 {
            queue.push(Box::new(SlicedQuestion(Arc::clone(&outboxes[1].0), 1)));
            queue.push(Box::new(SlicedQuestion(Arc::clone(&outboxes[0].0), 1)));
        }
        let order = order(&mut queue, &outboxes);
        assert_eq!(order.iter().filter(|at| **at == 1).count(), 2);
        assert_ne!(order[..2], [1, 1]);
    }
}
