//! Gossip (RFC 11/WAKU2-RELAY), with bounds for the data in one frame of a peer, and for the data
//! that may wait for a peer.
//!
//! An honest relay node never reaches any of these bounds. A node outside the mesh may request all
//! messages of one second in a burst (IWANT), and may announce up to 5,000 of its own messages in
//! one frame (IHAVE). Forwarding is bounded in bytes. A peer is disconnected only if it reads
//! nothing at all (`patience`).

use std::time::{Duration, Instant};

use libp2p::gossipsub;
use sha2::{Digest as _, Sha256};

use super::served::{ServedSubscriptions, ServedTopics};

/// The gossip protocol of messages (RFC 11/WAKU2-RELAY).
const RELAY: &str = "/vac/waku/relay/2.0.0";
/// Number of bytes allowed for the gossip envelope around a message.
const ENVELOPE_BYTES: usize = 64 << 10;
/// Size of a frame that is always allowed, in bytes: twice the size of an IHAVE with 5,000 ids.
const FRAME_BYTES: usize = 384 << 10;
/// Minimum size of a gossip message, in bytes, with its topic, content topic and time. The maximum
/// number of messages in a frame follows from this size. Without this maximum, a frame of empty
/// messages would take a hundred times its size in memory.
const MESSAGE_BYTES_MIN: usize = 32;
/// Maximum number of messages that wait for one peer: more than an honest burst. Above this bound,
/// messages are not sent to the peer.
const QUEUE_MAX: usize = 4_096;
/// How long a message may wait for a peer. Peers refuse older messages.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// How many times a peer may request the same message.
const ASKED_MAX: u32 = 1;
/// Maximum size of the messages that are forwarded in a span of [`BUDGET_SPAN`], in bytes. Further
/// messages are stored, but not forwarded. The budget bounds the memory used for a peer that has
/// stopped reading and is not yet disconnected.
const BUDGET_BYTES: usize = 64 << 20;
const BUDGET_SPAN: Duration = Duration::from_secs(10);

/// The gossip of a node.
pub(super) type Gossip = gossipsub::Behaviour<ServedTopics, ServedSubscriptions>;

/// The bytes charged to the forwarding budget in the current span.
pub(super) struct ForwardBudget {
    since: Instant,
    bytes: usize,
}

impl ForwardBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, bytes: 0 }
    }

    /// Whether a message may be forwarded. If so, the message is charged to the budget.
    pub(super) fn try_charge(&mut self, bytes: usize, now: Instant) -> bool {
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

/// Sets up gossip for the topics `served`.
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
            assert!((0..64).all(|_| budget.try_charge(1 << 20, now)));
            assert!(
                !budget.try_charge(1, now) && !budget.try_charge(usize::MAX, now + BUDGET_SPAN / 2)
            );
        }
    }
}
