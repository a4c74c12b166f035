//! The addresses of this node that other nodes and browsers learn.
//!
//! A secure WebSocket is reached by a name of the certificate, because clients refuse the
//! certificate at any other address. So the node announces the names instead of the addresses on
//! which it listens.

use std::net::IpAddr;
use std::sync::Arc;

use hark_archive::clock::Clock;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};

use super::addr::{self, ip};
use super::error::{NetworkError, WebFault};
use super::secure_web::SecureForm;
use crate::tls::{CertificateNames, TlsEndpoint};

/// Maximum number of names of a certificate that are announced for an address.
const NAMES_MAX: usize = 4;

/// The origin of this node's addresses, apart from the addresses on which it listens.
#[derive(Clone)]
pub(super) struct OwnAddresses {
    id: PeerId,
    /// The addresses that the configuration announces, each with the id of this node.
    announced: Vec<Multiaddr>,
    tls: Option<Arc<TlsEndpoint>>,
}

impl OwnAddresses {
    /// Fails if the certificate that an address in `listen` needs is missing, or if an announced
    /// address belongs to another node.
    pub(super) fn new(
        id: PeerId,
        listen: &[Multiaddr],
        announce: Vec<Multiaddr>,
        tls: Option<Arc<TlsEndpoint>>,
    ) -> Result<Self, NetworkError> {
        let secure = listen.iter().find(|addr| SecureForm::of(addr).is_some());
        if let (Some(secure), None) = (secure, &tls) {
            return Err(NetworkError::NoCertificate(secure.clone()));
        }
        let announced = announce.into_iter().map(|addr| addr.with_p2p(id));
        let announced = announced.collect::<Result<_, _>>().map_err(NetworkError::Announce)?;
        Ok(Self { id, announced, tls })
    }

    /// The names of the certificate in force.
    pub(super) fn names(&self) -> Arc<CertificateNames> {
        self.tls.as_ref().map_or_else(Arc::default, |tls| tls.names())
    }

    /// Whether the configuration announces an address.
    pub(super) fn announces(&self, addr: &Multiaddr) -> bool {
        self.announced.contains(addr)
    }

    /// Returns the addresses of the node, each with its id: the addresses of its listeners, and then
    /// the announced addresses. A secure WebSocket has the names of the certificate, unless the
    /// configuration announces a secure WebSocket. Without any name, the listener's address remains
    /// for the operator; see [`Self::is_usable`].
    pub(super) fn of(&self, listeners: impl Iterator<Item = Multiaddr>) -> Vec<Multiaddr> {
        let names = self.names();
        let is_announced = self.announced.iter().any(|addr| SecureForm::of(addr).is_some());
        let (secure, plain): (Vec<_>, Vec<_>) =
            listeners.partition(|addr| SecureForm::of(addr).is_some());
        let mut named: Vec<_> = secure.iter().flat_map(|addr| by_name(addr, &names)).collect();
        if is_announced {
            named.clear();
        } else if named.is_empty() {
            named = secure;
        }
        let listened = plain.into_iter().chain(named);
        let mut all: Vec<Multiaddr> = Vec::new();
        let listened = listened.filter_map(|addr| addr.with_p2p(self.id).ok());
        for addr in listened.chain(self.announced.iter().cloned()) {
            if !all.contains(&addr) {
                all.push(addr);
            }
        }
        all
    }

    /// Whether others can use an address of [`Self::of`]. Clients refuse the certificate at an IP
    /// address that the certificate does not have.
    pub(super) fn is_usable(&self, addr: &Multiaddr) -> bool {
        let is_without_name = SecureForm::of(addr).is_some()
            && !self.announces(addr)
            && ip(addr).is_some_and(|ip| !self.names().ips.contains(&ip));
        !is_without_name
    }

