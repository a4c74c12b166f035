//! The libp2p interface: gossip receives and sends messages, and streams send history.
//!
//! One task drives all connections. Each gossip message and each stream is handled by a task of its
//! own. The number of these tasks is bounded.
//!
//! `admission` decides which connections are admitted. `incoming` accepts streams, and `frame`
//! reads and writes their frames. `store` and `metadata` are the served protocols. `peers` holds
//! the peers to dial, and `served` the topics whose gossip is read.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use hark_codec::waku::Message;
use hark_networks::waku::admit::MessageRefusal;
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::Boxed;
use libp2p::core::upgrade::{SelectUpgrade, Version};
use libp2p::gossipsub::{self, IdentTopic, MessageAcceptance, PublishError};
use libp2p::identity::Keypair;
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{
    Multiaddr, PeerId, Swarm, SwarmBuilder, Transport as _, dns, identify, noise, ping, tcp,
    websocket, yamux,
};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::WakuNode;
use super::metrics::{GossipLoss, MessageOrigin};
use super::neighbours::PeerStatus;
use crate::Clients;
use crate::stop::StopSignal;
use admission::PeerAdmission;
use gossip::ForwardBudget;
use incoming::IncomingStreams;
use known::KnownPeers;
use patience::PatientMuxer;
use peers::Peers;
use served::ServedTopics;
use watched::{GossipEvent, WatchedGossip};

mod admission;
mod frame;
mod gossip;
mod incoming;
mod key;
mod known;
mod metadata;
mod patience;
mod peers;
mod reach;
mod reconcile;
mod sent;
mod served;
mod store;
pub(super) mod sync;
mod watched;

pub use key::KeyError;
pub use sync::SyncPlan;

/// The protocols of the streams that peers may open.
const PROTOCOLS: [&str; 4] =
    [store::PROTOCOL, metadata::PROTOCOL, sync::RECONCILIATION, sync::TRANSFER];
/// Maximum duration of a connection's handshake, after which both sides know each other.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// How long an unused connection stays open.
const IDLE_MAX: Duration = Duration::from_mins(10);
/// Maximum number of waiting commands from the other interfaces, such as messages to publish.
const QUEUE_MAX: usize = 1_024;
/// Maximum size of the gossip messages that are not durable yet, in bytes. Above this bound no
/// connection is read. A message counts for at least [`TAKING_BYTES_MIN`].
const TAKING_BYTES_MAX: usize = 64 << 20;
/// Minimum charge for a gossip message, in bytes. So at most 4,096 messages wait.
const TAKING_BYTES_MIN: usize = 16 << 10;
/// Maximum number of streams of one connection: those of all protocols that a peer may open, and
/// those of gossip. Each stream can buffer unread bytes from its peer.
const STREAMS_MAX: usize = 96;
/// Maximum number of unread frames of an mplex stream. A frame has up to 1 MiB. Above this bound
/// the connection is not read.
const MPLEX_FRAMES_MAX: usize = 4;

/// The addresses that this node listens on, the peers that it dials, and its bounds.
#[derive(Clone, Debug)]
pub struct P2pConfig {
    /// Addresses to listen on: `/ip4/0.0.0.0/tcp/60000`, `/ip4/0.0.0.0/tcp/8000/ws`.
    pub listen: Vec<Multiaddr>,
    /// Further addresses of this node that are announced to peers, for example those of a proxy.
    pub announce: Vec<Multiaddr>,
    /// The file with the node's key. A missing file is created.
    pub key: PathBuf,
    /// Addresses of peers to stay connected to. Each address ends with `/p2p/` and the peer's id.
    pub peers: Vec<Multiaddr>,
    /// Addresses of peers with a store. History is fetched from these peers after this node was
    /// offline.
    pub stores: Vec<Multiaddr>,
    /// Maximum age of the history to fetch, in seconds.
    pub resume_max_s: u64,
    /// The file with the time until which no message was missed.
    pub online: PathBuf,
    /// How the messages of `stores` are compared with this node's messages.
    pub sync: SyncPlan,
    /// Maximum number of connections.
    pub connections_max: u32,
    /// Maximum number of incoming connections from one address.
    pub connections_per_address_max: usize,
}

