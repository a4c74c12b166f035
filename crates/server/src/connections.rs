//! Bounds the connections of a door, in all and per address. Connections above the bounds are
//! refused before their clients have sent anything.

use std::net::IpAddr;

use axum::http::{HeaderMap, StatusCode};

use crate::address::ClientAddress;
use crate::clients::Clients;
use crate::last_answer::send_last_answer;
use crate::metrics::ConnectionRefusal;
use crate::permits::{Permit, Permits};
use crate::stream::ClientStream;

/// Number of extra connections for programs on this machine. All local programs share the loopback
/// address and its bound of connections; above this bound, they still reach `/healthz` and
/// `/metrics` through the extra connections. An extra connection never becomes a WebSocket.
///
/// The same number of further connections is for operators alone: see
/// [`Connections::enter_for_operators`].
const NEAR_BEYOND: usize = 8;

/// Maximum number of ended connections that the server still reads, so that their clients receive
/// the reason for the end.
const LINGERING_MAX: usize = 256;

/// The connections of a door.
#[derive(Debug)]
pub(crate) struct Connections {
    clients: Clients,
    /// Whether the number of connections per address is unbounded.
    unlimited: bool,
    all: Permits<()>,
    of: Permits<ClientAddress>,
    for_operators: Permits<()>,
    lingering: Permits<()>,
}

/// The permits that a connection holds until it ends.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    _among_all: Permit<()>,
    /// `None` if the peer is a trusted proxy, or if connections per address are not bounded.
    of_address: Option<Permit<ClientAddress>>,
    /// Whether the connection is one of the extra connections ([`NEAR_BEYOND`]).
    pub(crate) is_beyond: bool,
    /// Why the connection is for operators alone: `/healthz` and `/metrics` are answered, and all
    /// other requests are refused for this reason. `None` for a connection of a client.
    pub(crate) refused: Option<ConnectionRefusal>,
}

impl ConnectionPermit {
    /// The address that the connection counts towards. `None` if it counts towards no address.
    pub(crate) fn address(&self) -> Option<ClientAddress> {
        self.of_address.as_ref().map(Permit::of)
    }
}

impl Connections {
    pub(crate) fn new(clients: Clients, unlimited: bool) -> Self {
        Self {
            clients,
            unlimited,
            all: Permits::default(),
            of: Permits::default(),
            for_operators: Permits::default(),
            lingering: Permits::default(),
        }
    }

    /// Admits a connection, or returns the reason for refusal. At most `max` connections are open
    /// in total, and at most `of_address_max` from one address.
    pub(crate) fn enter(
        &self,
        peer: IpAddr,
        max: usize,
        of_address_max: usize,
    ) -> Result<ConnectionPermit, ConnectionRefusal> {
        let within = self.enter_within(peer, max, of_address_max, false);
        if peer.to_canonical().is_loopback()
            && within.as_ref().is_err_and(|why| *why == ConnectionRefusal::Address)
        {
            return self.enter_within(peer, max, of_address_max + NEAR_BEYOND, true);
        }
        within
    }

    /// Admits a connection from this machine that was refused for the reason `why`. The connection
    /// serves only `/healthz` and `/metrics`, so health can be checked while the door is full, or
    /// while the address lists exclude this machine. Returns `why` for other peers, and if the door
    /// already has a few such connections.
    pub(crate) fn enter_for_operators(
        &self,
        peer: IpAddr,
        why: ConnectionRefusal,
    ) -> Result<ConnectionPermit, ConnectionRefusal> {
        // At the bound per address, `enter` has already tried the extra connections.
        if why == ConnectionRefusal::Address || !peer.to_canonical().is_loopback() {
            return Err(why);
        }
        let among_operators = self.for_operators.acquire((), NEAR_BEYOND).ok_or(why)?;
        Ok(ConnectionPermit {
            _among_all: among_operators,
            of_address: None,
            is_beyond: true,
            refused: Some(why),
        })
    }

    fn enter_within(
        &self,
        peer: IpAddr,
        max: usize,
        of_address_max: usize,
        is_beyond: bool,
    ) -> Result<ConnectionPermit, ConnectionRefusal> {
        let among_all = self.all.acquire((), max).ok_or(ConnectionRefusal::Full)?;
        let is_proxy = self.clients.is_proxy(peer);
        let of_address = if is_proxy { None } else { self.enter_as(peer, of_address_max)? };
        Ok(ConnectionPermit { _among_all: among_all, of_address, is_beyond, refused: None })
    }

    /// Acquires a permit for a connection of a client's address. `None` if connections per address
    /// are not bounded.
    pub(crate) fn enter_as(
        &self,
        client: IpAddr,
        of_address_max: usize,
    ) -> Result<Option<Permit<ClientAddress>>, ConnectionRefusal> {
        if !self.clients.serve(client) {
            return Err(ConnectionRefusal::Denied);
        }
        if self.unlimited {
            return Ok(None);
        }
        self.of.acquire(client.into(), of_address_max).map(Some).ok_or(ConnectionRefusal::Address)
    }

    /// Whether the peer is a trusted proxy.
    pub(crate) fn is_proxy(&self, peer: IpAddr) -> bool {
        self.clients.is_proxy(peer)
    }

