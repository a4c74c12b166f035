//! Finds the client of a connection, even behind a trusted proxy.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use axum::http::HeaderMap;
use ipnet::IpNet;

use crate::ranges;

/// An address that counts as one client: an IPv4 address, or the first 64 bits of an IPv6 address.
/// One household or machine is assigned a whole /64 network of IPv6 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientAddress(IpAddr);

impl From<IpAddr> for ClientAddress {
    fn from(ip: IpAddr) -> Self {
        Self(match ip.to_canonical() {
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64)).into(),
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(ip) => ip.fmt(f),
            IpAddr::V6(ip) => write!(f, "{ip}/64"),
        }
    }
}

/// The trusted proxies in front of Hark, and the header in which they name the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxies {
    /// Addresses of the proxies.
    pub trusted: Vec<IpNet>,
    /// The header in which the proxies name the client: `x-forwarded-for`, `x-real-ip` or
    /// `forwarded`. Only one header is trusted, because a proxy that writes one of these headers
    /// forwards the other two unchanged from the client.
    pub header: String,
}

impl Default for Proxies {
    /// Trusts no proxy. Some programs that forward connections, such as Tor or a TCP load balancer,
    /// do not write the header. If such a program were trusted, a client could write the header
    /// itself and claim any address.
    fn default() -> Self {
        Self { trusted: Vec::new(), header: Self::HEADERS[0].into() }
    }
}

impl Proxies {
    /// The supported headers.
    pub const HEADERS: [&str; 3] = ["x-forwarded-for", "x-real-ip", "forwarded"];

    /// Whether `ip` is the address of a trusted proxy.
    pub fn trust(&self, ip: IpAddr) -> bool {
        ranges::contain(&self.trusted, ip)
    }

    /// Returns the client behind a trusted proxy: the last hop in the header that is not a trusted
    /// proxy. Earlier hops may be forged. `None` if the header names no address.
    pub(crate) fn client(&self, headers: &HeaderMap) -> Option<IpAddr> {
        // A proxy may add a hop behind the client's own text, which can have any bytes.
        let lists = headers.get_all(&self.header).iter();
        let lists: Vec<_> = lists.map(|list| String::from_utf8_lossy(list.as_bytes())).collect();
        let mut client = None;
        for hop in lists.iter().rev().flat_map(|list| list.rsplit(',')) {
            let hop = if self.header == "forwarded" { forwarded_for(hop) } else { Some(hop) };
            let Some(ip) = hop.and_then(hop_ip) else { break };
            client = Some(ip);
            if !self.trust(ip) {
                break;
            }
        }
        client
    }
}

/// Returns the `for` parameter of one element of a Forwarded header (RFC 7239).
fn forwarded_for(element: &str) -> Option<&str> {
    element.split(';').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then(|| value.trim().trim_matches('"'))
    })
}

/// Parses an address, with or without a port.
fn hop_ip(hop: &str) -> Option<IpAddr> {
    let hop = hop.trim();
    let ip = if let Some(bracketed) = hop.strip_prefix('[') {
        bracketed.split_once(']').map(|(ip, _)| ip)?
    } else if hop.matches(':').count() == 1 {
        hop.split_once(':').map(|(ip, _)| ip)?
    } else {
        hop
    };
    ip.parse().ok().map(|ip: IpAddr| ip.to_canonical())
}

/// Lists of allowed and denied client addresses. An address on both lists is denied.
#[derive(Clone, Debug, Default)]
pub struct AddressLists {
    /// The addresses whose clients are served. An empty list serves nobody, and `None` serves all.
    pub allow: Option<Vec<IpNet>>,
    /// Clients at these addresses are not served.
    pub deny: Vec<IpNet>,
}

impl AddressLists {
    /// Returns a warning for the operator if the list of allowed addresses is empty.
    pub fn warn_if_none_allowed(&self) -> Option<&'static str> {
        self.allow.as_ref().is_some_and(Vec::is_empty).then_some(
            "[policy] allow_addresses has no entry, so no client is served; [\"*\"] would serve all",
        )
    }

    /// Whether a client at `ip` is served.
    pub(crate) fn serve(&self, ip: IpAddr) -> bool {
        let on = |list: &[IpNet]| ranges::contain(list, ip);
        !self.denies(ip) && self.allow.as_deref().is_none_or(on)
    }

    /// Whether the list of denied addresses has `ip`.
    pub(crate) fn denies(&self, ip: IpAddr) -> bool {
        ranges::contain(&self.deny, ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_ipv6_client_is_its_first_64_bits() {
        let address = |text| ClientAddress::from(ip(text));
        assert_eq!(address("2001:db8:0:1::5"), address("2001:db8:0:1:ffff::9"));
        assert_ne!(address("2001:db8:0:1::5"), address("2001:db8:0:2::5"));
        assert_ne!(address("192.0.2.1"), address("192.0.2.2"));
        assert_eq!(address("::ffff:192.0.2.1"), address("192.0.2.1"));
        assert_eq!(address("2001:db8::5").to_string(), "2001:db8::/64");
    }

    #[test]
    fn the_client_is_the_last_hop_that_is_no_proxy_of_ours() {
        let proxies = |header: &str| Proxies {
            trusted: ["127.0.0.1", "10.0.0.0/8"].map(|range| ranges::read(range).unwrap()).into(),
            header: header.into(),
        };
        let named = |header: &str, lists: &[&str]| {
            let mut headers = HeaderMap::new();
            for list in lists {
                let name: axum::http::HeaderName = header.parse().unwrap();
                // The character ÿ stands for a byte that is no text.
                let bytes: Vec<u8> = list.chars().map(|c| u8::try_from(c).unwrap()).collect();
                headers.append(name, axum::http::HeaderValue::from_bytes(&bytes).unwrap());
            }
            proxies(header).client(&headers).map(|ip| ip.to_string())
        };
        for (header, lists, client) in [
            ("x-forwarded-for", &["192.0.2.1"][..], Some("192.0.2.1")),
            ("x-forwarded-for", &["6.6.6.6, 192.0.2.1, 10.1.1.1"], Some("192.0.2.1")),
            ("x-forwarded-for", &["6.6.6.6", "192.0.2.1:4711,10.1.1.1"], Some("192.0.2.1")),
            ("x-forwarded-for", &["10.9.9.9, 10.1.1.1"], Some("10.9.9.9")),
            ("x-forwarded-for", &["192.0.2.1, unknown"], None),
            ("x-forwarded-for", &["\u{ff}, 192.0.2.1"], Some("192.0.2.1")),
            ("x-forwarded-for", &["\u{ff}", "192.0.2.1, 10.1.1.1"], Some("192.0.2.1")),
            ("x-forwarded-for", &["junk, 10.9.9.9, 10.1.1.1"], Some("10.9.9.9")),
            ("x-forwarded-for", &[], None),
            ("x-real-ip", &["2001:db8::1"], Some("2001:db8::1")),
            (
                "forwarded",
                &["for=6.6.6.6, For=\"[2001:db8::1]:80\";proto=https"],
                Some("2001:db8::1"),
            ),
            ("forwarded", &["for=192.0.2.1;by=10.0.0.1, for=10.0.0.3"], Some("192.0.2.1")),
            ("forwarded", &["for=_hidden"], None),
            ("forwarded", &["for=\u{ff}, for=10.0.0.3"], Some("10.0.0.3")),
            ("forwarded", &["proto=https"], None),
        ] {
            assert_eq!(named(header, lists).as_deref(), client, "{header}: {lists:?}");
        }
    }
}
