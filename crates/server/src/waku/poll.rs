//! Queues of messages that clients of the REST API poll. A full queue drops its oldest messages;
//! adding a message never blocks.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use hark_codec::record::Id;
use hark_codec::waku::Message;
use parking_lot::Mutex;

/// Maximum number of subscribed topics of all clients together.
pub const TOPICS_MAX: usize = 128;
/// Maximum number of messages in the queue of a topic, and maximum size of these messages in bytes.
const WAITING_MAX: usize = 50;
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Maximum size of a proof that clients get, in bytes. Rate-limit proofs have 300 bytes.
const PROOF_BYTES_MAX: usize = 1_024;

/// The topic of a subscription.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum PollTopic {
    Pubsub(String),
    Content(String),
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
    /// Proofs of messages that are not durable yet, by message hash. The archive does not store
    /// proofs.
    proofs: HashMap<Id, Box<[u8]>>,
}

/// Keeps the proof of a message in memory until the guard is dropped.
pub(super) struct ProofGuard<'a>(&'a PollQueues, Id);

impl Drop for ProofGuard<'_> {
    fn drop(&mut self) {
        self.0.0.lock().proofs.remove(&self.1);
    }
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
    /// Keeps the proof of a message that will be durable soon. Returns `None` if the proof is empty
    /// or too long.
    pub(super) fn expect(&self, hash: Id, proof: &[u8]) -> Option<ProofGuard<'_>> {
        if proof.is_empty() || proof.len() > PROOF_BYTES_MAX {
            return None;
        }
        self.0.lock().proofs.insert(hash, proof.into());
        Some(ProofGuard(self, hash))
    }

    /// Subscribes to all of the topics, or to none. New messages of subscribed topics are queued.
    pub(super) fn subscribe(
        &self,
        topics: impl Iterator<Item = PollTopic>,
    ) -> Result<(), TooManyTopics> {
        let waiting = &mut self.0.lock().topics;
        let new: Vec<_> = topics.filter(|topic| !waiting.contains_key(topic)).collect();
        if waiting.len() + new.len() > TOPICS_MAX {
            return Err(TooManyTopics);
        }
        waiting.extend(new.into_iter().map(|topic| (topic, TopicQueue::default())));
        Ok(())
    }

    /// Ends the subscriptions to topics, and drops their queues.
    pub(super) fn unsubscribe(&self, topics: impl Iterator<Item = PollTopic>) {
        let waiting = &mut self.0.lock().topics;
        for topic in topics {
            waiting.remove(&topic);
        }
    }

    /// Queues a message under both of its topics. If a proof is kept under `hash`, adds the proof
    /// to the message.
    pub(super) fn add(
        &self,
        pubsub_topic: &str,
        content_topic: &str,
        message: &[u8],
        hash: Option<&Id>,
    ) {
        let inner = &mut *self.0.lock();
        if inner.topics.is_empty() {
            return;
        }
        let topics = [
            PollTopic::Pubsub(pubsub_topic.to_owned()),
            PollTopic::Content(content_topic.to_owned()),
        ];
        let mut shared = None;
        for topic in topics {
            if let Some(waiting) = inner.topics.get_mut(&topic) {
                let proof = || inner.proofs.get(hash?).map(|proof| &**proof);
                waiting.add(shared.get_or_insert_with(|| whole(message, proof())));
            }
        }
    }

    /// Encodes the queues for a process that takes over: a part for each topic, which
    /// [`PollQueues::restore`] reads.
    ///
    /// ```text
    /// 1  0 for a pubsub topic, 1 for a content topic
    /// .  the topic, then each message: 4 bytes of its length, little endian, and its bytes
    /// ```
    pub(super) fn state(&self) -> Vec<Vec<u8>> {
        let part = |(topic, waiting): (&PollTopic, &TopicQueue)| {
            let (kind, name) = match topic {
                PollTopic::Pubsub(name) => (0, name),
                PollTopic::Content(name) => (1, name),
            };
            let mut part = vec![kind];
            for bytes in [name.as_bytes()].into_iter().chain(waiting.messages.iter().map(|m| &**m))
            {
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
        let topic = if *kind == 0 { PollTopic::Pubsub(name) } else { PollTopic::Content(name) };
        self.subscribe(std::iter::once(topic.clone())).ok()?;
        let mut inner = self.0.lock();
        let waiting = inner.topics.get_mut(&topic)?;
        while let Some(message) = next() {
            waiting.add(&message.into());
        }
        rest.is_empty().then_some(())
    }

    /// Takes the queued messages of a topic. Returns `None` if nobody has subscribed to the topic.
    pub(super) fn take(&self, topic: &PollTopic) -> Option<VecDeque<Arc<[u8]>>> {
        self.0.lock().topics.get_mut(topic).map(|waiting| std::mem::take(waiting).messages)
    }
}

/// Returns a message's bytes with its proof.
fn whole(message: &[u8], proof: Option<&[u8]>) -> Arc<[u8]> {
    let (Some(proof), Ok(parsed)) = (proof, Message::parse(message)) else { return message.into() };
    let mut wire = Vec::with_capacity(message.len() + proof.len() + 8);
    Message { proof: Some(proof), ..parsed }.write(&mut wire);
    wire.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_given_once_and_bounded() {
        let (pubsub, content) = (PollTopic::Pubsub("p".into()), PollTopic::Content("c".into()));
        let poll = PollQueues::default();
        poll.add("p", "c", b"before", None);
        poll.subscribe([pubsub.clone(), content.clone()].into_iter()).unwrap();
        poll.add("p", "c", b"1", None);
        poll.add("p", "other", b"2", None);
        let take = |topic| -> Vec<Vec<u8>> {
            poll.take(topic).unwrap().iter().map(|message| message.to_vec()).collect()
        };
        assert_eq!(take(&pubsub), [b"1", b"2"]);
        assert_eq!(take(&pubsub), Vec::<Vec<u8>>::new());
        for number in 0..60 {
            poll.add("p", "c", &[number], None);
        }
        assert_eq!(take(&content), (10..60).map(|number| vec![number]).collect::<Vec<_>>());
        for _ in 0..3 {
            poll.add("p", "c", &vec![0; WAITING_BYTES_MAX / 2], None);
        }
        assert_eq!(take(&content).len(), 2);
        poll.unsubscribe([content.clone()].into_iter());
        assert_eq!(poll.take(&content), None);
    }

    #[test]
    fn what_waits_goes_on_waiting_in_another_process() {
        let (pubsub, content) = (PollTopic::Pubsub("p".into()), PollTopic::Content("c".into()));
        let (one, other) = (PollQueues::default(), PollQueues::default());
        one.subscribe([pubsub.clone(), content.clone()].into_iter()).unwrap();
        one.add("p", "c", b"1", None);
        one.add("p", "d", b"", None);
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
        for part in [&b""[..], b"\x00", b"\x00\x09\0\0\0p", b"\x00\x01\0\0\0p\x01"] {
            assert_eq!(other.restore(part), None, "{part:?}");
        }
    }

    #[test]
    fn a_message_waits_with_its_proof() {
        let poll = PollQueues::default();
        poll.subscribe([PollTopic::Pubsub("p".into())].into_iter()).unwrap();
        let message = Message { payload: b"m", content_topic: "c", ..Message::default() };
        let (hash, mut wire) = (message.hash("p"), Vec::new());
        message.write(&mut wire);
        let expected = poll.expect(hash, b"proof");
        poll.add("p", "c", &wire, Some(&hash));
        drop(expected);
        poll.add("p", "c", &wire, Some(&hash));
        let polled = poll.take(&PollTopic::Pubsub("p".into())).unwrap();
        let proofs = polled.iter().map(|bytes| Message::parse(bytes).unwrap().proof);
        assert_eq!(proofs.collect::<Vec<_>>(), [Some(&b"proof"[..]), None]);
        assert!(poll.expect(hash, b"").is_none() && poll.0.lock().proofs.is_empty());
    }

    #[test]
    fn topics_are_bounded() {
        let poll = PollQueues::default();
        let topics =
            |range: std::ops::Range<usize>| range.map(|n| PollTopic::Content(n.to_string()));
        assert_eq!(poll.subscribe(topics(0..TOPICS_MAX)), Ok(()));
        assert_eq!(poll.subscribe(topics(0..TOPICS_MAX)), Ok(()));
        assert_eq!(poll.subscribe(topics(TOPICS_MAX..TOPICS_MAX + 1)), Err(TooManyTopics));
    }
}
