//! Publishing as the peers of a node do, by gossip (RFC 11/WAKU2-RELAY): each publisher has a key and a
//! connection of its own. It gets nothing back, as it listens to no topic.

use std::collections::BTreeSet;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures_util::{AsyncReadExt as _, AsyncWriteExt as _, StreamExt as _};
use hark_codec::crypto::sha256;
use hark_codec::waku::Shard;
use hark_codec::waku::protobuf::{put_bytes, put_number, put_varint};
use libp2p::gossipsub::{self, IdentTopic, PublishError};
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{
    Multiaddr, Stream, StreamProtocol, Swarm, SwarmBuilder, identify, noise, ping, tcp, yamux,
};
use serde::Deserialize;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

use super::messages::{Draft, now_ns};
use super::rest::{Client, Refused};
use crate::cli::StoreArgs;
use crate::websocket::Url;

/// Its name.
const RELAY: &str = "/vac/waku/relay/2.0.0";
/// Which shards a peer serves (RFC 66/WAKU2-METADATA): nwaku leaves peers that do not say.
const METADATA: &str = "/vac/waku/metadata/1.0.0";
/// Room for what gossip has around a payload.
const FRAME: usize = 64 << 10;
/// Messages of a peer that wait for their turn on the connection: few, so that none grows old there.
const QUEUE_MAX: usize = 64;
/// How long a node may take to say what it listens to, and a connection to have room.
const PATIENCE: Duration = Duration::from_secs(10);
/// How soon it is tried again.
const PAUSE: Duration = Duration::from_millis(10);
/// Longer than any run: connections rest between messages.
const IDLE_MAX: Duration = Duration::from_hours(24);

/// The way to a node.
pub(super) struct Door {
    pub(super) addr: Multiaddr,
    topic: String,
    /// Bytes of a payload, at most.
    payload_max: usize,
}

/// A publisher.
pub(super) struct Peer {
    orders: mpsc::Sender<Order>,
    /// Drives the connections of all of them.
    _runtime: Arc<Runtime>,
}

/// A message, and what came of it.
type Order = (Vec<u8>, oneshot::Sender<Result<(), Failure>>);

/// Why a message did not go.
enum Failure {
    /// There is no room now.
    Busy(String),
    /// There will be none.
    Gone(String),
}

#[derive(NetworkBehaviour)]
struct Behaviour {
    gossip: gossipsub::Behaviour,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    streams: libp2p_stream::Behaviour,
}

