//! Queues of messages that clients of the REST API poll. A full queue drops its oldest messages;
//! adding a message never blocks.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

/// Maximum number of subscribed topics of all clients together. The subscriptions of the filter
/// endpoints are counted separately, with the same maximum.
pub const TOPICS_MAX: usize = 128;
/// Maximum number of messages in the queue of a topic, and maximum size of these messages in bytes.
const WAITING_MAX: usize = 50;
const WAITING_BYTES_MAX: usize = 1 << 20;

/// The topic of a subscription.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum PollTopic {
    Pubsub(String),
    Content(String),
    /// A subscription by the filter endpoints: a pubsub topic and a content topic.
    Filter(String, String),
}

/// The error for too many subscribed topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are {TOPICS_MAX} subscriptions already, which is the maximum")]
pub(super) struct TooManyTopics;

/// The queues of all topics.
#[derive(Debug, Default)]
pub(super) struct PollQueues(Mutex<PollState>);

#[derive(Debug, Default)]
struct PollState {
    topics: HashMap<PollTopic, TopicQueue>,
}

#[derive(Debug, Default)]
struct TopicQueue {
    messages: VecDeque<Arc<[u8]>>,
    bytes: usize,
}

impl TopicQueue {
    fn add(&mut self, message: &Arc<[u8]>) {
        self.bytes += message.len();
        self.messages.push_back(Arc::clone(message));
        while self.messages.len() > WAITING_MAX
            || (self.bytes > WAITING_BYTES_MAX && self.messages.len() > 1)
        {
            self.bytes -= self.messages.pop_front().map_or(0, |oldest| oldest.len());
        }
    }
}

impl PollQueues {
    /// Subscribes to all of the topics, or to none. New messages of subscribed topics are queued.
    pub(super) fn subscribe(
        &self,
        topics: impl Iterator<Item = PollTopic>,
    ) -> Result<(), TooManyTopics> {
        let waiting = &mut self.0.lock().topics;
        let new: HashSet<_> = topics.filter(|topic| !waiting.contains_key(topic)).collect();
        let is_filter = |topic: &&PollTopic| matches!(topic, PollTopic::Filter(..));
        let filters = waiting.keys().filter(is_filter).count();
        let new_filters = new.iter().filter(is_filter).count();
        let others = waiting.len() - filters + new.len() - new_filters;
        if filters + new_filters > TOPICS_MAX || others > TOPICS_MAX {
            return Err(TooManyTopics);
        }
        waiting.extend(new.into_iter().map(|topic| (topic, TopicQueue::default())));
        Ok(())
    }

    /// Ends the subscriptions to topics, and drops their queues. Returns false if any of the topics
    /// had no subscription.
    pub(super) fn unsubscribe(&self, topics: impl Iterator<Item = PollTopic>) -> bool {
        let waiting = &mut self.0.lock().topics;
        let mut had_all = true;
        for topic in topics {
            had_all &= waiting.remove(&topic).is_some();
        }
        had_all
    }

    /// Queues a message under each of its topics.
    pub(super) fn add(&self, pubsub_topic: &str, content_topic: &str, message: &Arc<[u8]>) {
        let waiting = &mut self.0.lock().topics;
        if waiting.is_empty() {
            return;
        }
        let topics = [
            PollTopic::Pubsub(pubsub_topic.to_owned()),
            PollTopic::Content(content_topic.to_owned()),
            PollTopic::Filter(pubsub_topic.to_owned(), content_topic.to_owned()),
        ];
        for topic in topics {
            if let Some(waiting) = waiting.get_mut(&topic) {
                waiting.add(message);
            }
        }
    }

    /// Encodes the queues for a process that takes over: a part for each topic, which
    /// [`PollQueues::restore`] reads.
    ///
    /// ```text
    /// 1  0 for a pubsub topic, 1 for a content topic, 2 for both
    /// .  the topic, then each message: 4 bytes of its length, little endian, and its bytes. For
    ///    both, the pubsub topic and the content topic, each in this form.
    /// ```
    pub(super) fn state(&self) -> Vec<Vec<u8>> {
        let part = |(topic, waiting): (&PollTopic, &TopicQueue)| {
            let (kind, names) = match topic {
                PollTopic::Pubsub(name) => (0, vec![name]),
                PollTopic::Content(name) => (1, vec![name]),
                PollTopic::Filter(pubsub, content) => (2, vec![pubsub, content]),
            };
            let mut part = vec![kind];
            let names = names.into_iter().map(String::as_bytes);
            for bytes in names.chain(waiting.messages.iter().map(|message| &**message)) {
                part.extend((bytes.len() as u32).to_le_bytes());
                part.extend(bytes);
            }
            part
        };
        self.0.lock().topics.iter().map(part).collect()
    }

    /// Restores the queue of a topic from another process. Returns `None` if the part is invalid,
    /// or if there are too many topics.
    pub(super) fn restore(&self, part: &[u8]) -> Option<()> {
        let (kind, mut rest) = part.split_first()?;
        let mut next = || {
            let (len, bytes) = rest.split_first_chunk()?;
            let (one, others) = bytes.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            rest = others;
            Some(one)
        };
        let name = std::str::from_utf8(next()?).ok()?.to_owned();
        let topic = match *kind {
            0 => PollTopic::Pubsub(name),
            1 => PollTopic::Content(name),
            _ => PollTopic::Filter(name, std::str::from_utf8(next()?).ok()?.to_owned()),
        };
        self.subscribe(std::iter::once(topic.clone())).ok()?;
        let mut inner = self.0.lock();
        let waiting = inner.topics.get_mut(&topic)?;
        while let Some(message) = next() {
            waiting.add(&message.into());
        }
        rest.is_empty().then_some(())
    }

