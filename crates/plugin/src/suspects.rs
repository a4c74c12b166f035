//! Clients whose events make the plugin fail. Such a client waits longer and longer, so that its
//! events do not end the processes that others need.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::failure::PluginFailure;

/// Number of failures in a row after which a client is suspended.
const SUSPEND_AFTER: u32 = 3;
/// The first suspension. Each further suspension is twice as long, until an event of the client is
/// answered.
const SUSPENSION: Duration = Duration::from_millis(500);
const SUSPENSION_MAX: Duration = Duration::from_mins(1);
/// Maximum number of clients that are remembered. At this number, all are forgotten.
const CLIENTS_MAX: usize = 10_000;

/// The clients whose last events made the plugin fail.
#[derive(Debug, Default)]
pub(crate) struct SuspectClients {
    clients: HashMap<Arc<str>, SuspectClient>,
    /// The time of the last answer to an event of any client.
    answered_at: Option<Instant>,
}

#[derive(Debug)]
struct SuspectClient {
    failures: u32,
    /// The time of the first of these failures.
    since: Instant,
    until: Instant,
}

impl SuspectClients {
    /// Notes a failure with an event of a client. Returns whether the client is suspended.
    pub(crate) fn failed(&mut self, client: &Arc<str>, now: Instant) -> bool {
        if self.clients.len() >= CLIENTS_MAX && !self.clients.contains_key(client) {
            self.clients.clear();
        }
        let suspect = self.clients.entry(Arc::clone(client));
        let suspect = suspect.or_insert(SuspectClient { failures: 0, since: now, until: now });
        suspect.failures = suspect.failures.saturating_add(1);
        if let Some(times) = suspect.failures.checked_sub(SUSPEND_AFTER) {
            let length = SUSPENSION.saturating_mul(2_u32.saturating_pow(times));
            suspect.until = now + length.min(SUSPENSION_MAX);
        }
        suspect.until > now
    }

    /// Notes an answer to an event of a client.
    pub(crate) fn answered(&mut self, client: &Arc<str>, now: Instant) {
        self.clients.remove(client);
        self.answered_at = Some(now);
    }

    /// Returns the reason if the plugin gets no events of a client at present. The reason is
    /// [`PluginFailure::Suspended`] if the plugin has answered another client since the client's
    /// first failure, and [`PluginFailure::Down`] otherwise.
    pub(crate) fn suspension(&self, client: &Arc<str>, now: Instant) -> Option<PluginFailure> {
        let suspect = self.clients.get(client).filter(|suspect| suspect.until > now)?;
        let works = self.answered_at.is_some_and(|answered_at| answered_at > suspect.since);
        Some(if works { PluginFailure::Suspended } else { PluginFailure::Down })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_suspended_for_longer_and_longer_until_an_answer() {
        let (mut suspects, mut now) = (SuspectClients::default(), Instant::now());
        let client: Arc<str> = "a".into();
        assert!(!suspects.failed(&client, now) && !suspects.failed(&client, now));
        for millis in [500, 1_000, 2_000] {
            assert!(suspects.failed(&client, now));
            let end = now + Duration::from_millis(millis);
            let before = now + Duration::from_millis(millis - 1);
            assert_eq!(suspects.suspension(&client, before), Some(PluginFailure::Down));
            assert_eq!(suspects.suspension(&client, end), None);
            now = end;
        }
        assert_eq!(suspects.suspension(&"b".into(), now), None);
        suspects.answered(&client, now);
        assert!(!suspects.failed(&client, now));
    }

    #[test]
    fn an_answer_to_another_client_shows_that_the_plugin_works() {
        let (mut suspects, now) = (SuspectClients::default(), Instant::now());
        let (client, later): (Arc<str>, _) = ("a".into(), now + Duration::from_millis(1));
        suspects.answered(&"b".into(), now);
        assert_eq!([1, 2, 3].map(|_| suspects.failed(&client, now)), [false, false, true]);
        assert_eq!(suspects.suspension(&client, later), Some(PluginFailure::Down));
        suspects.answered(&"b".into(), later);
        assert_eq!(suspects.suspension(&client, later), Some(PluginFailure::Suspended));
    }
}
