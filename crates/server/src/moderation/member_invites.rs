//! Invites that members make themselves, from their clients (NIP-43). A member may make a number of
//! invites a day, each for one key and for a week.
//!
//! Each invite takes one of the member's places of the day (UTC). A place is a record that is the
//! same from every server, like a use of an invite. So the number of invites is exact, also if the
//! member asks several servers at the same time.

use std::collections::HashSet;

use hark_codec::hex;
use hark_codec::nostr::npub;
use hark_codec::record::Key;

use super::entry::RulingChange;
use super::invites::{Invite, new_code};
use super::records::NS_PER_S;
use super::state::{Moderation, ModerationError};
use super::subject::{Ruling, RulingSubject};

const DAY_S: u64 = 86_400;
/// How long an invite of a member is valid.
const VALID_S: u64 = 7 * DAY_S;
/// The beginning of the name of a place. The day since 1970, the member's key and the number of the
/// place follow, each after a slash.
const PLACE: &str = "inviting/";

impl Moderation {
    /// Makes an invite of a member. Returns `None` if the member has made `a_day` invites today.
    /// Waits for the archive. A crash between the two writes can cost an invite of the day, but never
    /// gives an additional invite.
    pub(crate) fn make_member_invite(
        &self,
        member: &Key,
        a_day: u32,
    ) -> Result<Option<Invite>, ModerationError> {
        self.learn_news()?;
        self.check_room(true)?;
        let (code, made_ns, now_s) = (new_code()?, self.next_ns(0)?, self.now_s());
        let day = now_s / DAY_S;
        let day_ns = (day * DAY_S).saturating_mul(NS_PER_S);
        let name = |number| format!("{PLACE}{day}/{}/{number}", hex::text_32(member));
        let places = (0..a_day).map(|number| (day_ns + u64::from(number), name(number)));
        if !self.reserve_place(places)? {
            return Ok(None);
        }
        let invite = Invite {
            code,
            uses_max: Some(1),
            uses: 0,
            until_s: Some(now_s + VALID_S),
            by: npub::encode(member),
            member: Some(*member),
            made_ns,
        };
        self.add_invite(invite).map(Some)
    }

    /// The names of the places of earlier days.
    pub(super) fn old_places(&self, now_s: u64) -> Vec<String> {
        let mut names = self.value_names(PLACE);
        names.retain(|name| {
            let day = name.strip_prefix(PLACE).and_then(|rest| rest.split('/').next());
            day.and_then(|day| day.parse().ok()).is_none_or(|day: u64| day < now_s / DAY_S)
        });
        names
    }

