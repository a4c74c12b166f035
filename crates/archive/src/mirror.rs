//! A second store that receives everything that the first store accepts. An operator can thus move
//! from one store to the other, and back, while the server runs.
//!
//! The first store never waits for the second. Writes that the first store has made durable go into
//! a bounded queue. A thread commits the queued writes to the second store. When the queue is full,
//! or the second store fails, the queue is discarded and the thread walks through both stores (see
//! [`crate::copy`]) until the second store has all records of the first. The thread also starts
//! with such a walk, so no state about the second store is kept.
//!
//! Records that only the second store has are counted and kept, as the second store may be more
//! than a mirror. An erase is therefore passed on as the ids of the records that the first store
//! has erased. The query of the erase could match other records in the second store. The effects of
//! a record on others (replace, delete) follow from the same rules in both stores.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hark_codec::record::Id;
use parking_lot::{Condvar, Mutex};

use crate::copy::{ComparisonWalk, Difference};
use crate::query::Query;
use crate::query::explain::Explanation;
use crate::store::ranges::IdRanges;
use crate::store::{
    CommitError, CommitResult, MirrorLag, NumberedRecord, Outcome, RetentionNote, Search,
    SearchError, SpaceBounds, Store, StoreStats, Write, commit_whole,
};
use crate::vital;

/// The bounds of a mirror's queue, and its waiting times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorOptions {
    /// Bytes of writes that may wait for the second store.
    pub queue_bytes_max: usize,
    /// Maximum number of writes in one batch to the second store.
    pub batch_writes_max: usize,
    /// Time until a failed second store is first tried again. The time doubles with each failure,
    /// up to 32 times this value.
    pub retry: Duration,
    /// How long a shutdown waits for queued writes.
    pub drain: Duration,
}

impl Default for MirrorOptions {
    fn default() -> Self {
        Self {
            queue_bytes_max: 64 << 20,
            batch_writes_max: 1_024,
            retry: Duration::from_millis(500),
            drain: Duration::from_secs(10),
        }
    }
}

/// Opens the second store. Called again until it succeeds.
pub type StoreOpener = Box<dyn Fn() -> Result<Arc<dyn Store>, String> + Send>;
/// Logs that the mirror falls behind, fails, or is in step again.
pub type MirrorReporter = Box<dyn Fn(&str) + Send>;

/// The first store, which passes accepted writes on to the second store.
pub struct MirroredStore {
    shared: Arc<MirrorState>,
    thread: Option<JoinHandle<()>>,
}

struct MirrorState {
    first: Arc<dyn Store>,
    options: MirrorOptions,
    /// Held from a commit until its writes are queued, so that a walk begins between two commits.
    order: Mutex<()>,
    queue: Mutex<MirrorQueue>,
    second: Mutex<SecondStore>,
    /// Signals that the queue has grown, or that it is time to end.
    grown: Condvar,
    closing: AtomicBool,
    progress: LastProgress,
    copied: AtomicU64,
    extra: AtomicU64,
    refused: AtomicU64,
}

/// The time at which the second store last committed writes, or a comparison last advanced. Cheap
/// to note.
struct LastProgress {
    started: Instant,
    at_ms: AtomicU64,
}

impl LastProgress {
    fn new() -> Self {
        Self { started: Instant::now(), at_ms: AtomicU64::new(0) }
    }

    fn note(&self) {
        self.at_ms.store(milliseconds(self.started.elapsed()), Ordering::Relaxed);
    }

