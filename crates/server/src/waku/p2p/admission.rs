//! Decides which connections with peers are admitted.
//!
//! A stranger is a peer that the configuration does not name. The connections with strangers are
//! bounded in total and per address, and so are unfinished incoming handshakes. Peers that the
//! configuration names are not counted: this node can dial and accept these peers however many
//! strangers are connected.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::net::IpAddr;
use std::task::{Context, Poll};

use libp2p::PeerId;
use libp2p::core::transport::PortUse;
use libp2p::core::{Endpoint, Multiaddr};
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm, dummy,
};

use super::addr::{self, ip};
use crate::Clients;
use crate::address::ClientAddress;
use crate::clients::AddressClass;
use crate::permits::{Permit, Permits, Share, Shares};

/// Maximum number of connections of one peer.
const CONNECTIONS_PER_PEER_MAX: usize = 4;
/// Maximum number of unfinished incoming handshakes.
const HALF_OPEN_MAX: usize = 1_024;
/// Maximum number of unfinished incoming handshakes from one address. The more unfinished
/// handshakes there are in total, the fewer are allowed from one address.
const HALF_OPEN_PER_ADDRESS_MAX: usize = 32;

/// Decides which connections are admitted; see the module.
pub(super) struct PeerAdmission {
    clients: Clients,
    /// Peers that the configuration names, and their configured addresses.
    configured: HashSet<PeerId>,
    configured_at: HashSet<ClientAddress>,
    strangers_max: usize,
    per_address_max: usize,
    half_open: Shares<Option<ClientAddress>>,
    addresses: Permits<ClientAddress>,
    strangers: Permits<()>,
    peers: Permits<PeerId>,
    knocking: HashMap<ConnectionId, KnockPermits>,
    open: HashMap<ConnectionId, PeerPermits>,
}

/// The permits of a connection whose peer is not known yet.
#[derive(Default)]
struct KnockPermits {
    of_address: Option<Permit<ClientAddress>>,
    /// The address of the peer, if strangers at this address already have their maximum number of
    /// connections.
    full: Option<ClientAddress>,
    _half_open: Option<Share<Option<ClientAddress>>>,
}

/// The permits of an open connection.
struct PeerPermits {
    _of_address: Option<Permit<ClientAddress>>,
    _of_peer: Permit<PeerId>,
    /// `None` if the configuration names the peer.
    _stranger: Option<Permit<()>>,
}

/// Why a connection is refused.
#[derive(Debug, thiserror::Error)]
enum NotAdmitted {
    #[error("{0} has as many connections as it may")]
    Address(ClientAddress),
    #[error("too many connections are being set up")]
    HalfOpen,
    #[error("the maximum number of connections is open")]
    Full,
    #[error("the peer has its maximum number of connections")]
    Peer,
    #[error("{0} is not served")]
    Denied(IpAddr),
}

impl PeerAdmission {
    /// Admits `strangers_max` connections with strangers. One address may open `per_address_max` of
    /// these connections.
    pub(super) fn new(
        clients: Clients,
        configured: &[Multiaddr],
        (strangers_max, per_address_max): (usize, usize),
    ) -> Self {
        Self {
            clients,
            configured: configured.iter().filter_map(addr::id).collect(),
            configured_at: configured.iter().filter_map(ip).map(ClientAddress::from).collect(),
            strangers_max,
            per_address_max,
            half_open: Shares::new(HALF_OPEN_MAX, HALF_OPEN_PER_ADDRESS_MAX),
            addresses: Permits::default(),
            strangers: Permits::default(),
            peers: Permits::default(),
            knocking: HashMap::new(),
            open: HashMap::new(),
        }
    }

    /// Decides whether an incoming connection may continue, before its peer is known.
    fn knock(&self, ip: IpAddr) -> Result<KnockPermits, NotAdmitted> {
        let address = match self.clients.class(ip) {
            AddressClass::Client => Some(ClientAddress::from(ip)),
            // Many peers share the proxy's address, and libp2p does not provide the header with the
            // peer's own address. The total number of these connections is bounded.
            AddressClass::Proxy => None,
            AddressClass::Denied => return Err(NotAdmitted::Denied(ip)),
        };
        let half_open = if address.is_some() {
            self.half_open.acquire(address, 1)
        } else {
            self.half_open.acquire_any(address, 1)
        };
        let half_open = half_open.ok_or(NotAdmitted::HalfOpen)?;
        let of_address = address.and_then(|at| self.addresses.acquire(at, self.per_address_max));
        let full = address.filter(|_| of_address.is_none());
        match full {
            Some(at) if !self.configured_at.contains(&at) => Err(NotAdmitted::Address(at)),
            _ => Ok(KnockPermits { of_address, full, _half_open: Some(half_open) }),
        }
    }

    /// Decides whether a connection is admitted, once its peer is known.
    fn enter(&mut self, connection: ConnectionId, peer: PeerId) -> Result<(), NotAdmitted> {
        // Connections that this node has dialled have no entry in `knocking`.
        let knocked = self.knocking.remove(&connection).unwrap_or_default();
        let of_peer =
            self.peers.acquire(peer, CONNECTIONS_PER_PEER_MAX).ok_or(NotAdmitted::Peer)?;
        let stranger = if self.configured.contains(&peer) {
            None
        } else if let Some(address) = knocked.full {
            return Err(NotAdmitted::Address(address));
        } else {
            Some(self.strangers.acquire((), self.strangers_max).ok_or(NotAdmitted::Full)?)
        };
        let permits =
            PeerPermits { _of_address: knocked.of_address, _of_peer: of_peer, _stranger: stranger };
        self.open.insert(connection, permits);
        Ok(())
    }
}

/// Returns the connection that has ended or could not be opened according to this event, and its
/// peer. The peer of a connection that was never established may be unknown.
pub(super) fn ended_connection(event: &FromSwarm<'_>) -> Option<(Option<PeerId>, ConnectionId)> {
    match event {
        FromSwarm::ConnectionClosed(closed) => Some((Some(closed.peer_id), closed.connection_id)),
        FromSwarm::ListenFailure(failure) => Some((failure.peer_id, failure.connection_id)),
        FromSwarm::DialFailure(failure) => Some((failure.peer_id, failure.connection_id)),
        _ => None,
    }
}

impl NetworkBehaviour for PeerAdmission {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        connection: ConnectionId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        let Some(ip) = ip(remote) else { return Ok(()) };
        let knocked = self.knock(ip).map_err(ConnectionDenied::new)?;
        self.knocking.insert(connection, knocked);
        Ok(())
    }

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.enter(connection, peer).map_err(ConnectionDenied::new)?;
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        // Other nodes announce denied addresses as well.
        let denied = ip(address).filter(|ip| self.clients.denies(*ip));
        if let Some(ip) = denied.filter(|_| !self.configured.contains(&peer)) {
            return Err(ConnectionDenied::new(NotAdmitted::Denied(ip)));
        }
        self.enter(connection, peer).map_err(ConnectionDenied::new)?;
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        let Some((_, ended)) = ended_connection(&event) else { return };
        self.knocking.remove(&ended);
        self.open.remove(&ended);
    }

    fn on_connection_handler_event(
        &mut self,
        _: PeerId,
        _: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}
