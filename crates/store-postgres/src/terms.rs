//! Keyed 64-bit hashes of labels, prohibitions, words and ids. The key is a secret that is stored
//! in the database, so nobody outside can make two values collide. Searches also compare the bytes
//! of the records that they find.

use std::hash::Hasher as _;

use hark_archive::effects::Prohibition;
use hark_codec::record::{Id, Key, PRIVATE_LABELS, Record};
use siphasher::sip::SipHasher13;

/// Size of a shelf's secret in bytes.
pub(crate) const SECRET: usize = 16;

/// The hashes of one shelf.
#[derive(Clone, Copy)]
pub(crate) struct DatabaseTermHasher(SipHasher13);

impl DatabaseTermHasher {
    pub(crate) fn new(secret: &[u8; SECRET]) -> Self {
        Self(SipHasher13::new_with_key(secret))
    }

    fn hash(&self, class: u8, name: u8, author: &[u8], value: &[u8]) -> i64 {
        let mut hasher = self.0;
        hasher.write(&[class, name]);
        hasher.write(author);
        hasher.write(value);
        hasher.finish().cast_signed()
    }

    /// Returns the term of a label. A private label is used only in rules about its own author's
    /// records. So its term includes the author, because an index range with the records of all
    /// authors would take long to walk. Returns `None` for a private label without an author.
    pub(crate) fn label(&self, name: u8, value: &[u8], author: Option<&Key>) -> Option<i64> {
        if name >= PRIVATE_LABELS {
            return Some(self.hash(0, name, &[], value));
        }
        author.map(|author| self.hash(1, name, author, value))
    }

    /// Returns all terms of a record, ascending and without duplicates.
    pub(crate) fn of(&self, record: &Record<'_>) -> Vec<i64> {
        let author = record.author();
        let labels = record.labels();
        let mut terms: Vec<i64> =
            labels.filter_map(|(name, value)| self.label(name, value, author)).collect();
        terms.sort_unstable();
        terms.dedup();
        terms
    }

    /// Returns the key of a prohibition in the table `forbid`.
    pub(crate) fn forbidding(&self, there_is: &Prohibition<'_>) -> i64 {
        let (name, value) = there_is.label;
        self.forbid(there_is.author, there_is.kind, name, value)
    }

    fn forbid(&self, author: &Key, kind: u32, name: u8, value: &[u8]) -> i64 {
        let mut hasher = self.0;
        hasher.write(&[2, name]);
        hasher.write(&kind.to_le_bytes());
        hasher.write(author);
        hasher.write(value);
        hasher.finish().cast_signed()
    }

    /// Returns all keys of a forbidding record in the table `forbid`.
    pub(crate) fn forbids(&self, record: &Record<'_>) -> Vec<i64> {
        let Some(author) = record.author() else { return Vec::new() };
        let kind = record.kind();
        let labels = record.labels();
        let mut keys: Vec<i64> =
            labels.map(|(name, value)| self.forbid(author, kind, name, value)).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Returns a hash that distinguishes the words of a record.
    pub(crate) fn word(&self, word: &str) -> u64 {
        self.hash(3, 0, &[], word.as_bytes()).cast_unsigned()
    }

    /// Returns a short hash of an id, for a set of ids in which a rare mistake does no harm.
    pub(crate) fn id(&self, id: &Id) -> u64 {
        let mut hasher = self.0;
        hasher.write(id);
        hasher.finish()
    }
}
