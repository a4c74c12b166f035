//! Closes connections whose gossip has ended. After five streams in one direction, gossipsub stops
//! using a connection, silently and for both directions. Without this module, both sides would
//! believe that the connection still works.

use std::ops::{Deref, DerefMut};
use std::task::{Context, Poll};

use libp2p::PeerId;
use libp2p::core::transport::PortUse;
use libp2p::core::{Endpoint, Multiaddr};
use libp2p::gossipsub;
use libp2p::swarm::handler::ConnectionEvent;
use libp2p::swarm::{
    CloseConnection, ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId,
    FromSwarm, NetworkBehaviour, SubstreamProtocol, THandler, THandlerInEvent, THandlerOutEvent,
    ToSwarm,
};

use super::gossip::Gossip;

type GossipHandler = <Gossip as NetworkBehaviour>::ConnectionHandler;

/// Number of streams in one direction after which gossipsub stops using a connection.
const STREAMS_MAX: usize = 5;

/// The gossip protocol, extended to close a connection once gossip has ended on the connection.
pub(super) struct WatchedGossip {
    gossip: Gossip,
    /// The connections to close after their peers have been reported.
    closing: Vec<(PeerId, ConnectionId)>,
    ended: Vec<PeerId>,
}

/// An event of [`WatchedGossip`].
#[derive(Debug)]
pub(super) enum GossipEvent {
    Gossip(gossipsub::Event),
    /// Gossip has ended on a connection of this peer. The connection is being closed.
    Ended(PeerId),
}

/// An event of a connection's handler.
#[derive(Debug)]
pub(super) enum WatchedEvent<E> {
    Gossip(E),
    Ended,
}

impl WatchedGossip {
    pub(super) fn new(gossip: Gossip) -> Self {
        Self { gossip, closing: Vec::new(), ended: Vec::new() }
    }
}

impl Deref for WatchedGossip {
    type Target = Gossip;

    fn deref(&self) -> &Gossip {
        &self.gossip
    }
}

impl DerefMut for WatchedGossip {
    fn deref_mut(&mut self) -> &mut Gossip {
        &mut self.gossip
    }
}

impl NetworkBehaviour for WatchedGossip {
    type ConnectionHandler = WatchedHandler;
    type ToSwarm = GossipEvent;

    fn handle_pending_inbound_connection(
        &mut self,
        connection: ConnectionId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        self.gossip.handle_pending_inbound_connection(connection, local, remote)
    }

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let handler =
            self.gossip.handle_established_inbound_connection(connection, peer, local, remote)?;
        Ok(WatchedHandler::new(handler))
    }

    fn handle_pending_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: Option<PeerId>,
        addrs: &[Multiaddr],
        role: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        self.gossip.handle_pending_outbound_connection(connection, peer, addrs, role)
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        addr: &Multiaddr,
        role: Endpoint,
        port: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let handler = self
            .gossip
            .handle_established_outbound_connection(connection, peer, addr, role, port)?;
        Ok(WatchedHandler::new(handler))
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        self.gossip.on_swarm_event(event);
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        match event {
            WatchedEvent::Gossip(event) => {
                self.gossip.on_connection_handler_event(peer, connection, event);
            }
            WatchedEvent::Ended => {
                self.closing.push((peer, connection));
                self.ended.push(peer);
            }
        }
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        if let Some(peer) = self.ended.pop() {
            return Poll::Ready(ToSwarm::GenerateEvent(GossipEvent::Ended(peer)));
        }
        if let Some((peer_id, connection)) = self.closing.pop() {
            let connection = CloseConnection::One(connection);
            return Poll::Ready(ToSwarm::CloseConnection { peer_id, connection });
        }
        self.gossip.poll(cx).map(|event| event.map_out(GossipEvent::Gossip))
    }
}

/// The handler of a connection. It counts the connection's streams.
pub(super) struct WatchedHandler {
    gossip: GossipHandler,
    inbound: usize,
    outbound: usize,
    is_told: bool,
}

impl WatchedHandler {
    fn new(gossip: GossipHandler) -> Self {
        Self { gossip, inbound: 0, outbound: 0, is_told: false }
    }
}

impl ConnectionHandler for WatchedHandler {
    type FromBehaviour = <GossipHandler as ConnectionHandler>::FromBehaviour;
    type ToBehaviour = WatchedEvent<<GossipHandler as ConnectionHandler>::ToBehaviour>;
    type InboundProtocol = <GossipHandler as ConnectionHandler>::InboundProtocol;
    type OutboundProtocol = <GossipHandler as ConnectionHandler>::OutboundProtocol;
    type InboundOpenInfo = <GossipHandler as ConnectionHandler>::InboundOpenInfo;
    type OutboundOpenInfo = <GossipHandler as ConnectionHandler>::OutboundOpenInfo;

    fn listen_protocol(&self) -> SubstreamProtocol<Self::InboundProtocol, Self::InboundOpenInfo> {
        self.gossip.listen_protocol()
    }

    fn connection_keep_alive(&self) -> bool {
        self.gossip.connection_keep_alive()
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<
        ConnectionHandlerEvent<Self::OutboundProtocol, Self::OutboundOpenInfo, Self::ToBehaviour>,
    > {
        if !self.is_told && self.inbound.max(self.outbound) >= STREAMS_MAX {
            self.is_told = true;
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(WatchedEvent::Ended));
        }
        self.gossip.poll(cx).map(|event| event.map_custom(WatchedEvent::Gossip))
    }

    fn on_behaviour_event(&mut self, event: Self::FromBehaviour) {
        self.gossip.on_behaviour_event(event);
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<
            '_,
            Self::InboundProtocol,
            Self::OutboundProtocol,
            Self::InboundOpenInfo,
            Self::OutboundOpenInfo,
        >,
    ) {
        self.inbound += usize::from(event.is_inbound());
        self.outbound += usize::from(event.is_outbound());
        self.gossip.on_connection_event(event);
    }
}
