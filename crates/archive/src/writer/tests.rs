//! Tests of batches and of writes in steps, with the model store.

use std::sync::mpsc::channel;

use std::time::Duration;

use hark_codec::record::{Id, Record, RecordHeader, write};

use super::thread::WriterThread;
use super::*;
use crate::effects::KeepAll;
use crate::limits::NEWS_STEP;
use crate::query::Query;
use crate::query::explain::Explanation;
use crate::store::memory::MemoryStore;
use crate::store::{CommitResult, NumberedRecord, Search, SearchError, StoreStats};

fn put(n: u16) -> Write {
    let mut id = [0; 32];
    id[..2].copy_from_slice(&n.to_be_bytes());
    let mut out = Vec::new();
    let head = RecordHeader { id, time: u64::from(n), author: None, kind: 1, expires: None };
    write(&mut out, &head, b"{}", std::iter::empty());
    Write::Put(out.into())
}

/// A listener that sends the number of records in each batch.
struct CountingListener(std::sync::mpsc::Sender<usize>);

impl CommitListener for CountingListener {
    fn batch(
        &mut self,
        records: &mut dyn Iterator<Item = (u64, Record<'_>)>,
        answer: &mut dyn FnMut(),
    ) {
        self.0.send(records.count()).unwrap();
        answer();
    }
}

#[test]
fn a_batch_waits_for_many_expected_writes_but_not_for_ever() {
    let (counts, batches) = channel();
    let store = Arc::new(MemoryStore::new(KeepAll));
    let listener = Box::new(CountingListener(counts));
    let writer = Arc::new(Writer::start(store as _, WriterOptions::default(), listener));
    let mut expected = writer.expect(20);
    for n in 0..20 {
        expected.left(19 - usize::from(n));
        assert!(writer.submit(put(n), Box::new(|_| {})).is_ok());
    }
    let mut came = 0;
    while came < 20 {
        came += batches.recv().unwrap();
    }
    // Announced writes that never come do not delay other writes.
    expected.left(1_000);
    writer.write(put(20)).unwrap();
    assert_eq!(batches.recv().unwrap(), 1);
    drop(expected);
    assert_eq!(writer.expected.load(Ordering::Relaxed), 0);
}

#[test]
fn a_write_that_deletes_much_lets_others_by_between_its_steps() {
    let store = Arc::new(MemoryStore::new(KeepAll).with_erase_step(10));
    store.commit(&(0..95).map(put).collect::<Vec<_>>()).unwrap();
    let writer = Writer::start(Arc::clone(&store) as _, WriterOptions::default(), Box::new(()));
    // The job stops the writer until all writes below are queued.
    let (go, wait) = channel::<()>();
    let held = writer.between(Box::new(move |_| wait.recv().unwrap()));
    assert!(held.is_ok());
    let (sender, receiver) = channel();
    let submit = |name: &'static str, write| {
        let sender = sender.clone();
        let done = move |outcome: Result<_, _>| sender.send((name, outcome.unwrap())).unwrap();
        writer.submit(write, Box::new(done)).unwrap();
    };
    let erase =
        |from, limit| Write::Erase(Box::new(Query { from, to: 94, limit, ..Query::default() }));
    submit("all but", erase(0, 85));
    submit("one", put(1_000));
    submit("rest", erase(0, usize::MAX));
    submit("another", put(1_001));
    go.send(()).unwrap();
    let all: Vec<_> = (0..4).map(|_| receiver.recv().unwrap()).collect();
    let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
    assert_eq!(names[..2], ["one", "another"]);
    // The two erases together deleted each record once, and each erase reports only its own
    // deletes.
    let erased = all[2..].iter().map(|(_, outcome)| match outcome {
        Outcome::Erased(count) => *count,
        other => panic!("{other:?}"),
    });
    assert_eq!(erased.sum::<u64>(), 95);
    // On close, an unfinished write is answered with an error.
    store.commit(&(0..95).map(put).collect::<Vec<_>>()).unwrap();
    let (go, wait) = channel::<()>();
    assert!(writer.between(Box::new(move |_| wait.recv().unwrap())).is_ok());
    let (sender, receiver) = channel();
    let done = move |outcome| sender.send(outcome).unwrap();
    writer.submit(erase(0, usize::MAX), Box::new(done)).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| writer.close());
        while !writer.closing.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        go.send(()).unwrap();
    });
    let outcome: Result<Outcome, Arc<CommitError>> = receiver.recv().unwrap();
    assert!(matches!(*outcome.unwrap_err(), CommitError::Unavailable(_)));
    assert!(writer.submit(put(1_002), Box::new(|_| {})).is_err(), "and nothing is taken");
    writer.close();
}

