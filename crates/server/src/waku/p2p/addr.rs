//! The parts of a peer's multiaddress.

use std::net::IpAddr;

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};

/// Returns the peer id that an address ends with.
pub(in crate::waku) fn id(addr: &Multiaddr) -> Option<PeerId> {
    match addr.iter().last() {
        Some(Protocol::P2p(peer)) => Some(peer),
        _ => None,
    }
}

/// Returns the IP address that a multiaddress begins with.
pub(super) fn ip(of: &Multiaddr) -> Option<IpAddr> {
    match of.iter().next()? {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.into()),
        _ => None,
    }
}
