//! The REST door's interface to the node's peers. The interface exists even if the node has no
//! peers or is built without libp2p.

use super::WakuNode;
#[cfg(feature = "libp2p")]
use super::p2p;

/// Why no peer can answer.
pub(super) const NO_PEERS: &str = "this node knows no peers; set [waku] listen";

/// A connected peer, or a peer that this node tries to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeerStatus {
    pub(super) id: String,
    /// The peer's address, with its id at the end.
    pub(super) addr: String,
    pub(super) protocols: Vec<String>,
    pub(super) agent: String,
    pub(super) connectivity: PeerConnectivity,
    /// Whether the configuration names the peer.
    pub(super) is_configured: bool,
    /// Shards that the peer subscribes to.
    pub(super) shards: Vec<u16>,
    /// Shards whose messages are sent to the peer as they arrive (the gossip mesh).
    pub(super) mesh: Vec<u16>,
}

/// Whether a peer is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerConnectivity {
    Connected,
    NotConnected,
    /// The last attempt to connect failed.
    CannotConnect,
}

/// Why a peer gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "libp2p"), expect(dead_code, reason = "there are no peers"))]
pub(super) enum NoPeerAnswer {
    /// This node knows no peers.
    NoPeers,
    /// The text is not the address of a peer.
    Address(String),
    /// This node must not dial the address for a client.
    Forbidden,
    /// The peer was not reached. The reason is left out, because it would reveal open ports of
    /// other machines.
    Unreached,
    /// The peer is connected, but gave no valid answer.
    Broken(String),
}

#[cfg(feature = "libp2p")]
impl WakuNode {
    /// Returns the addresses at which peers reach this node.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.network.as_ref().map(p2p::NetworkHandle::addresses).unwrap_or_default()
    }

    /// Sends a request to the store of a peer. Returns the bytes of the answer.
    pub(super) async fn ask_peer(
        &self,
        addr: &str,
        request: &[u8],
    ) -> Result<Vec<u8>, NoPeerAnswer> {
        let network = self.network.as_ref().ok_or(NoPeerAnswer::NoPeers)?;
        network.ask_for_client(addr, self.config.access.any_peer, request).await
    }

    /// Connects to a peer.
    pub(super) async fn connect(&self, addr: &str) -> Result<(), NoPeerAnswer> {
        let network = self.network.as_ref().ok_or(NoPeerAnswer::NoPeers)?;
        network.reach(addr, true).await.map(drop)
    }

    /// Returns all peers, sorted by id. `None` if this node is configured without peers.
    pub(super) async fn peers(&self) -> Option<Vec<PeerStatus>> {
        match &self.network {
            Some(network) => Some(network.peers().await),
            None => None,
        }
    }

    /// Publishes a message to peers.
    pub(super) async fn pass_on(&self, pubsub_topic: String, message: Vec<u8>) {
        if let Some(network) = &self.network {
            network.publish(pubsub_topic, message).await;
        }
    }

    /// Publishes a message to peers, without waiting.
    pub(super) fn try_pass_on(&self, pubsub_topic: &str, message: &[u8]) {
        if let Some(network) = self.network.as_ref().filter(|_| self.config.forward) {
            network.try_publish(pubsub_topic.to_owned(), message.to_vec());
        }
    }
}

#[cfg(not(feature = "libp2p"))]
#[expect(clippy::unused_self, clippy::unused_async, reason = "as with peers")]
impl WakuNode {
    pub(crate) fn addresses(&self) -> Vec<String> {
        Vec::new()
    }

    pub(super) async fn ask_peer(&self, _: &str, _: &[u8]) -> Result<Vec<u8>, NoPeerAnswer> {
        Err(NoPeerAnswer::NoPeers)
    }

    pub(super) async fn connect(&self, _: &str) -> Result<(), NoPeerAnswer> {
        Err(NoPeerAnswer::NoPeers)
    }

    pub(super) async fn peers(&self) -> Option<Vec<PeerStatus>> {
        None
    }

    pub(super) async fn pass_on(&self, _: String, _: Vec<u8>) {}

    pub(super) fn try_pass_on(&self, _: &str, _: &[u8]) {}
}