type During = Box<dyn Fn() + Send>;

/// A store that other processes write to, too.
struct SharedStore {
    store: MemoryStore,
    /// Puts of other processes that are not reported yet.
    others: Mutex<Vec<NumberedRecord>>,
    /// The number of writes of each commit.
    commits: Mutex<Vec<usize>>,
    news_calls: AtomicUsize,
    /// Whether commits fail, although news can be read.
    fails: AtomicBool,
    /// Called at the end of the next commit.
    during: Mutex<Option<During>>,
}

impl SharedStore {
    /// Puts a record as another process.
    fn put_elsewhere(&self, n: u16) {
        let write = put(n);
        let done = self.store.commit(std::slice::from_ref(&write)).unwrap();
        let (Outcome::Stored { seq }, Write::Put(bytes)) = (done.outcomes[0], write) else {
            panic!("{done:?}")
        };
        self.others.lock().push((seq, bytes));
    }

    fn take_commits(&self) -> Vec<usize> {
        std::mem::take(&mut self.commits.lock())
    }

    fn take_news_calls(&self) -> usize {
        self.news_calls.swap(0, Ordering::Relaxed)
    }
}

impl Store for SharedStore {
    fn commit(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        self.commits.lock().push(writes.len());
        if self.fails.load(Ordering::Relaxed) {
            if let Some(during) = self.during.lock().take() {
                during();
            }
            return Err(CommitError::Unavailable("the disk of the database is full".into()));
        }
        let before = std::mem::take(&mut *self.others.lock());
        let done = CommitResult { before, ..self.store.commit(writes)? };
        if let Some(during) = self.during.lock().take() {
            during();
        }
        Ok(done)
    }

    fn news(&self) -> Vec<NumberedRecord> {
        self.news_calls.fetch_add(1, Ordering::Relaxed);
        let mut others = self.others.lock();
        let some = others.len().min(NEWS_STEP);
        others.drain(..some).collect()
    }

    fn knows(&self, id: &Id) -> Result<bool, SearchError> {
        self.store.knows(id)
    }

    fn search(&self, query: &Query) -> Result<Box<dyn Search>, SearchError> {
        self.store.search(query)
    }

    fn count_visiting(&self, query: &Query, visited: &mut u64) -> Result<Option<u64>, SearchError> {
        self.store.count_visiting(query, visited)
    }

    fn label_values(&self, name: u8, each: &mut dyn FnMut(&[u8], u64)) -> Result<(), SearchError> {
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
}

/// A listener that notes the sequence numbers of all records.
struct NumberListener(Arc<Mutex<Vec<u64>>>);

impl CommitListener for NumberListener {
    fn batch(
        &mut self,
        records: &mut dyn Iterator<Item = (u64, Record<'_>)>,
        answer: &mut dyn FnMut(),
    ) {
        self.0.lock().extend(records.map(|(seq, _)| seq));
        answer();
    }
}

/// A writer on a [`SharedStore`]. The test runs the turns of the writer's thread itself, and sets
/// its clock.
struct Shared {
    store: Arc<SharedStore>,
    writer: Arc<Writer>,
    thread: WriterThread,
    delivered: Arc<Mutex<Vec<u64>>>,
    now: Arc<Mutex<Instant>>,
}

impl Shared {
    fn new() -> Self {
        let store = Arc::new(SharedStore {
            store: MemoryStore::new(KeepAll),
            others: Mutex::default(),
            commits: Mutex::default(),
            news_calls: AtomicUsize::default(),
            fails: AtomicBool::default(),
            during: Mutex::default(),
        });
        let (delivered, now) = (Arc::default(), Arc::new(Mutex::new(Instant::now())));
        let clock = Arc::clone(&now);
        let (writer, thread) = Writer::prepare(
            Arc::clone(&store) as _,
            WriterOptions::default(),
            Box::new(NumberListener(Arc::clone(&delivered))),
            Box::new(move || *clock.lock()),
        );
        Self { store, writer: Arc::new(writer), thread, delivered, now }
    }

