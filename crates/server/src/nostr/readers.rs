//! The reader threads: a few threads search for all connections. They work in time slices, so that
//! a long question delays a short one by a slice and not by its whole length.
//!
//! Connections share the threads by time (start-time fair queueing): the next question comes from
//! the connection that has used the least time. So a connection with many or expensive questions
//! delays only its own questions, and a question of a quiet connection comes first.
//!
//! Most questions take less time than waking another thread twice. So the thread that has read a
//! question starts the answer ([`Readers::begin`]) if no other question is ahead, and the reader
//! threads continue an answer that takes longer. A slow start shows that the disk is slow. For some
//! time afterwards, all questions start on the reader threads.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hark_archive::vital;
use parking_lot::{Condvar, Mutex};

use super::outbox::Outbox;
use crate::page_faults::has_waited_for_disk;
use crate::service::StoreLocation;

/// A question being answered.
pub(crate) trait ReaderJob: Send {
    /// Works for one time slice, in which it visits about `rows_max` rows at most.
    fn turn(&mut self, rows_max: u64) -> SliceResult;

    /// Answers the client with an error, after a time slice that panicked.
    fn fail(&mut self);

    /// The outbox to the client that gets the answer.
    fn outbox(&self) -> Arc<Outbox>;

    /// Whether the job sends anything, and so must wait while its client does not read.
    fn sends_records(&self) -> bool {
        true
    }

    /// Drops the view of the archive that the job holds, if the job has held the view for a long
    /// time. Called while the job waits for its client to read.
    fn drop_old_view(&mut self) {}
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
pub(crate) struct Readers {
    queue: Mutex<FairQueue>,
    /// Notified of each arrival. A notification costs no system call while no thread waits.
    work: Condvar,
    /// Whether searches run in this process, so that a searching thread does not wait for another
    /// process.
    is_local: bool,
    started: Instant,
    /// The disk is considered slow until this time, in ns since `started`. Until then all questions
    /// start on the reader threads.
    slow_until_ns: AtomicU64,
}

#[derive(Default)]
struct FairQueue {
    /// Jobs by their start time in the fair queue (ns), then in order of arrival.
    waiting: BTreeMap<(u64, u64), Box<dyn ReaderJob>>,
    /// The latest start time of all jobs taken so far.
    reached_ns: u64,
    came: u64,
    closed: bool,
}

/// The minimum charge for a slice, in ns. It is charged as soon as a question is queued or begins.
/// Otherwise all waiting questions of a connection would have the same place in the fair order.
const TURN_NS: u64 = 20_000;

/// Number of rows of a time slice on the thread that has read the question.
const BEGIN_ROWS: u64 = 4_096;
/// A slice of [`BEGIN_ROWS`] rows that takes this long has waited for the disk, or was interrupted.
const SLOW: Duration = Duration::from_millis(2);
/// After a slow slice, all questions start on the reader threads for this multiple of the slice's
/// duration.
const SLOW_PAUSE: u32 = 50;

impl FairQueue {
    /// The start time of a question of this connection. A quiet connection gathers no credit: its
    /// start time is never before `reached_ns`.
    fn starts_ns(&self, outbox: &Outbox) -> u64 {
        outbox.had_ns().max(self.reached_ns)
    }

    fn push(&mut self, job: Box<dyn ReaderJob>) {
        let outbox = job.outbox();
        let starts_ns = self.starts_ns(&outbox);
        outbox.has_had(starts_ns + TURN_NS);
        self.came += 1;
        self.waiting.insert((starts_ns, self.came), job);
    }

    fn next(&mut self) -> Option<Box<dyn ReaderJob>> {
        let ((starts_ns, _), job) = self.waiting.pop_first()?;
        self.reached_ns = self.reached_ns.max(starts_ns);
        Some(job)
    }

    /// Charges the connection for a slice and returns true, unless a waiting question of another
    /// connection goes first.
    fn go_first(&mut self, outbox: &Outbox) -> bool {
        let starts_ns = self.starts_ns(outbox);
        if self.closed
            || self
                .waiting
                .first_key_value()
                .is_some_and(|(&(first_ns, _), _)| first_ns < starts_ns)
        {
            return false;
        }
        self.reached_ns = starts_ns;
        outbox.has_had(starts_ns + TURN_NS);
        true
    }
}

impl Readers {
    fn new(store_at: StoreLocation) -> Self {
        Self {
            queue: Mutex::default(),
            work: Condvar::new(),
            is_local: store_at == StoreLocation::Process,
            started: Instant::now(),
            slow_until_ns: AtomicU64::new(0),
        }
    }

    /// Starts `threads` threads. They end after [`Readers::close`].
    pub(crate) fn start(
        threads: usize,
        store_at: StoreLocation,
    ) -> std::io::Result<(Arc<Self>, Vec<JoinHandle<()>>)> {
        let readers = Arc::new(Self::new(store_at));
        let spawn = |n| {
            let readers = Arc::clone(&readers);
            let name = format!("hark-read-{n}");
            vital::spawn(&name, move || readers.run())
        };
        let handles = (0..threads.max(1)).map(spawn).collect::<Result<_, _>>()?;
        Ok((readers, handles))
    }