/// Returns the fault of an address, or `None`. A peer's address must end with the peer's id.
pub fn fault(addr: &str, of_peer: bool) -> Option<String> {
    match addr.parse::<Multiaddr>() {
        Ok(addr) if of_peer && peers::id(&addr).is_none() => {
            Some("the address of a peer ends with /p2p/ and its id".into())
        }
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    }
}

/// Why the network does not start.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// See [`KeyError`].
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The node cannot listen on an address.
    #[error("cannot listen on {0}: {1}; choose another with `listen` in [waku]")]
    Listen(Multiaddr, String),
    /// An address to announce ends with the id of another node.
    #[error("{0}, in `announce` in [waku], ends with the id of another node; leave /p2p/ out")]
    Announce(Multiaddr),
    /// The address of a peer lacks the peer's id.
    #[error("the address of a peer ends with /p2p/ and its id, but {0} does not")]
    Peer(Multiaddr),
    /// A transport or the gossip protocol cannot be set up.
    #[error("{0}")]
    Start(String),
}

#[derive(NetworkBehaviour)]
struct NodeBehaviour {
    admission: PeerAdmission,
    gossip: WatchedGossip,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    incoming: IncomingStreams,
    /// Streams that this node opens.
    streams: libp2p_stream::Behaviour,
}

/// A command from the node's other tasks to the network task.
#[derive(Debug)]
enum NetworkCommand {
    Publish(IdentTopic, Vec<u8>),
    Connect(PeerId, Vec<Multiaddr>, oneshot::Sender<Result<(), String>>),
    Peers(oneshot::Sender<Vec<PeerStatus>>),
}

/// A handle to the network task, for the rest of the node.
pub(super) struct NetworkHandle {
    orders: mpsc::Sender<NetworkCommand>,
    control: libp2p_stream::Control,
    addresses: watch::Receiver<Vec<Multiaddr>>,
    sent: sent::SentMessages,
    /// Peers and stores that the configuration names.
    configured: Vec<Multiaddr>,
}

impl NetworkHandle {
    /// Publishes a message to peers.
    pub(super) async fn publish(&self, pubsub_topic: String, message: Vec<u8>) {
        let order = NetworkCommand::Publish(IdentTopic::new(pubsub_topic), message);
        // Fails only while the node shuts down.
        let _ = self.orders.send(order).await;
    }

    /// Publishes a message to peers without waiting. The message is dropped if the queue is full.
    pub(super) fn try_publish(&self, pubsub_topic: String, message: Vec<u8>) {
        let order = NetworkCommand::Publish(IdentTopic::new(pubsub_topic), message);
        if self.orders.try_send(order).is_err() {
            tracing::warn!("a message of the process before this one was not relayed");
        }
    }

    /// Returns the addresses of this node.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.addresses.borrow().iter().map(Multiaddr::to_string).collect()
    }

    /// Connects to a peer, unless it is connected already.
    async fn connect(&self, addr: Multiaddr) -> Result<PeerId, String> {
        let peer = peers::id(&addr).ok_or("the address must end with /p2p/ and the peer's id")?;
        self.connect_to(peer, vec![addr]).await?;
        Ok(peer)
    }

    /// Connects to a peer that may be at any of these addresses, unless it is connected already.
    async fn connect_to(&self, peer: PeerId, addrs: Vec<Multiaddr>) -> Result<(), String> {
        let (reply, replied) = oneshot::channel();
        let down = "the node is going down";
        self.orders.send(NetworkCommand::Connect(peer, addrs, reply)).await.map_err(|_| down)?;
        replied.await.map_err(|_| down)?
    }

    /// Returns all connected or configured peers, sorted by id.
    pub(super) async fn peers(&self) -> Vec<PeerStatus> {
        let (reply, replied) = oneshot::channel();
        // While the node shuts down, the list is empty.
        let _ = self.orders.send(NetworkCommand::Peers(reply)).await;
        replied.await.unwrap_or_default()
    }

    /// Sends a request to the store of a peer, after connecting to the peer if needed.
    pub(super) async fn ask(&self, addr: Multiaddr, request: &[u8]) -> Result<Vec<u8>, String> {
        let peer = self.connect(addr).await?;
        store::ask(self.control.clone(), peer, request).await
    }
}

