//! The operator's policy: lists of keys, kinds and words for published events, the proof of work
//! that an event must have (NIP-13), and the rules for questions. An empty allow list allows
//! nothing. The policy does not apply to requests about their author's own data
//! ([`OwnUrls::are_named_by_deletion`](hark_networks::nostr::admit::OwnUrls::are_named_by_deletion)).

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, Guard};
use hark_codec::hex;
use hark_codec::nostr::Event;
use hark_codec::record::Key;
use hark_networks::nostr::admit::is_wrap;
use hark_networks::nostr::names::PROFILE_KIND;
use hark_networks::nostr::question_rules::QuestionRules;
use hark_networks::nostr::{NostrRefusal, NostrVerdict};

use super::names::NameRules;
pub use super::word_list::WordList;
pub(crate) use super::word_list::find_words;

/// The reason for an event whose author needs a verified name.
pub(crate) const NAME_NEEDED: &str = "only keys with a verified name (NIP-05) may publish here: set nip05 in \
                                      your profile (kind 0), publish the profile here, and try again in a \
                                      few seconds";

/// Called after each replacement of the policy.
type PolicyFollower = Box<dyn Fn() + Send + Sync>;

/// A handle to the policy in force. The policy can be replaced while the relay runs.
#[derive(Clone, Default)]
pub struct SharedPolicy(Arc<PolicyCell>);

#[derive(Default)]
struct PolicyCell {
    current: ArcSwap<EventPolicy>,
    follower: OnceLock<PolicyFollower>,
}

/// Creates a handle to `policy`, through which the policy can be replaced.
pub fn shared(policy: EventPolicy) -> SharedPolicy {
    let current = ArcSwap::from_pointee(policy);
    SharedPolicy(Arc::new(PolicyCell { current, follower: OnceLock::new() }))
}

impl SharedPolicy {
    /// The policy in force.
    pub fn load(&self) -> Guard<Arc<EventPolicy>> {
        self.0.current.load()
    }

    /// The policy in force, for work that takes longer.
    pub(super) fn load_full(&self) -> Arc<EventPolicy> {
        self.0.current.load_full()
    }

    /// Replaces the policy. On return, open subscriptions that the new policy forbids are closed.
    pub fn store(&self, policy: Arc<EventPolicy>) {
        let before = self.0.current.load_full();
        let closes = policy.closes_more_than(&before);
        self.0.current.store(policy);
        if let Some(follower) = self.0.follower.get().filter(|_| closes) {
            follower();
        }
    }

    /// Sets the function that is called after each replacement. Called once, when the relay opens.
    pub(super) fn follow(&self, follower: PolicyFollower) {
        let _ = self.0.follower.set(follower);
    }
}

/// Default kinds whose events are accepted from any key if they are addressed to a key that may
/// publish. They are gift wraps and ephemeral gift wraps (NIP-59), zap receipts (NIP-57), requests,
/// answers and notifications of wallets (NIP-47), and messages of remote signers (NIP-46). Their
/// signing keys cannot be listed in advance.
pub const ADDRESSED_KINDS: [u16; 8] = [1059, 9735, 21_059, 23_194, 23_195, 23_196, 23_197, 24_133];

/// Allowed and denied keys, kinds and words. A key, kind or word on both lists is denied. `None`
/// instead of an allow list allows all.
#[derive(Clone, Debug, Default)]
pub struct EventPolicy {
    /// Only events of these keys are accepted, apart from the events that the next two lists admit.
    pub allow_keys: Option<HashSet<Key>>,
    /// Events of these kinds are accepted from any key if a `p` tag names one of `allow_keys`.
    pub addressed_kinds: Vec<RangeInclusive<u16>>,
    /// Events of these kinds are accepted from any key.
    pub open_kinds: Vec<RangeInclusive<u16>>,
    /// Events of these keys are refused.
    pub deny_keys: HashSet<Key>,
    /// Only events of these kinds are accepted.
    pub allow_kinds: Option<Vec<RangeInclusive<u16>>>,
    /// Events of these kinds are refused.
    pub deny_kinds: Vec<RangeInclusive<u16>>,
    /// Only events with one of these words are accepted.
    pub allow_words: Option<WordList>,
    /// Events with one of these words are refused.
    pub deny_words: WordList,
    /// Number of leading zero bits that an event's id must have.
    pub pow_bits_min: u8,
    /// Gift wraps are accepted only on a connection that has authenticated some key.
    pub wraps_need_auth: bool,
    /// The rules for questions. The keys of `allow_keys` are the members.
    pub questions: QuestionRules,
    /// The rules about verified names.
    pub names: NameRules,
}

