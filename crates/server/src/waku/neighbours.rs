//! Functions by which the REST API reaches the node's peers. They exist even if the node has no
//! peers or is built without libp2p.

use hark_networks::waku::history::MessageRequest;
#[cfg(feature = "libp2p")]
use libp2p::PeerId;

use super::node::WakuNode;
#[cfg(feature = "libp2p")]
use super::p2p::{self, NetworkHandle};
use super::peer_status::{NoPeerAnswer, PeerStatus, PeerSubscriptions};

#[cfg(feature = "libp2p")]
impl WakuNode {
    /// Whether the configuration names this peer.
    pub(super) fn knows(&self, peer: PeerId) -> bool {
        self.config.p2p.as_ref().is_some_and(|config| {
            config.peers.iter().chain(&config.stores).any(|addr| p2p::peer_id(addr) == Some(peer))
        })
    }

    /// Returns the addresses at which peers reach this node.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.network.as_ref().map(NetworkHandle::addresses).unwrap_or_default()
    }

    /// Returns this node's record as text. `None` if this node is configured without peers.
    pub(super) fn record(&self) -> Option<String> {
        Some(self.network.as_ref()?.own_record()?.to_string())
    }

    /// Sends a request to the store of a peer. Returns the bytes of the answer.
    pub(super) async fn ask_peer(
        &self,
        addr: &str,
        request: &MessageRequest,
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

    /// Number of peers with subscriptions.
    pub(super) fn subscribers(&self) -> usize {
        self.filter.count()
    }

    /// All peers with subscriptions, each with its topics: pubsub topic and content topic.
    pub(super) fn subscriptions(&self) -> Option<Vec<PeerSubscriptions>> {
        self.network.as_ref().map(|_| self.filter.all())
    }

    /// Publishes a message to peers. Returns the number of peers that subscribe to the topic.
    pub(super) async fn pass_on(&self, pubsub_topic: String, message: Vec<u8>) -> usize {
        match &self.network {
            Some(network) => network.publish(pubsub_topic, message).await,
            None => 0,
        }
    }

    /// Publishes a message to peers if forwarding is enabled. Does not wait: if the queue is full,
    /// the message is dropped.
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

    pub(super) fn record(&self) -> Option<String> {
        None
    }

    pub(super) async fn ask_peer(
        &self,
        _: &str,
        _: &MessageRequest,
    ) -> Result<Vec<u8>, NoPeerAnswer> {
        Err(NoPeerAnswer::NoPeers)
    }

    pub(super) async fn connect(&self, _: &str) -> Result<(), NoPeerAnswer> {
        Err(NoPeerAnswer::NoPeers)
    }

    pub(super) async fn peers(&self) -> Option<Vec<PeerStatus>> {
        None
    }

    pub(super) fn subscribers(&self) -> usize {
        0
    }

    pub(super) fn subscriptions(&self) -> Option<Vec<PeerSubscriptions>> {
        None
    }

    pub(super) async fn pass_on(&self, _: String, _: Vec<u8>) -> usize {
        0
    }

    pub(super) fn try_pass_on(&self, _: &str, _: &[u8]) {}
}