impl Door {
    /// To the node with this REST API, at the address that was given or at its own word.
    pub(super) fn new(
        args: &StoreArgs,
        url: &Url,
        given: Option<&Multiaddr>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            addr: given.map_or_else(|| address(url), |given| Ok(given.clone()))?,
            topic: args.pubsub_topic.clone().context("gossip needs a --pubsub-topic")?,
            payload_max: args.payload_bytes.iter().copied().max().unwrap_or_default(),
        })
    }

    /// Connects so many. Each knows that the node listens to the topic.
    pub(super) fn open(&self, count: usize) -> anyhow::Result<Vec<Peer>> {
        let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().enable_all().build()?);
        let mut peers = Vec::with_capacity(count);
        for _ in 0..count {
            let swarm = runtime.block_on(self.connect());
            let swarm = swarm.with_context(|| format!("the node at {}", self.addr))?;
            // One at a time, as its publisher waits for what came of it.
            let (orders, given) = mpsc::channel(1);
            runtime.spawn(drive(swarm, IdentTopic::new(&self.topic), given));
            peers.push(Peer { orders, _runtime: Arc::clone(&runtime) });
        }
        Ok(peers)
    }

    async fn connect(&self) -> anyhow::Result<Swarm<Behaviour>> {
        let mut swarm = swarm(self.payload_max)?;
        if let Ok(shard) = self.topic.parse() {
            tell(&swarm, shard)?;
        }
        swarm.dial(self.addr.clone())?;
        let mut others = BTreeSet::new();
        let listens = tokio::time::timeout(PATIENCE, self.heard(&mut swarm, &mut others)).await;
        match listens {
            Ok(heard) => heard.map(|()| swarm),
            Err(_) if others.is_empty() => {
                bail!("the node said nothing within {} s", PATIENCE.as_secs())
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

    /// Until the node says that it listens to the topic; says to which `others` it does.
    async fn heard(
        &self,
        swarm: &mut Swarm<Behaviour>,
        others: &mut BTreeSet<String>,
    ) -> anyhow::Result<()> {
        loop {
            match swarm.select_next_some().await {
                SwarmEvent::Behaviour(BehaviourEvent::Gossip(gossipsub::Event::Subscribed {
                    topic,
                    ..
                })) => {
                    if topic.as_str() == self.topic {
                        return Ok(());
                    }
                    others.insert(topic.into_string());
                }
                SwarmEvent::Behaviour(BehaviourEvent::Gossip(
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

impl Peer {
    /// Publishes a message as one that was made just now, as soon as there is room for it. Gives that
    /// time.
    pub(super) fn publish(&self, draft: &Draft) -> anyhow::Result<Result<i64, Refused>> {
        let until = Instant::now() + PATIENCE;
        loop {
            // Of a new time each: gossip takes no message twice, not even one that it had no room for.
            let (time_ns, mut message) = (now_ns()?, Vec::new());
            draft.message(time_ns).write(&mut message);
            let (tell, told) = oneshot::channel();
            self.orders.blocking_send((message, tell)).context("a peer has ended")?;
            let reason = match told.blocking_recv().context("a peer has ended")? {
                Ok(()) => return Ok(Ok(time_ns)),
                Err(Failure::Busy(_)) if Instant::now() < until => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(Failure::Busy(reason) | Failure::Gone(reason)) => reason,
            };
            return Ok(Err(Refused { what: "no way by gossip".into(), reason }));
        }
    }
}

/// Keeps a connection going, until its publisher is dropped.
async fn drive(mut swarm: Swarm<Behaviour>, topic: IdentTopic, mut orders: mpsc::Receiver<Order>) {
    let mut gone = None;
    loop {
        tokio::select! {
            order = orders.recv() => {
                let Some((message, tell)) = order else { return };
                let went = match &gone {
                    Some(why) => Err(Failure::Gone(String::clone(why))),
                    None => publish(&mut swarm, &topic, message),
                };
                // It waits for this.
                let _ = tell.send(went);
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
    swarm: &mut Swarm<Behaviour>,
    topic: &IdentTopic,
    message: Vec<u8>,
) -> Result<(), Failure> {
    match swarm.behaviour_mut().gossip.publish(topic.clone(), message) {
        Ok(_) => Ok(()),
        Err(error @ (PublishError::AllQueuesFull(_) | PublishError::NoPeersSubscribedToTopic)) => {
            Err(Failure::Busy(error.to_string()))
        }
        Err(error) => Err(Failure::Gone(error.to_string())),
    }
}

fn closed(cause: Option<impl std::fmt::Display>) -> String {
    let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
    format!("the node has closed the connection{cause}")
}

/// A peer with a new key, that does as peers of a Waku network do.
fn swarm(payload_max: usize) -> anyhow::Result<Swarm<Behaviour>> {
    let gossip = gossipsub::ConfigBuilder::default()
        .protocol_id(RELAY, gossipsub::Version::V1_1)
        .validation_mode(gossipsub::ValidationMode::Anonymous)
        .message_id_fn(|message| sha256(&message.data).to_vec().into())
        .max_transmit_size(payload_max + FRAME)
        .connection_handler_queue_len(QUEUE_MAX)
        .publish_queue_duration(PATIENCE)
        // Nobody asks a publisher for what it has sent; and what there was no room for is kept as well.
        .history_gossip(1)
        .history_length(1)
        .build()?;
    let gossip = gossipsub::Behaviour::new(gossipsub::MessageAuthenticity::Anonymous, gossip)
        .map_err(anyhow::Error::msg)?;
    let swarm = SwarmBuilder::with_existing_identity(Keypair::generate_secp256k1())
        .with_tokio()
        .with_tcp(tcp::Config::default().nodelay(true), noise::Config::new, yamux::Config::default)?
        .with_dns()?
        .with_behaviour(|key| Behaviour {
            gossip,
            identify: identify::Behaviour::new(identify::Config::new(
                "/ipfs/0.1.0".into(),
                key.public(),
            )),
            ping: ping::Behaviour::default(),
            streams: libp2p_stream::Behaviour::new(),
        })?
        .with_swarm_config(|config| config.with_idle_connection_timeout(IDLE_MAX))
        .build();
    Ok(swarm)
}

/// Says to a node that asks that this peer serves the same shard.
fn tell(swarm: &Swarm<Behaviour>, shard: Shard) -> anyhow::Result<()> {
    let mut control = swarm.behaviour().streams.new_control();
    let mut asking = control.accept(StreamProtocol::new(METADATA))?;
    let answer = metadata(shard);
    tokio::spawn(async move {
        while let Some((_, stream)) = asking.next().await {
            // A node that does not take it may close the connection, which is told then.
            let _ = answer_with(&answer, stream).await;
        }
    });
    Ok(())
}

async fn answer_with(answer: &[u8], mut stream: Stream) -> std::io::Result<()> {
    // All requests are answered alike.
    if stream.read(&mut [0; 1_024]).await? > 0 {
        stream.write_all(answer).await?;
    }
    stream.close().await
}

/// Behind its length: the cluster, and the shard packed in field 3, where nwaku reads it.
fn metadata(shard: Shard) -> Vec<u8> {
    let (mut out, mut said, mut packed) = (Vec::new(), Vec::new(), Vec::new());
    put_number(&mut said, 1, shard.cluster.into());
    put_varint(&mut packed, shard.index.into());
    put_bytes(&mut said, 3, &packed);
    put_varint(&mut out, said.len() as u64);
    out.extend(said);
    out
}

/// What a node says of itself.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Info {
    listen_addresses: Vec<String>,
}

/// Where a node says that peers reach it by TCP.
fn address(url: &Url) -> anyhow::Result<Multiaddr> {
    let advice = "give the node's address as --peer, or --against-peer if it is the other node's";
    let body = match Client::open(url)?.get("/debug/v1/info")? {
        Ok(body) => body,
        Err(Refused { what, reason }) => bail!("/debug/v1/info: {what}: {reason}; {advice}"),
    };
    let info: Info = serde_json::from_slice(&body)
        .with_context(|| format!("/debug/v1/info tells no listenAddresses; {advice}"))?;
    // Where it listens on all addresses, the one of its REST API is among them.
    let host = url.authority.to_socket_addrs()?.next();
    let host = host.with_context(|| format!("{} has no address", url.authority))?.ip();
    first_by_tcp(&info.listen_addresses, host)
        .with_context(|| format!("the node tells no address for TCP; {advice}"))
}

/// The first address for plain TCP, at this host if it is one that stands for all.
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

    #[tokio::test]
    async fn a_node_that_asks_is_told_the_shard() {
        let (mut node, mut peer) = (swarm(0).unwrap(), swarm(0).unwrap());
        node.listen_on("/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
        let addr = loop {
            if let SwarmEvent::NewListenAddr { address, .. } = node.select_next_some().await {
                break address;
            }
        };
        tell(&peer, Shard { cluster: 16, index: 200 }).unwrap();
        peer.dial(addr).unwrap();
        while !node.is_connected(peer.local_peer_id()) {
            tokio::select! {
                _ = node.select_next_some() => {}
                _ = peer.select_next_some() => {}
            }
        }
        let mut control = node.behaviour().streams.new_control();
        let id = *peer.local_peer_id();
        let (_orders, none) = mpsc::channel(1);
        tokio::spawn(drive(node, IdentTopic::new("a"), none));
        let (_orders, none) = mpsc::channel(1);
        tokio::spawn(drive(peer, IdentTopic::new("a"), none));
        let mut stream = control.open_stream(id, StreamProtocol::new(METADATA)).await.unwrap();
        stream.write_all(&[0]).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, [6, 8, 16, 26, 2, 200, 1]);
    }
}
