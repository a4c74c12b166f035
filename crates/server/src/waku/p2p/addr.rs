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

/// Whether an address is reached by TCP, plain or with WebSockets, and not through a relay.
pub(super) fn is_of_tcp(addr: &Multiaddr) -> bool {
    let mut parts = addr.iter();
    parts.any(|part| matches!(part, Protocol::Tcp(_)))
        && !addr.iter().any(|part| matches!(part, Protocol::P2pCircuit))
}

/// Returns the IP address that a multiaddress begins with.
pub(super) fn ip(of: &Multiaddr) -> Option<IpAddr> {
    match of.iter().next()? {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.into()),
        _ => None,
    }
}

/// Whether a host name stands for this machine alone (RFC 6761, section 6.3).
pub(super) fn is_local_name(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}
