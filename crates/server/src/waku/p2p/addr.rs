//! The parts of a peer's multiaddress.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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

/// Whether an address is reachable from the whole internet.
pub(super) fn is_public(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

/// Excludes IANA's special-purpose blocks, except blocks that are globally reachable.
fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let special = ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_documentation()
        // "This network", multicast, reserved and broadcast addresses.
        || a == 0
        || a >= 224
        // Carrier-grade NAT, benchmarks, and IETF protocol assignments.
        || (a == 100 && b & 0xc0 == 64)
        || (a == 198 && b & 0xfe == 18)
        || (a == 192 && b == 0 && c == 0)
        // 6to4 relays.
        || (a == 192 && b == 88 && c == 99);
    !special
}

/// All public unicast addresses are in 2000::/3. Special addresses in that range are excluded.
fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [a, b, ..] = ip.segments();
    let global = a & 0xe000 == 0x2000;
    // Protocol assignments (such as Teredo), documentation, and 6to4.
    let special =
        (a == 0x2001 && (b < 0x200 || b == 0xdb8)) || (a == 0x3fff && b < 0x1000) || a == 0x2002;
    global && !special
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_internet_are_public() {
        for ip in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.254",
            "2606:4700::1111",
            "2a00:1450::1",
            "2001:4860::8888",
            "::ffff:8.8.8.8",
        ] {
            assert!(is_public(ip.parse().unwrap()), "{ip}");
        }
        for ip in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(ip.parse().unwrap()), "{ip}");
        }
    }
}
