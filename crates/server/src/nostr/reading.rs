//! Applies the operator's rules for questions (`[policy]`) to the clients: to each new question,
//! and to the open subscriptions when the rules or the members change.

use std::sync::Arc;

use hark_archive::live::SubscriptionHandle;
use hark_archive::{Gate, Query};
use hark_codec::nostr::{Filter, reply};
use hark_networks::nostr::question_rules::ReaderStanding;
use hark_networks::nostr::{NostrRefusal, query};
use parking_lot::Mutex;

use super::Relay;
use super::audience::{AudienceEntry, RuledSession};
use super::auth::ClientIdentity;
use super::outbox::Outbox;
use super::own::InviteRequest;
use super::policy::EventPolicy;
use super::subscription::SessionSubscription;

/// The client of one session as a reader of events, with its open subscriptions.
pub(super) struct SessionReader {
    relay: Arc<Relay>,
    caller: Arc<ClientIdentity>,
    outbox: Arc<Outbox>,
    /// The open subscriptions, in no order. Most clients have few.
    pub(super) subs: Mutex<Vec<Arc<SessionSubscription>>>,
}

impl RuledSession for SessionReader {
    fn enforce(&self) {
        let policy = self.relay.policy.load();
        if !policy.questions.is_set() {
            return;
        }
        let gate = self.caller.gate();
        let standing = standing(&self.relay, &policy, &gate);
        let subs: Vec<_> = self.subs.lock().iter().map(Arc::clone).collect();
        for sub in subs {
            let refusal =
                sub.refusal_by(|open| policy.questions.refusal_of_open(standing, &gate, open));
            if let Some(refusal) = refusal {
                self.challenge_again(&refusal);
                sub.refuse(&refusal, &self.relay.readers);
            }
        }
    }

    fn yield_share(&self) {
        let subs: Vec<_> = self.subs.lock().iter().filter_map(|sub| sub.handle()).collect();
        self.outbox.yield_share(subs.iter().map(SubscriptionHandle::held_bytes).sum());
    }
}

impl SessionReader {
    /// Creates the reader of a new session, and adds the session to the relay's audience.
    pub(super) fn enter(
        relay: &Arc<Relay>,
        caller: &Arc<ClientIdentity>,
        outbox: &Arc<Outbox>,
    ) -> AudienceEntry<Self> {
        let (caller, outbox) = (Arc::clone(caller), Arc::clone(outbox));
        let reader = Self { relay: Arc::clone(relay), caller, outbox, subs: Mutex::default() };
        relay.audience.enter(Arc::new(reader))
    }

    /// Refuses a question, or restricts its queries to the events that the client may see.
    pub(super) fn restrict(&self, queries: &mut [Query]) -> Result<(), NostrRefusal> {
        let (policy, mut gate) = (self.relay.policy.load(), self.caller.gate());
        if policy.questions.is_set() {
            let standing = standing(&self.relay, &policy, &gate);
            gate = policy.questions.restrict(standing, &gate, queries)?;
        }
        query::close(queries, &gate)
    }

    /// Returns the request for an invite in the filters of a REQ. `None` if the filters ask for no
    /// invite.
    pub(super) fn invite_request(
        &self,
        filters: &[Filter],
    ) -> Result<Option<InviteRequest>, NostrRefusal> {
        let Some(invites) = &self.relay.invites else { return Ok(None) };
        let now_s = self.relay.shelf.clock().now_s();
        invites.request(filters, &self.caller.gate().readers, now_s)
    }

    /// Returns the reason why queries that were allowed so far are now forbidden.
    pub(super) fn refusal_of_open(&self, queries: &[Query]) -> Option<NostrRefusal> {
        let policy = self.relay.policy.load();
        if !policy.questions.is_set() {
            return None;
        }
        let gate = self.caller.gate();
        policy.questions.refusal_of_open(standing(&self.relay, &policy, &gate), &gate, queries)
    }

    /// Removes the subscription with this id.
    pub(super) fn remove(&self, id: &str) -> Option<Arc<SessionSubscription>> {
        let mut subs = self.subs.lock();
        subs.iter().position(|sub| sub.id() == id).map(|at| subs.swap_remove(at))
    }

    /// Sends the client its challenge again before the first refusal that asks for an AUTH.
    pub(super) fn challenge_again(&self, refusal: &NostrRefusal) {
        if let Some(challenge) = self.caller.repeated_challenge(refusal) {
            self.outbox.push_message(|out| reply::write_auth(out, challenge));
        }
    }
}

/// Returns whether a reader with this gate is a stranger, a guest or a member.
fn standing(relay: &Relay, policy: &EventPolicy, gate: &Gate) -> ReaderStanding {
    if gate.readers.is_empty() {
        return ReaderStanding::Stranger;
    }
    let check = relay.moderation.check();
    let is_member = gate.readers.iter().any(|key| policy.has_member(key, &check));
    if is_member { ReaderStanding::Member } else { ReaderStanding::Guest }
}

/// Makes the relay end forbidden subscriptions whenever the rules or the members change.
pub(super) fn follow_rules(relay: &Relay) {
    let audience = Arc::clone(&relay.audience);
    relay.policy.follow(Box::new(move || audience.enforce()));
    let (audience, policy) = (Arc::clone(&relay.audience), relay.policy.clone());
    relay.moderation.on_change(Box::new(move || {
        if policy.load().questions.has_members() {
            audience.enforce();
        }
    }));
}
