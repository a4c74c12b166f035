//! Tests of a node's answers to invalid input from peers, and of its limits for peers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{AsyncReadExt as _, AsyncWriteExt as _};
use hark_archive::clock::Clock;
use hark_archive::effects::KeepAll;
use hark_archive::retention::RetentionPolicy;
use hark_archive::store::memory::MemoryStore;
use hark_archive::{Write, writer};
use hark_codec::waku::{Message, MessageEncoder, StoreRequest, StoreResponse};
use hark_testkit::disk::scratch;
use libp2p::Stream;

use futures_util::StreamExt as _;
use libp2p::gossipsub::IdentTopic;
use libp2p::identity::Keypair;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, PeerId, Swarm, identify};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::behaviour::{NodeBehaviour, NodeBehaviourEvent};
use super::incoming::IncomingStreams;
use super::outgoing::StreamOpener;
use super::served::ServedTopics;
use super::swarm::{PeerBounds, protocols, swarm};
use super::*;
use crate::Clients;
use crate::answers::Answers;
use crate::door::Host;
use crate::moderation::Moderation;
use crate::settings::SharedSettings;
use crate::shelf;
use crate::stop::{Phase, StopSignal};
use crate::waku::NodeService;
use crate::waku::node::WakuNode;

mod admission;
mod comparisons;
mod exchanges;
mod gossip;
mod light;
mod outgoing;
mod questions;
mod resume;
mod silent;
mod subscribed;
mod transfers;
mod web;

use comparisons::{Comparing, nothing_there};

const STORE: &str = "/vac/waku/store-query/3.0.0";

/// A node with one message, and a peer that is connected to the node.
struct Pair {
    waku: Arc<WakuNode>,
    peer: PeerId,
    addr: Multiaddr,
    opener: StreamOpener,
    /// The streams by which the node pushes messages to the peer.
    pushes: mpsc::UnboundedReceiver<Stream>,
    phase: watch::Sender<Phase>,
    node: tokio::task::JoinHandle<()>,
    client: tokio::task::JoinHandle<()>,
}

impl Pair {
    async fn start(name: &str) -> Self {
        Self::with(name, Clients::default()).await
    }

    /// Starts a node that accepts connections from `clients`.
    async fn with(name: &str, clients: Clients) -> Self {
        Self::shaped(name, clients, |_| {}).await
    }

    /// Starts a node with a configuration that `shape` changes.
    async fn shaped(
        name: &str,
        clients: Clients,
        shape: impl FnOnce(&mut crate::waku::NodeConfig),
    ) -> Self {
        let swarm = stranger();
        let pushes = accept(&swarm.behaviour().incoming, push::PROTOCOL);
        Box::pin(Self::of(name, (clients, shape), (swarm, pushes))).await
    }

