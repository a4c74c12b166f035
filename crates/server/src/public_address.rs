//! Addresses that are reachable from the whole internet. A client may make this server connect only to
//! such addresses, so that no client reaches other servers of this machine or of its networks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address is reachable from the whole internet.
pub(crate) fn is_public(ip: IpAddr) -> bool {
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

    /// Both ends of each block, and the addresses beside them, which are public.
    #[test]
    fn blocks_that_are_not_public_end_where_they_should() {
        for (block, is_alone) in [
            ("0.0.0.0/8", false),
            ("10.0.0.0/8", true),
            ("100.64.0.0/10", true),
            ("127.0.0.0/8", true),
            ("169.254.0.0/16", true),
            ("172.16.0.0/12", true),
            ("192.0.0.0/24", true),
            ("192.0.2.0/24", true),
            ("192.88.99.0/24", true),
            ("192.168.0.0/16", true),
            ("198.18.0.0/15", true),
            ("198.51.100.0/24", true),
            ("203.0.113.0/24", true),
            ("224.0.0.0/3", false),
        ] {
            let block: ipnet::Ipv4Net = block.parse().unwrap();
            let (first, last) = (block.network().to_bits(), block.broadcast().to_bits());
            for bits in [first, first + 1, first.midpoint(last), last] {
                let four = Ipv4Addr::from_bits(bits);
                let [a, b, c, d] = four.octets().map(u16::from);
                let (high, low) = (a << 8 | b, c << 8 | d);
                for six in [
                    four.to_ipv6_mapped(),
                    four.to_ipv6_compatible(),
                    Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                    Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, high, low),
                    Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
                ] {
                    assert!(!is_public(six.into()), "{six}");
                }
                assert!(!is_public(four.into()), "{four}");
            }
            for bits in
                [first.wrapping_sub(1), last.wrapping_add(1)].into_iter().filter(|_| is_alone)
            {
                let four = Ipv4Addr::from_bits(bits);
                assert!(
                    is_public(four.into()) && is_public(four.to_ipv6_mapped().into()),
                    "{four}"
                );
            }
        }
    }
}
