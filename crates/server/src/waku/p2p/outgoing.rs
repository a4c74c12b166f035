//! Streams that this node opens to connected peers.
//!
//! A stream is opened on the newest connection of its peer: the network of a phone changes, and the
//! phone connects again, while its earlier connection is dead and has not ended. A task that keeps
//! a stream learns from [`NewestConnection::replaced`] that the peer has a newer connection.
//!
//! The handler of a connection holds all requests for its streams, so a request ends with an error
//! as soon as the connection ends.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::{DeniedUpgrade, ReadyUpgrade};
use libp2p::core::{Endpoint, Multiaddr};
use libp2p::swarm::handler::{ConnectionEvent, DialUpgradeError, FullyNegotiatedOutbound};
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm,
    NetworkBehaviour, Stream, StreamUpgradeError, SubstreamProtocol, THandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm,
};
use libp2p::{PeerId, StreamProtocol};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use super::admission::ended_connection;

/// Maximum time to open a stream, with the wait for its turn.
const OPENING_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum number of streams of a connection that are being opened at the same time.
const OPENING_MAX: usize = 8;
/// Maximum number of requests that wait in a connection. The callers of further requests wait.
const WAITING_MAX: usize = 8;

/// Why a stream is not open. The texts are for operators.
#[derive(Debug, thiserror::Error)]
pub(in crate::waku) enum OpenFault {
    /// The peer has no connection.
    #[error("the peer is not connected")]
    NotConnected,
    /// The connection has ended.
    #[error("the connection has ended")]
    Ended,
    /// The peer does not have the protocol.
    #[error("the peer does not support {0}")]
    Unsupported(StreamProtocol),
    /// The stream was not open in time.
    #[error("the peer did not open a stream within {} s", OPENING_TIME_MAX.as_secs())]
    Time,
    /// The stream broke while its protocol was negotiated.
    #[error("the peer did not open a stream: {0}")]
    Broken(io::Error),
}

/// A stream to open, and where to send the result.
pub(super) struct OpenRequest {
    protocol: StreamProtocol,
    reply: oneshot::Sender<Result<Stream, OpenFault>>,
}

/// The connections of a peer, in the order in which they were established.
#[derive(Default)]
struct PeerConnections {
    open: Vec<(ConnectionId, mpsc::Sender<OpenRequest>)>,
    /// A channel that closes when the peer has a newer connection, or no connection.
    newest: watch::Sender<()>,
}

/// The connections of all peers.
type ConnectionTable = Arc<Mutex<HashMap<PeerId, PeerConnections>>>;

/// The connection that was the newest of its peer when a stream was opened.
pub(super) struct NewestConnection(watch::Receiver<()>);

