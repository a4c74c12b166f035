//! The checks of a received event before its signature is verified.

use std::sync::Arc;

use hark_codec::nostr::{Event, EventArena};
use hark_networks::nostr::{NostrRefusal, NostrVerdict, admit};
use hark_plugin::PluginPool;

use super::identity::SharedIdentity;
use super::metrics::RelayMetrics;
use super::names::NameChecks;
use super::own::{Membership, MembershipRequest};
use super::policy::{self, EventPolicy};
use super::reply_handle::ReplyHandle;
use super::rule_mode::RuleMode;
use super::trust::TrustGate;
use crate::moderation::Moderation;
use crate::settings::SharedSettings;
use crate::shelf::Shelf;

/// State shared by the intake's threads.
pub(crate) struct IntakeContext {
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) settings: SharedSettings,
    pub(crate) policy: policy::SharedPolicy,
    pub(crate) moderation: Moderation,
    pub(crate) identity: SharedIdentity,
    pub(crate) metrics: Arc<RelayMetrics>,
    pub(crate) plugin: Arc<PluginPool>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) names: Arc<NameChecks>,
    pub(crate) trust: TrustGate,
}

/// The result of the checks.
pub(super) enum PolicyVerdict {
    Pass,
    /// A request about its author's own data, from an author who may not publish, for the given
    /// reason.
    PassRequest(NostrRefusal),
    /// A request to join or to leave.
    PassMembership(MembershipRequest),
    Known,
    Refuse(NostrRefusal),
}

/// Makes all checks except the signature check.
pub(super) fn check(
    parts: &IntakeContext,
    event: &Event<'_>,
    bytes: usize,
    now_s: u64,
    from: &ReplyHandle,
    arena: &mut EventArena,
) -> PolicyVerdict {
    let known = match parts.shelf.store().knows(event.id()) {
        Ok(known) => known,
        Err(error) => return PolicyVerdict::Refuse(error.into()),
    };
    let settings = parts.settings.load();
    let gate = from.caller.gate();
    let proven = &gate.readers[..];
    let mut membership = None;
    let (refusal, unwelcome) = if known {
        // Only the author may learn that a protected event is stored.
        let refusal = admit::protected_refusal(event, proven);
        // A vanish request may be known without having been carried out, because an import also
        // stores requests to other relays.
        let refusal = refusal.or_else(|| vanish_refusal(parts, event));
        let banned = || parts.moderation.check().late_refusal(event.id(), event.pubkey());
        (refusal.or_else(banned), None)
    } else {
        let refusal = admit::refusal(event, bytes, &settings.limits.events, now_s, proven, arena);
        let policy = parts.policy.load();
        let stranger = proven.is_empty().then(|| policy.auth_refusal(event)).flatten();
        let refusal = refusal.or(stranger).or_else(|| vanish_refusal(parts, event));
        let unwelcome = if parts.membership.answers(event) {
            match parts.membership.read(event, &policy, now_s) {
                Ok(request) => {
                    membership = Some(request);
                    None
                }
                Err(refusal) => Some(refusal),
            }
        } else {
            operators_refusal(parts, &policy, event)
        };
        let is_heard = || parts.identity.current().own_urls.are_named_by_deletion(event);
        match unwelcome {
            Some(_) if refusal.is_none() && is_heard() => (None, unwelcome),
            unwelcome => (refusal.or(unwelcome), None),
        }
    };
    let refusal = refusal.or_else(|| {
        // The author's rate is charged only once the signature is verified: otherwise anybody could
        // use up the rate of another author.
        let rate = || {
            let of_author = from.rated.may_publish_of(event.pubkey(), event.kind());
            of_author.and_then(|()| from.rated.publishes_kind(event.kind())).err()
        };
        (!known).then(rate).flatten().map(NostrRefusal::from)
    });
    // A known event is hashed as well: otherwise a client that has only the id of a private event
    // could find out here whether that event is stored.
    match (refusal.or_else(|| wrong_id(event)), unwelcome) {
        (Some(refusal), _) => PolicyVerdict::Refuse(refusal),
        (None, _) if known => PolicyVerdict::Known,
        (None, Some(refusal)) => PolicyVerdict::PassRequest(refusal),
        (None, None) => membership.map_or(PolicyVerdict::Pass, PolicyVerdict::PassMembership),
    }
}

/// Returns the reason to refuse an event by the bans and by the operator's rules. An event whose
/// author lacks a name begins a check of the author's name.
fn operators_refusal(
    parts: &IntakeContext,
    policy: &EventPolicy,
    event: &Event<'_>,
) -> Option<NostrRefusal> {
    let refusal = parts.moderation.event_refusal(policy, event);
    let refusal = refusal.or_else(|| parts.trust.refusal(policy, event));
    if policy.names.mode == RuleMode::Watch
        && refusal.is_none()
        && parts.moderation.lacks_name(policy, event)
    {
        parts.names.note_unnamed(event.pubkey());
    }
    refusal.map(|refusal| parts.names.explain(refusal, event.pubkey()))
}

/// Returns the reason to refuse a request to vanish that names specific relays. The request is
/// refused if this relay does not know its own URL, or if the request names another path of this
/// relay's host. A stored request would delete nothing here, but its author would believe that
/// everything is deleted.
fn vanish_refusal(parts: &IntakeContext, event: &Event<'_>) -> Option<NostrRefusal> {
    if !admit::vanishes_from_some(event) {
        return None;
    }
    let identity = parts.identity.current();
    if identity.own_urls.are_named_by_deletion(event) {
        return None;
    }
    let Some(url) = &identity.info.url else {
        let words = "this relay does not know its own URL, so it cannot carry this request out; \
                     its operator has to set it. A request to vanish from ALL_RELAYS is carried \
                     out";
        return Some(NostrVerdict::Error.because(words));
    };
    // Another path may belong to another relay, and a deletion cannot be undone.
    identity.own_urls.are_missed_by(event).then(|| {
        NostrVerdict::Invalid.because(format!(
            "the request names this host, and not this relay: nothing was deleted. Name {url} or \
             ALL_RELAYS"
        ))
    })
}

/// The refusal of an event whose id is not its hash.
pub(super) fn wrong_id(event: &Event<'_>) -> Option<NostrRefusal> {
    (!event.has_valid_id())
        .then(|| NostrVerdict::Invalid.because("id is not the hash of the event"))
}
