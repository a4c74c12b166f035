//! Retention: deletes records that have expired, that a rule gives up, or that exceed a bound.
//!
//! All deletes go through the writer in small batches, like any other write. So no other write
//! waits long, and a stop takes effect after the current batch.
//!
//! Deletes by age depend on the machine's clock, and a machine that comes up in 2099 would delete
//! all that a rule names. So the clock alone is not trusted: the times of stored records have to
//! confirm it ([`RetentionPolicy::clock_ahead_max_s`]). In a relay in use every event does so, whatever the
//! clock was before, so no state has to be kept. A clock that was trusted once stays trusted as
//! long as it runs no faster than real time, so a quiet relay that runs continues to delete.
//! Deletes for a bound need no clock.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hark_codec::record::Key;
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::query::{Order, Query};
use crate::store::{
    CommitError, DiskUse, Outcome, SearchError, SearchProgress, Store, StoreStats, Write,
};
use crate::vital;
use crate::writer::Writer;

/// The rules and bounds by which records are deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// The rules by age. Each is carried out on its own.
    pub rules: Vec<RetentionRule>,
    /// Bytes on disk above which the oldest records are deleted. Bytes of deleted records that are
    /// about to be freed do not count, so that a slow compaction does not cost records.
    pub bytes_max: Option<u64>,
    /// Free bytes of the disk below which the oldest records are deleted, if the store is on a
    /// disk. Bytes of deleted records that are about to be freed count as free.
    pub free_bytes_min: Option<u64>,
    /// Number of records above which the oldest are deleted.
    pub records_max: Option<u64>,
    /// Kinds that neither rules nor bounds delete: those whose records forbid others to come back.
    pub spared_kinds: Vec<u32>,
    /// The most records that one write deletes.
    pub batch_max: usize,
    /// Time between two rounds.
    pub every: Duration,
    /// The network's units of time per second.
    pub units_per_s: u64,
    /// Seconds that the clock may be ahead of the newest records. If it is further ahead, deletes
    /// by age wait until newer records come. `None` trusts the clock.
    pub clock_ahead_max_s: Option<u64>,
}

/// The number of newest records that all have to confirm the clock: single records with a time far
/// ahead are found everywhere. If there are fewer records in all, one is enough.
const WITNESSES: usize = 10;
/// Time between two reports that the clock is not trusted, or that a bound cannot be met.
const DOUBTS_EVERY: Duration = Duration::from_hours(1);

/// A rule that deletes records when they are old.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionRule {
    /// Only of these kinds.
    pub kinds: Option<Vec<u32>>,
    /// Of any but these kinds.
    pub not_kinds: Vec<u32>,
    /// Only by these authors.
    pub authors: Option<Vec<Key>>,
    /// Only records older than this. 0 deletes all that match.
    pub older_than_s: u64,
}

impl RetentionRule {
    /// Returns whether the rule has no condition but age.
    fn takes_all(&self) -> bool {
        self.kinds.is_none() && self.authors.is_none() && self.not_kinds.is_empty()
    }
}

impl Default for RetentionPolicy {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            bytes_max: None,
            free_bytes_min: None,
            records_max: None,
            spared_kinds: vec![5, 62],
            batch_max: 256,
            every: Duration::from_secs(10),
            units_per_s: 1,
            clock_ahead_max_s: Some(30 * 86_400),
        }
    }
}

/// Why a round ended early.
#[derive(Debug, thiserror::Error)]
pub enum RetentionError {
    /// Expired records could not be looked up.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// The stored records do not confirm the clock.
    #[error(
        "the clock is far ahead of all that is kept, so nothing goes by age until newer records come; \
         if it is right, raise retention.clock_ahead_max_s or set it to 0"
    )]
    Clock,
    /// Deleting cannot make the disk as free as it should be.
    #[error(
        "retention.free_bytes_min lacks more than half of what the archive takes, so nothing is \
         deleted for it: free the disk of other files, or lower it"
    )]
    Space,
    /// A delete failed.
    #[error(transparent)]
    Commit(#[from] Arc<CommitError>),
}

