//! The door for peers (libp2p): messages come and go by gossip, history goes by streams.
//!
//! One task drives all connections; what it takes off gossip and off streams goes to tasks of their
//! own, whose number is bounded. `incoming` hands streams over, `frame` reads and writes what they
//! carry, `store` and `metadata` are what is asked on them, `peers` says whom this node looks for.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use hark_codec::waku::Message;
use hark_networks::waku::admit::Refusal;
use libp2p::gossipsub::{self, IdentTopic, MessageAcceptance, PublishError};
use libp2p::identity::Keypair;
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{
    Multiaddr, PeerId, Swarm, SwarmBuilder, connection_limits, identify, noise, ping, tcp, yamux,
};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::Waku;
use super::metrics::Origin;
use super::neighbours::Peer;
use crate::Clients;
use crate::stop::Stop;
use incoming::Incoming;
use known::Known;
use peers::Peers;

mod frame;
mod incoming;
mod key;
mod known;
mod metadata;
mod peers;
mod reach;
mod reconcile;
mod sent;
mod store;
pub(super) mod sync;

pub use key::KeyError;
pub use sync::SyncPlan;

/// Gossip of messages (RFC 11/WAKU2-RELAY).
const RELAY: &str = "/vac/waku/relay/2.0.0";
/// What peers may open streams of.
const PROTOCOLS: [&str; 4] =
    [store::PROTOCOL, metadata::PROTOCOL, sync::RECONCILIATION, sync::TRANSFER];
/// Room for what gossip has around a message.
const RELAY_FRAME: usize = 64 << 10;
/// Connections of one peer at a time.
const CONNECTIONS_PER_PEER_MAX: u32 = 4;
/// Connections that are not through with their handshakes yet.
const PENDING_MAX: u32 = 256;
/// How long a connection rests before it is closed, where neither side has a use for it.
const IDLE_MAX: Duration = Duration::from_mins(10);
/// Messages that this node's clients have published and that wait to be passed on.
const QUEUE_MAX: usize = 1_024;
/// Bytes of messages from gossip that wait to be durable; above it nothing more is taken off any
/// connection. A short one counts for [`TAKING_BYTES_MIN`].
const TAKING_BYTES_MAX: usize = 64 << 20;
/// So there are 4,096 of them at most.
const TAKING_BYTES_MIN: usize = 16 << 10;
/// Streams of one connection: those of all protocols that a peer may have, and gossip's. Each can hold
/// what its peer has sent and nobody has read yet.
const STREAMS_MAX: usize = 96;
/// Frames of a stream that nobody has read yet, with mplex; a frame has up to 1 MiB. Above it nothing
/// more is read from the connection.
const MPLEX_FRAMES_MAX: usize = 4;

/// How this node is reached, and whom it looks for.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses to listen on: `/ip4/0.0.0.0/tcp/60000`, `/ip4/0.0.0.0/tcp/8000/ws`.
    pub listen: Vec<Multiaddr>,
    /// Further addresses that lead to this node, which peers are told: those of a proxy before it.
    pub announce: Vec<Multiaddr>,
    /// The file with the node's key; it is made where there is none.
    pub key: PathBuf,
    /// Peers to stay connected with; each ends with `/p2p/` and its id.
    pub peers: Vec<Multiaddr>,
    /// Those of them that have history to give back, which is fetched after this node was away.
    pub stores: Vec<Multiaddr>,
    /// How far back it is fetched at most, in seconds.
    pub resume_max_s: u64,
    /// The file that says until when nothing was missed.
    pub online: PathBuf,
    /// How what they have is compared with what this node has.
    pub sync: SyncPlan,
    /// Connections at a time.
    pub connections_max: u32,
    /// Connections of one address at a time, that it has opened.
    pub connections_per_address_max: usize,
}

/// What is wrong with an address, if anything is. That of a peer has to end with its id.
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
    /// An address can not be listened on.
    #[error("cannot listen on {0}: {1}; choose another with `listen` in [waku]")]
    Listen(Multiaddr, String),
    /// An address to announce ends with the id of another node.
    #[error("{0}, in `announce` in [waku], ends with the id of another node; leave /p2p/ out")]
    Announce(Multiaddr),
    /// An address of a peer lacks its id.
    #[error("the address of a peer ends with /p2p/ and its id, but {0} does not")]
    Peer(Multiaddr),
    /// The system refuses what a connection needs.
    #[error("{0}")]
    Start(String),
}

