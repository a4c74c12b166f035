//! Evidence on whether other nodes can reach this node: the addresses at which peers see this node,
//! and the connections that others have opened.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};

use super::book::AddressNetwork;
use crate::public_address::is_public;
use crate::waku::p2p::addr::ip;

/// Minimum number of networks of addresses ([`AddressNetwork`]) in which peers must report the same
/// address of this node.
const NETWORKS_MIN: usize = 2;

/// The evidence from peers about the addresses of this node.
#[derive(Debug, Default)]
pub(in crate::waku) struct Sightings {
    /// The address at which each connected peer sees this node, and the network of the peer.
    observed: HashMap<PeerId, (IpAddr, Option<AddressNetwork>)>,
    /// Number of connections that others have opened, and of those from public addresses.
    pub(in crate::waku) dialled_in: u64,
    pub(in crate::waku) dialled_in_public: u64,
}

impl Sightings {
    /// Notes that a peer sees this node at an address.
    pub(in crate::waku::p2p) fn observe(
        &mut self,
        peer: PeerId,
        observed: &Multiaddr,
        at: &Multiaddr,
    ) {
        if let Some(observed) = ip(observed) {
            self.observed.insert(peer, (observed, AddressNetwork::of(at)));
        }
    }

    /// Notes that another node has opened a connection from this address.
    pub(in crate::waku::p2p) fn connected_from(&mut self, remote: &Multiaddr) {
        self.dialled_in += 1;
        self.dialled_in_public += u64::from(ip(remote).is_some_and(is_public));
    }

    /// Notes that a peer has disconnected.
    pub(in crate::waku::p2p) fn disconnected(&mut self, peer: &PeerId) {
        self.observed.remove(peer);
    }

    /// Returns the addresses at which connected peers see this node, each with the number of peers
    /// that report it, in descending order of this number.
    pub(in crate::waku) fn observed(&self) -> Vec<(IpAddr, usize)> {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for (ip, _) in self.observed.values() {
            *counts.entry(*ip).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts
    }

    /// Returns the public address of this node, if peers in several networks report the same
    /// address and a node at a public address has connected. So an operator whose peers are all in
    /// one network cannot make this node announce a false address.
    fn confirmed(&self) -> Option<IpAddr> {
        let confirms = |at: &IpAddr| {
            let networks =
                self.observed.values().filter(|(ip, network)| ip == at && network.is_some());
            networks.map(|(_, network)| network).collect::<HashSet<_>>().len() >= NETWORKS_MIN
        };
        let public = self.observed().into_iter().map(|(ip, _)| ip).filter(|ip| is_public(*ip));
        let mut confirmed = public.filter(confirms);
        confirmed.next().filter(|_| self.dialled_in_public > 0)
    }

    /// Returns the confirmed address of this node with the port on which this node listens.
    pub(in crate::waku::p2p) fn confirmed_address(
        &self,
        listen: &[Multiaddr],
    ) -> Option<Multiaddr> {
        let confirmed = self.confirmed()?;
        let port = listen.iter().find_map(|addr| {
            let mut parts = addr.iter();
            match (parts.next()?, parts.next()?, parts.next()) {
                (Protocol::Ip4(ip), Protocol::Tcp(port), None) if confirmed.is_ipv4() => {
                    (ip.is_unspecified() || ip.is_private()).then_some(port)
                }
                (Protocol::Ip6(ip), Protocol::Tcp(port), None) if confirmed.is_ipv6() => {
                    ip.is_unspecified().then_some(port)
                }
                _ => None,
            }
        });
        Some(Multiaddr::from(confirmed).with(Protocol::Tcp(port.filter(|port| *port > 0)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_confirmed_by_peers_in_several_networks_and_a_connection() {
        let addr = |text: &str| -> Multiaddr { text.parse().unwrap() };
        let mut seen = Sightings::default();
        let listen = [addr("/ip4/0.0.0.0/tcp/60000"), addr("/ip4/0.0.0.0/tcp/8000/ws")];
        let own = addr("/ip4/9.9.9.9/tcp/51234");
        let peers: Vec<_> = (0..3).map(|_| PeerId::random()).collect();
        seen.observe(peers[0], &own, &addr("/ip4/8.8.8.1/tcp/1"));
        seen.observe(peers[1], &own, &addr("/ip4/8.8.8.2/tcp/1"));
        seen.connected_from(&addr("/ip4/10.0.0.1/tcp/1"));
        seen.connected_from(&addr("/ip4/7.7.7.7/tcp/1"));
        assert_eq!((seen.dialled_in, seen.dialled_in_public), (2, 1));
        assert_eq!(seen.confirmed_address(&listen), None, "both peers are in one network");
        seen.observe(peers[2], &own, &addr("/ip4/8.8.9.1/tcp/1"));
        assert_eq!(seen.observed(), [([9, 9, 9, 9].into(), 3)]);
        assert_eq!(seen.confirmed_address(&listen), Some(addr("/ip4/9.9.9.9/tcp/60000")));
        assert_eq!(seen.confirmed_address(&listen[1..]), None);
        seen.disconnected(&peers[2]);
        assert_eq!(seen.confirmed_address(&listen), None);
    }
}
