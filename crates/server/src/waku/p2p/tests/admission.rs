//! Tests of the admission of connections.

use std::net::IpAddr;

use libp2p::swarm::{ConnectionId, NetworkBehaviour as _};

use super::*;
use crate::waku::p2p::admission::PeerAdmission;

/// The admission of connections, without a network.
struct Gatekeeper {
    admission: PeerAdmission,
    connections: usize,
}

impl Gatekeeper {
    /// Admits 40 strangers. One address may open 20 connections.
    fn new(configured: &[Multiaddr]) -> Self {
        Self::of(Clients::default(), configured)
    }

    fn of(clients: Clients, configured: &[Multiaddr]) -> Self {
        let admission = PeerAdmission::new(clients, configured, (40, 20));
        Self { admission, connections: 0 }
    }

    /// Whether a connection that the node has dialled is admitted.
    fn dials(&mut self, at: &Multiaddr, peer: PeerId) -> bool {
        self.connections += 1;
        let id = ConnectionId::new_unchecked(self.connections);
        let (role, port) = (libp2p::core::Endpoint::Dialer, libp2p::core::transport::PortUse::New);
        self.admission.handle_established_outbound_connection(id, peer, at, role, port).is_ok()
    }

    fn knock(&mut self, ip: [u8; 4]) -> Option<ConnectionId> {
        self.connections += 1;
        let id = ConnectionId::new_unchecked(self.connections);
        let from = Multiaddr::from(IpAddr::from(ip));
        self.admission.handle_pending_inbound_connection(id, &from, &from).ok().map(|()| id)
    }

    fn enter(&mut self, id: ConnectionId, peer: PeerId) -> bool {
        let at = Multiaddr::empty();
        self.admission.handle_established_inbound_connection(id, peer, &at, &at).is_ok()
    }
}

#[test]
fn silent_sockets_of_some_addresses_keep_nobody_out() {
    let mut gate = Gatekeeper::new(&[]);
    let mut silent = 0;
    for address in 1..=3 {
        silent += (0..300).filter(|_| gate.knock([192, 0, 2, address]).is_some()).count();
    }
    // An address may have 20 open connections.
    assert_eq!(silent, 60);
    for address in 1..=20 {
        let id = gate.knock([198, 51, 100, address]).unwrap();
        assert!(gate.enter(id, PeerId::random()), "{address}");
    }
}

#[test]
fn peers_of_the_configuration_get_in_however_many_strangers_there_are() {
    let configured = PeerId::random();
    let at = format!("/ip4/192.0.2.1/tcp/60000/p2p/{configured}").parse().unwrap();
    let mut gate = Gatekeeper::new(&[at]);
    let mut enters = |ip, peer| gate.knock(ip).is_some_and(|id| gate.enter(id, peer));
    for address in 1..=2 {
        let strangers = (0..30).filter(|_| enters([192, 0, 2, address], PeerId::random())).count();
        assert_eq!(strangers, 20);
    }
    assert!(!enters([192, 0, 2, 3], PeerId::random()), "there are 40");
    // Address 192.0.2.1 has its maximum number of strangers, but the configured peer still enters.
    assert!(enters([192, 0, 2, 1], configured));
    assert!(!enters([192, 0, 2, 1], PeerId::random()));
    assert!(enters([192, 0, 2, 3], configured));
    // Connections that this node dials.
    let mut dials = |peer| gate.dials(&Multiaddr::empty(), peer);
    assert!(dials(configured) && !dials(PeerId::random()));
    // A peer may have four connections.
    assert!(dials(configured) && !dials(configured));
}

#[test]
fn a_denied_address_is_not_dialled_unless_the_configuration_names_its_peer() {
    let configured = PeerId::random();
    let at = |ip: [u8; 4]| Multiaddr::from(IpAddr::from(ip));
    let named = at([192, 0, 2, 1]).with_p2p(configured).unwrap();
    let mut settings = crate::Settings::default();
    settings.addresses.deny = vec!["192.0.2.0/24".parse().unwrap()];
    let settings = Arc::new(arc_swap::ArcSwap::from_pointee(settings));
    let proxies = crate::address::Proxies::default();
    let clients = Clients::new(settings, proxies, Moderation::default());
    let mut gate = Gatekeeper::of(clients, &[named]);
    assert!(!gate.dials(&at([192, 0, 2, 1]), PeerId::random()));
    assert!(gate.dials(&at([192, 0, 2, 1]), configured));
    assert!(gate.dials(&at([192, 0, 3, 1]), PeerId::random()));
}
