//! The rulings in force, in sets that answer a question about one event or one address quickly.
//! The sets never change: each change of the entries makes new sets, which share the unchanged
//! parts with the earlier sets.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use aho_corasick::BuildError;
use hark_codec::record::{Id, Key};
use ipnet::IpNet;

use super::entry::RulingEntry;
use super::subject::{Ruling, RulingSubject, SubjectSort};
use crate::nostr::policy::WordList;

/// The end and the reason of an entry.
#[derive(Clone, Debug)]
pub(super) struct RulingTerm {
    /// When the entry ends, in seconds since 1970. `u64::MAX`: never.
    until_s: u64,
    pub(super) reason: Arc<str>,
}

/// The subjects of one sort, each with its term.
type Terms<K> = Arc<HashMap<K, RulingTerm, KeyHashes>>;

/// Hashes of keys and ids. Both are random, so their first bytes suffice. They are multiplied by a
/// secret number, because a client can choose a few of these bytes.
#[derive(Clone, Copy, Debug)]
struct KeyHashes {
    secret: u64,
}

impl Default for KeyHashes {
    fn default() -> Self {
        static SECRET: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0_u64) | 1);
        Self { secret: *SECRET }
    }
}

impl BuildHasher for KeyHashes {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher { secret: self.secret, hash: 0 }
    }
}

/// See [`KeyHashes`].
struct KeyHasher {
    secret: u64,
    hash: u64,
}

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        let first = bytes.iter().take(8).fold(0, |first, byte| first << 8 | u64::from(*byte));
        let product = u128::from(self.hash ^ first) * u128::from(self.secret);
        self.hash = product as u64 ^ (product >> 64) as u64;
    }

    /// Ignores the length of a key, which is always the same.
    fn write_usize(&mut self, _: usize) {}

    /// The bits of an address, of which the last ones may all be 0.
    fn write_u128(&mut self, bits: u128) {
        let mixed = bits as u64 ^ ((bits >> 64) as u64).rotate_left(32);
        self.write(&mixed.to_be_bytes());
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

/// Number of new words that are searched apart from the other words. To build an automaton of all
/// words takes seconds if there are many.
const NEW_WORDS_MAX: usize = 512;

/// The words of the entries.
#[derive(Clone, Debug, Default)]
struct WordTerms {
    terms: Arc<HashMap<Box<str>, RulingTerm>>,
    /// The automata that find the words. A word that is in an automaton and has no term was lifted.
    most: SearchedWords,
    new: SearchedWords,
}

/// Words, and the automaton that finds these words.
#[derive(Clone, Debug, Default)]
struct SearchedWords {
    list: Arc<WordList>,
    /// The words by their numbers in the list.
    words: Arc<Vec<Box<str>>>,
}

/// The ranges of addresses of one family, by the length of their prefixes, ascending. A range is
/// found by the bits of its prefix, all others being 0.
type RangesByLength = Vec<(u8, HashMap<u128, RulingTerm, KeyHashes>)>;

/// The ranges of addresses.
#[derive(Clone, Debug, Default)]
struct RangeTerms {
    four: RangesByLength,
    six: RangesByLength,
}

/// The entries of one ruling, by sort.
#[derive(Clone, Debug, Default)]
struct SortedTerms {
    keys: Terms<Key>,
    ids: Terms<Id>,
    kinds: Terms<u16>,
    words: Arc<WordTerms>,
    addresses: Arc<RangeTerms>,
}

/// The rulings in force; see the module.
#[derive(Clone, Debug, Default)]
pub(super) struct RulingLists {
    bans: SortedTerms,
    allows: SortedTerms,
}

impl RulingTerm {
    fn new(entry: &RulingEntry) -> Self {
        Self { until_s: entry.until_s.unwrap_or(u64::MAX), reason: Arc::clone(&entry.reason) }
    }

    /// Whether the entry is in force. `now_s` is read only for an entry that ends.
    fn holds(&self, now_s: &impl Fn() -> u64) -> bool {
        self.until_s == u64::MAX || now_s() < self.until_s
    }
}

/// Returns the term of a subject, if its entry is in force.
fn term_of<'t, K: Eq + Hash>(
    terms: &'t Terms<K>,
    subject: &K,
    now_s: &impl Fn() -> u64,
) -> Option<&'t RulingTerm> {
    if terms.is_empty() {
        return None;
    }
    terms.get(subject).filter(|term| term.holds(now_s))
}

fn put<K: Eq + Hash + Clone>(terms: &mut Terms<K>, subject: &K, term: Option<RulingTerm>) {
    match term {
        Some(term) => drop(Arc::make_mut(terms).insert(subject.clone(), term)),
        None if terms.contains_key(subject) => drop(Arc::make_mut(terms).remove(subject)),
        None => {}
    }
}

