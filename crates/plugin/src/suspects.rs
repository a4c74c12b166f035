//! Clients whose events make the plugin fail. Such a client waits longer and longer, so that its
//! events do not end the processes that others need.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of failures in a row after which a client is suspended.
const SUSPEND_AFTER: u32 = 3;
/// The first suspension. Each further suspension is twice as long, until an event of the client is
/// answered.
const SUSPENSION: Duration = Duration::from_millis(500);
const SUSPENSION_MAX: Duration = Duration::from_mins(1);
/// Maximum number of clients that are remembered.
const CLIENTS_MAX: usize = 10_000;

/// The clients whose last events made the plugin fail.
#[derive(Debug, Default)]
pub(crate) struct SuspectClients(HashMap<Arc<str>, SuspectClient>);

#[derive(Debug)]
struct SuspectClient {
    failures: u32,
    until: Instant,
}

impl SuspectClients {
    /// Notes a failure with an event of a client. Returns whether the client is suspended.
    pub(crate) fn failed(&mut self, client: &Arc<str>, now: Instant) -> bool {
        if self.0.len() >= CLIENTS_MAX && !self.0.contains_key(client) {
            self.0.clear();
        }
        let suspect = self.0.entry(Arc::clone(client));
        let suspect = suspect.or_insert(SuspectClient { failures: 0, until: now });
        suspect.failures = suspect.failures.saturating_add(1);
        if let Some(times) = suspect.failures.checked_sub(SUSPEND_AFTER) {
            let length = SUSPENSION.saturating_mul(2_u32.saturating_pow(times));
            suspect.until = now + length.min(SUSPENSION_MAX);
        }
        suspect.until > now
    }

    /// Notes an answer to an event of a client.
    pub(crate) fn answered(&mut self, client: &Arc<str>) {
        self.0.remove(client);
    }

    /// Whether the events of a client are not given to the plugin now.
    pub(crate) fn is_suspended(&self, client: &Arc<str>, now: Instant) -> bool {
        self.0.get(client).is_some_and(|suspect| suspect.until > now)
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
            assert!(suspects.is_suspended(&client, before));
            assert!(!suspects.is_suspended(&client, end));
            now = end;
        }
        assert!(!suspects.is_suspended(&"b".into(), now));
        suspects.answered(&client);
        assert!(!suspects.failed(&client, now));
    }
}