/// Further entries of the allow lists of a policy.
pub(crate) trait PolicyAllowances {
    /// Whether events of this key are allowed.
    fn allows_key(&self, key: &Key) -> bool;
    /// Whether events of this kind are allowed.
    fn allows_kind(&self, kind: u16) -> bool;
    /// Whether events with a word of this event are allowed.
    fn allows_word_in(&self, event: &Event<'_>) -> bool;
    /// Whether the key needs no name: the key has a verified name that counts, or may manage the
    /// relay.
    fn has_name(&self, key: &Key, rules: &NameRules) -> bool;
}

/// Nothing more is allowed.
impl PolicyAllowances for () {
    fn allows_key(&self, _: &Key) -> bool {
        false
    }

    fn allows_kind(&self, _: u16) -> bool {
        false
    }

    fn allows_word_in(&self, _: &Event<'_>) -> bool {
        false
    }

    fn has_name(&self, _: &Key, _: &NameRules) -> bool {
        false
    }
}

impl EventPolicy {
    /// Whether an ordinary event may be refused: NIP-11's `restricted_writes`.
    pub(crate) fn restricts_writes(&self) -> bool {
        let Self { allow_keys, allow_kinds, allow_words, pow_bits_min, .. } = self;
        let listed = allow_keys.is_some() || allow_kinds.is_some() || allow_words.is_some();
        listed || *pow_bits_min > 0 || self.names.is_required()
    }

    /// Whether a key is the key of a member: events of the key are accepted.
    pub(crate) fn has_member(&self, key: &Key, allowed: &impl PolicyAllowances) -> bool {
        let is_listed = |keys: &HashSet<Key>| keys.contains(key) || allowed.allows_key(key);
        !self.deny_keys.contains(key) && self.allow_keys.as_ref().is_none_or(is_listed)
    }

    /// Whether the allow list or an allowance names the key, and nothing denies the key. An allow
    /// list with all keys names none.
    pub(crate) fn names_member(&self, key: &Key, allowed: &impl PolicyAllowances) -> bool {
        let is_listed = self.allow_keys.as_ref().is_some_and(|keys| keys.contains(key));
        !self.deny_keys.contains(key) && (is_listed || allowed.allows_key(key))
    }

    /// Whether this policy may forbid questions that `before` allowed.
    fn closes_more_than(&self, before: &Self) -> bool {
        let has_fewer_members =
            || (&self.allow_keys, &self.deny_keys) != (&before.allow_keys, &before.deny_keys);
        self.questions.is_set()
            && (self.questions != before.questions
                || self.questions.has_members() && has_fewer_members())
    }

    /// The names of the settings with an empty allow list. While an allow list is empty, no event
    /// is accepted.
    pub fn empty_lists(&self) -> impl Iterator<Item = &'static str> + use<> {
        let lists = [
            ("[policy] allow_keys", self.allow_keys.as_ref().is_some_and(HashSet::is_empty)),
            ("[policy] allow_kinds", self.allow_kinds.as_ref().is_some_and(Vec::is_empty)),
            ("[policy] allow_words", self.allow_words.as_ref().is_some_and(WordList::is_empty)),
            ("[names] domains_allowed", self.names.is_required() && self.names.is_empty_list()),
        ];
        lists.into_iter().filter_map(|(name, is_empty)| is_empty.then_some(name))
    }

    /// Returns the refusal of an event that comes from a connection without an authenticated key.
    /// `None` if the policy allows such an event.
    pub(crate) fn auth_refusal(&self, event: &Event<'_>) -> Option<NostrRefusal> {
        (self.wraps_need_auth && is_wrap(event.kind())).then(|| {
            NostrVerdict::AuthRequired.because("gift wraps are taken from those who authenticate")
        })
    }

    /// Whether the lists of kinds accept events of this kind.
    pub(crate) fn takes_kind(&self, kind: u16) -> bool {
        let on = |list: &[RangeInclusive<u16>]| list.iter().any(|kinds| kinds.contains(&kind));
        !on(&self.deny_kinds) && self.allow_kinds.as_deref().is_none_or(on)
    }

