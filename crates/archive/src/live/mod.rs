//! Live subscriptions. The live index finds the subscriptions that a new record matches, and
//! delivers the record.
//!
//! A record is compared with the filters of the newest subscriptions, and with the filters that the
//! index lists under the record's id, author, kind, labels and words. Filters with none of these
//! conditions are in one list that is searched for every record. In a long list, filters for other
//! times or kinds are skipped. All subscriptions that a record matches share the record's bytes.
//! The writer's thread publishes stored records in the order of their sequence numbers. Ephemeral
//! records, which are never stored, come from any thread and have no number.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hark_codec::record::Record;
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use crate::meter::Counter;
use crate::query::Query;
use index::SubscriptionIndex;
use news::HELD_BYTES;
use seam::Seam;
use subscription::{IndexProgress, IndexingState, Subscription};

pub use news::NewRecord;
pub use seam::AnswerReach;
pub use subscription::SubscriptionSink;

mod held;
mod index;
mod list;
mod newest;
mod news;
mod seam;
mod subscription;

/// All subscriptions of a shelf.
///
/// ```
/// use std::sync::mpsc::{Sender, channel};
/// use std::sync::Arc;
///
/// use hark_archive::live::{LiveIndex, NewRecord, SubscriptionSink};
/// use hark_archive::{Query, Record, RecordHeader};
///
/// /// Sends the number of each record to a channel.
/// struct Numbers(Sender<Option<u64>>);
///
/// impl SubscriptionSink for Numbers {
///     fn deliver(&self, news: &NewRecord) -> bool {
///         // The receiver lives as long as the subscription.
///         self.0.send(news.seq).is_ok()
///     }
///
///     fn wake(&self) {}
///
///     fn overflow(&self) {}
/// }
///
/// let (sender, numbers) = channel();
/// let live = Arc::new(LiveIndex::default());
/// let kind = |kind| vec![Query { kinds: Some(vec![kind]), ..Query::default() }];
/// let subscription = live.subscribe(kind(3), Box::new(Numbers(sender)), 1 << 20);
/// while !subscription.enter() {}
/// // A program that sends stored records first searches the store here.
/// subscription.opened(0, 0);
/// subscription.release(Vec::new());
///
/// for (seq, kind) in [(1, 3), (2, 4), (3, 3)] {
///     let head = RecordHeader { id: [kind as u8; 32], time: 7, author: None, kind, expires: None };
///     let mut bytes = Vec::new();
///     hark_codec::record::write(&mut bytes, &head, b"the message", std::iter::empty());
///     live.publish(Some(seq), &Record::new(&bytes)?);
/// }
/// drop(subscription);
/// assert_eq!(numbers.try_iter().collect::<Vec<_>>(), [Some(1), Some(3)]);
/// # Ok::<(), hark_archive::RecordError>(())
/// ```
#[derive(Default)]
pub struct LiveIndex {
    index: RwLock<SubscriptionIndex>,
    len: AtomicUsize,
    numbers: AtomicU64,
    /// The last sequence number that was published to all subscribers.
    published: AtomicU64,
    held: Arc<Counter>,
}

/// The handle of a subscription. The subscription ends when the last clone of the handle is
/// dropped. Cheap to clone.
#[derive(Clone)]
pub struct SubscriptionHandle(Arc<Registration>);

struct Registration {
    live: Arc<LiveIndex>,
    subscription: Arc<Subscription>,
}

/// Maximum total number of filters of the newest subscriptions. Each new record is compared with
/// all of these filters. Above this number, the oldest of these subscriptions moves into the lists
/// of the index.
const NEWEST_MAX: usize = 32;
/// A subscription with at most this number of filters, and at most `SMALL_VALUES` values in them,
/// is small: it begins as one of the newest. A larger subscription goes directly into the lists, in
/// steps for which only its own client waits. As one of the newest, it would push many small
/// subscriptions into the lists.
const SMALL_FILTERS: usize = 4;
const SMALL_VALUES: usize = 256;

