//! The queries that clients send to a Waku store, drawn from the node's own history.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;

use super::rest::{RestClient, StoredFields, encoded};
use crate::random::Random;

/// Number of pages that are read from random times to collect topics and hashes.
const PAGES: usize = 32;
/// Number of queries drawn for each shape, with different parameters.
const PARAMETERS: usize = 256;

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// A sample of a node's history.
#[derive(Debug, Default)]
pub(crate) struct HistorySample {
    pubsub_topic: String,
    /// Times of the oldest and the newest message, in ns since 1970.
    oldest: i64,
    newest: i64,
    /// Content topics of the sampled messages, with repetitions.
    topics: Vec<String>,
    hashes: Vec<String>,
}

impl HistorySample {
    /// Reads a sample from the node. The sample has only topics under the newest message's pubsub
    /// topic.
    pub(crate) fn read(client: &mut RestClient, random: &mut Random) -> anyhow::Result<Self> {
        let mut sample = Self::default();
        let newest = client.page("includeData=true&pageSize=100&ascending=false")?;
        let newest: Vec<StoredFields> = newest.messages;
        let last = newest.iter().max_by_key(|stored| stored.message.timestamp).context(
            "the node holds no messages to ask for: publish some first with --readers 0, or fill it \
             with a file of `hark bench waku gen`",
        )?;
        sample.newest = last.message.timestamp;
        sample.pubsub_topic.clone_from(&last.pubsub_topic);
        let below = format!("includeData=true&pubsubTopic={}", encoded(&sample.pubsub_topic));
        let first =
            client.page::<StoredFields>(&format!("{below}&pageSize=1&ascending=true"))?.messages;
        sample.oldest = first.first().map_or(sample.newest, |stored| stored.message.timestamp);
        sample.add(newest);
        for _ in 0..PAGES {
            let (from, _) = sample.window(random, Duration::ZERO);
            let query = format!("{below}&startTime={from}&pageSize=100&ascending=true");
            sample.add(client.page(&query)?.messages);
        }
        Ok(sample)
    }

    fn add(&mut self, messages: Vec<StoredFields>) {
        for stored in messages {
            let topic = stored.message.content_topic;
            // In a query, topics are separated by commas.
            if stored.pubsub_topic == self.pubsub_topic && !topic.contains(',') {
                self.topics.push(topic);
                self.hashes.push(stored.message_hash);
            }
        }
    }

    /// Draws a random time span of this length in the history.
    fn window(&self, random: &mut Random, length: Duration) -> (i64, i64) {
        let length = length.as_nanos() as i64;
        let room = (self.newest - self.oldest - length).max(0);
        let start = self.oldest + random.below(room as usize + 1).cast_signed() as i64;
        (start, start + length)
    }

    /// Lists `count` different items, or all items if there are fewer.
    fn list(random: &mut Random, from: &[String], count: usize) -> Option<String> {
        let mut found = BTreeSet::new();
        for _ in 0..8 * count {
            if found.len() < count && !from.is_empty() {
                found.insert(encoded(random.pick::<String>(from)));
            }
        }
        let found: Vec<String> = found.into_iter().collect();
        (!found.is_empty()).then(|| found.join(","))
    }

    fn topics(&self, random: &mut Random, count: usize) -> Option<String> {
        let topics = Self::list(random, &self.topics, count)?;
        Some(format!("pubsubTopic={}&contentTopics={topics}", encoded(&self.pubsub_topic)))
    }
}

/// One kind of query.
pub(crate) struct HistoryShape {
    /// The shape's name, in tables and for `--shape`.
    pub(crate) name: &'static str,
    /// Whether answers without messages are expected.
    pub(crate) may_be_empty: bool,
    make: fn(&HistorySample, &mut Random) -> Option<String>,
}

/// All shapes. Pages go from the newest message back, as for clients that have been offline.
pub(crate) const SHAPES: [HistoryShape; 5] = [
    HistoryShape {
        name: "1 topic in a day, page 100",
        may_be_empty: false,
        make: |sample, random| {
            let (topics, (start, end)) = (sample.topics(random, 1)?, sample.window(random, DAY));
            Some(format!("{topics}&startTime={start}&endTime={end}&pageSize=100"))
        },
    },
    HistoryShape {
        name: "10 topics in an hour, page 20",
        may_be_empty: false,
        make: |sample, random| {
            let (topics, (start, end)) = (sample.topics(random, 10)?, sample.window(random, HOUR));
            Some(format!("{topics}&startTime={start}&endTime={end}&pageSize=20"))
        },
    },
    HistoryShape {
        name: "1 topic, no window, page 20",
        may_be_empty: false,
        make: |sample, random| Some(format!("{}&pageSize=20", sample.topics(random, 1)?)),
    },
    HistoryShape {
        name: "10 hashes",
        may_be_empty: false,
        make: |sample, random| {
            Some(format!("hashes={}", HistorySample::list(random, &sample.hashes, 10)?))
        },
    },
    HistoryShape {
        name: "a topic that is not there",
        may_be_empty: true,
        make: |sample, random| {
            let topic = encoded(&format!("/bench/1/none{:016x}/proto", random.bits()));
            let below = encoded(&sample.pubsub_topic);
            Some(format!("pubsubTopic={below}&contentTopics={topic}&pageSize=20"))
        },
    },
];

impl HistoryShape {
    /// Draws queries of this shape, the same for the same sample and `random`. Empty if the sample
    /// has nothing to draw from.
    pub(crate) fn queries(&self, sample: &HistorySample, random: &mut Random) -> Vec<String> {
        let queries = (0..PARAMETERS).map_while(|_| (self.make)(sample, random));
        queries.map(|query| format!("includeData=true&{query}&ascending=false")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_lie_within_the_history_and_names_are_fit_for_a_query() {
        let hour = HOUR.as_nanos() as i64;
        let sample = HistorySample {
            pubsub_topic: "/waku/2/rs/1/0".into(),
            oldest: 1_000,
            newest: 1_000 + 3 * hour,
            topics: vec!["/a/1/b c/proto".into(), "/a/1/d&e/proto".into()],
            hashes: vec!["0xab".into()],
        };
        let mut random = Random::new(1);
        for _ in 0..100 {
            let (start, end) = sample.window(&mut random, HOUR);
            assert!(start >= sample.oldest && end <= sample.newest && end - start == hour);
        }
        // A day is longer than the whole history.
        assert_eq!(sample.window(&mut random, DAY).0, sample.oldest);

        let queries = SHAPES.map(|shape| shape.queries(&sample, &mut random).remove(0));
        let both = "pubsubTopic=%2Fwaku%2F2%2Frs%2F1%2F0&contentTopics=\
                    %2Fa%2F1%2Fb%20c%2Fproto,%2Fa%2F1%2Fd%26e%2Fproto&startTime=";
        assert!(queries[1].contains(both), "{queries:?}");
        assert_eq!(queries[3], "includeData=true&hashes=0xab&ascending=false");
        assert!(queries[4].contains("none"), "{queries:?}");
        assert!(SHAPES[0].queries(&HistorySample::default(), &mut random).is_empty());
    }
}
