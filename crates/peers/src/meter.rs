//! What was done, counted: for progress while it is under way and for the report at its end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::error::PeerError;

/// Reasons that are counted by themselves; whatever comes after these is counted as `other`. A
/// relay chooses its words, so it must not choose how much memory they take.
const REASONS_MAX: usize = 64;

/// Reasons for which events are refused that no honest relay sends, and how many are an accident.
const FORGED: [&str; 3] = ["malformed", "bad id", "bad signature"];
const FORGED_MAX: u64 = 10_000;

/// Events that were refused, by reason, with the words of the first refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReasonCounts(BTreeMap<String, (u64, String)>);

impl ReasonCounts {
    /// Counts a refusal. `words` are details, and may be empty.
    pub fn add(&mut self, reason: &str, words: &str) {
        let full = self.0.len() >= REASONS_MAX && !self.0.contains_key(reason);
        let reason = if full { "other" } else { reason };
        if let Some((count, _)) = self.0.get_mut(reason) {
            *count += 1;
        } else {
            self.0.insert(reason.into(), (1, words.into()));
        }
    }

    /// Each reason with its count and the words of the first refusal.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64, &str)> {
        self.0.iter().map(|(reason, (count, words))| (reason.as_str(), *count, words.as_str()))
    }

    /// The count of a reason.
    pub fn of(&self, reason: &str) -> u64 {
        self.0.get(reason).map_or(0, |(count, _)| *count)
    }

    /// All refusals.
    pub fn total(&self) -> u64 {
        self.0.values().map(|(count, _)| count).sum()
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of work that is under way, shared by all who do it.
        #[derive(Debug, Default)]
        pub struct SyncMeter {
            $(pub(crate) $name: AtomicU64,)*
            /// Forged and stored events before the connection.
            before: Mutex<(u64, u64)>,
            pub(crate) refused_here: Mutex<ReasonCounts>,
            pub(crate) refused_there: Mutex<ReasonCounts>,
        }

        /// What [`SyncMeter`] has counted.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct SyncTotals {
            $($(#[$doc])* pub $name: u64,)*
            /// Events that were received and not stored, by reason.
            pub refused_here: ReasonCounts,
            /// Events that the relay did not take, by reason.
            pub refused_there: ReasonCounts,
        }

        impl SyncMeter {
            /// Returns the counts.
            pub fn totals(&self) -> SyncTotals {
                SyncTotals {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    refused_here: self.refused_here.lock().clone(),
                    refused_there: self.refused_there.lock().clone(),
                }
            }
        }
    };
}

counters! {
    /// Events here that were compared.
    compared,
    /// Messages of comparisons that were answered.
    rounds,
    /// Pages that were read where the relay does not compare.
    pages,
    /// Waits after the relay has said that requests come too fast.
    slowed,
    /// Events that only the relay has.
    missing_here,
    /// Events that only this side has.
    missing_there,
    /// Events that came from the relay.
    received,
    /// Of these, those whose signature was verified.
    verified,
    /// Of these, those that are stored now and were not before.
    stored,
    /// Events that the relay named and did not send.
    not_sent,
    /// Events that the relay named and that were not asked for, as it had not sent too many others.
    not_asked,
    /// Events that were not asked for.
    unasked,
    /// Events that were sent to the relay.
    sent,
    /// Of these, those that the relay took.
    taken,
    /// Of these, those that the relay had already, or had a newer version of, or had deleted.
    settled,
    /// Events that were not sent, as they are protected or of a private kind.
    withheld,
    /// Seconds with more events than the relay returns, of which some may be missing.
    unreached,
}

impl SyncMeter {
    pub(crate) fn add(&self, counter: impl FnOnce(&Self) -> &AtomicU64, count: u64) {
        counter(self).fetch_add(count, Ordering::Relaxed);
    }

    /// Notes that a connection begins, by which forged events are counted.
    pub(crate) fn connected(&self) {
        *self.before.lock() = (self.forged(), self.stored.load(Ordering::Relaxed));
    }

    /// Fails if more events of the connection are forged than can be an accident. So a relay cannot
    /// send them without end.
    pub(crate) fn check_forged(&self) -> Result<(), PeerError> {
        let before = *self.before.lock();
        let forged = self.forged().saturating_sub(before.0);
        let stored = self.stored.load(Ordering::Relaxed).saturating_sub(before.1);
        if forged > FORGED_MAX && forged > stored {
            return Err(PeerError::Misbehaved(format!("{forged} of its events are not valid")));
        }
        Ok(())
    }

    fn forged(&self) -> u64 {
        let refused = self.refused_here.lock();
        FORGED.iter().map(|reason| refused.of(reason)).sum()
    }

    /// Counts an event that was too long to be read.
    pub(crate) fn refuse_too_long(&self, bytes: u64) {
        self.refuse_here("too large", &format!("a message of {bytes} bytes, which was not read"));
    }

    pub(crate) fn refuse_here(&self, reason: &str, words: &str) {
        self.refused_here.lock().add(reason, words);
    }

    pub(crate) fn refuse_there(&self, reason: &str, words: &str) {
        self.refused_there.lock().add(reason, words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_and_their_number_is_bounded() {
        let mut counts = ReasonCounts::default();
        counts.add("blocked", "first");
        counts.add("blocked", "second");
        for n in 0..1_000 {
            counts.add(&format!("reason {n}"), "");
        }
        assert_eq!(counts.of("blocked"), 2);
        assert_eq!(counts.total(), 1_002);
        assert!(counts.iter().count() <= REASONS_MAX + 1);
        assert!(counts.iter().any(|(reason, _, words)| (reason, words) == ("blocked", "first")));
    }

    #[test]
    fn forged_events_are_counted_by_connection() {
        let meter = SyncMeter::default();
        let forge = |count| (0..count).for_each(|_| meter.refuse_here("bad id", ""));
        forge(FORGED_MAX + 1);
        assert!(matches!(meter.check_forged(), Err(PeerError::Misbehaved(_))));
        meter.connected();
        assert!(meter.check_forged().is_ok());
        forge(FORGED_MAX);
        assert!(meter.check_forged().is_ok());
        forge(1);
        assert!(meter.check_forged().is_err());
        meter.add(|meter| &meter.stored, FORGED_MAX + 2);
        assert!(meter.check_forged().is_ok());
    }
}
