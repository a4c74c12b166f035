//! Sets up the connections: transports, multiplexing, and the protocols of each connection.

use std::sync::Arc;
use std::time::Duration;

use hark_networks::Network as _;
use hark_networks::waku::Waku;
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::Boxed;
use libp2p::core::upgrade::{SelectUpgrade, Version};
use libp2p::identity::Keypair;
use libp2p::{
    Multiaddr, PeerId, Swarm, SwarmBuilder, Transport as _, dns, identify, noise, ping, tcp,
    websocket,
};
use parking_lot::Mutex;

use super::admission::PeerAdmission;
use super::behaviour::NodeBehaviour;
use super::error::NetworkError;
use super::incoming::IncomingStreams;
use super::mplex::BoundedMplex;
use super::outgoing::OutgoingStreams;
use super::patience::PatientMuxer;
use super::secure_web::SecureWeb;
use super::served::ServedTopics;
use super::watched::WatchedGossip;
use super::web::BoundedMessages;
use super::yamux::BoundedYamux;
use super::{ask, exchange, filter, gossip, light_push, metadata, secure_dial, sync, transfer};
use crate::Clients;
use crate::tls::TlsEndpoint;

/// The protocols of the streams that peers may always open.
const PROTOCOLS: [&str; 7] = [
    ask::PROTOCOL,
    metadata::PROTOCOL,
    sync::PROTOCOL,
    transfer::PROTOCOL,
    filter::PROTOCOL,
    light_push::PROTOCOL,
    light_push::LEGACY_PROTOCOL,
];
/// Maximum duration of a connection's handshake, in which both sides authenticate.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// How long an unused connection stays open.
pub(super) const IDLE_MAX: Duration = Duration::from_mins(10);
/// Maximum number of streams of one connection: those of all protocols that a peer may open, those
/// of gossip, and those by which messages are pushed. Each stream can buffer unread bytes from its
/// peer.
const STREAMS_MAX: usize = 144;

/// Bounds for peers' connections and messages.
pub(super) struct PeerBounds {
    pub(super) served: ServedTopics,
    pub(super) message_bytes: usize,
    /// Peers that are admitted however many strangers are connected.
    pub(super) configured: Vec<Multiaddr>,
    /// Maximum number of connections with strangers.
    pub(super) strangers: usize,
    /// Maximum number of connections opened by strangers at one address.
    pub(super) per_address: usize,
    /// The protocols of the streams that peers may open.
    pub(super) protocols: Vec<&'static str>,
    pub(super) clients: Clients,
}

/// Returns the protocols of the streams that peers may open. `has_exchange`: whether peers may ask
/// for the records of other nodes.
pub(super) fn protocols(has_exchange: bool) -> Vec<&'static str> {
    let exchange = has_exchange.then_some(exchange::PROTOCOL);
    PROTOCOLS.into_iter().chain(exchange).collect()
}

/// Sets up the connections of a node. With `tls`, the node can listen on secure WebSockets.
pub(super) fn swarm(
    key: Keypair,
    bounds: PeerBounds,
    tls: Option<Arc<TlsEndpoint>>,
) -> Result<Swarm<NodeBehaviour>, NetworkError> {
    let failed = |error: &dyn std::fmt::Display| NetworkError::Start(error.to_string());
    let swarm = SwarmBuilder::with_existing_identity(key)
        .with_tokio()
        .with_other_transport(|key| transport(key, tls))
        .map_err(|error| failed(&error))?
        .with_behaviour(|key| behaviour(key, bounds))
        .map_err(|error| failed(&error))?
        .with_swarm_config(|config| config.with_idle_connection_timeout(IDLE_MAX))
        .with_connection_timeout(HANDSHAKE_MAX)
        .build();
    Ok(swarm)
}

type SetUp<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Creates the transport: TCP, and WebSockets over TCP, to IP addresses and DNS names. See
/// [`SecureWeb`] for secure WebSockets, and [`PatientMuxer`] for the streams.
fn transport(
    key: &Keypair,
    tls: Option<Arc<TlsEndpoint>>,
) -> SetUp<Boxed<(PeerId, StreamMuxerBox)>> {
    let tcp = || {
        dns::tokio::Transport::system(tcp::tokio::Transport::new(
            tcp::Config::default().nodelay(true),
        ))
    };
    let bounded = tcp()?.map(|socket, _| BoundedMessages::new(socket));
    let muxers =
        || SelectUpgrade::new(BoundedYamux::new(STREAMS_MAX), BoundedMplex::new(STREAMS_MAX));
    let web = websocket::Config::new(bounded)
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(key)?)
        .multiplex(muxers());
    let secure = SecureWeb::new(tls, secure_dial::connector()?, Arc::new(Mutex::new(tcp()?)))
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(key)?)
        .multiplex(muxers());
    let plain =
        tcp()?.upgrade(Version::V1Lazy).authenticate(noise::Config::new(key)?).multiplex(muxers());
    // The plain WebSockets would listen on the address of a secure WebSocket, and dial it, too.
    Ok(secure
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)))
        .or_transport(web.map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer))))
        .map(|either, _| either.into_inner())
        .or_transport(plain.map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer))))
        .map(|either, _| {
            let (peer, muxer) = either.into_inner();
            (peer, StreamMuxerBox::new(PatientMuxer::new(muxer)))
        })
        .boxed())
}

fn behaviour(
    key: &Keypair,
    bounds: PeerBounds,
) -> Result<NodeBehaviour, Box<dyn std::error::Error + Send + Sync>> {
    let gossip = gossip::gossip(bounds.served, bounds.message_bytes)?;
    let agent = concat!("hark/", env!("CARGO_PKG_VERSION"));
    // The addresses of this node are the external addresses (`own_addresses`).
    //
    // The addresses that a peer states are not kept, and so never dialled: a stranger may choose
    // addresses within this node's private network.
    let identify = identify::Config::new("/ipfs/0.1.0".into(), key.public())
        .with_agent_version(agent.into())
        .with_hide_listen_addrs(true)
        .with_cache_size(0);
    let admitted = (bounds.strangers, bounds.per_address);
    Ok(NodeBehaviour {
        admission: PeerAdmission::new(bounds.clients.clone(), &bounds.configured, admitted),
        gossip: WatchedGossip::new(gossip),
        identify: identify::Behaviour::new(identify),
        ping: ping::Behaviour::default(),
        incoming: IncomingStreams::new(&bounds.protocols, bounds.clients, Waku.name()),
        outgoing: OutgoingStreams::default(),
    })
}