    /// Whether searches run in this process.
    pub(crate) fn is_local(&self) -> bool {
        self.is_local
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

    /// Works on a question for a time slice on this thread, or queues the question. The caller must
    /// be polling the session of the question's client. Returns the duration of the slice, and the
    /// question if it is not answered yet and this thread may continue.
    pub(crate) fn begin(&self, job: Box<dyn ReaderJob>) -> (Option<Box<dyn ReaderJob>>, Duration) {
        let begun = Instant::now();
        let since_start = begun.duration_since(self.started).as_nanos() as u64;
        let is_slow = since_start < self.slow_until_ns.load(Ordering::Relaxed);
        let outbox = job.outbox();
        if !self.is_local || is_slow || !self.queue.lock().go_first(&outbox) {
            self.push(job);
            return (None, Duration::ZERO);
        }
        let Some(job) = outbox.park(job) else { return (None, Duration::ZERO) };
        let (job, took) = Self::slice(job, &outbox, BEGIN_ROWS, begun);
        if took >= SLOW && has_waited_for_disk() {
            let pause = (took * SLOW_PAUSE).as_nanos() as u64;
            self.slow_until_ns.fetch_max(since_start + pause, Ordering::Relaxed);
        }
        (job, took)
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
        let Some(job) = outbox.park(job) else { return };
        if let (Some(job), _) = Self::slice(job, &outbox, u64::MAX, Instant::now()) {
            self.push(job);
        }
    }

    /// Works on a question for a time slice, for which [`TURN_NS`] is charged already. Returns the
    /// duration of the slice, and the question if it is not answered yet.
    fn slice(
        mut job: Box<dyn ReaderJob>,
        outbox: &Outbox,
        rows_max: u64,
        begun: Instant,
    ) -> (Option<Box<dyn ReaderJob>>, Duration) {
        // A panic is a bug of the server. The client loses this answer, but the thread continues.
        let turn = catch_unwind(AssertUnwindSafe(|| job.turn(rows_max)));
        let took = begun.elapsed();
        outbox.has_had(outbox.had_ns() + (took.as_nanos() as u64).saturating_sub(TURN_NS));
        match turn {
            Ok(SliceResult::More) => return (Some(job), took),
            Ok(SliceResult::Done) => {}
            Err(_) => job.fail(),
        }
        (None, took)
    }
}

#[cfg(test)]
impl Default for Readers {
    fn default() -> Self {
        Self::new(StoreLocation::Process)
    }
}

#[cfg(test)]
mod tests {
    use crate::limits::Limits;

    use super::*;
    use crate::nostr::outbox_item::OutboxItem;
    use crate::websocket::FramedMessages;

    /// A question whose answer is one page.
    struct PageQuestion(Arc<Outbox>);

    impl ReaderJob for PageQuestion {
        fn turn(&mut self, _: u64) -> SliceResult {
            self.0.put(OutboxItem::Page(FramedMessages::of_len(64 << 10)));
            SliceResult::Done
        }

        fn fail(&mut self) {}

        fn outbox(&self) -> Arc<Outbox> {
            Arc::clone(&self.0)
        }
    }

    /// A question waits while its client has too many unread bytes, even before the first page of
    /// its answer: a short question can have a long answer.
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
        let page = OutboxItem::Page(FramedMessages::of_len(64 << 10)).size();
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

    /// A question of the connection with this outbox. The question takes this number of time
    /// slices.
    struct SlicedQuestion(Arc<Outbox>, u32);

    impl ReaderJob for SlicedQuestion {
        fn turn(&mut self, _: u64) -> SliceResult {
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

    /// Returns the order in which connections are served. `outboxes` has the outbox of each
    /// connection, and the duration of its slices in nanoseconds.
    fn order(queue: &mut FairQueue, outboxes: &[(Arc<Outbox>, u64)]) -> Vec<usize> {
        let mut order = Vec::new();
        while let Some(mut job) = queue.next() {
            let whose = job.outbox();
            let at = outboxes.iter().position(|(outbox, _)| Arc::ptr_eq(outbox, &whose)).unwrap();
            order.push(at);
            whose.has_had(whose.had_ns() + outboxes[at].1 - TURN_NS);
            if job.turn(u64::MAX) == SliceResult::More {
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

    fn waiting(readers: &Readers) -> usize {
        readers.queue.lock().waiting.len()
    }

    #[test]
    fn a_question_is_answered_where_it_was_read_if_no_other_is_before_it() {
        let (readers, [one, two]) = (Readers::default(), [outbox(), outbox()]);
        let ask = |outbox: &Arc<Outbox>, slices| {
            readers.begin(Box::new(SlicedQuestion(Arc::clone(outbox), slices))).0
        };
        assert!(ask(&one, 1).is_none() && waiting(&readers) == 0, "it is answered");
        let unfinished = ask(&two, 2).expect("this thread may go on with it");
        assert!(waiting(&readers) == 0);
        readers.push(unfinished);
        assert!(ask(&two, 1).is_none() && waiting(&readers) == 2, "its first is before it");
        one.has_had(two.had_ns() + 1);
        assert!(ask(&one, 1).is_none() && waiting(&readers) == 3, "it has had more than the other");
        let quiet = outbox();
        assert!(ask(&quiet, 1).is_none() && waiting(&readers) == 3, "it goes first");
    }

    #[test]
    fn a_database_and_a_slow_disk_are_left_to_the_readers() {
        let question = || Box::new(SlicedQuestion(outbox(), 1));
        let far = Readers::new(StoreLocation::Machine(4));
        assert!(far.begin(question()).0.is_none() && waiting(&far) == 1);

        let near = Readers::default();
        near.slow_until_ns.store(u64::MAX, Ordering::Relaxed);
        assert!(near.begin(question()).0.is_none() && waiting(&near) == 1, "the disk is slow");
        near.slow_until_ns.store(0, Ordering::Relaxed);
        near.queue.lock().waiting.clear();
        assert!(near.begin(question()).0.is_none() && waiting(&near) == 0, "and again quick");
    }
}
