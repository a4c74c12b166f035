//! The condition that a record's text has certain words, and the ranks of the records that match.
//! `hark_words` defines words and scores; the record's network defines the searched texts of a
//! record.

use std::cell::OnceCell;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use hark_codec::record::{Id, Record};
use hark_words::{CLASS_MAX, Part, RecordWords, SearchText};

/// The number of posting lists of a word within one kind: one for each class of the word (see
/// `hark_words::WeighedWord`).
pub const WORD_LISTS: usize = CLASS_MAX as usize + 1;

/// Returns the cost of dividing a record's text into words, as a number of visited rows.
pub fn text_rows(record: &Record<'_>) -> u64 {
    16 + record.wire().len() as u64 / 32
}

/// Defines which texts the records of a network have.
pub trait TextSource: Send + Sync {
    /// Passes the searchable texts of a record to `each`, titles first. Passes nothing if the
    /// record's kind is not searchable.
    fn texts(&self, record: &Record<'_>, each: &mut dyn FnMut(Part, &str));
    /// Returns the kinds of records that may have texts, ascending.
    fn kinds(&self) -> &[u32];
    /// Returns whether a record of the kind may have texts. The check must be cheap.
    fn has_texts(&self, kind: u32) -> bool {
        self.kinds().binary_search(&kind).is_ok()
    }
    /// Returns a number that identifies this definition of the texts. The number stays the same
    /// after a restart.
    fn fingerprint(&self) -> u64;
    /// Returns by how much a record must be newer than a record of the next higher class to have
    /// the same score, in the unit of the records' time.
    fn class_time(&self) -> u64;
}

/// The words of a record. The record's text is divided into words when the words are first needed.
#[derive(Default)]
pub struct LazyWords(OnceCell<Box<RecordWords>>);

impl LazyWords {
    pub(crate) fn get(&self, record: &Record<'_>, texts: &dyn TextSource) -> &RecordWords {
        self.0.get_or_init(|| {
            let mut words = Box::<RecordWords>::default();
            texts.texts(record, &mut |part, text| words.add(part, text));
            words
        })
    }
}

/// The rank of a record in the results of a ranked query. The best record has the lowest rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SearchRank {
    /// The complement of the score, so that higher scores come first.
    score: u64,
    time: u64,
    /// The record's id. It decides the order of records with the same score and time.
    pub id: Id,
}

impl SearchRank {
    /// Returns the score.
    pub fn score(&self) -> u64 {
        !self.score
    }

    /// Returns the record's time.
    pub fn time(&self) -> u64 {
        !self.time
    }
}

/// The condition that a record's text has the words of a search text.
#[derive(Clone)]
pub struct WordCondition {
    asked: SearchText,
    texts: Arc<dyn TextSource>,
}

impl fmt::Debug for WordCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WordCondition").field(&self.asked.text()).finish()
    }
}

impl PartialEq for WordCondition {
    fn eq(&self, other: &Self) -> bool {
        self.asked == other.asked && self.texts.fingerprint() == other.texts.fingerprint()
    }
}

impl Eq for WordCondition {}

impl Deref for WordCondition {
    type Target = SearchText;

    fn deref(&self) -> &SearchText {
        &self.asked
    }
}

impl WordCondition {
    /// Makes the condition.
    pub fn new(asked: SearchText, texts: Arc<dyn TextSource>) -> Self {
        Self { asked, texts }
    }

    /// Returns the source of the records' texts.
    pub fn texts(&self) -> &Arc<dyn TextSource> {
        &self.texts
    }

    /// Returns the cost of comparing a record's words with the search text, as a number of visited
    /// rows.
    pub fn cost(&self, record: &Record<'_>) -> u64 {
        if self.texts.has_texts(record.kind()) { text_rows(record) } else { 0 }
    }

    /// Returns the number of lookups that the words need.
    pub(super) fn lookups(&self) -> usize {
        self.needed().len() * WORD_LISTS
    }

    /// Returns whether the record has the words.
    pub fn matches(&self, record: &Record<'_>, words: &LazyWords) -> bool {
        self.texts.has_texts(record.kind())
            && !self.asked.is_void()
            && words.get(record, &*self.texts).matches(&self.asked)
    }

    /// Does the same as [`WordCondition::rank`] in buffers that are reused.
    pub(super) fn rank_in(
        &self,
        record: &Record<'_>,
        words: &mut RecordWords,
    ) -> Option<SearchRank> {
        words.clear();
        self.texts.texts(record, &mut |part, text| words.add(part, text));
        Some(self.rank_of(record, words.points(&self.asked)?))
    }

    fn rank_of(&self, record: &Record<'_>, points: u32) -> SearchRank {
        let score = self.score(record.time(), points);
        SearchRank { score: !score, time: !record.time(), id: *record.id() }
    }

    fn points(&self, record: &Record<'_>, words: &LazyWords) -> Option<u32> {
        if !self.texts.has_texts(record.kind()) || self.asked.is_void() {
            return None;
        }
        words.get(record, &*self.texts).points(&self.asked)
    }

    /// Returns the record's rank; `None` if the record lacks one of the words.
    pub fn rank(&self, record: &Record<'_>) -> Option<SearchRank> {
        self.rank_with(record, &LazyWords::default())
    }

    /// Does the same as [`WordCondition::rank`], with the record's `words`, which several queries
    /// share.
    pub(crate) fn rank_with(&self, record: &Record<'_>, words: &LazyWords) -> Option<SearchRank> {
        Some(self.rank_of(record, self.points(record, words)?))
    }

    /// Returns the score of a record with this time and this sum of its words' classes.
    pub(super) fn score(&self, time: u64, points: u32) -> u64 {
        let terms = self.asked.term_count().max(1) as u64;
        time.saturating_add(self.texts.class_time().saturating_mul(points.into()) / terms)
    }

    /// Returns the highest possible sum of the words' classes.
    pub(super) fn points_max(&self) -> u32 {
        self.asked.term_count() as u32 * u32::from(CLASS_MAX)
    }
}
