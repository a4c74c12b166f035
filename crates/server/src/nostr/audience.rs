//! The open sessions of a relay. When the operator's rules for questions change, each session ends
//! the subscriptions that the new rules forbid.

use std::collections::BTreeMap;
use std::ops::{Bound, Deref};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Number of sessions that are copied each time the lock is held.
const COPIED_AT_ONCE: usize = 256;

/// A session with subscriptions.
pub(super) trait RuledSession: Send + Sync {
    /// Ends the subscriptions that the rules in force forbid.
    fn enforce(&self);

    /// Ends if questions of all clients wait because this client does not read its answers.
    fn yield_share(&self);
}

/// The open sessions, by number.
#[derive(Default)]
pub(crate) struct Audience {
    sessions: Mutex<BTreeMap<u64, Arc<dyn RuledSession>>>,
    numbers: AtomicU64,
}

/// The entry of a session, removed from the audience on drop.
pub(super) struct AudienceEntry<T> {
    audience: Arc<Audience>,
    number: u64,
    session: Arc<T>,
}

impl<T> Deref for AudienceEntry<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.session
    }
}

impl<T> Drop for AudienceEntry<T> {
    fn drop(&mut self) {
        self.audience.sessions.lock().remove(&self.number);
    }
}

impl Audience {
    /// Adds a session.
    pub(super) fn enter<T: RuledSession + 'static>(
        self: &Arc<Self>,
        session: Arc<T>,
    ) -> AudienceEntry<T> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.sessions.lock().insert(number, Arc::<T>::clone(&session));
        AudienceEntry { audience: Arc::clone(self), number, session }
    }

    /// Ends the subscriptions that the rules in force forbid. On return, nothing more is delivered
    /// to these subscriptions.
    pub(super) fn enforce(&self) {
        self.visit(|session| session.enforce());
    }

    /// Ends the sessions that have more than their share of the unread bytes, if questions of all
    /// clients have waited too long.
    pub(super) fn yield_shares(&self) {
        self.visit(|session| session.yield_share());
    }

    fn visit(&self, each: impl Fn(&dyn RuledSession)) {
        let mut from = Bound::Unbounded;
        loop {
            // No lock is held while a session is visited.
            let some: Vec<_> = {
                let sessions = self.sessions.lock();
                let rest = sessions.range((from, Bound::Unbounded)).take(COPIED_AT_ONCE);
                rest.map(|(number, session)| (*number, Arc::clone(session))).collect()
            };
            let Some((last, _)) = some.last() else { return };
            from = Bound::Excluded(*last);
            for (_, session) in some {
                each(&*session);
            }
        }
    }
}
