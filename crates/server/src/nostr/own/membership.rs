//! Requests to join and to leave (NIP-43). A join with a valid invite makes an allow of the key, as
//! `hark allow` does, and a leave lifts this allow and withdraws the roles of the key.

use hark_codec::nostr::Event;
use hark_codec::nostr::npub;
use hark_codec::record::Key;
use hark_networks::nostr::{NostrRefusal, NostrVerdict};
use tokio::sync::Mutex;

use super::invites::INVITE_KIND;
use crate::blocking;
use crate::moderation::{
    JoinAnswer, Moderation, ModerationError, Ruling, RulingChange, RulingSubject,
};
use crate::nostr::identity::SharedIdentity;
use crate::nostr::manage::withdraw_roles;
use crate::nostr::policy::{EventPolicy, SharedPolicy};

/// Kinds of NIP-43: the requests to join and to leave.
const JOIN_KIND: u16 = 28_934;
const LEAVE_KIND: u16 = 28_936;
/// Maximum difference between the time of a request and the present, in seconds.
const AGE_S_MAX: u64 = 600;
/// Maximum number of bytes of a code.
const CODE_BYTES_MAX: usize = 200;

/// The part of the relay that answers the requests of clients to join and to leave.
pub(crate) struct Membership {
    identity: SharedIdentity,
    moderation: Moderation,
    policy: SharedPolicy,
    /// Held during a request, so that a key that joins twice takes one use of its invite.
    turn: Mutex<()>,
}

/// A request of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MembershipRequest {
    /// The key wants to join with this code.
    Join(String),
    Leave,
}

impl Membership {
    pub(crate) fn new(
        identity: SharedIdentity,
        moderation: Moderation,
        policy: SharedPolicy,
    ) -> Self {
        Self { identity, moderation, policy, turn: Mutex::default() }
    }

    /// Whether an event is a request that this relay answers, or an invite, which only the relay
    /// makes. A relay without a key of its own passes such events on like all ephemeral events.
    pub(crate) fn answers(&self, event: &Event<'_>) -> bool {
        matches!(event.kind(), JOIN_KIND | INVITE_KIND | LEAVE_KIND)
            && self.identity.own_key().is_some()
    }

    /// Reads a request that the relay answers, or returns the reason for a refusal. The lists of the
    /// policy that name members do not apply, since the key need not be a member.
    pub(crate) fn read(
        &self,
        event: &Event<'_>,
        policy: &EventPolicy,
        now_s: u64,
    ) -> Result<MembershipRequest, NostrRefusal> {
        if let Some(refusal) = self.moderation.check().stranger_refusal(policy, event) {
            return Err(refusal);
        }
        if event.kind() == INVITE_KIND {
            let words = "invite codes are made by this relay, and by nobody else";
            return Err(NostrVerdict::Restricted.because(words));
        }
        let invalid = |words: &'static str| Err(NostrVerdict::Invalid.because(words));
        if event.created_at().abs_diff(now_s) > AGE_S_MAX {
            return invalid("created_at is more than 600 s from now");
        }
        if event.kind() == LEAVE_KIND {
            return if event.is_protected() {
                Ok(MembershipRequest::Leave)
            } else {
                invalid("a request to leave needs the tag [\"-\"]")
            };
        }
        match event.first_value("claim") {
            Some(code) if code.len() <= CODE_BYTES_MAX => {
                Ok(MembershipRequest::Join(code.trim().to_ascii_lowercase()))
            }
            Some(_) => Err(refusal_of(JoinAnswer::Unknown)),
            None => invalid("a request to join needs a tag [\"claim\", CODE]"),
        }
    }

    /// Carries out a request of a key. Returns the words for the client.
    pub(crate) async fn carry_out(
        &self,
        request: MembershipRequest,
        key: Key,
    ) -> Result<String, NostrRefusal> {
        let _turn = self.turn.lock().await;
        let (moderation, policy) = (self.moderation.clone(), self.policy.clone());
        let done = blocking::run(move || match request {
            MembershipRequest::Join(code) => join(&moderation, &policy.load(), &key, &code),
            MembershipRequest::Leave => leave(&moderation, &policy.load(), &key),
        });
        let done = done.await.map_err(|_| NostrVerdict::Error.because("the relay is stopping"))?;
        match done? {
            MembershipAnswer::Welcome => {
                let identity = self.identity.current();
                let relay = identity.info.url.as_deref().unwrap_or("this relay");
                Ok(format!("info: welcome to {relay}!"))
            }
            MembershipAnswer::Already => {
                Ok("duplicate: you are already a member of this relay.".into())
            }
            MembershipAnswer::Left => Ok("info: you have left this relay.".into()),
            MembershipAnswer::NoMember => {
                Ok("duplicate: you are not a member of this relay.".into())
            }
        }
    }
}

/// The result of a request.
enum MembershipAnswer {
    Welcome,
    Already,
    Left,
    NoMember,
}

