//! The line to one client: what other threads hold of a session. They put messages here and never
//! wait; the session's task takes them out as fast as the client does.
//!
//! Bytes are counted until they are sent. Above one bound searches for this client rest (they are parked
//! here, and woken from here), above another the client is given up as too slow. What all clients have to
//! take together is bounded as well: [`Account`].

use std::cell::RefCell;
use std::collections::VecDeque;
use std::iter::Sum;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use futures_util::task::AtomicWaker;
use hark_archive::limits::Limits;
use hark_archive::live::News;

use super::metrics::Metrics;
use super::outboxes::Account;
#[cfg(test)]
use super::outboxes::Outboxes;
use super::readers::Job;

thread_local! {
    /// Sessions to be woken at the end of what this thread is at; none if each is woken at once.
    static TO_WAKE: RefCell<Option<Vec<Waker>>> = const { RefCell::new(None) };
}

/// Wakes sessions only at the end of `work`. What it puts on a line in several pieces goes out in one
/// write then, and not in one for each.
pub(crate) fn together<T>(work: impl FnOnce() -> T) -> T {
    /// Wakes them also when `work` panics.
    struct End;

    impl Drop for End {
        fn drop(&mut self) {
            let wakers = TO_WAKE.take();
            wakers.into_iter().flatten().for_each(Waker::wake);
        }
    }

    let _end = TO_WAKE.with_borrow_mut(|wakers| {
        wakers.is_none().then(|| {
            *wakers = Some(Vec::new());
            End
        })
    });
    work()
}

/// Something to send.
pub(crate) enum Part {
    /// Many messages, one behind the other; where each ends.
    Page(Vec<u8>, Vec<u32>),
    /// One message.
    One(Vec<u8>),
    /// A live event: `["EVENT","sub",`, and the bytes that all its subscribers share.
    Live(Arc<[u8]>, News),
}

impl Part {
    /// Bytes that it is counted with.
    pub(crate) fn size(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Page(bytes, ends) => bytes.len() + ends.len() * 4,
                Self::One(bytes) => bytes.len(),
                Self::Live(open, news) => open.len() + news.size(),
            }
    }

    /// What it counts with: for its client, and for all of them, who share what they hear of.
    pub(crate) fn weight(&self) -> Weight {
        let size = self.size();
        let own = if let Self::Live(..) = self { size_of::<Self>() } else { size };
        Weight { size, own }
    }
}

/// Bytes that parts count with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weight {
    /// For the client.
    size: usize,
    /// Of these, what nobody else has in memory as well.
    own: usize,
}

impl Weight {
    pub(crate) fn add(&mut self, other: Self) {
        (self.size, self.own) = (self.size + other.size, self.own + other.own);
    }

    fn sub(&mut self, other: Self) {
        self.size = self.size.saturating_sub(other.size);
        self.own = self.own.saturating_sub(other.own);
    }
}

impl Sum for Weight {
    fn sum<I: Iterator<Item = Self>>(weights: I) -> Self {
        weights.fold(Self::default(), |mut sum, weight| {
            sum.add(weight);
            sum
        })
    }
}

/// Says that what is put on the line for it is not wanted any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Over(Arc<AtomicBool>);

impl Over {
    pub(crate) fn is(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Something under way for the client, counted until it is dropped.
pub(crate) struct Ticket {
    line: Arc<Line>,
    what: What,
}

/// What can be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// An event without an OK.
    Event,
    /// An AUTH without an OK.
    Proof,
    /// A question without its answer.
    Search,
}

pub(crate) struct Line {
    queue: Mutex<Queue>,
    task: AtomicWaker,
    events: AtomicUsize,
    proofs: AtomicUsize,
    searches: AtomicUsize,
    /// Time of the readers that its questions have had, as they share it.
    had_ns: AtomicU64,
    pause_bytes: usize,
    bytes_max: usize,
    account: Arc<Account>,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Queue {
    parts: VecDeque<Part>,
    /// Of the parts, and of those taken but not on the socket.
    weight: Weight,
    /// Bytes that the socket has and could not send.
    unsent: usize,
    parked: Vec<Box<dyn Job>>,
    slow: bool,
    gone: bool,
}

impl Queue {
    /// Bytes that wait for the client.
    fn waiting(&self) -> usize {
        self.weight.size + self.unsent
    }