#[derive(NetworkBehaviour)]
struct Behaviour {
    limits: connection_limits::Behaviour,
    gossip: gossipsub::Behaviour,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    incoming: Incoming,
    /// Streams that this node opens.
    streams: libp2p_stream::Behaviour,
}

/// What the other doors want of the network.
#[derive(Debug)]
enum Order {
    Publish(IdentTopic, Vec<u8>),
    Connect(PeerId, Vec<Multiaddr>, oneshot::Sender<Result<(), String>>),
    Peers(oneshot::Sender<Vec<Peer>>),
}

/// The other doors' end.
pub(super) struct Handle {
    orders: mpsc::Sender<Order>,
    control: libp2p_stream::Control,
    addresses: watch::Receiver<Vec<Multiaddr>>,
    sent: sent::Sent,
    /// Peers and stores that the configuration names.
    configured: Vec<Multiaddr>,
}

impl Handle {
    /// Passes a message on.
    pub(super) async fn publish(&self, pubsub_topic: String, message: Vec<u8>) {
        let order = Order::Publish(IdentTopic::new(pubsub_topic), message);
        // Only a node that goes down takes none.
        let _ = self.orders.send(order).await;
    }

    /// Where this node is reached.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.addresses.borrow().iter().map(Multiaddr::to_string).collect()
    }

    /// Connects to a peer, if it is not connected.
    async fn connect(&self, addr: Multiaddr) -> Result<PeerId, String> {
        let peer = peers::id(&addr).ok_or("the address must end with /p2p/ and the peer's id")?;
        self.connect_to(peer, vec![addr]).await?;
        Ok(peer)
    }

    /// The same for a peer that may be at one of these addresses.
    async fn connect_to(&self, peer: PeerId, addrs: Vec<Multiaddr>) -> Result<(), String> {
        let (tell, told) = oneshot::channel();
        let down = "the node is going down";
        self.orders.send(Order::Connect(peer, addrs, tell)).await.map_err(|_| down)?;
        told.await.map_err(|_| down)?
    }

    /// All peers that are connected or wanted, by their ids.
    pub(super) async fn peers(&self) -> Vec<Peer> {
        let (tell, told) = oneshot::channel();
        // A node that goes down has none.
        let _ = self.orders.send(Order::Peers(tell)).await;
        told.await.unwrap_or_default()
    }

    /// Asks the store of a peer, connecting to it if need be.
    pub(super) async fn ask(&self, addr: Multiaddr, request: &[u8]) -> Result<Vec<u8>, String> {
        let peer = self.connect(addr).await?;
        store::ask(self.control.clone(), peer, request).await
    }
}

/// All connections, and what is done with them.
pub(super) struct Network {
    swarm: Swarm<Behaviour>,
    /// Addresses that another process listens on until it knows that this one has taken over.
    unheard: Vec<Multiaddr>,
    peers: Peers,
    known: Known,
    orders: mpsc::Receiver<Order>,
    addresses: watch::Sender<Vec<Multiaddr>>,
}

