//! Slots, each for one of the plugin's processes, and the choice of the slot for the next event.
//!
//! A further process gets an event only if all processes before it have been busy for a moment, or
//! if the event has waited for a moment. So a quick plugin decides about all events in one process,
//! and a process that hangs or waits does not delay other events.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::process::PluginProcess;

/// Time after which the next process gets the oldest waiting event: either all processes before it
/// have been busy for this time, or the event has waited for this time.
pub(crate) const SPREAD_AFTER: Duration = Duration::from_millis(20);
/// The wait before a process that has failed twice is started again. Each further wait is twice the
/// previous one, until the process answers.
const RESTART: Duration = Duration::from_millis(100);
const RESTART_MAX: Duration = Duration::from_secs(10);
/// The plugin counts as broken if events of this many clients have failed since its last answer. If
/// events of fewer clients fail, this may be the clients' fault.
const BROKEN_AFTER: usize = 3;

/// The slot for one process.
#[derive(Debug, Default)]
struct ProcessSlot {
    process: Option<PluginProcess>,
    busy_since: Option<Instant>,
    /// Number of failures since the last answer. `not_before` is the earliest time of the next
    /// start.
    failures: u32,
    not_before: Option<Instant>,
}

/// The slots for all processes.
#[derive(Debug)]
pub(crate) struct ProcessSlots {
    slots: Vec<ProcessSlot>,
    /// Number of failures of all processes since the last answer of any process.
    failures: u32,
    /// The clients whose events failed since the last answer, at most [`BROKEN_AFTER`] clients.
    failing: BTreeSet<Arc<str>>,
    /// The slot whose process tests whether a broken plugin answers again.
    probe: Option<usize>,
}

impl ProcessSlots {
    pub(crate) fn new(processes: usize) -> Self {
        let slots = (0..processes.max(1)).map(|_| ProcessSlot::default()).collect();
        Self { slots, failures: 0, failing: BTreeSet::new(), probe: None }
    }

    /// Whether the plugin counts as broken, so that no event should wait for its decision.
    pub(crate) fn is_broken(&self) -> bool {
        self.failing.len() >= BROKEN_AFTER
    }

    /// Whether the plugin has failed with an event of another client, and has answered no event
    /// since then.
    pub(crate) fn fails_for_others(&self, client: &Arc<str>) -> bool {
        self.failing.iter().any(|failing| failing != client)
    }

    /// Maximum number of processes that may work on events of one client. If there are several
    /// processes, one process is left for other clients.
    pub(crate) fn of_client_max(&self) -> usize {
        self.slots.len().saturating_sub(1).max(1)
    }

    /// Returns the slot for the oldest waiting event, which has waited since `waiting_since`.
    /// `None` if the event has to wait. If the plugin is broken, it gets only one event at a time,
    /// to test whether it answers again.
    pub(crate) fn free(&self, now: Instant, waiting_since: Instant) -> Option<usize> {
        if self.is_broken() && self.probe.is_some() {
            return None;
        }
        let is_over = |since: Instant| now.duration_since(since) >= SPREAD_AFTER;
        let mut may_spread = true;
        for (at, slot) in self.slots.iter().enumerate() {
            match slot.busy_since {
                Some(since) => may_spread &= is_over(since),
                None if slot.not_before.is_some_and(|not_before| not_before > now) => {}
                None => return (may_spread || is_over(waiting_since)).then_some(at),
            }
        }
        None
    }

    /// The next time after `now` at which an event that has to wait may get a slot.
    pub(crate) fn next_change(&self, now: Instant, waiting_since: Instant) -> Option<Instant> {
        let busy = self.slots.iter().filter_map(|slot| slot.busy_since);
        let spread = busy.chain([waiting_since]).map(|since| since + SPREAD_AFTER);
        let starts = self.slots.iter().filter_map(|slot| slot.not_before);
        spread.chain(starts).filter(|at| *at > now).min()
    }

