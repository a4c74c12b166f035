//! Ranges of IP addresses as operators write them: `10.0.0.0/8`, `::1`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The loopback ranges: the machine itself.
pub const LOOPBACK: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128)),
];

/// The error for text that is not an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no address and no network like 10.0.0.0/8 or fd00::/8")]
pub struct NotARange;

/// Parses a range. A single address is a range of one address. All bits after the prefix must be 0.
pub fn read(text: &str) -> Result<IpNet, NotARange> {
    let (first, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
    let first: IpAddr = first.trim().parse().map_err(|_| NotARange)?;
    let Some(bits) = bits else { return Ok(first.into()) };
    let bits = bits.trim().parse().map_err(|_| NotARange)?;
    let range = IpNet::new(first, bits).map_err(|_| NotARange)?;
    if range == range.trunc() { Ok(range) } else { Err(NotARange) }
}

/// Whether an address is in one of these ranges. An IPv4-mapped IPv6 address is compared as the
/// IPv4 address.
pub(crate) fn contain(ranges: &[IpNet], addr: IpAddr) -> bool {
    let addr = addr.to_canonical();
    ranges.iter().any(|range| range.contains(&addr))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_hold_what_they_should() {
        for (range, addr, holds) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("0.0.0.0/0", "255.255.255.255", true),
            ("0.0.0.0/0", "::1", false),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.6", false),
            ("fd00::/8", "fd12::1", true),
            ("fd00::/8", "fe80::1", false),
            ("::1", "::1", true),
        ] {
            let parsed = read(range).unwrap();
            assert_eq!(contain(&[parsed], addr.parse().unwrap()), holds, "{range} {addr}");
            assert_eq!(read(&parsed.to_string()), Ok(parsed));
        }
        for wrong in
            ["", "10.0.0.0/33", "10.0.0.1/8", "10.0.0/8", "::/129", "localhost", "1.2.3.4/x"]
        {
            assert_eq!(read(wrong), Err(NotARange), "{wrong}");
        }
        assert!(contain(&LOOPBACK, "127.0.0.1".parse().unwrap()));
    }
}
