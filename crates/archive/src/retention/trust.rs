//! Trust in the machine's clock, on which deletes by age depend.
//!
//! Only the archive's own history speaks for the clock: the latest time at which it was trusted, which the
//! store keeps, and the time that has passed since, by a clock that nobody sets. Strangers choose the
//! times of records, so records speak for the clock only once: where a store has kept no time yet.

use std::ops::ControlFlow;
use std::time::Instant;

use crate::query::Query;
use crate::store::{RetentionNote, SearchError, SearchProgress, Store};

/// The number of newest records that all have to be near a clock of which nothing is known: single
/// records with a time far ahead are found everywhere. If there are fewer records in all, one is enough.
const WITNESSES: usize = 10;
/// Seconds after which a store is told again until when the clock was trusted.
const NOTE_EVERY_S: u64 = 3_600;

/// Whether a clock is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClockVerdict {
    Trusted,
    /// Trusted for the first time: the store had kept nothing of the clock.
    TrustedFirst,
    /// The clock is this many seconds ahead of the last time at which it was trusted, if that is known.
    Ahead(Option<u64>),
}

/// Earlier trust in a clock.
#[derive(Debug, Default)]
pub(super) struct ClockTrust {
    /// When the clock was last trusted, and the latest time that it has shown until then.
    last: Option<(Instant, u64)>,
    /// The time that the store was told.
    noted_s: Option<u64>,
}

impl ClockTrust {
    /// Judges a clock that shows `now_s`, and may be ahead by `ahead_max_s`. `None` trusts any clock.
    pub(super) fn judge(
        &mut self,
        store: &dyn Store,
        now_s: u64,
        ahead_max_s: Option<u64>,
        units_per_s: u64,
    ) -> Result<ClockVerdict, SearchError> {
        if self.last.is_none()
            && let Some(noted_s) = store.note(RetentionNote::ClockTrusted)?
        {
            (self.noted_s, self.last) = (Some(noted_s), Some((Instant::now(), noted_s)));
        }
        let Some(ahead_max_s) = ahead_max_s else {
            // A person's word: this time counts from now on, even if it is earlier.
            let is_first = self.noted_s.is_none();
            self.last = Some((Instant::now(), now_s));
            self.note(store, now_s, self.noted_s.is_none_or(|noted_s| noted_s > now_s));
            return Ok(if is_first { ClockVerdict::TrustedFirst } else { ClockVerdict::Trusted });
        };
        let Some((at, then_s)) = self.last else {
            let newest = newest_times(store, now_s, units_per_s)?;
            let from = now_s.saturating_sub(ahead_max_s).saturating_mul(units_per_s);
            let witness = if newest.len() < WITNESSES { newest.first() } else { newest.last() };
            return Ok(match witness {
                // Without records there is nothing to delete, and nothing is known of the clock.
                None => ClockVerdict::Trusted,
                Some(time) if *time >= from => {
                    self.last = Some((Instant::now(), now_s));
                    self.note(store, now_s, true);
                    ClockVerdict::TrustedFirst
                }
                Some(_) => ClockVerdict::Ahead(None),
            });
        };
        let expected_s = then_s.saturating_add(at.elapsed().as_secs());
        let ahead_s = now_s.saturating_sub(expected_s);
        if ahead_s > ahead_max_s {
            return Ok(ClockVerdict::Ahead(Some(ahead_s)));
        }
        // A clock that was set back is not the later truth: the latest time stays.
        self.last = Some((Instant::now(), now_s.max(expected_s)));
        self.note(store, now_s, false);
        Ok(ClockVerdict::Trusted)
    }

    /// Tells the store until when the clock was trusted, if it is time for that.
    fn note(&mut self, store: &dyn Store, now_s: u64, is_due: bool) {
        let is_due = is_due
            || self.noted_s.is_none_or(|noted_s| now_s >= noted_s.saturating_add(NOTE_EVERY_S));
        // On a full disk it fails, and is tried again: deletes make room.
        if is_due && store.set_note(RetentionNote::ClockTrusted, Some(now_s)).is_ok() {
            self.noted_s = Some(now_s);
        }
    }
}

/// Returns the times of the newest records that are not ahead of `now_s`.
fn newest_times(store: &dyn Store, now_s: u64, units_per_s: u64) -> Result<Vec<u64>, SearchError> {
    let to = now_s.saturating_add(1).saturating_mul(units_per_s).saturating_sub(1);
    let mut search = store.search(&Query { to, limit: WITNESSES, ..Query::default() })?;
    let mut times = Vec::new();
    while search.slice(u64::MAX, &mut |record| {
        times.push(record.time());
        ControlFlow::Continue(())
    })? == SearchProgress::Paused
    {}
    Ok(times)
}