impl NewestConnection {
    /// Waits until the peer has a newer connection, or no connection.
    pub(super) async fn replaced(&mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

/// Opens streams to connected peers; see the module.
#[derive(Clone)]
pub(super) struct StreamOpener(ConnectionTable);

impl StreamOpener {
    /// Opens a stream of a protocol on the newest connection of a peer.
    pub(super) async fn open(
        &self,
        peer: PeerId,
        protocol: &'static str,
    ) -> Result<Stream, OpenFault> {
        self.open_watched(peer, protocol).await.map(|(stream, _)| stream)
    }

    /// Opens a stream like [`Self::open`], for a task that keeps the stream. Also returns what tells
    /// the task that the peer has a newer connection.
    pub(super) async fn open_watched(
        &self,
        peer: PeerId,
        protocol: &'static str,
    ) -> Result<(Stream, NewestConnection), OpenFault> {
        let (requests, newest) = self.newest(peer).ok_or(OpenFault::NotConnected)?;
        let (reply, replied) = oneshot::channel();
        let request = OpenRequest { protocol: StreamProtocol::new(protocol), reply };
        let opening = async {
            requests.send(request).await.map_err(|_| OpenFault::Ended)?;
            replied.await.map_err(|_| OpenFault::Ended)?
        };
        let opened = tokio::time::timeout(OPENING_TIME_MAX, opening).await;
        opened.unwrap_or(Err(OpenFault::Time)).map(|stream| (stream, newest))
    }

    /// Returns the number of connected peers.
    #[cfg(test)]
    pub(super) fn peers(&self) -> usize {
        self.0.lock().len()
    }

    /// Returns the newest connection of a peer that has not ended.
    fn newest(&self, peer: PeerId) -> Option<(mpsc::Sender<OpenRequest>, NewestConnection)> {
        let connections = self.0.lock();
        let connections = connections.get(&peer)?;
        let (_, requests) = connections.open.iter().rfind(|(_, requests)| !requests.is_closed())?;
        Some((requests.clone(), NewestConnection(connections.newest.subscribe())))
    }
}

/// The connections on which [`StreamOpener`] opens streams.
#[derive(Default)]
pub(super) struct OutgoingStreams(ConnectionTable);

impl OutgoingStreams {
    pub(super) fn opener(&self) -> StreamOpener {
        StreamOpener(Arc::clone(&self.0))
    }

    /// Adds a new connection. Returns its handler.
    fn add(&mut self, id: ConnectionId, peer: PeerId) -> OpenHandler {
        let (sender, requests) = mpsc::channel(WAITING_MAX);
        let mut connections = self.0.lock();
        let connections = connections.entry(peer).or_default();
        connections.open.push((id, sender));
        connections.newest = watch::Sender::default();
        OpenHandler { requests, opening: 0 }
    }

    /// Removes a connection that has ended.
    fn remove(&mut self, id: ConnectionId, peer: PeerId) {
        let mut connections = self.0.lock();
        let Some(of_peer) = connections.get_mut(&peer) else { return };
        of_peer.open.retain(|(open, _)| *open != id);
        if of_peer.open.is_empty() {
            connections.remove(&peer);
        }
    }
}

impl NetworkBehaviour for OutgoingStreams {
    type ConnectionHandler = OpenHandler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.add(id, peer))
    }

    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.add(id, peer))
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        if let Some((Some(peer), ended)) = ended_connection(&event) {
            self.remove(ended, peer);
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

/// Opens the streams of one connection.
pub(super) struct OpenHandler {
    requests: mpsc::Receiver<OpenRequest>,
    /// Number of streams that are being opened.
    opening: usize,
}

impl ConnectionHandler for OpenHandler {
    type FromBehaviour = Infallible;
    type ToBehaviour = Infallible;
    type InboundProtocol = DeniedUpgrade;
    type OutboundProtocol = ReadyUpgrade<StreamProtocol>;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = OpenRequest;

    fn listen_protocol(&self) -> SubstreamProtocol<DeniedUpgrade> {
        SubstreamProtocol::new(DeniedUpgrade, ())
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Self::OutboundProtocol, OpenRequest, Infallible>> {
        // The connection polls its handler again after each stream that is open or has failed.
        while self.opening < OPENING_MAX {
            let Some(request) = ready!(self.requests.poll_recv(cx)) else { return Poll::Pending };
            if request.reply.is_closed() {
                continue;
            }
            self.opening += 1;
            let upgrade = ReadyUpgrade::new(request.protocol.clone());
            let protocol = SubstreamProtocol::new(upgrade, request).with_timeout(OPENING_TIME_MAX);
            return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
        }
        Poll::Pending
    }

    fn on_behaviour_event(&mut self, event: Infallible) {
        match event {}
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<'_, DeniedUpgrade, Self::OutboundProtocol, (), OpenRequest>,
    ) {
        let (request, opened) = match event {
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound {
                protocol: stream,
                info,
            }) => (info, Ok(stream)),
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, error }) => {
                let fault = match error {
                    StreamUpgradeError::Timeout => OpenFault::Time,
                    StreamUpgradeError::NegotiationFailed => {
                        OpenFault::Unsupported(info.protocol.clone())
                    }
                    StreamUpgradeError::Io(error) => OpenFault::Broken(error),
                    StreamUpgradeError::Apply(never) => match never {},
                };
                (info, Err(fault))
            }
            _ => return,
        };
        self.opening -= 1;
        // The caller may no longer wait. Its stream is then reset.
        let _ = request.reply.send(opened);
    }
}