    /// Returns why browsers do not reach this node, which listens on the addresses `listen`; `None`
    /// if browsers have an address.
    pub(super) fn web_fault(&self, listen: &[Multiaddr]) -> Option<WebFault> {
        if self.announced.iter().any(|addr| SecureForm::of(addr).is_some()) {
            return None;
        }
        let secure: Vec<_> = listen.iter().filter(|addr| SecureForm::of(addr).is_some()).collect();
        let Some(tls) = self.tls.as_ref().filter(|_| !secure.is_empty()) else {
            return Some(WebFault::NoAddress);
        };
        let names = tls.names();
        if secure.iter().all(|addr| by_name(addr, &names).is_empty()) {
            let is_loopback = secure.iter().all(|addr| ip(addr).is_some_and(|ip| ip.is_loopback()));
            let has_name = !names.hosts.is_empty() || !names.ips.is_empty();
            return Some(if is_loopback && has_name {
                WebFault::Loopback
            } else {
                WebFault::NoName
            });
        }
        match tls.expires_s() {
            0 => Some(WebFault::NotIssued),
            expires_s if expires_s <= Clock::System.now_s() => Some(WebFault::Expired),
            _ => None,
        }
    }
}

/// Returns the addresses at which clients accept the certificate of a secure WebSocket that listens
/// at `addr`. A name for this machine alone, such as localhost, leads only to loopback addresses, and
/// any other name only to other addresses.
fn by_name(addr: &Multiaddr, names: &CertificateNames) -> Vec<Multiaddr> {
    let Some(at) = ip(addr) else { return Vec::new() };
    let leads_here = |host: &&String| addr::is_local_name(host) == at.is_loopback();
    let to_name = |host: &String| {
        let name = match at {
            IpAddr::V4(_) => Protocol::Dns4(host.as_str().into()),
            IpAddr::V6(_) => Protocol::Dns6(host.as_str().into()),
        };
        std::iter::once(name.acquire()).chain(addr.iter().skip(1).map(Protocol::acquire)).collect()
    };
    let hosts = names.hosts.iter().filter(leads_here).take(NAMES_MAX).map(to_name);
    hosts.chain(names.ips.contains(&at).then(|| addr.clone())).collect()
}

#[cfg(test)]
mod tests {
    use libp2p::identity::Keypair;

    use super::*;

    fn parsed(texts: &[&str]) -> Vec<Multiaddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_secure_address_has_the_names_that_lead_to_the_listener() {
        let names = CertificateNames {
            hosts: ["node.example", "localhost", "web.example"].map(str::to_owned).to_vec(),
            ips: vec!["192.0.2.7".parse().unwrap()],
        };
        for (listener, expected) in [
            (
                "/ip4/192.0.2.7/tcp/8000/wss",
                &[
                    "/dns4/node.example/tcp/8000/wss",
                    "/dns4/web.example/tcp/8000/wss",
                    "/ip4/192.0.2.7/tcp/8000/wss",
                ][..],
            ),
            ("/ip4/127.0.0.1/tcp/8000/tls/ws", &["/dns4/localhost/tcp/8000/tls/ws"]),
            (
                "/ip6/2001:db8::1/tcp/1/wss",
                &["/dns6/node.example/tcp/1/wss", "/dns6/web.example/tcp/1/wss"],
            ),
        ] {
            assert_eq!(by_name(&listener.parse().unwrap(), &names), parsed(expected), "{listener}");
        }
        assert!(
            by_name(&parsed(&["/ip4/192.0.2.7/tcp/1/wss"])[0], &CertificateNames::default())
                .is_empty()
        );
    }

    #[test]
    fn a_node_without_a_certificate_listens_on_no_secure_web_socket() {
        let id = Keypair::generate_ed25519().public().to_peer_id();
        let listen = parsed(&["/ip4/127.0.0.1/tcp/1/wss"]);
        let refused = OwnAddresses::new(id, &listen, Vec::new(), None).err().unwrap();
        assert!(refused.to_string().contains("there is no certificate"), "{refused}");
        // A proxy has the certificate.
        let announce = parsed(&["/dns4/node.example/tcp/443/wss"]);
        let listen = parsed(&["/ip4/127.0.0.1/tcp/1/ws"]);
        let own = OwnAddresses::new(id, &listen, announce, None).unwrap();
        let all: Vec<_> = own.of(listen.iter().cloned()).iter().map(ToString::to_string).collect();
        assert_eq!(
            all,
            [
                format!("/ip4/127.0.0.1/tcp/1/ws/p2p/{id}"),
                format!("/dns4/node.example/tcp/443/wss/p2p/{id}")
            ]
        );
        assert_eq!(own.web_fault(&listen), None);
        let own = OwnAddresses::new(id, &listen, Vec::new(), None).unwrap();
        assert_eq!(own.web_fault(&listen), Some(WebFault::NoAddress));
    }
}
