//! Tests of single steps and of the thread, on the model store, with a clock that the tests set.

use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Once};
use std::time::Duration;

use hark_codec::record::{self, Id, LabelPosition, Record, RecordHeader};

use super::{RetentionPolicy, RetentionRule, RetentionState, RetentionThread, SweepResult};
use crate::clock::Clock;
use crate::effects::KeepAll;
use crate::query::explain::Explanation;
use crate::query::{Order, Query};
use crate::store::memory::MemoryStore;
use crate::store::{
    CommitError, CommitResult, DiskUse, RetentionNote, Search, SearchError, Store, StoreStats,
    Write,
};
use crate::writer::{Writer, WriterOptions};

const DAY: u64 = 86_400;

fn record(id: u8, time: u64, kind: u32, author: u8, expires: Option<u64>) -> Write {
    let head = RecordHeader { id: [id; 32], time, author: Some([author; 32]), kind, expires };
    let mut bytes = Vec::new();
    record::write(&mut bytes, &head, b"{}", std::iter::empty::<(u8, LabelPosition<'_>)>());
    Write::Put(bytes.into())
}

fn shelf(records: &[Write]) -> (Arc<dyn Store>, Writer) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(KeepAll));
    store.commit(records).unwrap();
    let writer = Writer::start(Arc::clone(&store), WriterOptions::default(), Box::new(()));
    (store, writer)
}

fn of(clock: Clock) -> (Clock, Arc<RetentionState>) {
    (clock, Arc::default())
}

fn left(store: &dyn Store) -> Vec<u8> {
    let mut ids = Vec::new();
    let query = Query { order: Order::OldestFirst, ..Query::default() };
    let mut search = store.search(&query).unwrap();
    let mut sink = |record: &crate::Record<'_>| {
        ids.push(record.id()[0]);
        std::ops::ControlFlow::Continue(())
    };
    search.slice(u64::MAX, &mut sink).unwrap();
    ids
}

#[test]
fn each_store_gives_its_part_of_what_the_disk_lacks_or_none() {
    let policy = RetentionPolicy { free_bytes_min: Some(1_000), ..RetentionPolicy::default() };
    let stats = |free: u64, kept: u64, reclaimable: u64| StoreStats {
        free_bytes: Some(free),
        disk: Some(DiskUse { kept, reclaimable, free_wanted: 0 }),
        ..StoreStats::default()
    };
    // All stores together keep 800 bytes, and this store keeps 100.
    assert_eq!(policy.lacking_bytes(&stats(1_000, 800, 0), 100), (0, false));
    assert_eq!(policy.lacking_bytes(&stats(840, 800, 0), 100), (20, false));
    assert_eq!(policy.lacking_bytes(&stats(840, 800, 159), 100), (1, false));
    assert_eq!(policy.lacking_bytes(&stats(600, 800, 0), 800), (400, false));
    assert_eq!(policy.lacking_bytes(&stats(599, 800, 0), 100), (0, true));
    assert_eq!(policy.lacking_bytes(&stats(0, 0, 0), 0), (0, true));
    assert_eq!(policy.lacking_bytes(&StoreStats::default(), 100), (0, false));
    // The stores need more free bytes than the setting demands.
    let disk = Some(DiskUse { kept: 800, reclaimable: 0, free_wanted: 1_200 });
    let wanting = StoreStats { disk, ..stats(1_000, 0, 0) };
    assert_eq!(policy.lacking_bytes(&wanting, 800), (200, false));
    let unbounded = RetentionPolicy::default();
    assert_eq!(unbounded.lacking_bytes(&wanting, 800), (0, false));
}

#[test]
fn what_has_expired_goes_and_no_more() {
    let (store, writer) = shelf(&[
        record(1, 10, 1, 1, Some(100)),
        record(2, 10, 1, 1, Some(101)),
        record(3, 10, 1, 1, None),
    ]);
    let clock = Clock::fake(100);
    let policy = RetentionPolicy::default();
    assert_eq!(policy.step(&*store, &writer, &clock).unwrap().expired, 1);
    assert_eq!(policy.step(&*store, &writer, &clock).unwrap(), SweepResult::default());
    assert_eq!(left(&*store), [2, 3]);
}

#[test]
fn tombstones_stay_whatever_the_rules_say_and_hold_nothing_else_up() {
    // There are more tombstones with an expiry than one batch deletes, as in archives of earlier
    // versions.
    let mut records: Vec<_> =
        (0..20).map(|n| record(n, 10, if n % 2 == 0 { 5 } else { 62 }, 1, Some(20))).collect();
    records.push(record(99, 10, 1, 1, Some(20)));
    let (store, writer) = shelf(&records);
    let policy = RetentionPolicy {
        rules: vec![RetentionRule::default()],
        records_max: Some(1),
        tombstone_kinds: vec![5, 62],
        batch_max: 4,
        ..RetentionPolicy::default()
    };
    let clock = Clock::fake(100);
    assert_eq!(policy.step(&*store, &writer, &clock).unwrap().expired, 1);
    assert_eq!(policy.step(&*store, &writer, &clock).unwrap(), SweepResult::default());
    assert_eq!(left(&*store), (0..20).collect::<Vec<u8>>());
}

