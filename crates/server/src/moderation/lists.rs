//! The bans and allows in force, in sets that answer a question about one event or one address
//! quickly. The sets never change: each change of the entries makes new sets, which share the
//! unchanged parts with the earlier sets.

use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use aho_corasick::BuildError;
use hark_codec::nostr::Event;
use hark_codec::record::{Id, Key};

use super::address_terms::RangeTerms;
use super::entry::RulingEntry;
use super::subject::{Ruling, RulingSubject, SubjectSort};
use super::terms::{RulingTerm, Terms};
use super::word_terms::WordTerms;
use crate::nostr::policy::event_texts;

/// All bans, or all allows, by the sort of their subjects.
#[derive(Clone, Debug, Default)]
struct SortedTerms {
    keys: Terms<Key>,
    ids: Terms<Id>,
    kinds: Terms<u16>,
    words: Arc<WordTerms>,
    addresses: Arc<RangeTerms>,
}

/// The bans and allows in force; see the module.
#[derive(Clone, Debug, Default)]
pub(super) struct RulingLists {
    bans: SortedTerms,
    allows: SortedTerms,
}

/// Returns the end and the reason (the term) of a subject's entry, if the entry is in force.
fn term_of<'t, K: Eq + Hash + Clone>(
    terms: &'t Terms<K>,
    subject: &K,
    now_s: &impl Fn() -> u64,
) -> Option<&'t RulingTerm> {
    terms.get(subject).filter(|term| term.holds(now_s))
}

/// Returns the subjects that are among `asked`, or all subjects without `asked`. `None` if there
/// are more than `max`.
fn among<K: Eq + Hash + Copy>(terms: &Terms<K>, asked: Option<&[K]>, max: usize) -> Option<Vec<K>> {
    let found: Vec<K> = match asked {
        _ if terms.len() == 0 => Vec::new(),
        Some(asked) => {
            let found = asked.iter().filter(|subject| terms.get(*subject).is_some());
            found.take(max.saturating_add(1)).copied().collect()
        }
        None if terms.len() > max => return None,
        None => terms.subjects().copied().collect(),
    };
    (found.len() <= max).then_some(found)
}

impl SortedTerms {
    fn put(&mut self, subject: &RulingSubject, term: Option<RulingTerm>) {
        match subject {
            RulingSubject::Key(key) => {
                self.keys.put(key, term);
            }
            RulingSubject::Id(id) => {
                self.ids.put(id, term);
            }
            RulingSubject::Kind(kind) => {
                self.kinds.put(kind, term);
            }
            RulingSubject::Addresses(range) => Arc::make_mut(&mut self.addresses).put(*range, term),
            // The automata of words are built once for many words: see `put_words`.
            RulingSubject::Word(_) => {}
        }
    }

    fn count(&self, sort: SubjectSort) -> usize {
        match sort {
            SubjectSort::Key => self.keys.len(),
            SubjectSort::Id => self.ids.len(),
            SubjectSort::Kind => self.kinds.len(),
            SubjectSort::Word => self.words.len(),
            SubjectSort::Addresses => self.addresses.len(),
        }
    }
}

impl RulingLists {
    fn of(&self, ruling: Ruling) -> &SortedTerms {
        match ruling {
            Ruling::Ban => &self.bans,
            Ruling::Allow => &self.allows,
        }
    }

    fn of_mut(&mut self, ruling: Ruling) -> &mut SortedTerms {
        match ruling {
            Ruling::Ban => &mut self.bans,
            Ruling::Allow => &mut self.allows,
        }
    }

    /// Adds or replaces the entry of a subject that is no word, or removes the entry.
    pub(super) fn put(
        &mut self,
        (ruling, subject): (Ruling, &RulingSubject),
        entry: Option<&RulingEntry>,
    ) {
        self.of_mut(ruling).put(subject, entry.map(RulingTerm::new));
    }

