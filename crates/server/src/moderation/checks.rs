//! The questions that the doors ask about events, records and clients.

use std::net::IpAddr;
use std::sync::Arc;

use hark_archive::query::{HiddenRecords, HideRecords};
use hark_archive::{Query, Record};
use hark_codec::hex;
use hark_codec::nostr::{Event, EventArena, REQUESTS};
use hark_codec::record::{Id, Key};
use hark_networks::nostr::{NostrRefusal, NostrVerdict};

use super::lists::RulingLists;
use super::name_book::VerifiedName;
use super::state::{Moderation, ModerationState};
use super::subject::Ruling;
use super::terms::RulingTerm;
use crate::nostr::NameRules;
use crate::nostr::manage::member_name;
use crate::nostr::policy::{EventPolicy, PolicyAllowances};
use crate::roster::Roster;

/// The reason for clients at a banned address.
const ADDRESS_WORDS: &str = "this server does not serve your address";
/// The reason for clients that have proved a banned key.
const KEY_BANNED: &str = "this key is banned here";
const KEY_WORDS: &str = "this relay does not take events of this key";

/// The sets in force when a check began. A change of the sets waits until this value is dropped, so
/// a caller holds the value only while it carries out the result of the check.
pub(crate) struct RulingCheck<'m> {
    lists: arc_swap::Guard<Arc<RulingLists>>,
    moderation: &'m Moderation,
}

/// Returns the reason for a client: the words, and the operator's reason unless it is empty.
fn because(words: &str, reason: &str) -> String {
    if reason.is_empty() { words.into() } else { format!("{words}: {reason}") }
}

fn refusal(words: &str, term: &RulingTerm) -> NostrRefusal {
    NostrVerdict::Blocked.because(because(words, &term.reason))
}

impl Moderation {
    /// Begins a check with the sets in force.
    pub(crate) fn check(&self) -> RulingCheck<'_> {
        RulingCheck { lists: self.state.lists.load(), moderation: self }
    }

    /// Returns the reason to refuse an event, by the entries and by the lists in files. `None` if
    /// both accept the event.
    ///
    /// An event with an allowed id passes all lists, but still needs the proof of work. A ban
    /// refuses the event even if another list allows the event. Allows extend the allow lists of
    /// the policy.
    pub fn event_refusal(&self, policy: &EventPolicy, event: &Event<'_>) -> Option<NostrRefusal> {
        self.check().event_refusal(policy, event)
    }

    /// Returns the reason to refuse an event by the policy alone, whose allow lists the allows
    /// extend. The writer of the archive checks the bans.
    pub fn policy_refusal(&self, policy: &EventPolicy, event: &Event<'_>) -> Option<NostrRefusal> {
        let (check, now_s) = (self.check(), || self.now_s());
        if check.lists.id(Ruling::Allow, event.id(), &now_s).is_some() {
            return policy.work_refusal(event);
        }
        policy.refusal_beside(event, &check)
    }

    /// Returns the keys with an allow in force, in no particular order.
    pub(crate) fn allowed_keys(&self) -> Vec<[u8; 32]> {
        self.state.lists.load().keys(Ruling::Allow, &|| self.now_s())
    }

    /// Returns the decision of the entries about an address: a ban refuses its clients, and an
    /// allow admits them in addition to `[policy] allow_addresses`.
    pub(crate) fn address_ruling(&self, ip: IpAddr) -> AddressRuling {
        let (lists, now_s) = (self.state.lists.load(), || self.now_s());
        if lists.address(Ruling::Ban, ip, &now_s).is_some() {
            AddressRuling::Banned
        } else if lists.address(Ruling::Allow, ip, &now_s).is_some() {
            AddressRuling::Allowed
        } else {
            AddressRuling::Unruled
        }
    }

    /// Returns the reason to close a connection that has proved this key.
    pub(crate) fn key_ban(&self, key: &Key) -> Option<String> {
        let (lists, now_s) = (self.state.lists.load(), || self.now_s());
        let term = lists.key(Ruling::Ban, key, &now_s)?;
        Some(because(KEY_BANNED, &term.reason))
    }

    /// Whether a key is banned.
    pub fn bans_key(&self, key: &Key) -> bool {
        let lists = self.state.lists.load();
        lists.key(Ruling::Ban, key, &|| self.now_s()).is_some()
    }

    /// Returns the reason to close a connection from a banned address.
    pub(crate) fn address_ban(&self, ip: IpAddr) -> Option<String> {
        let (lists, now_s) = (self.state.lists.load(), || self.now_s());
        let term = lists.address(Ruling::Ban, ip, &now_s)?;
        Some(because(ADDRESS_WORDS, &term.reason))
    }

    /// Whether a ban refuses an event, given as a record, that a command or another relay has sent.
    /// An author's requests about the author's own data are refused only if their id is banned.
    pub fn bans_record(&self, record: &Record<'_>) -> bool {
        let (check, now_s) = (self.check(), || self.now_s());
        let (lists, id) = (&*check.lists, record.id());
        if lists.id(Ruling::Allow, id, &now_s).is_some() {
            return false;
        }
        if lists.id(Ruling::Ban, id, &now_s).is_some() {
            return true;
        }
        let Ok(kind) = u16::try_from(record.kind()) else { return false };
        if REQUESTS.contains(&kind) {
            return false;
        }
        record.author().is_some_and(|key| lists.key(Ruling::Ban, key, &now_s).is_some())
            || lists.kind(Ruling::Ban, kind, &now_s).is_some()
            || lists.has_words(Ruling::Ban)
                && Event::parse(record.wire(), &mut EventArena::new())
                    .is_ok_and(|event| lists.word(Ruling::Ban, &event, &now_s).is_some())
    }

    /// Returns the banned keys and ids whose records the query may find. `None` if there are more
    /// than `max` of these keys or of these ids. An entry counts until it is removed, which may be
    /// some time after its end.
    pub(crate) fn hidden_among(&self, query: &Query, max: usize) -> Option<(Vec<Key>, Vec<Id>)> {
        let lists = self.state.lists.load();
        Some((
            lists.keys_among(Ruling::Ban, query.authors.as_deref(), max)?,
            lists.ids_among(Ruling::Ban, query.ids.as_deref(), max)?,
        ))
    }

    /// The records that are hidden from readers: those with a banned id, and those of banned keys,
    /// except allowed ids.
    pub fn hidden(&self) -> HiddenRecords {
        HiddenRecords::new(Arc::new(self.clone()))
    }
}

