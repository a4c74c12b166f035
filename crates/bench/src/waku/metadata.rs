//! Answers a node's metadata requests (RFC 66/WAKU2-METADATA): a publisher serves the same shard.
//! nwaku disconnects peers that do not announce shards.

use std::convert::Infallible;
use std::io;
use std::option;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use hark_codec::waku::Shard;
use hark_codec::waku::protobuf::{put_bytes, put_number, put_varint};
use libp2p::PeerId;
use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::{DeniedUpgrade, InboundUpgrade, UpgradeInfo};
use libp2p::core::{Endpoint, Multiaddr};
use libp2p::swarm::handler::ConnectionEvent;
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm,
    NetworkBehaviour, SubstreamProtocol, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};

/// The name of the protocol.
const METADATA: &str = "/vac/waku/metadata/1.0.0";

/// Answers the requests of all nodes.
pub(super) struct PublisherMetadata(MetadataAnswer);

impl PublisherMetadata {
    /// Without a shard, requests are refused.
    pub(super) fn new(shard: Option<Shard>) -> Self {
        Self(MetadataAnswer(shard.map(|shard| metadata(shard).into())))
    }
}

impl NetworkBehaviour for PublisherMetadata {
    type ConnectionHandler = MetadataHandler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(MetadataHandler(self.0.clone()))
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(MetadataHandler(self.0.clone()))
    }

    fn on_swarm_event(&mut self, _: FromSwarm<'_>) {}

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

/// Answers the requests of one connection.
pub(super) struct MetadataHandler(MetadataAnswer);

impl ConnectionHandler for MetadataHandler {
    type FromBehaviour = Infallible;
    type ToBehaviour = Infallible;
    type InboundProtocol = MetadataAnswer;
    type OutboundProtocol = DeniedUpgrade;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = ();

    fn listen_protocol(&self) -> SubstreamProtocol<MetadataAnswer> {
        SubstreamProtocol::new(self.0.clone(), ())
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

    // If the node closes the connection, the next publication reports the reason.
    fn on_connection_event(&mut self, _: ConnectionEvent<'_, MetadataAnswer, DeniedUpgrade>) {}
}

/// The answer to all requests, with a length prefix.
#[derive(Clone)]
pub(super) struct MetadataAnswer(Option<Arc<[u8]>>);

impl UpgradeInfo for MetadataAnswer {
    type Info = &'static str;
    type InfoIter = option::IntoIter<&'static str>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.is_some().then_some(METADATA).into_iter()
    }
}

impl<C: AsyncRead + AsyncWrite + Send + Unpin + 'static> InboundUpgrade<C> for MetadataAnswer {
    type Output = ();
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<()>>;

    fn upgrade_inbound(self, mut stream: C, _: &'static str) -> Self::Future {
        Box::pin(async move {
            if stream.read(&mut [0; 1_024]).await? > 0 {
                stream.write_all(self.0.as_deref().unwrap_or_default()).await?;
            }
            stream.close().await
        })
    }
}

/// Encodes the metadata: the cluster, and the shard in the packed field 3, which nwaku reads.
fn metadata(shard: Shard) -> Vec<u8> {
    let (mut out, mut said, mut packed) = (Vec::new(), Vec::new(), Vec::new());
    put_number(&mut said, 1, shard.cluster.into());
    put_varint(&mut packed, shard.index.into());
    put_bytes(&mut said, 3, &packed);
    put_varint(&mut out, said.len() as u64);
    out.extend(said);
    out
}

#[cfg(test)]
mod tests {
    use libp2p::tcp::tokio::TcpStream;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_node_that_asks_is_sent_the_shard() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let node = tokio::net::TcpStream::connect(addr).await.unwrap();
        let (mut node, peer) = (TcpStream(node), TcpStream(listener.accept().await.unwrap().0));
        let metadata = PublisherMetadata::new(Some(Shard { cluster: 16, index: 200 })).0;
        assert_eq!(metadata.protocol_info().next(), Some(METADATA));
        let answering = metadata.upgrade_inbound(peer, METADATA);
        let asking = async {
            node.write_all(&[0]).await.unwrap();
            let mut answer = Vec::new();
            node.read_to_end(&mut answer).await.unwrap();
            answer
        };
        let (answered, answer) = tokio::join!(answering, asking);
        answered.unwrap();
        assert_eq!(answer, [6, 8, 16, 26, 2, 200, 1]);
        assert_eq!(PublisherMetadata::new(None).0.protocol_info().next(), None);
    }
}