fn join(
    moderation: &Moderation,
    policy: &EventPolicy,
    key: &Key,
    code: &str,
) -> Result<MembershipAnswer, NostrRefusal> {
    if moderation.check().names_member(policy, key) {
        return Ok(MembershipAnswer::Already);
    }
    let is_member = |maker: &Key| moderation.check().names_member(policy, maker);
    match moderation.join_now(key, code, is_member).map_err(|error| not_done(&error))? {
        JoinAnswer::Joined => Ok(MembershipAnswer::Welcome),
        answer => Err(refusal_of(answer)),
    }
}

fn leave(
    moderation: &Moderation,
    policy: &EventPolicy,
    key: &Key,
) -> Result<MembershipAnswer, NostrRefusal> {
    if !moderation.check().names_member(policy, key) {
        return Ok(MembershipAnswer::NoMember);
    }
    if policy.names_member(key, &()) {
        let words = "your key is in the configuration of this relay; ask its operator";
        return Err(NostrVerdict::Restricted.because(words));
    }
    part(moderation, key).map_err(|error| not_done(&error))?;
    Ok(MembershipAnswer::Left)
}

/// Withdraws the roles of a key and lifts its allow. The allow is lifted last, so that a request
/// that is repeated after an error withdraws the remaining roles.
fn part(moderation: &Moderation, key: &Key) -> Result<(), ModerationError> {
    let by = npub::encode(key);
    withdraw_roles(moderation, key, &by)?;
    let lift = RulingChange::Lift(RulingSubject::Key(*key), Ruling::Allow);
    moderation.change_now(&[lift], &by).map(drop)
}

fn refusal_of(answer: JoinAnswer) -> NostrRefusal {
    NostrVerdict::Restricted.because(match answer {
        JoinAnswer::Expired => "that invite code is expired.",
        JoinAnswer::UsedUp => "that invite code is used up.",
        JoinAnswer::Joined | JoinAnswer::Unknown => "that is an invalid invite code.",
    })
}

fn not_done(error: &ModerationError) -> NostrRefusal {
    tracing::warn!(%error, "a request of a client to join or to leave was not carried out");
    NostrVerdict::Error.because("the archive could not change the members; try again later")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use hark_archive::clock::Clock;
    use serde_json::json;

    use super::*;
    use crate::moderation::AuditAct;
    use crate::nostr::policy;

    const ALICE: Key = [1; 32];
    const BOB: Key = [2; 32];

    /// Makes the part of a relay that has these keys in its configuration, with two roles of Alice.
    fn membership(listed: &[Key]) -> Membership {
        let moderation = Moderation::in_memory(Clock::System);
        let role = |key: &Key, id: &str| {
            let name = format!("member/{}/{id}", hark_codec::hex::text_32(key));
            moderation
                .set_values_now(&[(name, json!(true))], &AuditAct::default(), "test")
                .unwrap();
        };
        role(&ALICE, "king");
        role(&ALICE, "a/b");
        role(&BOB, "king");
        let listed: HashSet<Key> = listed.iter().copied().collect();
        let policy =
            policy::shared(EventPolicy { allow_keys: Some(listed), ..EventPolicy::default() });
        Membership::new(SharedIdentity::default(), moderation, policy)
    }

    fn allow(membership: &Membership, key: &Key) {
        let (subject, ruling) = (RulingSubject::Key(*key), Ruling::Allow);
        let set = RulingChange::Set { subject, ruling, reason: String::new(), until_s: None };
        membership.moderation.change_now(&[set], "test").unwrap();
    }

    #[tokio::test]
    async fn a_key_that_leaves_has_no_roles_any_more() {
        let membership = membership(&[]);
        allow(&membership, &ALICE);
        let left = membership.carry_out(MembershipRequest::Leave, ALICE).await;
        assert_eq!(left.unwrap(), "info: you have left this relay.");
        let names = membership.moderation.value_names("member/");
        assert_eq!(names, [format!("member/{}/king", hark_codec::hex::text_32(&BOB))]);
        let notes = membership.moderation.log(0, None, 9).unwrap().notes;
        let withdrawn = notes.iter().filter(|note| note.act == "unassignrole");
        let withdrawn: HashSet<&str> = withdrawn.filter_map(|note| note.before.as_str()).collect();
        assert_eq!(withdrawn, ["king", "a/b"].into());
        assert!(notes.iter().filter(|note| note.by == npub::encode(&ALICE)).count() == 3);
    }

    #[tokio::test]
    async fn a_key_of_the_configuration_stays_as_it_is() {
        let membership = membership(&[ALICE]);
        allow(&membership, &ALICE);
        let refused = membership.carry_out(MembershipRequest::Leave, ALICE).await.unwrap_err();
        assert_eq!(refused.verdict, NostrVerdict::Restricted);
        assert_eq!(membership.moderation.value_names("member/").len(), 3);
        assert_eq!(membership.moderation.allowed_keys(), [ALICE]);
    }
}