/// The network task, which drives all connections and handles their events.
pub(super) struct NetworkTask {
    swarm: Swarm<NodeBehaviour>,
    /// Addresses to listen on after the previous process has released them in a handover.
    pending_addrs: Vec<Multiaddr>,
    peers: Peers,
    known: KnownPeers,
    budget: ForwardBudget,
    orders: mpsc::Receiver<NetworkCommand>,
    addresses: watch::Sender<Vec<Multiaddr>>,
}

impl NetworkTask {
    /// Sets up the network. Listens now if `at_once`, else in [`NetworkTask::run`]. No request is
    /// answered before [`NetworkTask::run`].
    pub(super) async fn bind(
        config: P2pConfig,
        node: &super::NodeConfig,
        clients: Clients,
        at_once: bool,
    ) -> Result<(Self, NetworkHandle), NetworkError> {
        let key = key::load(&config.key)?;
        let topics: Vec<_> =
            node.served().map(|shard| IdentTopic::new(shard.to_string())).collect();
        let configured: Vec<_> = config.peers.into_iter().chain(config.stores).collect();
        let bounds = PeerBounds {
            served: ServedTopics::new(&topics),
            message_bytes: node.message_bytes_max,
            configured: configured.clone(),
            strangers: config.connections_max as usize,
            per_address: config.connections_per_address_max,
            clients,
        };
        let mut swarm = swarm(key, bounds)?;
        for topic in &topics {
            let joined = swarm.behaviour_mut().gossip.subscribe(topic);
            joined.map_err(|error| NetworkError::Start(error.to_string()))?;
        }
        let mut reached = Vec::new();
        if at_once {
            for addr in &config.listen {
                listen(&mut swarm, addr).await?;
                refresh(&swarm, &mut reached);
            }
        } else {
            let id = *swarm.local_peer_id();
            reached.extend(config.listen.iter().filter_map(|addr| addr.clone().with_p2p(id).ok()));
        }
        for addr in config.announce {
            let own = addr.with_p2p(*swarm.local_peer_id()).map_err(NetworkError::Announce)?;
            swarm.add_external_address(own.clone());
            reached.push(own);
        }
        let peers = Peers::new(configured.clone()).map_err(NetworkError::Peer)?;
        let (addresses, seen) = watch::channel(reached);
        let (order, orders) = mpsc::channel(QUEUE_MAX);
        let control = swarm.behaviour().streams.new_control();
        let sent = sent::SentMessages::default();
        let handle = NetworkHandle { orders: order, control, addresses: seen, sent, configured };
        let pending_addrs = if at_once { Vec::new() } else { config.listen };
        let known = KnownPeers::default();
        let budget = ForwardBudget::new(Instant::now());
        Ok((Self { swarm, pending_addrs, peers, known, budget, orders, addresses }, handle))
    }

