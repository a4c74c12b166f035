//! The outbox of one client: the queue of messages to send. Other threads append messages and never
//! wait. The session's task removes messages as fast as the client reads.
//!
//! Bytes are counted until they are sent. Above `outbox_pause_bytes`, the searches for this client
//! are parked here, and resumed once the client has read enough. Above `outbox_bytes_max`, the
//! client is disconnected as too slow. The bytes that wait for all clients together are bounded as
//! well (see [`OutboxAccount`]).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use futures_util::task::AtomicWaker;
use hark_archive::live::NewRecord;
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;

use super::metrics::RelayMetrics;
use super::outbox_item::{LiveDelivery, OutboxItem, OutboxWeight};
use super::outboxes::OutboxAccount;
#[cfg(test)]
use super::outboxes::Outboxes;
use super::readers::ReaderJob;
use crate::limits::Limits;
use crate::websocket::Framing;

/// Once this many sessions wait to be woken, they are woken before the end of [`together`], so that
/// they send their messages while the work continues.
const WOKEN_AT_ONCE: usize = 8;

thread_local! {
    /// Sessions to wake at the end of [`together`]. `None` outside of [`together`]: each session is
    /// then woken at once.
    static TO_WAKE: RefCell<Option<Vec<Waker>>> = const { RefCell::new(None) };
    /// The outbox of the session that this thread is polling.
    static POLLED: Cell<*const Outbox> = const { Cell::new(std::ptr::null()) };
}

/// Marks the session that a thread is polling. While the mark exists, the thread puts items into
/// the outbox of that session without waking the session. The session reads its outbox before it
/// drops the mark.
pub(crate) struct PolledOutbox(());

impl Drop for PolledOutbox {
    fn drop(&mut self) {
        POLLED.set(std::ptr::null());
    }
}

