//! The topics of all stored envelopes. With these topics, a search by bloom filter becomes a search
//! by topics.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hark_archive::{Record, SearchError, Store};
use hark_codec::whisper::record::TOPIC;
use hark_codec::whisper::{Bloom, EnvelopeRecord, Topic};
use hark_networks::whisper::history::TopicCondition;
use hark_networks::whisper::topics::KnownTopics;
use parking_lot::{Mutex, RwLock};

use crate::shelf::Subscribers;

/// Maximum number of topics in memory, at up to 32 bytes each. If an archive has more topics,
/// filters are tested on each envelope.
const TOPICS_MAX: usize = 1 << 20;
/// Maximum number of topics that a filter may cover. Above this number, the filter is tested on
/// each envelope.
const COVERED_MAX: usize = 1 << 15;
/// All topics of an archive. New envelopes add their topics. The topics of deleted envelopes are
/// removed by the next [`TopicIndex::refresh`]; until then they match nothing.
#[derive(Debug)]
pub struct TopicIndex {
    known: RwLock<KnownTopics>,
    topics_max: usize,
    is_full: AtomicBool,
    /// Whether stored topics may be missing, because they could not be read.
    is_partial: AtomicBool,
    /// Number of envelopes added.
    added: AtomicU64,
    /// Topics that were added since the current refresh began. `None` outside a refresh.
    fresh: Mutex<Option<HashSet<Topic>>>,
    is_refreshing: AtomicBool,
}

impl Default for TopicIndex {
    fn default() -> Self {
        Self::with_max(TOPICS_MAX)
    }
}

impl TopicIndex {
    /// Creates an index for at most `topics_max` topics.
    fn with_max(topics_max: usize) -> Self {
        Self {
            known: RwLock::default(),
            topics_max,
            is_full: AtomicBool::new(false),
            is_partial: AtomicBool::new(false),
            added: AtomicU64::new(0),
            fresh: Mutex::default(),
            is_refreshing: AtomicBool::new(false),
        }
    }

    /// Adds all topics of a store. After a failure, filters are tested on each envelope until a
    /// [`TopicIndex::refresh`] succeeds.
    pub fn fill(&self, store: &dyn Store) -> Result<(), SearchError> {
        let read = store.label_values(TOPIC, &mut |value, _| {
            if let Ok(topic) = value.try_into() {
                self.add(topic);
            }
        });
        self.is_partial.store(read.is_err(), Ordering::Release);
        read
    }

    /// Whether stored topics may be missing.
    pub(super) fn is_partial(&self) -> bool {
        self.is_partial.load(Ordering::Acquire)
    }

    /// Reads all topics again, which removes the topics that no stored envelope has.
    pub fn refresh(&self, store: &dyn Store) -> Result<(), SearchError> {
        *self.fresh.lock() = Some(HashSet::new());
        // The store might not return topics that are committed from now on, so these topics are
        // added at the end.
        self.is_refreshing.store(true, Ordering::SeqCst);
        let (mut known, mut is_full) = (KnownTopics::default(), false);
        let read = store.label_values(TOPIC, &mut |value, _| {
            let Ok(topic) = value.try_into() else { return };
            is_full |= known.len() >= self.topics_max && !known.has(topic);
            if !is_full {
                known.add(topic);
            }
        });
        let mut current = self.known.write();
        let fresh = self.fresh.lock().take();
        self.is_refreshing.store(false, Ordering::SeqCst);
        read?;
        known.extend(fresh.into_iter().flatten());
        *current = known;
        self.is_full.store(is_full, Ordering::Release);
        self.is_partial.store(false, Ordering::Release);
        Ok(())
    }

    /// Number of topics.
    pub fn len(&self) -> usize {
        self.known.read().len()
    }

    /// Number of envelopes that were added.
    pub(super) fn added(&self) -> u64 {
        self.added.load(Ordering::Relaxed)
    }

    /// Whether the index has the topic.
    pub(super) fn has(&self, topic: Topic) -> bool {
        self.known.read().has(topic)
    }

    fn add(&self, topic: Topic) {
        if self.has(topic) || self.is_full.load(Ordering::Acquire) {
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
                "the archive has more topics than fit into memory: questions by bloom filter test \
                 each envelope"
            );
        }
    }

    /// Returns how to find the envelopes whose topics a filter covers.
    pub fn condition(&self, filter: &Bloom) -> TopicCondition {
        if filter.is_full() {
            return TopicCondition::All;
        }
        if self.is_full.load(Ordering::Acquire) || self.is_partial() {
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
        self.added.fetch_add(1, Ordering::Relaxed);
        let Some(topic) = EnvelopeRecord::new(*record).topic() else { return };
        // The topic is added to `fresh` first. If it were added to `fresh` second, a refresh that
        // ends between the two additions would lose the topic.
        if self.is_refreshing.load(Ordering::SeqCst)
            && let Some(fresh) = &mut *self.fresh.lock()
        {
            fresh.insert(topic);
        }
        self.add(topic);
    }
}

#[cfg(test)]
mod tests {
    use hark_archive::effects::KeepAll;
    use hark_archive::store::memory::MemoryStore;
    use hark_archive::{LabelSet, Query, Write};
    use hark_codec::whisper::Envelope;
    use hark_codec::whisper::record::encode;

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

    /// A store with an envelope of each topic.
    fn store_of(topics: &[Topic]) -> MemoryStore {
        let store = MemoryStore::new(KeepAll);
        for topic in topics {
            let (mut record, data) = (Vec::new(), [1; 40]);
            let envelope =
                Envelope { expiry: 1_554_076_850, ttl: 50, topic: *topic, data: &data, nonce: 1 };
            encode(&envelope, &envelope.hash(), &mut record);
            store.commit(&[Write::Put(record.into())]).unwrap();
        }
        store
    }

    #[test]
    fn topics_of_deleted_envelopes_are_forgotten_and_there_is_room_for_others() {
        let index = TopicIndex::with_max(2);
        let (one, two, three) = ([1, 2, 3, 4], [5, 6, 7, 0], [9, 10, 11, 7]);
        let store = store_of(&[one, two, three]);
        index.fill(&store).unwrap();
        let filter = Bloom::of_topic(three);
        assert_eq!(index.condition(&filter), TopicCondition::Filter);
        let gone = Query { labels: vec![LabelSet::one(TOPIC, &one)], ..Query::default() };
        store.commit(&[Write::Erase(Box::new(gone))]).unwrap();
        index.refresh(&store).unwrap();
        assert_eq!((index.len(), index.has(one)), (2, false));
        assert_eq!(index.condition(&filter), TopicCondition::Topics(vec![three]));
        // With too many topics left, filters are tested on each envelope.
        index.refresh(&store_of(&[one, two, three])).unwrap();
        assert_eq!(index.condition(&filter), TopicCondition::Filter);
    }
}