    /// Starts a node with a configuration that `shape` changes, and connects this peer.
    async fn of(
        name: &str,
        (clients, shape): (Clients, impl FnOnce(&mut crate::waku::NodeConfig)),
        (mut swarm, pushes): (Swarm<NodeBehaviour>, mpsc::UnboundedReceiver<Stream>),
    ) -> Self {
        let store = MemoryStore::new(KeepAll);
        let message = Message {
            payload: b"hello",
            content_topic: "/a/1/b/proto",
            timestamp: Some(7),
            ..Message::default()
        };
        let mut record = Vec::new();
        let topic = "/waku/2/rs/1/0";
        MessageEncoder::default().encode(&message, topic, &message.hash(topic), &mut record);
        hark_archive::Store::commit(&store, &[Write::Put(record.into())]).unwrap();
        let folder = scratch(name);
        let mut config = crate::waku::NodeConfig {
            proofs: false,
            p2p: Some(P2pConfig {
                listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()],
                announce: vec!["/dns4/node.example/tcp/443/wss".parse().unwrap()],
                key: folder.join("waku.key"),
                entry_nodes: Vec::new(),
                peers: Vec::new(),
                stores: Vec::new(),
                resume_max_s: 0,
                discovery: DiscoveryConfig { exchange: true, ..DiscoveryConfig::default() },
                online: folder.join("waku.online"),
                nodes: folder.join("waku.nodes"),
                sync: SyncPlan::default(),
                connections_max: 100,
                connections_per_address_max: 3,
            }),
            ..crate::waku::NodeConfig::default()
        };
        shape(&mut config);
        let shelf = shelf::ShelfOptions {
            network: &hark_networks::waku::Waku,
            store: Arc::new(store),
            writer: writer::WriterOptions::default(),
            clock: Clock::System,
            retention: RetentionPolicy::default(),
            compact: None,
            handover: None,
        };
        let settings = SharedSettings::default();
        let answers = Answers::new(Arc::clone(&settings));
        let mut host = Host {
            settings,
            clients,
            answers,
            moderation: Moderation::default(),
            unlimited: false,
            tls: None,
            rest_tls: None,
            peer_tls: None,
            taking: None,
        };
        let door = Box::pin(NodeService { config, shelf }.open_in(&mut host)).await.unwrap();
        let waku = Arc::clone(&door.waku);
        let addr: Multiaddr = waku.addresses()[0].parse().unwrap();
        let phase = watch::Sender::new(Phase::Open);
        let stop = StopSignal(phase.subscribe());
        let node = tokio::spawn(async move { door.run(stop).await });
        let opener = swarm.behaviour().outgoing.opener();
        let peer = addr::id(&addr).unwrap();
        swarm.dial(addr.clone()).unwrap();
        let (sender, mut receiver) = oneshot::channel();
        let client = tokio::spawn(async move {
            let mut sender = Some(sender);
            loop {
                if let SwarmEvent::ConnectionEstablished { .. } = swarm.select_next_some().await {
                    // Only the first connection is reported.
                    sender.take().map(|sender| sender.send(()));
                }
            }
        });
        tokio::time::timeout(Duration::from_secs(30), &mut receiver).await.unwrap().unwrap();
        // The node has the key in memory by now.
        let _ = std::fs::remove_dir_all(folder);
        Self { waku, peer, addr, opener, pushes, phase, node, client }
    }

    /// Returns the streams by which the node pushes messages to the peer.
    fn take_pushes(&mut self) -> mpsc::UnboundedReceiver<Stream> {
        std::mem::replace(&mut self.pushes, no_streams())
    }

    async fn stream(&self, protocol: &'static str) -> Stream {
        self.opener.open(self.peer, protocol).await.unwrap()
    }

    /// Returns the answer to these bytes: status, description and number of messages. Fails if the
    /// stream is reset.
    async fn try_say(&self, bytes: &[u8]) -> std::io::Result<(u32, String, usize)> {
        say_on(self.stream(STORE).await, bytes).await
    }

    async fn send_text(&self, bytes: &[u8]) -> (u32, String, usize) {
        self.try_say(bytes).await.unwrap()
    }

    async fn ask(&self, request: &StoreRequest<'_>) -> (u32, String, usize) {
        self.send_text(&framed(request)).await
    }

    /// Returns the answer to a question that another peer asks the node.
    async fn ask_by(&self, opener: &StreamOpener) -> (u32, String, usize) {
        let stream = opener.open(self.peer, STORE).await.unwrap();
        say_on(stream, &framed(&good())).await.unwrap()
    }

    /// Whether the node accepts one more peer. The peer stays connected until its swarm is dropped.
    async fn enters(&self) -> (bool, Swarm<NodeBehaviour>) {
        let mut swarm = stranger();
        swarm.dial(self.addr.clone()).unwrap();
        let asked = tokio::time::timeout(Duration::from_secs(30), async {
            loop {
                match swarm.select_next_some().await {
                    SwarmEvent::ConnectionEstablished { .. } => return true,
                    SwarmEvent::OutgoingConnectionError { .. } => return false,
                    _ => {}
                }
            }
        });
        (asked.await.unwrap(), swarm)
    }

    async fn end(self) {
        self.phase.send_replace(Phase::Down { is_replaced: false });
        self.node.await.unwrap();
        self.client.abort();
    }
}

/// Creates a peer with a new key.
fn stranger() -> Swarm<NodeBehaviour> {
    with_key(Keypair::generate_secp256k1())
}