/// Runs `work`, and wakes sessions at its end, or when [`WOKEN_AT_ONCE`] sessions are to be woken.
/// So if `work` puts items into the outboxes of a few sessions, each session sends its items in one
/// write. If there are more sessions, a session that is already sending puts later items into its
/// next write.
pub(crate) fn together<T>(work: impl FnOnce() -> T) -> T {
    /// Wakes the sessions even if `work` panics.
    struct WakeOnDrop;

    impl Drop for WakeOnDrop {
        fn drop(&mut self) {
            wake_all(TO_WAKE.take().unwrap_or_default());
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

/// Wakes sessions. Outside the runtime, each wake can cost a system call. So if this thread has a
/// handle to the runtime, it wakes several sessions by spawning one task that wakes them all.
fn wake_all(wakers: Vec<Waker>) {
    match Handle::try_current() {
        Ok(runtime) if wakers.len() > 1 => {
            runtime.spawn(async { wakers.into_iter().for_each(Waker::wake) });
        }
        _ => wakers.into_iter().for_each(Waker::wake),
    }
}

/// A flag that is set once a subscription has ended. From then on, the outbox accepts no item of
/// the subscription.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndFlag(Arc<AtomicBool>);

impl EndFlag {
    pub(crate) fn is(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A permit for a request under way. The request is counted until its permit is dropped.
pub(crate) struct RequestPermit {
    outbox: Arc<Outbox>,
    what: RequestKind,
}

/// The kind of a request under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// An event that has no OK yet.
    Event,
    /// An AUTH that has no OK yet.
    Proof,
    /// A question that is not fully answered yet.
    Search,
}

pub(crate) struct Outbox {
    queue: Mutex<OutboxQueue>,
    task: AtomicWaker,
    events: AtomicUsize,
    proofs: AtomicUsize,
    searches: AtomicUsize,
    /// Number of bytes charged for live events that subscriptions hold back until their stored
    /// answers are sent.
    held: AtomicUsize,
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
    /// Weight of the queued items, and of the items that were taken from the queue and are not fed
    /// to the socket yet.
    weight: OutboxWeight,
    /// Number of bytes that the socket has accepted but not sent yet.
    unsent: usize,
    parked: Vec<Box<dyn ReaderJob>>,
    slow: bool,
    gone: bool,
}

impl OutboxQueue {
    /// Number of bytes that wait for the client.
    fn waiting(&self) -> usize {
        self.weight.size + self.unsent
    }

    /// Number of bytes of this outbox that count against the bound of all clients together.
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
            held: AtomicUsize::new(0),
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
            messages.shrink_buffers(self.is_polled() && self.is_client_up_to_date());
        }
        let queue = self.queue.lock();
        if over.is() {
            return false;
        }
        self.lay_locked(queue, part);
        self.wake();
        true
    }

    /// Whether the client has received all items.
    fn is_client_up_to_date(&self) -> bool {
        let queue = self.queue.lock();
        queue.unsent == 0 && queue.weight.size == 0
    }

    /// Puts a live event into the outbox for a subscription. Returns whether the caller must call
    /// [`Outbox::wake`], which is not necessary if the event already waits for another
    /// subscription.
    pub(crate) fn lay_live(&self, over: &EndFlag, open: &[u8], news: &NewRecord) -> bool {
        let mut queue = self.queue.lock();
        if over.is() || queue.gone || queue.slow {
            return false;
        }
        let had = queue.waiting();
        let Some(last) = queue.parts.back_mut().filter(|last| last.is_live(news)) else {
            self.lay_locked(queue, OutboxItem::Live(LiveDelivery::new(open, news.clone())));
            return true;
        };
        let before = last.weight();
        if let OutboxItem::Live(live) = last {
            live.add(open);
        }
        let mut added = last.weight();
        added.sub(before);
        queue.weight.add(added);
        if added.own > 0 {
            self.account.add(added.own);
        }
        // The counters of the common bounds are contended, because every client writes these
        // counters. So they are read only if the item has added bytes.
        let is_above = added.own > 0 && self.account.is_above_share(had);
        // An event alone may exceed the bound: otherwise no client could ever receive the event.
        let waited = had > before.size;
        queue.slow = waited && queue.weight.size > self.bytes_max || is_above;
        queue.slow
    }

    /// Counts bytes for live events that a subscription holds back. Returns false if this client
    /// has more than its share of a bound that is exceeded.
    pub(crate) fn hold(&self, bytes: usize) -> bool {
        let had = self.held.fetch_add(bytes, Ordering::Relaxed);
        self.account.add(bytes);
        !self.account.is_above_share(had)
    }

    /// Subtracts the bytes of live events that were held back and are now sent or dropped.
    pub(crate) fn free(&self, bytes: usize) {
        if bytes > 0 {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
            self.account.sub(bytes);
        }
    }

    /// Wakes the session's task, so that it reads the outbox. Within [`together`], the wake is
    /// deferred.
    pub(crate) fn wake(&self) {
        if self.is_polled() {
            return;
        }
        let Some(waker) = self.task.take() else { return };
        let (now, several) = TO_WAKE.with_borrow_mut(|wakers| match wakers {
            Some(wakers) => {
                wakers.push(waker);
                let are_several = wakers.len() >= WOKEN_AT_ONCE;
                (None, are_several.then(|| std::mem::take(wakers)))
            }
            None => (Some(waker), None),
        });
        if let Some(waker) = now {
            waker.wake();
        }
        several.into_iter().for_each(wake_all);
    }

    /// Puts one message into the outbox. `write` appends the message to a buffer.
    pub(crate) fn push_message(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::with_capacity(128);
        write(&mut out);
        self.put(OutboxItem::One(out));
    }

    fn lay_locked(&self, mut queue: MutexGuard<'_, OutboxQueue>, part: OutboxItem) {
        if queue.gone || queue.slow {
            return;
        }
        let (had, weight) = (queue.waiting(), part.weight());
        // A page never ends the connection: the client requested the page, and the question waited
        // for capacity. An item that is alone may exceed the bounds.
        let may_end = had > 0 && !matches!(part, OutboxItem::Page(_));
        queue.weight.add(weight);
        self.account.add(weight.own);
        queue.parts.push_back(part);
        if may_end && (queue.weight.size > self.bytes_max || self.account.is_above_share(had)) {
            queue.slow = true;
        }
    }

    /// Ends a subscription. Its items are no longer put into the outbox.
    pub(crate) fn end(&self, over: &EndFlag) {
        let _queue = self.queue.lock();
        over.0.store(true, Ordering::Release);
    }

    /// Marks the client as too slow, which ends its session.
    pub(crate) fn mark_too_slow(&self) {
        self.queue.lock().slow = true;
        self.wake();
    }

    /// Parks a search while the outbox has no capacity. Returns the search if it can run now.
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

    /// Lets the parked searches drop old views of the archive. Resumes questions that wait for
    /// capacity in the outboxes of all clients, if capacity is available.
    pub(crate) fn tend_parked(&self) {
        for job in &mut self.queue.lock().parked {
            job.drop_old_view();
        }
        self.account.resume_parked();
    }

    /// Marks the client as too slow if it has more than its share of the unread bytes for which the
    /// questions of all clients have waited too long. `held` is the number of bytes of live events that
    /// the client's subscriptions hold back: they wait for the client's questions as well.
    pub(crate) fn yield_share(&self, held: usize) {
        let mut queue = self.queue.lock();
        if !self.account.delays_others(queue.waiting() + held) {
            return;
        }
        queue.slow = true;
        drop(queue);
        self.wake();
    }

    /// Whether this thread is polling the session of this outbox.
    fn is_polled(&self) -> bool {
        std::ptr::eq(POLLED.get(), self)
    }

    /// The encoder of messages to the client.
    pub(crate) fn framing(&self) -> &Framing {
        &self.framing
    }

    pub(crate) fn metrics(&self) -> &RelayMetrics {
        &self.metrics
    }

    pub(crate) fn had_ns(&self) -> u64 {
        self.had_ns.load(Ordering::Relaxed)
    }

    /// Sets the reader time charged to this client. If two readers set the time at once, one of the
    /// two additions is lost, which is harmless.
    pub(crate) fn has_had(&self, ns: u64) {
        self.had_ns.store(ns, Ordering::Relaxed);
    }

    pub(crate) fn is_closed_by_client(&self) -> bool {
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

/// The functions for the session that owns the outbox.
impl Outbox {
    /// Registers the task to wake when an item is put into the outbox or a permit is dropped.
    pub(crate) fn listen(&self, waker: &Waker) {
        self.task.register(waker);
    }

    /// Marks the session as polled by this thread until the result is dropped. Before the drop, the
    /// session must [take](Self::take) the items that were put into the outbox.
    pub(crate) fn poll(&self) -> PolledOutbox {
        POLLED.set(self);
        PolledOutbox(())
    }

    /// Takes all items, in order. Returns false if the client is too slow and must be disconnected.
    pub(crate) fn take(&self, into: &mut VecDeque<OutboxItem>) -> bool {
        let mut queue = self.queue.lock();
        // A swap of the two queues would keep the memory of a burst allocated.
        let mut parts = std::mem::take(&mut queue.parts);
        if into.is_empty() {
            *into = parts;
        } else {
            into.append(&mut parts);
        }
        !queue.slow
    }

    /// Records that items of `weight` were fed to the socket. `unsent` is the number of bytes that
    /// the socket has not sent yet. Returns the searches that can resume.
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

    /// Closes the outbox of a client that is gone. Waiting items are dropped, and new items are not
    /// accepted.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.gone = true;
        let counted = queue.counted();
        (queue.weight, queue.unsent) = (OutboxWeight::default(), 0);
        let waiting = (std::mem::take(&mut queue.parts), std::mem::take(&mut queue.parked));
        drop(queue);
        // The items are dropped before `sub`, which lets parked questions continue if enough memory
        // is free. The memory of a live event is free when the last outbox has dropped the event.
        drop(waiting);
        self.account.sub(counted);
    }
}

#[cfg(test)]
impl Outbox {
    /// Creates an outbox with an account that no other outbox shares.
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
