//! The archives of Whisper envelopes that the bench opens and queries itself, without a server.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::{Context as _, bail};
use hark::OwnedStore;
use hark_archive::{LabelSet, Order, Query, Record, SearchProgress, Write};
use hark_codec::whisper::record::{TOPIC, encode};
use hark_codec::whisper::{Envelope, EnvelopeRecord, Topic};
use hark_networks::whisper::Whisper;
use hark_networks::whisper::topics::KnownTopics;
use parking_lot::RwLock;

use super::own::own_alone;
use crate::whisper::{EnvelopeStore, StoreQuestion, WantedTopics};

/// Interval between two checks for the end of maintenance.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Opens the store at an address.
pub(super) fn open(address: &str) -> anyhow::Result<Box<dyn EnvelopeStore>> {
    Ok(Box::new(ShelfOfEnvelopes::new(own_alone(address, &Whisper)?)?))
}

struct ShelfOfEnvelopes {
    owned: OwnedStore,
    /// Known topics, as in a server: the topics of the store when it was opened, and the topics of
    /// the envelopes stored since then.
    topics: RwLock<KnownTopics>,
}

impl ShelfOfEnvelopes {
    fn new(owned: OwnedStore) -> anyhow::Result<Self> {
        let mut topics = KnownTopics::default();
        owned.store.label_values(TOPIC, &mut |value, _| topics.extend(value.try_into().ok()))?;
        Ok(Self { owned, topics: RwLock::new(topics) })
    }

    /// Returns a query for the question's times, without topics.
    fn query(question: &StoreQuestion) -> Query {
        let (from, to) = question.times_s;
        Query {
            from: from.into(),
            to: to.into(),
            order: if question.newest_first { Order::NewestFirst } else { Order::OldestFirst },
            limit: question.limit.unwrap_or(usize::MAX),
            ..Query::default()
        }
    }

    fn query_with_topics(&self, question: &StoreQuestion) -> Query {
        let values = match &question.wanted {
            WantedTopics::Topics(topics) => topics.iter().map(|topic| topic[..].into()).collect(),
            WantedTopics::Bloom(bloom) => {
                let topics = self.topics.read().matching(bloom);
                topics.iter().map(|topic| topic[..].into()).collect()
            }
        };
        Query { labels: vec![LabelSet { name: TOPIC, values }], ..Self::query(question) }
    }

    /// Passes the records of a query to `each`, until `each` returns false.
    fn search(
        &self,
        query: &Query,
        each: &mut dyn FnMut(&Record<'_>) -> bool,
    ) -> anyhow::Result<()> {
        let (mut search, mut ended) = (self.owned.store.search(query)?, false);
        loop {
            let progress = search.slice(u64::MAX, &mut |record| {
                ended = !each(record);
                if ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            match progress {
                SearchProgress::Done { .. } => return Ok(()),
                _ if ended => return Ok(()),
                SearchProgress::Paused => {}
                SearchProgress::Exhausted => bail!("a search without a row limit has reached one"),
            }
        }
    }
}

impl EnvelopeStore for ShelfOfEnvelopes {
    fn put(&self, envelopes: &[Vec<u8>]) -> anyhow::Result<()> {
        let mut writes = Vec::with_capacity(envelopes.len());
        for rlp in envelopes {
            let envelope = Envelope::parse(rlp).context("an envelope of the bench")?;
            let mut record = Vec::new();
            encode(&envelope, &envelope.hash(), &mut record);
            writes.push(Write::Put(record.into_boxed_slice()));
            self.topics.write().add(envelope.topic);
        }
        self.owned.store.commit(&writes)?;
        Ok(())
    }

    fn wait_for_maintenance(&self) -> anyhow::Result<()> {
        loop {
            let stats = self.owned.store.stats();
            if let Some(why) = stats.maintenance_failed {
                bail!("the store's maintenance fails: {why}");
            }
            if stats.heads_waiting == 0 && stats.merge_due_records == 0 {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn topics(&self) -> anyhow::Result<Vec<(Topic, u64)>> {
        let mut topics = Vec::new();
        self.owned.store.label_values(TOPIC, &mut |value, count| {
            topics.extend(value.try_into().ok().map(|topic| (topic, count)));
        })?;
        Ok(topics)
    }

    fn times_s(&self) -> Option<(u64, u64)> {
        let stats = self.owned.store.stats();
        stats.oldest.zip(stats.newest)
    }

    fn ask(&self, question: &StoreQuestion, each: &mut dyn FnMut(&[u8])) -> anyhow::Result<()> {
        self.search(&self.query_with_topics(question), &mut |record| {
            each(record.wire());
            true
        })
    }

    fn scan(
        &self,
        question: &StoreQuestion,
        each: &mut dyn FnMut(Topic, &[u8]) -> bool,
    ) -> anyhow::Result<()> {
        let query = Query { limit: usize::MAX, ..Self::query(question) };
        self.search(&query, &mut |record| {
            let topic = EnvelopeRecord::new(*record).topic().unwrap_or_default();
            each(topic, record.wire())
        })
    }
}