#[test]
fn rules_take_the_oldest_first_in_batches_and_spare_tombstones() {
    let (store, writer) = shelf(&[
        record(1, 10, 1, 1, None),
        record(2, 20, 1, 1, None),
        record(3, 30, 1, 1, None),
        record(4, 95, 1, 1, None),
        record(5, 10, 5, 1, None),
        record(6, 10, 7, 1, None),
        record(7, 10, 1, 2, None),
    ]);
    let rule = RetentionRule {
        kinds: Some(vec![1, 5]),
        authors: Some(vec![[1; 32]]),
        older_than_s: 10,
        ..RetentionRule::default()
    };
    let policy = RetentionPolicy {
        rules: vec![rule],
        spared_kinds: vec![5],
        batch_max: 2,
        ..RetentionPolicy::default()
    };
    let clock = Clock::fake(100);
    assert_eq!(policy.step(&*store, &writer, &clock).unwrap().aged, 2);
    assert_eq!(left(&*store), [5, 6, 7, 3, 4]);
    assert_eq!(policy.step(&*store, &writer, &clock).unwrap().aged, 1);
    assert_eq!(policy.step(&*store, &writer, &clock).unwrap().aged, 0);
    assert_eq!(left(&*store), [5, 6, 7, 4]);
}

#[test]
fn size_takes_the_oldest_until_it_is_met() {
    let records: Vec<_> = (0..100).map(|n| record(n, u64::from(n), 1, 1, None)).collect();
    let (store, writer) = shelf(&records);
    let bytes_max = store.stats().bytes / 4;
    let policy =
        RetentionPolicy { bytes_max: Some(bytes_max), batch_max: 10, ..RetentionPolicy::default() };
    let clock = Clock::fake(1000);
    while policy.step(&*store, &writer, &clock).unwrap().total() > 0 {}
    assert!(store.stats().bytes <= bytes_max);
    assert_eq!(left(&*store), (75..100).collect::<Vec<u8>>());
}

#[test]
fn a_number_takes_the_oldest_until_it_is_met_beside_other_bounds() {
    let records: Vec<_> = (0..100).map(|n| record(n, u64::from(n), 1, 1, None)).collect();
    let (store, writer) = shelf(&records);
    let rule = RetentionRule { older_than_s: 95, ..RetentionRule::default() };
    let policy = RetentionPolicy {
        rules: vec![rule],
        records_max: Some(90),
        bytes_max: Some(store.stats().bytes),
        ..RetentionPolicy::default()
    };
    let clock = Clock::fake(100);
    while policy.step(&*store, &writer, &clock).unwrap().total() > 0 {}
    assert_eq!(left(&*store), (10..100).collect::<Vec<u8>>());
}

#[test]
fn a_clock_that_the_archive_does_not_bear_out_costs_nothing_but_what_there_is_no_room_for() {
    let records = |days: &[u64]| -> Vec<Write> {
        let record = |(n, day): (usize, &u64)| record(*day as u8 + n as u8, day * DAY, 1, 1, None);
        days.iter().enumerate().map(record).collect()
    };
    // One record has a time far in the future, as is common in archives.
    let mut all = records(&[100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110]);
    all.push(record(1, 99_000 * DAY, 1, 1, None));
    all.push(record(2, 100 * DAY, 1, 1, Some(111 * DAY)));
    let (store, writer) = shelf(&all);
    let rule = RetentionRule { older_than_s: 5 * DAY, ..RetentionRule::default() };
    let policy = RetentionPolicy { rules: vec![rule], ..RetentionPolicy::default() };
    let step =
        |policy: &RetentionPolicy, clock: &Clock| policy.step(&*store, &writer, clock).unwrap();
    let ahead = Clock::fake(99_000 * DAY);
    let doubted = SweepResult { clock_doubted: true, ..SweepResult::default() };
    assert_eq!(step(&policy, &ahead), doubted);
    let full = RetentionPolicy { records_max: Some(12), ..policy.clone() };
    assert_eq!(step(&full, &ahead), SweepResult { crowded: 1, ..doubted });
    // A clock that was trusted stays trusted without new records, but not if it jumps ahead.
    let clock = Clock::fake(110 * DAY);
    assert!(!step(&policy, &clock).clock_doubted);
    clock.set(110 * DAY + 30);
    assert!(!step(&policy, &clock).clock_doubted);
    clock.set(200 * DAY);
    assert!(step(&policy, &clock).clock_doubted);
    let left = store.stats().records;
    assert_eq!(left, 6, "those of the last five days, and the one of far ahead");
    // With this setting the clock is trusted, and stays trusted when the setting is reverted.
    let sure = RetentionPolicy { clock_ahead_max_s: None, ..policy.clone() };
    assert!(!step(&sure, &clock).clock_doubted);
    clock.set(201 * DAY);
    assert!(!step(&policy, &clock).clock_doubted);
    assert_eq!(store.stats().records, 1);
}