    /// Whether the event may come from a key that may not publish other events: its kind is open, or
    /// its kind is addressed and a `p` tag names a key that may publish.
    pub(crate) fn takes_from_strangers(
        &self,
        event: &Event<'_>,
        may_publish: impl Fn(&Key) -> bool,
    ) -> bool {
        let on =
            |list: &[RangeInclusive<u16>]| list.iter().any(|kinds| kinds.contains(&event.kind()));
        on(&self.open_kinds) || on(&self.addressed_kinds) && is_addressed(event, may_publish)
    }

    /// The reason for refusing an event. `None` if the policy allows the event.
    pub fn refusal(&self, event: &Event<'_>) -> Option<NostrRefusal> {
        self.refusal_beside(event, &())
    }

    /// Does the same as [`EventPolicy::refusal`], with further entries of the allow lists.
    pub(crate) fn refusal_beside(
        &self,
        event: &Event<'_>,
        allowed: &impl PolicyAllowances,
    ) -> Option<NostrRefusal> {
        let (key, kind) = (event.pubkey(), event.kind());
        let on = |list: &[RangeInclusive<u16>]| list.iter().any(|kinds| kinds.contains(&kind));
        if self.deny_keys.contains(key) {
            return Some(
                NostrVerdict::Blocked.because("this relay does not take events of this key"),
            );
        }
        if let Some(keys) = &self.allow_keys
            && !keys.contains(key)
            && !allowed.allows_key(key)
            && !self
                .takes_from_strangers(event, |key| keys.contains(key) || allowed.allows_key(key))
        {
            return Some(
                NostrVerdict::Blocked.because("this relay takes events of certain keys only"),
            );
        }
        if self.names.is_required() && self.lacks_name(event, allowed) {
            return Some(NostrVerdict::Restricted.because(NAME_NEEDED));
        }
        let is_unlisted = |kinds| !on(kinds) && !allowed.allows_kind(kind);
        if on(&self.deny_kinds) || self.allow_kinds.as_deref().is_some_and(is_unlisted) {
            return Some(
                NostrVerdict::Blocked
                    .because(format!("this relay does not take events of kind {kind}")),
            );
        }
        if let Some(reason) = self.work_refusal(event) {
            return Some(reason);
        }
        if self.deny_words.is_empty() && self.allow_words.is_none() {
            return None;
        }
        if self.deny_words.are_in(|without_keys| event_texts(event, without_keys)) {
            return Some(
                NostrVerdict::Blocked.because("the event has a word that this relay does not take"),
            );
        }
        let lacks_words = |words: &WordList| {
            !words.are_in(|without_keys| event_texts(event, without_keys))
                && !allowed.allows_word_in(event)
        };
        if self.allow_words.as_ref().is_some_and(lacks_words) {
            return Some(
                NostrVerdict::Blocked
                    .because("the event has none of the words that this relay is for"),
            );
        }
        None
    }

    /// Whether the author of an event needs a verified name, and has none. Members and managers need
    /// no name, and a profile is the way to a name. Events of the kinds that anybody may publish, or
    /// may address to a member, need no name in the same way as they need no member.
    pub(crate) fn lacks_name(&self, event: &Event<'_>, allowed: &impl PolicyAllowances) -> bool {
        let is_welcome = |key: &Key| {
            self.allow_keys.as_ref().is_some_and(|keys| keys.contains(key))
                || allowed.allows_key(key)
                || allowed.has_name(key, &self.names)
        };
        event.kind() != PROFILE_KIND
            && !is_welcome(event.pubkey())
            && !self.takes_from_strangers(event, is_welcome)
    }

    /// The reason for refusing an event with too little proof of work.
    pub(crate) fn work_refusal(&self, event: &Event<'_>) -> Option<NostrRefusal> {
        let wanted = u32::from(self.pow_bits_min);
        if wanted == 0 {
            return None;
        }
        let done = leading_zero_bits(event.id());
        if done < wanted {
            return Some(
                NostrVerdict::Pow.because(format!("difficulty {done} is less than {wanted}")),
            );
        }
        // An event that was mined for less work may pass by luck. Its nonce tag can name the
        // intended difficulty, but need not do so (NIP-13).
        let nonce = event.tags().find(|tag| tag.name() == "nonce");
        let aim: u32 = nonce?.get(2)?.parse().ok()?;
        (aim < wanted).then(|| {
            NostrVerdict::Pow.because(format!("the nonce tag commits to {aim}, less than {wanted}"))
        })
    }
}

