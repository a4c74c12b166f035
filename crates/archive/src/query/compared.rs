//! A record that is compared with many queries. Its words are read only once, when the first query
//! needs words. If the record has many labels, they are sorted once, because a hostile record may
//! have thousands of labels, and thousands of filters may each ask for one label.

use std::cell::OnceCell;

use hark_codec::record::Record;

use super::Query;
use super::labels::{LabelSet, carries};
use super::words::{LazyWords, text_rows};

/// Labels of a record with about this number of labels or fewer are compared without sorting.
const FEW_LABELS: usize = 16;
/// If the number of a record's labels is above this multiple of the number of a condition's values,
/// each value is looked up in the labels by binary search.
const MANY_TIMES: usize = 8;

/// The cost of comparing a record with some queries. Most comparisons take a few instructions,
/// which are not charged.
#[derive(Clone, Copy)]
pub struct ComparisonCost {
    /// Number of queries that search for words. Each of these queries goes through all words of the
    /// record.
    of_words: u64,
    asks_labels: bool,
}

impl ComparisonCost {
    /// Returns the cost of comparing a record with these queries.
    pub fn of(queries: &[Query]) -> Self {
        Self {
            of_words: queries.iter().filter(|query| query.words.is_some()).count() as u64,
            asks_labels: queries.iter().any(|query| !query.labels.is_empty()),
        }
    }

    /// Returns the cost of comparing `record`, as a number of visited rows.
    pub fn rows(self, record: &Record<'_>) -> u64 {
        let labels = if self.asks_labels { record.labels_max() } else { 0 };
        let labels = if labels > FEW_LABELS { labels as u64 / 2 } else { 0 };
        let words = if self.of_words > 0 { self.of_words * text_rows(record) } else { 0 };
        labels + words
    }
}

/// A label's name and value.
type Label<'r> = (u8, &'r [u8]);

/// A record that is compared with many queries, with cached words and labels.
pub struct ComparedRecord<'r> {
    record: Record<'r>,
    pub(crate) words: LazyWords,
    labels: OnceCell<Vec<Label<'r>>>,
}

impl<'r> ComparedRecord<'r> {
    /// Wraps a record.
    pub fn new(record: Record<'r>) -> Self {
        Self { record, words: LazyWords::default(), labels: OnceCell::new() }
    }

    pub(crate) fn record(&self) -> &Record<'r> {
        &self.record
    }

    /// Does the same as [`Query::matches`].
    pub fn matches(&self, query: &Query) -> bool {
        query.matches_beside(&self.record, None, &|set| self.carries(set))
            && query.words.as_ref().is_none_or(|asked| asked.matches(&self.record, &self.words))
    }

    /// Returns the record's labels, ascending and without duplicates. `None` if the record has few
    /// labels.
    pub(crate) fn many_labels(&self) -> Option<&[Label<'r>]> {
        (self.record.labels_max() > FEW_LABELS).then(|| {
            self.labels
                .get_or_init(|| {
                    let mut labels: Vec<_> = self.record.labels().collect();
                    labels.sort_unstable();
                    labels.dedup();
                    labels
                })
                .as_slice()
        })
    }

    fn carries(&self, set: &LabelSet) -> bool {
        let Some(labels) = self.many_labels() else { return carries(&self.record, set) };
        let first = labels.partition_point(|(name, _)| *name < set.name);
        let named = &labels[first..];
        have_common(&named[..named.partition_point(|(name, _)| *name == set.name)], &set.values)
    }
}

/// Returns whether one of `labels`, which all have the same name, has one of `values`. Both lists
/// ascend.
fn have_common(mut labels: &[Label<'_>], values: &[Box<[u8]>]) -> bool {
    let is_each_sought = values.len() * MANY_TIMES < labels.len();
    for value in values {
        let smaller = if is_each_sought {
            labels.partition_point(|(_, label)| *label < &**value)
        } else {
            labels.iter().take_while(|(_, label)| *label < &**value).count()
        };
        labels = &labels[smaller..];
        match labels.first() {
            Some((_, label)) if *label == &**value => return true,
            Some(_) => {}
            None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use hark_codec::record::{self, LabelPosition, RecordHeader};

    use super::*;

    /// Records with few and with many labels are compared with queries for few and for many values.
    #[test]
    fn labels_are_found_as_in_the_record_itself() {
        for beginning in ["", "all begin alike "] {
            for (len, step) in [(3, 1), (40, 1), (40, 7), (600, 2), (600, 3)] {
                compare(beginning, len, step);
            }
        }
    }

    fn compare(beginning: &str, len: usize, step: usize) {
        let value = |n: usize| format!("{beginning}{n}").into_bytes();
        let mut bytes = Vec::new();
        let head = RecordHeader { id: [1; 32], time: 1, author: None, kind: 1, expires: None };
        // Each value is in the list twice, in no order.
        let values: Vec<_> = (0..2 * len).map(|n| value(n * 37 % len * step)).collect();
        let labels = values.iter().zip([b't', b'u'].into_iter().cycle());
        let labels = labels.map(|(value, name)| (name, LabelPosition::Bytes(value)));
        record::write(&mut bytes, &head, b"", labels);
        let record = Record::new(&bytes).unwrap();
        let compared = ComparedRecord::new(record);
        assert_eq!(compared.many_labels().is_some(), len > 3);
        let mut hits = 0;
        for name in *b"stuv" {
            for (asked, from, by) in [(1, 0, 1), (1, 5, 1), (2, 4, 3), (30, 1, 5), (900, 2, 9)] {
                let wanted: Vec<Box<[u8]>> =
                    (0..asked).map(|n| value(from + n * by).into()).collect();
                let is_match = values
                    .iter()
                    .zip([b't', b'u'].into_iter().cycle())
                    .any(|(value, of)| of == name && wanted.iter().any(|it| **it == **value));
                let set = LabelSet { name, values: wanted };
                let mut query = Query { labels: vec![set], ..Query::default() };
                query.normalise();
                assert_eq!(compared.matches(&query), is_match, "{query:?}");
                assert_eq!(query.matches(&record), is_match, "{query:?}");
                hits += usize::from(is_match);
            }
        }
        assert!(hits > 0, "{len} labels");
    }
}