#[test]
fn a_wrong_clock_is_not_trusted_however_many_records_are_dated_near_it() {
    let (store, writer) =
        shelf(&(0..20).map(|n| record(n, 100 * DAY, 1, 1, None)).collect::<Vec<_>>());
    let rule = RetentionRule { older_than_s: 90 * DAY, ..RetentionRule::default() };
    let policy = RetentionPolicy { rules: vec![rule], ..RetentionPolicy::default() };
    let step = |clock: &Clock| policy.step(&*store, &writer, clock).unwrap();
    assert_eq!(step(&Clock::fake(101 * DAY)), SweepResult::default());
    // The clock is ten years ahead, in this process and in later ones, and records of strangers
    // have the time of this clock.
    let wrong = Clock::fake(3_751 * DAY);
    let doubted = SweepResult { clock_doubted: true, ..SweepResult::default() };
    assert_eq!(step(&wrong), doubted);
    for n in 0..50 {
        store.commit(&[record(100 + n, 3_750 * DAY, 1, 2, None)]).unwrap();
        assert_eq!(step(&wrong), doubted);
    }
    assert_eq!(store.stats().records, 70);
    // The clock is trusted as soon as it is corrected.
    assert_eq!(step(&Clock::fake(102 * DAY)), SweepResult::default());
}

#[test]
fn a_clock_is_not_doubted_where_nothing_is_due() {
    let (store, writer) = shelf(&[record(1, 100 * DAY, 1, 1, None)]);
    let (mut policy, clock) = (RetentionPolicy::default(), Clock::fake(140 * DAY));
    assert_eq!(policy.step(&*store, &writer, &clock).unwrap(), SweepResult::default());
    policy.rules = vec![RetentionRule { older_than_s: 41 * DAY, ..RetentionRule::default() }];
    assert_eq!(policy.step(&*store, &writer, &clock).unwrap(), SweepResult::default());
    clock.set(141 * DAY);
    assert!(policy.step(&*store, &writer, &clock).unwrap().clock_doubted);
}

#[test]
fn what_was_brought_is_held_until_a_person_lets_rules_delete_it() {
    let (store, writer) = shelf(&[]);
    let (state, clock) = (RetentionState::default(), Clock::fake(1_000 * DAY));
    let rule = |days: u64| RetentionRule { older_than_s: days * DAY, ..RetentionRule::default() };
    let mut policy = RetentionPolicy { rules: vec![rule(30)], ..RetentionPolicy::default() };
    for (id, day, is_held) in [(1, 10, true), (2, 969, true), (3, 971, false)] {
        let Write::Put(bytes) = record(id, day * DAY, 1, 1, None) else { unreachable!() };
        let read = Record::new(&bytes).unwrap();
        assert_eq!(
            state.prepare_import(&policy, &*store, &clock, &read).unwrap(),
            is_held,
            "{day}"
        );
        store.commit(&[Write::Put(bytes.clone())]).unwrap();
    }
    let held = SweepResult { history_held: true, ..SweepResult::default() };
    let step = |policy: &RetentionPolicy| policy.step(&*store, &writer, &clock).unwrap();
    assert_eq!(step(&policy), held);
    // An imported record that was young enough at its import ages like any other record, and rules
    // delete it as usual.
    clock.set(1_002 * DAY);
    assert_eq!(step(&policy), SweepResult { aged: 1, ..held });
    // If the rule allows a higher age, the same records stay held; without a rule, no record is
    // held.
    policy.rules = vec![rule(60)];
    assert_eq!(step(&policy), held);
    policy.rules.clear();
    assert_eq!(step(&policy), SweepResult::default());
    assert_eq!(left(&*store), [1, 2]);
    policy.rules = vec![rule(30)];
    policy.delete_brought = true;
    assert_eq!(step(&policy), SweepResult { aged: 2, ..SweepResult::default() });
    assert_eq!(store.note(RetentionNote::HeldUntil).unwrap(), None);
}