/// Returns the bits of an address from its first bit on, and whether it is an address of IPv4.
fn bits(ip: IpAddr) -> (u128, bool) {
    match ip {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()) << 96, true),
        IpAddr::V6(ip) => (ip.to_bits(), false),
    }
}

/// Returns the first bits, and 0 for the others.
fn prefix(bits: u128, length: u8) -> u128 {
    bits & u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

impl RangeTerms {
    fn put(&mut self, range: IpNet, term: Option<RulingTerm>) {
        let (bits, is_four) = bits(range.addr());
        let lengths = if is_four { &mut self.four } else { &mut self.six };
        let length = range.prefix_len();
        let at = match lengths.binary_search_by_key(&length, |(length, _)| *length) {
            Ok(at) => at,
            Err(at) => {
                lengths.insert(at, (length, HashMap::default()));
                at
            }
        };
        let ranges = &mut lengths[at].1;
        match term {
            Some(term) => drop(ranges.insert(prefix(bits, length), term)),
            None => drop(ranges.remove(&prefix(bits, length))),
        }
        if ranges.is_empty() {
            lengths.remove(at);
        }
    }

    /// Returns the term of the smallest range that contains the address.
    fn term(&self, ip: IpAddr, now_s: &impl Fn() -> u64) -> Option<&RulingTerm> {
        let (bits, is_four) = bits(ip.to_canonical());
        let lengths = if is_four { &self.four } else { &self.six };
        let mut found =
            lengths.iter().rev().filter_map(|(length, ranges)| ranges.get(&prefix(bits, *length)));
        found.find(|term| term.holds(now_s))
    }

    fn len(&self) -> usize {
        let lengths = self.four.iter().chain(&self.six);
        lengths.map(|(_, ranges)| ranges.len()).sum()
    }

    fn is_empty(&self) -> bool {
        self.four.is_empty() && self.six.is_empty()
    }
}

impl SearchedWords {
    fn new(words: Vec<Box<str>>) -> Result<Self, BuildError> {
        Ok(Self { list: Arc::new(WordList::new(&words)?), words: Arc::new(words) })
    }
}

impl WordTerms {
    /// Adds or replaces the entries of words, or removes the entries.
    fn put<'w>(
        &mut self,
        words: impl Iterator<Item = (&'w str, Option<RulingTerm>)>,
    ) -> Result<(), BuildError> {
        let terms = Arc::make_mut(&mut self.terms);
        let mut new = Vec::new();
        for (word, term) in words {
            match term {
                Some(term) => {
                    if terms.insert(word.into(), term).is_none() {
                        new.push(Box::from(word));
                    }
                }
                None => drop(terms.remove(word)),
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        let new: Vec<Box<str>> = self.new.words.iter().cloned().chain(new).collect();
        if new.len() > NEW_WORDS_MAX {
            self.most = SearchedWords::new(terms.keys().cloned().collect())?;
            self.new = SearchedWords::default();
        } else {
            self.new = SearchedWords::new(new)?;
        }
        Ok(())
    }

    /// Returns the term of the first word in `text`, which must be in lower case.
    fn term(&self, text: &str, now_s: &impl Fn() -> u64) -> Option<&RulingTerm> {
        let mut found = [&self.most, &self.new].into_iter().flat_map(|searched| {
            searched.list.found_in(text).filter_map(|at| self.terms.get(searched.words.get(at)?))
        });
        found.find(|term| term.holds(now_s))
    }
}

impl SortedTerms {
    fn put(&mut self, subject: &RulingSubject, term: Option<RulingTerm>) {
        match subject {
            RulingSubject::Key(key) => put(&mut self.keys, key, term),
            RulingSubject::Id(id) => put(&mut self.ids, id, term),
            RulingSubject::Kind(kind) => put(&mut self.kinds, kind, term),
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
            SubjectSort::Word => self.words.terms.len(),
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

    /// Whether there are words with this ruling.
    pub(super) fn has_words(&self, ruling: Ruling) -> bool {
        !self.of(ruling).words.terms.is_empty()
    }

    /// Returns the term of the first word in `text`, which must be in lower case.
    pub(super) fn word(
        &self,
        ruling: Ruling,
        text: &str,
        now_s: &impl Fn() -> u64,
    ) -> Option<&RulingTerm> {
        self.of(ruling).words.term(text, now_s)
    }

    pub(super) fn address(
        &self,
        ruling: Ruling,
        ip: IpAddr,
        now_s: &impl Fn() -> u64,
    ) -> Option<&RulingTerm> {
        let addresses = &self.of(ruling).addresses;
        if addresses.is_empty() { None } else { addresses.term(ip, now_s) }
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
        let lengths: Vec<u8> =
            lists.bans.addresses.four.iter().map(|(length, _)| *length).collect();
        assert_eq!(lengths, [25, 32]);
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
            lists.word(Ruling::Ban, text, &|| now_s).map(|term| term.reason.to_string())
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
            lists.word(Ruling::Ban, &format!("a {} b", words[n]), &|| 0).is_some()
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
