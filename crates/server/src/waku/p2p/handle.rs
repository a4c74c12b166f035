//! The handle of the network task, for the rest of the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hark_networks::waku::history::MessageRequest;
use libp2p::gossipsub::IdentTopic;
use libp2p::{Multiaddr, PeerId};
use tokio::sync::{mpsc, oneshot, watch};

use super::discovery::{NodeDirectory, NodeRecord};
use super::error::{AskFault, ConnectFault, WebFault};
use super::outgoing::StreamOpener;
use super::own_addresses::OwnAddresses;
use super::secure_web::SecureForm;
use super::sent::SentMessages;
use super::{addr, ask};
use crate::waku::peer_status::PeerStatus;

/// A command from the node's other tasks to the network task.
#[derive(Debug)]
pub(super) enum NetworkCommand {
    /// A message to publish, and where to send the number of peers that subscribe to its topic.
    Publish(IdentTopic, Vec<u8>, Option<oneshot::Sender<usize>>),
    Connect(PeerId, Vec<Multiaddr>, oneshot::Sender<Result<(), ConnectFault>>),
    Disconnect(PeerId),
    Peers(oneshot::Sender<Vec<PeerStatus>>),
}

/// A handle to the network task, for the rest of the node.
pub(in crate::waku) struct NetworkHandle {
    pub(super) orders: mpsc::Sender<NetworkCommand>,
    pub(super) opener: StreamOpener,
    pub(super) addresses: watch::Receiver<Vec<Multiaddr>>,
    pub(super) sent: SentMessages,
    /// See [`NetworkHandle::silent_peers`].
    pub(super) silent_peers: AtomicU64,
    /// The id of this node.
    pub(in crate::waku) id: PeerId,
    pub(super) own: OwnAddresses,
    pub(in crate::waku) directory: Arc<NodeDirectory>,
    /// Maximum size of a message of the network, in bytes.
    pub(super) message_bytes_max: usize,
    /// Peers, stores and entry nodes that the configuration names.
    pub(super) configured: Vec<Multiaddr>,
}

impl NetworkHandle {
    /// Publishes a message to peers. Returns the number of peers that subscribe to the topic.
    pub(in crate::waku) async fn publish(&self, pubsub_topic: String, message: Vec<u8>) -> usize {
        let (reply, replied) = oneshot::channel();
        let topic = IdentTopic::new(pubsub_topic);
        let order = NetworkCommand::Publish(topic, message, Some(reply));
        // Fails only while the node shuts down.
        let _ = self.orders.send(order).await;
        replied.await.unwrap_or_default()
    }

    /// Publishes a message to peers without waiting. The message is dropped if the queue is full.
    pub(in crate::waku) fn try_publish(&self, pubsub_topic: String, message: Vec<u8>) {
        let order = NetworkCommand::Publish(IdentTopic::new(pubsub_topic), message, None);
        if self.orders.try_send(order).is_err() {
            tracing::warn!("a message that the old process accepted was not relayed");
        }
    }

    /// Returns how many connections were closed because a peer that relays messages did not answer.
    /// Messages may have been missed for a minute before each of these connections was closed.
    pub(in crate::waku) fn silent_peers(&self) -> u64 {
        self.silent_peers.load(Ordering::Relaxed)
    }

    /// Returns the addresses of this node.
    pub(in crate::waku) fn addresses(&self) -> Vec<String> {
        self.addresses.borrow().iter().map(Multiaddr::to_string).collect()
    }

    /// Returns the addresses of this node for browsers, or why browsers have none. The node listens
    /// on the addresses `listen`.
    pub(in crate::waku) fn web_addresses(
        &self,
        listen: &[Multiaddr],
    ) -> Result<Vec<String>, WebFault> {
        if let Some(fault) = self.own.web_fault(listen) {
            return Err(fault);
        }
        let addresses = self.addresses.borrow();
        let secure = addresses.iter().filter(|addr| SecureForm::of(addr).is_some());
        Ok(secure.map(Multiaddr::to_string).collect())
    }

    /// Returns the signed record of this node.
    pub(in crate::waku) fn own_record(&self) -> Option<NodeRecord> {
        let mut reached = self.addresses.borrow().clone();
        reached.retain(|addr| self.own.is_usable(addr));
        self.directory.own_record(reached)
    }

    /// Closes all connections with a peer.
    pub(super) async fn disconnect(&self, peer: PeerId) {
        // Fails only while the node shuts down.
        let _ = self.orders.send(NetworkCommand::Disconnect(peer)).await;
    }

    /// Connects to a peer, unless it is connected already.
    pub(super) async fn connect(&self, addr: Multiaddr) -> Result<PeerId, ConnectFault> {
        let peer = addr::id(&addr).ok_or(ConnectFault::NoId)?;
        self.connect_to(peer, vec![addr]).await?;
        Ok(peer)
    }

    /// Connects to a peer that may be at any of these addresses, unless it is connected already.
    pub(super) async fn connect_to(
        &self,
        peer: PeerId,
        addrs: Vec<Multiaddr>,
    ) -> Result<(), ConnectFault> {
        let (reply, replied) = oneshot::channel();
        let order = NetworkCommand::Connect(peer, addrs, reply);
        self.orders.send(order).await.map_err(|_| ConnectFault::Down)?;
        replied.await.map_err(|_| ConnectFault::Down)?
    }

    /// Returns all connected or configured peers, sorted by id.
    pub(in crate::waku) async fn peers(&self) -> Vec<PeerStatus> {
        let (reply, replied) = oneshot::channel();
        // While the node shuts down, the returned list is empty.
        let _ = self.orders.send(NetworkCommand::Peers(reply)).await;
        replied.await.unwrap_or_default()
    }

    /// Does the same as [`Self::peers`], but blocks the thread, which must not run asynchronous
    /// tasks.
    pub(in crate::waku) fn peers_blocking(&self) -> Vec<PeerStatus> {
        let (reply, replied) = oneshot::channel();
        // While the node shuts down, the returned list is empty.
        let _ = self.orders.blocking_send(NetworkCommand::Peers(reply));
        replied.blocking_recv().unwrap_or_default()
    }

    /// Returns the number of messages to request from a store at once.
    pub(in crate::waku) fn page_max(&self) -> u64 {
        ask::page_max(self.message_bytes_max)
    }

    /// Sends a request to the store of a peer, after connecting to the peer if needed.
    pub(in crate::waku) async fn ask(
        &self,
        addr: Multiaddr,
        request: &MessageRequest,
    ) -> Result<Vec<u8>, AskFault> {
        let peer = self.connect(addr).await?;
        ask::ask(&self.opener, peer, request, self.message_bytes_max).await
    }
}
