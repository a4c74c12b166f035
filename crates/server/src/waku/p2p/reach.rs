//! Decides which addresses this node dials for a client of the REST API: public addresses, and the
//! configured addresses of peers. Clients must not be able to find open ports of this machine or of
//! its private networks.

use std::net::IpAddr;

use hark_networks::waku::history::MessageRequest;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use tokio::sync::Semaphore;

use super::handle::NetworkHandle;
use super::{addr, ask};
use crate::public_address::is_public;
use crate::waku::peer_status::NoPeerAnswer;

/// Permits for concurrent look-ups of names.
static LOOK_UPS: Semaphore = Semaphore::const_new(16);

impl NetworkHandle {
    /// Sends a request to the store of a peer, on behalf of a client of the REST API.
    pub(in crate::waku) async fn ask_for_client(
        &self,
        addr: &str,
        any: bool,
        request: &MessageRequest,
    ) -> Result<Vec<u8>, NoPeerAnswer> {
        let peer = self.reach(addr, any).await?;
        let asked = ask::ask(&self.opener, peer, request, self.message_bytes_max).await;
        asked.map_err(|fault| NoPeerAnswer::Broken(fault.to_string()))
    }

    /// Connects to a peer. Unless `any` is set, the address must be configured or public, or the
    /// peer must be connected already.
    pub(in crate::waku) async fn reach(
        &self,
        addr: &str,
        any: bool,
    ) -> Result<PeerId, NoPeerAnswer> {
        let addr: Multiaddr =
            addr.parse().map_err(|error| NoPeerAnswer::Address(format!("{error}")))?;
        let without = || NoPeerAnswer::Address("it must end with /p2p/ and the peer's id".into());
        let peer = addr::id(&addr).ok_or_else(without)?;
        let addrs =
            if any || self.configured.contains(&addr) { vec![addr] } else { public(&addr).await };
        let may_dial = !addrs.is_empty();
        match self.connect_to(peer, addrs).await {
            Ok(()) => Ok(peer),
            Err(_) if !may_dial => Err(NoPeerAnswer::Forbidden),
            Err(error) => {
                let error = error.to_string();
                tracing::debug!(%peer, error, "the peer of a client's request was not reached");
                Err(NoPeerAnswer::Unreached)
            }
        }
    }
}

/// Returns the public addresses to dial for `addr`. Resolves a name to IP addresses for dialling,
/// because a second look-up of the name might return other addresses.
pub(super) async fn public(addr: &Multiaddr) -> Vec<Multiaddr> {
    let mut parts = addr.iter();
    let first = parts.next();
    let rest: Vec<Protocol<'_>> = parts.collect();
    let (Some(first), true) = (first, is_plain(&rest)) else { return Vec::new() };
    let found = match &first {
        Protocol::Ip4(ip) => vec![IpAddr::V4(*ip)],
        Protocol::Ip6(ip) => vec![IpAddr::V6(*ip)],
        // The certificate is for the name, so the name itself would have to be dialled, and would
        // be looked up again.
        Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_) if is_tls(&rest) => Vec::new(),
        Protocol::Dns(name) => look_up(name, |_| true).await,
        Protocol::Dns4(name) => look_up(name, IpAddr::is_ipv4).await,
        Protocol::Dns6(name) => look_up(name, IpAddr::is_ipv6).await,
        _ => Vec::new(),
    };
    let public = found.into_iter().filter(|ip| is_public(*ip));
    public.map(|ip| std::iter::once(ip.into()).chain(rest.iter().cloned()).collect()).collect()
}

/// Whether the parts after an IP address are a TCP port, optionally a WebSocket, and a peer.
fn is_plain(rest: &[Protocol<'_>]) -> bool {
    let [Protocol::Tcp(_), between @ .., Protocol::P2p(_)] = rest else { return false };
    let of_web =
        |part: &Protocol<'_>| matches!(part, Protocol::Ws(_) | Protocol::Wss(_) | Protocol::Tls);
    between.iter().all(of_web)
}

fn is_tls(rest: &[Protocol<'_>]) -> bool {
    rest.iter().any(|part| matches!(part, Protocol::Wss(_) | Protocol::Tls))
}

/// Looks up the addresses of a name. Returns an empty list if the look-up fails.
async fn look_up(name: &str, wanted: fn(&IpAddr) -> bool) -> Vec<IpAddr> {
    let Ok(_turn) = LOOK_UPS.acquire().await else { return Vec::new() };
    match tokio::net::lookup_host((name, 0)).await {
        Ok(found) => found.map(|socket| socket.ip()).filter(wanted).collect(),
        Err(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_is_dialled_as_it_was_checked() {
        let id = libp2p::PeerId::random();
        let reached = async |text: &str| {
            let addr: Multiaddr = format!("{text}/p2p/{id}").parse().unwrap();
            public(&addr).await.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        for whole in ["/ip4/1.1.1.1/tcp/60000", "/ip6/2606:4700::1111/tcp/8000/ws"] {
            assert_eq!(reached(whole).await, [format!("{whole}/p2p/{id}")]);
        }
        for refused in [
            "/ip4/127.0.0.1/tcp/1",
            "/ip6/::1/tcp/1/ws",
            "/ip6/::ffff:127.0.0.1/tcp/1",
            // Names of this machine. With TLS, the name itself would have to be dialled.
            "/dns/localhost/tcp/1",
            "/dns4/localhost/tcp/1/ws",
            "/dns4/localhost/tcp/1/tls/ws",
            "/dnsaddr/localhost",
            "/ip4/1.1.1.1/udp/1",
            "/ip4/1.1.1.1/tcp/1/ip4/127.0.0.1/tcp/1",
            "/memory/1",
            "/unix/a",
        ] {
            assert!(reached(refused).await.is_empty(), "{refused}");
        }
        let through = format!("/ip4/1.1.1.1/tcp/1/p2p/{id}/p2p-circuit");
        assert!(reached(&through).await.is_empty());
    }
}