/// What a step deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepResult {
    /// Records that had expired.
    pub expired: u64,
    /// Records that a rule gave up.
    pub aged: u64,
    /// Records that exceeded a bound.
    pub crowded: u64,
    /// Whether deletes by age wait because the clock is not confirmed.
    pub clock_doubted: bool,
    /// Whether nothing is deleted for the disk's free bytes, as far too many are lacking.
    pub space_unmet: bool,
}

impl SweepResult {
    /// Returns the number of all deleted records.
    pub fn total(&self) -> u64 {
        self.expired + self.aged + self.crowded
    }

    fn add(&mut self, more: Self) {
        self.expired += more.expired;
        self.aged += more.aged;
        self.crowded += more.crowded;
    }
}

impl RetentionPolicy {
    /// Deletes at most one batch of each sort. If it deletes nothing, nothing is left to do.
    pub fn step(
        &self,
        store: &dyn Store,
        writer: &Writer,
        clock: &Clock,
    ) -> Result<SweepResult, RetentionError> {
        self.step_by(store, writer, clock, &mut ClockTrust::default())
    }

    /// Like [`RetentionPolicy::step`], with what is known of earlier trust in the clock.
    fn step_by(
        &self,
        store: &dyn Store,
        writer: &Writer,
        clock: &Clock,
        believed: &mut ClockTrust,
    ) -> Result<SweepResult, RetentionError> {
        let mut swept = SweepResult::default();
        if believed.is_borne_out(self, store, clock)? {
            self.let_age(store, writer, clock, &mut swept)?;
        } else {
            swept.clock_doubted = true;
        }
        let (crowded, space_unmet) = self.too_many(store);
        swept.space_unmet = space_unmet;
        if crowded > 0 {
            let count = crowded.min(self.batch_max as u64) as usize;
            let spared = self.spared_kinds.clone();
            swept.crowded = erase(writer, Query { not_kinds: spared, ..oldest(count) })?;
        }
        Ok(swept)
    }

    /// Deletes by age: a batch of expired records, and a batch for each rule.
    fn let_age(
        &self,
        store: &dyn Store,
        writer: &Writer,
        clock: &Clock,
        swept: &mut SweepResult,
    ) -> Result<(), RetentionError> {
        let now = clock.now_s().saturating_mul(self.units_per_s);
        let ids = store.expired(now, self.batch_max)?;
        if !ids.is_empty() {
            swept.expired = erase(writer, Query { ids: Some(ids), ..Query::default() })?;
        }
        for rule in &self.rules {
            let age = rule.older_than_s.saturating_mul(self.units_per_s);
            let Some(to) = now.checked_sub(age) else { continue };
            if rule.takes_all()
                && let Some(dropped) = store.drop_part(to, &self.spared_kinds)?
            {
                swept.aged += dropped;
                continue;
            }
            swept.aged += erase(
                writer,
                Query {
                    kinds: rule.kinds.clone(),
                    authors: rule.authors.clone(),
                    not_kinds: [&rule.not_kinds[..], &self.spared_kinds].concat(),
                    to,
                    ..oldest(self.batch_max)
                },
            )?;
        }
        Ok(())
    }

    /// Whether a step was as large as it may be, so that more follows at once. A busy archive at its
    /// bound has always something to delete, but little.
    fn has_more(&self, swept: SweepResult) -> bool {
        swept.expired.max(swept.aged).max(swept.crowded) >= self.batch_max as u64
    }

