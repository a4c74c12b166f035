//! Warnings about settings of the archive: retention that would delete adopted messages, and topics
//! of adopted messages that the node does not serve.

use std::collections::BTreeMap;

use hark_codec::waku::Shard;
use serde_json::{Value, json};

use crate::commands::adopt::sweep::SourceSweep;
use crate::location::ArchiveLocation;
use crate::print;

/// Maximum number of pubsub topics that are counted, and that a report lists.
const TOPICS_MAX: usize = 1_000;
const LISTED_MAX: usize = 10;

/// Warns if a bound of the archive's retention may delete old messages, and so adopted messages.
pub(super) fn warn_of_bounds(location: &ArchiveLocation, messages: u64) {
    let policy = location.shelf_config().retention;
    let capacity = policy.records_max.filter(|most| *most < messages);
    if let Some(most) = capacity {
        print::note!(
            "hark: the source has about {}, and `retention` of [waku] keeps {} (capacity). A server \
             deletes the oldest messages above this number",
            print::count(messages, "message"),
            print::number(most)
        );
    }
    if policy.bytes_max.is_some() || policy.free_bytes_min.is_some() {
        print::note!(
            "hark: the retention of the archive has a bound in bytes. If the messages need more, a \
             server deletes the oldest ones"
        );
    }
}

/// The number of messages for each pubsub topic that the node does not serve.
pub(super) struct UnservedTopics {
    cluster: u16,
    shards: Vec<u16>,
    topics: BTreeMap<String, u64>,
    messages: u64,
}

impl UnservedTopics {
    pub(super) fn new(location: &ArchiveLocation) -> Self {
        let waku = &location.config.waku;
        Self {
            cluster: waku.cluster,
            shards: waku.shards.clone(),
            topics: BTreeMap::new(),
            messages: 0,
        }
    }

    /// Counts a message.
    pub(super) fn count(&mut self, pubsub_topic: &[u8]) {
        let topic = String::from_utf8_lossy(pubsub_topic);
        let is_served = topic
            .parse::<Shard>()
            .is_ok_and(|shard| shard.cluster == self.cluster && self.shards.contains(&shard.index));
        if is_served {
            return;
        }
        self.messages += 1;
        if let Some(count) = self.topics.get_mut(&*topic) {
            *count += 1;
        } else if self.topics.len() < TOPICS_MAX {
            self.topics.insert(topic.into_owned(), 1);
        }
    }

    /// Adds the counts to a report.
    pub(super) fn report(&self, swept: &mut SourceSweep) {
        let topics = self.topics.iter().map(|(topic, count)| (topic.clone(), json!(count)));
        swept.add_finding("unserved", json!(self.messages));
        swept.add_finding("unserved_topics", Value::Object(topics.collect()));
        if self.messages == 0 {
            return;
        }
        let listed: Vec<&str> = self.topics.keys().take(LISTED_MAX).map(String::as_str).collect();
        let further = self.topics.len() - listed.len();
        let further = if further > 0 { format!(", and {further} more") } else { String::new() };
        let words = format!(
            "on topics outside `cluster` and `shards` of [waku], which get no new messages: {}{further}",
            listed.join(", ")
        );
        swept.add_row("NOT SERVED", self.messages, words);
    }
}
