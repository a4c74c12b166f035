//! The status of the node's peers for the REST API. Builds without libp2p also have these types.

use std::sync::Arc;

/// The error text of a node that is configured without peers.
pub(super) const NO_PEERS: &str = "this node knows no peers; set [waku] listen";

/// A connected peer, or a peer that this node tries to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "libp2p"), allow(dead_code))] // there are no peers
pub(super) struct PeerStatus {
    pub(super) id: String,
    /// The peer's address, with its id at the end.
    pub(super) addr: String,
    pub(super) protocols: Vec<String>,
    pub(super) agent: String,
    pub(super) connectivity: PeerConnectivity,
    /// Whether this node has dialled the peer. `None` if the peer is not connected.
    pub(super) is_dialled: Option<bool>,
    /// The IP address of the connection.
    pub(super) remote: Option<std::net::IpAddr>,
    /// Why the last attempt to connect failed.
    pub(super) fault: Option<String>,
    /// Whether the configuration names the peer.
    pub(super) is_configured: bool,
    /// Shards that the peer subscribes to.
    pub(super) shards: Vec<u16>,
    /// Shards whose messages are sent to the peer as they arrive (the gossip mesh).
    pub(super) mesh: Vec<u16>,
}

/// The id of a peer, and its subscriptions: pubsub topic and content topic.
pub(super) type PeerSubscriptions = (String, Vec<(String, Arc<str>)>);

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
    /// This node is configured without peers.
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
