//! Queries to an archive, in terms that all networks and stores share.

use std::sync::Arc;

use hark_codec::record::{Id, Key, Record};

use labels::{carries, has_label};
use set::Set;

mod compared;
mod count;
mod cursor;
mod driver_stream;
mod excluded;
pub mod explain;
mod gate;
mod hidden;
mod labels;
pub mod merge;
mod opening;
mod opening_walk;
mod order;
mod pace;
pub mod plan;
pub mod prepared;
pub mod ranked;
mod row_rank;
mod set;
pub mod source;
mod stream;
mod ungated;
pub mod walk;
pub mod words;

pub use compared::{ComparedRecord, ComparisonCost};
pub use gate::Gate;
pub use hidden::{HiddenRecords, HideRecords};
pub use labels::LabelSet;
pub use order::{Order, Position};
pub use ungated::UngatedQuery;
pub use words::{LazyWords, SearchRank, TextSource, WordCondition};

/// A query. A record matches if it meets all given conditions. `None` imposes no condition; an
/// empty list in `Some` matches nothing. [`Query::normalise`], which every store calls first, sorts
/// and deduplicates the lists.
///
/// ```
/// use hark_archive::{LabelPosition, LabelSet, Query, Record, RecordHeader};
///
/// let head = RecordHeader { id: [1; 32], time: 7, author: None, kind: 3, expires: Some(9) };
/// let label = (b't', LabelPosition::Bytes(b"bread"));
/// let mut bytes = Vec::new();
/// hark_codec::record::write(&mut bytes, &head, b"the message", [label].into_iter());
/// let record = Record::new(&bytes)?;
///
/// let (kinds, labels) = (Some(vec![5, 3]), vec![LabelSet::one(b't', b"bread")]);
/// let mut query = Query { kinds, labels, from: 7, now: 8, ..Query::default() };
/// query.normalise();
/// assert!(query.matches(&record));
/// assert!(!Query { now: 9, ..query.clone() }.matches(&record), "the record has expired");
/// assert!(!Query { kinds: Some(Vec::new()), ..query }.matches(&record));
/// # Ok::<(), hark_archive::RecordError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The record has one of these ids.
    pub ids: Option<Vec<Id>>,
    /// The record is by one of these authors.
    pub authors: Option<Vec<Key>>,
    /// The record is by none of these authors.
    pub not_authors: Vec<Key>,
    /// The record has one of these kinds.
    pub kinds: Option<Vec<u32>>,
    /// The record has none of these kinds.
    pub not_kinds: Vec<u32>,
    /// The record meets each of these conditions.
    pub labels: Vec<LabelSet>,
    /// The words that a record's text must have.
    pub words: Option<Arc<WordCondition>>,
    /// Whether the records are sorted by their [`SearchRank`], best first, instead of by `order`.
    /// Without `words` the flag has no effect. A ranked query has no cursor.
    pub ranked: bool,
    /// The earliest time, inclusive.
    pub from: u64,
    /// The latest time, inclusive.
    pub to: u64,
    /// The order of the results.
    pub order: Order,
    /// The cursor: only records after this position in `order`.
    pub after: Option<Position>,
    /// The maximum number of records.
    pub limit: usize,
    /// Number of bytes of records after which the caller will probably stop. A hint for stores that
    /// read records ahead: the results do not depend on this number.
    pub bytes: usize,
    /// The current time: a record that expires at this time or earlier is invisible.
    pub now: u64,
    /// The records that are hidden from the reader.
    pub gate: Option<Arc<Gate>>,
    /// The records that are hidden from all readers. `None` hides no record.
    pub hidden: Option<HiddenRecords>,
    /// Maximum total number of rows to visit. A query that has visited this number ends as too
    /// expensive.
    pub budget: u64,
}

impl Default for Query {
    fn default() -> Self {
        Self {
            ids: None,
            authors: None,
            not_authors: Vec::new(),
            kinds: None,
            not_kinds: Vec::new(),
            labels: Vec::new(),
            words: None,
            ranked: false,
            from: 0,
            to: u64::MAX,
            order: Order::NewestFirst,
            after: None,
            limit: usize::MAX,
            bytes: usize::MAX,
            now: 0,
            gate: None,
            hidden: None,
            budget: u64::MAX,
        }
    }
}

impl Query {
    /// Sorts and deduplicates the lists, and removes excluded kinds from `kinds`. A query for words
    /// is restricted to kinds that have texts, so no record of another kind is visited.
    pub fn normalise(&mut self) {
        fn tidy<T: Ord>(list: &mut Vec<T>) {
            if !list.is_sorted_by(|a, b| a < b) {
                list.sort_unstable();
                list.dedup();
            }
        }
        self.ids.iter_mut().for_each(tidy);
        self.authors.iter_mut().for_each(tidy);
        tidy(&mut self.not_authors);
        self.kinds.iter_mut().for_each(tidy);
        tidy(&mut self.not_kinds);
        if let Some(words) = &self.words {
            let with_texts = words.texts().kinds();
            match &mut self.kinds {
                None => self.kinds = Some(with_texts.to_vec()),
                Some(kinds) => kinds.retain(|kind| with_texts.binary_search(kind).is_ok()),
            }
        }
        if let Some(kinds) = self.kinds.as_mut().filter(|_| !self.not_kinds.is_empty()) {
            kinds.retain(|kind| !self.not_kinds.contains(kind));
        }
        self.labels.iter_mut().for_each(|set| tidy(&mut set.values));
    }

