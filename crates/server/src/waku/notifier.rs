//! Passes new messages on to the clients of this node that wait for messages.

use std::sync::Arc;

use hark_archive::Record;
use hark_archive::clock::Clock;
use hark_archive::meter::Counter;
use hark_codec::waku::MessageRecord;

use super::arriving::{ArrivingMessages, MessageArrival};
use super::config::SharedNodeSettings;
#[cfg(feature = "libp2p")]
use super::p2p;
use super::poll::PollQueues;
use crate::shelf::Subscribers;

/// How long after its admission by another node a message may become durable, and still counts as
/// new.
const DELAY_MAX_NS: u64 = 60_000_000_000;

/// Queues new messages for clients that poll, and for peers that have subscribed.
pub(super) struct MessageNotifier {
    pub(super) arriving: Arc<ArrivingMessages>,
    pub(super) poll: Arc<PollQueues>,
    #[cfg(feature = "libp2p")]
    pub(super) filter: Arc<p2p::FilterSubscribers>,
    pub(super) settings: SharedNodeSettings,
    pub(super) clock: Clock,
    /// Number of messages of other nodes that were too old to be passed on.
    pub(super) not_announced: Arc<Counter>,
}

impl MessageNotifier {
    /// Whether a message is older than a message that another node has admitted just now. Such a
    /// message comes from an import, or another node of this database has it from a store.
    fn is_past(&self, record: &Record<'_>) -> bool {
        let Some(window_ns) = self.settings.load().window_ns else { return false };
        let admitted_until_ns = record.time().saturating_add(window_ns);
        admitted_until_ns.saturating_add(DELAY_MAX_NS) < self.clock.now_ns()
    }
}

impl Subscribers for MessageNotifier {
    fn publish(&self, _: Option<u64>, record: &Record<'_>) {
        let message = MessageRecord::new(*record);
        let arrival = self.arriving.arrival(message.hash());
        // The age of a message that this node has accepted as new was checked then. The message may
        // be durable much later, for example after the machine was suspended. Other old messages
        // would push new ones out of the queues.
        if arrival != MessageArrival::New && self.is_past(record) {
            if arrival == MessageArrival::Elsewhere {
                self.not_announced.add(1);
                tracing::debug!("an old message of another node is not passed on to subscribers");
            }
            return;
        }
        let topics = (
            std::str::from_utf8(message.pubsub_topic()),
            std::str::from_utf8(message.content_topic()),
        );
        if let (Ok(pubsub_topic), Ok(content_topic)) = topics {
            let bytes = self.arriving.complete(&message);
            self.poll.add(pubsub_topic, content_topic, &bytes);
            // Filter subscribers expect only newly published messages.
            #[cfg(feature = "libp2p")]
            if arrival != MessageArrival::FromStore {
                self.filter.publish(pubsub_topic, content_topic, &bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hark_codec::waku::{Message, MessageEncoder};

    use super::*;
    use crate::waku::config::NodeSettings;
    use crate::waku::poll::PollTopic;

    const TOPIC: &str = "/waku/2/rs/1/0";
    const NS_PER_S: u64 = 1_000_000_000;

    fn notifier(clock: Clock) -> MessageNotifier {
        let settings = crate::waku::config::shared(NodeSettings::default());
        let poll = Arc::new(PollQueues::default());
        poll.subscribe(std::iter::once(PollTopic::Pubsub(TOPIC.into()))).unwrap();
        MessageNotifier {
            arriving: Arc::default(),
            poll,
            #[cfg(feature = "libp2p")]
            filter: Arc::new(p2p::FilterSubscribers::new(
                (1, Arc::clone(&settings)),
                crate::answers::Answers::new(Arc::default()),
                Arc::default(),
            )),
            settings,
            clock,
            not_announced: Arc::default(),
        }
    }

    /// A machine may be suspended, or its disk hang, while a message is on its way to the disk.
    #[test]
    fn an_accepted_message_is_passed_on_however_late_it_is_durable() {
        let clock = Clock::fake(1_000);
        let notifier = notifier(clock.clone());
        let message = Message {
            payload: b"hello",
            content_topic: "/a/1/b/proto",
            timestamp: Some((1_000 * NS_PER_S).cast_signed()),
            ..Message::default()
        };
        let (hash, mut bytes) = (message.hash(TOPIC), Vec::new());
        MessageEncoder::default().encode(&message, TOPIC, &hash, &mut bytes);
        let record = Record::new(&bytes).unwrap();
        let polled = || {
            notifier.publish(Some(1), &record);
            notifier.poll.take(&PollTopic::Pubsub(TOPIC.into())).unwrap().len()
        };
        assert_eq!(polled(), 1, "another node has accepted the message just now");
        let accepted = notifier.arriving.expect(hash, &message, false);
        clock.set(10_000);
        assert_eq!((polled(), notifier.not_announced.get()), (1, 0));
        drop(accepted);
        assert_eq!((polled(), notifier.not_announced.get()), (0, 1), "an import");
        let _fetched = notifier.arriving.expect(hash, &message, true);
        assert_eq!((polled(), notifier.not_announced.get()), (0, 1), "history of another store");
    }
}
