//! The libp2p behaviour of a node, which combines the protocols of its connections.

use libp2p::swarm::NetworkBehaviour;
use libp2p::{identify, ping};

use super::admission::PeerAdmission;
use super::incoming::IncomingStreams;
use super::outgoing::OutgoingStreams;
use super::watched::WatchedGossip;

/// The behaviours of a node, one for each protocol or group of protocols.
#[derive(NetworkBehaviour)]
pub(super) struct NodeBehaviour {
    pub(super) admission: PeerAdmission,
    pub(super) gossip: WatchedGossip,
    pub(super) identify: identify::Behaviour,
    pub(super) ping: ping::Behaviour,
    pub(super) incoming: IncomingStreams,
    pub(super) outgoing: OutgoingStreams,
}