#[test]
fn a_shelf_without_notes_is_held_if_it_goes_back_further_than_the_rule() {
    let rule = RetentionRule { older_than_s: 30 * DAY, ..RetentionRule::default() };
    let policy = RetentionPolicy { rules: vec![rule], ..RetentionPolicy::default() };
    for (oldest, expected) in [
        (941, SweepResult { aged: 1, ..SweepResult::default() }),
        (939, SweepResult { history_held: true, ..SweepResult::default() }),
    ] {
        let (store, writer) =
            shelf(&[record(1, oldest * DAY, 1, 1, None), record(2, 1_000 * DAY, 1, 1, None)]);
        let clock = Clock::fake(1_000 * DAY);
        assert_eq!(policy.step(&*store, &writer, &clock).unwrap(), expected, "{oldest}");
    }
}

#[test]
fn a_changed_policy_is_carried_out_at_once() {
    let (store, writer) = shelf(&[record(1, 10, 1, 1, None), record(2, 90, 1, 1, None)]);
    let policy = RetentionPolicy { every: Duration::from_hours(1), ..RetentionPolicy::default() };
    let (sender, receiver) = sync_channel(16);
    let report = move |swept: Result<SweepResult, _>| sender.try_send(swept.unwrap()).unwrap();
    let (clock, writer) = (Clock::fake(100), Arc::new(writer));
    let keeper =
        RetentionThread::start(policy.clone(), Arc::clone(&store), writer, of(clock), report);
    let keeper = keeper.unwrap();
    let rule = RetentionRule { older_than_s: 50, ..RetentionRule::default() };
    keeper.change(RetentionPolicy { rules: vec![rule], ..policy });
    assert_eq!(receiver.recv().unwrap().aged, 1);
    assert_eq!(left(&*store), [2]);
}

#[test]
fn the_keeper_works_by_itself_and_stops() {
    let (store, writer) = shelf(&[record(1, 10, 1, 1, Some(50)), record(2, 10, 1, 1, None)]);
    let policy = RetentionPolicy { every: Duration::from_millis(1), ..RetentionPolicy::default() };
    let (sender, receiver) = sync_channel(16);
    let writer = Arc::new(writer);
    let report = move |swept: Result<SweepResult, _>| sender.try_send(swept.unwrap()).unwrap();
    let keeper =
        RetentionThread::start(policy, Arc::clone(&store), writer, of(Clock::fake(100)), report);
    assert_eq!(receiver.recv().unwrap().expired, 1);
    drop(keeper);
    assert_eq!(left(&*store), [2]);
}

/// A store into which another process imports an old record as soon as retention has read the note.
struct Importing(MemoryStore, Once);

impl Store for Importing {
    fn commit(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        self.0.commit(writes)
    }

    fn knows(&self, id: &Id) -> Result<bool, SearchError> {
        Store::knows(&self.0, id)
    }

    fn search(&self, query: &Query) -> Result<Box<dyn Search>, SearchError> {
        // Retention has read the note by now.
        self.1.call_once(|| {
            self.0.set_note(RetentionNote::HeldUntil, Some(970 * DAY)).unwrap();
            self.0.commit(&[record(1, 10 * DAY, 1, 1, None)]).unwrap();
        });
        self.0.search(query)
    }

    fn count_visiting(&self, query: &Query, visited: &mut u64) -> Result<Option<u64>, SearchError> {
        self.0.count_visiting(query, visited)
    }

    fn label_values(&self, name: u8, each: &mut dyn FnMut(&[u8], u64)) -> Result<(), SearchError> {
        self.0.label_values(name, each)
    }

    fn expired(&self, now: u64, limit: usize) -> Result<Vec<Id>, SearchError> {
        self.0.expired(now, limit)
    }

    fn explain(&self, query: &Query) -> Result<Explanation, SearchError> {
        self.0.explain(query)
    }

    fn stats(&self) -> StoreStats {
        self.0.stats()
    }

    fn note(&self, note: RetentionNote) -> Result<Option<u64>, SearchError> {
        self.0.note(note)
    }

    fn set_note(&self, note: RetentionNote, number: Option<u64>) -> Result<(), CommitError> {
        self.0.set_note(note, number)
    }
}

#[test]
fn what_another_process_imports_meanwhile_is_held() {
    let memory = MemoryStore::new(KeepAll);
    memory.set_note(RetentionNote::ClockTrusted, Some(1_000 * DAY)).unwrap();
    let store: Arc<dyn Store> = Arc::new(Importing(memory, Once::new()));
    let writer = Writer::start(Arc::clone(&store), WriterOptions::default(), Box::new(()));
    let rule = RetentionRule { older_than_s: 30 * DAY, ..RetentionRule::default() };
    let policy = RetentionPolicy { rules: vec![rule], ..RetentionPolicy::default() };
    for _ in 0..3 {
        policy.step(&*store, &writer, &Clock::fake(1_000 * DAY)).unwrap();
    }
    assert_eq!(left(&*store), [1]);
}