    /// Returns whether the query is restricted by time or by a cursor.
    pub fn is_windowed(&self) -> bool {
        self.from > 0 || self.to < u64::MAX || self.after.is_some()
    }

    /// Returns whether no record at all can match.
    pub fn is_void(&self) -> bool {
        self.from > self.to
            || self.limit == 0
            || self.ids.as_ref().is_some_and(Vec::is_empty)
            || self.authors.as_ref().is_some_and(Vec::is_empty)
            || self.kinds.as_ref().is_some_and(Vec::is_empty)
            || self.labels.iter().any(|set| set.values.is_empty())
            || self.words.as_ref().is_some_and(|words| words.is_void())
    }

    /// Returns the condition that ranks the results. `None` if the query is not ranked.
    pub fn ranking(&self) -> Option<&Arc<WordCondition>> {
        self.words.as_ref().filter(|_| self.ranked)
    }

    /// Returns the number of ids, authors, kinds, label values and words that may each need a
    /// lookup.
    pub fn values(&self) -> usize {
        self.words.as_ref().map_or(0, |words| words.lookups())
            + self.ids.as_ref().map_or(0, Vec::len)
            + self.authors.as_ref().map_or(0, Vec::len)
            + self.kinds.as_ref().map_or(0, Vec::len)
            + self.labels.iter().map(|set| set.values.len()).sum::<usize>()
    }

    /// Returns whether `record` meets every condition, including time, expiry and gate. Cursor,
    /// limit and budget are ignored. The query must be normalised.
    pub fn matches(&self, record: &Record<'_>) -> bool {
        self.matches_but_words(record)
            && self.words.as_ref().is_none_or(|asked| asked.matches(record, &LazyWords::default()))
    }

    /// Does the same as [`Query::matches`], but ignores the condition on words.
    fn matches_but_words(&self, record: &Record<'_>) -> bool {
        self.matches_beside(record, None, &|set| carries(record, set))
    }

    /// Does the same as [`Query::matches_but_words`], for a record that was found in the posting
    /// list of a `value` of `set`. This value is checked first; the other values of the set are
    /// checked only in the rare case that the record lacks this value.
    fn matches_knowing(&self, record: &Record<'_>, set: Set, value: usize) -> bool {
        let known = match set {
            Set::Authors => {
                let author = self.authors.as_ref().and_then(|authors| authors.get(value));
                author.is_some() && record.author() == author
            }
            Set::Label(at) => self.labels.get(at).is_some_and(|set| {
                let value = set.values.get(value);
                value.is_some_and(|value| has_label(record, set.name, value))
            }),
            Set::Ids | Set::Kinds | Set::Time | Set::Word(_) => false,
        };
        let known = known.then_some(set);
        self.matches_beside(record, known, &|set| carries(record, set))
    }

    /// Returns whether a record meets every condition except those on words and on the set `known`.
    /// `carries` returns whether the record has a label of a set.
    fn matches_beside(
        &self,
        record: &Record<'_>,
        known: Option<Set>,
        carries: &impl Fn(&LabelSet) -> bool,
    ) -> bool {
        let labels = || self.labels.iter().enumerate();
        let (time, kind) = (record.time(), record.kind());
        self.from <= time
            && time <= self.to
            && record.expires().is_none_or(|at| at > self.now)
            && self.kinds.as_ref().is_none_or(|kinds| kinds.binary_search(&kind).is_ok())
            && !self.not_kinds.contains(&kind)
            && self.ids.as_ref().is_none_or(|ids| holds(ids, record.id()))
            && (known == Some(Set::Authors)
                || self.authors.as_ref().is_none_or(|authors| {
                    record.author().is_some_and(|author| holds(authors, author))
                }))
            && (self.not_authors.is_empty()
                || record.author().is_none_or(|author| !holds(&self.not_authors, author)))
            && labels().all(|(at, set)| known == Some(Set::Label(at)) || carries(set))
            && self.gate.as_ref().is_none_or(|gate| gate.is_visible_if(record, carries))
            && self.hidden.as_ref().is_none_or(|hidden| !hidden.have(record))
    }
}

/// Returns whether `sorted` contains `key`. Keys are random, so nearly all keys differ in their
/// first eight bytes. A client may still send thousands of keys with the same first eight bytes, so
/// these keys are searched by binary search.
fn holds(sorted: &[[u8; 32]], key: &[u8; 32]) -> bool {
    let first = |key: &[u8; 32]| key.first_chunk().map_or(0, |eight| u64::from_be_bytes(*eight));
    let wanted = first(key);
    let start = sorted.partition_point(|other| first(other) < wanted);
    sorted[start..].first().is_some_and(|other| first(other) == wanted)
        && sorted[start..].binary_search(key).is_ok()
}