impl Network {
    /// Listens, at once or when it is run. Nothing is answered before [`Network::run`].
    pub(super) async fn bind(
        config: Config,
        node: &super::Config,
        clients: Clients,
        at_once: bool,
    ) -> Result<(Self, Handle), NetworkError> {
        let key = key::load(&config.key)?;
        let bounds = Bounds {
            message_bytes: node.message_bytes_max,
            connections: config.connections_max,
            per_address: config.connections_per_address_max,
            clients,
        };
        let mut swarm = swarm(key, bounds).await?;
        for shard in node.served() {
            let topic = IdentTopic::new(shard.to_string());
            let joined = swarm.behaviour_mut().gossip.subscribe(&topic);
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
        let configured: Vec<_> = config.peers.into_iter().chain(config.stores).collect();
        let peers = Peers::new(configured.clone()).map_err(NetworkError::Peer)?;
        let (addresses, seen) = watch::channel(reached);
        let (order, orders) = mpsc::channel(QUEUE_MAX);
        let control = swarm.behaviour().streams.new_control();
        let sent = sent::Sent::default();
        let handle = Handle { orders: order, control, addresses: seen, sent, configured };
        let unheard = if at_once { Vec::new() } else { config.listen };
        let known = Known::default();
        Ok((Self { swarm, unheard, peers, known, orders, addresses }, handle))
    }

    /// Serves until told to leave.
    pub(super) async fn run(mut self, waku: Arc<Waku>, mut stop: Stop) {
        let Behaviour { incoming, streams, .. } = self.swarm.behaviour();
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
                    self.listen().await;
                    self.peers.look(&mut self.swarm);
                }
                Some(order) = self.orders.recv() => self.carry_out(order),
                event = self.swarm.select_next_some() => self.event(event, &waku, &taking).await,
            }
        }
        // Its sockets are another process's from now on.
        drop(self);
        // What was taken off gossip and is not durable yet.
        let _ = taking.acquire_many(TAKING_BYTES_MAX as u32).await;
    }

    /// Listens on what another process has let go of by now.
    async fn listen(&mut self) {
        for addr in std::mem::take(&mut self.unheard) {
            match listen(&mut self.swarm, &addr).await {
                Ok(()) => tracing::info!(%addr, "peers are taken from now on"),
                Err(error) => {
                    tracing::debug!(%error, "trying again");
                    self.unheard.push(addr);
                }
            }
        }
        if self.unheard.is_empty() {
            self.addresses.send_if_modified(|reached| {
                let before = reached.clone();
                refresh(&self.swarm, reached);
                before != *reached
            });
        }
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Publish(topic, message) => {
                match self.swarm.behaviour_mut().gossip.publish(topic, message) {
                    // Nobody listens, or peers have told it already.
                    Ok(_)
                    | Err(PublishError::NoPeersSubscribedToTopic | PublishError::Duplicate) => {}
                    Err(error) => tracing::warn!(%error, "a message was not passed on to peers"),
                }
            }
            Order::Connect(peer, addrs, tell) => {
                self.peers.connect(&mut self.swarm, peer, addrs, tell);
            }
            Order::Peers(tell) => {
                // Who has asked may be gone.
                let _ = tell.send(self.known.all(&self.swarm, &self.peers));
            }
        }
    }

    async fn event(
        &mut self,
        event: SwarmEvent<BehaviourEvent>,
        waku: &Arc<Waku>,
        taking: &Arc<Semaphore>,
    ) {
        match event {
            SwarmEvent::Behaviour(BehaviourEvent::Gossip(gossipsub::Event::Message {
                propagation_source,
                message_id,
                message,
            })) => {
                let accepted = accept(waku, &message);
                let gossip = &mut self.swarm.behaviour_mut().gossip;
                gossip.report_message_validation_result(
                    &message_id,
                    &propagation_source,
                    match accepted {
                        Accepted::Yes if waku.config.forward => MessageAcceptance::Accept,
                        Accepted::Yes | Accepted::Old => MessageAcceptance::Ignore,
                        Accepted::Broken => MessageAcceptance::Reject,
                    },
                );
                if accepted != Accepted::Yes {
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
            SwarmEvent::NewListenAddr { .. } | SwarmEvent::ExpiredListenAddr { .. } => {
                self.addresses.send_modify(|reached| refresh(&self.swarm, reached));
            }
            SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received {
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
enum Accepted {
    Yes,
    /// Not of this time or of these shards: nobody's fault.
    Old,
    /// No message at all.
    Broken,
}

fn accept(waku: &Waku, gossip: &gossipsub::Message) -> Accepted {
    if !waku.serves(gossip.topic.as_str()) {
        return Accepted::Old;
    }
    let Ok(message) = Message::parse(&gossip.data) else { return Accepted::Broken };
    match waku.admit(Origin::Relay, &message, gossip.data.len(), gossip.topic.as_str()) {
        Ok(()) => Accepted::Yes,
        Err(Refusal::TooOld(_) | Refusal::TooFar(_) | Refusal::NoTime) => Accepted::Old,
        Err(_) => Accepted::Broken,
    }
}

/// Takes in what gossip has brought and [`accept`] let in.
async fn take(waku: &Waku, gossip: &gossipsub::Message) {
    let Ok(message) = Message::parse(&gossip.data) else { return };
    let topic = gossip.topic.as_str();
    if let Err(error) = waku.keep(Origin::Relay, &message, topic).await {
        tracing::debug!(%error, topic, "a message of a peer was not taken");
    }
}

/// Opens one address, and waits until the system says under which it is reached.
async fn listen(swarm: &mut Swarm<Behaviour>, addr: &Multiaddr) -> Result<(), NetworkError> {
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

/// Brings the addresses up to date under which a node is reached: those it listens on and those that
/// are announced. They stay in the order in which they came.
fn refresh(swarm: &Swarm<Behaviour>, reached: &mut Vec<Multiaddr>) {
    let id = *swarm.local_peer_id();
    let all = swarm.listeners().chain(swarm.external_addresses()).cloned();
    // Those that are announced end with it already.
    let all: Vec<_> = all.filter_map(|addr| addr.with_p2p(id).ok()).collect();
    reached.retain(|addr| all.contains(addr));
    for addr in all {
        if !reached.contains(&addr) {
            reached.push(addr);
        }
    }
}

/// What is at the root of an error: the layers of transports say nothing of their own.
fn root(error: &dyn std::error::Error) -> String {
    let mut root = error;
    while let Some(source) = root.source() {
        root = source;
    }
    root.to_string()
}

/// Bounds of what peers do.
struct Bounds {
    message_bytes: usize,
    connections: u32,
    per_address: usize,
    clients: Clients,
}

async fn swarm(key: Keypair, bounds: Bounds) -> Result<Swarm<Behaviour>, NetworkError> {
    let failed = |error: &dyn std::fmt::Display| NetworkError::Start(error.to_string());
    let yamux = || {
        let mut config = yamux::Config::default();
        config.set_max_num_streams(STREAMS_MAX);
        config
    };
    let mplex = || {
        let mut config = libp2p_mplex::Config::default();
        config.set_max_num_streams(STREAMS_MAX).set_max_buffer_size(MPLEX_FRAMES_MAX);
        config
    };
    let muxers = || (yamux, mplex);
    let swarm = SwarmBuilder::with_existing_identity(key)
        .with_tokio()
        .with_tcp(tcp::Config::default().nodelay(true), noise::Config::new, muxers())
        .map_err(|error| failed(&error))?
        .with_dns()
        .map_err(|error| failed(&error))?
        .with_websocket(noise::Config::new, muxers())
        .await
        .map_err(|error| failed(&error))?
        .with_behaviour(|key| behaviour(key, bounds))
        .map_err(|error| failed(&error))?
        .with_swarm_config(|config| config.with_idle_connection_timeout(IDLE_MAX))
        .build();
    Ok(swarm)
}

fn behaviour(
    key: &Keypair,
    bounds: Bounds,
) -> Result<Behaviour, Box<dyn std::error::Error + Send + Sync>> {
    let gossip = gossipsub::ConfigBuilder::default()
        .protocol_id(RELAY, gossipsub::Version::V1_1)
        .validation_mode(gossipsub::ValidationMode::Anonymous)
        .validate_messages()
        .message_id_fn(|message| Sha256::digest(&message.data).to_vec().into())
        .max_transmit_size(bounds.message_bytes + RELAY_FRAME)
        .build()?;
    let gossip = gossipsub::Behaviour::new(gossipsub::MessageAuthenticity::Anonymous, gossip)?;
    let agent = concat!("hark/", env!("CARGO_PKG_VERSION"));
    let identify =
        identify::Config::new("/ipfs/0.1.0".into(), key.public()).with_agent_version(agent.into());
    let limits = connection_limits::ConnectionLimits::default()
        .with_max_established(Some(bounds.connections))
        .with_max_established_per_peer(Some(CONNECTIONS_PER_PEER_MAX))
        .with_max_pending_incoming(Some(PENDING_MAX));
    Ok(Behaviour {
        limits: connection_limits::Behaviour::new(limits),
        gossip,
        identify: identify::Behaviour::new(identify),
        ping: ping::Behaviour::default(),
        incoming: Incoming::new(&PROTOCOLS, bounds.per_address, bounds.clients),
        streams: libp2p_stream::Behaviour::new(),
    })
}

#[cfg(test)]
mod tests;
