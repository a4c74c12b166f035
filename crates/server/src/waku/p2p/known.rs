//! This node's information about its peers, for its operators.

use std::collections::{HashMap, HashSet};

use hark_codec::waku::Shard;
use libp2p::core::ConnectedPoint;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, Swarm, identify};

use super::addr;
use super::behaviour::NodeBehaviour;
use super::peers::Peers;
use crate::waku::peer_status::{PeerConnectivity, PeerStatus};

/// The information that each connected peer has reported about itself.
#[derive(Default)]
pub(super) struct KnownPeers(HashMap<PeerId, PeerInfo>);

struct PeerInfo {
    addr: Multiaddr,
    /// The address of the connection.
    remote: Multiaddr,
    /// Whether this node has dialled the address. If so, the peer listens at the address.
    is_dialled: bool,
    protocols: Vec<String>,
    agent: String,
}

impl KnownPeers {
    pub(super) fn connected(&mut self, peer: PeerId, point: &ConnectedPoint) {
        let (addr, is_dialled) = (point.get_remote_address().clone(), point.is_dialer());
        let remote = addr.clone();
        let new =
            PeerInfo { addr, remote, is_dialled, protocols: Vec::new(), agent: String::new() };
        self.0.entry(peer).or_insert(new);
    }

    pub(super) fn disconnected(&mut self, peer: PeerId) {
        self.0.remove(&peer);
    }

    /// Returns the address of the connection with a peer.
    pub(super) fn address(&self, peer: &PeerId) -> Option<&Multiaddr> {
        self.0.get(peer).map(|info| &info.remote)
    }

    pub(super) fn identified(&mut self, peer: PeerId, info: identify::Info) {
        let Some(said) = self.0.get_mut(&peer) else { return };
        said.agent = info.agent_version;
        said.protocols = info.protocols.iter().map(ToString::to_string).collect();
        if let (false, Some(addr)) = (said.is_dialled, info.listen_addrs.into_iter().next()) {
            said.addr = addr;
        }
    }

    /// Returns all connected or configured peers, sorted by id.
    pub(super) fn all(&self, swarm: &Swarm<NodeBehaviour>, wanted: &Peers) -> Vec<PeerStatus> {
        let gossip = &swarm.behaviour().gossip;
        let mut shards: HashMap<PeerId, Vec<u16>> = HashMap::new();
        for (peer, topics) in gossip.all_peers() {
            let of_topics = topics.iter().filter_map(|topic| topic.as_str().parse::<Shard>().ok());
            shards.insert(*peer, of_topics.map(|shard| shard.index).collect());
        }
        let mut meshes: HashMap<PeerId, Vec<u16>> = HashMap::new();
        for topic in gossip.topics() {
            let Ok(shard) = topic.as_str().parse::<Shard>() else { continue };
            for peer in gossip.mesh_peers(topic) {
                meshes.entry(*peer).or_default().push(shard.index);
            }
        }
        let configured: HashSet<PeerId> = wanted.all().map(|(peer, ..)| peer).collect();
        let connected = self.0.iter().map(|(peer, said)| PeerStatus {
            id: peer.to_string(),
            addr: whole(&said.addr, *peer),
            protocols: said.protocols.clone(),
            agent: said.agent.clone(),
            connectivity: PeerConnectivity::Connected,
            is_configured: configured.contains(peer),
            is_dialled: Some(said.is_dialled),
            remote: addr::ip(&said.remote),
            fault: None,
            shards: sorted(shards.remove(peer)),
            mesh: sorted(meshes.remove(peer)),
        });
        let mut all: Vec<PeerStatus> = connected.collect();
        let away = wanted.all().filter(|(peer, ..)| !self.0.contains_key(peer));
        all.extend(away.map(|(peer, addr, fault)| PeerStatus {
            id: peer.to_string(),
            addr: whole(addr, peer),
            protocols: Vec::new(),
            agent: String::new(),
            connectivity: if fault.is_some() {
                PeerConnectivity::CannotConnect
            } else {
                PeerConnectivity::NotConnected
            },
            is_configured: true,
            is_dialled: None,
            remote: None,
            fault: fault.map(str::to_owned),
            shards: Vec::new(),
            mesh: Vec::new(),
        }));
        all.sort_by(|one, other| one.id.cmp(&other.id));
        all
    }
}

/// Returns an address with the peer's id at its end.
fn whole(addr: &Multiaddr, peer: PeerId) -> String {
    match addr.iter().last() {
        Some(Protocol::P2p(_)) => addr.to_string(),
        _ => addr.clone().with(Protocol::P2p(peer)).to_string(),
    }
}

fn sorted(shards: Option<Vec<u16>>) -> Vec<u16> {
    let mut shards = shards.unwrap_or_default();
    shards.sort_unstable();
    shards
}
