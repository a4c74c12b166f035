//! Publishes by gossip, as the peers of a node do (RFC 11/WAKU2-RELAY). Each publisher has its own
//! key and its own connection. Like every relay node, a publisher subscribes to the topic. So each
//! publisher also receives the messages that the other publishers send. A publisher outside the
//! mesh learns of new messages once per second, and requests all of these messages at once.

use std::collections::BTreeSet;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures_util::StreamExt as _;
use hark_codec::crypto::sha256;
use hark_codec::waku::Shard;
use libp2p::gossipsub::{self, IdentTopic, PublishError};
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, Swarm, SwarmBuilder, identify, noise, ping, tcp, yamux};
use serde::Deserialize;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

use super::messages::{MessageDraft, now_ns};
use super::metadata::PublisherMetadata;
use super::rest::{RestClient, RestFailure};
use crate::args::WakuBenchArgs;
use crate::websocket::Url;

/// The protocol by which messages are relayed.
const RELAY: &str = "/vac/waku/relay/2.0.0";
/// Maximum number of bytes that gossip adds to a payload.
const FRAME: usize = 64 << 10;
/// The lower bound of the frame limit in bytes: a single frame of a node may name 5,000 messages.
const FRAME_MIN: usize = 256 << 10;
/// Maximum number of messages that wait for a peer's connection. The bound is low, so that no
/// message waits long.
const QUEUE_MAX: usize = 64;
/// How long a node may take to announce its topics, and a connection to accept a message.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause before a message is retried.
const PAUSE: Duration = Duration::from_millis(10);
/// The idle timeout of connections. It is longer than any run, because a connection is idle between
/// messages.
const IDLE_MAX: Duration = Duration::from_hours(24);

/// The endpoint for publishing to a node.
pub(super) struct GossipEndpoint {
    pub(super) addr: Multiaddr,
    topic: String,
    /// Maximum number of bytes of a payload.
    payload_max: usize,
}

/// A publisher.
pub(super) struct GossipPublisher {
    orders: mpsc::Sender<PublishOrder>,
    /// Drives the connections of all peers.
    _runtime: Arc<Runtime>,
}

/// A message to publish, and the channel for the result.
type PublishOrder = (Vec<u8>, oneshot::Sender<Result<(), PublishFailure>>);

/// Why a message was not sent.
enum PublishFailure {
    /// The connection has no capacity now, so the message may be retried.
    Busy(String),
    /// The message cannot be sent, even with a retry.
    Gone(String),
}

#[derive(NetworkBehaviour)]
struct PublisherBehaviour {
    gossip: gossipsub::Behaviour,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    metadata: PublisherMetadata,
}

impl GossipEndpoint {
    /// Creates the endpoint for the node with this REST API, at the given address or at the address
    /// that the node reports.
    pub(super) fn new(
        args: &WakuBenchArgs,
        url: &Url,
        given: Option<&Multiaddr>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            addr: given.map_or_else(|| address(url), |given| Ok(given.clone()))?,
            topic: args.pubsub_topic.clone().context("gossip needs a --pubsub-topic")?,
            payload_max: args.payload_bytes.iter().copied().max().unwrap_or_default(),
        })
    }

    /// Connects `count` peers, and waits until each has received the node's subscription to the
    /// topic.
    pub(super) fn open(&self, count: usize) -> anyhow::Result<Vec<GossipPublisher>> {
        let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().enable_all().build()?);
        let mut peers = Vec::with_capacity(count);
        for _ in 0..count {
            let swarm = runtime.block_on(self.connect());
            let swarm = swarm.with_context(|| format!("the node at {}", self.addr))?;
            // The queue holds one order, as the publisher waits for the result of each order.
            let (orders, given) = mpsc::channel(1);
            runtime.spawn(drive(swarm, IdentTopic::new(&self.topic), given));
            peers.push(GossipPublisher { orders, _runtime: Arc::clone(&runtime) });
        }
        Ok(peers)
    }

    async fn connect(&self) -> anyhow::Result<Swarm<PublisherBehaviour>> {
        let mut swarm = swarm(self.payload_max, self.topic.parse().ok())?;
        swarm.behaviour_mut().gossip.subscribe(&IdentTopic::new(&self.topic))?;
        swarm.dial(self.addr.clone())?;
        let mut others = BTreeSet::new();
        let listens =
            tokio::time::timeout(PATIENCE, self.until_subscribed(&mut swarm, &mut others)).await;
        match listens {
            Ok(subscribed) => subscribed.map(|()| swarm),
            Err(_) if others.is_empty() => {
                bail!("the node announced no topics within {} s", PATIENCE.as_secs())
            }
            Err(_) => {
                let others = Vec::from_iter(others).join(", ");
                bail!(
                    "it does not listen to {}: give one of {others} as --pubsub-topic",
                    self.topic
                )
            }
        }
    }

    /// Waits until the node announces that it subscribes to the topic. Adds its other topics to
    /// `others`.
    async fn until_subscribed(
        &self,
        swarm: &mut Swarm<PublisherBehaviour>,
        others: &mut BTreeSet<String>,
    ) -> anyhow::Result<()> {
        loop {
            match swarm.select_next_some().await {
                SwarmEvent::Behaviour(PublisherBehaviourEvent::Gossip(
                    gossipsub::Event::Subscribed { topic, .. },
                )) => {
                    if topic.as_str() == self.topic {
                        return Ok(());
                    }
                    others.insert(topic.into_string());
                }
                SwarmEvent::Behaviour(PublisherBehaviourEvent::Gossip(
                    gossipsub::Event::GossipsubNotSupported { .. },
                )) => bail!("the node does not speak {RELAY}"),
                SwarmEvent::OutgoingConnectionError { error, .. } => {
                    return Err(error).context("is this its address for peers, by TCP?");
                }
                SwarmEvent::ConnectionClosed { cause, .. } => bail!(closed(cause)),
                _ => {}
            }
        }
    }
}

