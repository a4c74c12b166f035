//! The topics of the archive, so that a question by bloom filter is one by topics.

use std::sync::atomic::{AtomicBool, Ordering};

use hark_archive::{Record, SearchError, Store};
use hark_codec::whisper::record::TOPIC;
use hark_codec::whisper::{Bloom, EnvelopeRecord, Topic};
use hark_networks::whisper::topics::KnownTopics;
use parking_lot::RwLock;

use crate::shelf::Subscribers;

/// Maximum number of topics that are kept in memory, at up to 32 bytes each. If an archive has more,
/// filters are tested on each envelope.
pub const TOPICS_MAX: usize = 1 << 20;
/// If a filter covers more topics than this, it is tested on each envelope instead.
const COVERED_MAX: usize = 1 << 15;

/// How a filter's envelopes are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicCondition {
    /// The filter covers all topics there can be.
    All,
    /// By these topics.
    Topics(Vec<Topic>),
    /// By testing the filter on each envelope.
    Filter,
}

/// All topics of an archive. New envelopes add theirs. The topics of envelopes that are no longer
/// stored remain until the server ends; they match nothing.
#[derive(Debug)]
pub struct TopicIndex {
    known: RwLock<KnownTopics>,
    topics_max: usize,
    is_full: AtomicBool,
}

impl Default for TopicIndex {
    fn default() -> Self {
        Self::with_max(TOPICS_MAX)
    }
}

impl TopicIndex {
    /// Keeps at most `topics_max` topics.
    fn with_max(topics_max: usize) -> Self {
        Self { known: RwLock::default(), topics_max, is_full: AtomicBool::new(false) }
    }

    /// Adds all topics of a store.
    pub fn fill(&self, store: &dyn Store) -> Result<(), SearchError> {
        store.label_values(TOPIC, &mut |value, _| {
            if let Ok(topic) = value.try_into() {
                self.add(topic);
            }
        })
    }

    /// Number of topics.
    pub fn len(&self) -> usize {
        self.known.read().len()
    }

    /// Whether there are no topics.
    pub fn is_empty(&self) -> bool {
        self.known.read().is_empty()
    }

    fn add(&self, topic: Topic) {
        if self.known.read().has(topic) || self.is_full.load(Ordering::Acquire) {
            return;
        }
        let mut known = self.known.write();
        if known.len() < self.topics_max {
            known.add(topic);
        } else {
            self.is_full.store(true, Ordering::Release);
            drop(known);
            tracing::warn!(
                topics = self.topics_max,
                "more topics than are kept in memory: questions by bloom filter test each envelope"
            );
        }
    }

    /// Returns how the envelopes are found whose topics a filter covers.
    pub fn condition(&self, filter: &Bloom) -> TopicCondition {
        if filter.is_full() {
            return TopicCondition::All;
        }
        if self.is_full.load(Ordering::Acquire) {
            return TopicCondition::Filter;
        }
        let topics = self.known.read().matching(filter);
        if topics.len() > COVERED_MAX {
            TopicCondition::Filter
        } else {
            TopicCondition::Topics(topics)
        }
    }
}

/// Adds the topics of new envelopes.
impl Subscribers for TopicIndex {
    fn publish(&self, _: Option<u64>, record: &Record<'_>) {
        if let Some(topic) = EnvelopeRecord::new(*record).topic() {
            self.add(topic);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn above_the_bound_filters_are_tested_on_each_envelope() {
        let index = TopicIndex::with_max(2);
        let (one, two, three) = ([1, 2, 3, 4], [5, 6, 7, 0], [9, 10, 11, 7]);
        let filter = Bloom::of_topic(one);
        for topic in [one, two, one, two] {
            index.add(topic);
        }
        assert_eq!(index.condition(&filter), TopicCondition::Topics(vec![one]));
        assert_eq!(index.condition(&Bloom::FULL), TopicCondition::All);
        assert_eq!(index.condition(&Bloom::default()), TopicCondition::Topics(vec![]));
        index.add(three);
        assert_eq!(index.condition(&filter), TopicCondition::Filter);
        assert_eq!(index.condition(&Bloom::FULL), TopicCondition::All);
        assert_eq!(index.len(), 2);
    }
}