    /// Adds or replaces the entries of words, or removes the entries.
    pub(super) fn put_words<'e>(
        &mut self,
        ruling: Ruling,
        entries: impl Iterator<Item = (&'e str, Option<&'e RulingEntry>)>,
    ) -> Result<(), BuildError> {
        let mut words = entries.map(|(word, entry)| (word, entry.map(RulingTerm::new))).peekable();
        if words.peek().is_none() {
            return Ok(());
        }
        Arc::make_mut(&mut self.of_mut(ruling).words).put(words)
    }

    /// Number of entries, including entries that have ended and are not removed yet.
    pub(super) fn count(&self, ruling: Ruling, sort: SubjectSort) -> usize {
        self.of(ruling).count(sort)
    }

    pub(super) fn key(
        &self,
        ruling: Ruling,
        key: &Key,
        now_s: &impl Fn() -> u64,
    ) -> Option<&RulingTerm> {
        term_of(&self.of(ruling).keys, key, now_s)
    }

    pub(super) fn id(
        &self,
        ruling: Ruling,
        id: &Id,
        now_s: &impl Fn() -> u64,
    ) -> Option<&RulingTerm> {
        term_of(&self.of(ruling).ids, id, now_s)
    }

    pub(super) fn kind(
        &self,
        ruling: Ruling,
        kind: u16,
        now_s: &impl Fn() -> u64,
    ) -> Option<&RulingTerm> {
        term_of(&self.of(ruling).kinds, &kind, now_s)
    }

    /// Returns the keys with an entry in force.
    pub(super) fn keys(&self, ruling: Ruling, now_s: &impl Fn() -> u64) -> Vec<Key> {
        let keys = &self.of(ruling).keys;
        let is_in_force = |key: &&Key| keys.get(*key).is_some_and(|term| term.holds(now_s));
        keys.subjects().filter(is_in_force).copied().collect()
    }

    /// Returns the keys with an entry among `asked`, or all keys with an entry. `None` if there are
    /// more than `max`.
    pub(super) fn keys_among(
        &self,
        ruling: Ruling,
        asked: Option<&[Key]>,
        max: usize,
    ) -> Option<Vec<Key>> {
        among(&self.of(ruling).keys, asked, max)
    }

    /// Does the same as [`RulingLists::keys_among`] for ids.
    pub(super) fn ids_among(
        &self,
        ruling: Ruling,
        asked: Option<&[Id]>,
        max: usize,
    ) -> Option<Vec<Id>> {
        among(&self.of(ruling).ids, asked, max)
    }

    /// Whether there are words with this ruling.
    pub(super) fn has_words(&self, ruling: Ruling) -> bool {
        self.of(ruling).words.len() > 0
    }

    /// Returns the term of a word in an event.
    pub(super) fn word(
        &self,
        ruling: Ruling,
        event: &Event<'_>,
        now_s: &impl Fn() -> u64,
    ) -> Option<&RulingTerm> {
        let texts = |without_keys| event_texts(event, without_keys);
        self.of(ruling).words.term(texts, now_s)
    }

    pub(super) fn address(
        &self,
        ruling: Ruling,
        ip: IpAddr,
        now_s: &impl Fn() -> u64,
    ) -> Option<&RulingTerm> {
        let addresses = &self.of(ruling).addresses;
        if addresses.len() == 0 { None } else { addresses.term(ip, now_s) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str, ruling: Ruling, until_s: Option<u64>) -> RulingEntry {
        let (subject, reason, by) = (text.parse().unwrap(), text.into(), "test".into());
        RulingEntry { subject, ruling, reason, since_s: 0, until_s, by }
    }

    #[test]
    fn addresses_are_found_in_networks_of_every_length_and_entries_end() {
        let mut lists = RulingLists::default();
        for (text, until_s) in [
            ("192.0.2.7", None),
            ("198.51.100.0/24", None),
            ("198.51.100.128/25", Some(10)),
            ("2001:db8::/32", None),
            ("2001:db8:1::7", None),
        ] {
            let entry = entry(text, Ruling::Ban, until_s);
            lists.put((Ruling::Ban, &entry.subject), Some(&entry));
        }
        let reason = |lists: &RulingLists, ip: &str, now_s: u64| {
            let term = lists.address(Ruling::Ban, ip.parse().unwrap(), &|| now_s);
            term.map(|term| term.reason.to_string())
        };
        for (ip, now_s, found) in [
            ("192.0.2.7", 0, Some("192.0.2.7")),
            ("::ffff:192.0.2.7", 0, Some("192.0.2.7")),
            ("192.0.2.8", 0, None),
            ("198.51.100.200", 9, Some("198.51.100.128/25")),
            ("198.51.100.200", 10, Some("198.51.100.0/24")),
            ("2001:db8:1::7", 0, Some("2001:db8:1::7")),
            ("2001:db8:1::8", 0, Some("2001:db8::/32")),
            ("2001:db9::", 0, None),
        ] {
            assert_eq!(reason(&lists, ip, now_s).as_deref(), found, "{ip} {now_s}");
        }
        assert!(lists.address(Ruling::Allow, "192.0.2.7".parse().unwrap(), &|| 0).is_none());
        let gone: RulingSubject = "198.51.100.0/24".parse().unwrap();
        lists.put((Ruling::Ban, &gone), None);
        lists.put((Ruling::Ban, &gone), None);
        assert_eq!(reason(&lists, "198.51.100.1", 0), None);
        assert_eq!(lists.count(Ruling::Ban, SubjectSort::Addresses), 4);
        assert_eq!(lists.bans.addresses.lengths(true), [25, 32]);
    }

    #[test]
    fn words_and_kinds_are_found_until_they_end() {
        let mut lists = RulingLists::default();
        let entries = [
            entry("word:casino", Ruling::Ban, Some(5)),
            entry("word:*coin", Ruling::Ban, None),
            entry("kind:1984", Ruling::Ban, None),
        ];
        let words = [("casino", Some(&entries[0])), ("*coin", Some(&entries[1]))];
        lists.put_words(Ruling::Ban, words.into_iter()).unwrap();
        lists.put((Ruling::Ban, &entries[2].subject), Some(&entries[2]));
        let reason = |text: &str, now_s: u64| {
            lists.bans.words.term(|_| [text], &|| now_s).map(|term| term.reason.to_string())
        };
        assert_eq!(reason("a casino with bitcoin", 4).as_deref(), Some("word:casino"));
        assert_eq!(reason("a casino with bitcoin", 5).as_deref(), Some("word:*coin"));
        assert_eq!(reason("casinos", 0), None);
        assert!(lists.has_words(Ruling::Ban) && !lists.has_words(Ruling::Allow));
        assert!(lists.kind(Ruling::Ban, 1984, &|| 0).is_some());
        assert!(lists.kind(Ruling::Ban, 1985, &|| 0).is_none());
    }

    #[test]
    fn words_are_found_however_many_come_and_go() {
        let mut lists = RulingLists::default();
        let words: Vec<String> = (0..2_000).map(|n| format!("word{n}x")).collect();
        let entry = entry("word:any", Ruling::Ban, None);
        let is_found = |lists: &RulingLists, n: usize| {
            let text = format!("a {} b", words[n]);
            lists.bans.words.term(|_| [text.as_str()], &|| 0).is_some()
        };
        for some in words.chunks(300) {
            let some = some.iter().map(|word| (word.as_str(), Some(&entry)));
            lists.put_words(Ruling::Ban, some).unwrap();
        }
        assert!((0..2_000).all(|n| is_found(&lists, n)));
        let lifted = words[500..].iter().map(|word| (word.as_str(), None));
        lists.put_words(Ruling::Ban, lifted).unwrap();
        assert!((0..2_000).all(|n| is_found(&lists, n) == (n < 500)));
        let again = [(words[1_999].as_str(), Some(&entry))];
        lists.put_words(Ruling::Ban, again.into_iter()).unwrap();
        assert!(is_found(&lists, 1_999) && lists.count(Ruling::Ban, SubjectSort::Word) == 501);
    }
}