/// Whether a `p` tag of the event names a listed key.
fn is_addressed(event: &Event<'_>, is_listed: impl Fn(&Key) -> bool) -> bool {
    event
        .tags()
        .filter(|tag| tag.name() == "p")
        .filter_map(|tag| hex::decode_32(tag.value()?.as_bytes()))
        .any(|key| is_listed(&key))
}

fn leading_zero_bits(id: &[u8; 32]) -> u32 {
    let zeros = id.iter().take_while(|byte| **byte == 0).count();
    zeros as u32 * 8 + id.get(zeros).map_or(0, |byte| byte.leading_zeros())
}

/// Returns the warning for the operator about an empty allow list.
pub fn nothing_allowed(name: &str) -> String {
    format!("{name} has no entry, so nothing is accepted; [\"*\"] would accept all")
}

/// Returns the warning for the operator about rules for questions that leave nothing to read.
pub fn nothing_answered(questions: &QuestionRules, auth_keys_max: usize) -> Option<String> {
    if questions.kinds.as_ref().is_some_and(Vec::is_empty) {
        return Some("[policy] question_kinds has no entry, so no event is sent".into());
    }
    let is_closed = questions.has_members() && auth_keys_max == 0;
    is_closed.then(|| {
        "[policy] members_only_kinds is set, but nobody can prove a key, as [limits] auth_keys_max \
         is 0"
            .into()
    })
}

/// The texts that are searched for words: the content, and the value of each tag. With
/// `without_keys`, keys and ids may be left out.
pub(crate) fn event_texts<'e>(
    event: &Event<'e>,
    without_keys: bool,
) -> impl Iterator<Item = &'e str> + use<'e> {
    std::iter::once(event.content()).chain(event.tag_values(without_keys))
}

#[cfg(test)]
mod tests {
    use hark_networks::nostr::question_rules::MembersOnly;

    use super::*;

    #[test]
    fn only_stricter_rules_and_other_members_close_subscriptions() {
        let closed = QuestionRules { members_only: MembersOnly::Everything, ..Default::default() };
        let narrow = QuestionRules { narrow: true, ..QuestionRules::default() };
        let with = |questions: &QuestionRules, keys: &[Key]| EventPolicy {
            questions: questions.clone(),
            allow_keys: Some(keys.iter().copied().collect()),
            ..EventPolicy::default()
        };
        let open = QuestionRules::default();
        let (one, two) = ([[1; 32]], [[2; 32]]);
        for (after, before, closes) in [
            (with(&closed, &one), with(&open, &one), true),
            (with(&closed, &one), with(&closed, &one), false),
            (with(&closed, &one), with(&closed, &two), true),
            (with(&narrow, &one), with(&narrow, &two), false),
            (with(&open, &one), with(&closed, &two), false),
        ] {
            assert_eq!(after.closes_more_than(&before), closes, "{after:?} {before:?}");
        }
        assert!(with(&open, &one).has_member(&[1; 32], &()));
        assert!(!with(&open, &one).has_member(&[2; 32], &()));
        assert!(EventPolicy::default().has_member(&[2; 32], &()));
        let denied = EventPolicy { deny_keys: one.into(), ..EventPolicy::default() };
        assert!(!denied.has_member(&[1; 32], &()));
        let nobody = nothing_answered(&closed, 0).expect("a warning");
        assert!(nobody.contains("auth_keys_max") && nothing_answered(&closed, 1).is_none());
        let none = QuestionRules { kinds: Some(Vec::new()), ..QuestionRules::default() };
        assert!(nothing_answered(&none, 1).is_some() && nothing_answered(&open, 0).is_none());
    }

    #[test]
    fn zero_bits_are_counted_from_the_left() {
        let mut id = [0xff; 32];
        assert_eq!(leading_zero_bits(&id), 0);
        (id[0], id[1]) = (0, 0x1f);
        assert_eq!(leading_zero_bits(&id), 11);
        assert_eq!(leading_zero_bits(&[0; 32]), 256);
    }
}