impl GossipPublisher {
    /// Publishes a message with the current time as soon as the connection has capacity. Returns
    /// the message's time, in ns since 1970.
    pub(super) fn publish(&self, draft: &MessageDraft) -> anyhow::Result<Result<i64, RestFailure>> {
        let until = Instant::now() + PATIENCE;
        loop {
            // Each try has a new time: gossip accepts no message twice, not even after a failure
            // for lack of capacity.
            let (time_ns, mut message) = (now_ns()?, Vec::new());
            draft.message(time_ns).write(&mut message);
            let (reply, replied) = oneshot::channel();
            self.orders.blocking_send((message, reply)).context("a peer has ended")?;
            let reason = match replied.blocking_recv().context("a peer has ended")? {
                Ok(()) => return Ok(Ok(time_ns)),
                Err(PublishFailure::Busy(_)) if Instant::now() < until => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(PublishFailure::Busy(reason) | PublishFailure::Gone(reason)) => reason,
            };
            return Ok(Err(RestFailure { what: "not sent by gossip".into(), reason }));
        }
    }
}

/// Drives a connection until its publisher is dropped.
async fn drive(
    mut swarm: Swarm<PublisherBehaviour>,
    topic: IdentTopic,
    mut orders: mpsc::Receiver<PublishOrder>,
) {
    let mut gone = None;
    loop {
        tokio::select! {
            order = orders.recv() => {
                let Some((message, reply)) = order else { return };
                let went = match &gone {
                    Some(why) => Err(PublishFailure::Gone(String::clone(why))),
                    None => publish(&mut swarm, &topic, message),
                };
                // The publisher waits for the result, so the channel is open.
                let _ = reply.send(went);
            }
            event = swarm.select_next_some() => {
                if let SwarmEvent::ConnectionClosed { cause, .. } = event {
                    gone = Some(closed(cause));
                }
            }
        }
    }
}

fn publish(
    swarm: &mut Swarm<PublisherBehaviour>,
    topic: &IdentTopic,
    message: Vec<u8>,
) -> Result<(), PublishFailure> {
    match swarm.behaviour_mut().gossip.publish(topic.clone(), message) {
        Ok(_) => Ok(()),
        Err(error @ (PublishError::AllQueuesFull(_) | PublishError::NoPeersSubscribedToTopic)) => {
            Err(PublishFailure::Busy(error.to_string()))
        }
        Err(error) => Err(PublishFailure::Gone(error.to_string())),
    }
}

fn closed(cause: Option<impl std::fmt::Display>) -> String {
    let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
    format!("the node has closed the connection{cause}")
}

