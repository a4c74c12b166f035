//! Ranges of IP addresses as operators write them: `10.0.0.0/8`, `::1`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// All addresses that begin with the same bits. An IPv4 address that came in over IPv6 counts as what
/// it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: IpAddr,
    bits: u32,
}

/// The machine itself.
pub const LOOPBACK: [Network; 2] = [
    Network { first: IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 0)), bits: 8 },
    Network { first: IpAddr::V6(std::net::Ipv6Addr::LOCALHOST), bits: 128 },
];

impl Network {
    /// Whether `addr` is in it.
    pub fn contains(&self, addr: IpAddr) -> bool {
        match (self.first, addr.to_canonical()) {
            (IpAddr::V4(first), IpAddr::V4(addr)) => {
                let differ = first.to_bits() ^ addr.to_bits();
                differ.leading_zeros() >= self.bits
            }
            (IpAddr::V6(first), IpAddr::V6(addr)) => {
                let differ = first.to_bits() ^ addr.to_bits();
                differ.leading_zeros() >= self.bits
            }
            _ => false,
        }
    }
}

/// Text that names no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no address and no network like 10.0.0.0/8 or fd00::/8")]
pub struct NotANetwork;

impl FromStr for Network {
    type Err = NotANetwork;

    /// An address stands for itself alone; bits behind the length must be 0.
    fn from_str(text: &str) -> Result<Self, NotANetwork> {
        let (addr, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let first: IpAddr = addr.trim().parse().map_err(|_| NotANetwork)?;
        let (width, ends) = match first {
            IpAddr::V4(v4) => (32, v4.to_bits().trailing_zeros()),
            IpAddr::V6(v6) => (128, v6.to_bits().trailing_zeros()),
        };
        let bits = bits.map_or(Ok(width), |bits| bits.trim().parse().map_err(|_| NotANetwork))?;
        if bits > width || ends < width - bits {
            return Err(NotANetwork);
        }
        Ok(Self { first, bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_and_hold_what_they_should() {
        for (network, addr, holds) in [
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
            let parsed: Network = network.parse().unwrap();
            assert_eq!(parsed.contains(addr.parse().unwrap()), holds, "{network} {addr}");
            assert_eq!(parsed.to_string().parse(), Ok(parsed));
        }
        for wrong in
            ["", "10.0.0.0/33", "10.0.0.1/8", "10.0.0/8", "::/129", "localhost", "1.2.3.4/x"]
        {
            assert_eq!(wrong.parse::<Network>(), Err(NotANetwork), "{wrong}");
        }
        assert!(LOOPBACK.iter().any(|network| network.contains("127.0.0.1".parse().unwrap())));
    }
}
