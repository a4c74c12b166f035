//! The network task: drives all connections, and passes their events to the rest of the node.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use libp2p::gossipsub::{self, IdentTopic, MessageAcceptance, PublishError, TopicHash};
use libp2p::swarm::{ConnectionId, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm, identify, ping};
use tokio::sync::{Semaphore, mpsc, watch};

use super::behaviour::{NodeBehaviour, NodeBehaviourEvent};
use super::config::P2pConfig;
use super::discovery::{NodeDirectory, OwnRecord};
use super::error::NetworkError;
use super::gossip::ForwardBudget;
use super::handle::{NetworkCommand, NetworkHandle};
use super::known::KnownPeers;
use super::own_addresses::OwnAddresses;
use super::peers::Peers;
use super::relayed::{self, GossipVerdict};
use super::sent::SentMessages;
use super::served::ServedTopics;
use super::swarm::{PeerBounds, protocols, swarm};
use super::watched::GossipEvent;
use super::{exchange, filter, key, light_push, metadata, store, sync, transfer};
use crate::Clients;
use crate::roster::{serve_now, while_serving};
use crate::stop::StopSignal;
use crate::tls::{CertificateNames, TlsEndpoint};
use crate::waku::config::NodeConfig;
use crate::waku::metrics::GossipLoss;
use crate::waku::node::WakuNode;

/// Maximum number of waiting commands from the other interfaces, such as messages to publish.
const QUEUE_MAX: usize = 1_024;
/// Maximum size of the gossip messages that are not durable yet, in bytes. Above this bound no
/// connection is read. A smaller message counts as [`TAKING_BYTES_MIN`] bytes.
const TAKING_BYTES_MAX: usize = 64 << 20;
/// Minimum charge for a gossip message, in bytes. So at most 4,096 messages wait.
const TAKING_BYTES_MIN: usize = 16 << 10;
/// The network task, which drives all connections and handles their events.
pub(in crate::waku) struct NetworkTask {
    swarm: Swarm<NodeBehaviour>,
    /// Addresses to listen on after the previous process has released them in a handover.
    pending_addrs: Vec<Multiaddr>,
    peers: Peers,
    known: KnownPeers,
    directory: Arc<NodeDirectory>,
    budget: ForwardBudget,
    orders: mpsc::Receiver<NetworkCommand>,
    addresses: watch::Sender<Vec<Multiaddr>>,
    own: OwnAddresses,
    /// The names of the certificate when `addresses` was updated last.
    names: Arc<CertificateNames>,
    /// The connections that are being closed because a peer that relays messages does not answer.
    silent: HashSet<ConnectionId>,
}

impl NetworkTask {
    /// Sets up the network. Starts to listen immediately if `at_once`, else in
    /// [`NetworkTask::run`]. `tls` is for secure WebSockets. No request is answered before [`NetworkTask::run`].
    pub(in crate::waku) async fn bind(
        config: P2pConfig,
        node: &NodeConfig,
        clients: Clients,
        tls: Option<Arc<TlsEndpoint>>,
        at_once: bool,
    ) -> Result<(Self, NetworkHandle), NetworkError> {
        let key = key::load(&config.key)?;
        let record = OwnRecord::new(&key, node, config.discovery.private)?;
        let directory = Arc::new(NodeDirectory::new(record, config.listen.clone()));
        let id = key.public().to_peer_id();
        let own = OwnAddresses::new(id, &config.listen, config.announce, tls.clone())?;
        let names = own.names();
        let has_exchange = config.discovery.exchange;
        let topics: Vec<_> =
            node.served().map(|shard| IdentTopic::new(shard.to_string())).collect();
        let configured: Vec<_> =
            config.peers.into_iter().chain(config.stores).chain(config.entry_nodes).collect();
        let bounds = PeerBounds {
            served: ServedTopics::new(&topics),
            message_bytes: node.message_bytes_max,
            configured: configured.clone(),
            strangers: config.connections_max as usize,
            per_address: config.connections_per_address_max,
            protocols: protocols(has_exchange),
            clients,
        };
        let mut swarm = swarm(key, bounds, tls)?;
        for topic in &topics {
            let joined = swarm.behaviour_mut().gossip.subscribe(topic);
            joined.map_err(|error| NetworkError::Start(error.to_string()))?;
        }
        let mut reached = Vec::new();
        if at_once {
            for addr in &config.listen {
                listen(&mut swarm, addr).await?;
                refresh(&mut swarm, &own, &mut reached);
            }
            // The announced addresses, if the node listens on none.
            refresh(&mut swarm, &own, &mut reached);
        } else {
            reached = own.of(config.listen.iter().cloned());
            for addr in reached.iter().filter(|addr| own.is_usable(addr)) {
                swarm.add_external_address(addr.clone());
            }
        }
        let peers = Peers::new(configured.clone()).map_err(NetworkError::Peer)?;
        let (addresses, seen) = watch::channel(reached);
        let (order, orders) = mpsc::channel(QUEUE_MAX);
        let opener = swarm.behaviour().outgoing.opener();
        let sent = SentMessages::default();
        let handle = NetworkHandle {
            orders: order,
            opener,
            addresses: seen,
            sent,
            silent_peers: AtomicU64::new(0),
            id,
            own: own.clone(),
            directory: Arc::clone(&directory),
            message_bytes_max: node.message_bytes_max,
            configured,
        };
        let pending_addrs = if at_once { Vec::new() } else { config.listen };
        let known = KnownPeers::default();
        let budget = ForwardBudget::new(Instant::now());
        let task = Self {
            swarm,
            pending_addrs,
            peers,
            known,
            directory,
            budget,
            orders,
            addresses,
            own,
            names,
            silent: HashSet::new(),
        };
        Ok((task, handle))
    }

