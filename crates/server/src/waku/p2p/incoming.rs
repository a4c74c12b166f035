//! Incoming connections and streams of peers. Connections are limited per address and by the
//! operator's lists. Each stream is passed to the handler of its protocol.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use std::collections::HashMap;

use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::{DeniedUpgrade, InboundUpgrade, UpgradeInfo};
use libp2p::core::{Endpoint, Multiaddr};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::handler::{ConnectionEvent, FullyNegotiatedInbound};
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm,
    NetworkBehaviour, Stream, SubstreamProtocol, THandler, THandlerInEvent, THandlerOutEvent,
    ToSwarm,
};
use libp2p::{PeerId, StreamProtocol};

use crate::Clients;
use crate::address::ClientAddress;
use crate::clients::AddressClass;
use crate::permits::{Permit, Permits};

/// Maximum number of streams of one protocol that a peer may have. Further ones are reset.
const STREAMS_PER_PEER_MAX: usize = 16;

/// Begins to serve a stream of a peer.
type StreamServer = Box<dyn Fn(PeerId, Stream, Permit<PeerId>) + Send + Sync>;

/// A protocol, and the handler of its streams once there is one.
struct ServedProtocol {
    name: StreamProtocol,
    permits: Permits<PeerId>,
    serve: OnceLock<StreamServer>,
}

type ProtocolTable = Arc<[ServedProtocol]>;

/// Accepts incoming connections and streams; see the module.
pub(super) struct IncomingStreams {
    table: ProtocolTable,
    addresses: Permits<ClientAddress>,
    per_address_max: usize,
    clients: Clients,
    /// The permits of connections that peers have opened.
    permits: HashMap<ConnectionId, Permit<ClientAddress>>,
}

/// The error if an address has as many connections as it may have.
#[derive(Debug, thiserror::Error)]
#[error("{0} has as many connections as it may")]
struct TooManyConnections(ClientAddress);

/// The error if the operator's lists do not let an address in.
#[derive(Debug, thiserror::Error)]
#[error("{0} is not served")]
struct AddressDenied(IpAddr);

impl IncomingStreams {
    /// Accepts streams of the protocols `names`, which are announced to peers from the start.
    pub(super) fn new(names: &[&'static str], per_address_max: usize, clients: Clients) -> Self {
        let served = names.iter().map(|name| ServedProtocol {
            name: StreamProtocol::new(name),
            permits: Permits::default(),
            serve: OnceLock::new(),
        });
        let (addresses, permits) = (Permits::default(), HashMap::new());
        Self { table: served.collect(), addresses, per_address_max, clients, permits }
    }

    /// Serves a protocol from now on, each stream by a task of its own.
    pub(super) fn serve<F, T>(&self, name: &'static str, answer: F)
    where
        F: Fn(PeerId, Stream) -> T + Send + Sync + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        let serve: StreamServer = Box::new(move |peer, stream, permit| {
            let answering = answer(peer, stream);
            tokio::spawn(async move {
                answering.await;
                drop(permit);
            });
        });
        let served = self.table.iter().find(|served| served.name.as_ref() == name);
        let first = served.is_some_and(|served| served.serve.set(serve).is_ok());
        debug_assert!(first, "{name} is among those of `new`, and served once");
    }
}

impl NetworkBehaviour for IncomingStreams {
    type ConnectionHandler = StreamDispatcher;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        connection: ConnectionId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        let Some(ip) = ip(remote) else { return Ok(()) };
        match self.clients.class(ip) {
            AddressClass::Client => {}
            // Many peers share its address, and libp2p does not pass on the header that would tell
            // them apart. Their number in all is bounded.
            AddressClass::Proxy => return Ok(()),
            AddressClass::Denied => return Err(ConnectionDenied::new(AddressDenied(ip))),
        }
        let address = ClientAddress::from(ip);
        let permit = self.addresses.take(address, self.per_address_max);
        let permit = permit.ok_or_else(|| ConnectionDenied::new(TooManyConnections(address)))?;
        self.permits.insert(connection, permit);
        Ok(())
    }

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(StreamDispatcher { peer, table: Arc::clone(&self.table) })
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(StreamDispatcher { peer, table: Arc::clone(&self.table) })
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            FromSwarm::ConnectionClosed(closed) => {
                self.permits.remove(&closed.connection_id);
            }
            FromSwarm::ListenFailure(failure) => {
                self.permits.remove(&failure.connection_id);
            }
            _ => {}
        }
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

/// The IP address that a multiaddress begins with.
fn ip(of: &Multiaddr) -> Option<IpAddr> {
    match of.iter().next()? {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.into()),
        _ => None,
    }
}

/// Passes the streams of one connection to the handlers of their protocols.
pub(super) struct StreamDispatcher {
    peer: PeerId,
    table: ProtocolTable,
}

impl ConnectionHandler for StreamDispatcher {
    type FromBehaviour = Infallible;
    type ToBehaviour = Infallible;
    type InboundProtocol = ProtocolNames;
    type OutboundProtocol = DeniedUpgrade;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = ();

    fn listen_protocol(&self) -> SubstreamProtocol<ProtocolNames> {
        SubstreamProtocol::new(ProtocolNames(Arc::clone(&self.table)), ())
    }

    fn poll(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<DeniedUpgrade, (), Infallible>> {
        Poll::Pending
    }

    fn on_behaviour_event(&mut self, event: Infallible) {
        match event {}
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<'_, ProtocolNames, DeniedUpgrade>) {
        let ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound {
            protocol: (at, stream),
            ..
        }) = event
        else {
            return;
        };
        let Some(served) = self.table.get(at) else { return };
        // A stream is reset if its protocol has no handler yet or the peer has too many streams.
        let Some(serve) = served.serve.get() else { return };
        if let Some(permit) = served.permits.take(self.peer, STREAMS_PER_PEER_MAX) {
            serve(self.peer, stream, permit);
        }
    }
}

/// The protocols, from which a peer chooses one for its stream.
pub(super) struct ProtocolNames(ProtocolTable);

impl UpgradeInfo for ProtocolNames {
    type Info = StreamProtocol;
    type InfoIter = std::vec::IntoIter<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        let names: Vec<_> = self.0.iter().map(|served| served.name.clone()).collect();
        names.into_iter()
    }
}

impl InboundUpgrade<Stream> for ProtocolNames {
    type Output = (usize, Stream);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, chosen: StreamProtocol) -> Self::Future {
        let at = self.0.iter().position(|served| served.name == chosen);
        // Cannot be missing: a peer chooses among the protocols offered.
        ready(Ok((at.unwrap_or(usize::MAX), stream)))
    }
}
