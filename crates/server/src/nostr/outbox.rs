//! The outbox of one client: the queue of its messages. Other threads put messages into it and
//! never wait; the session's task takes them off as fast as the client reads.
//!
//! Bytes are counted until they are sent. Above one bound, searches for this client are parked
//! here, and resumed from here; above another, the client is disconnected as too slow. The bytes
//! that wait for all clients together are bounded as well: [`OutboxAccount`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::iter::Sum;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use futures_util::task::AtomicWaker;
use hark_archive::limits::Limits;
use hark_archive::live::NewRecord;
use parking_lot::{Mutex, MutexGuard};

use super::metrics::RelayMetrics;
use super::outboxes::OutboxAccount;
#[cfg(test)]
use super::outboxes::Outboxes;
use super::readers::ReaderJob;
use crate::websocket::{FramedMessages, Framing};

thread_local! {
    /// Sessions to wake at the end of [`together`]. `None` outside of it: each is woken at once.
    static TO_WAKE: RefCell<Option<Vec<Waker>>> = const { RefCell::new(None) };
    /// The outbox of the session that this thread is polling.
    static POLLED: Cell<*const Outbox> = const { Cell::new(std::ptr::null()) };
}

/// While this exists, its thread puts items into the outbox of its session without waking the session,
/// which reads the outbox before it drops this.
pub(crate) struct PolledOutbox(());

impl Drop for PolledOutbox {
    fn drop(&mut self) {
        POLLED.set(std::ptr::null());
    }
}

/// Runs `work`, and wakes sessions only at its end. All that `work` puts into an outbox is then
/// sent in one write instead of one for each part.
pub(crate) fn together<T>(work: impl FnOnce() -> T) -> T {
    /// Wakes the sessions also when `work` panics.
    struct WakeOnDrop;

    impl Drop for WakeOnDrop {
        fn drop(&mut self) {
            let wakers = TO_WAKE.take();
            wakers.into_iter().flatten().for_each(Waker::wake);
        }
    }

    let _end = TO_WAKE.with_borrow_mut(|wakers| {
        wakers.is_none().then(|| {
            *wakers = Some(Vec::new());
            WakeOnDrop
        })
    });
    work()
}

/// Something to send.
pub(crate) enum OutboxItem {
    /// Messages that were asked for.
    Page(FramedMessages),
    /// One message.
    One(Vec<u8>),
    /// A live event: `["EVENT","sub",`, and the bytes that all its subscribers share.
    Live(Arc<[u8]>, NewRecord),
}

impl OutboxItem {
    /// Bytes of the part, with its overhead.
    pub(crate) fn size(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Page(messages) => messages.len(),
                Self::One(bytes) => bytes.len(),
                Self::Live(open, news) => open.len() + news.size(),
            }
    }

    /// The bytes it counts as, for its client and for all clients. The latter exclude the bytes of
    /// a live event, which its subscribers share.
    pub(crate) fn weight(&self) -> OutboxWeight {
        let size = self.size();
        let own = if let Self::Live(..) = self { size_of::<Self>() } else { size };
        OutboxWeight { size, own }
    }
}

/// Bytes that parts count as.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OutboxWeight {
    /// All bytes, counted for the client.
    size: usize,
    /// Those of `size` that are not shared with other clients.
    own: usize,
}

impl OutboxWeight {
    pub(crate) fn add(&mut self, other: Self) {
        (self.size, self.own) = (self.size + other.size, self.own + other.own);
    }

    fn sub(&mut self, other: Self) {
        self.size = self.size.saturating_sub(other.size);
        self.own = self.own.saturating_sub(other.own);
    }
}

impl Sum for OutboxWeight {
    fn sum<I: Iterator<Item = Self>>(weights: I) -> Self {
        weights.fold(Self::default(), |mut sum, weight| {
            sum.add(weight);
            sum
        })
    }
}

/// A flag that a subscription has ended: nothing more is put into the outbox for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndFlag(Arc<AtomicBool>);