fn with_key(key: Keypair) -> Swarm<NodeBehaviour> {
    serving(key, &[])
}

/// Creates a peer that may subscribe to these topics of gossip.
fn serving(key: Keypair, topics: &[IdentTopic]) -> Swarm<NodeBehaviour> {
    let mut protocols = protocols(true);
    protocols.push(push::PROTOCOL);
    speaking(key, topics, protocols)
}

/// Creates a peer with the protocols of a node, and without pushes.
fn without_pushes() -> Swarm<NodeBehaviour> {
    speaking(Keypair::generate_secp256k1(), &[], protocols(true))
}

fn speaking(
    key: Keypair,
    topics: &[IdentTopic],
    protocols: Vec<&'static str>,
) -> Swarm<NodeBehaviour> {
    let bounds = PeerBounds {
        served: ServedTopics::new(topics),
        message_bytes: 1_000,
        configured: Vec::new(),
        strangers: 10,
        per_address: 10,
        protocols,
        clients: Clients::default(),
    };
    swarm(key, bounds, None).unwrap()
}

/// Returns the streams of a protocol that peers open from now on.
fn accept(incoming: &IncomingStreams, protocol: &'static str) -> mpsc::UnboundedReceiver<Stream> {
    let (sender, streams) = mpsc::unbounded_channel();
    incoming.serve(protocol, move |_, stream| {
        // The test may have ended.
        let _ = sender.send(stream);
        std::future::ready(())
    });
    streams
}

/// Returns the answer to these bytes, as [`Pair::try_say`] does.
async fn say_on(mut stream: Stream, bytes: &[u8]) -> std::io::Result<(u32, String, usize)> {
    stream.write_all(bytes).await?;
    stream.flush().await?;
    let answer = frame::read(&mut stream, 1 << 20).await?;
    let answer = answer.ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let answer = StoreResponse::parse(&answer).unwrap();
    // The stream ends after the answer.
    assert_eq!(frame::read(&mut stream, 1).await?, None);
    let words = answer.status_desc.unwrap().to_owned();
    Ok((answer.status_code.unwrap(), words, answer.messages().count()))
}

fn no_streams() -> mpsc::UnboundedReceiver<Stream> {
    mpsc::unbounded_channel().1
}

/// Encodes a request as bytes on a stream.
fn framed(request: &StoreRequest<'_>) -> Vec<u8> {
    let (mut bytes, mut framed) = (Vec::new(), Vec::new());
    request.write(std::iter::empty(), std::iter::empty(), &mut bytes);
    hark_codec::waku::protobuf::put_varint(&mut framed, bytes.len() as u64);
    framed.extend_from_slice(&bytes);
    framed
}