    /// Marks a slot as busy, and returns its process.
    pub(crate) fn begin(&mut self, at: usize, now: Instant) -> Option<PluginProcess> {
        if self.is_broken() {
            self.probe = Some(at);
        }
        let slot = self.slots.get_mut(at)?;
        slot.busy_since = Some(now);
        slot.process.take()
    }

    /// Frees a slot after an answer. Returns the number of failures before this answer if there
    /// were several.
    pub(crate) fn answered(&mut self, at: usize, process: Option<PluginProcess>) -> Option<u32> {
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = ProcessSlot { process, ..ProcessSlot::default() };
        }
        self.probe = None;
        self.failing.clear();
        Some(std::mem::take(&mut self.failures)).filter(|failures| *failures > 1)
    }

    /// Frees a slot after a failure with an event of `client`. Returns the number of failures in a
    /// row.
    pub(crate) fn failed(&mut self, at: usize, client: &Arc<str>, now: Instant) -> u32 {
        if let Some(slot) = self.slots.get_mut(at) {
            let failures = (slot.failures + 1).min(30);
            let wait = match failures {
                1 => Duration::ZERO,
                more => (RESTART * 2_u32.saturating_pow(more - 2)).min(RESTART_MAX),
            };
            let not_before = Some(now + wait);
            *slot = ProcessSlot { failures, not_before, ..ProcessSlot::default() };
        }
        self.probe = self.probe.filter(|probe| *probe != at);
        if !self.is_broken() {
            self.failing.insert(Arc::clone(client));
        }
        self.failures = self.failures.saturating_add(1);
        self.failures
    }

    /// Removes all processes that are not busy.
    pub(crate) fn drain_idle(&mut self) -> Vec<PluginProcess> {
        self.slots.iter_mut().filter_map(|slot| slot.process.take()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_further_process_works_only_while_the_first_is_busy_for_long() {
        let (mut slots, now) = (ProcessSlots::new(3), Instant::now());
        let later = now + SPREAD_AFTER;
        assert_eq!(slots.free(now, now), Some(0));
        assert!(slots.begin(0, now).is_none());
        assert_eq!(slots.free(now, now), None, "the first process may be quick");
        assert_eq!(slots.next_change(now, now), Some(later));
        assert_eq!(slots.free(later, later), Some(1), "the first process is slow");
        assert_eq!(slots.free(later, now), Some(1), "the event waits for long");
        slots.begin(1, later);
        assert_eq!(slots.free(later, later), None);
        assert_eq!(slots.free(later, now), Some(2));
        slots.begin(2, later);
        assert_eq!(slots.free(later + SPREAD_AFTER, now), None, "all are busy");
        assert_eq!(slots.answered(0, None), None);
        assert_eq!(slots.free(later, later), Some(0));
        assert_eq!(
            [1, 2, 3, 9].map(|count| ProcessSlots::new(count).of_client_max()),
            [1, 1, 2, 8]
        );
    }

    #[test]
    fn a_process_that_fails_again_and_again_is_restarted_ever_more_rarely() {
        let (mut slots, mut now) = (ProcessSlots::new(1), Instant::now());
        let mut waits = Vec::new();
        for failures in 1..=12 {
            slots.begin(0, now);
            let client = format!("client {failures}").into();
            assert_eq!(slots.failed(0, &client, now), failures);
            assert_eq!(slots.is_broken(), failures >= 3);
            let next = slots.slots[0].not_before.unwrap();
            assert_eq!(slots.free(now, now).is_some(), failures == 1);
            waits.push((next - now).as_millis());
            now = next;
        }
        assert_eq!(waits[..5], [0, 100, 200, 400, 800]);
        assert_eq!(waits[11], 10_000);
        slots.begin(0, now);
        assert_eq!(slots.free(now + SPREAD_AFTER, now), None, "a single event tries");
        assert_eq!(slots.answered(0, None), Some(12));
        assert!(!slots.is_broken() && slots.free(now, now) == Some(0));
    }
}