impl EndFlag {
    pub(crate) fn is(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Something under way for the client, counted until it is dropped.
pub(crate) struct RequestPermit {
    outbox: Arc<Outbox>,
    what: RequestKind,
}

/// What can be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// An event without an OK.
    Event,
    /// An AUTH without an OK.
    Proof,
    /// A question without its answer.
    Search,
}

pub(crate) struct Outbox {
    queue: Mutex<OutboxQueue>,
    task: AtomicWaker,
    events: AtomicUsize,
    proofs: AtomicUsize,
    searches: AtomicUsize,
    /// Reader time charged to this client's questions, in ns, for fair sharing among clients.
    had_ns: AtomicU64,
    pause_bytes: usize,
    bytes_max: usize,
    framing: Framing,
    account: Arc<OutboxAccount>,
    metrics: Arc<RelayMetrics>,
}

#[derive(Default)]
struct OutboxQueue {
    parts: VecDeque<OutboxItem>,
    /// Weight of the parts, and of those taken but not yet on the socket.
    weight: OutboxWeight,
    /// Bytes that the socket holds and could not send yet.
    unsent: usize,
    parked: Vec<Box<dyn ReaderJob>>,
    slow: bool,
    gone: bool,
}

impl OutboxQueue {
    /// Bytes that wait for the client.
    fn waiting(&self) -> usize {
        self.weight.size + self.unsent
    }

    /// Bytes of this outbox that count against the bound of all clients.
    fn counted(&self) -> usize {
        self.weight.own + self.unsent
    }
}

impl Outbox {
    pub(crate) fn new(
        limits: &Limits,
        framing: Framing,
        account: Arc<OutboxAccount>,
        metrics: Arc<RelayMetrics>,
    ) -> Self {
        Self {
            queue: Mutex::default(),
            task: AtomicWaker::new(),
            events: AtomicUsize::new(0),
            proofs: AtomicUsize::new(0),
            searches: AtomicUsize::new(0),
            had_ns: AtomicU64::new(0),
            pause_bytes: limits.outbox_pause_bytes,
            bytes_max: limits.outbox_bytes_max,
            framing,
            account,
            metrics,
        }
    }

    /// Puts an item into the outbox, and wakes the session.
    pub(crate) fn put(&self, part: OutboxItem) {
        self.lay_locked(self.queue.lock(), part);
        self.wake();
    }

    /// Puts an item into the outbox for a subscription, and wakes the session. Returns false, and
    /// puts nothing, if the subscription is over.
    pub(crate) fn put_for(&self, over: &EndFlag, mut part: OutboxItem) -> bool {
        if let OutboxItem::Page(messages) = &mut part {
            messages.settle(self.is_polled() && self.is_client_up_to_date());
        }
        let laid = self.lay(over, part);
        self.wake();
        laid
    }

    /// Whether the client has taken all that was put.
    fn is_client_up_to_date(&self) -> bool {
        let queue = self.queue.lock();
        queue.unsent == 0 && queue.weight.size == 0
    }

    /// Does the same as [`Outbox::put_for`], but leaves it to the caller to call [`Outbox::wake`].
    pub(crate) fn lay(&self, over: &EndFlag, part: OutboxItem) -> bool {
        let queue = self.queue.lock();
        if over.is() {
            return false;
        }
        self.lay_locked(queue, part);
        true
    }

