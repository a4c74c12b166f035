//! Decides whether gossip brings all messages of this node's shards.

use std::collections::BTreeSet;

use crate::waku::metrics::{MessageFate, MessageOrigin};
use crate::waku::node::WakuNode;
use crate::waku::p2p::NetworkHandle;
use crate::waku::peer_status::PeerConnectivity;

/// The state of gossip at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GossipState {
    /// Number of messages of peers that this node could not store since its start.
    unkept: u64,
    /// How often a peer that relays messages fell silent since the start of this node. Such a peer
    /// may be connected again before this node sees that the peer was gone.
    silent: u64,
    /// This node's shards whose messages a connected peer relays. Light clients relay none.
    relayed: BTreeSet<u16>,
}

impl GossipState {
    pub(super) async fn of(waku: &WakuNode) -> Self {
        let of = |origin| waku.metrics.messages.of(origin).of(MessageFate::Insert).get();
        let mut peers = waku.peers().await.unwrap_or_default();
        peers.retain(|peer| peer.connectivity == PeerConnectivity::Connected);
        let relayed = peers.iter().flat_map(|peer| peer.shards.iter().copied());
        Self {
            unkept: of(MessageOrigin::Relay) + of(MessageOrigin::Store),
            silent: waku.network.as_ref().map_or(0, NetworkHandle::silent_peers),
            relayed: relayed.filter(|shard| waku.config.shards.contains(shard)).collect(),
        }
    }
}

/// Compares the state of gossip with earlier states.
pub(super) struct GossipWatch {
    last: GossipState,
    /// The shards that peers have relayed, also before this node was restarted.
    expected: BTreeSet<u16>,
}

impl GossipWatch {
    /// Begins with the shards that peers relayed before this node was restarted.
    pub(super) fn new(now: GossipState, expected: BTreeSet<u16>) -> Self {
        Self { last: now, expected }
    }

    /// Compares the state of gossip with the last state. Returns whether messages were missed in
    /// between: this node could not store messages, a peer fell silent, or a shard was not relayed
    /// and is relayed now.
    pub(super) fn compare(&mut self, now: GossipState) -> bool {
        let was_silent = (now.unkept, now.silent) != (self.last.unkept, self.last.silent);
        let has_missed = was_silent || !now.relayed.is_subset(&self.last.relayed);
        let gone: Vec<_> = self.last.relayed.difference(&now.relayed).collect();
        if !gone.is_empty() {
            tracing::info!(
                shards = ?gone,
                "no peer relays these shards any more; their messages are fetched once a peer does"
            );
        }
        self.expected.extend(&now.relayed);
        self.last = now;
        has_missed
    }

    /// Whether peers relay messages, and all shards that peers have relayed before.
    pub(super) fn is_whole(&self) -> bool {
        !self.last.relayed.is_empty() && self.expected.is_subset(&self.last.relayed)
    }

    /// The shards that peers have relayed.
    pub(super) fn expected(&self) -> &BTreeSet<u16> {
        &self.expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relaying(shards: &[u16]) -> GossipState {
        GossipState { relayed: shards.iter().copied().collect(), ..GossipState::default() }
    }

    #[test]
    fn gossip_is_whole_while_every_shard_that_was_relayed_before_is_relayed() {
        let mut gossip = GossipWatch::new(relaying(&[]), BTreeSet::new());
        assert!(!gossip.is_whole(), "no peer relays messages");
        for (shards, is_whole, has_missed) in [
            (&[0][..], true, true),
            (&[0], true, false),
            // A further shard, which goes and comes back.
            (&[0, 1], true, true),
            (&[0], false, false),
            (&[], false, false),
            (&[1], false, true),
            (&[0, 1], true, true),
            (&[0, 1], true, false),
        ] {
            let missed = gossip.compare(relaying(shards));
            assert_eq!((gossip.is_whole(), missed), (is_whole, has_missed), "{shards:?}");
        }
        assert_eq!(gossip.expected(), &BTreeSet::from([0, 1]));
        let later = [(1, 0), (1, 1)];
        for (unkept, silent) in later {
            assert!(gossip.compare(GossipState { unkept, silent, ..relaying(&[0, 1]) }));
        }
        assert!(!gossip.compare(GossipState { unkept: 1, silent: 1, ..relaying(&[0]) }));
    }

    #[test]
    fn a_shard_that_was_relayed_before_a_restart_is_expected() {
        let mut gossip = GossipWatch::new(relaying(&[]), BTreeSet::from([3]));
        assert!(gossip.compare(relaying(&[0])) && !gossip.is_whole());
        assert!(gossip.compare(relaying(&[0, 3])) && gossip.is_whole());
    }
}
