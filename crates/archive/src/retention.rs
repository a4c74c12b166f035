//! Retention: deletes records that have expired, that exceed the age of a rule, or that exceed a
//! bound.
//!
//! All deletes go through the writer in small batches, like any other write. So no other write
//! waits long, and a stop takes effect after the current batch.
//!
//! Deletes by age depend on the machine's clock. A machine that starts with a clock in 2099 would
//! delete all records that a rule names. So the clock is compared with the archive's own history;
//! see `trust`. History that was brought from elsewhere and is older than a rule allows is not
//! deleted until a person allows the deletion; see `hold`. Deletes for a bound need no clock, and
//! spare no history.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hark_codec::record::{Key, Record};
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::query::{Order, Query};
use crate::store::{
    CommitError, DiskUse, Outcome, RetentionNote, SearchError, SearchProgress, Store, StoreStats,
    Write,
};
use crate::vital;
use crate::writer::Writer;
use hold::HoldError;
pub use hold::RetentionState;
use trust::{ClockTrust, ClockVerdict};

mod hold;
mod trust;

/// The rules and bounds by which records are deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// The rules by age. Each rule is applied independently of the others.
    pub rules: Vec<RetentionRule>,
    /// Bytes on disk above which the oldest records are deleted. Bytes of deleted records that are
    /// about to be freed do not count, so that a slow compaction does not cost records.
    pub bytes_max: Option<u64>,
    /// Free bytes of the disk below which the oldest records are deleted, if the store is on a
    /// disk. Bytes of deleted records that are about to be freed count as free.
    pub free_bytes_min: Option<u64>,
    /// Number of records above which the oldest are deleted.
    pub records_max: Option<u64>,
    /// Kinds that neither rules nor bounds delete.
    pub spared_kinds: Vec<u32>,
    /// Kinds whose records keep other records from coming back ([`Rules::forbids`]). Retention
    /// never deletes records of these kinds, neither by a rule or bound nor after their expiry.
    ///
    /// [`Rules::forbids`]: crate::effects::Rules::forbids
    pub tombstone_kinds: Vec<u32>,
    /// Maximum number of records that one write deletes.
    pub batch_max: usize,
    /// Time between two rounds.
    pub every: Duration,
    /// The network's units of time per second.
    pub units_per_s: u64,
    /// Seconds by which the clock may be ahead of the expected time, which is the last trusted time
    /// plus the time that a server has run since. If the clock is further ahead, deletes by age
    /// wait. `None` trusts the clock.
    pub clock_ahead_max_s: Option<u64>,
    /// Whether rules also delete records that were already older than the rules allow when they
    /// were brought from elsewhere.
    pub delete_brought: bool,
}

/// Seconds by which records of a shelf without notes may be older than a rule allows, as the rule
/// may not have been applied for a while. Older records must have been brought from elsewhere.
const UNSWEPT_S: u64 = 30 * 86_400;
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
            tombstone_kinds: Vec::new(),
            batch_max: 256,
            every: Duration::from_secs(10),
            units_per_s: 1,
            clock_ahead_max_s: Some(30 * 86_400),
            delete_brought: false,
        }
    }
}

