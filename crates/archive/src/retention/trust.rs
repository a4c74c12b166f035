//! Trust in the machine's clock, on which deletes by age depend.
//!
//! A clock is trusted only if it agrees with the archive's own history. The store keeps the latest
//! time at which the clock was trusted. A monotonic clock, which nobody can set, measures the time
//! since then. Strangers choose the times in records, so records are evidence only while the store
//! has no trusted time yet.

use std::time::Instant;

use crate::query::Query;
use crate::store::{RetentionNote, SearchError, Store};

/// Number of newest records whose times must all be near the clock's time before the clock is
/// trusted for the first time. One record is not enough, because any archive may have a single
/// record with a time far in the future. If the store has fewer records, the newest record decides.
const WITNESSES: usize = 10;
/// Interval in seconds at which the trusted time is written to the store.
const NOTE_EVERY_S: u64 = 3_600;

/// Whether a clock is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClockVerdict {
    Trusted,
    /// Trusted for the first time: the store had no trusted time yet.
    TrustedFirst,
    /// The clock is this many seconds ahead of the expected time; `None` if no trusted time is
    /// known.
    Ahead(Option<u64>),
}

/// The results of earlier checks of the clock.
#[derive(Debug, Default)]
pub(super) struct ClockTrust {
    /// The moment at which the clock was last trusted, and the latest time that the clock had shown
    /// by then.
    last: Option<(Instant, u64)>,
    /// The trusted time that was last written to the store.
    noted_s: Option<u64>,
}

impl ClockTrust {
    /// Judges a clock that shows `now_s` and may be `ahead_max_s` ahead of the expected time. If
    /// `ahead_max_s` is `None`, any clock is trusted.
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
            // The operator has configured that the clock is right, so its time counts, even if it
            // is earlier than the trusted time.
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
                // A store without records has nothing to delete, so it does no harm to trust the
                // clock.
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
        // A clock that is set back does not lower the trusted time.
        self.last = Some((Instant::now(), now_s.max(expected_s)));
        self.note(store, now_s, false);
        Ok(ClockVerdict::Trusted)
    }

    /// Writes the trusted time to the store if `is_due`, or if the last write was long ago.
    fn note(&mut self, store: &dyn Store, now_s: u64, is_due: bool) {
        let is_due = is_due
            || self.noted_s.is_none_or(|noted_s| now_s >= noted_s.saturating_add(NOTE_EVERY_S));
        // The write may fail on a full disk. A later call tries again.
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
    search.read_all(&mut |record| times.push(record.time()))?;
    Ok(times)
}
