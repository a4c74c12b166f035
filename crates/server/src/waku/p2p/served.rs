//! The topics for which this node reads the messages and subscriptions of peers.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use libp2p::gossipsub::{
    DataTransform, IdentTopic, IdentityTransform, Message, RawMessage, TopicHash,
    TopicSubscriptionFilter,
};

/// Refuses messages of topics that the node does not serve, before gossip stores the messages and
/// their ids.
#[derive(Clone, Default)]
pub(super) struct ServedTopics(Arc<HashSet<TopicHash>>);

impl ServedTopics {
    pub(super) fn new(topics: &[IdentTopic]) -> Self {
        Self(Arc::new(topics.iter().map(IdentTopic::hash).collect()))
    }
}

impl DataTransform for ServedTopics {
    fn inbound_transform(&self, message: RawMessage) -> io::Result<Message> {
        if !self.0.contains(&message.topic) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        IdentityTransform.inbound_transform(message)
    }

    fn outbound_transform(&self, _: &TopicHash, data: Vec<u8>) -> io::Result<Vec<u8>> {
        Ok(data)
    }
}

/// Records which of the served topics a peer subscribes to, even if the peer subscribes to many
/// other topics.
pub(super) struct ServedSubscriptions(pub(super) ServedTopics);

impl TopicSubscriptionFilter for ServedSubscriptions {
    fn can_subscribe(&mut self, topic: &TopicHash) -> bool {
        self.0.0.contains(topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_other_topics_are_refused() {
        let topics = ServedTopics::new(&[IdentTopic::new("/waku/2/rs/1/0")]);
        for (topic, is_read) in [("/waku/2/rs/1/0", true), ("/waku/2/rs/1/1", false), ("", false)] {
            let message = RawMessage {
                source: None,
                data: b"hello".to_vec(),
                sequence_number: None,
                topic: TopicHash::from_raw(topic),
                signature: None,
                key: None,
                validated: false,
            };
            let read = topics.inbound_transform(message);
            assert_eq!(read.is_ok_and(|message| message.data == b"hello"), is_read, "{topic}");
        }
    }
}