/// Why a round ended early.
#[derive(Debug, thiserror::Error)]
pub enum RetentionError {
    /// Expired records could not be looked up.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// The clock is not trusted.
    #[error("{CLOCK_IS_AHEAD}")]
    Clock,
    /// A rule would delete history that was brought.
    #[error("{HISTORY_IS_HELD}")]
    History,
    /// Deleting records cannot free as much of the disk as required.
    #[error(
        "retention.free_bytes_min lacks more than half of what the archive takes, so nothing is \
         deleted for it: free the disk of other files, or lower it"
    )]
    Space,
    /// A delete failed.
    #[error(transparent)]
    Commit(#[from] Arc<CommitError>),
    /// The time until which history is held could not be read or stored.
    #[error(transparent)]
    Hold(#[from] HoldError),
}

impl RetentionError {
    /// Returns whether nothing has failed, but a person has to make a decision.
    pub fn is_question(&self) -> bool {
        matches!(self, Self::Clock | Self::History)
    }
}

/// The message for a clock that is not trusted.
pub const CLOCK_IS_AHEAD: &str = "the clock is far ahead of the time at which this archive was last in use, so nothing is deleted \
     by age. Correct the clock; if it is right, set retention.clock_ahead_max_s to 0, reload, and set \
     it back";
/// The message for history that rules would delete.
pub const HISTORY_IS_HELD: &str = "records that were brought are older than retention allows, and are kept until you decide: set \
     retention.delete_brought to true to delete them, or let retention allow their age to keep them";

/// The result of a step: the numbers of deleted records, and the reasons for which others stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepResult {
    /// Records that had expired.
    pub expired: u64,
    /// Records that a rule by age deleted.
    pub aged: u64,
    /// Records that exceeded a bound.
    pub crowded: u64,
    /// Whether records that are due wait because the clock is not trusted.
    pub clock_doubted: bool,
    /// Whether rules spare records because these were brought.
    pub history_held: bool,
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
        let (mut trust, state) = (ClockTrust::default(), RetentionState::default());
        self.step_by(store, writer, clock, (&mut trust, &state))
    }

    /// Like [`RetentionPolicy::step`], with the state of earlier steps.
    fn step_by(
        &self,
        store: &dyn Store,
        writer: &Writer,
        clock: &Clock,
        (trust, state): (&mut ClockTrust, &RetentionState),
    ) -> Result<SweepResult, RetentionError> {
        let (mut swept, now_s) = (SweepResult::default(), clock.now_s());
        let verdict = trust.judge(store, now_s, self.clock_ahead_max_s, self.units_per_s)?;
        if verdict == ClockVerdict::TrustedFirst {
            self.hold_unswept(store, now_s, state)?;
        }
        if matches!(verdict, ClockVerdict::Ahead(_)) {
            swept.clock_doubted = self.is_anything_due(store, now_s)?;
        } else {
            self.let_age(store, writer, now_s, state, &mut swept)?;
        }
        let (crowded, space_unmet) = self.too_many(store);
        swept.space_unmet = space_unmet;
        if crowded > 0 {
            let count = crowded.min(self.batch_max as u64) as usize;
            let spared = self.spared();
            swept.crowded = erase(writer, Query { not_kinds: spared, ..oldest(count) })?;
        }
        Ok(swept)
    }

    /// The kinds that neither rules nor bounds delete.
    fn spared(&self) -> Vec<u32> {
        [&self.spared_kinds[..], &self.tombstone_kinds].concat()
    }

    /// Deletes up to a batch of expired records. Expired tombstones stay; earlier versions stored
    /// tombstones with an expiry.
    fn let_expire(
        &self,
        store: &dyn Store,
        writer: &Writer,
        now: u64,
    ) -> Result<u64, RetentionError> {
        let mut wanted = self.batch_max;
        loop {
            let ids = store.expired(now, wanted)?;
            let is_all = ids.len() < wanted;
            if ids.is_empty() {
                return Ok(0);
            }
            let not_kinds = self.tombstone_kinds.clone();
            let limit = self.batch_max;
            let expired = Query { ids: Some(ids), not_kinds, limit, ..Query::default() };
            let erased = erase(writer, expired)?;
            if erased > 0 || is_all {
                return Ok(erased);
            }
            // All these records are tombstones. The store may have more expired records.
            wanted = wanted.saturating_mul(2);
        }
    }

    /// Deletes by age: a batch of expired records, and a batch for each rule.
    fn let_age(
        &self,
        store: &dyn Store,
        writer: &Writer,
        now_s: u64,
        state: &RetentionState,
        swept: &mut SweepResult,
    ) -> Result<(), RetentionError> {
        swept.expired = self.let_expire(store, writer, now_s.saturating_mul(self.units_per_s))?;
        let _sweeping = state.sweep();
        let held_until = self.held_until(store, state)?;
        let spared = self.spared();
        for rule in &self.rules {
            let Some(due) = self.due(rule, now_s) else { continue };
            if let Some(until) = held_until {
                let held = Query { to: due.to.min(until), ..due.clone() };
                swept.history_held |= !swept.history_held && has_any(store, held)?;
            }
            let from = held_until.map_or(0, |until| until.saturating_add(1));
            if from > due.to {
                continue;
            }
            if rule.takes_all()
                && held_until.is_none()
                && let Some(dropped) = store.drop_part(due.to, &spared)?
            {
                swept.aged += dropped;
                continue;
            }
            swept.aged += erase(writer, Query { from, ..due })?;
        }
        Ok(())
    }

    /// Returns the query for the oldest records that a rule deletes.
    fn due(&self, rule: &RetentionRule, now_s: u64) -> Option<Query> {
        Some(Query {
            kinds: rule.kinds.clone(),
            authors: rule.authors.clone(),
            not_kinds: [&rule.not_kinds[..], &self.spared()].concat(),
            to: self.last_due(rule, now_s)?,
            ..oldest(self.batch_max)
        })
    }

    /// Returns the time of the newest records that a rule deletes.
    fn last_due(&self, rule: &RetentionRule, now_s: u64) -> Option<u64> {
        let units = |seconds: u64| seconds.saturating_mul(self.units_per_s);
        units(now_s).checked_sub(units(rule.older_than_s))
    }

    /// Returns the time up to which rules delete nothing, because history was brought from
    /// elsewhere.
    fn held_until(
        &self,
        store: &dyn Store,
        state: &RetentionState,
    ) -> Result<Option<u64>, RetentionError> {
        if self.rules.is_empty() {
            return Ok(None);
        }
        let held_until = store.note(RetentionNote::HeldUntil)?;
        if self.delete_brought && held_until.is_some() {
            state.release(store)?;
            return Ok(None);
        }
        Ok(held_until)
    }

    /// Holds the records that rules would delete, in a shelf that has kept no notes so far. Records
    /// are held only if some are so old that the rules cannot have been in force. Such a shelf was
    /// imported by an earlier version, or restored.
    fn hold_unswept(
        &self,
        store: &dyn Store,
        now_s: u64,
        state: &RetentionState,
    ) -> Result<(), RetentionError> {
        for rule in self.rules.iter().filter(|_| !self.delete_brought) {
            let Some(due) = self.due(rule, now_s) else { continue };
            let unswept = UNSWEPT_S.saturating_mul(self.units_per_s);
            let Some(to) = due.to.checked_sub(unswept) else { continue };
            let until = due.to;
            if has_any(store, Query { to, ..due })? {
                state.hold(store, until)?;
            }
        }
        Ok(())
    }

    /// Returns whether any record would be deleted by age.
    fn is_anything_due(&self, store: &dyn Store, now_s: u64) -> Result<bool, RetentionError> {
        if !store.expired(now_s.saturating_mul(self.units_per_s), 1)?.is_empty() {
            return Ok(true);
        }
        for due in self.rules.iter().filter_map(|rule| self.due(rule, now_s)) {
            if has_any(store, due)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the latest time up to which rules that match `record` delete records now. `None` if
    /// these rules do not delete `record`.
    pub fn would_delete(&self, record: &Record<'_>, now_s: u64) -> Option<u64> {
        let matching = self.rules.iter().filter(|rule| {
            rule.kinds.as_ref().is_none_or(|kinds| kinds.contains(&record.kind()))
                && !rule.not_kinds.contains(&record.kind())
                && !self.spared_kinds.contains(&record.kind())
                && !self.tombstone_kinds.contains(&record.kind())
                && (rule.authors.as_ref()).is_none_or(|authors| {
                    record.author().is_some_and(|author| authors.contains(author))
                })
        });
        let last = matching.filter_map(|rule| self.last_due(rule, now_s)).max()?;
        (record.time() <= last).then_some(last)
    }

    /// Returns whether a step deleted a full batch, so that another step follows at once. A busy
    /// archive at its bound always has a few records to delete.
    fn has_more(&self, swept: SweepResult) -> bool {
        swept.expired.max(swept.aged).max(swept.crowded) >= self.batch_max as u64
    }

    /// Estimates the number of records that must be deleted to meet the bounds. Also returns
    /// whether the bound of free bytes is out of reach.
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

    /// Returns the bytes that a store with `kept_bytes` has to free for the disk: its share of the
    /// lacking bytes. If more bytes are lacking than half of the bytes of all stores on the disk,
    /// no store frees anything, and the second value is true. In that case other files fill the
    /// disk, or the bound is a mistake.
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

/// Makes a query for the `limit` oldest records.
fn oldest(limit: usize) -> Query {
    Query { order: Order::OldestFirst, limit, ..Query::default() }
}

/// Returns whether any record matches.
fn has_any(store: &dyn Store, query: Query) -> Result<bool, SearchError> {
    let mut search = store.search(&Query { limit: 1, ..query })?;
    let mut is_found = false;
    while search.slice(u64::MAX, &mut |_| {
        is_found = true;
        ControlFlow::Break(())
    })? == SearchProgress::Paused
        && !is_found
    {}
    Ok(is_found)
}

fn erase(writer: &Writer, query: Query) -> Result<u64, RetentionError> {
    match writer.write(Write::Erase(Box::new(query)))? {
        Outcome::Erased(count) => Ok(count),
        _ => Ok(0),
    }
}

/// The times of the last report of each open question.
#[derive(Default)]
struct RetentionReminders([Option<Instant>; 3]);

impl RetentionReminders {
    /// Returns the questions that are open after a step and were not asked within the last hour.
    fn due(&mut self, swept: SweepResult) -> Vec<RetentionError> {
        let open = [
            (swept.space_unmet, RetentionError::Space),
            (swept.clock_doubted, RetentionError::Clock),
            (swept.history_held, RetentionError::History),
        ];
        let mut due = Vec::new();
        for (last, (is_open, question)) in self.0.iter_mut().zip(open) {
            *last = last.filter(|_| is_open);
            if is_open && last.is_none_or(|at| at.elapsed() >= DOUBTS_EVERY) {
                *last = Some(Instant::now());
                due.push(question);
            }
        }
        due
    }
}

/// The thread that carries out a policy, until the thread is stopped or dropped.
pub struct RetentionThread {
    /// Wakes the thread for `changed`; dropping it ends the thread.
    wake: Option<SyncSender<()>>,
    /// A new policy that the thread does not use yet.
    changed: Arc<Mutex<Option<RetentionPolicy>>>,
    thread: Option<JoinHandle<()>>,
}

impl RetentionThread {
    /// Starts the thread. `report` is called at the end of every round that deleted something, and
    /// for every failure, after which the thread continues with the next round. An untrusted clock
    /// and held history are reported once an hour; `state` shows both at any time.
    pub fn start(
        mut policy: RetentionPolicy,
        store: Arc<dyn Store>,
        writer: Arc<Writer>,
        (clock, state): (Clock, Arc<RetentionState>),
        mut report: impl FnMut(Result<SweepResult, RetentionError>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (wake, woken) = sync_channel::<()>(1);
        let changed = Arc::new(Mutex::new(None));
        let due = Arc::clone(&changed);
        let thread = vital::spawn("hark-keeper", move || {
            let (mut pause, mut round) = (policy.every, SweepResult::default());
            let (mut trust, mut deletes_follow) = (ClockTrust::default(), false);
            let mut asked = RetentionReminders::default();
            // A short pause between the batches of a long round leaves the writer to other writes.
            let rest = Duration::from_millis(5);
            loop {
                if woken.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
                    break;
                }
                if let Some(changed) = due.lock().take() {
                    policy = changed;
                }
                let step = policy.step_by(&*store, &writer, &clock, (&mut trust, &state));
                let swept = step.as_ref().copied().unwrap_or_default();
                if step.is_ok() {
                    state.set(swept.clock_doubted, swept.history_held);
                }
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
                asked.due(swept).into_iter().for_each(|question| report(Err(question)));
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
            // Fails if an earlier wake-up is still pending.
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
    fn tombstones_stay_whatever_the_rules_say_and_hold_nothing_else_up() {
        // More tombstones than fit into a batch have an expiry, as in archives of earlier versions.
        let mut records: Vec<_> =
            (0..20).map(|n| record(n, 10, if n % 2 == 0 { 5 } else { 62 }, 1, Some(20))).collect();
        records.push(record(99, 10, 1, 1, Some(20)));
        let (store, writer) = shelf(&records);
        let policy = RetentionPolicy {
            rules: vec![RetentionRule::default()],
            records_max: Some(1),
            spared_kinds: Vec::new(),
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
        // One record has a time far ahead, as is common in archives.
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
        // A clock that was right stays trusted without new records, but not after a leap.
        let clock = Clock::fake(110 * DAY);
        assert!(!step(&policy, &clock).clock_doubted);
        clock.set(110 * DAY + 30);
        assert!(!step(&policy, &clock).clock_doubted);
        clock.set(200 * DAY);
        assert!(step(&policy, &clock).clock_doubted);
        let left = store.stats().records;
        assert_eq!(left, 6, "those of the last five days, and the one of far ahead");
        // The operator's setting makes the clock trusted, also after the setting is reverted.
        let sure = RetentionPolicy { clock_ahead_max_s: None, ..policy.clone() };
        assert!(!step(&sure, &clock).clock_doubted);
        clock.set(201 * DAY);
        assert!(!step(&policy, &clock).clock_doubted);
        assert_eq!(store.stats().records, 1);
    }

    #[test]
    fn a_wrong_clock_is_not_trusted_however_many_records_are_dated_near_it() {
        const DAY: u64 = 86_400;
        let (store, writer) =
            shelf(&(0..20).map(|n| record(n, 100 * DAY, 1, 1, None)).collect::<Vec<_>>());
        let rule = RetentionRule { older_than_s: 90 * DAY, ..RetentionRule::default() };
        let policy = RetentionPolicy { rules: vec![rule], ..RetentionPolicy::default() };
        let step = |clock: &Clock| policy.step(&*store, &writer, clock).unwrap();
        assert_eq!(step(&Clock::fake(101 * DAY)), SweepResult::default());
        // Ten years ahead, in this process and in later ones, and strangers' records of that time.
        let wrong = Clock::fake(3_751 * DAY);
        let doubted = SweepResult { clock_doubted: true, ..SweepResult::default() };
        assert_eq!(step(&wrong), doubted);
        for n in 0..50 {
            store.commit(&[record(100 + n, 3_750 * DAY, 1, 2, None)]).unwrap();
            assert_eq!(step(&wrong), doubted);
        }
        assert_eq!(store.stats().records, 70);
        // The corrected clock is trusted at once.
        assert_eq!(step(&Clock::fake(102 * DAY)), SweepResult::default());
    }

    #[test]
    fn a_clock_is_not_doubted_where_nothing_is_due() {
        const DAY: u64 = 86_400;
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
        const DAY: u64 = 86_400;
        let (store, writer) = shelf(&[]);
        let (state, clock) = (RetentionState::default(), Clock::fake(1_000 * DAY));
        let rule =
            |days: u64| RetentionRule { older_than_s: days * DAY, ..RetentionRule::default() };
        let mut policy = RetentionPolicy { rules: vec![rule(30)], ..RetentionPolicy::default() };
        for (id, day, is_held) in [(1, 10, true), (2, 969, true), (3, 971, false)] {
            let Write::Put(bytes) = record(id, day * DAY, 1, 1, None) else { unreachable!() };
            let read = Record::new(&bytes).unwrap();
            assert_eq!(state.bring(&policy, &*store, &clock, &read).unwrap(), is_held, "{day}");
            store.commit(&[Write::Put(bytes.clone())]).unwrap();
        }
        let held = SweepResult { history_held: true, ..SweepResult::default() };
        let step = |policy: &RetentionPolicy| policy.step(&*store, &writer, &clock).unwrap();
        assert_eq!(step(&policy), held);
        // If an imported record was young enough, it ages like any other record, and rules delete
        // it as usual.
        clock.set(1_002 * DAY);
        assert_eq!(step(&policy), SweepResult { aged: 1, ..held });
        // A longer age in the rule holds the same records; without a rule, nothing is held.
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
        const DAY: u64 = 86_400;
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
        let policy =
            RetentionPolicy { every: Duration::from_hours(1), ..RetentionPolicy::default() };
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
        let policy =
            RetentionPolicy { every: Duration::from_millis(1), ..RetentionPolicy::default() };
        let (sender, receiver) = sync_channel(16);
        let writer = Arc::new(writer);
        let report = move |swept: Result<SweepResult, _>| sender.try_send(swept.unwrap()).unwrap();
        let keeper = RetentionThread::start(
            policy,
            Arc::clone(&store),
            writer,
            of(Clock::fake(100)),
            report,
        );
        assert_eq!(receiver.recv().unwrap().expired, 1);
        drop(keeper);
        assert_eq!(left(&*store), [2]);
    }
}
