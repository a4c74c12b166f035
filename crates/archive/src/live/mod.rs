//! Live subscriptions: finds those that a new record matches, and delivers the record to them.
//!
//! A record is compared only with filters that name its id, author, one of its labels or words or
//! its kind, or that name nothing, and whose time window it lies in, and with those of the newest
//! subscriptions. All subscriptions that match share the same bytes. Records come in the order of
//! their sequence numbers, from the writer's thread. Records that are never stored come from any
//! thread and have no number.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hark_codec::record::Record;
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use crate::meter::Counter;
use crate::query::Query;
use index::{IndexProgress, SubscriptionIndex};
use seam::{DeliveryAction, Seam};

pub use seam::AnswerReach;

mod index;
mod list;
mod newest;
mod seam;

/// A new record, shared by all subscriptions that receive it.
#[derive(Clone, Debug)]
pub struct NewRecord {
    /// The record's position in the sequence of puts. `None` if it is never stored.
    pub seq: Option<u64>,
    shared: Arc<SharedBytes>,
    wire: (u32, u32),
}

/// The bytes of a record, shared by all its recipients and counted in `held` until the last of them
/// drops the record.
#[derive(Debug)]
struct SharedBytes {
    bytes: Box<[u8]>,
    held: Arc<Counter>,
}

impl Drop for SharedBytes {
    fn drop(&mut self) {
        self.held.sub(self.bytes.len() as u64);
    }
}

impl NewRecord {
    fn new(seq: Option<u64>, record: &Record<'_>, held: &Arc<Counter>) -> Self {
        let bytes: Box<[u8]> = record.bytes().into();
        held.add(bytes.len() as u64);
        let start = record.wire().as_ptr() as usize - record.bytes().as_ptr() as usize;
        let shared = Arc::new(SharedBytes { bytes, held: Arc::clone(held) });
        Self { seq, shared, wire: (start as u32, (start + record.wire().len()) as u32) }
    }

    /// Returns the message in its wire format.
    pub fn wire(&self) -> &[u8] {
        &self.shared.bytes[self.wire.0 as usize..self.wire.1 as usize]
    }

    /// Returns the bytes that the record takes in memory, for all its recipients together.
    pub fn size(&self) -> usize {
        self.shared.bytes.len()
    }

    /// Returns whether both are the same record of the same publication.
    pub fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    fn record(&self) -> Option<Record<'_>> {
        Record::new(&self.shared.bytes).ok()
    }
}

/// The receiving end of a subscription, held by a door. All methods are called from other threads,
/// possibly the writer's: they must not block.
pub trait SubscriptionSink: Send + Sync {
    /// Delivers a record to the subscriber. Returns whether a call of `wake` must follow: it need
    /// not where the record waits already for another subscription of the same client.
    fn deliver(&self, news: &NewRecord) -> bool;

    /// Reports that records were delivered, to this sink and to others that need no call of their
    /// own. So many subscriptions of a client are served at once, and not one after another.
    fn wake(&self);

    /// Counts memory of the subscriber's own, besides the records that all share: for records that are
    /// held back until the stored ones are sent. Returns false if that is too much.
    fn hold(&self, bytes: usize) -> bool {
        let _ = bytes;
        true
    }

    /// Counts that much less.
    fn free(&self, bytes: usize) {
        let _ = bytes;
    }

    /// Reports that more was held back than the bound allows: the subscriber is too slow. Nothing
    /// is delivered after this.
    fn overflow(&self);
}

/// Memory that a held-back record takes in the queue of a subscription, which grows by doubling.
const HELD_BYTES: usize = 2 * size_of::<NewRecord>();

/// All subscriptions of a shelf.
#[derive(Default)]
pub struct LiveIndex {
    index: RwLock<SubscriptionIndex>,
    len: AtomicUsize,
    numbers: AtomicU64,
    /// The last sequence number that was published to all subscribers.
    published: AtomicU64,
    held: Arc<Counter>,
}

/// A subscription's state, shared by the index and the code that evaluates its queries.
struct Subscription {
    number: u64,
    queries: Vec<Query>,
    sink: Box<dyn SubscriptionSink>,
    seam: Mutex<Seam>,
    state: Mutex<IndexingState>,
}

