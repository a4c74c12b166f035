//! The state of a Waku node.

use std::sync::Arc;

use arc_swap::Guard;
use hark_codec::waku::Shard;

use super::arriving::ArrivingMessages;
use super::config::{NodeConfig, NodeSettings};
use super::history::PositionCache;
use super::metrics::NodeMetrics;
use super::nullifiers::NullifierLog;
#[cfg(feature = "libp2p")]
use super::p2p::{FilterSubscribers, NetworkHandle};
use super::poll::PollQueues;
use crate::Clients;
use crate::permits::Shares;
use crate::rate::RateSource;
use crate::service::{IntakeBounds, Service};

/// Bounds for the messages that wait to be durable.
pub(super) const INTAKE: IntakeBounds = IntakeBounds { records_max: 4_096 };
/// Maximum number of concurrent requests to peers on behalf of REST clients, in total and per
/// client address. A peer's answer may have 16 MiB, or somewhat more than the longest message.
pub(super) const PEER_QUESTIONS_MAX: usize = 16;
pub(super) const PEER_QUESTIONS_PER_ADDRESS_MAX: usize = 4;

/// The state that the REST and libp2p interfaces share.
pub(crate) struct WakuNode {
    pub(super) service: Service,
    pub(super) poll: Arc<PollQueues>,
    pub(super) arriving: Arc<ArrivingMessages>,
    #[cfg(feature = "libp2p")]
    pub(super) filter: Arc<FilterSubscribers>,
    pub(super) metrics: NodeMetrics,
    pub(super) positions: Arc<PositionCache>,
    /// Permits for clients' requests to peers.
    pub(super) peer_questions: Shares<RateSource>,
    /// The nullifiers of the messages that need proofs.
    pub(super) nullifiers: NullifierLog,
    pub(super) clients: Clients,
    #[cfg(feature = "libp2p")]
    pub(super) network: Option<NetworkHandle>,
    pub(super) config: NodeConfig,
}

impl WakuNode {
    /// Returns the current settings.
    pub(super) fn settings(&self) -> Guard<Arc<NodeSettings>> {
        self.config.settings.load()
    }

    /// The current time, in nanoseconds since 1970.
    pub(super) fn now_ns(&self) -> u64 {
        self.service.shelf.clock().now_ns()
    }

    /// Whether messages of this topic are accepted.
    pub(super) fn serves(&self, pubsub_topic: &str) -> bool {
        pubsub_topic.parse::<Shard>().is_ok_and(|shard| self.serves_shard(shard))
    }

    /// Whether messages of this shard are accepted.
    pub(super) fn serves_shard(&self, shard: Shard) -> bool {
        self.config.served().any(|served| served == shard)
    }
}