    /// Bytes that they count with among those of all.
    fn counted(&self) -> usize {
        self.weight.own + self.unsent
    }
}

impl Line {
    pub(crate) fn new(limits: &Limits, account: Arc<Account>, metrics: Arc<Metrics>) -> Self {
        Self {
            queue: Mutex::default(),
            task: AtomicWaker::new(),
            events: AtomicUsize::new(0),
            proofs: AtomicUsize::new(0),
            searches: AtomicUsize::new(0),
            had_ns: AtomicU64::new(0),
            pause_bytes: limits.outbox_pause_bytes,
            bytes_max: limits.outbox_bytes_max,
            account,
            metrics,
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts something on the line.
    pub(crate) fn put(&self, part: Part) {
        self.lay_locked(self.queue(), part);
        self.wake();
    }

    /// Puts something on the line for a subscription, unless that is over. Says whether it was not.
    pub(crate) fn put_for(&self, over: &Over, part: Part) -> bool {
        let laid = self.lay(over, part);
        self.wake();
        laid
    }

    /// The same, but [`Line::wake`] is still to come.
    pub(crate) fn lay(&self, over: &Over, part: Part) -> bool {
        let queue = self.queue();
        if over.is() {
            return false;
        }
        self.lay_locked(queue, part);
        true
    }

    /// Has the session look at the line.
    pub(crate) fn wake(&self) {
        let Some(waker) = self.task.take() else { return };
        let now = TO_WAKE.with_borrow_mut(|wakers| match wakers {
            Some(wakers) => {
                wakers.push(waker);
                None
            }
            None => Some(waker),
        });
        if let Some(waker) = now {
            waker.wake();
        }
    }

    /// One message that `write` appends to a buffer.
    pub(crate) fn say(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::with_capacity(128);
        write(&mut out);
        self.put(Part::One(out));
    }

    fn lay_locked(&self, mut queue: MutexGuard<'_, Queue>, part: Part) {
        if queue.gone || queue.slow {
            return;
        }
        // Pages were asked for, and waited until there was room.
        let may_end = !matches!(part, Part::Page(..));
        let (had, weight) = (queue.waiting(), part.weight());
        queue.weight.add(weight);
        self.account.add(weight.own);
        queue.parts.push_back(part);
        if queue.weight.size > self.bytes_max
            || may_end && had > 0 && self.account.is_above_share(had)
        {
            queue.slow = true;
        }
    }

    /// From here on nothing comes for it any more.
    pub(crate) fn end(&self, over: &Over) {
        let _queue = self.queue();
        over.0.store(true, Ordering::Release);
    }

    /// Gives the client up.
    pub(crate) fn give_up(&self) {
        self.queue().slow = true;
        self.wake();
    }

    /// Lays a search to rest until there is room; gives it back if there is some.
    pub(crate) fn park(&self, job: Box<dyn Job>) -> Option<Box<dyn Job>> {
        let mut queue = self.queue();
        if queue.gone || !job.tells() {
            return Some(job);
        }
        if queue.weight.size > self.pause_bytes || self.account.is_crowded(queue.waiting()) {
            queue.parked.push(job);
            return None;
        }
        drop(queue);
        self.account.park(job)
    }

    /// Lets questions go on that wait for room among all, if there is some.
    pub(crate) fn look_for_room(&self) {
        self.account.go_on();
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn had_ns(&self) -> u64 {
        self.had_ns.load(Ordering::Relaxed)
    }

    /// Two readers that set it at a time lose what one of them has counted, which harms nobody.
    pub(crate) fn has_had(&self, ns: u64) {
        self.had_ns.store(ns, Ordering::Relaxed);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.queue().gone
    }

    pub(crate) fn ticket(self: &Arc<Self>, what: What) -> Ticket {
        self.counter(what).fetch_add(1, Ordering::AcqRel);
        Ticket { line: Arc::clone(self), what }
    }

    pub(crate) fn under_way(&self, what: What) -> usize {
        self.counter(what).load(Ordering::Acquire)
    }

    fn counter(&self, what: What) -> &AtomicUsize {
        match what {
            What::Event => &self.events,
            What::Proof => &self.proofs,
            What::Search => &self.searches,
        }
    }
}

/// The session's end of the line.
impl Line {
    /// Wakes this task when something comes or is done.
    pub(crate) fn listen(&self, waker: &Waker) {
        self.task.register(waker);
    }

    /// Takes everything, in order. False if the client has to be given up.
    pub(crate) fn take(&self, into: &mut VecDeque<Part>) -> bool {
        let mut queue = self.queue();
        if into.is_empty() {
            std::mem::swap(into, &mut queue.parts);
        } else {
            into.append(&mut queue.parts);
        }
        !queue.slow
    }

    /// So much is on the socket, which could not send `unsent` bytes. Returns searches that can go on.
    pub(crate) fn sent(&self, weight: Weight, unsent: usize) -> Vec<Box<dyn Job>> {
        let mut queue = self.queue();
        let before = queue.counted();
        queue.weight.sub(weight);
        queue.unsent = unsent;
        let after = queue.counted();
        let parked = if queue.weight.size <= self.pause_bytes / 2 {
            std::mem::take(&mut queue.parked)
        } else {
            Vec::new()
        };
        drop(queue);
        if after > before {
            self.account.add(after - before);
        } else {
            self.account.sub(before - after);
        }
        parked
    }

    /// The client is gone: nothing more is taken, what waits is dropped.
    pub(crate) fn hang_up(&self) {
        let mut queue = self.queue();
        queue.gone = true;
        let counted = queue.counted();
        (queue.weight, queue.unsent) = (Weight::default(), 0);
        let waiting = (std::mem::take(&mut queue.parts), std::mem::take(&mut queue.parked));
        drop(queue);
        // First, as what others hear of as well is counted until it is dropped.
        drop(waiting);
        self.account.sub(counted);
    }
}

#[cfg(test)]
impl Line {
    /// The only line there is.
    pub(crate) fn alone(limits: &Limits) -> Self {
        let metrics = Arc::<Metrics>::default();
        let outboxes = Outboxes::new(Arc::clone(&metrics), Arc::default(), Arc::default());
        Self::new(limits, Arc::new(outboxes.open(None, limits)), metrics)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue().waiting()
    }

    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }
}

impl Ticket {
    /// Whose it is.
    pub(crate) fn line(&self) -> &Arc<Line> {
        &self.line
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.line.counter(self.what).fetch_sub(1, Ordering::AcqRel);
        self.line.wake();
    }
}