fn good() -> StoreRequest<'static> {
    StoreRequest { request_id: "1", include_data: true, forward: true, ..StoreRequest::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_answered_in_the_protocols_terms() {
    let pair = Pair::start("wrong").await;
    assert_eq!(pair.ask(&good()).await, (200, "OK".into(), 1));
    for (bytes, said) in [
        // A field that reaches beyond the end, an unknown wire type, and an empty request.
        (&[2, 0x0a, 9][..], "cut short"),
        (&[1, 0x0b], "type"),
        (&[0], "request_id"),
        // A length above the bound, and an invalid varint.
        (&[0xff, 0xff, 0xff, 0x7f], "bytes, where"),
        (&[0xff; 9], "length"),
    ] {
        let (status, words, messages) = pair.send_text(bytes).await;
        assert!((status, messages) == (400, 0) && words.contains(said), "{bytes:?}: {words}");
    }
    let cursor = Some(&[7; 32][..]);
    let (status, words, _) = pair.ask(&StoreRequest { cursor, ..good() }).await;
    assert_eq!((status, &*words), (300, "archive error: DRIVER_ERROR: cursor not found"));
    let (status, words, _) = pair.ask(&StoreRequest { cursor: Some(&[7]), ..good() }).await;
    assert!(status == 300 && words.contains("INVALID_QUERY"), "{words}");
    let mut stream = pair.stream("/vac/waku/metadata/1.0.0").await;
    frame::write(&mut stream, &[8, 1]).await.unwrap();
    let said = frame::read(&mut stream, 100).await.unwrap().unwrap();
    assert_eq!(said[..4], [8, 1, 16, 0]);
    assert_eq!(frame::read(&mut stream, 1).await.unwrap(), None);
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_rest_are_bounded_and_hold_nobody_up() {
    let pair = Pair::start("rest").await;
    let mut resting = Vec::new();
    for _ in 0..15 {
        let mut stream = pair.stream(STORE).await;
        // The beginning of a request.
        stream.write_all(&[100, 1, 2, 3]).await.unwrap();
        stream.flush().await.unwrap();
        resting.push(stream);
    }
    assert_eq!(pair.ask(&good()).await.0, 200);
    let one = pair.stream(STORE).await;
    // One stream above the limit of a peer is reset.
    let mut reset = pair.stream(STORE).await;
    let answer = tokio::time::timeout(Duration::from_secs(10), frame::read(&mut reset, 1)).await;
    assert!(!matches!(answer, Ok(Ok(Some(_))) | Err(_)), "it is neither answered nor left open");
    drop((one, resting));
    let served = async { while pair.try_say(&framed(&good())).await.is_err() {} };
    tokio::time::timeout(Duration::from_secs(30), served).await.unwrap();
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_streams_of_a_burst_are_answered() {
    let pair = Pair::start("burst").await;
    for _ in 0..20 {
        let answers =
            futures_util::future::join_all((0..16).map(|_| async { pair.ask(&good()).await.0 }));
        assert_eq!(answers.await, [200; 16]);
    }
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_has_so_many_connections_and_gets_them_back() {
    let pair = Pair::start("address").await;
    // One peer is connected already.
    let (second, third, fourth) = (pair.enters().await, pair.enters().await, pair.enters().await);
    assert_eq!([second.0, third.0, fourth.0], [true, true, false]);
    drop((second, third));
    let entered = async {
        while !pair.enters().await.0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), entered).await.unwrap();
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_address_does_not_get_in_and_one_of_a_proxy_may_bring_many() {
    let shared: crate::settings::SharedSettings = Arc::default();
    let reload = crate::SettingsHandle { shared: Arc::clone(&shared), unlimited: false };
    let loopback = crate::ranges::LOOPBACK.to_vec();
    let proxies = |trusted| crate::Proxies { trusted, ..crate::Proxies::default() };
    let pair = Pair::with(
        "denied",
        Clients::new(Arc::clone(&shared), proxies(Vec::new()), Moderation::default()),
    )
    .await;
    let second = pair.enters().await;
    assert!(second.0);
    // The address lists change while the node runs, and change back.
    let mut settings = crate::Settings::default();
    settings.addresses.deny.clone_from(&loopback);
    reload.set(settings).unwrap();
    assert!(!pair.enters().await.0);
    reload.set(crate::Settings::default()).unwrap();
    assert!(pair.enters().await.0);
    drop(second);
    pair.end().await;

    let pair =
        Pair::with("proxy", Clients::new(shared, proxies(loopback), Moderation::default())).await;
    let mut peers = Vec::new();
    for _ in 0..6 {
        peers.push(pair.enters().await);
    }
    assert!(peers.iter().all(|(entered, _)| *entered), "an address may have 3 connections");
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_to_announce_are_sent_to_peers() {
    let pair = Pair::start("announce").await;
    let announced = format!("/dns4/node.example/tcp/443/wss/p2p/{}", pair.peer);
    assert_eq!(pair.waku.addresses(), [pair.addr.to_string(), announced.clone()]);
    let mut swarm = stranger();
    swarm.dial(pair.addr.clone()).unwrap();
    let identified = async {
        loop {
            if let SwarmEvent::Behaviour(NodeBehaviourEvent::Identify(
                identify::Event::Received { info, .. },
            )) = swarm.select_next_some().await
            {
                return info.listen_addrs;
            }
        }
    };
    let received = tokio::time::timeout(Duration::from_secs(30), identified).await.unwrap();
    let all: Vec<String> = received.iter().map(Multiaddr::to_string).collect();
    assert!(all.contains(&announced), "{all:?}");
    pair.end().await;
}