    /// The client that a trusted proxy names.
    pub(crate) fn named(&self, headers: &HeaderMap) -> Option<IpAddr> {
        self.clients.named(headers)
    }

    /// Acquires a permit to read from an ended connection until its client has received the reason
    /// for the end.
    pub(crate) fn acquire_reading_permit(&self) -> Option<Permit<()>> {
        self.lingering.acquire((), LINGERING_MAX)
    }

    /// Decides which clients may connect, and lists the open connections.
    pub(crate) fn clients(&self) -> &Clients {
        &self.clients
    }
}

/// The HTTP status and the text with which a connection is refused.
pub(crate) fn refusal_response(why: ConnectionRefusal) -> (StatusCode, &'static str) {
    match why {
        ConnectionRefusal::Full => (
            StatusCode::SERVICE_UNAVAILABLE,
            "rate-limited: the server has as many connections as it takes; try again later\n",
        ),
        ConnectionRefusal::Address => (
            StatusCode::TOO_MANY_REQUESTS,
            "rate-limited: your address has as many connections as it may; close some\n",
        ),
        ConnectionRefusal::Denied => {
            (StatusCode::FORBIDDEN, "blocked: this server does not serve your address\n")
        }
    }
}

/// Sends the reason, without reading the request, and closes the connection.
pub(crate) async fn send_refusal(stream: ClientStream, why: ConnectionRefusal) {
    let (status, reason) = refusal_response(why);
    send_last_answer(stream, status, "Retry-After: 10\r\n", reason).await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::moderation::Moderation;
    use crate::{AddressLists, Proxies, Settings, SettingsHandle};

    #[test]
    fn operators_on_this_machine_have_a_few_connections_of_their_own() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let connections = Connections::new(Clients::default(), false);
        let enter = |from: &str, why| connections.enter_for_operators(ip(from), why);
        let full = ConnectionRefusal::Full;
        assert_eq!(enter("192.0.2.1", full).unwrap_err(), full);
        let address = ConnectionRefusal::Address;
        assert_eq!(enter("127.0.0.1", address).unwrap_err(), address);
        let mut held: Vec<_> = (1..=NEAR_BEYOND)
            .map(|last| enter(&format!("127.0.0.{last}"), full).unwrap())
            .collect();
        assert!(held.iter().all(|permit| permit.is_beyond && permit.refused == Some(full)));
        let denied = ConnectionRefusal::Denied;
        assert_eq!(enter("::1", denied).unwrap_err(), denied, "the bound holds for all reasons");
        held.pop();
        assert_eq!(enter("::1", denied).unwrap().refused, Some(denied));
        assert!(connections.enter(ip("127.0.0.1"), 1, 1).is_ok(), "clients are counted apart");
    }

    #[test]
    fn connections_are_bounded_in_all_and_of_each_address_but_for_proxies() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let shared = Arc::default();
        let proxies =
            Proxies { trusted: vec!["10.0.0.0/8".parse().unwrap()], ..Proxies::default() };
        let clients = Clients::new(Arc::clone(&shared), proxies, Moderation::default());
        let connections = Connections::new(clients.clone(), false);
        let enter = |from: &str| connections.enter(ip(from), 5, 2);
        let one: Vec<_> = (0..2).map(|_| enter("192.0.2.1").unwrap()).collect();
        assert_eq!(enter("192.0.2.1").unwrap_err(), ConnectionRefusal::Address);
        let proxied: Vec<_> = (0..3).map(|_| enter("10.0.0.1").unwrap()).collect();
        assert_eq!(enter("192.0.2.2").unwrap_err(), ConnectionRefusal::Full);
        drop(proxied);
        // Clients of proxies are counted as if they had connected directly.
        assert_eq!(
            connections.enter_as(ip("192.0.2.1"), 2).unwrap_err(),
            ConnectionRefusal::Address
        );
        let near: Vec<_> = (0..3).map(|_| enter("127.0.0.1").unwrap().is_beyond).collect();
        assert_eq!(near, [false; 3]);
        let near: Vec<_> = (0..3).map(|_| enter("127.0.0.1").unwrap()).collect();
        assert_eq!(
            near.iter().map(|entered| entered.is_beyond).collect::<Vec<_>>(),
            [false, false, true]
        );
        drop(near);
        drop(one);
        assert!(connections.enter_as(ip("192.0.2.1"), 2).is_ok());
        let addresses =
            AddressLists { deny: vec!["192.0.2.0/24".parse().unwrap()], ..AddressLists::default() };
        let reload = SettingsHandle { shared, unlimited: false };
        reload.set(Settings { addresses, ..Settings::default() }).unwrap();
        assert_eq!(enter("192.0.2.1").unwrap_err(), ConnectionRefusal::Denied);
        assert!(enter("10.0.0.1").is_ok());
        // Without bounds, the lists still apply.
        let connections = Connections::new(clients, true);
        assert_eq!(
            connections.enter(ip("192.0.2.1"), 9, 0).unwrap_err(),
            ConnectionRefusal::Denied
        );
        assert!(connections.enter(ip("192.0.3.1"), 9, 0).is_ok());
    }
}
