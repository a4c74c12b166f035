//! Invites: codes with which a key allows itself (a join request of NIP-43). They are named values
//! of the shelf, so every server of the archive knows the invites, also after a restart.
//!
//! Each use of an invite with a limit is a record that is the same from every server. So of two
//! servers that want the same use, the archive gives the use to one of them, and tells the other
//! that the record is there already.

use std::collections::BTreeMap;

use hark_codec::hex;
use hark_codec::nostr::npub;
use hark_codec::record::Key;
use serde_json::{Value, json};

use super::entry::{AuditAct, RulingChange};
use super::records::NS_PER_S;
use super::state::{INVITES_MAX, Moderation, ModerationError};
use super::subject::{Ruling, RulingSubject};

/// Maximum number of uses of an invite with a limit.
pub const INVITE_USES_MAX: u32 = 1_000;
/// The beginning of the name of an invite. The code follows.
const INVITE: &str = "invite/";
/// The beginning of the name of a use. The code, a slash and the number of the use follow.
const USE: &str = "invited/";
/// Number of characters of a code that lists and notes show of an invite that was used.
const SHOWN_CHARS: usize = 8;

/// An invite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invite {
    /// The secret code.
    pub code: String,
    /// Number of keys that may join with the code. `None`: any number.
    pub uses_max: Option<u32>,
    /// Number of keys that have joined, if the number is limited.
    pub uses: u32,
    /// When the invite ends, in seconds since 1970. `None`: never.
    pub until_s: Option<u64>,
    /// The maker of the invite.
    pub by: String,
    /// The member who has made the invite. `None`: the operator has.
    pub member: Option<Key>,
    pub(super) made_ns: u64,
}

/// The answer to a key that wants to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JoinAnswer {
    /// The key is allowed from now on.
    Joined,
    /// The archive has no such invite.
    Unknown,
    /// The invite has ended.
    Expired,
    /// All uses of the invite are taken.
    UsedUp,
}

impl Invite {
    /// The invite as a row of a list.
    pub fn row(&self) -> Value {
        json!({
            "code": self.code,
            "uses": self.uses,
            "uses_max": self.uses_max,
            "until": self.until_s,
            "since": self.made_s(),
            "by": self.by,
        })
    }

    /// When the invite was made, in seconds since 1970.
    pub(crate) fn made_s(&self) -> u64 {
        self.made_ns / NS_PER_S
    }

    fn is_over(&self, now_s: u64) -> bool {
        self.until_s.is_some_and(|until_s| until_s <= now_s)
            || self.uses_max.is_some_and(|uses_max| self.uses >= uses_max)
    }

    fn read(code: &str, value: &Value, values: &BTreeMap<String, Value>) -> Self {
        let uses = format!("{USE}{code}/");
        let uses = values.range(uses.clone()..).take_while(|(name, _)| name.starts_with(&uses));
        Self {
            code: code.to_owned(),
            uses_max: value["uses"].as_u64().and_then(|uses| u32::try_from(uses).ok()),
            uses: u32::try_from(uses.count()).unwrap_or(u32::MAX),
            until_s: value["until"].as_u64(),
            by: value["by"].as_str().unwrap_or_default().to_owned(),
            member: value["member"].as_str().and_then(|key| hex::decode_32(key.as_bytes())),
            made_ns: value["made_ns"].as_u64().unwrap_or_default(),
        }
    }

    /// The name of one use.
    fn use_name(&self, number: u32) -> String {
        format!("{USE}{}/{number}", self.code)
    }

    /// The names of the values of the invite.
    fn names(&self) -> impl Iterator<Item = String> {
        let uses = (0..self.uses_max.unwrap_or(0)).map(move |number| self.use_name(number));
        uses.chain([[INVITE, &self.code].concat()])
    }

    /// The beginning of the code, which names the invite in the audit log.
    fn shown(&self) -> &str {
        self.code.get(..SHOWN_CHARS).unwrap_or(&self.code)
    }
}

/// Makes a code of 128 random bits.
pub(super) fn new_code() -> Result<String, ModerationError> {
    let mut code = [0; 32];
    getrandom::fill(&mut code).map_err(|error| ModerationError::Interrupted(error.to_string()))?;
    Ok(hex::text_32(&code)[..32].to_owned())
}

