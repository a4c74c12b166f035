//! Counters for the progress of a synchronisation and for its final report.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::error::PeerError;

/// Maximum number of reasons that have separate counters. Further reasons are counted as `other`.
/// Relays choose the texts of their reasons, so the number of reasons must be bounded.
const REASONS_MAX: usize = 64;

/// The reasons of refusals that show a forged event, which no honest relay sends, and the number of
/// forged events that a connection may have.
const FORGED: [&str; 3] = ["malformed", "bad id", "bad signature"];
const FORGED_MAX: u64 = 10_000;

/// Events that were refused, by reason, with the text of the first refusal.
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

    /// Each reason with its count and the text of the first refusal.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64, &str)> {
        self.0.iter().map(|(reason, (count, words))| (reason.as_str(), *count, words.as_str()))
    }

    /// The count of a reason.
    pub fn of(&self, reason: &str) -> u64 {
        self.0.get(reason).map_or(0, |(count, _)| *count)
    }

    /// Returns the number of all refusals.
    pub fn total(&self) -> u64 {
        self.0.values().map(|(count, _)| count).sum()
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a running synchronisation, shared by all its tasks.
        #[derive(Debug, Default)]
        pub struct SyncMeter {
            $(pub(crate) $name: AtomicU64,)*
            /// Number of forged events and number of stored events before the current connection.
            before: Mutex<(u64, u64)>,
            pub(crate) refused_here: Mutex<ReasonCounts>,
            pub(crate) refused_there: Mutex<ReasonCounts>,
        }

        /// The counts of a [`SyncMeter`].
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct SyncTotals {
            $($(#[$doc])* pub $name: u64,)*
            /// Events that were received but not stored, by reason.
            pub refused_here: ReasonCounts,
            /// Events that the relay refused, by reason.
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
    /// Local events that were compared.
    compared,
    /// Messages of comparisons that the relay has answered.
    rounds,
    /// Pages that were read because the relay does not support comparisons.
    pages,
    /// Waits because of the relay's rate limit.
    slowed,
    /// Events that only the relay has.
    missing_here,
    /// Events that only this archive has.
    missing_there,
    /// Events that were received from the relay.
    received,
    /// Received events with a verified signature.
    verified,
    /// Received events that were newly stored.
    stored,
    /// Events that the relay listed but did not send.
    not_sent,
    /// Events that the relay listed but that were not requested, because too many of the earlier
    /// requested events were not sent.
    not_asked,
    /// Events that were received but not requested.
    unasked,
    /// Events that were sent to the relay.
    sent,
    /// Sent events that the relay accepted.
    taken,
    /// Sent events that the relay did not need: it had the event or a newer version, or had deleted
    /// the event.
    settled,
    /// Events that were not sent because they are protected, of a private kind, or refused by a
    /// plugin.
    withheld,
    /// Seconds with more events than the relay returns for one second. Some of these events may be
    /// missing.
    unreached,
}

impl SyncMeter {
    pub(crate) fn add(&self, counter: impl FnOnce(&Self) -> &AtomicU64, count: u64) {
        counter(self).fetch_add(count, Ordering::Relaxed);
    }

    /// Notes the beginning of a connection, because forged events are counted per connection.
    pub(crate) fn connected(&self) {
        *self.before.lock() = (self.forged(), self.stored.load(Ordering::Relaxed));
    }

    /// Returns an error if too many events of the connection are forged, so that a relay cannot
    /// send forged events without end.
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
