//! A step of retention. It deletes a batch of records that have expired, are too old for a rule, or
//! exceed a bound.

use std::sync::Arc;

use hark_codec::record::Id;

use super::hold::{HoldError, RetentionState};
use super::policy::{RetentionPolicy, oldest};
use super::trust::{ClockTrust, ClockVerdict};
use crate::clock::Clock;
use crate::query::Query;
use crate::store::{
    CommitError, DiskUse, Outcome, RetentionNote, SearchError, Store, StoreStats, Write,
};
use crate::writer::Writer;

/// In a shelf without notes, a record may be this many seconds older than a rule allows, because
/// retention may not have run for a while. An even older record must come from an import, an
/// adoption or a copy.
const UNSWEPT_S: u64 = 30 * 86_400;

/// Why a round ended early.
#[derive(Debug, thiserror::Error)]
pub enum RetentionError {
    /// Expired records could not be looked up.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// The clock is not trusted.
    #[error("{CLOCK_IS_AHEAD}")]
    Clock,
    /// A rule would delete imported history.
    #[error("{HISTORY_IS_HELD}")]
    History,
    /// Deleting records cannot free as much of the disk as required.
    #[error(
        "retention.free_bytes_min lacks more than half of what the archive takes, so nothing is \
         deleted for it: free the disk of other files, or lower it"
    )]
    Space,
    /// A write that deletes records failed.
    #[error(transparent)]
    Commit(#[from] Arc<CommitError>),
    /// The time up to which history is held could not be read or stored.
    #[error(transparent)]
    Hold(#[from] HoldError),
}

impl RetentionError {
    /// Returns whether a person must make a decision before the deletion can continue. Any other
    /// error is a failure.
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

/// The result of a step: the numbers of deleted records, and the reasons why other records were
/// kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepResult {
    /// Number of deleted records that had expired.
    pub expired: u64,
    /// Number of records that rules by age deleted.
    pub aged: u64,
    /// Number of records that were deleted because of a bound.
    pub crowded: u64,
    /// Whether records that are too old for a rule are kept because the clock is not trusted.
    pub clock_doubted: bool,
    /// Whether records that are too old for a rule are kept because they are imported history.
    pub history_held: bool,
    /// Whether no records are deleted although too few bytes are free, because deleting records
    /// could not free enough bytes.
    pub space_unmet: bool,
}

impl SweepResult {
    /// Returns the number of all deleted records.
    pub fn total(&self) -> u64 {
        self.expired + self.aged + self.crowded
    }

    pub(super) fn add(&mut self, more: Self) {
        self.expired += more.expired;
        self.aged += more.aged;
        self.crowded += more.crowded;
    }
}

impl RetentionPolicy {
    /// Deletes at most one batch for each reason: expiry, each rule, and the bounds. If the step
    /// deletes nothing, there is nothing left to delete.
    pub fn step(
        &self,
        store: &dyn Store,
        writer: &Writer,
        clock: &Clock,
    ) -> Result<SweepResult, RetentionError> {
        let (mut trust, state) = (ClockTrust::default(), RetentionState::default());
        self.step_with(store, writer, clock, (&mut trust, &state))
    }

    /// Does the same as [`RetentionPolicy::step`], with state that the caller keeps from step to
    /// step.
    pub(super) fn step_with(
        &self,
        store: &dyn Store,
        writer: &Writer,
        clock: &Clock,
        (trust, state): (&mut ClockTrust, &RetentionState),
    ) -> Result<SweepResult, RetentionError> {
        let mut swept = SweepResult::default();
        let by_age = self.delete_by_age(store, writer, clock, (trust, state), &mut swept);
        let (crowded, space_unmet) = self.excess_records(store);
        swept.space_unmet = space_unmet;
        if crowded > 0 {
            let count = crowded.min(self.batch_max as u64) as usize;
            let spared = self.spared();
            swept.crowded = erase(writer, Query { not_kinds: spared, ..oldest(count) })?;
        }
        // The bounds do not depend on the clock or on the hold. So the bounds apply even if one of
        // these two could not be read.
        by_age.map(|()| swept)
    }

    /// Deletes by age, unless the clock is not trusted.
    fn delete_by_age(
        &self,
        store: &dyn Store,
        writer: &Writer,
        clock: &Clock,
        (trust, state): (&mut ClockTrust, &RetentionState),
        swept: &mut SweepResult,
    ) -> Result<(), RetentionError> {
        let now_s = clock.now_s();
        let verdict = trust.judge(store, now_s, self.clock_ahead_max_s, self.units_per_s)?;
        if verdict == ClockVerdict::TrustedFirst {
            self.hold_unswept(store, now_s, state)?;
        }
        if matches!(verdict, ClockVerdict::Ahead(_)) {
            swept.clock_doubted = self.is_anything_due(store, now_s)?;
            return Ok(());
        }
        self.delete_aged(store, writer, now_s, state, swept)
    }

    /// Deletes at most one batch of expired records. Expired tombstones stay. (Only earlier
    /// versions of Hark stored tombstones with an expiry.)
    fn delete_expired(
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
            // All found records are tombstones, but the search stopped at its limit. So the store
            // may have more expired records.
            wanted = wanted.saturating_mul(2);
        }
    }

    /// Deletes by age: at most one batch of expired records, and one batch for each rule.
    fn delete_aged(
        &self,
        store: &dyn Store,
        writer: &Writer,
        now_s: u64,
        state: &RetentionState,
        swept: &mut SweepResult,
    ) -> Result<(), RetentionError> {
        swept.expired =
            self.delete_expired(store, writer, now_s.saturating_mul(self.units_per_s))?;
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
            let ids = ids_of(store, &Query { from, ..due.clone() })?;
            // Another process can import into the same database. It holds history before it puts
            // the records. So a hold covers every such record that the search has found.
            if store.note(RetentionNote::HeldUntil)? != held_until {
                return Ok(());
            }
            if !ids.is_empty() {
                swept.aged += erase(writer, Query { from, ids: Some(ids), ..due })?;
            }
        }
        Ok(())
    }

    /// Returns the time up to which history is held, so that rules delete only newer records.
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

    /// In a shelf without notes, holds the records that rules would delete, if some of these
    /// records are so old that the rules cannot have been applied. The records of such a shelf were
    /// restored, or imported with an earlier version of Hark.
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

    /// Returns whether expiry or a rule by age would delete any record.
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

    /// Returns whether a step deleted a full batch, so that the store should expect further deletes
    /// at once ([`Store::deletes_follow`]). A smaller batch does not count, because a busy archive
    /// at its bound always has a few records to delete.
    pub(super) fn has_more(&self, swept: SweepResult) -> bool {
        swept.expired.max(swept.aged).max(swept.crowded) >= self.batch_max as u64
    }

    /// Estimates the number of records that must be deleted to meet the bounds. The second value is
    /// true if deleting records cannot meet the bound of free bytes.
    fn excess_records(&self, store: &dyn Store) -> (u64, bool) {
        if (self.bytes_max, self.free_bytes_min, self.records_max) == (None, None, None) {
            return (0, false);
        }
        let stats = store.stats();
        if stats.records == 0 {
            return (0, false);
        }
        let above = stats.records.saturating_sub(self.records_max.unwrap_or(u64::MAX));
        // The bytes of deleted records that cannot be freed yet count as kept bytes. Otherwise the
        // store could stay above its bound for good.
        let kept_bytes = stats.bytes.saturating_sub(stats.reclaimable_bytes);
        let excess = self.bytes_max.map_or(0, |bytes_max| kept_bytes.saturating_sub(bytes_max));
        let (lacking, unmet) = self.lacking_bytes(&stats, kept_bytes);
        let excess = u128::from(excess.max(lacking));
        let records = u128::from(stats.records);
        (above.max((excess * records).div_ceil(u128::from(kept_bytes.max(1))) as u64), unmet)
    }

    /// Returns how many of its `kept_bytes` a store must free to meet the bound of free bytes. If
    /// several stores are on the disk, each frees its share of the missing bytes. If the missing
    /// bytes are more than half of the bytes that these stores keep, no store frees anything, and
    /// the second value is true. In this case, other files fill the disk, or the configured bound
    /// is a mistake.
    pub(super) fn lacking_bytes(&self, stats: &StoreStats, kept_bytes: u64) -> (u64, bool) {
        let Some((least, free)) = self.free_bytes_min.zip(stats.free_bytes) else {
            return (0, false);
        };
        let reclaimable = stats.reclaimable_bytes;
        let alone = DiskUse { kept: kept_bytes, reclaimable, free_wanted: 0 };
        let DiskUse { kept, reclaimable, free_wanted } = stats.disk.unwrap_or(alone);
        let lacking = least.max(free_wanted).saturating_sub(free.saturating_add(reclaimable));
        if lacking > kept / 2 {
            return (0, true);
        }
        let part = u128::from(lacking) * u128::from(kept_bytes);
        (part.div_ceil(u128::from(kept.max(1))) as u64, false)
    }
}

/// Returns whether any record matches.
fn has_any(store: &dyn Store, query: Query) -> Result<bool, SearchError> {
    Ok(!ids_of(store, &Query { limit: 1, ..query })?.is_empty())
}

/// Returns the ids of the first records that match, at most as many as the query's limit.
fn ids_of(store: &dyn Store, query: &Query) -> Result<Vec<Id>, SearchError> {
    let (mut search, mut ids) = (store.search(query)?, Vec::new());
    search.read_all(&mut |record| ids.push(*record.id()))?;
    Ok(ids)
}

fn erase(writer: &Writer, query: Query) -> Result<u64, RetentionError> {
    match writer.write(Write::Erase(Box::new(query)))? {
        Outcome::Erased(count) => Ok(count),
        _ => Ok(0),
    }
}