/// Creates a peer with a new key, which behaves like the peers of a Waku network.
fn swarm(payload_max: usize, shard: Option<Shard>) -> anyhow::Result<Swarm<PublisherBehaviour>> {
    let gossip = gossipsub::ConfigBuilder::default()
        .protocol_id(RELAY, gossipsub::Version::V1_1)
        .validation_mode(gossipsub::ValidationMode::Anonymous)
        .message_id_fn(|message| sha256(&message.data).to_vec().into())
        .max_transmit_size((payload_max + FRAME).max(FRAME_MIN))
        .max_control_message_size(FRAME_MIN)
        .connection_handler_queue_len(QUEUE_MAX)
        .publish_queue_duration(PATIENCE)
        .build()?;
    let gossip = gossipsub::Behaviour::new(gossipsub::MessageAuthenticity::Anonymous, gossip)
        .map_err(anyhow::Error::msg)?;
    let swarm = SwarmBuilder::with_existing_identity(Keypair::generate_secp256k1())
        .with_tokio()
        .with_tcp(tcp::Config::default().nodelay(true), noise::Config::new, yamux::Config::default)?
        .with_dns()?
        .with_behaviour(|key| PublisherBehaviour {
            gossip,
            identify: identify::Behaviour::new(identify::Config::new(
                "/ipfs/0.1.0".into(),
                key.public(),
            )),
            ping: ping::Behaviour::default(),
            metadata: PublisherMetadata::new(shard),
        })?
        .with_swarm_config(|config| config.with_idle_connection_timeout(IDLE_MAX))
        .build();
    Ok(swarm)
}

/// The information that a node gives about itself.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeInfo {
    listen_addresses: Vec<String>,
}

/// Requests the address at which peers reach a node by TCP.
fn address(url: &Url) -> anyhow::Result<Multiaddr> {
    let advice = "give the node's address as --peer, or --against-peer if it is the other node's";
    let body = match RestClient::open(url)?.get("/debug/v1/info")? {
        Ok(body) => body,
        Err(RestFailure { what, reason }) => bail!("/debug/v1/info: {what}: {reason}; {advice}"),
    };
    let info: NodeInfo = serde_json::from_slice(&body)
        .with_context(|| format!("/debug/v1/info has no listenAddresses; {advice}"))?;
    // If the node listens on all addresses (0.0.0.0), peers can also reach it at the IP address of
    // its REST API.
    let host = url.authority.to_socket_addrs()?.next();
    let host = host.with_context(|| format!("{} has no address", url.authority))?.ip();
    first_by_tcp(&info.listen_addresses, host)
        .with_context(|| format!("the node names no address for TCP; {advice}"))
}

/// Returns the first address for plain TCP. `host` replaces an unspecified address such as 0.0.0.0.
fn first_by_tcp(listening: &[String], host: IpAddr) -> Option<Multiaddr> {
    listening.iter().filter_map(|addr| addr.parse::<Multiaddr>().ok()).find_map(|addr| {
        let parts: Vec<Protocol<'_>> = addr.iter().collect();
        let ([at, Protocol::Tcp(_)] | [at, Protocol::Tcp(_), Protocol::P2p(_)]) = &parts[..] else {
            return None;
        };
        let of_all = match at {
            Protocol::Ip4(ip) => ip.is_unspecified(),
            Protocol::Ip6(ip) => ip.is_unspecified(),
            _ => false,
        };
        if of_all { addr.replace(0, |_| Some(host.into())) } else { Some(addr) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_reached_where_it_says_or_where_its_rest_api_is() {
        const ID: &str = "16Uiu2HAmJb2e28qLXxT5kZxVUUoJt72EMzNGXB47Rxx5hw3q4YjS";
        let host = "10.0.0.7".parse().unwrap();
        let found = |listening: &[&str]| {
            let listening: Vec<String> =
                listening.iter().map(|at| format!("{at}/p2p/{ID}")).collect();
            first_by_tcp(&listening, host).map(|addr| addr.to_string())
        };
        let is = |addr: &str| Some(format!("{addr}/p2p/{ID}"));
        let (ws, tcp) = ("/ip4/1.2.3.4/tcp/8000/ws", "/ip4/1.2.3.4/tcp/60000");
        assert_eq!(found(&[ws, tcp, "/ip4/5.6.7.8/tcp/1"]), is(tcp));
        assert_eq!(found(&[ws, "/ip4/0.0.0.0/tcp/60000"]), is("/ip4/10.0.0.7/tcp/60000"));
        assert_eq!(found(&["/ip6/::/tcp/60000"]), is("/ip4/10.0.0.7/tcp/60000"));
        assert_eq!(found(&["/dns4/node/tcp/60000"]), is("/dns4/node/tcp/60000"));
        assert_eq!(found(&["nonsense", ws, "/ip4/1.2.3.4/udp/9000/quic-v1"]), None);
    }
}