/// The handle of a subscription, which ends when the last clone is dropped. Cheap to clone.
#[derive(Clone)]
pub struct SubscriptionHandle(Arc<Registration>);

struct Registration {
    live: Arc<LiveIndex>,
    subscription: Arc<Subscription>,
}

/// How far a subscription is in the index. The lock of this state is taken before the index's.
#[derive(Clone, Copy)]
enum IndexingState {
    /// Among the newest, and in no list.
    Newest,
    Entering(IndexProgress),
    Entered,
    Leaving(IndexProgress),
    Left,
}

/// The most filters of the newest subscriptions, as each is compared with each new record. If there
/// are more, the oldest subscription enters its lists.
const NEWEST_MAX: usize = 32;
/// The most filters of a subscription that is one of the newest, and their values. One with more is
/// entered at once, in steps for which its own client waits: it would make many others enter.
const SMALL_FILTERS: usize = 4;
const SMALL_VALUES: usize = 256;

/// Lists of the index that are changed while its lock is held once: a subscription to thousands of
/// authors must not hold up the writer or another client.
const LISTS_AT_ONCE: usize = 256;

impl Drop for Registration {
    fn drop(&mut self) {
        while !self.leave() {}
        self.live.len.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Registration {
    fn enter(&self) -> bool {
        let mut state = self.subscription.state.lock();
        match *state {
            IndexingState::Entering(mut progress) => {
                let whole =
                    self.live.index_mut().insert(&self.subscription, &mut progress, LISTS_AT_ONCE);
                *state =
                    if whole { IndexingState::Entered } else { IndexingState::Entering(progress) };
                whole
            }
            IndexingState::Newest => {
                drop(state);
                self.live.list_oldest(NEWEST_MAX)
            }
            _ => true,
        }
    }

    fn leave(&self) -> bool {
        let mut state = self.subscription.state.lock();
        let mut progress = match *state {
            IndexingState::Newest => {
                self.live.index_mut().newest.remove(&self.subscription);
                *state = IndexingState::Left;
                return true;
            }
            IndexingState::Entering(_) | IndexingState::Entered => IndexProgress::default(),
            IndexingState::Leaving(progress) => progress,
            IndexingState::Left => return true,
        };
        let gone = self.live.index_mut().remove(&self.subscription, &mut progress, LISTS_AT_ONCE);
        *state = if gone { IndexingState::Left } else { IndexingState::Leaving(progress) };
        gone
    }
}

impl LiveIndex {
    /// Makes an empty set that starts after `seq`, the shelf's current number: records up to it
    /// were put before and are not delivered.
    pub fn since(seq: u64) -> Self {
        Self { published: AtomicU64::new(seq), ..Self::default() }
    }

    /// Subscribes to records that match any of `queries` (limits, cursors and budgets do not
    /// count). A subscription to many values may be entered only in part: see [`SubscriptionHandle::enter`].
    /// Records are held back, up to `held_bytes_max`, until [`SubscriptionHandle::release`].
    pub fn subscribe(
        self: &Arc<Self>,
        mut queries: Vec<Query>,
        sink: Box<dyn SubscriptionSink>,
        held_bytes_max: usize,
    ) -> SubscriptionHandle {
        for query in &mut queries {
            query.normalise();
            query.limit = usize::MAX;
        }
        let seam = Mutex::new(Seam::new(queries.len(), held_bytes_max));
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let is_small = queries.len() <= SMALL_FILTERS
            && queries.iter().map(Query::values).sum::<usize>() <= SMALL_VALUES
            && index::lists(&queries) <= LISTS_AT_ONCE;
        let state = if is_small {
            IndexingState::Newest
        } else {
            IndexingState::Entering(IndexProgress::default())
        };
        let state = Mutex::new(state);
        let subscription = Arc::new(Subscription { number, queries, sink, seam, state });
        self.len.fetch_add(1, Ordering::Relaxed);
        if is_small {
            self.index_mut().newest.add(&subscription);
        }
        let registration = Registration { live: Arc::clone(self), subscription };
        registration.enter();
        SubscriptionHandle(Arc::new(registration))
    }

    /// Enters the oldest of the newest subscriptions into its lists, if these have more than so many
    /// filters. Returns whether they have not.
    fn list_oldest(&self, newest_max: usize) -> bool {
        let oldest = {
            let index = self.index.read();
            let is_full = index.newest.len() > newest_max;
            is_full.then(|| index.newest.oldest().map(Arc::clone)).flatten()
        };
        let Some(oldest) = oldest else { return true };
        let mut state = oldest.state.lock();
        let mut index = self.index_mut();
        if matches!(*state, IndexingState::Newest) {
            index.newest.remove(&oldest);
            index.insert(&oldest, &mut IndexProgress::default(), usize::MAX);
            *state = IndexingState::Entered;
        }
        index.newest.len() <= newest_max
    }

    fn index_mut(&self) -> RwLockWriteGuard<'_, SubscriptionIndex> {
        self.index.write()
    }

    /// Offers `record` to every subscription that it matches. Calls with a number must not overlap,
    /// and their numbers must ascend.
    pub fn publish(&self, seq: Option<u64>, record: &Record<'_>) {
        let mut found = Vec::new();
        self.index.read().find(record, &mut found);
        found.sort_unstable_by_key(|subscription| subscription.number);
        found.dedup_by_key(|subscription| subscription.number);
        if !found.is_empty() {
            let news = NewRecord::new(seq, record, &self.held);
            // Woken once the next has the record: by then most others of its client have it.
            let mut to_wake: Option<Arc<Subscription>> = None;
            for subscription in found {
                if subscription.offer(&news)
                    && let Some(before) = to_wake.replace(subscription)
                {
                    before.sink.wake();
                }
            }
            if let Some(last) = to_wake {
                last.sink.wake();
            }
        }
        if let Some(seq) = seq {
            self.published.store(seq, Ordering::Release);
        }
    }

    /// Returns the bytes of published records that recipients still keep.
    pub fn held_bytes(&self) -> u64 {
        self.held.get()
    }

    /// Returns the number of subscriptions.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns whether there are no subscriptions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Subscription {
    /// Offers a record to the subscription, and returns whether its sink must be woken.
    fn offer(&self, news: &NewRecord) -> bool {
        let mut seam = self.seam.lock();
        match seam.offer(news, &self.queries) {
            DeliveryAction::Deliver => self.sink.deliver(news),
            DeliveryAction::Nothing => false,
            DeliveryAction::Held if self.sink.hold(HELD_BYTES) => false,
            DeliveryAction::Held | DeliveryAction::Overflow => {
                self.sink.free(seam.give_up() * HELD_BYTES);
                self.sink.overflow();
                false
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.sink.free(self.seam.get_mut().give_up() * HELD_BYTES);
    }
}

impl SubscriptionHandle {
    /// Returns the normalised queries.
    pub fn queries(&self) -> &[Query] {
        &self.0.subscription.queries
    }

    /// Enters a subscription to many values further into the index, or others that it makes too many.
    /// Returns true once that is done; only then is no record missed, and may searches be opened. Each
    /// call takes about a tenth of a millisecond at most.
    pub fn enter(&self) -> bool {
        self.0.enter()
    }

    /// Ends the subscription in steps, for callers that a drop would hold up too long. Returns true
    /// once it has ended; no record that comes then is delivered.
    pub fn leave(&self) -> bool {
        self.0.leave()
    }

    /// Notes that the stored search for query number `index` was opened and sees puts up to `seq`.
    /// To be called for each query, after subscribing.
    pub fn opened(&self, index: usize, seq: u64) {
        self.0.subscription.seam.lock().opened(index, seq);
    }

    /// Delivers the held-back records that were not among the stored ones, then all as they come.
    /// To be called once all stored records are sent. `reached` says how far the answer to each
    /// query went; it is needed only if there are several.
    pub fn release(&self, mut reached: Vec<AnswerReach>) {
        let subscription = &self.0.subscription;
        let (mut must_wake, mut are_all) = (false, false);
        while !are_all {
            let mut seam = subscription.seam.lock();
            // Read under the seam's lock: all records up to this number have been offered.
            let published = self.0.live.published.load(Ordering::Acquire);
            let (taken, is_end) =
                seam.release(&mut reached, published, &subscription.queries, |news| {
                    must_wake |= subscription.sink.deliver(&news);
                });
            drop(seam);
            subscription.sink.free(taken * HELD_BYTES);
            are_all = is_end;
        }
        if must_wake {
            subscription.sink.wake();
        }
    }
}

#[cfg(test)]
mod tests;