/// Number of lists that are changed each time that the index is locked. Without this bound, a
/// subscription to thousands of authors would delay the writer and other clients.
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
    /// Makes an index without subscriptions. `seq` is the current sequence number of the shelf.
    /// Records up to `seq` were stored earlier and are not delivered.
    pub fn since(seq: u64) -> Self {
        Self { published: AtomicU64::new(seq), ..Self::default() }
    }

    /// Subscribes to records that match any of `queries`. The limits, cursors and budgets of the
    /// queries are ignored. A subscription to many values may be in only some of its lists on
    /// return: see [`SubscriptionHandle::enter`]. Records are held back, up to `held_bytes_max`,
    /// until [`SubscriptionHandle::release`].
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

    /// If the newest subscriptions have more than `newest_max` filters, moves the oldest of these
    /// subscriptions into the lists. Returns whether the number of filters is within the bound.
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

    /// Offers `record` to every subscription that it matches. Calls with a sequence number must not
    /// overlap, and the numbers must ascend.
    pub fn publish(&self, seq: Option<u64>, record: &Record<'_>) {
        let mut found = Vec::new();
        self.index.read().find(record, &mut found);
        found.sort_unstable_by_key(|subscription| subscription.number);
        found.dedup_by_key(|subscription| subscription.number);
        if !found.is_empty() {
            let news = NewRecord::new(seq, record, &self.held);
            // A subscription is woken only after the record was offered to the next subscription.
            // By then the record often waits for other subscriptions of the same client, too.
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

    /// Returns the bytes of published records that some recipient still holds.
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

impl SubscriptionHandle {
    /// Returns the normalised queries.
    pub fn queries(&self) -> &[Query] {
        &self.0.subscription.queries
    }

    /// Enters a subscription to many values into further lists, or moves older subscriptions out of
    /// the newest to make room. Returns true once the subscription is in all its lists. The caller
    /// may open searches only then; otherwise a record could be missed. Each call takes at most
    /// about a tenth of a millisecond.
    pub fn enter(&self) -> bool {
        self.0.enter()
    }

    /// Does one step of ending the subscription. Dropping the handle would do all steps at once,
    /// which may take too long for a caller that must not block. Returns true once the subscription
    /// has ended. After that, no record is delivered.
    pub fn leave(&self) -> bool {
        self.0.leave()
    }

    /// Notes that the search for query number `index` was opened and sees the records up to the
    /// sequence number `seq`. After subscribing, the caller must call this method once for each
    /// query.
    pub fn opened(&self, index: usize, seq: u64) {
        self.0.subscription.seam.lock().opened(index, seq);
    }

    /// Whether records are held back until the stored answer is sent.
    pub fn holds_back(&self) -> bool {
        self.0.subscription.seam.lock().holds_back()
    }

    /// Returns the bytes of the records that are held back for this subscription. The bytes of a
    /// record are divided among all subscriptions that hold the record. Goes through all these
    /// records.
    pub fn held_bytes(&self) -> usize {
        self.0.subscription.seam.lock().bytes_by_holder()
    }

    /// Delivers the held-back records that the sink wants early ([`SubscriptionSink::is_early`])
    /// and that the stored answer did not contain, before all other held-back records. `reached`
    /// has the same meaning as for [`Self::release`].
    pub fn release_early(&self, reached: &[AnswerReach]) {
        let subscription = &self.0.subscription;
        let mut must_wake = false;
        // Records that arrive from now on are left to `release`.
        let mut left = subscription.seam.lock().early_len();
        while left > 0 {
            let mut seam = subscription.seam.lock();
            let taken = seam.release_early(reached, &subscription.queries, left, |news| {
                must_wake |= subscription.sink.deliver(&news);
            });
            drop(seam);
            subscription.sink.free(taken * HELD_BYTES);
            // No record is left if the subscription has ended in the meantime.
            left = if taken == 0 { 0 } else { left - taken };
        }
        if must_wake {
            subscription.sink.wake();
        }
    }

    /// Delivers the held-back records that the stored answer did not contain, then each new record
    /// as it comes. Must be called once all stored records are sent. `reached` shows how far the
    /// answer to each query went; it may be empty if the subscription has one query.
    pub fn release(&self, mut reached: Vec<AnswerReach>) {
        let subscription = &self.0.subscription;
        let (mut must_wake, mut are_all) = (false, false);
        while !are_all {
            let mut seam = subscription.seam.lock();
            // The number is read while the seam is locked: records up to this number were offered
            // before, and the offer of a later record waits for the lock.
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
