//! Who hears of a new record: subscriptions, found by what they ask for.
//!
//! A record is compared only with subscriptions that name its id, author, one of its labels or its
//! kind, or that name nothing. All of them get the same shared bytes. Records come in the order of
//! their sequence numbers, from the writer's thread; those that are never stored come from anywhere
//! and have none.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use hark_codec::record::Record;

use crate::query::Query;
use index::Index;
use seam::{Next, Seam};

mod index;
mod seam;

/// A new record, shared by all that hear of it.
#[derive(Clone, Debug)]
pub struct News {
    /// Its place in the sequence of puts; none for a record that is never stored.
    pub seq: Option<u64>,
    bytes: Arc<[u8]>,
    wire: (u32, u32),
}

impl News {
    fn new(seq: Option<u64>, record: &Record<'_>) -> Self {
        let bytes: Arc<[u8]> = record.bytes().into();
        let start = record.wire().as_ptr() as usize - record.bytes().as_ptr() as usize;
        Self { seq, bytes, wire: (start as u32, (start + record.wire().len()) as u32) }
    }

    /// The message as it goes out.
    pub fn wire(&self) -> &[u8] {
        &self.bytes[self.wire.0 as usize..self.wire.1 as usize]
    }

    /// Bytes that it keeps in memory.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    fn matches(&self, query: &Query) -> bool {
        Record::new(&self.bytes).is_ok_and(|record| query.matches(&record))
    }

    fn is_among(&self, told: &Told) -> bool {
        Record::new(&self.bytes).is_ok_and(|record| told.contains(record.id()))
    }
}

/// The end of a subscription that a door holds. All are called from other threads, possibly the
/// writer's: they must not block.
pub trait Sink: Send + Sync {
    /// A record for the subscriber; `wake` follows.
    fn deliver(&self, news: News);

    /// Records were delivered, here and to all others who get them. Many subscriptions of a client are
    /// served at once so, and not one after another.
    fn wake(&self);

    /// More was held back than the bound allows: the subscriber is too slow. Nothing comes after
    /// this.
    fn overflow(&self);
}

/// All subscriptions of a shelf.
#[derive(Default)]
pub struct Live {
    index: RwLock<Index>,
    /// Up to which number all subscribers have been told.
    published: AtomicU64,
}

/// A subscription's state, shared between the index and whoever answers its question.
struct Subscription {
    number: u64,
    queries: Vec<Query>,
    sink: Box<dyn Sink>,
    seam: Mutex<Seam>,
}

/// A subscription: ends when dropped. Cheap to clone; the last one counts.
#[derive(Clone)]
pub struct Handle(Arc<Registration>);

struct Registration {
    live: Arc<Live>,
    subscription: Arc<Subscription>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut index = self.live.index.write().unwrap_or_else(PoisonError::into_inner);
        index.remove(&self.subscription);
    }
}

impl Live {
    /// Starts to listen for what matches any of `queries` (limits, cursors and budgets do not
    /// count). What comes is held back, up to `held_bytes_max`, until [`Handle::release`].
    pub fn subscribe(
        self: &Arc<Self>,
        mut queries: Vec<Query>,
        sink: Box<dyn Sink>,
        held_bytes_max: usize,
    ) -> Handle {
        for query in &mut queries {
            query.normalise();
            query.limit = usize::MAX;
        }
        let seam = Mutex::new(Seam::new(queries.len(), held_bytes_max));
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        let subscription =
            Arc::new(Subscription { number: index.next_number(), queries, sink, seam });
        index.insert(&subscription);
        drop(index);
        Handle(Arc::new(Registration { live: Arc::clone(self), subscription }))
    }

    /// Tells every subscriber of `record`. With a number, numbers must ascend and calls must not
    /// overlap.
    pub fn publish(&self, seq: Option<u64>, record: &Record<'_>) {
        let mut found = Vec::new();
        self.index.read().unwrap_or_else(PoisonError::into_inner).find(record, &mut found);
        found.sort_unstable_by_key(|subscription| subscription.number);
        found.dedup_by_key(|subscription| subscription.number);
        found.retain(|subscription| subscription.queries.iter().any(|query| query.matches(record)));
        if !found.is_empty() {
            let news = News::new(seq, record);
            found.retain(|subscription| subscription.offer(&news));
            for subscription in found {
                subscription.sink.wake();
            }
        }
        if let Some(seq) = seq {
            self.published.store(seq, Ordering::Release);
        }
    }

    /// How many subscriptions there are.
    pub fn len(&self) -> usize {
        self.index.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Subscription {
    fn seam(&self) -> std::sync::MutexGuard<'_, Seam> {
        self.seam.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it was delivered.
    fn offer(&self, news: &News) -> bool {
        let mut seam = self.seam();
        let next = seam.offer(news, &self.queries);
        match next {
            Next::Deliver => self.sink.deliver(news.clone()),
            Next::Nothing => {}
            Next::Overflow => self.sink.overflow(),
        }
        matches!(next, Next::Deliver)
    }
}

impl Handle {
    /// The normalised queries.
    pub fn queries(&self) -> &[Query] {
        &self.0.subscription.queries
    }

    /// Notes that the stored search for query number `index` was opened, and up to which number it
    /// sees. To be called for each query, after subscribing.
    pub fn opened(&self, index: usize, seq: u64) {
        self.0.subscription.seam().opened(index, seq);
    }

    /// All stored records are told: what was held back and is not among them follows now, then
    /// everything as it comes. `told` says which ids the stored answer held; it is only needed
    /// where there are several queries.
    pub fn release(&self, told: Told) {
        let subscription = &self.0.subscription;
        let mut seam = subscription.seam();
        // Under the seam's lock: whatever was published up to here has been offered.
        let published = self.0.live.published.load(Ordering::Acquire);
        seam.release(told, published, &subscription.queries, |news| {
            subscription.sink.deliver(news);
        });
        drop(seam);
        subscription.sink.wake();
    }
}

/// Ids that an answer from the store held.
pub type Told = std::collections::HashSet<hark_codec::record::Id>;

#[cfg(test)]
mod tests;
