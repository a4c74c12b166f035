//! Messages that wait until a client of the REST door comes for them. Whoever does not come loses the
//! oldest; nobody waits.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Topics that may be subscribed to, in all.
const TOPICS_MAX: usize = 128;
/// Messages and bytes that wait under a topic, at most.
const WAITING_MAX: usize = 50;
const WAITING_BYTES_MAX: usize = 1 << 20;

/// What a subscription names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Topic {
    Pubsub(String),
    Content(String),
}

/// As many topics are subscribed to as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are {TOPICS_MAX} subscriptions already, and no room for more")]
pub(super) struct Full;

/// All that waits.
#[derive(Debug, Default)]
pub(super) struct Poll(Mutex<HashMap<Topic, Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<Arc<[u8]>>,
    bytes: usize,
}

impl Waiting {
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

impl Poll {
    fn topics(&self) -> MutexGuard<'_, HashMap<Topic, Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on messages of these topics wait: of all of them, or of none.
    pub(super) fn subscribe(&self, topics: impl Iterator<Item = Topic>) -> Result<(), Full> {
        let mut waiting = self.topics();
        let new: Vec<_> = topics.filter(|topic| !waiting.contains_key(topic)).collect();
        if waiting.len() + new.len() > TOPICS_MAX {
            return Err(Full);
        }
        waiting.extend(new.into_iter().map(|topic| (topic, Waiting::default())));
        Ok(())
    }

    /// No longer.
    pub(super) fn unsubscribe(&self, topics: impl Iterator<Item = Topic>) {
        let mut waiting = self.topics();
        for topic in topics {
            waiting.remove(&topic);
        }
    }

    /// A message, under both of its topics.
    pub(super) fn add(&self, pubsub_topic: &str, content_topic: &str, message: &[u8]) {
        let mut waiting = self.topics();
        if waiting.is_empty() {
            return;
        }
        let topics =
            [Topic::Pubsub(pubsub_topic.to_owned()), Topic::Content(content_topic.to_owned())];
        let mut shared = None;
        for topic in topics {
            if let Some(waiting) = waiting.get_mut(&topic) {
                waiting.add(shared.get_or_insert_with(|| message.into()));
            }
        }
    }

    /// Takes what waits under a topic; none if nobody has subscribed to it.
    pub(super) fn take(&self, topic: &Topic) -> Option<VecDeque<Arc<[u8]>>> {
        self.topics().get_mut(topic).map(|waiting| std::mem::take(waiting).messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_given_once_and_bounded() {
        let (pubsub, content) = (Topic::Pubsub("p".into()), Topic::Content("c".into()));
        let poll = Poll::default();
        poll.add("p", "c", b"before");
        poll.subscribe([pubsub.clone(), content.clone()].into_iter()).unwrap();
        poll.add("p", "c", b"1");
        poll.add("p", "other", b"2");
        let take = |topic| -> Vec<Vec<u8>> {
            poll.take(topic).unwrap().iter().map(|message| message.to_vec()).collect()
        };
        assert_eq!(take(&pubsub), [b"1", b"2"]);
        assert_eq!(take(&pubsub), Vec::<Vec<u8>>::new());
        for number in 0..60 {
            poll.add("p", "c", &[number]);
        }
        assert_eq!(take(&content), (10..60).map(|number| vec![number]).collect::<Vec<_>>());
        for _ in 0..3 {
            poll.add("p", "c", &vec![0; WAITING_BYTES_MAX / 2]);
        }
        assert_eq!(take(&content).len(), 2);
        poll.unsubscribe([content.clone()].into_iter());
        assert_eq!(poll.take(&content), None);
    }

    #[test]
    fn topics_are_bounded() {
        let poll = Poll::default();
        let topics = |range: std::ops::Range<usize>| range.map(|n| Topic::Content(n.to_string()));
        assert_eq!(poll.subscribe(topics(0..TOPICS_MAX)), Ok(()));
        assert_eq!(poll.subscribe(topics(0..TOPICS_MAX)), Ok(()));
        assert_eq!(poll.subscribe(topics(TOPICS_MAX..TOPICS_MAX + 1)), Err(Full));
    }
}
