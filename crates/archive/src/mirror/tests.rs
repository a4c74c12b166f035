//! Tests of a mirror with model stores. The second store fails, lags or is opened late.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hark_codec::record::{RecordHeader, write};
use parking_lot::Mutex;

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
    /// Locked for as long as searches wait, as for a database that does not answer.
    searches: Mutex<()>,
    bounds: Mutex<Option<SpaceBounds>>,
}

impl Flaky {
    fn new(fails: bool) -> Arc<Self> {
        let (store, fails) = (MemoryStore::new(KeepAll), AtomicBool::new(fails));
        Arc::new(Self { store, fails, searches: Mutex::default(), bounds: Mutex::default() })
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
        drop(self.searches.lock());
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

    fn set_space(&self, bounds: &SpaceBounds) {
        *self.bounds.lock() = Some(*bounds);
    }
}

/// Starts a mirror of `first` and waits until it is in step.
fn mirrored(first: &Arc<dyn Store>, second: &Arc<dyn Store>) -> MirroredStore {
    let second = Arc::clone(second);
    let open: StoreOpener = Box::new(move || Ok(Arc::clone(&second)));
    let mirrored =
        MirroredStore::start(Arc::clone(first), open, MirrorOptions::default(), Box::new(|_| {}));
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
    // Until now, only the mirror had this record.
    mirrored.commit(&[put(3)]).unwrap();
    let lag = wait_until(&mirrored, |lag| lag.queued == 0);
    drop(mirrored);
    let expected = shelf(0..10, 105..110);
    assert_eq!(ids(&*second), ids(&*expected));
    assert_eq!(lag.extra, 9);
}

#[test]
fn the_first_store_does_not_wait_for_a_second_one_that_does_not_answer() {
    let first: Arc<dyn Store> = Arc::new(MemoryStore::new(KeepAll));
    let second = Flaky::new(false);
    let waits = second.searches.lock();
    let (opening, opened) = std::sync::mpsc::channel();
    let open: StoreOpener = {
        let second = Arc::clone(&second);
        Box::new(move || {
            opening.send(()).unwrap();
            Ok(Arc::clone(&second) as Arc<dyn Store>)
        })
    };
    let options = MirrorOptions::default();
    let mirrored = MirroredStore::start(Arc::clone(&first), open, options, Box::new(|_| {}));
    opened.recv().unwrap();
    // The comparison with the second store begins at any moment. Each commit returns all the same.
    for number in 0..200 {
        mirrored.commit(&[put(number)]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(waits);
    wait_until(&mirrored, |lag| lag.in_step && lag.queued == 0);
    assert_eq!(ids(&*second), ids(&*first));
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
    // A mirror that is in step passes erases on, too. When the mirror ends, it first passes on all
    // queued writes.
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
    let mirrored =
        MirroredStore::start(Arc::clone(&first) as Arc<dyn Store>, open, options, Box::new(|_| {}));
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
    assert_eq!((*first.bounds.lock(), *second.bounds.lock()), (Some(bounds(4)), Some(bounds(4))));
}