    fn idle_ms(&self) -> u64 {
        milliseconds(self.started.elapsed()).saturating_sub(self.at_ms.load(Ordering::Relaxed))
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The second store while it is open, and the bounds that were set since the start. The opener
/// always opens the store with the bounds of the start.
#[derive(Default)]
struct SecondStore {
    store: Option<Weak<dyn Store>>,
    bounds: Option<SpaceBounds>,
}

impl SecondStore {
    /// Notes that the second store was opened.
    fn opened(&mut self, store: &Arc<dyn Store>) {
        if let Some(bounds) = &self.bounds {
            store.set_space(bounds);
        }
        self.store = Some(Arc::downgrade(store));
    }

    fn set_space(&mut self, bounds: &SpaceBounds) {
        self.bounds = Some(*bounds);
        if let Some(store) = self.store.as_ref().and_then(Weak::upgrade) {
            store.set_space(bounds);
        }
    }
}

struct MirrorQueue {
    writes: VecDeque<QueuedWrite>,
    bytes: usize,
    /// Whether the second store has not yet answered the batch that was taken last.
    is_writing: bool,
    /// Whether writes are missing in the queue. Only a walk finds such writes.
    gap: bool,
    /// Since when there has been a gap that no walk has closed yet.
    behind_since: Option<Instant>,
    trouble: Option<String>,
    /// When to give up the remaining writes.
    ends_at: Option<Instant>,
}

/// A write that waits for the second store.
struct QueuedWrite {
    since: Instant,
    write: Write,
    /// Number of records that the first store deleted with this write.
    deleted: usize,
}

/// Estimates the bytes that a write takes in the queue. For a query, the size of its lists is close
/// enough for a bound.
fn size(write: &Write) -> usize {
    match write {
        Write::Put(record) => record.len() + 64,
        Write::Erase(query) => query.values() * 32 + 256,
    }
}

impl MirrorQueue {
    fn push(&mut self, write: Write, deleted: usize) {
        self.bytes += size(&write);
        self.writes.push_back(QueuedWrite { since: Instant::now(), write, deleted });
    }

    /// Queues the records that other processes have put into the first store.
    fn push_news(&mut self, news: &[NumberedRecord]) {
        // The number of records that these records deleted in the first store is unknown. It is
        // assumed to be as many as they delete in the second store.
        for (_, record) in news {
            self.push(Write::Put(record.clone()), usize::MAX);
        }
    }

    /// Discards all queued writes.
    fn give_up(&mut self) {
        self.writes = VecDeque::new();
        self.bytes = 0;
        self.gap = true;
        self.behind_since.get_or_insert_with(Instant::now);
    }
}

impl MirroredStore {
    /// Starts the thread that brings the second store in step with the first.
    pub fn start(
        first: Arc<dyn Store>,
        second: StoreOpener,
        options: MirrorOptions,
        report: MirrorReporter,
    ) -> Self {
        let queue = MirrorQueue {
            writes: VecDeque::new(),
            bytes: 0,
            is_writing: false,
            gap: true,
            behind_since: Some(Instant::now()),
            trouble: None,
            ends_at: None,
        };
        let shared = Arc::new(MirrorState {
            first,
            options,
            order: Mutex::new(()),
            queue: Mutex::new(queue),
            second: Mutex::default(),
            grown: Condvar::new(),
            closing: AtomicBool::new(false),
            progress: LastProgress::new(),
            copied: AtomicU64::new(0),
            extra: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let thread = vital::spawn("hark-mirror", {
            let shared = Arc::clone(&shared);
            move || shared.run(&second, &report)
        })
        .expect("the system starts a thread");
        Self { shared, thread: Some(thread) }
    }

    /// Returns how far the second store is behind the first.
    pub fn lag(&self) -> MirrorLag {
        let queue = self.shared.queue.lock();
        let since = queue.behind_since.or_else(|| Some(queue.writes.front()?.since));
        let behind = since.map_or(Duration::ZERO, |since| since.elapsed());
        let waits = since.is_some() || queue.is_writing;
        MirrorLag {
            queued: queue.writes.len() as u64,
            queued_bytes: queue.bytes as u64,
            behind_ms: milliseconds(behind),
            in_step: queue.behind_since.is_none(),
            copied: self.shared.copied.load(Ordering::Relaxed),
            extra: self.shared.extra.load(Ordering::Relaxed),
            refused: self.shared.refused.load(Ordering::Relaxed),
            trouble: queue.trouble.clone(),
            idle_ms: if waits { self.shared.progress.idle_ms() } else { 0 },
        }
    }
}

impl Drop for MirroredStore {
    fn drop(&mut self) {
        self.shared.queue.lock().ends_at = Some(Instant::now() + self.shared.options.drain);
        self.shared.closing.store(true, Ordering::Relaxed);
        self.shared.grown.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic: see `vital`.
            let _ = thread.join();
        }
    }
}

impl Store for MirroredStore {
    fn commit(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        commit_whole(writes, |writes| self.commit_some(writes))
    }

    fn commit_some(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        let _order = self.shared.order.lock();
        let committed = self.shared.first.commit_some(writes)?;
        self.shared.fill(|queue| {
            queue.push_news(&committed.before);
            let mut erased = committed.erased.as_slice();
            for (at, (write, outcome)) in writes.iter().zip(&committed.outcomes).enumerate() {
                let by_this = erased.iter().take_while(|(by, _)| *by == at).count();
                let (ids, others) = erased.split_at(by_this);
                erased = others;
                match outcome {
                    Outcome::Stored { .. } => queue.push(write.clone(), ids.len()),
                    _ if ids.is_empty() => {}
                    _ => {
                        let ids = Some(ids.iter().map(|(_, id)| *id).collect());
                        let gone = Query { ids, ..Query::default() };
                        queue.push(Write::Erase(Box::new(gone)), by_this);
                    }
                }
            }
        });
        Ok(committed)
    }

    fn knows(&self, id: &Id) -> Result<bool, SearchError> {
        self.shared.first.knows(id)
    }

    fn search(&self, query: &Query) -> Result<Box<dyn Search>, SearchError> {
        self.shared.first.search(query)
    }

    fn count_visiting(&self, query: &Query, visited: &mut u64) -> Result<Option<u64>, SearchError> {
        self.shared.first.count_visiting(query, visited)
    }

    fn ranges(&self, query: &Query) -> Result<Option<Box<dyn IdRanges>>, SearchError> {
        self.shared.first.ranges(query)
    }

    fn label_values(&self, name: u8, each: &mut dyn FnMut(&[u8], u64)) -> Result<(), SearchError> {
        self.shared.first.label_values(name, each)
    }

    fn expired(&self, now: u64, limit: usize) -> Result<Vec<Id>, SearchError> {
        self.shared.first.expired(now, limit)
    }

    fn explain(&self, query: &Query) -> Result<Explanation, SearchError> {
        self.shared.first.explain(query)
    }

    fn explain_count(&self, query: &Query) -> Result<Explanation, SearchError> {
        self.shared.first.explain_count(query)
    }

    /// Always returns `None`: the mirror needs the ids of deleted records, so they are erased one
    /// by one instead.
    fn drop_part(&self, _: u64, _: &[u32]) -> Result<Option<u64>, SearchError> {
        Ok(None)
    }

    fn note(&self, note: RetentionNote) -> Result<Option<u64>, SearchError> {
        self.shared.first.note(note)
    }

    fn set_note(&self, note: RetentionNote, number: Option<u64>) -> Result<(), CommitError> {
        self.shared.first.set_note(note, number)
    }

    fn deletes_follow(&self, follow: bool) {
        self.shared.first.deletes_follow(follow);
    }

    fn set_space(&self, bounds: &SpaceBounds) {
        self.shared.first.set_space(bounds);
        self.shared.second.lock().set_space(bounds);
    }

    fn damage(&self) -> (u64, u64) {
        self.shared.first.damage()
    }

    fn trouble(&self) -> Option<String> {
        self.shared.first.trouble()
    }

    fn news(&self) -> Vec<NumberedRecord> {
        let _order = self.shared.order.lock();
        let news = self.shared.first.news();
        if !news.is_empty() {
            self.shared.fill(|queue| queue.push_news(&news));
        }
        news
    }

    fn on_news(&self, wake: Box<dyn Fn() + Send>) {
        self.shared.first.on_news(wake);
    }

    fn stats(&self) -> StoreStats {
        StoreStats { mirror: Some(self.lag()), ..self.shared.first.stats() }
    }

    fn mirror(&self) -> Option<MirrorLag> {
        Some(self.lag())
    }
}

impl MirrorState {
    /// Adds writes to the queue, and discards the whole queue if it becomes too large.
    fn fill(&self, fill: impl FnOnce(&mut MirrorQueue)) {
        let mut queue = self.queue.lock();
        if queue.writes.is_empty() && !queue.is_writing && queue.behind_since.is_none() {
            // Nothing waited until now.
            self.progress.note();
        }
        fill(&mut queue);
        if queue.bytes > self.options.queue_bytes_max {
            queue.give_up();
        }
        drop(queue);
        self.grown.notify_all();
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    fn run(&self, open: &StoreOpener, report: &MirrorReporter) {
        let mut wait = self.options.retry;
        while !self.is_closing() {
            let failed = open().and_then(|second| {
                wait = self.options.retry;
                self.second.lock().opened(&second);
                self.follow(&*second, report)
            });
            let Err(reason) = failed else { return };
            let mut queue = self.queue.lock();
            queue.is_writing = false;
            queue.give_up();
            if queue.trouble.as_ref() != Some(&reason) {
                report(&format!("the mirror takes nothing and is tried again: {reason}"));
            }
            queue.trouble = Some(reason);
            // The thread is woken by the end or by new writes; new writes do not shorten the wait.
            let until = Instant::now() + wait;
            while !self.is_closing() && Instant::now() < until {
                let left = until.saturating_duration_since(Instant::now());
                self.grown.wait_for(&mut queue, left);
            }
            wait = (wait * 2).min(self.options.retry * 32);
        }
    }

    /// Keeps the second store in step until the end, or until that store fails.
    fn follow(&self, second: &dyn Store, report: &MirrorReporter) -> Result<(), String> {
        loop {
            let gap = self.queue.lock().gap;
            if gap {
                if self.is_closing() {
                    return Ok(());
                }
                self.catch_up(second, report)?;
                continue;
            }
            let Some(batch) = self.next() else { return Ok(()) };
            let writes: Vec<Write> = batch.iter().map(|queued| queued.write.clone()).collect();
            if !writes.is_empty() {
                let done = second.commit(&writes).map_err(|error| error.to_string())?;
                self.progress.note();
                self.queue.lock().is_writing = false;
                self.copied.fetch_add(writes.len() as u64, Ordering::Relaxed);
                let fewer = no_more_its_own(&batch, &done);
                let less = |extra: u64| Some(extra.saturating_sub(fewer));
                // Does not fail: `less` always returns a number.
                let _ = self.extra.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            }
        }
    }

    /// Waits for the next writes and removes them from the queue. The result is empty if the queue
    /// was discarded, and `None` at the end.
    fn next(&self) -> Option<Vec<QueuedWrite>> {
        let mut queue = self.queue.lock();
        while queue.writes.is_empty() && !queue.gap {
            if self.is_closing() {
                return None;
            }
            self.grown.wait(&mut queue);
        }
        if queue.ends_at.is_some_and(|at| at < Instant::now()) {
            return None;
        }
        let count = queue.writes.len().min(self.options.batch_writes_max);
        let batch: Vec<QueuedWrite> = queue.writes.drain(..count).collect();
        queue.bytes -= batch.iter().map(|queued| size(&queued.write)).sum::<usize>();
        queue.is_writing = !batch.is_empty();
        Some(batch)
    }

    /// Walks through both stores and copies the records that are missing in the second. Writes that
    /// come meanwhile gather in the queue; if the queue overflows, another walk follows.
    fn catch_up(&self, second: &dyn Store, report: &MirrorReporter) -> Result<(), String> {
        let failed = |error: SearchError| error.to_string();
        let started = Instant::now();
        // The walk includes the effects of all writes queued so far, so these are dropped: a second
        // erase could erase more.
        let order = self.order.lock();
        {
            let mut queue = self.queue.lock();
            queue.give_up();
            queue.gap = false;
            queue.trouble = None;
        }
        let mut walk = ComparisonWalk::new(&*self.first, second).map_err(failed)?;
        drop(order);
        let (mut copied, mut refused, mut extra) = (0, 0, 0);
        let mut batch = Vec::new();
        let mut rested = Instant::now();
        loop {
            let difference = walk.next_difference_with(|| self.progress.note()).map_err(failed)?;
            let ended = difference.is_none();
            match difference {
                Some(Difference::Missing(record)) => batch.push(Write::Put(record)),
                Some(Difference::Extra(_)) => extra += 1,
                None => {}
            }
            if batch.len() >= self.options.batch_writes_max || ended && !batch.is_empty() {
                let committed = second.commit(&batch).map_err(|error| error.to_string())?;
                self.progress.note();
                for outcome in committed.outcomes {
                    match outcome {
                        Outcome::Stored { .. } => copied += 1,
                        Outcome::Duplicate | Outcome::Erased(_) => {}
                        Outcome::Superseded | Outcome::Refused(_) => refused += 1,
                    }
                }
                batch.clear();
            }
            if ended {
                break;
            }
            if self.is_closing() {
                self.queue.lock().give_up();
                return Ok(());
            }
            // The walk uses at most half of a core, as queries have priority.
            let worked = rested.elapsed();
            if worked > Duration::from_millis(10) {
                std::thread::sleep(worked.min(Duration::from_millis(100)));
                rested = Instant::now();
            }
        }
        self.copied.fetch_add(copied, Ordering::Relaxed);
        self.extra.store(extra, Ordering::Relaxed);
        self.refused.store(refused, Ordering::Relaxed);
        let mut queue = self.queue.lock();
        if queue.gap {
            // More writes came meanwhile than the queue holds, so another walk follows.
            return Ok(());
        }
        queue.behind_since = None;
        drop(queue);
        report(&format!(
            "the mirror is in step: compared: {} in {} s, brought over: {copied}, refused by it: \
             {refused}, only it has: {extra}",
            walk.compared(),
            started.elapsed().as_secs()
        ));
        Ok(())
    }
}

/// Counts the records that only the second store had before this batch and that are no longer
/// extra. Either the first store has now put the record too, or the rules deleted the record in the
/// second store but not in the first.
fn no_more_its_own(batch: &[QueuedWrite], done: &CommitResult) -> u64 {
    let mut deleted = vec![0_usize; batch.len()];
    for (at, _) in &done.erased {
        deleted.iter_mut().skip(*at).take(1).for_each(|count| *count += 1);
    }
    let each = batch.iter().zip(&done.outcomes).zip(deleted).map(|((queued, outcome), deleted)| {
        let doubled = usize::from(*outcome == Outcome::Duplicate);
        deleted.saturating_sub(queued.deleted) + doubled
    });
    each.sum::<usize>() as u64
}

#[cfg(test)]
mod tests {
    use hark_codec::record::{RecordHeader, write};

    use super::*;
    use crate::effects::KeepAll;
    use crate::query::Order;
    use crate::store::memory::MemoryStore;

    fn put(n: u32) -> Write {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&n.to_be_bytes());
        let mut out = Vec::new();
        let head =
            RecordHeader { id, time: u64::from(n / 3), author: None, kind: n % 5, expires: None };
        write(&mut out, &head, b"{}", std::iter::empty());
        Write::Put(out.into())
    }

    fn ids(store: &dyn Store) -> Vec<Id> {
        let query = Query { order: Order::OldestFirst, ..Query::default() };
        let mut ids = Vec::new();
        store
            .search(&query)
            .unwrap()
            .slice(u64::MAX, &mut |record| {
                ids.push(*record.id());
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
        ids
    }

    fn wait_until(mirrored: &MirroredStore, done: impl Fn(&MirrorLag) -> bool) -> MirrorLag {
        let until = Instant::now() + Duration::from_mins(2);
        loop {
            let lag = mirrored.lag();
            if done(&lag) {
                return lag;
            }
            assert!(Instant::now() < until, "{lag:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A store whose commits fail while `fails` is set.
    struct Flaky {
        store: MemoryStore,
        fails: AtomicBool,
        bounds: Mutex<Option<SpaceBounds>>,
    }

    impl Flaky {
        fn new(fails: bool) -> Arc<Self> {
            let (store, fails) = (MemoryStore::new(KeepAll), AtomicBool::new(fails));
            Arc::new(Self { store, fails, bounds: Mutex::default() })
        }
    }

    impl Store for Flaky {
        fn commit(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
            if self.fails.load(Ordering::Relaxed) {
                return Err(CommitError::Stopped("it is away".into()));
            }
            self.store.commit(writes)
        }

        fn knows(&self, id: &Id) -> Result<bool, SearchError> {
            Store::knows(&self.store, id)
        }

        fn search(&self, query: &Query) -> Result<Box<dyn Search>, SearchError> {
            self.store.search(query)
        }

        fn count_visiting(
            &self,
            query: &Query,
            visited: &mut u64,
        ) -> Result<Option<u64>, SearchError> {
            self.store.count_visiting(query, visited)
        }

        fn label_values(
            &self,
            name: u8,
            each: &mut dyn FnMut(&[u8], u64),
        ) -> Result<(), SearchError> {
            self.store.label_values(name, each)
        }

        fn expired(&self, now: u64, limit: usize) -> Result<Vec<Id>, SearchError> {
            self.store.expired(now, limit)
        }

        fn explain(&self, query: &Query) -> Result<Explanation, SearchError> {
            self.store.explain(query)
        }

        fn stats(&self) -> StoreStats {
            self.store.stats()
        }

        fn set_space(&self, bounds: &SpaceBounds) {
            *self.bounds.lock() = Some(*bounds);
        }
    }

    /// Starts a mirror of `first` and waits until it is in step.
    fn mirrored(first: &Arc<dyn Store>, second: &Arc<dyn Store>) -> MirroredStore {
        let second = Arc::clone(second);
        let open: StoreOpener = Box::new(move || Ok(Arc::clone(&second)));
        let mirrored = MirroredStore::start(
            Arc::clone(first),
            open,
            MirrorOptions::default(),
            Box::new(|_| {}),
        );
        wait_until(&mirrored, |lag| lag.in_step);
        mirrored
    }

    #[test]
    fn what_is_erased_by_a_limit_goes_in_the_mirror_and_nothing_else() {
        let shelf = |own: std::ops::Range<u32>, others: std::ops::Range<u32>| {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new(KeepAll));
            let writes = own.chain(others).map(put).collect::<Vec<_>>();
            store.commit(&writes).unwrap();
            store
        };
        let (first, second) = (shelf(0..0, 100..110), shelf(0..10, 100..110));
        let mirrored = mirrored(&first, &second);
        assert_eq!(mirrored.lag().extra, 10);
        let oldest = Query { order: Order::OldestFirst, limit: 5, ..Query::default() };
        mirrored.commit(&[Write::Erase(Box::new(oldest))]).unwrap();
        // A record that so far only the mirror had.
        mirrored.commit(&[put(3)]).unwrap();
        let lag = wait_until(&mirrored, |lag| lag.queued == 0);
        drop(mirrored);
        let expected = shelf(0..10, 105..110);
        assert_eq!(ids(&*second), ids(&*expected));
        assert_eq!(lag.extra, 9);
    }

    #[test]
    fn the_mirror_ends_the_same_though_it_fails_and_the_queue_overflows() {
        let first: Arc<dyn Store> = Arc::new(MemoryStore::new(KeepAll));
        first.commit(&(0..500).map(put).collect::<Vec<_>>()).unwrap();
        let second = Flaky::new(true);
        // A record that only the mirror has is counted and kept.
        second.store.commit(&[put(1_000_000)]).unwrap();
        let open: StoreOpener = {
            let second = Arc::clone(&second);
            Box::new(move || Ok(Arc::clone(&second) as Arc<dyn Store>))
        };
        let options = MirrorOptions {
            queue_bytes_max: 20_000,
            retry: Duration::from_millis(5),
            ..MirrorOptions::default()
        };
        let mirrored = MirroredStore::start(Arc::clone(&first), open, options, Box::new(|_| {}));
        wait_until(&mirrored, |lag| lag.trouble.is_some());
        assert!(!mirrored.lag().in_step);
        for n in 500..3_000 {
            mirrored.commit(&[put(n)]).unwrap();
            if n == 1_500 {
                second.fails.store(false, Ordering::Relaxed);
                wait_until(&mirrored, |lag| lag.in_step);
            }
            if n == 2_500 {
                second.fails.store(true, Ordering::Relaxed);
            }
        }
        let kinds = Query { kinds: Some(vec![3]), ..Query::default() };
        second.fails.store(false, Ordering::Relaxed);
        let lag = wait_until(&mirrored, |lag| lag.in_step && lag.queued == 0);
        assert_eq!((lag.extra, lag.refused, lag.trouble), (1, 0, None));
        // In step, erases are passed on as well; at the end, all queued writes are.
        mirrored.commit(&[Write::Erase(Box::new(kinds)), put(4_000)]).unwrap();
        drop(mirrored);
        let mut expected = ids(&*first);
        assert_eq!(expected.len(), 2_401);
        let Write::Put(own) = put(1_000_000) else { unreachable!() };
        expected.extend(own.first_chunk::<32>());
        assert_eq!(ids(&*second), expected);
    }

    #[test]
    fn bounds_of_files_reach_both_stores_also_one_that_is_opened_later() {
        let (first, second) = (Flaky::new(false), Flaky::new(false));
        let (allow, allowed) = std::sync::mpsc::channel::<()>();
        let open: StoreOpener = {
            let second = Arc::clone(&second);
            Box::new(move || {
                allowed.recv().map_err(|_| "it ends".to_owned())?;
                Ok(Arc::clone(&second) as Arc<dyn Store>)
            })
        };
        let options = MirrorOptions::default();
        let mirrored = MirroredStore::start(
            Arc::clone(&first) as Arc<dyn Store>,
            open,
            options,
            Box::new(|_| {}),
        );
        let bounds = |free_bytes_min| SpaceBounds {
            log_bytes_max: 1,
            dead_bytes_max: 2,
            free_bytes_min,
            erase_within: None,
        };
        mirrored.set_space(&bounds(3));
        assert_eq!((*first.bounds.lock(), *second.bounds.lock()), (Some(bounds(3)), None));
        allow.send(()).unwrap();
        wait_until(&mirrored, |lag| lag.in_step);
        assert_eq!(*second.bounds.lock(), Some(bounds(3)));
        mirrored.set_space(&bounds(4));
        assert_eq!(
            (*first.bounds.lock(), *second.bounds.lock()),
            (Some(bounds(4)), Some(bounds(4)))
        );
    }
}