    /// Serves until `stop`.
    pub(in crate::waku) async fn run(mut self, waku: Arc<WakuNode>, mut stop: StopSignal) {
        let NodeBehaviour { incoming, outgoing, .. } = self.swarm.behaviour();
        store::serve(incoming, Arc::clone(&waku));
        metadata::serve(incoming, &waku);
        filter::serve(incoming, &outgoing.opener(), &waku);
        light_push::serve(incoming, &waku);
        sync::serve(incoming, outgoing.opener(), &waku);
        transfer::receive(incoming, &waku);
        if waku.config.p2p.as_ref().is_some_and(|config| config.discovery.exchange) {
            exchange::serve(incoming, &waku);
        }
        let taking = Arc::new(Semaphore::new(TAKING_BYTES_MAX));
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                () = stop.accepting() => break,
                _ = tick.tick() => {
                    self.listen();
                    self.follow_certificate();
                    self.peers.dial_due(&mut self.swarm);
                    waku.filter.expire();
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

    /// Listens on the addresses that the previous process has released by now. Does not read the
    /// swarm's events: they may be new connections, which the caller must handle.
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

    /// Updates the addresses of this node after the certificate has got other names.
    fn follow_certificate(&mut self) {
        let names = self.own.names();
        if names != self.names {
            self.names = names;
            self.refresh();
        }
    }

    fn refresh(&mut self) {
        let Self { swarm, own, addresses, .. } = self;
        addresses.send_modify(|reached| refresh(swarm, own, reached));
    }

    fn carry_out(&mut self, order: NetworkCommand) {
        match order {
            NetworkCommand::Publish(topic, message, reply) => {
                if let Some(reply) = reply {
                    let (gossip, topic) = (&self.swarm.behaviour().gossip, topic.hash());
                    let has = |(_, topics): &(&PeerId, Vec<&TopicHash>)| topics.contains(&&topic);
                    // The receiver may be dropped.
                    let _ = reply.send(gossip.all_peers().filter(has).count());
                }
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
            NetworkCommand::Disconnect(peer) => {
                // Fails if the peer has disconnected already.
                let _ = self.swarm.disconnect_peer_id(peer);
            }
            NetworkCommand::Peers(reply) => {
                // The receiver may be dropped.
                let _ = reply.send(self.known.all(&self.swarm, &self.peers));
            }
        }
    }

    /// Whether a message may be forwarded. Messages above the budget are counted.
    fn may_forward(&mut self, waku: &WakuNode, bytes: usize) -> bool {
        let is_within = self.budget.try_charge(bytes, Instant::now());
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
                let incoming = &self.swarm.behaviour().incoming;
                let listed = incoming.connection_of(propagation_source).cloned();
                let accepted = match &listed {
                    Some(listed) => {
                        listed.counts.receive(message.data.len());
                        serve_now(listed, || relayed::accept(waku, &message))
                    }
                    None => relayed::accept(waku, &message),
                };
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
                    let storing = relayed::store_gossip(&waku, &message);
                    match &listed {
                        Some(listed) => while_serving(listed, storing).await,
                        None => storing.await,
                    }
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
                self.refresh();
            }
            SwarmEvent::Behaviour(NodeBehaviourEvent::Identify(identify::Event::Received {
                peer_id,
                info,
                connection_id,
            })) => {
                let incoming = &self.swarm.behaviour().incoming;
                if let Some(listed) = incoming.connection(peer_id, connection_id) {
                    listed.set_agent(&info.agent_version);
                }
                if let Some(at) = self.known.address(&peer_id) {
                    self.directory.sightings.lock().observe(peer_id, &info.observed_addr, at);
                }
                self.known.identified(peer_id, info);
            }
            SwarmEvent::ConnectionEstablished { peer_id, num_established, endpoint, .. } => {
                if num_established.get() == 1 {
                    waku.metrics.peers.add(1);
                    waku.filter.set_connected(peer_id, true);
                }
                if let Some(network) = &waku.network {
                    network.sent.begin(peer_id);
                }
                if endpoint.is_listener() {
                    self.directory.sightings.lock().connected_from(endpoint.get_remote_address());
                }
                self.known.connected(peer_id, &endpoint);
                self.peers.connected(peer_id);
            }
            SwarmEvent::Behaviour(NodeBehaviourEvent::Ping(ping::Event {
                peer,
                connection,
                result: Err(fault),
            })) if !matches!(fault, ping::Failure::Unsupported) => {
                tracing::debug!(%peer, %fault, "a peer does not answer pings; disconnecting");
                let relays =
                    |(of, topics): (&PeerId, Vec<&TopicHash>)| *of == peer && !topics.is_empty();
                if self.swarm.behaviour().gossip.all_peers().any(relays) {
                    self.silent.insert(connection);
                }
                // Returns false if the connection is closing already.
                let _ = self.swarm.close_connection(connection);
            }
            SwarmEvent::ConnectionClosed {
                peer_id, connection_id, num_established, cause, ..
            } => {
                if let Some(network) = &waku.network {
                    network.sent.forget(peer_id, num_established == 0);
                    if self.silent.remove(&connection_id) {
                        network.silent_peers.fetch_add(1, Ordering::Relaxed);
                    }
                }
                if num_established == 0 {
                    waku.metrics.peers.sub(1);
                    waku.filter.set_connected(peer_id, false);
                    self.known.disconnected(peer_id);
                    self.directory.sightings.lock().disconnected(&peer_id);
                    self.peers.disconnected(peer_id, cause.as_ref());
                }
            }
            SwarmEvent::OutgoingConnectionError { peer_id: Some(peer), error, .. } => {
                self.peers.failed(peer, &error);
            }
            SwarmEvent::IncomingConnectionError { error, send_back_addr, .. } => {
                tracing::debug!(%error, from = %send_back_addr, "a peer was not admitted");
            }
            _ => {}
        }
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

/// Updates the list of a node's addresses, and the addresses that peers learn. Addresses keep the
/// order in which they were added; the announced addresses are last.
fn refresh(swarm: &mut Swarm<NodeBehaviour>, own: &OwnAddresses, reached: &mut Vec<Multiaddr>) {
    let all = own.of(swarm.listeners().cloned());
    for gone in reached.iter().filter(|addr| !all.contains(addr) || !own.is_usable(addr)) {
        swarm.remove_external_address(gone);
    }
    reached.retain(|addr| all.contains(addr));
    for addr in all {
        if own.is_usable(&addr) {
            swarm.add_external_address(addr.clone());
        }
        if !reached.contains(&addr) {
            reached.push(addr);
        }
    }
    reached.sort_by_key(|addr| own.announces(addr));
}

/// Returns the root cause of an error. The transport layers around the cause add no information.
fn root(error: &dyn std::error::Error) -> String {
    let mut root = error;
    while let Some(source) = root.source() {
        root = source;
    }
    root.to_string()
}