impl HideRecords for Moderation {
    fn hides(&self, record: &Record<'_>) -> bool {
        self.state.may_hide(|| record.id(), || record.author())
            && self.check().hides(record.id(), record.author())
    }
}

/// The entry that decides about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressRuling {
    /// Clients at the address are refused.
    Banned,
    /// Clients at the address are served even if the allow list in files does not have the address.
    Allowed,
    /// No entry names the address.
    Unruled,
}

impl RulingCheck<'_> {
    /// Does the same as [`Moderation::event_refusal`].
    pub(crate) fn event_refusal(
        &self,
        policy: &EventPolicy,
        event: &Event<'_>,
    ) -> Option<NostrRefusal> {
        let (lists, now_s) = (&*self.lists, || self.moderation.now_s());
        if lists.id(Ruling::Allow, event.id(), &now_s).is_some() {
            return policy.work_refusal(event);
        }
        if let Some(term) = lists.id(Ruling::Ban, event.id(), &now_s) {
            return Some(refusal("this relay does not take this event", term));
        }
        if let Some(term) = lists.key(Ruling::Ban, event.pubkey(), &now_s) {
            return Some(refusal(KEY_WORDS, term));
        }
        if let Some(term) = lists.kind(Ruling::Ban, event.kind(), &now_s) {
            let words = format!("this relay does not take events of kind {}", event.kind());
            return Some(refusal(&words, term));
        }
        if lists.has_words(Ruling::Ban)
            && let Some(term) = lists.word(Ruling::Ban, event, &now_s)
        {
            return Some(refusal("the event has a word that this relay does not take", term));
        }
        policy.refusal_beside(event, self)
    }

    /// Whether an event with this id is allowed.
    pub(crate) fn allows_id(&self, id: &Id) -> bool {
        self.lists.id(Ruling::Allow, id, &|| self.moderation.now_s()).is_some()
    }

    /// Whether a key is a member: the allow list of the policy or an allow names the key, and
    /// nothing denies or bans the key.
    pub(crate) fn names_member(&self, policy: &EventPolicy, key: &Key) -> bool {
        policy.names_member(key, self)
            && self.lists.key(Ruling::Ban, key, &|| self.moderation.now_s()).is_none()
    }

    /// Returns the reason to refuse a request that anybody may send who is not banned or denied.
    pub(crate) fn stranger_refusal(
        &self,
        policy: &EventPolicy,
        event: &Event<'_>,
    ) -> Option<NostrRefusal> {
        if let Some(term) = self.lists.key(Ruling::Ban, event.pubkey(), &|| self.moderation.now_s())
        {
            return Some(refusal(KEY_WORDS, term));
        }
        if policy.deny_keys.contains(event.pubkey()) {
            return Some(NostrVerdict::Blocked.because(KEY_WORDS));
        }
        policy.work_refusal(event)
    }

    /// Whether a record with this id and author is hidden from readers.
    pub(crate) fn hides(&self, id: &Id, author: Option<&Key>) -> bool {
        let (lists, now_s) = (&*self.lists, || self.moderation.now_s());
        self.moderation.state.may_hide(|| id, || author)
            && (lists.id(Ruling::Ban, id, &now_s).is_some()
                || author.is_some_and(|key| lists.key(Ruling::Ban, key, &now_s).is_some()))
            && lists.id(Ruling::Allow, id, &now_s).is_none()
    }

    /// Returns the reason to refuse an event in its OK although the event was accepted before: a
    /// ban of its id or its author has come into force in the meantime.
    pub(crate) fn late_refusal(&self, id: &Id, author: &Key) -> Option<NostrRefusal> {
        if !self.hides(id, Some(author)) {
            return None;
        }
        let (lists, now_s) = (&*self.lists, || self.moderation.now_s());
        let of_key = lists.key(Ruling::Ban, author, &now_s);
        let term = lists.id(Ruling::Ban, id, &now_s).or(of_key);
        term.map(|term| refusal("this relay does not take this event", term))
    }
}