    /// Estimates how many records have to be deleted to meet the bounds, and returns whether that of
    /// free bytes is out of reach.
    fn too_many(&self, store: &dyn Store) -> (u64, bool) {
        if (self.bytes_max, self.free_bytes_min, self.records_max) == (None, None, None) {
            return (0, false);
        }
        let stats = store.stats();
        if stats.records == 0 {
            return (0, false);
        }
        let above = stats.records.saturating_sub(self.records_max.unwrap_or(u64::MAX));
        // Deleted records that stay on the disk count, or the bound would never be met.
        let kept_bytes = stats.bytes.saturating_sub(stats.reclaimable_bytes);
        let excess = self.bytes_max.map_or(0, |bytes_max| kept_bytes.saturating_sub(bytes_max));
        let (lacking, unmet) = self.lacking(&stats, kept_bytes);
        let excess = u128::from(excess.max(lacking));
        let records = u128::from(stats.records);
        (above.max((excess * records).div_ceil(u128::from(kept_bytes.max(1))) as u64), unmet)
    }

    /// Returns the bytes that a store which keeps `kept_bytes` has to free for the disk: its part of
    /// what is lacking. If more than half of what all stores on the disk keep is lacking, none of
    /// them frees anything, and this is true: others fill the disk, or the bound is a mistake.
    fn lacking(&self, stats: &StoreStats, kept_bytes: u64) -> (u64, bool) {
        let Some((least, free)) = self.free_bytes_min.zip(stats.free_bytes) else {
            return (0, false);
        };
        let DiskUse { kept, reclaimable } = stats
            .disk
            .unwrap_or(DiskUse { kept: kept_bytes, reclaimable: stats.reclaimable_bytes });
        let lacking = least.saturating_sub(free.saturating_add(reclaimable));
        if lacking > kept / 2 {
            return (0, true);
        }
        let part = u128::from(lacking) * u128::from(kept_bytes);
        (part.div_ceil(u128::from(kept.max(1))) as u64, false)
    }
}

/// Earlier trust in a clock.
#[derive(Debug, Default)]
struct ClockTrust {
    /// When the clock was last trusted, and the time that it showed.
    last: Option<(Instant, u64)>,
}

impl ClockTrust {
    /// Returns whether a clock is to be trusted: because it has run evenly since it was last
    /// trusted, or because there are records about as new as its time.
    fn is_borne_out(
        &mut self,
        policy: &RetentionPolicy,
        store: &dyn Store,
        clock: &Clock,
    ) -> Result<bool, SearchError> {
        let Some(ahead_max) = policy.clock_ahead_max_s else { return Ok(true) };
        let now = clock.now_s();
        let runs_on = self.last.is_some_and(|(at, then)| {
            now <= then.saturating_add(at.elapsed().as_secs()).saturating_add(60)
        });
        if runs_on || bears_out(store, now, ahead_max, policy.units_per_s)? {
            self.last = Some((Instant::now(), now));
            return Ok(true);
        }
        Ok(false)
    }
}

/// Returns whether the newest records of a store, except those ahead of `now`, are at most
/// `ahead_max` seconds older than `now`.
fn bears_out(
    store: &dyn Store,
    now: u64,
    ahead_max: u64,
    units_per_s: u64,
) -> Result<bool, SearchError> {
    let to = now.saturating_add(1).saturating_mul(units_per_s).saturating_sub(1);
    let mut search = store.search(&Query { to, limit: WITNESSES, ..Query::default() })?;
    let mut times = Vec::new();
    while search.slice(u64::MAX, &mut |record| {
        times.push(record.time());
        ControlFlow::Continue(())
    })? == SearchProgress::Paused
    {}
    let from = now.saturating_sub(ahead_max).saturating_mul(units_per_s);
    let witness = if times.len() < WITNESSES { times.first() } else { times.last() };
    // Without such records there is nothing to delete.
    Ok(witness.is_none_or(|time| *time >= from))
}

/// Makes a query for the `limit` oldest records.
fn oldest(limit: usize) -> Query {
    Query { order: Order::OldestFirst, limit, ..Query::default() }
}

fn erase(writer: &Writer, query: Query) -> Result<u64, RetentionError> {
    match writer.write(Write::Erase(Box::new(query)))? {
        Outcome::Erased(count) => Ok(count),
        _ => Ok(0),
    }
}

