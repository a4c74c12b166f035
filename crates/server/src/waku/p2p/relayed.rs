//! Checks and stores the messages that peers relay. A message is checked before it is forwarded,
//! and stored afterwards.

use hark_codec::waku::Message;
use hark_networks::waku::admit::MessageRefusal;
use libp2p::gossipsub;

use crate::waku::metrics::MessageOrigin;
use crate::waku::node::WakuNode;

/// The decision about a message that a peer relays.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum GossipVerdict {
    /// The message is accepted.
    Yes,
    /// The message is not accepted, but the sending peer is not at fault. For example, the
    /// message's time is too far from now, or the shard is not served.
    Old,
    /// The bytes are not a message, or are a message that every node refuses.
    Broken,
}

/// Decides whether a message is accepted.
pub(super) fn accept(waku: &WakuNode, gossip: &gossipsub::Message) -> GossipVerdict {
    if !waku.serves(gossip.topic.as_str()) {
        return GossipVerdict::Old;
    }
    let Ok(message) = Message::parse(&gossip.data) else { return GossipVerdict::Broken };
    match waku.admit(MessageOrigin::Relay, &message, gossip.data.len(), gossip.topic.as_str()) {
        Ok(()) => GossipVerdict::Yes,
        // A peer that relays a message cannot know that another message with this nullifier arrived
        // here first.
        Err(
            MessageRefusal::TooOld(_)
            | MessageRefusal::TooFar(_)
            | MessageRefusal::NoTime
            | MessageRefusal::Negative
            | MessageRefusal::Nullifier,
        ) => GossipVerdict::Old,
        Err(_) => GossipVerdict::Broken,
    }
}

/// Stores a gossip message after [`accept`] has accepted the message.
pub(super) async fn store_gossip(waku: &WakuNode, gossip: &gossipsub::Message) {
    let Ok(message) = Message::parse(&gossip.data) else { return };
    let topic = gossip.topic.as_str();
    if let Err(error) = waku.store_message(MessageOrigin::Relay, &message, topic).await {
        tracing::debug!(%error, topic, "a message of a peer was not accepted");
    }
}
