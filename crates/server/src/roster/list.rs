//! All open connections of a server, by number.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::{Bound, Deref};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::connection::{ConnectionForm, OpenConnection};
use super::pattern::ConnectionPattern;
use super::refusals::RefusalLog;
use crate::settings::SharedSettings;

/// Number of connections that are copied under one lock.
const COPIED_AT_ONCE: usize = 256;

/// The open connections of all doors.
#[derive(Default)]
pub(crate) struct Roster {
    open: Mutex<BTreeMap<u64, Arc<OpenConnection>>>,
    numbers: AtomicU64,
    refusals: Arc<RefusalLog>,
}

impl fmt::Debug for Roster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roster").field("open", &self.open.lock().len()).finish_non_exhaustive()
    }
}

/// The entry of an open connection, removed from the list on drop.
#[derive(Debug)]
pub(crate) struct RosterEntry {
    roster: Arc<Roster>,
    connection: Arc<OpenConnection>,
}

impl Deref for RosterEntry {
    type Target = Arc<OpenConnection>;

    fn deref(&self) -> &Arc<OpenConnection> {
        &self.connection
    }
}

impl Drop for RosterEntry {
    fn drop(&mut self) {
        self.roster.open.lock().remove(&self.connection.number());
    }
}

impl Roster {
    pub(crate) fn new(settings: &SharedSettings) -> Self {
        let refusals = Arc::new(RefusalLog::new(Arc::clone(settings)));
        Self { refusals, ..Self::default() }
    }

    /// Adds a connection from `ip` to the list. `is_of_proxy` tells whether `ip` is the address of
    /// a trusted proxy.
    pub(crate) fn enter(
        self: &Arc<Self>,
        (network, form): (&'static str, ConnectionForm),
        (ip, is_of_proxy): (IpAddr, bool),
    ) -> RosterEntry {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let from = (ip.to_canonical(), is_of_proxy);
        let refusals = Arc::clone(&self.refusals);
        let connection = Arc::new(OpenConnection::new(number, (network, form), from, refusals));
        self.open.lock().insert(number, Arc::clone(&connection));
        RosterEntry { roster: Arc::clone(self), connection }
    }

    /// The log of refused clients.
    pub(crate) fn refusals(&self) -> &RefusalLog {
        &self.refusals
    }

    /// Number of open connections.
    pub(crate) fn len(&self) -> usize {
        self.open.lock().len()
    }

    /// Returns the next connections after the number `after`, in the order of their numbers.
    fn copy_after(&self, after: u64) -> Vec<Arc<OpenConnection>> {
        let open = self.open.lock();
        let rest = open.range((Bound::Excluded(after), Bound::Unbounded));
        rest.take(COPIED_AT_ONCE).map(|(_, connection)| Arc::clone(connection)).collect()
    }

    /// Passes all connections after the number `after` to `visit`, until `visit` returns false. No
    /// lock is held while `visit` runs.
    pub(crate) fn visit(&self, after: u64, mut visit: impl FnMut(&OpenConnection) -> bool) {
        let mut after = after;
        loop {
            let some = self.copy_after(after);
            let Some(last) = some.last() else { return };
            after = last.number();
            if !some.iter().all(|connection| visit(connection)) {
                return;
            }
        }
    }

    /// Closes all connections that match, with a reason for their clients. Returns the number of
    /// these connections.
    pub(crate) fn kick(&self, whom: &ConnectionPattern, reason: &str) -> u64 {
        let mut closed = 0;
        self.visit(0, |connection| {
            closed += u64::from(whom.matches(connection) && connection.kick(reason));
            true
        });
        closed
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection::KeyName;
    use super::super::shown::AddressPrivacy;
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_long_list_is_read_in_pages_while_connections_come_and_go() {
        let roster = Arc::new(Roster::default());
        let mut open: Vec<_> = (0..2_000)
            .map(|_| roster.enter(("test", ConnectionForm::Http), (ip("192.0.2.1"), false)))
            .collect();
        open.retain(|entry| entry.number() % 2 == 0);
        let mut seen = Vec::new();
        roster.visit(10, |connection| {
            if connection.number() == 600 {
                open.clear();
            }
            seen.push(connection.number());
            true
        });
        // The connections of a page that was copied before are still seen.
        let expected: Vec<u64> = (12..).step_by(2).take(seen.len()).collect();
        assert_eq!(seen, expected);
        assert!((600..2_000).contains(seen.last().unwrap()), "{}", seen.len());
        assert_eq!(roster.len(), 0);
    }

    #[test]
    fn connections_are_closed_by_address_network_key_and_number_once() {
        let roster = Arc::new(Roster::default());
        let enter = |from| roster.enter(("test", ConnectionForm::Http), (ip(from), false));
        let open = ["192.0.2.1", "192.0.2.2", "::ffff:192.0.2.3", "2001:db8::1"].map(enter);
        let key = KeyName { shown: "key1abcdefghijklmnop".into(), digits: "ab".repeat(32).into() };
        open[1].add_key(key);
        let kick = |whom: &str| roster.kick(&ConnectionPattern::parse(whom).unwrap(), "why");
        assert_eq!(kick("192.0.2.9"), 0);
        assert_eq!(kick("key1abcdefghijklmnop"), 1);
        assert_eq!(kick(&"AB".repeat(32)), 0, "the connection is closed already");
        assert_eq!((open[1].kick_reason(), open[0].kick_reason()), (Some("why"), None));
        assert_eq!(kick(&open[3].number().to_string()), 1);
        assert_eq!(kick("192.0.2.0/30"), 2);
        assert!(open.iter().all(|entry| entry.kick_reason().is_some()));
        // The address of a proxy that names no client is no client's address.
        open[0].set_client(ip("10.0.0.1"), Some(ip("192.0.2.7")));
        assert_eq!(open[0].client_ip(), Some(ip("192.0.2.7")));
        open[0].set_client(ip("10.0.0.1"), None);
        assert_eq!((open[0].client_ip(), open[0].ip()), (None, ip("10.0.0.1")));
        open[0].set_agent("a\u{9b}2J\u{202e}b\u{e9}");
        assert_eq!(open[0].row(AddressPrivacy::Whole, &Arc::default())["agent"], "a?2J?b\u{e9}");
        for unclear in ["", "key", "192.0.2.1/24", "somewhere.example", "-1"] {
            assert!(ConnectionPattern::parse(unclear).is_err(), "{unclear}");
        }
    }
}