/// The thread that carries a policy out, until it is stopped or dropped.
pub struct RetentionThread {
    /// Wakes the thread for `changed`; dropping it ends the thread.
    wake: Option<SyncSender<()>>,
    /// A policy that the thread has not taken yet.
    changed: Arc<Mutex<Option<RetentionPolicy>>>,
    thread: Option<JoinHandle<()>>,
}

impl RetentionThread {
    /// Starts the thread. `report` is called at the end of every round that deleted something, and
    /// for every failure, after which the thread continues with the next round. A clock that is not
    /// trusted is reported once an hour.
    pub fn start(
        mut policy: RetentionPolicy,
        store: Arc<dyn Store>,
        writer: Arc<Writer>,
        clock: Clock,
        mut report: impl FnMut(Result<SweepResult, RetentionError>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (wake, woken) = sync_channel::<()>(1);
        let changed = Arc::new(Mutex::new(None));
        let due = Arc::clone(&changed);
        let thread = vital::spawn("hark-keeper", move || {
            let (mut pause, mut round) = (policy.every, SweepResult::default());
            let (mut believed, mut doubted) = (ClockTrust::default(), None::<Instant>);
            let (mut deletes_follow, mut unmet) = (false, None::<Instant>);
            // A short pause between the batches of a long round leaves the writer to other writes.
            let rest = Duration::from_millis(5);
            loop {
                if woken.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
                    break;
                }
                if let Some(changed) = due.lock().take() {
                    policy = changed;
                }
                let step = policy.step_by(&*store, &writer, &clock, &mut believed);
                let swept = step.as_ref().copied().unwrap_or_default();
                if policy.has_more(swept) != deletes_follow {
                    deletes_follow = !deletes_follow;
                    store.deletes_follow(deletes_follow);
                }
                round.add(swept);
                pause = if swept.total() > 0 { rest } else { policy.every };
                if swept.total() == 0 && round.total() > 0 {
                    report(Ok(std::mem::take(&mut round)));
                }
                if let Err(error) = step {
                    report(Err(error));
                }
                unmet = unmet.filter(|_| swept.space_unmet);
                if swept.space_unmet && unmet.is_none_or(|at| at.elapsed() >= DOUBTS_EVERY) {
                    unmet = Some(Instant::now());
                    report(Err(RetentionError::Space));
                }
                doubted = doubted.filter(|_| swept.clock_doubted);
                if swept.clock_doubted && doubted.is_none_or(|at| at.elapsed() >= DOUBTS_EVERY) {
                    doubted = Some(Instant::now());
                    report(Err(RetentionError::Clock));
                }
            }
            if deletes_follow {
                store.deletes_follow(false);
            }
            if round.total() > 0 {
                report(Ok(round));
            }
        })?;
        Ok(Self { wake: Some(wake), changed, thread: Some(thread) })
    }

    /// Replaces the policy. The thread begins a round with it after the current batch.
    pub fn change(&self, policy: RetentionPolicy) {
        *self.changed.lock() = Some(policy);
        if let Some(wake) = &self.wake {
            // Fails if the thread has been woken already, and has not looked yet.
            let _ = wake.try_send(());
        }
    }

    /// Stops the thread after the current batch and waits for its end.
    pub fn stop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            // The thread does not panic: see `vital`.
            let _ = thread.join();
        }
    }
}

impl Drop for RetentionThread {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use hark_codec::record::{self, LabelPosition, RecordHeader};