    /// Wakes the session's task, so that it reads the outbox; within [`together`], at its end.
    pub(crate) fn wake(&self) {
        if self.is_polled() {
            return;
        }
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

    /// Puts one message into the outbox, which `write` appends to a buffer.
    pub(crate) fn say(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::with_capacity(128);
        write(&mut out);
        self.put(OutboxItem::One(out));
    }

    fn lay_locked(&self, mut queue: MutexGuard<'_, OutboxQueue>, part: OutboxItem) {
        if queue.gone || queue.slow {
            return;
        }
        // A page never ends the connection: the client requested it, and it waited for capacity.
        let may_end = !matches!(part, OutboxItem::Page(_));
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

    /// Ends a subscription: nothing more is put into the outbox for it.
    pub(crate) fn end(&self, over: &EndFlag) {
        let _queue = self.queue.lock();
        over.0.store(true, Ordering::Release);
    }

    /// Marks the client as too slow, which ends its session.
    pub(crate) fn give_up(&self) {
        self.queue.lock().slow = true;
        self.wake();
    }

    /// Parks a search while the outbox has no capacity. Returns it if it can run now.
    pub(crate) fn park(&self, job: Box<dyn ReaderJob>) -> Option<Box<dyn ReaderJob>> {
        let mut queue = self.queue.lock();
        if queue.gone || !job.sends_records() {
            return Some(job);
        }
        if queue.weight.size > self.pause_bytes || self.account.is_crowded(queue.waiting()) {
            queue.parked.push(job);
            return None;
        }
        drop(queue);
        self.account.park(job)
    }

    /// Resumes questions that wait for capacity in the outboxes of all clients, if there is some.
    pub(crate) fn look_for_room(&self) {
        self.account.go_on();
    }

    /// Whether this thread is polling the session of this outbox.
    fn is_polled(&self) -> bool {
        std::ptr::eq(POLLED.get(), self)
    }

    /// How messages to the client become frames.
    pub(crate) fn framing(&self) -> &Framing {
        &self.framing
    }

    pub(crate) fn metrics(&self) -> &RelayMetrics {
        &self.metrics
    }

    pub(crate) fn had_ns(&self) -> u64 {
        self.had_ns.load(Ordering::Relaxed)
    }

    /// Sets the reader time charged to this client. If two readers set it at once, the time that
    /// one of them added is lost, which is harmless.
    pub(crate) fn has_had(&self, ns: u64) {
        self.had_ns.store(ns, Ordering::Relaxed);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.queue.lock().gone
    }

    pub(crate) fn permit(self: &Arc<Self>, what: RequestKind) -> RequestPermit {
        self.counter(what).fetch_add(1, Ordering::AcqRel);
        RequestPermit { outbox: Arc::clone(self), what }
    }

    pub(crate) fn under_way(&self, what: RequestKind) -> usize {
        self.counter(what).load(Ordering::Acquire)
    }

    fn counter(&self, what: RequestKind) -> &AtomicUsize {
        match what {
            RequestKind::Event => &self.events,
            RequestKind::Proof => &self.proofs,
            RequestKind::Search => &self.searches,
        }
    }
}

/// The session's end of the outbox.
impl Outbox {
    /// Registers the task to wake when an item is put into the outbox or a permit is dropped.
    pub(crate) fn listen(&self, waker: &Waker) {
        self.task.register(waker);
    }

    /// Notes that this thread polls the session, until the result is dropped. The session must
    /// [take](Self::take) what was put into the outbox before that.
    pub(crate) fn poll(&self) -> PolledOutbox {
        POLLED.set(self);
        PolledOutbox(())
    }

    /// Takes all parts, in order. Returns false if the client is too slow and must be disconnected.
    pub(crate) fn take(&self, into: &mut VecDeque<OutboxItem>) -> bool {
        let mut queue = self.queue.lock();
        if into.is_empty() {
            std::mem::swap(into, &mut queue.parts);
        } else {
            into.append(&mut queue.parts);
        }
        !queue.slow
    }

    /// Records that parts of `weight` were fed to the socket, of whose bytes `unsent` are not sent
    /// yet. Returns the searches that can resume.
    pub(crate) fn sent(&self, weight: OutboxWeight, unsent: usize) -> Vec<Box<dyn ReaderJob>> {
        let mut queue = self.queue.lock();
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

    /// Closes the outbox, as the client is gone: what waits is dropped, and nothing more is
    /// accepted.
    pub(crate) fn hang_up(&self) {
        let mut queue = self.queue.lock();
        queue.gone = true;
        let counted = queue.counted();
        (queue.weight, queue.unsent) = (OutboxWeight::default(), 0);
        let waiting = (std::mem::take(&mut queue.parts), std::mem::take(&mut queue.parked));
        drop(queue);
        // Dropped first, as a live event that clients share is counted until it is dropped.
        drop(waiting);
        self.account.sub(counted);
    }
}

#[cfg(test)]
impl Outbox {
    /// An outbox with accounts of its own.
    pub(crate) fn alone(limits: &Limits) -> Self {
        let metrics = Arc::<RelayMetrics>::default();
        let outboxes = Outboxes::new(Arc::clone(&metrics), Arc::default(), Arc::default());
        Self::new(limits, Framing::default(), Arc::new(outboxes.open(None, limits)), metrics)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.lock().waiting()
    }

    pub(crate) fn account(&self) -> &Arc<OutboxAccount> {
        &self.account
    }
}

impl RequestPermit {
    /// The outbox of the session that holds this permit.
    pub(crate) fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.outbox.counter(self.what).fetch_sub(1, Ordering::AcqRel);
        self.outbox.wake();
    }
}
