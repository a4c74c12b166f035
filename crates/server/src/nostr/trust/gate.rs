//! Refuses events of keys that are not trusted.

use std::sync::Arc;

use hark_codec::nostr::Event;
use hark_codec::record::Key;
use hark_networks::nostr::{NostrRefusal, NostrVerdict};

use super::state::{Trust, TrustVerdict};
use crate::moderation::{Moderation, RulingCheck};
use crate::nostr::identity::SharedIdentity;
use crate::nostr::manage::ManagerKeys;
use crate::nostr::policy::EventPolicy;
use crate::nostr::rule_mode::RuleMode;

/// The rule, and the keys that are exempt from the rule: members, allowed keys, managers, and the
/// relay's own key.
#[derive(Clone)]
pub struct TrustGate {
    trust: Arc<Trust>,
    moderation: Moderation,
    managers: ManagerKeys,
    identity: SharedIdentity,
}

impl TrustGate {
    /// The gate of a relay with these bans, managers and identity.
    pub fn new(
        trust: Arc<Trust>,
        moderation: Moderation,
        managers: ManagerKeys,
        identity: SharedIdentity,
    ) -> Self {
        Self { trust, moderation, managers, identity }
    }

    /// Returns the reason to refuse an event that the bans and the policy accept. In the mode
    /// `watch`, the event is only counted.
    ///
    /// Events that the policy takes from any key are not refused, such as gift wraps to a key that
    /// may publish: their signing keys have no followers.
    pub fn refusal(&self, policy: &EventPolicy, event: &Event<'_>) -> Option<NostrRefusal> {
        let mode = self.trust.mode();
        if mode == RuleMode::Off {
            return None;
        }
        let verdict = self.trust.verdict(event.pubkey());
        if verdict == TrustVerdict::Trusted {
            return None;
        }
        let check = self.moderation.check();
        let is_spared = |key: &Key| self.is_exempt(policy, &check, key);
        let may_publish =
            |key: &Key| self.trust.verdict(key) == TrustVerdict::Trusted || is_spared(key);
        if is_spared(event.pubkey())
            || check.allows_id(event.id())
            || policy.takes_from_strangers(event, may_publish)
        {
            return None;
        }
        drop(check);
        self.judge(mode, verdict, event.pubkey())
    }

    /// Does the same as [`TrustGate::refusal`], for an event that was checked before. The mode `watch`
    /// has counted this event already.
    pub(crate) fn late_refusal(
        &self,
        policy: &EventPolicy,
        event: &Event<'_>,
    ) -> Option<NostrRefusal> {
        if self.trust.mode() == RuleMode::Watch { None } else { self.refusal(policy, event) }
    }

    fn is_exempt(&self, policy: &EventPolicy, check: &RulingCheck<'_>, key: &Key) -> bool {
        check.names_member(policy, key)
            || self.managers.have(key)
            || self.identity.own_key().as_ref() == Some(key)
    }

    fn judge(&self, mode: RuleMode, verdict: TrustVerdict, key: &Key) -> Option<NostrRefusal> {
        let counts = self.trust.counts();
        if mode == RuleMode::Watch {
            // An event whose author is not known yet would only be refused for now.
            if verdict == TrustVerdict::Stranger {
                counts.watched.add(1);
                *counts.last_watched.lock() = Some(*key);
            }
            return None;
        }
        if verdict == TrustVerdict::Unknown {
            counts.deferred.add(1);
            let words = "this relay is still reading the follow lists of the people whom it \
                         trusts; try again in a few seconds";
            return Some(NostrVerdict::Error.because(words));
        }
        counts.refused.add(1);
        let words = "this relay takes events of people whom its trusted people follow; ask \
                     somebody who publishes here to follow you, or ask the operator";
        Some(NostrVerdict::Restricted.because(words))
    }
}