    /// Serves until `stop`.
    pub(super) async fn run(mut self, waku: Arc<WakuNode>, mut stop: StopSignal) {
        let NodeBehaviour { incoming, streams, .. } = self.swarm.behaviour();
        store::serve(incoming, Arc::clone(&waku));
        metadata::serve(incoming, &waku);
        sync::serve(incoming, streams.new_control(), &waku);
        sync::receive(incoming, &waku);
        let taking = Arc::new(Semaphore::new(TAKING_BYTES_MAX));
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                () = stop.accepting() => break,
                _ = tick.tick() => {
                    self.listen();
                    self.peers.look(&mut self.swarm);
                }
                Some(order) = self.orders.recv() => self.carry_out(order),
                event = self.swarm.select_next_some() => self.event(event, &waku, &taking).await,
            }
        }
        // From now on another process may listen on these addresses.
        drop(self);
        // Waits until the gossip messages in progress are durable.
        let _ = taking.acquire_many(TAKING_BYTES_MAX as u32).await;
    }

    /// Listens on the addresses that the previous process has released by now. The caller handles
    /// the events of the swarm, because connections may be among these events.
    fn listen(&mut self) {
        for addr in std::mem::take(&mut self.pending_addrs) {
            match self.swarm.listen_on(addr.clone()) {
                Ok(_) => tracing::info!(%addr, "peers can connect from now on"),
                Err(error) => {
                    tracing::debug!(error = root(&error), "trying again");
                    self.pending_addrs.push(addr);
                }
            }
        }
    }

    fn carry_out(&mut self, order: NetworkCommand) {
        match order {
            NetworkCommand::Publish(topic, message) => {
                match self.swarm.behaviour_mut().gossip.publish(topic, message) {
                    // No peer subscribes to the topic, or peers have sent the message already.
                    Ok(_)
                    | Err(PublishError::NoPeersSubscribedToTopic | PublishError::Duplicate) => {}
                    Err(error) => tracing::warn!(%error, "a message was not passed on to peers"),
                }
            }
            NetworkCommand::Connect(peer, addrs, reply) => {
                self.peers.connect(&mut self.swarm, peer, addrs, reply);
            }
            NetworkCommand::Peers(reply) => {
                // The receiver may be dropped.
                let _ = reply.send(self.known.all(&self.swarm, &self.peers));
            }
        }
    }

    /// Whether a message may be forwarded. Messages above the budget are counted.
    fn may_forward(&mut self, waku: &WakuNode, bytes: usize) -> bool {
        let is_within = self.budget.take(bytes, Instant::now());
        if !is_within {
            waku.metrics.gossip_losses.of(GossipLoss::Unforwarded).add(1);
        }
        is_within
    }

    async fn event(
        &mut self,
        event: SwarmEvent<NodeBehaviourEvent>,
        waku: &Arc<WakuNode>,
        taking: &Arc<Semaphore>,
    ) {
        match event {
            SwarmEvent::Behaviour(NodeBehaviourEvent::Gossip(GossipEvent::Gossip(
                gossipsub::Event::Message { propagation_source, message_id, message },
            ))) => {
                let accepted = accept(waku, &message);
                let is_forwarded = accepted == GossipVerdict::Yes
                    && waku.config.forward
                    && self.may_forward(waku, message.data.len());
                let gossip = &mut self.swarm.behaviour_mut().gossip;
                gossip.report_message_validation_result(
                    &message_id,
                    &propagation_source,
                    match accepted {
                        GossipVerdict::Yes if is_forwarded => MessageAcceptance::Accept,
                        GossipVerdict::Yes | GossipVerdict::Old => MessageAcceptance::Ignore,
                        GossipVerdict::Broken => MessageAcceptance::Reject,
                    },
                );
                if accepted != GossipVerdict::Yes {
                    return;
                }
                let share = message.data.len().clamp(TAKING_BYTES_MIN, TAKING_BYTES_MAX) as u32;
                let room = Arc::clone(taking).acquire_many_owned(share).await;
                let Ok(room) = room else { return };
                let waku = Arc::clone(waku);
                tokio::spawn(async move {
                    take(&waku, &message).await;
                    drop(room);
                });
            }
            SwarmEvent::Behaviour(NodeBehaviourEvent::Gossip(GossipEvent::Gossip(
                gossipsub::Event::SlowPeer { failed_messages, .. },
            ))) => {
                let lost = failed_messages.priority + failed_messages.non_priority;
                waku.metrics.gossip_losses.of(GossipLoss::Message).add(lost as u64);
            }
            SwarmEvent::Behaviour(NodeBehaviourEvent::Gossip(GossipEvent::Ended(peer))) => {
                waku.metrics.gossip_losses.of(GossipLoss::Broken).add(1);
                tracing::debug!(%peer, "gossip with a peer has ended; disconnecting");
            }
            SwarmEvent::NewListenAddr { .. } | SwarmEvent::ExpiredListenAddr { .. } => {
                self.addresses.send_modify(|reached| refresh(&self.swarm, reached));
            }
            SwarmEvent::Behaviour(NodeBehaviourEvent::Identify(identify::Event::Received {
                peer_id,
                info,
                ..
            })) => self.known.identified(peer_id, info),
            SwarmEvent::ConnectionEstablished { peer_id, num_established, endpoint, .. } => {
                if num_established.get() == 1 {
                    waku.metrics.peers.add(1);
                }
                if let Some(network) = &waku.network {
                    network.sent.begin(peer_id);
                }
                self.known.connected(peer_id, &endpoint);
                self.peers.connected(peer_id);
            }
            SwarmEvent::ConnectionClosed { peer_id, num_established, cause, .. } => {
                if let Some(network) = &waku.network {
                    network.sent.forget(peer_id, num_established == 0);
                }
                if num_established == 0 {
                    waku.metrics.peers.sub(1);
                    self.known.gone(peer_id);
                    self.peers.gone(peer_id, cause.as_ref());
                }
            }
            SwarmEvent::OutgoingConnectionError { peer_id: Some(peer), error, .. } => {
                self.peers.failed(peer, &error);
            }
            SwarmEvent::IncomingConnectionError { error, send_back_addr, .. } => {
                tracing::debug!(%error, from = %send_back_addr, "a peer did not get in");
            }
            _ => {}
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum GossipVerdict {
    Yes,
    /// The message is not accepted, but the sending peer is not at fault. For example, the
    /// message's time is out of the window, or the shard is not served.
    Old,
    /// The bytes are not a message, or are a message that every node refuses.
    Broken,
}

fn accept(waku: &WakuNode, gossip: &gossipsub::Message) -> GossipVerdict {
    if !waku.serves(gossip.topic.as_str()) {
        return GossipVerdict::Old;
    }
    let Ok(message) = Message::parse(&gossip.data) else { return GossipVerdict::Broken };
    match waku.admit(MessageOrigin::Relay, &message, gossip.data.len(), gossip.topic.as_str()) {
        Ok(()) => GossipVerdict::Yes,
        // A peer that relays a message cannot know that another message with this nullifier arrived
        // here first.
        Err(
            MessageRefusal::TooOld(_)
            | MessageRefusal::TooFar(_)
            | MessageRefusal::NoTime
            | MessageRefusal::Negative
            | MessageRefusal::Nullifier,
        ) => GossipVerdict::Old,
        Err(_) => GossipVerdict::Broken,
    }
}

/// Stores a gossip message after [`accept`] has accepted the message.
async fn take(waku: &WakuNode, gossip: &gossipsub::Message) {
    let Ok(message) = Message::parse(&gossip.data) else { return };
    let topic = gossip.topic.as_str();
    if let Err(error) = waku.keep(MessageOrigin::Relay, &message, topic).await {
        tracing::debug!(%error, topic, "a message of a peer was not accepted");
    }
}

/// Listens on one address, and waits until the system reports the resulting address.
async fn listen(swarm: &mut Swarm<NodeBehaviour>, addr: &Multiaddr) -> Result<(), NetworkError> {
    let failed = |error: String| NetworkError::Listen(addr.clone(), error);
    let listener = swarm.listen_on(addr.clone()).map_err(|error| failed(root(&error)))?;
    loop {
        match swarm.select_next_some().await {
            SwarmEvent::NewListenAddr { listener_id, .. } if listener_id == listener => {
                return Ok(());
            }
            SwarmEvent::ListenerClosed { listener_id, reason, .. } if listener_id == listener => {
                let why = reason.err().map_or("it was closed".into(), |error| root(&error));
                return Err(failed(why));
            }
            _ => {}
        }
    }
}

/// Updates the list of a node's addresses: the addresses that it listens on, and the addresses that
/// it announces. Addresses keep the order in which they were added.
fn refresh(swarm: &Swarm<NodeBehaviour>, reached: &mut Vec<Multiaddr>) {
    let id = *swarm.local_peer_id();
    let all = swarm.listeners().chain(swarm.external_addresses()).cloned();
    // Announced addresses end with the id already.
    let all: Vec<_> = all.filter_map(|addr| addr.with_p2p(id).ok()).collect();
    reached.retain(|addr| all.contains(addr));
    for addr in all {
        if !reached.contains(&addr) {
            reached.push(addr);
        }
    }
}

/// Returns the root cause of an error. The transport layers around the cause add no information.
fn root(error: &dyn std::error::Error) -> String {
    let mut root = error;
    while let Some(source) = root.source() {
        root = source;
    }
    root.to_string()
}

/// Bounds for peers' connections and messages.
struct PeerBounds {
    served: ServedTopics,
    message_bytes: usize,
    /// Peers that are admitted whatever the number of strangers.
    configured: Vec<Multiaddr>,
    /// Maximum number of connections with strangers.
    strangers: usize,
    /// Maximum number of connections opened by strangers at one address.
    per_address: usize,
    clients: Clients,
}

fn swarm(key: Keypair, bounds: PeerBounds) -> Result<Swarm<NodeBehaviour>, NetworkError> {
    let failed = |error: &dyn std::fmt::Display| NetworkError::Start(error.to_string());
    let swarm = SwarmBuilder::with_existing_identity(key)
        .with_tokio()
        .with_other_transport(transport)
        .map_err(|error| failed(&error))?
        .with_behaviour(|key| behaviour(key, bounds))
        .map_err(|error| failed(&error))?
        .with_swarm_config(|config| config.with_idle_connection_timeout(IDLE_MAX))
        .with_connection_timeout(HANDSHAKE_MAX)
        .build();
    Ok(swarm)
}

type SetUp<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// TCP, and WebSockets over TCP, to addresses and names. See [`PatientMuxer`] for the streams.
fn transport(key: &Keypair) -> SetUp<Boxed<(PeerId, StreamMuxerBox)>> {
    let tcp = || {
        dns::tokio::Transport::system(tcp::tokio::Transport::new(
            tcp::Config::default().nodelay(true),
        ))
    };
    let muxers = || {
        let mut yamux = yamux::Config::default();
        yamux.set_max_num_streams(STREAMS_MAX);
        let mut mplex = libp2p_mplex::Config::default();
        mplex.set_max_num_streams(STREAMS_MAX).set_max_buffer_size(MPLEX_FRAMES_MAX);
        SelectUpgrade::new(yamux, mplex)
    };
    let web = websocket::Config::new(tcp()?)
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(key)?)
        .multiplex(muxers());
    let plain =
        tcp()?.upgrade(Version::V1Lazy).authenticate(noise::Config::new(key)?).multiplex(muxers());
    Ok(web
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)))
        .or_transport(plain.map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer))))
        .map(|either, _| {
            let (peer, muxer) = either.into_inner();
            (peer, StreamMuxerBox::new(PatientMuxer(muxer)))
        })
        .boxed())
}

fn behaviour(
    key: &Keypair,
    bounds: PeerBounds,
) -> Result<NodeBehaviour, Box<dyn std::error::Error + Send + Sync>> {
    let gossip = gossip::gossip(bounds.served, bounds.message_bytes)?;
    let agent = concat!("hark/", env!("CARGO_PKG_VERSION"));
    let identify =
        identify::Config::new("/ipfs/0.1.0".into(), key.public()).with_agent_version(agent.into());
    let admitted = (bounds.strangers, bounds.per_address);
    Ok(NodeBehaviour {
        admission: PeerAdmission::new(bounds.clients.clone(), &bounds.configured, admitted),
        gossip: WatchedGossip::new(gossip),
        identify: identify::Behaviour::new(identify),
        ping: ping::Behaviour::default(),
        incoming: IncomingStreams::new(&PROTOCOLS, bounds.clients),
        streams: libp2p_stream::Behaviour::new(),
    })
}

#[cfg(test)]
mod tests;