impl Moderation {
    /// Returns the invites that this process knows, also those that are over.
    pub fn invites(&self) -> Vec<Invite> {
        self.state.values.with(|values| {
            let invites = values.range(INVITE.to_owned()..);
            let invites =
                invites.map_while(|(name, value)| Some((name.strip_prefix(INVITE)?, value)));
            invites.map(|(code, value)| Invite::read(code, value, values)).collect()
        })
    }

    fn invite(&self, code: &str) -> Option<Invite> {
        self.state.values.with(|values| {
            let value = values.get(&[INVITE, code].concat())?;
            Some(Invite::read(code, value, values))
        })
    }

    /// Makes an invite of the operator with a new code. Invites that are over are removed. Waits for
    /// the archive.
    pub fn make_invite(
        &self,
        uses_max: Option<u32>,
        until_s: Option<u64>,
        by: &str,
    ) -> Result<Invite, ModerationError> {
        self.check_room(false)?;
        let (code, made_ns) = (new_code()?, self.next_ns(0)?);
        let by = by.to_owned();
        self.add_invite(Invite { code, uses_max, uses: 0, until_s, by, member: None, made_ns })
    }

    /// Fails if there are too many open invites of the operator, or of the members.
    pub(super) fn check_room(&self, is_of_member: bool) -> Result<(), ModerationError> {
        let (invites, now_s) = (self.invites(), self.now_s());
        let open = invites.iter().filter(|invite| !invite.is_over(now_s));
        let open = open.filter(|invite| invite.member.is_some() == is_of_member).count();
        if open < INVITES_MAX { Ok(()) } else { Err(ModerationError::ManyInvites) }
    }

    /// Adds a new invite to the archive, and removes the values that are no longer needed.
    pub(super) fn add_invite(&self, invite: Invite) -> Result<Invite, ModerationError> {
        let now_s = self.now_s();
        let mut over = self.invites();
        over.retain(|invite| invite.is_over(now_s));
        let Invite { uses_max, until_s, by, member, made_ns, .. } = &invite;
        let value = json!({ "uses": uses_max, "until": until_s, "by": by, "made_ns": made_ns,
                            "member": member.as_ref().map(hex::text_32) });
        let old_places = self.old_places(now_s).into_iter().map(|name| (name, Value::Null));
        let mut values = self.removals(&over);
        values.extend(old_places);
        values.push(([INVITE, &invite.code].concat(), value));
        let act = AuditAct {
            act: "invite".into(),
            subject: invite.shown().into(),
            before: Value::Null,
            after: json!({ "uses": uses_max, "until": until_s }),
        };
        self.set_values_now(&values, &act, by)?;
        Ok(invite)
    }

    /// Revokes an invite. Returns false if there is no such invite. Waits for the archive.
    pub fn revoke_invite(&self, code: &str, by: &str) -> Result<bool, ModerationError> {
        self.learn_news()?;
        let Some(invite) = self.invite(code) else { return Ok(false) };
        self.remove_invite(&invite, by)?;
        Ok(true)
    }

    /// Removes an invite, with a note in the audit log.
    pub(super) fn remove_invite(&self, invite: &Invite, by: &str) -> Result<(), ModerationError> {
        let before = json!({ "uses": invite.uses_max, "until": invite.until_s, "by": invite.by });
        let act = AuditAct {
            act: "uninvite".into(),
            subject: invite.shown().into(),
            before,
            after: Value::Null,
        };
        self.set_values_now(&self.removals(std::slice::from_ref(invite)), &act, by)
    }

    /// Returns the removals of the values of these invites.
    fn removals(&self, invites: &[Invite]) -> Vec<(String, Value)> {
        let names = invites.iter().flat_map(Invite::names);
        let names = names.filter(|name| self.value(name).is_some());
        names.map(|name| (name, Value::Null)).collect()
    }

    /// Lets a key join with a code: the key is allowed, and the audit log names the key and the
    /// invite. An invite of a member is valid only while `is_member` is true for its maker. Waits
    /// for the archive. A crash between the two writes can cost a use, but never gives an additional
    /// use.
    pub(crate) fn join_now(
        &self,
        key: &Key,
        code: &str,
        is_member: impl FnOnce(&Key) -> bool,
    ) -> Result<JoinAnswer, ModerationError> {
        self.learn_news()?;
        let is_valid = |invite: &Invite| invite.member.as_ref().is_none_or(is_member);
        let Some(invite) = self.invite(code).filter(is_valid) else {
            return Ok(JoinAnswer::Unknown);
        };
        if invite.until_s.is_some_and(|until_s| until_s <= self.now_s()) {
            return Ok(JoinAnswer::Expired);
        }
        if !self.reserve_use(&invite)? {
            return Ok(JoinAnswer::UsedUp);
        }
        let allow = RulingChange::Set {
            subject: RulingSubject::Key(*key),
            ruling: Ruling::Allow,
            reason: format!("joined by invite {} of {}", invite.shown(), invite.by),
            until_s: None,
        };
        self.change_now(&[allow], &npub::encode(key))?;
        Ok(JoinAnswer::Joined)
    }

