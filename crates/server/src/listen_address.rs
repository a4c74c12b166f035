//! The configured addresses on which a door listens.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::str::FromStr;

/// An address to listen on, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// An IP address and a port. Port 0 stands for any free port.
    Ip(SocketAddr),
    /// The name of this machine and a port. The name is resolved once, at the start.
    Host(String, u16),
    /// The path of a Unix socket, for proxies on this machine.
    Unix(PathBuf),
}

/// The prefix of a Unix socket's address.
const UNIX: &str = "unix:";

/// The error for a text that is not an address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be {}", ListenAddress::EXAMPLES)]
pub struct ListenAddressFault;

impl ListenAddress {
    /// Maximum number of addresses of a door. A takeover hands over the sockets of all doors in one
    /// message, which has room for 32 descriptors.
    pub const OF_DOOR_MAX: usize = 8;

    /// Examples of addresses, for messages.
    pub const EXAMPLES: &str = "an address and port like 127.0.0.1:7777, [::]:7777 or \
         relay.example:7777, or a socket like unix:/run/hark/relay.sock";

    /// The IP address. `None` for a name and for a Unix socket.
    pub(crate) fn ip(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(addr) => Some(*addr),
            Self::Host(..) | Self::Unix(_) => None,
        }
    }

    /// Returns the URL at which clients reach the address.
    pub(crate) fn url(&self, scheme: &str) -> String {
        match self {
            Self::Unix(_) => self.to_string(),
            _ => format!("{scheme}://{self}"),
        }
    }

    /// Returns the current IP addresses, without duplicates. A Unix socket has no IP address. The
    /// call may block, because the resolver may wait for a DNS server.
    pub fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let (host, port) = match self {
            Self::Ip(addr) => return Ok(vec![*addr]),
            Self::Host(host, port) => (host.as_str(), *port),
            Self::Unix(_) => return Ok(Vec::new()),
        };
        let mut found = Vec::new();
        for addr in (host, port).to_socket_addrs()? {
            if !found.contains(&addr) {
                found.push(addr);
            }
        }
        if found.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        }
        Ok(found)
    }
}

impl FromStr for ListenAddress {
    type Err = ListenAddressFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix(UNIX) {
            // A relative path would depend on the directory in which the server starts.
            let is_file = path.starts_with('/') && !path.ends_with('/') && !path.contains('\0');
            return is_file.then(|| Self::Unix(path.into())).ok_or(ListenAddressFault);
        }
        if let Ok(addr) = text.parse() {
            return Ok(Self::Ip(addr));
        }
        let (host, port) = text.rsplit_once(':').ok_or(ListenAddressFault)?;
        let port = port.parse().map_err(|_| ListenAddressFault)?;
        match host {
            // Not resolved: a machine without IPv6 often resolves the name to `::1` as well, and
            // the server could not listen on that address.
            "localhost" => Ok(Self::Ip(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))),
            host if is_name(host) => Ok(Self::Host(host.to_owned(), port)),
            _ => Err(ListenAddressFault),
        }
    }
}

/// Prints the address as it is configured.
impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(addr) => addr.fmt(f),
            Self::Host(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// Whether a text has the form of a host name. The last label of a name has a letter, so that an
/// incomplete IPv4 address is not a name.
fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    text.len() <= 253
        && text.split('.').all(is_label)
        && last.bytes().any(|byte| !byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_and_printed() {
        for (text, url) in [
            ("127.0.0.1:7777", "ws://127.0.0.1:7777"),
            ("[::]:0", "ws://[::]:0"),
            ("[::1]:80", "ws://[::1]:80"),
            ("relay.example:7777", "ws://relay.example:7777"),
            ("hark_1:1", "ws://hark_1:1"),
            ("unix:/run/hark/relay.sock", "unix:/run/hark/relay.sock"),
        ] {
            let read: ListenAddress = text.parse().unwrap();
            assert_eq!((read.to_string(), read.url("ws")), (text.into(), url.into()));
            let is_name = matches!(read, ListenAddress::Host(..));
            assert_eq!(is_name, text.starts_with(['r', 'h']), "{text}");
        }
        let local: ListenAddress = "localhost:1".parse().unwrap();
        assert_eq!(local, ListenAddress::Ip(SocketAddr::from((Ipv4Addr::LOCALHOST, 1))));
        for text in [
            "",
            "7777",
            ":7777",
            "127.0.0.1",
            "127.0.0:80",
            "256.0.0.1:80",
            "[::1]",
            "::1:80",
            "relay.example",
            "relay.example:",
            "relay.example:65536",
            "relay..example:80",
            "-relay:80",
            "ws://relay.example:80",
            "relay example:80",
            "unix:",
            "unix:relay.sock",
            "unix:/run/",
            "/run/hark/relay.sock",
        ] {
            assert_eq!(text.parse::<ListenAddress>(), Err(ListenAddressFault), "{text}");
        }
    }

    #[test]
    fn a_name_is_resolved_and_an_address_is_itself() {
        let addr: SocketAddr = "192.0.2.1:5".parse().unwrap();
        assert_eq!(ListenAddress::Ip(addr).resolve().unwrap(), [addr]);
        let found = ListenAddress::Host("localhost".to_owned(), 5).resolve().unwrap();
        assert!(found.iter().all(|addr| addr.ip().is_loopback() && addr.port() == 5), "{found:?}");
        let of_nobody = ListenAddress::Host("no-such-host.invalid".to_owned(), 5);
        assert!(of_nobody.resolve().is_err());
    }
}
