//! Terms: keyed 64-bit hashes of the properties by which queries find rows, such as an author or a
//! tag.
//!
//! The key is the secret of the shelf, so nobody can make two terms collide on purpose. Words with
//! the same hash are compared as text. Every hit is checked against its record, so an accidental
//! collision never returns a wrong record.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hark_archive::query::prepared;
use hark_archive::{Id, Key, Record, TextSource};
use hark_words::{CLASS_MAX, RecordWords, WeighedWords};
use siphasher::sip::SipHasher13;

use crate::options::EmbeddedOptions;

/// Size of a shelf's secret in bytes.
pub const SECRET: usize = 16;

/// The label name that marks a segment in which words are indexed. Segments of format 3 listed
/// their words under this name.
pub const WORDS: u8 = 0x1f;
/// The first of the label names that encode the fingerprint of the indexed texts. Each name encodes
/// four bits.
const FINGERPRINT: u8 = 0x10;

/// The hash functions of a shelf, the labels whose values are listed, and the texts whose words are
/// indexed.
#[derive(Clone)]
pub struct TermHasher {
    hasher: SipHasher13,
    /// The hash function of words. It is fast, since there are many words. Each process has a
    /// different function, which is possible because no file contains hashes of words.
    words: RandomState,
    every: u64,
    labels: &'static [u8],
    listed: Arc<[u8]>,
    texts: Option<Arc<dyn TextSource>>,
}

/// Buffers for the terms of one record, reused from record to record.
#[derive(Default)]
pub struct TermBuffers {
    /// The terms of a record without those of its words, ascending.
    pub terms: Vec<u64>,
    words: RecordWords,
    weighed: WeighedWords,
}

impl TermBuffers {
    /// The words, each with its hash and class.
    pub fn words(&self) -> impl Iterator<Item = (u64, u8, &str)> + '_ {
        self.weighed.iter().map(|word| (word.hash, word.class, self.words.text(word)))
    }

    /// The terms of the words.
    pub fn word_terms(&self) -> impl Iterator<Item = u64> + '_ {
        self.weighed.iter().map(|word| of_class(word.hash, word.class))
    }
}

/// The term of a word and a class: the hash of the word, with the class in the lowest bits.
fn of_class(hash: u64, class: u8) -> u64 {
    hash & !u64::from(CLASS_MAX) | u64::from(class)
}

impl TermHasher {
    /// Makes the hash functions from the shelf's secret.
    pub fn new(secret: &[u8; SECRET], options: &EmbeddedOptions) -> Self {
        let hasher = SipHasher13::new_with_key(secret);
        let texts = options.texts.clone();
        let mut listed = options.listed_labels.to_vec();
        if let Some(texts) = &texts {
            let print = texts.fingerprint();
            listed.push(WORDS);
            listed.extend((0..16).map(|at| FINGERPRINT | (print >> (4 * at) & 0xf) as u8));
        }
        let (labels, listed) = (options.listed_labels, listed.into());
        let words = RandomState::default();
        Self { hasher, words, every: hash(hasher, 0, 0, &[]), labels, listed, texts }
    }

    /// The names of the labels whose values are listed.
    pub fn labels(&self) -> &'static [u8] {
        self.labels
    }

    /// The list with which a segment describes its content: the names of the listed labels, and the
    /// fingerprint of the indexed texts.
    pub fn listed(&self) -> &[u8] {
        &self.listed
    }

    /// Whether words are indexed.
    pub fn has_words(&self) -> bool {
        self.texts.is_some()
    }

    /// Whether words are indexed for records of this kind.
    pub fn has_words_of(&self, kind: u32) -> bool {
        self.texts.as_ref().is_some_and(|texts| texts.has_texts(kind))
    }

    /// Whether a segment with the list `listed` indexes the words that this shelf is configured to
    /// index.
    pub fn are_words_in(&self, listed: &[u8]) -> bool {
        self.has_words() && self.listed.get(self.labels.len()..) == words_of(listed)
    }

    /// The term that every row has. The posting list of this term and a kind has all rows of this
    /// kind.
    pub fn every(&self) -> u64 {
        self.every
    }

    /// Fills the buffers with all terms of a record, without duplicates.
    pub fn of(&self, record: &Record<'_>, buffers: &mut TermBuffers) {
        self.of_labels(record, buffers);
        let TermBuffers { words, weighed, .. } = buffers;
        if let Some(texts) = self.texts.as_ref().filter(|texts| texts.has_texts(record.kind())) {
            words.clear();
            texts.texts(record, &mut |part, text| words.add(part, text));
            words.weigh(|word| self.word_hash(word), weighed);
        }
    }

    /// Fills the buffers with all terms of a record except those of words, without duplicates.
    pub fn of_labels(&self, record: &Record<'_>, buffers: &mut TermBuffers) {
        buffers.weighed.clear();
        let terms = &mut buffers.terms;
        terms.clear();
        terms.push(self.every);
        terms.extend(record.author().map(|author| prepared::TermMap::author(self, author)));
        let label = |(name, value): (u8, &[u8])| prepared::TermMap::label(self, name, value);
        terms.extend(record.labels().map(label));
        terms.sort_unstable();
        terms.dedup();
    }

    /// The hash of a word.
    pub fn word_hash(&self, word: &str) -> u64 {
        let mut hasher = self.words.build_hasher();
        hasher.write(word.as_bytes());
        hasher.finish()
    }

    /// The terms of a word, one for each class, ascending.
    pub fn of_word(&self, word: &str) -> impl Iterator<Item = (u8, u64)> + use<> {
        let hash = self.word_hash(word);
        (0..=CLASS_MAX).map(move |class| (class, of_class(hash, class)))
    }
}

/// Returns the part of a segment's list `listed` that describes the indexed words.
fn words_of(listed: &[u8]) -> Option<&[u8]> {
    listed.get(listed.iter().position(|name| *name == WORDS)?..)
}

/// Whether a segment with the list `listed` indexes words.
pub fn lists_words(listed: &[u8]) -> bool {
    words_of(listed).is_some()
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
