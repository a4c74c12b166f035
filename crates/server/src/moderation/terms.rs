//! The subjects of one sort, each with the end and the reason of its entry.
//!
//! Sets of subjects are replaced as a whole by each change. So that a change of a few subjects does
//! not copy all others, the changes since the last copy are in a small map of their own.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock};

use super::entry::RulingEntry;

/// The end and the reason of an entry.
#[derive(Clone, Debug)]
pub(super) struct RulingTerm {
    /// When the entry ends, in seconds since 1970. `u64::MAX`: never.
    until_s: u64,
    pub(super) reason: Arc<str>,
}

impl RulingTerm {
    pub(super) fn new(entry: &RulingEntry) -> Self {
        Self { until_s: entry.until_s.unwrap_or(u64::MAX), reason: Arc::clone(&entry.reason) }
    }

    /// Whether the entry is in force. `now_s` is read only for an entry that ends.
    pub(super) fn holds(&self, now_s: &impl Fn() -> u64) -> bool {
        self.until_s == u64::MAX || now_s() < self.until_s
    }
}

/// Number of changes that the small map may hold in any case. With many subjects, it may hold an
/// eighth of their number.
const CHANGES_MIN: usize = 512;

/// Returns the number of changes that the small map may hold beside `all` subjects.
pub(super) fn changes_max(all: usize) -> usize {
    CHANGES_MIN.max(all / 8)
}

/// The subjects of one sort, each with its term.
#[derive(Clone, Debug)]
pub(super) struct Terms<K, S = KeyHashes> {
    most: Arc<HashMap<K, RulingTerm, S>>,
    /// The changes since `most` was made. `None`: the subject has no entry.
    changed: Arc<HashMap<K, Option<RulingTerm>, S>>,
    len: usize,
}

impl<K, S: Default> Default for Terms<K, S> {
    fn default() -> Self {
        Self { most: Arc::default(), changed: Arc::default(), len: 0 }
    }
}

impl<K: Eq + Hash + Clone, S: BuildHasher + Clone> Terms<K, S> {
    /// Number of subjects.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the term of a subject, even if its entry has ended.
    pub(super) fn get<Q: Eq + Hash + ?Sized>(&self, subject: &Q) -> Option<&RulingTerm>
    where
        K: Borrow<Q>,
    {
        if self.len == 0 {
            return None;
        }
        if !self.changed.is_empty()
            && let Some(changed) = self.changed.get(subject)
        {
            return changed.as_ref();
        }
        self.most.get(subject)
    }

    /// All subjects, in no particular order.
    pub(super) fn subjects(&self) -> impl Iterator<Item = &K> {
        let kept = self.most.keys().filter(|subject| !self.changed.contains_key(*subject));
        let changed = self.changed.iter().filter(|(_, term)| term.is_some());
        kept.chain(changed.map(|(subject, _)| subject))
    }

    /// Adds or replaces the term of a subject, or removes the subject. Returns whether the subject
    /// had a term.
    pub(super) fn put(&mut self, subject: &K, term: Option<RulingTerm>) -> bool {
        let had_term = self.get(subject).is_some();
        if had_term || term.is_some() {
            self.len = self.len + usize::from(term.is_some()) - usize::from(had_term);
            Arc::make_mut(&mut self.changed).insert(subject.clone(), term);
            if self.changed.len() > changes_max(self.most.len()) {
                self.merge();
            }
        }
        had_term
    }

    fn merge(&mut self) {
        let most = Arc::make_mut(&mut self.most);
        for (subject, term) in Arc::make_mut(&mut self.changed).drain() {
            match term {
                Some(term) => drop(most.insert(subject, term)),
                None => drop(most.remove(&subject)),
            }
        }
    }
}

/// Hashes of keys, ids and ranges of addresses. Keys and ids are random, so their first bytes
/// suffice. The first bytes are multiplied by a secret number, because a client can choose a few
/// bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyHashes {
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
pub(super) struct KeyHasher {
    secret: u64,
    hash: u64,
}

impl KeyHasher {
    fn add(&mut self, word: u64) {
        let product = u128::from(self.hash ^ word) * u128::from(self.secret);
        self.hash = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        let first = bytes.first_chunk().map_or_else(
            || bytes.iter().fold(0, |first, byte| first << 8 | u64::from(*byte)),
            |first| u64::from_le_bytes(*first),
        );
        self.add(first);
    }

    /// Ignores the length of a key, which is always the same.
    fn write_usize(&mut self, _: usize) {}

    /// Adds the bits of an address. Its last 64 bits may all be 0, so the first bits are mixed in.
    fn write_u128(&mut self, bits: u128) {
        self.add(bits as u64 ^ ((bits >> 64) as u64).rotate_left(32));
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_come_and_go_whether_they_are_kept_apart_or_not() {
        let term = |until_s| Some(RulingTerm { until_s, reason: "".into() });
        let mut terms = Terms::<u16>::default();
        assert!((0..5_000).all(|subject| !terms.put(&subject, term(7))));
        let before = terms.clone();
        assert!((0..5_000).step_by(3).all(|subject| terms.put(&subject, None)));
        assert!(!terms.put(&0, None) && !terms.put(&9_000, None));
        assert!(terms.put(&1, term(8)) && !terms.put(&3, term(9)));
        let until = |terms: &Terms<u16>, subject: u16| terms.get(&subject).map(|term| term.until_s);
        for subject in 0..6_000 {
            let expected = match subject {
                1 => Some(8),
                3 => Some(9),
                _ if subject % 3 == 0 || subject >= 5_000 => None,
                _ => Some(7),
            };
            assert_eq!(until(&terms, subject), expected, "{subject}");
            assert_eq!(until(&before, subject), (subject < 5_000).then_some(7), "{subject}");
        }
        let mut subjects: Vec<u16> = terms.subjects().copied().collect();
        subjects.sort_unstable();
        assert_eq!(subjects.len(), terms.len());
        assert!(
            subjects
                .iter()
                .eq((0..5_000).filter(|n| n % 3 != 0 || *n == 3).collect::<Vec<_>>().iter())
        );
        assert_eq!(before.len(), 5_000);
    }
}