    fn submit(&self, n: u16) {
        assert!(self.writer.try_submit(put(n), Box::new(|_| {})).is_ok());
    }

    /// Puts a record as another process, which then notifies this process.
    fn put_elsewhere(&self, n: u16) {
        self.store.put_elsewhere(n);
        self.writer.deliver_news();
    }

    /// Runs all turns that are due after the clock has advanced by `after`.
    fn work(&mut self, after: Duration) {
        *self.now.lock() += after;
        self.thread.work();
    }

    /// Asserts that the first `count` puts of all processes were delivered once and in order.
    fn has_delivered(&self, count: u64) {
        assert_eq!(*self.delivered.lock(), (1..=count).collect::<Vec<_>>());
    }
}

#[test]
fn commits_of_another_process_make_no_batch_smaller() {
    let mut shared = Shared::new();
    for n in 0..1_000 {
        shared.put_elsewhere(10_000 + n);
        shared.submit(n);
        shared.put_elsewhere(20_000 + n);
    }
    shared.work(Duration::ZERO);
    assert_eq!(shared.store.take_commits(), [1_000], "one batch");
    assert_eq!(shared.store.take_news_calls(), 0, "the commit has reported all");
    shared.has_delivered(3_000);
}

#[test]
fn records_of_another_process_are_delivered_in_order_though_no_write_comes() {
    let mut shared = Shared::new();
    let count = NEWS_STEP as u16 * 2 + 200;
    for n in 0..count {
        shared.put_elsewhere(n);
    }
    shared.work(Duration::ZERO);
    shared.has_delivered(u64::from(count));
    assert_eq!(shared.store.take_news_calls(), 3, "full pages are followed by further ones");
    assert_eq!(shared.store.take_commits(), []);
    // After notices of records that are already delivered, each turn reads the news once.
    for _ in 0..100 {
        shared.writer.deliver_news();
    }
    shared.work(Duration::ZERO);
    assert_eq!(shared.store.take_news_calls(), 1);
    shared.work(Duration::ZERO);
    assert_eq!(shared.store.take_news_calls(), 0);
}

#[test]
fn a_notice_that_comes_during_a_commit_is_heeded_after_it() {
    let mut shared = Shared::new();
    shared.submit(1);
    let (store, writer) = (Arc::clone(&shared.store), Arc::clone(&shared.writer));
    *shared.store.during.lock() = Some(Box::new(move || {
        store.put_elsewhere(2);
        writer.deliver_news();
    }));
    shared.work(Duration::ZERO);
    shared.has_delivered(2);
    assert_eq!(shared.store.take_news_calls(), 1);
    // After a failed commit, the turn reads the news itself.
    shared.store.fails.store(true, Ordering::Relaxed);
    shared.put_elsewhere(3);
    shared.submit(4);
    shared.work(Duration::ZERO);
    shared.has_delivered(3);
    assert_eq!(shared.store.take_news_calls(), 1);
}

#[test]
fn the_trouble_of_a_failed_batch_ends_with_a_write_alone() {
    let mut shared = Shared::new();
    let second = Duration::from_secs(1);
    let trouble = |shared: &Shared| shared.writer.counters().unavailable();
    shared.store.fails.store(true, Ordering::Relaxed);
    shared.submit(1);
    shared.work(Duration::ZERO);
    assert!(trouble(&shared).is_some_and(|why| why.contains("the database")));
    assert_eq!(shared.store.take_commits(), [1]);
    // The database answers queries, and other processes write.
    for n in 10..18 {
        shared.put_elsewhere(n);
        shared.work(second / 10);
        assert!(trouble(&shared).is_some());
    }
    shared.has_delivered(8);
    assert_eq!(shared.store.take_commits(), []);
    // Probes fail, too.
    for _ in 0..10 {
        shared.work(second);
        assert!(trouble(&shared).is_some());
    }
    assert_eq!(shared.store.take_commits(), [0, 0, 0], "after 1, 2 and 4 s");
    shared.store.fails.store(false, Ordering::Relaxed);
    shared.put_elsewhere(18);
    shared.store.take_news_calls();
    let waited = (1..=5).find(|_| {
        shared.work(second);
        trouble(&shared).is_none()
    });
    assert!(waited.is_some(), "within five seconds");
    shared.has_delivered(9);
    assert_eq!(shared.store.take_commits(), [0]);
    shared.work(second * 60);
    assert_eq!(shared.store.take_commits(), [], "and nothing is tested any more");
    assert_eq!(shared.writer.counters().batches.read().count(), 0, "probes are no batches");
}

#[test]
fn a_commit_that_fails_late_fails_the_writes_that_were_queued_meanwhile() {
    let mut shared = Shared::new();
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let submit = |writer: &Writer, outcomes: &Arc<Mutex<Vec<(u16, bool)>>>, n: u16| {
        let outcomes = Arc::clone(outcomes);
        let done: WriteCallback =
            Box::new(move |outcome| outcomes.lock().push((n, outcome.is_ok())));
        assert!(writer.try_submit(put(n), done).is_ok());
    };
    for (wait, refused) in [(Duration::from_millis(900), 1), (Duration::from_secs(10), 4)] {
        outcomes.lock().clear();
        shared.store.fails.store(true, Ordering::Relaxed);
        submit(&shared.writer, &outcomes, 1);
        let (store, writer, now) =
            (Arc::clone(&shared.store), Arc::clone(&shared.writer), Arc::clone(&shared.now));
        let queued = Arc::clone(&outcomes);
        *shared.store.during.lock() = Some(Box::new(move || {
            *now.lock() += wait;
            submit(&writer, &queued, 2);
            submit(&writer, &queued, 3);
            // A job between two batches runs after all writes that were queued earlier.
            let seen = Arc::clone(&queued);
            let job = Box::new(move |_: &mut WriteTarget| seen.lock().push((0, true)));
            assert!(writer.between(job).is_ok());
            submit(&writer, &queued, 4);
            // Only the first commit fails.
            store.fails.store(false, Ordering::Relaxed);
        }));
        // The second write is stored in the first round, and is a duplicate in the second.
        shared.work(Duration::ZERO);
        let seen: Vec<(u16, bool)> = outcomes.lock().clone();
        let late = refused > 1;
        assert_eq!(seen, [(1, false), (2, !late), (3, !late), (0, true), (4, true)], "{wait:?}");
    }
}

/// A batch between two batches of the writer fails after its first steps. The listener has then
/// received the records of these steps, and the records of other processes.
#[test]
fn steps_of_a_batch_are_published_though_a_later_step_fails() {
    let (counts, batches) = channel();
    let calls = std::sync::atomic::AtomicU64::new(0);
    let commit = move |writes: &[Write]| {
        let seq = calls.fetch_add(1, Ordering::Relaxed) + 1;
        if seq > 2 {
            return Err(CommitError::Unavailable("the disk is full".into()));
        }
        let Write::Put(other) = put(100) else { unreachable!() };
        let before = if seq == 1 { vec![(50, other)] } else { Vec::new() };
        assert!(!writes.is_empty());
        let outcomes = vec![Outcome::Stored { seq: 50 + seq }];
        Ok(CommitResult { outcomes, before, ..CommitResult::default() })
    };
    let mut target =
        WriteTarget { commit: Box::new(commit), listener: Box::new(CountingListener(counts)) };
    let failed = target.commit_whole(&(0..3).map(put).collect::<Vec<_>>());
    assert!(matches!(failed, Err(CommitError::Unavailable(_))), "{failed:?}");
    assert_eq!(batches.try_iter().collect::<Vec<_>>(), [2, 1]);
}
