//! Publishes a client's message: checks and stores the message, and passes it on to peers.

use hark_codec::waku::shard::TopicError;
use hark_codec::waku::{Message, Shard};
use hark_networks::waku::admit::MessageRefusal;

use super::intake::MessageRejection;
use super::metrics::{LightPushStatus, MessageOrigin};
use super::node::WakuNode;
use crate::rate::{RateSource, RateSubject};

/// The text that refuses a light push above the rate, as in nwaku.
pub(super) const TOO_MANY_PUSHES: &str = "Request rejected due to too many requests";

/// Why a message is not published.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum PublishRefusal {
    /// The content topic names no shard, and the client names none either.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// This node does not serve the pubsub topic.
    #[error("Failed to publish: Node not subscribed to topic: {0}")]
    NotServed(String),
    /// See [`MessageRejection`].
    #[error(transparent)]
    Rejected(#[from] MessageRejection),
}

impl PublishRefusal {
    /// The status of the answer to a light push.
    pub(super) fn status(&self) -> LightPushStatus {
        match self {
            Self::NotServed(_) => LightPushStatus::UnsupportedTopic,
            Self::Topic(_) => LightPushStatus::Invalid,
            Self::Rejected(MessageRejection::Refused(refusal)) => match refusal {
                MessageRefusal::Size(..) => LightPushStatus::TooLarge,
                MessageRefusal::Listener => LightPushStatus::Unavailable,
                _ => LightPushStatus::Invalid,
            },
            Self::Rejected(MessageRejection::Store(_)) => LightPushStatus::Internal,
            Self::Rejected(MessageRejection::Down) => LightPushStatus::Unavailable,
        }
    }
}

/// Returns the number of nodes that have a published message, for the answer to a light push. At
/// least this node has the message: it has stored the message and passed it on to its filter
/// clients. nwaku's client treats 0 as a failure, and would publish the message again.
pub(super) fn relay_peer_count(peers: usize) -> u32 {
    u32::try_from(peers.max(1)).unwrap_or(u32::MAX)
}

impl WakuNode {
    /// Charges a light push to its source. Returns false if the source exceeds its rate.
    pub(super) fn admits_push(&self, from: RateSource) -> bool {
        let rate = self.settings().light_pushes;
        self.service.questions.charge(RateSubject::Events(from), rate)
    }

    /// Checks and stores a message, and passes it on to peers. The pubsub topic is `topic`, or the
    /// topic of the shard that the content topic belongs to. Returns the number of peers that
    /// subscribe to the topic.
    pub(super) async fn publish(
        &self,
        origin: MessageOrigin,
        message: &Message<'_>,
        topic: Option<&str>,
    ) -> Result<usize, PublishRefusal> {
        let topic = if let Some(topic) = topic {
            topic.to_owned()
        } else {
            let (cluster, shards) = (self.config.cluster, self.config.shards_in_cluster);
            Shard::of(message.content_topic, cluster, shards)?.to_string()
        };
        if !self.serves(&topic) {
            return Err(PublishRefusal::NotServed(topic));
        }
        let mut message = *message;
        // As in nwaku, 0 stands for no time.
        if message.timestamp.is_none_or(|time| time == 0) {
            message.timestamp = i64::try_from(self.now_ns()).ok();
        }
        let mut wire = Vec::with_capacity(message.payload.len() + 256);
        message.write(&mut wire);
        self.accept_message(origin, &message, wire.len(), &topic).await?;
        Ok(self.pass_on(topic, wire).await)
    }
}
