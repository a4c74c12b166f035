//! Requests for invites (NIP-43): a member asks for events of kind 28935 of the relay's own key, and
//! the relay answers with an event that has a new code. The event is made for this question: it is
//! neither stored nor sent to other subscriptions.

use std::sync::Arc;

use hark_codec::nostr::Filter;
use hark_codec::record::Key;
use hark_networks::nostr::{NostrRefusal, NostrVerdict};

use super::key::OwnKey;
use super::options::SharedOwnEvents;
use crate::blocking;
use crate::moderation::{Moderation, ModerationError};
use crate::nostr::identity::SharedIdentity;
use crate::nostr::policy::SharedPolicy;

/// The kind of an event with an invite code.
pub(crate) const INVITE_KIND: u16 = 28_935;

/// The part of the relay that makes invites for members.
pub(crate) struct MemberInvites {
    pub(crate) key: Arc<OwnKey>,
    pub(crate) options: SharedOwnEvents,
    pub(crate) identity: SharedIdentity,
    pub(crate) moderation: Moderation,
    pub(crate) policy: SharedPolicy,
}

/// A question of a member that asks for an invite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InviteRequest {
    /// The member.
    pub(crate) member: Key,
    /// Whether the question asks for nothing else.
    pub(crate) is_only: bool,
}

impl MemberInvites {
    /// Returns the request for an invite in the filters of a question. `None` if the filters ask for
    /// no invite. `readers` are the keys that the client has proved. A client that is no member is
    /// refused only if its question asks for nothing else.
    pub(crate) fn request(
        &self,
        filters: &[Filter],
        readers: &[Key],
        now_s: u64,
    ) -> Result<Option<InviteRequest>, NostrRefusal> {
        let own = self.key.public();
        if self.options.load().member_invites == 0
            || !filters.iter().any(|filter| is_request(filter, own, now_s))
            || self.identity.own_key().as_ref() != Some(own)
        {
            return Ok(None);
        }
        let is_only = filters.iter().all(|filter| matches!(filter.kinds(), Some([INVITE_KIND])));
        let (policy, check) = (self.policy.load(), self.moderation.check());
        match readers.iter().find(|key| check.names_member(&policy, key)) {
            Some(member) => Ok(Some(InviteRequest { member: *member, is_only })),
            None if !is_only => Ok(None),
            None if readers.is_empty() => {
                let words = "invite codes are for the members of this relay";
                Err(NostrVerdict::AuthRequired.because(words))
            }
            None => {
                let words = "only members of this relay may make invite codes";
                Err(NostrVerdict::Restricted.because(words))
            }
        }
    }

    /// Makes an invite of a member. Returns the record of the event with its code.
    pub(crate) async fn make(&self, member: Key) -> Result<Vec<u8>, NostrRefusal> {
        let a_day = self.options.load().member_invites;
        let moderation = self.moderation.clone();
        let made = blocking::run(move || moderation.make_member_invite(&member, a_day)).await;
        let made = made.map_err(|_| NostrVerdict::Error.because("the relay is stopping"))?;
        match made {
            Ok(Some(invite)) => {
                let made_s = invite.made_s();
                let tags = [vec!["-".to_owned()], vec!["claim".to_owned(), invite.code]];
                Ok(self.key.sign(INVITE_KIND, made_s, &tags, ""))
            }
            Ok(None) => {
                let words = format!("a member may make {a_day} invite codes a day");
                Err(NostrVerdict::RateLimited.because(words))
            }
            Err(ModerationError::ManyInvites) => {
                let words = "the members of this relay have too many open invite codes";
                Err(NostrVerdict::RateLimited.because(words))
            }
            Err(error) => {
                tracing::warn!(%error, "an invite of a member was not made");
                let words = "the archive could not keep the invite code; try again later";
                Err(NostrVerdict::Error.because(words))
            }
        }
    }
}

/// Whether a filter asks for an invite: it names the kind, and an event with a code that the relay
/// makes now would match.
fn is_request(filter: &Filter, own: &Key, now_s: u64) -> bool {
    filter.kinds().is_some_and(|kinds| kinds.contains(&INVITE_KIND))
        && filter.authors().is_none_or(|authors| authors.contains(own))
        && filter.ids().is_none()
        && filter.tags().chain(filter.and_tags()).next().is_none()
        && filter.search().is_none()
        && filter.limit() != Some(0)
        && filter.since().is_none_or(|since| since <= now_s)
        && filter.until().is_none_or(|until| until >= now_s)
}
