//! Terms: what a row can be found by, as keyed 64-bit hashes.
//!
//! The key is the shelf's own secret, so nobody can make two terms collide on purpose. Since every
//! hit is checked against its record, a collision by chance never shows a wrong record.

use std::hash::Hasher;

use hark_archive::query::prepared;
use hark_archive::{Id, Key, Record};
use siphasher::sip::SipHasher13;

/// Bytes of a shelf's secret.
pub const SECRET: usize = 16;

/// The hash functions of one shelf, and the labels whose values are listed.
#[derive(Clone, Copy)]
pub struct TermHasher {
    hasher: SipHasher13,
    every: u64,
    listed: &'static [u8],
}

impl TermHasher {
    /// Makes the hash functions from the shelf's secret. The values of the labels named in `listed`
    /// are listed.
    pub fn new(secret: &[u8; SECRET], listed: &'static [u8]) -> Self {
        let hasher = SipHasher13::new_with_key(secret);
        Self { hasher, every: hash(hasher, 0, 0, &[]), listed }
    }

    /// The names of the labels whose values are listed.
    pub fn listed(&self) -> &'static [u8] {
        self.listed
    }

    /// The term that every row has. Its posting list of a kind has all rows of that kind.
    pub fn every(&self) -> u64 {
        self.every
    }

    /// Sets `terms` to all terms of a record, in no particular order, deduplicated.
    pub fn of(&self, record: &Record<'_>, terms: &mut Vec<u64>) {
        terms.clear();
        terms.push(self.every);
        terms.extend(record.author().map(|author| prepared::TermMap::author(self, author)));
        let label = |(name, value): (u8, &[u8])| prepared::TermMap::label(self, name, value);
        terms.extend(record.labels().map(label));
        terms.sort_unstable();
        terms.dedup();
    }
}

fn hash(mut hasher: SipHasher13, class: u8, name: u8, value: &[u8]) -> u64 {
    hasher.write(&[class, name]);
    hasher.write(value);
    hasher.finish()
}

impl prepared::TermMap for TermHasher {
    fn id(&self, id: &Id) -> u64 {
        let mut hasher = self.hasher;
        hasher.write(id);
        hasher.finish()
    }

    fn author(&self, author: &Key) -> u64 {
        hash(self.hasher, 1, 0, author)
    }

    fn label(&self, name: u8, value: &[u8]) -> u64 {
        hash(self.hasher, 2, name, value)
    }
}
