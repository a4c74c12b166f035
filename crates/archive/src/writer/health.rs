//! The health of a store: whether it commits batches, and when the writer tests it with an empty
//! batch.
//!
//! After a failed batch, only a write shows that the next batch would succeed: a database may
//! answer every query and yet commit nothing. So the failure stays reported until a batch succeeds.
//! If no write comes, the writer commits an empty batch (a *probe*) from time to time.

use std::time::{Duration, Instant};

/// The shortest and the longest wait between a failure and the next probe.
const WAIT_FIRST: Duration = Duration::from_secs(1);
const WAIT_LAST: Duration = Duration::from_secs(5);

/// Whether the store commits batches. Callers pass the time, so that tests need not wait.
#[derive(Debug)]
pub(super) struct WriteHealth {
    /// Why the last batch failed; `None` once a batch or a probe succeeds.
    trouble: Option<String>,
    /// When the next probe is due.
    due: Option<Instant>,
    /// The wait from a failure to the next probe. It doubles with each probe, until a batch with
    /// writes succeeds. A store may commit probes but no writes. As the wait grows, writes soon
    /// fail more often than probes succeed, so the trouble stays reported.
    wait: Duration,
}

impl Default for WriteHealth {
    fn default() -> Self {
        Self { trouble: None, due: None, wait: WAIT_FIRST }
    }
}

impl WriteHealth {
    /// Returns why the last batch failed, if the next batch may succeed.
    pub(super) fn trouble(&self) -> Option<&String> {
        self.trouble.as_ref()
    }

    /// Forgets all failures, because a batch with writes succeeded or the store has stopped for
    /// good.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Notes that a probe succeeded.
    pub(super) fn note_probe(&mut self) {
        (self.trouble, self.due) = (None, None);
    }

    /// Notes that a batch or a probe failed, and that the next batch may succeed.
    pub(super) fn failed(&mut self, why: String, now: Instant) {
        (self.trouble, self.due) = (Some(why), Some(now + self.wait));
    }

    /// Returns the time until the next probe is due; `None` if no probe is needed.
    pub(super) fn probe_in(&self, now: Instant) -> Option<Duration> {
        self.due.map(|due| due.saturating_duration_since(now))
    }

    /// Returns whether a probe is due. If so, the caller must commit the probe at once; the next
    /// probe is due after a longer wait.
    pub(super) fn begin_probe(&mut self, now: Instant) -> bool {
        if self.due.is_none_or(|due| due > now) {
            return false;
        }
        self.wait = (self.wait * 2).min(WAIT_LAST);
        self.due = Some(now + self.wait);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(100);

    /// Simulates `seconds` of a store that commits probes and writes only if `keeps` returns true.
    /// A write comes every `write_every`. Returns the moments at which the health changed, in
    /// tenths of a second.
    fn changes(
        seconds: u64,
        write_every: Option<u64>,
        keeps_probe: impl Fn(u64) -> bool,
        keeps_write: impl Fn(u64) -> bool,
    ) -> Vec<(u64, bool)> {
        let (mut health, began) = (WriteHealth::default(), Instant::now());
        let (mut well, mut changes) = (true, Vec::new());
        for tenth in 0..seconds * 10 {
            let now = began + MOMENT * u32::try_from(tenth).unwrap();
            let is_write = write_every.map_or(tenth == 0, |every| tenth.is_multiple_of(every));
            if is_write {
                if keeps_write(tenth) {
                    health.reset();
                } else {
                    health.failed("away".into(), now);
                }
            } else if health.begin_probe(now) {
                if keeps_probe(tenth) {
                    health.note_probe();
                } else {
                    health.failed("away".into(), now);
                }
            }
            if well != health.trouble().is_none() {
                well = !well;
                changes.push((tenth, well));
            }
        }
        changes
    }

    #[test]
    fn trouble_begins_with_a_failed_batch_and_ends_with_a_probe_that_is_kept() {
        // The only write fails. Probes follow after 1, 2, 4, 5, 5 … s: at 1, 3, 7, 12, 17, 22 s.
        for mended in [5, 25, 68, 119, 201] {
            let keeps = |tenth| tenth >= mended;
            let seen = changes(60, None, keeps, keeps);
            assert_eq!(seen.len(), 2, "{mended}: {seen:?}");
            assert_eq!(seen[0], (0, false));
            let (ended, well) = seen[1];
            assert!(well && (mended..=mended + 50).contains(&ended), "{mended}: {seen:?}");
        }
        assert_eq!(changes(600, None, |_| false, |_| false), [(0, false)]);
    }

    #[test]
    fn writes_that_fail_and_are_kept_need_no_probe() {
        let keeps = |tenth| tenth >= 300;
        assert_eq!(changes(60, Some(5), |_| panic!("a probe"), keeps), [(0, false), (300, true)]);
    }

    #[test]
    fn a_store_that_keeps_probes_but_no_writes_does_not_seem_well_for_long() {
        for write_every in [10, 20, 30, 45] {
            let seen = changes(600, Some(write_every), |_| true, |_| false);
            assert!(seen.len() <= 7 && seen.last().is_some_and(|(_, well)| !well), "{seen:?}");
        }
        // A write that succeeds shows that all is well, and the next probe comes early again.
        let mut health = WriteHealth::default();
        let now = Instant::now();
        for _ in 0..5 {
            health.failed("away".into(), now);
            assert!(!health.begin_probe(now));
            assert!(health.begin_probe(now + WAIT_LAST));
        }
        health.reset();
        assert_eq!(health.probe_in(now), None);
        health.failed("away".into(), now);
        assert_eq!(health.probe_in(now), Some(WAIT_FIRST));
    }
}