    /// Takes the queued messages of the filter subscriptions to a content topic. Returns `None` if
    /// there are none.
    pub(super) fn poll_filtered(&self, content_topic: &str) -> Option<Vec<Arc<[u8]>>> {
        let mut taken = None;
        for (topic, waiting) in &mut self.0.lock().topics {
            if matches!(topic, PollTopic::Filter(_, content) if content == content_topic) {
                let messages: &mut Vec<_> = taken.get_or_insert_default();
                messages.extend(std::mem::take(waiting).messages);
            }
        }
        taken
    }

    /// Ends all filter subscriptions. Returns false if there were none.
    pub(super) fn unsubscribe_filters(&self) -> bool {
        let topics = &mut self.0.lock().topics;
        let before = topics.len();
        topics.retain(|topic, _| !matches!(topic, PollTopic::Filter(..)));
        topics.len() < before
    }

    /// Whether there are filter subscriptions.
    pub(super) fn has_filters(&self) -> bool {
        self.0.lock().topics.keys().any(|topic| matches!(topic, PollTopic::Filter(..)))
    }

    /// Takes the queued messages of a topic. Returns `None` if nobody has subscribed to the topic.
    pub(super) fn take(&self, topic: &PollTopic) -> Option<VecDeque<Arc<[u8]>>> {
        self.0.lock().topics.get_mut(topic).map(|waiting| std::mem::take(waiting).messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_given_once_and_bounded() {
        let (pubsub, content) = (PollTopic::Pubsub("p".into()), PollTopic::Content("c".into()));
        let poll = PollQueues::default();
        poll.add("p", "c", &b"before"[..].into());
        poll.subscribe([pubsub.clone(), content.clone()].into_iter()).unwrap();
        poll.add("p", "c", &b"1"[..].into());
        poll.add("p", "other", &b"2"[..].into());
        let take = |topic| -> Vec<Vec<u8>> {
            poll.take(topic).unwrap().iter().map(|message| message.to_vec()).collect()
        };
        assert_eq!(take(&pubsub), [b"1", b"2"]);
        assert_eq!(take(&pubsub), Vec::<Vec<u8>>::new());
        for number in 0..60 {
            poll.add("p", "c", &[number].into());
        }
        assert_eq!(take(&content), (10..60).map(|number| vec![number]).collect::<Vec<_>>());
        for _ in 0..3 {
            poll.add("p", "c", &vec![0; WAITING_BYTES_MAX / 2].into());
        }
        assert_eq!(take(&content).len(), 2);
        assert!(poll.unsubscribe([content.clone()].into_iter()));
        assert!(!poll.unsubscribe([content.clone()].into_iter()));
        assert_eq!(poll.take(&content), None);
    }

    #[test]
    fn what_waits_goes_on_waiting_in_another_process() {
        let (pubsub, content) = (PollTopic::Pubsub("p".into()), PollTopic::Content("c".into()));
        let (one, other) = (PollQueues::default(), PollQueues::default());
        one.subscribe([pubsub.clone(), content.clone()].into_iter()).unwrap();
        one.add("p", "c", &b"1"[..].into());
        one.add("p", "d", &b""[..].into());
        other.subscribe([pubsub.clone()].into_iter()).unwrap();
        for part in one.state() {
            other.restore(&part).unwrap();
        }
        let take = |topic| -> Vec<Vec<u8>> {
            other.take(topic).unwrap().iter().map(|message| message.to_vec()).collect()
        };
        assert_eq!(
            (take(&pubsub), take(&content)),
            (vec![b"1".to_vec(), vec![]], vec![b"1".to_vec()])
        );
        let filter = PollTopic::Filter("p".into(), "c".into());
        one.subscribe([filter].into_iter()).unwrap();
        one.add("p", "c", &b"2"[..].into());
        one.add("q", "c", &b"3"[..].into());
        assert!(!other.has_filters());
        for part in one.state() {
            other.restore(&part).unwrap();
        }
        let filtered: Vec<_> = other.poll_filtered("c").unwrap();
        assert_eq!(filtered.iter().map(|message| &**message).collect::<Vec<_>>(), [b"2"]);
        assert!(other.poll_filtered("d").is_none() && other.unsubscribe_filters());
        assert!(!other.has_filters() && other.poll_filtered("c").is_none());
        for part in [&b""[..], b"\x00", b"\x00\x09\0\0\0p", b"\x00\x01\0\0\0p\x01"] {
            assert_eq!(other.restore(part), None, "{part:?}");
        }
    }

    #[test]
    fn topics_are_bounded() {
        let poll = PollQueues::default();
        let topics =
            |range: std::ops::Range<usize>| range.map(|n| PollTopic::Content(n.to_string()));
        assert_eq!(poll.subscribe(topics(0..TOPICS_MAX)), Ok(()));
        assert_eq!(poll.subscribe(topics(0..TOPICS_MAX)), Ok(()));
        assert_eq!(poll.subscribe(topics(TOPICS_MAX..TOPICS_MAX + 1)), Err(TooManyTopics));
        let filters = |range: std::ops::Range<usize>| {
            range.map(|n| PollTopic::Filter("p".into(), n.to_string()))
        };
        assert_eq!(poll.subscribe(filters(0..TOPICS_MAX)), Ok(()));
        assert_eq!(poll.subscribe(filters(TOPICS_MAX..TOPICS_MAX + 1)), Err(TooManyTopics));
    }
}