    /// Removes the invites of the keys that these changes have banned, or whose allow they have
    /// lifted. The changes are made already, so a repetition after an error removes the rest.
    pub(super) fn remove_invites_after(
        &self,
        changes: &[RulingChange],
        by: &str,
    ) -> Result<(), ModerationError> {
        let parted = changes.iter().filter_map(|change| match change {
            RulingChange::Set { subject: RulingSubject::Key(key), ruling: Ruling::Ban, .. }
            | RulingChange::Lift(RulingSubject::Key(key), Ruling::Allow) => Some(*key),
            _ => None,
        });
        let parted: HashSet<Key> = parted.collect();
        if parted.is_empty() {
            return Ok(());
        }
        let is_parted = |invite: &Invite| invite.member.is_some_and(|key| parted.contains(&key));
        for invite in self.invites().into_iter().filter(is_parted) {
            self.remove_invite(&invite, by)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hark_archive::clock::Clock;
    use hark_archive::store::memory::MemoryStore;
    use hark_networks::Network as _;
    use serde_json::json;

    use super::*;
    use crate::moderation::state::INVITES_MAX;
    use crate::moderation::{JoinAnswer, ModerationNetwork};

    const ALICE: Key = [1; 32];
    const BOB: Key = [2; 32];

    #[test]
    fn a_member_makes_so_many_invites_a_day_on_all_servers_together() {
        let store = Arc::new(MemoryStore::new(ModerationNetwork.rules()));
        // Neither server learns of the changes of the other.
        let servers = [(), ()]
            .map(|()| Moderation::with_clock(store.clone(), Clock::fake(DAY_S * 20_000)).unwrap());
        let made: Vec<Invite> = std::thread::scope(|scope| {
            let make = |server: &Moderation| -> Vec<Invite> {
                (0..6).filter_map(|_| server.make_member_invite(&ALICE, 5).unwrap()).collect()
            };
            let [one, two] = &servers;
            let threads: Vec<_> =
                [one, two, one, two].map(|server| scope.spawn(move || make(server))).into();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(made.len(), 5);
        assert!(servers[0].make_member_invite(&BOB, 5).unwrap().is_some(), "another member");
    }

    #[test]
    fn the_places_of_a_day_are_free_on_the_next_day_and_leave_nothing_behind() {
        let clock = Clock::fake(DAY_S * 20_000 + 7);
        let moderation = Moderation::in_memory(clock.clone());
        let make = |member: &Key| moderation.make_member_invite(member, 1).unwrap();
        let invite = make(&ALICE).unwrap();
        assert_eq!(invite.row()["by"], npub::encode(&ALICE));
        assert_eq!((invite.uses_max, invite.until_s), (Some(1), Some(DAY_S * 20_007 + 7)));
        assert!(make(&ALICE).is_none());
        let note = moderation.log(0, None, 1).unwrap().notes.remove(0);
        assert_eq!((&*note.act, note.by), ("invite", npub::encode(&ALICE)));
        assert!(!note.subject.is_empty() && note.subject != invite.code);
        clock.set(DAY_S * 20_001);
        make(&ALICE).unwrap();
        assert_eq!(moderation.value_names(PLACE).len(), 1, "the place of this day");
        assert_eq!(moderation.invites().len(), 2);
    }

    #[test]
    fn an_invite_of_a_member_is_valid_while_its_maker_is_a_member() {
        let moderation = Moderation::in_memory(Clock::fake(1_700_000_000));
        let make = |member: &Key| moderation.make_member_invite(member, 9).unwrap().unwrap();
        let join = |invite: &Invite, is_member: bool| {
            moderation.join_now(&[7; 32], &invite.code, |_| is_member).unwrap()
        };
        let invite = make(&ALICE);
        assert_eq!(join(&invite, false), JoinAnswer::Unknown);
        assert_eq!(join(&invite, true), JoinAnswer::Joined);
        assert_eq!(join(&invite, true), JoinAnswer::UsedUp);
        let key = RulingSubject::Key;
        let ban = |key| RulingChange::Set {
            subject: key,
            ruling: Ruling::Ban,
            reason: String::new(),
            until_s: None,
        };
        for change in [ban(key(ALICE)), RulingChange::Lift(key(ALICE), Ruling::Allow)] {
            let (of_alice, of_bob) = (make(&ALICE), make(&BOB));
            moderation.change_now(&[change], "test").unwrap();
            assert_eq!(join(&of_alice, true), JoinAnswer::Unknown);
            let listed = moderation.invites();
            assert!(listed.iter().all(|invite| invite.member == Some(BOB)), "{listed:?}");
            assert!(listed.contains(&of_bob));
        }
    }

    #[test]
    fn the_members_do_not_use_up_the_invites_of_the_operator() {
        let moderation = Moderation::in_memory(Clock::fake(1_700_000_000));
        for number in 0..INVITES_MAX as u64 {
            let value = json!({ "by": "test", "made_ns": number });
            assert!(moderation.claim(number, format!("invite/{number}"), value).unwrap());
        }
        let full = moderation.make_invite(None, None, "test");
        assert!(matches!(full, Err(ModerationError::ManyInvites)));
        assert!(moderation.make_member_invite(&ALICE, 1).unwrap().is_some());
    }
}