    /// Takes one use of an invite. Returns false if all uses are taken.
    fn reserve_use(&self, invite: &Invite) -> Result<bool, ModerationError> {
        let Some(uses_max) = invite.uses_max else { return Ok(true) };
        let at_ns = |number: u32| invite.made_ns.saturating_add(1 + u64::from(number));
        self.reserve_place((0..uses_max).map(|number| (at_ns(number), invite.use_name(number))))
    }

    /// Takes the first of these places that is free. Returns false if all places are taken. A place
    /// is a value with its time and its name. Its record is the same from every server, so of
    /// several servers only one takes the place.
    pub(super) fn reserve_place(
        &self,
        places: impl Iterator<Item = (u64, String)>,
    ) -> Result<bool, ModerationError> {
        for (at_ns, name) in places {
            if self.value(&name).is_none() && self.claim(at_ns, name, json!(true))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hark_archive::clock::Clock;
    use hark_archive::store::memory::MemoryStore;
    use hark_networks::Network as _;

    use super::*;
    use crate::moderation::ModerationNetwork;

    #[test]
    fn the_uses_of_an_invite_are_exact_with_several_servers() {
        let store = Arc::new(MemoryStore::new(ModerationNetwork.rules()));
        let one = Moderation::with_clock(store.clone(), Clock::System).unwrap();
        let invite = one.make_invite(Some(5), None, "test").unwrap();
        // The other server does not learn of the uses meanwhile.
        let two = Moderation::with_clock(store, Clock::System).unwrap();
        let taken: usize = std::thread::scope(|scope| {
            let take = |server: &Moderation| {
                (0..10).filter(|_| server.reserve_use(&invite).unwrap()).count()
            };
            let (one, two) = (&one, &two);
            let threads: Vec<_> =
                [one, two, one, two].map(|server| scope.spawn(move || take(server))).into();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(taken, 5);
    }

    #[test]
    fn a_key_joins_with_a_code_until_it_ends_or_is_revoked() {
        let moderation = Moderation::in_memory(Clock::System);
        let join = |key: u8, code: &str| {
            let is_member = |_: &Key| unreachable!("no member has made an invite");
            moderation.join_now(&[key; 32], code, is_member).unwrap()
        };
        let now_s = moderation.now_s();
        let open = moderation.make_invite(None, None, "test").unwrap();
        let ended = moderation.make_invite(Some(1), Some(now_s), "test").unwrap();
        let once = moderation.make_invite(Some(1), Some(now_s + 900), "test").unwrap();
        // The next invite removes invites that are over.
        assert_eq!(join(1, &ended.code), JoinAnswer::Unknown);
        assert_eq!(join(1, ""), JoinAnswer::Unknown);
        assert_eq!(join(1, &once.code), JoinAnswer::Joined);
        assert_eq!(join(2, &once.code), JoinAnswer::UsedUp);
        for key in 2..5 {
            assert_eq!(join(key, &open.code), JoinAnswer::Joined);
        }
        let allowed = moderation.allowed_keys();
        assert_eq!(allowed.len(), 4);
        let late = moderation.make_invite(Some(1), Some(now_s), "test").unwrap();
        assert_eq!(join(9, &late.code), JoinAnswer::Expired);
        assert!(moderation.revoke_invite(&open.code, "test").unwrap());
        assert!(!moderation.revoke_invite(&open.code, "test").unwrap());
        assert_eq!(join(9, &open.code), JoinAnswer::Unknown);
        let notes = moderation.log(0, None, 50).unwrap().notes;
        let joined = notes.iter().find(|note| note.by == npub::encode(&[1; 32])).unwrap();
        assert!(joined.after["reason"].as_str().unwrap().contains(once.shown()));
        assert!(notes.iter().all(|note| !note.row().to_string().contains(&open.code)));
    }
}
