//! Who hears of a new record: subscriptions, found by what they ask for.
//!
//! A record is compared only with filters that name its id, author, one of its labels or its kind, or
//! that name nothing, and whose times it lies in. All of them get the same shared bytes. Records come in the order of
//! their sequence numbers, from the writer's thread; those that are never stored come from anywhere
//! and have none.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

use hark_codec::record::Record;

use crate::meter::Count;
use crate::query::{Position, Query};
use index::{Index, Progress};
use seam::{Next, Seam};

pub use seam::Reach;

mod index;
mod list;
mod seam;

/// A new record, shared by all that hear of it.
#[derive(Clone, Debug)]
pub struct News {
    /// Its place in the sequence of puts; none for a record that is never stored.
    pub seq: Option<u64>,
    shared: Arc<Shared>,
    wire: (u32, u32),
}

/// What all who hear of a record keep of it, counted while anybody does.
#[derive(Debug)]
struct Shared {
    bytes: Box<[u8]>,
    held: Arc<Count>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.held.sub(self.bytes.len() as u64);
    }
}

impl News {
    fn new(seq: Option<u64>, record: &Record<'_>, held: &Arc<Count>) -> Self {
        let bytes: Box<[u8]> = record.bytes().into();
        held.add(bytes.len() as u64);
        let start = record.wire().as_ptr() as usize - record.bytes().as_ptr() as usize;
        let shared = Arc::new(Shared { bytes, held: Arc::clone(held) });
        Self { seq, shared, wire: (start as u32, (start + record.wire().len()) as u32) }
    }

    /// The message as it goes out.
    pub fn wire(&self) -> &[u8] {
        &self.shared.bytes[self.wire.0 as usize..self.wire.1 as usize]
    }

    /// Bytes that it keeps in memory, for all who have it together.
    pub fn size(&self) -> usize {
        self.shared.bytes.len()
    }

    fn matches(&self, query: &Query) -> bool {
        Record::new(&self.shared.bytes).is_ok_and(|record| query.matches(&record))
    }

    fn position(&self) -> Option<Position> {
        Record::new(&self.shared.bytes).ok().map(|record| Position::of(&record))
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
    len: AtomicUsize,
    numbers: AtomicU64,
    /// Up to which number all subscribers have been told.
    published: AtomicU64,
    held: Arc<Count>,
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
    state: Mutex<State>,
}

/// Where a subscription stands with the index. Its lock is taken before the index's.
#[derive(Clone, Copy)]
enum State {
    Entering(Progress),
    Entered,
    Leaving(Progress),
    Left,
}

/// Lists of the index that are changed before others have their turn: what a subscription to thousands
/// of authors costs is not to hold up the writer or another client.
const LISTS_AT_ONCE: usize = 256;

impl Drop for Registration {
    fn drop(&mut self) {
        while !self.leave() {}
        self.live.len.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Registration {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) -> bool {
        let mut state = self.state();
        if let State::Entering(mut progress) = *state {
            let whole =
                self.live.index_mut().insert(&self.subscription, &mut progress, LISTS_AT_ONCE);
            *state = if whole { State::Entered } else { State::Entering(progress) };
        }
        !matches!(*state, State::Entering(_))
    }

    fn leave(&self) -> bool {
        let mut state = self.state();
        let mut progress = match *state {
            State::Entering(_) | State::Entered => Progress::default(),
            State::Leaving(progress) => progress,
            State::Left => return true,
        };
        let gone = self.live.index_mut().remove(&self.subscription, &mut progress, LISTS_AT_ONCE);
        *state = if gone { State::Left } else { State::Leaving(progress) };
        gone
    }
}

impl Live {
    /// Begins where the shelf is: what has a number up to `seq` was put before, and nobody is told of it.
    pub fn since(seq: u64) -> Self {
        Self { published: AtomicU64::new(seq), ..Self::default() }
    }

    /// Starts to listen for what matches any of `queries` (limits, cursors and budgets do not
    /// count), or begins to: see [`Handle::enter`]. What comes is held back, up to `held_bytes_max`,
    /// until [`Handle::release`].
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
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let subscription = Arc::new(Subscription { number, queries, sink, seam });
        self.len.fetch_add(1, Ordering::Relaxed);
        let state = Mutex::new(State::Entering(Progress::default()));
        let registration = Registration { live: Arc::clone(self), subscription, state };
        registration.enter();
        Handle(Arc::new(registration))
    }

    fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells every subscriber of `record`. With a number, numbers must ascend and calls must not
    /// overlap.
    pub fn publish(&self, seq: Option<u64>, record: &Record<'_>) {
        let mut found = Vec::new();
        self.index.read().unwrap_or_else(PoisonError::into_inner).find(record, &mut found);
        found.sort_unstable_by_key(|subscription| subscription.number);
        found.dedup_by_key(|subscription| subscription.number);
        if !found.is_empty() {
            let news = News::new(seq, record, &self.held);
            found.retain(|subscription| subscription.offer(&news));
            for subscription in found {
                subscription.sink.wake();
            }
        }
        if let Some(seq) = seq {
            self.published.store(seq, Ordering::Release);
        }
    }

    /// Bytes of records that somebody still keeps of those who have heard of them.
    pub fn held_bytes(&self) -> u64 {
        self.held.get()
    }

    /// How many subscriptions there are.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
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

    /// Goes on to listen where there is much to listen for. True once nothing is missed: only then are
    /// searches to be opened. Each call takes about a tenth of a millisecond at most.
    pub fn enter(&self) -> bool {
        self.0.enter()
    }

    /// Ends it bit by bit, for those who have better to do than to drop it. True once it has ended;
    /// nothing that comes then is told.
    pub fn leave(&self) -> bool {
        self.0.leave()
    }

    /// Notes that the stored search for query number `index` was opened, and up to which number it
    /// sees. To be called for each query, after subscribing.
    pub fn opened(&self, index: usize, seq: u64) {
        self.0.subscription.seam().opened(index, seq);
    }

    /// All stored records are told: what was held back and is not among them follows now, then
    /// everything as it comes. `reached` says how far the answer to each query went; it is only needed
    /// where there are several.
    pub fn release(&self, reached: Vec<Reach>) {
        let subscription = &self.0.subscription;
        let mut seam = subscription.seam();
        // Under the seam's lock: whatever was published up to here has been offered.
        let published = self.0.live.published.load(Ordering::Acquire);
        seam.release(reached, published, &subscription.queries, |news| {
            subscription.sink.deliver(news);
        });
        drop(seam);
        subscription.sink.wake();
    }
}

#[cfg(test)]
mod tests;