    use super::*;
    use crate::effects::KeepAll;
    use crate::store::memory::MemoryStore;
    use crate::writer::WriterOptions;

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
            disk: Some(DiskUse { kept, reclaimable }),
            ..StoreStats::default()
        };
        // The store has 100 of the 800 bytes that all stores keep.
        assert_eq!(policy.lacking(&stats(1_000, 800, 0), 100), (0, false));
        assert_eq!(policy.lacking(&stats(840, 800, 0), 100), (20, false));
        assert_eq!(policy.lacking(&stats(840, 800, 159), 100), (1, false));
        assert_eq!(policy.lacking(&stats(600, 800, 0), 800), (400, false));
        assert_eq!(policy.lacking(&stats(599, 800, 0), 100), (0, true));
        assert_eq!(policy.lacking(&stats(0, 0, 0), 0), (0, true));
        assert_eq!(policy.lacking(&StoreStats::default(), 100), (0, false));
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
        let policy =
            RetentionPolicy { rules: vec![rule], batch_max: 2, ..RetentionPolicy::default() };
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
        let policy = RetentionPolicy {
            bytes_max: Some(bytes_max),
            batch_max: 10,
            ..RetentionPolicy::default()
        };
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
        const DAY: u64 = 86_400;
        let records = |days: &[u64]| -> Vec<Write> {
            let record =
                |(n, day): (usize, &u64)| record(*day as u8 + n as u8, day * DAY, 1, 1, None);
            days.iter().enumerate().map(record).collect()
        };
        // One record with a time far ahead, as archives have them.
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
        // A clock that was right stays trusted without new records, but not when it leaps.
        let (clock, mut believed) = (Clock::fake(110 * DAY), ClockTrust::default());
        let mut by = |clock: &Clock| {
            policy.step_by(&*store, &writer, clock, &mut believed).unwrap().clock_doubted
        };
        assert!(!by(&clock));
        clock.set(110 * DAY + 30);
        assert!(!by(&clock));
        clock.set(200 * DAY);
        assert!(by(&clock));
        let left = store.stats().records;
        assert_eq!(left, 6, "those of the last five days, and the one of far ahead");
        // The operator's setting makes the clock trusted, and so do new records of its time.
        let sure = RetentionPolicy { clock_ahead_max_s: None, ..policy.clone() };
        assert!(!step(&sure, &clock).clock_doubted);
        store
            .commit(&(0..10).map(|n| record(200 + n, 200 * DAY, 1, 2, None)).collect::<Vec<_>>())
            .unwrap();
        assert!(!step(&policy, &clock).clock_doubted);
    }

    #[test]
    fn a_changed_policy_is_carried_out_at_once() {
        let (store, writer) = shelf(&[record(1, 10, 1, 1, None), record(2, 90, 1, 1, None)]);
        let policy =
            RetentionPolicy { every: Duration::from_hours(1), ..RetentionPolicy::default() };
        let (sender, receiver) = sync_channel(16);
        let report = move |swept: Result<SweepResult, _>| sender.try_send(swept.unwrap()).unwrap();
        let (clock, writer) = (Clock::fake(100), Arc::new(writer));
        let keeper =
            RetentionThread::start(policy.clone(), Arc::clone(&store), writer, clock, report);
        let keeper = keeper.unwrap();
        let rule = RetentionRule { older_than_s: 50, ..RetentionRule::default() };
        keeper.change(RetentionPolicy { rules: vec![rule], ..policy });
        assert_eq!(receiver.recv().unwrap().aged, 1);
        assert_eq!(left(&*store), [2]);
    }

    #[test]
    fn the_keeper_works_by_itself_and_stops() {
        let (store, writer) = shelf(&[record(1, 10, 1, 1, Some(50)), record(2, 10, 1, 1, None)]);
        let policy =
            RetentionPolicy { every: Duration::from_millis(1), ..RetentionPolicy::default() };
        let (sender, receiver) = sync_channel(16);
        let writer = Arc::new(writer);
        let report = move |swept: Result<SweepResult, _>| sender.try_send(swept.unwrap()).unwrap();
        let keeper =
            RetentionThread::start(policy, Arc::clone(&store), writer, Clock::fake(100), report);
        assert_eq!(receiver.recv().unwrap().expired, 1);
        drop(keeper);
        assert_eq!(left(&*store), [2]);
    }
}
