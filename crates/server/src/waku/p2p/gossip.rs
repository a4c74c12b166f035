//! Gossip (RFC 11/WAKU2-RELAY): how much of it peers may send at once, and how much may wait for them.
//!
//! No bound is one that an honest relay node meets. A node that is outside the mesh asks for all
//! messages of a second at once (IWANT), and names up to 5,000 of its own in one frame (IHAVE).
//! What is passed on is bounded in bytes. Only a peer that takes none of them is disconnected
//! (`patience`).

use std::time::{Duration, Instant};

use libp2p::gossipsub;
use sha2::{Digest as _, Sha256};

use super::served::{ServedSubscriptions, ServedTopics};

/// The gossip protocol of messages (RFC 11/WAKU2-RELAY).
const RELAY: &str = "/vac/waku/relay/2.0.0";
/// Bytes allowed for the gossip envelope around a message.
const ENVELOPE_BYTES: usize = 64 << 10;
/// Bytes that every frame may have: 5,000 ids, and as much again.
const FRAME_BYTES: usize = 384 << 10;
/// Bytes of a gossip message, at least, with its topic, content topic and time. It is what bounds the
/// memory of a frame that is read, as a frame of empty messages would take a hundred times its bytes.
const MESSAGE_BYTES_MIN: usize = 32;
/// Messages that wait for one peer, at most: more than an honest burst. Further ones are not sent to it.
const QUEUE_MAX: usize = 4_096;
/// How long a message may wait for a peer to read it. Peers refuse messages that are older.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// How often a peer may ask for the same message.
const ASKED_MAX: u32 = 1;
/// Bytes of messages that are passed on in a span of [`BUDGET_SPAN`]. Further ones are kept, and not
/// passed on: so this bounds what a peer that reads nothing makes the node hold until it is found out.
const BUDGET_BYTES: usize = 64 << 20;
const BUDGET_SPAN: Duration = Duration::from_secs(10);

/// The gossip of a node.
pub(super) type Gossip = gossipsub::Behaviour<ServedTopics, ServedSubscriptions>;

/// The bytes that may still be passed on.
pub(super) struct ForwardBudget {
    since: Instant,
    bytes: usize,
}

impl ForwardBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, bytes: 0 }
    }

    /// Whether a message may be passed on.
    pub(super) fn take(&mut self, bytes: usize, now: Instant) -> bool {
        if now.duration_since(self.since) >= BUDGET_SPAN {
            *self = Self::new(now);
        }
        let is_within = self.bytes.saturating_add(bytes) <= BUDGET_BYTES;
        if is_within {
            self.bytes += bytes;
        }
        is_within
    }
}

/// Sets up gossip of the topics `served`.
pub(super) fn gossip(
    served: ServedTopics,
    message_bytes: usize,
) -> Result<Gossip, Box<dyn std::error::Error + Send + Sync>> {
    let frame_bytes = (message_bytes + ENVELOPE_BYTES).max(FRAME_BYTES);
    let config = gossipsub::ConfigBuilder::default()
        .protocol_id(RELAY, gossipsub::Version::V1_1)
        .validation_mode(gossipsub::ValidationMode::Anonymous)
        .validate_messages()
        .message_id_fn(|message| Sha256::digest(&message.data).to_vec().into())
        .max_transmit_size(frame_bytes)
        .max_control_message_size(frame_bytes)
        .max_publish_messages(frame_bytes / MESSAGE_BYTES_MIN)
        .connection_handler_queue_len(QUEUE_MAX)
        .gossip_retransimission(ASKED_MAX)
        .publish_queue_duration(WAIT_MAX)
        .forward_queue_duration(WAIT_MAX)
        .build()?;
    let author = gossipsub::MessageAuthenticity::Anonymous;
    let subscriptions = ServedSubscriptions(served.clone());
    Ok(Gossip::new_with_subscription_filter_and_transform(author, config, subscriptions, served)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_passed_on_is_bounded_in_bytes_for_each_span_of_time() {
        let start = Instant::now();
        let mut budget = ForwardBudget::new(start);
        for span in 0..3 {
            let now = start + BUDGET_SPAN * span;
            assert!((0..64).all(|_| budget.take(1 << 20, now)));
            assert!(!budget.take(1, now) && !budget.take(usize::MAX, now + BUDGET_SPAN / 2));
        }
    }
}
