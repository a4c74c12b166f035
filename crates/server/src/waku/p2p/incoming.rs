//! Incoming streams of peers. Each stream is passed to the handler of its protocol, together with
//! the source that its peer's requests are charged to.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hash::{Hash as _, Hasher as _};
use std::net::Ipv4Addr;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::{DeniedUpgrade, InboundUpgrade, UpgradeInfo};
use libp2p::core::{Endpoint, Multiaddr};
use libp2p::swarm::handler::{ConnectionEvent, FullyNegotiatedInbound};
use libp2p::swarm::{
    CloseConnection, ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId,
    FromSwarm, NetworkBehaviour, Stream, SubstreamProtocol, THandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm,
};
use libp2p::{PeerId, StreamProtocol};
use tokio::sync::watch;

use super::addr::ip;
use super::admission::ended_connection;
use crate::Clients;
use crate::permits::{Permit, Permits};
use crate::rate::RateSource;
use crate::roster::{ConnectionForm, KeyName, OpenConnection, RosterEntry, while_serving};

/// Maximum number of streams of one protocol that a peer may have. Further streams are reset.
const STREAMS_PER_PEER_MAX: usize = 16;

/// The peer of a stream.
#[derive(Clone, Debug)]
pub(super) struct StreamPeer {
    pub(super) id: PeerId,
    /// The source that the stream is charged to: the peer's address. Anyone can create peer ids at
    /// no cost, so the peer id is the source only if a proxy hides the address.
    pub(super) source: RateSource,
    /// A channel that closes together with the connection.
    connection: watch::Receiver<()>,
    /// The connection in the list of open connections.
    pub(super) listed: Arc<OpenConnection>,
}

impl StreamPeer {
    /// Waits until the connection has ended.
    pub(super) async fn disconnected(&mut self) {
        while self.connection.changed().await.is_ok() {}
    }
}

/// A function that starts to serve a stream of a peer.
type StreamServer = Box<dyn Fn(StreamPeer, Stream, Permit<PeerId>) + Send + Sync>;

/// A protocol, and the handler of its streams. The handler may be set later.
struct ServedProtocol {
    name: StreamProtocol,
    permits: Permits<PeerId>,
    serve: OnceLock<StreamServer>,
}

type ProtocolTable = Arc<[ServedProtocol]>;

/// Accepts incoming streams; see the module.
pub(super) struct IncomingStreams {
    table: ProtocolTable,
    clients: Clients,
    /// The open connections, and the network's name in the server's list of open connections.
    open: BTreeMap<(PeerId, ConnectionId), Arc<OpenConnection>>,
    network: &'static str,
    /// The connections that the operator closes.
    closing: Vec<(PeerId, ConnectionId)>,
}

impl IncomingStreams {
    /// Accepts streams of the protocols `names`, which are announced to peers from the start.
    /// `network` is the network's name in the list of open connections.
    pub(super) fn new(names: &[&'static str], clients: Clients, network: &'static str) -> Self {
        let served = names.iter().map(|name| ServedProtocol {
            name: StreamProtocol::new(name),
            permits: Permits::default(),
            serve: OnceLock::new(),
        });
        let (table, open, closing) = (served.collect(), BTreeMap::new(), Vec::new());
        Self { table, clients, open, network, closing }
    }

    /// Returns the entry of a connection in the list of open connections.
    pub(super) fn connection(
        &self,
        peer: PeerId,
        id: ConnectionId,
    ) -> Option<&Arc<OpenConnection>> {
        self.open.get(&(peer, id))
    }

    /// Returns the entry of one of a peer's connections in the list of open connections.
    pub(super) fn connection_of(&self, peer: PeerId) -> Option<&Arc<OpenConnection>> {
        let mut from = self.open.range((peer, ConnectionId::new_unchecked(0))..);
        from.next().filter(|((of, _), _)| *of == peer).map(|(_, listed)| listed)
    }

    fn dispatcher(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        remote: &Multiaddr,
    ) -> StreamDispatcher {
        let source = if let Some(ip) = ip(remote).filter(|ip| !self.clients.is_proxy(*ip)) {
            RateSource::Address(ip.into())
        } else {
            let mut hash = std::hash::DefaultHasher::new();
            peer.hash(&mut hash);
            RateSource::Connection(hash.finish())
        };
        let alive = watch::Sender::new(());
        let ip = ip(remote).unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        let entry = self.clients.list((self.network, ConnectionForm::Peer), ip);
        let text: Box<str> = peer.to_string().into();
        entry.add_key(KeyName { shown: text.clone(), digits: text });
        let listed = Arc::clone(&entry);
        self.open.insert((peer, id), Arc::clone(&listed));
        let peer = StreamPeer { id: peer, source, connection: alive.subscribe(), listed };
        let table = Arc::clone(&self.table);
        StreamDispatcher { peer, table, entry, is_closing: false, _alive: alive }
    }

    /// Serves a protocol from now on. Each stream has a task of its own.
    pub(super) fn serve<F, T>(&self, name: &'static str, answer: F)
    where
        F: Fn(StreamPeer, Stream) -> T + Send + Sync + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        let serve: StreamServer = Box::new(move |peer, stream, permit| {
            let listed = Arc::clone(&peer.listed);
            let answering = while_serving(&listed, answer(peer, stream));
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

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.dispatcher(id, peer, remote))
    }

    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        remote: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.dispatcher(id, peer, remote))
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        if let Some((Some(peer), ended)) = ended_connection(&event) {
            self.open.remove(&(peer, ended));
        }
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        id: ConnectionId,
        KickedByOperator: THandlerOutEvent<Self>,
    ) {
        self.closing.push((peer, id));
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        match self.closing.pop() {
            Some((peer_id, id)) => {
                let connection = CloseConnection::One(id);
                Poll::Ready(ToSwarm::CloseConnection { peer_id, connection })
            }
            None => Poll::Pending,
        }
    }
}

/// The operator closes the connection of this event.
#[derive(Debug)]
pub(super) struct KickedByOperator;

/// Passes the streams of one connection to the handlers of their protocols.
pub(super) struct StreamDispatcher {
    peer: StreamPeer,
    table: ProtocolTable,
    /// The entry in the list of open connections.
    entry: RosterEntry,
    is_closing: bool,
    _alive: watch::Sender<()>,
}

impl ConnectionHandler for StreamDispatcher {
    type FromBehaviour = Infallible;
    type ToBehaviour = KickedByOperator;
    type InboundProtocol = ProtocolNames;
    type OutboundProtocol = DeniedUpgrade;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = ();

    fn listen_protocol(&self) -> SubstreamProtocol<ProtocolNames> {
        SubstreamProtocol::new(ProtocolNames(Arc::clone(&self.table)), ())
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<DeniedUpgrade, (), KickedByOperator>> {
        if !self.is_closing && self.entry.poll_kicked(cx).is_ready() {
            self.is_closing = true;
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(KickedByOperator));
        }
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
        if let Some(permit) = served.permits.acquire(self.peer.id, STREAMS_PER_PEER_MAX) {
            serve(self.peer.clone(), stream, permit);
        }
    }
}

/// The protocols that a peer may choose for its stream.
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