impl Moderation {
    /// Whether the author of an event needs a verified name, and has none.
    pub(crate) fn lacks_name(&self, policy: &EventPolicy, event: &Event<'_>) -> bool {
        policy.lacks_name(event, &self.check())
    }
}

impl PolicyAllowances for RulingCheck<'_> {
    fn allows_key(&self, key: &Key) -> bool {
        self.lists.key(Ruling::Allow, key, &|| self.moderation.now_s()).is_some()
    }

    fn allows_kind(&self, kind: u16) -> bool {
        self.lists.kind(Ruling::Allow, kind, &|| self.moderation.now_s()).is_some()
    }

    fn allows_word_in(&self, event: &Event<'_>) -> bool {
        let now_s = || self.moderation.now_s();
        self.lists.has_words(Ruling::Allow)
            && self.lists.word(Ruling::Allow, event, &now_s).is_some()
    }

    fn has_name(&self, key: &Key, rules: &NameRules) -> bool {
        let counts = |known: VerifiedName| {
            rules.accepts(known.name.domain())
                && rules.holds(known.checked_s, self.moderation.now_s())
        };
        let has_role = |id: &str| self.moderation.value(&member_name(id, key)).is_some();
        self.moderation.name_of(key).is_some_and(counts) || rules.managers.include(key, has_role)
    }
}

impl ModerationState {
    /// Whether a record with this id and author may be hidden. Neither is read unless there are bans
    /// of its sort.
    #[inline]
    fn may_hide<'r>(
        &self,
        id: impl FnOnce() -> &'r Id,
        author: impl FnOnce() -> Option<&'r Key>,
    ) -> bool {
        self.banned_ids.may_have(|| Some(id())) || self.banned_keys.may_have(author)
    }

    /// Closes the connections of banned keys and addresses.
    pub(super) fn close_banned(&self, roster: &Roster) {
        let (lists, now_s) = (self.lists.load_full(), || self.now_s());
        let mut closed = 0_u64;
        roster.visit(0, |connection| {
            let of_address = connection.client_ip().and_then(|ip| {
                let term = lists.address(Ruling::Ban, ip, &now_s)?;
                Some(because(ADDRESS_WORDS, &term.reason))
            });
            let of_key = || {
                let mut banned = None;
                connection.facts_match(|_, keys| {
                    let keys = keys.iter().filter_map(|key| hex::decode_32(key.digits.as_bytes()));
                    let mut terms =
                        keys.filter_map(|key| lists.key(Ruling::Ban, &key, &now_s).cloned());
                    banned = terms.next();
                    banned.is_some()
                });
                banned.map(|term| because(KEY_BANNED, &term.reason))
            };
            let reason = of_address.or_else(of_key);
            closed += u64::from(reason.is_some_and(|reason| connection.kick(&reason)));
            true
        });
        if closed > 0 {
            // An address may be private, so the log has only the number of connections.
            tracing::info!(closed, "connections of banned clients are closed");
        }
    }
}
