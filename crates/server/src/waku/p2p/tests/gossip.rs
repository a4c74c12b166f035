//! Tests of gossip with many relay nodes, with long frames, and with peers that do not read.

use hark_codec::waku::protobuf::{put_bytes, put_number};
use libp2p::gossipsub::{self, IdentTopic};
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{SwarmBuilder, noise, ping, tcp, yamux};

use super::*;
use crate::waku::metrics::{GossipLoss, MessageFate, MessageOrigin};
use crate::waku::p2p::outgoing::OutgoingStreams;
use crate::waku::p2p::relayed::{GossipVerdict, accept};
use crate::waku::p2p::swarm::IDLE_MAX;
use crate::waku::{NodeConfig, NodeSettings};

const RELAY: &str = "/vac/waku/relay/2.0.0";
const TOPIC: &str = "/waku/2/rs/1/0";

/// Configures a node that relays messages of any time, and admits many peers at one address.
fn relaying(config: &mut NodeConfig) {
    config.forward = true;
    let settings = NodeSettings { window_ns: None, ..NodeSettings::default() };
    config.settings = crate::waku::shared(settings);
    if let Some(p2p) = &mut config.p2p {
        p2p.connections_per_address_max = 100;
    }
}

async fn pair(name: &str) -> Pair {
    Pair::shaped(name, Clients::default(), relaying).await
}

impl Pair {
    fn stored(&self) -> u64 {
        self.waku.metrics.messages.of(MessageOrigin::Relay).of(MessageFate::Stored).get()
    }

    fn lost(&self, what: GossipLoss) -> u64 {
        self.waku.metrics.gossip_losses.of(what).get()
    }

    /// Waits until `count` messages are stored.
    async fn stores(&self, count: u64) {
        until("all are stored", || self.stored() >= count).await;
        assert_eq!(self.stored(), count);
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let holding = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(5), holding)
        .await
        .unwrap_or_else(|_| panic!("{what}"));
}

/// A message that differs from all others, with a payload of `payload_bytes` bytes.
fn message(of: usize, number: usize, payload_bytes: usize) -> Vec<u8> {
    let mut payload = vec![7; payload_bytes];
    payload[..16].copy_from_slice(&[of.to_le_bytes(), number.to_le_bytes()].concat());
    let message = Message {
        payload: &payload,
        content_topic: "/a/1/b/proto",
        timestamp: Some(1_700_000_000_000_000_000),
        ..Message::default()
    };
    let mut bytes = Vec::new();
    message.write(&mut bytes);
    bytes
}

#[derive(NetworkBehaviour)]
struct RelayNode {
    gossip: gossipsub::Behaviour,
    ping: ping::Behaviour,
}

/// A peer that behaves like a relay node of another program. It is connected to the node, and
/// subscribed like all relay nodes.
struct RelayPeer {
    publish: mpsc::Sender<Vec<u8>>,
    seen: watch::Receiver<(bool, usize)>,
}

impl RelayPeer {
    async fn start(pair: &Pair) -> Self {
        let config = gossipsub::ConfigBuilder::default()
            .protocol_id(RELAY, gossipsub::Version::V1_1)
            .validation_mode(gossipsub::ValidationMode::Anonymous)
            .message_id_fn(|message| {
                <sha2::Sha256 as sha2::Digest>::digest(&message.data).to_vec().into()
            })
            .max_transmit_size(300 << 10)
            .max_control_message_size(300 << 10)
            .build()
            .unwrap();
        let author = gossipsub::MessageAuthenticity::Anonymous;
        let mut gossip: gossipsub::Behaviour = gossipsub::Behaviour::new(author, config).unwrap();
        gossip.subscribe(&IdentTopic::new(TOPIC)).unwrap();
        let mut swarm = raw(|| RelayNode { gossip, ping: ping::Behaviour::default() });
        swarm.dial(pair.addr.clone()).unwrap();
        let (publish, mut published) = mpsc::channel::<Vec<u8>>(1);
        let (seeing, mut seen) = watch::channel((false, 0));
        tokio::spawn(async move {
            loop {
                let event = tokio::select! {
                    message = published.recv() => {
                        let Some(message) = message else { return };
                        let gossip = &mut swarm.behaviour_mut().gossip;
                        gossip.publish(IdentTopic::new(TOPIC), message).unwrap();
                        continue;
                    }
                    event = swarm.select_next_some() => event,
                };
                match event {
                    SwarmEvent::Behaviour(RelayNodeEvent::Gossip(
                        gossipsub::Event::Subscribed { .. },
                    )) => seeing.send_modify(|seen| seen.0 = true),
                    SwarmEvent::Behaviour(RelayNodeEvent::Gossip(gossipsub::Event::Message {
                        ..
                    })) => seeing.send_modify(|seen| seen.1 += 1),
                    SwarmEvent::ConnectionClosed { .. } => {
                        seeing.send_modify(|seen| seen.0 = false);
                    }
                    _ => {}
                }
            }
        });
        seen.wait_for(|seen| seen.0).await.unwrap();
        Self { publish, seen }
    }

    fn is_connected(&self) -> bool {
        self.seen.borrow().0
    }

    fn received(&self) -> usize {
        self.seen.borrow().1
    }
}

fn raw<B: NetworkBehaviour>(behaviour: impl FnOnce() -> B) -> Swarm<B> {
    SwarmBuilder::with_existing_identity(Keypair::generate_secp256k1())
        .with_tokio()
        .with_tcp(tcp::Config::default().nodelay(true), noise::Config::new, yamux::Config::default)
        .unwrap()
        .with_behaviour(|_| behaviour())
        .unwrap()
        .with_swarm_config(|config| config.with_idle_connection_timeout(IDLE_MAX))
        .build()
}

#[derive(NetworkBehaviour)]
struct RawStreams {
    incoming: IncomingStreams,
    outgoing: OutgoingStreams,
}

/// A peer that writes its gossip frames itself.
struct RawPeer {
    opener: StreamOpener,
    /// Streams that the node has opened.
    streams: mpsc::UnboundedReceiver<Stream>,
    closed: oneshot::Receiver<()>,
}

impl RawPeer {
    async fn start(pair: &Pair) -> Self {
        let mut swarm = raw(|| RawStreams {
            incoming: IncomingStreams::new(&[RELAY], Clients::default(), "waku"),
            outgoing: OutgoingStreams::default(),
        });
        let opener = swarm.behaviour().outgoing.opener();
        let streams = super::accept(&swarm.behaviour().incoming, RELAY);
        swarm.dial(pair.addr.clone()).unwrap();
        let (open, opened) = oneshot::channel();
        let (close, closed) = oneshot::channel();
        tokio::spawn(async move {
            let (mut open, mut close) = (Some(open), Some(close));
            loop {
                match swarm.select_next_some().await {
                    SwarmEvent::ConnectionEstablished { .. } => {
                        open.take().map(|open| open.send(()));
                    }
                    SwarmEvent::ConnectionClosed { .. } => {
                        close.take().map(|close| close.send(()));
                    }
                    _ => {}
                }
            }
        });
        opened.await.unwrap();
        Self { opener, streams, closed }
    }

    async fn stream(&self, pair: &Pair) -> Stream {
        self.opener.open(pair.peer, RELAY).await.unwrap()
    }
}

/// Writes a field whose content `write` produces.
fn field(out: &mut Vec<u8>, number: u32, write: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    write(&mut inner);
    put_bytes(out, number, &inner);
}

fn subscription(out: &mut Vec<u8>, topic: &str) {
    field(out, 1, |of| {
        put_number(of, 1, 1);
        put_bytes(of, 2, topic.as_bytes());
    });
}

fn published(out: &mut Vec<u8>, data: &[u8]) {
    field(out, 2, |of| {
        put_bytes(of, 2, data);
        put_bytes(of, 4, TOPIC.as_bytes());
    });
}

/// Announces the messages that the peer has.
fn ihave(out: &mut Vec<u8>, ids: usize) {
    field(out, 3, |control| {
        field(control, 1, |ihave| {
            put_bytes(ihave, 1, TOPIC.as_bytes());
            for id in 0..ids {
                let mut bytes = [9; 32];
                bytes[..8].copy_from_slice(&id.to_le_bytes());
                put_bytes(ihave, 2, &bytes);
            }
        });
    });
}

/// Requests to join the mesh.
fn graft(out: &mut Vec<u8>) {
    field(out, 3, |control| {
        field(control, 3, |graft| {
            put_bytes(graft, 1, TOPIC.as_bytes());
        });
    });
}

/// Thirty nodes, most of them outside the mesh. The nodes outside the mesh request the messages of
/// each second in a burst.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_relay_nodes_publish_and_none_is_thrown_out() {
    const NODES: usize = 30;
    let each = if std::env::var_os("HARK_LONG").is_some() { 300 } else { 100 };
    let pair = pair("thirty").await;
    let mut nodes = Vec::new();
    for _ in 0..NODES {
        nodes.push(RelayPeer::start(&pair).await);
    }
    // A stranger's burst does not affect the nodes.
    let stranger = RelayPeer::start(&pair).await;
    let mut pace = tokio::time::interval(Duration::from_micros(1_000_000 / 231));
    for number in 0..each {
        for (of, node) in nodes.iter().enumerate() {
            pace.tick().await;
            node.publish.send(message(of, number, 1_400)).await.unwrap();
        }
        if number == each / 2 {
            for number in 0..40 {
                stranger.publish.send(message(NODES, number, 1_000)).await.unwrap();
            }
        }
    }
    let all = NODES * each + 40;
    pair.stores(all as u64).await;
    assert!(nodes.iter().all(RelayPeer::is_connected) && stranger.is_connected());
    // The nodes get the messages of other nodes, pushed or on request. At each heartbeat, messages
    // are announced to randomly chosen nodes. With many nodes, a node may never be chosen.
    let have_some = || nodes.iter().filter(|node| node.received() > 0).count() > NODES / 2;
    until("most get some", have_some).await;
    let lost = [GossipLoss::Message, GossipLoss::Unforwarded, GossipLoss::Broken];
    assert_eq!(lost.map(|what| pair.lost(what)), [0; 3]);
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_lists_of_ids_and_frames_of_many_messages_are_taken() {
    let pair = pair("long-frames").await;
    let peer = RawPeer::start(&pair).await;
    let mut stream = peer.stream(&pair).await;
    let mut hello = Vec::new();
    subscription(&mut hello, TOPIC);
    frame::write(&mut stream, &hello).await.unwrap();
    for round in 0..10 {
        let mut long = Vec::new();
        ihave(&mut long, 5_000);
        assert!(long.len() > 170_000);
        frame::write(&mut stream, &long).await.unwrap();
        // More than 500 messages in one frame.
        let mut many = Vec::new();
        for number in 0..600 {
            published(&mut many, &message(round, number, 100));
        }
        frame::write(&mut stream, &many).await.unwrap();
    }
    pair.stores(6_000).await;
    // A burst of single messages.
    for number in 0..2_000 {
        let mut one = Vec::new();
        published(&mut one, &message(100, number, 1_400));
        frame::write(&mut stream, &one).await.unwrap();
    }
    pair.stores(8_000).await;
    assert_eq!(pair.lost(GossipLoss::Broken), 0);
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_gossip_has_ended_is_closed_and_counted() {
    let pair = pair("ended").await;
    let peer = RawPeer::start(&pair).await;
    for _ in 0..5 {
        // The last stream may find the connection closed already.
        let Ok(mut stream) = peer.opener.open(pair.peer, RELAY).await else { break };
        // These bytes are not a gossip frame.
        let _ = stream.write_all(&[2, 0xff, 0xff]).await;
        let _ = stream.flush().await;
        let _ = frame::read(&mut stream, 1).await;
    }
    tokio::time::timeout(Duration::from_mins(1), peer.closed).await.unwrap().unwrap();
    until("it is counted", || pair.lost(GossipLoss::Broken) == 1).await;
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute or more: scripts/test --long runs it"]
async fn one_who_takes_nothing_is_disconnected_and_those_who_read_get_all() {
    const MESSAGES_MAX: usize = 300;
    let pair = pair("stalled").await;
    let mut deaf = RawPeer::start(&pair).await;
    let mut stream = deaf.stream(&pair).await;
    let mut hello = Vec::new();
    subscription(&mut hello, TOPIC);
    graft(&mut hello);
    frame::write(&mut stream, &hello).await.unwrap();
    // None of the node's streams is read.
    tokio::spawn(async move {
        let mut unread = Vec::new();
        while let Some(stream) = deaf.streams.recv().await {
            unread.push(stream);
        }
    });
    let (reader, writer) = (RelayPeer::start(&pair).await, RelayPeer::start(&pair).await);
    let (mut closed, mut sent) = (deaf.closed, 0);
    // After some time, the node closes a stream that is not read. After some closed streams, the
    // node closes the connection.
    while tokio::time::timeout(Duration::from_secs(1), &mut closed).await.is_err() {
        assert!(sent < MESSAGES_MAX, "it is still connected");
        writer.publish.send(message(0, sent, 140_000)).await.unwrap();
        sent += 1;
        until("it reads", || reader.received() >= sent).await;
    }
    until("it is counted", || pair.lost(GossipLoss::Broken) == 1).await;
    assert!(reader.is_connected() && writer.is_connected());
    pair.stores(sent as u64).await;
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_shards_of_a_peer_that_names_hundreds_in_one_frame_are_known() {
    let pair = Pair::shaped("shards", Clients::default(), |config| {
        relaying(config);
        config.shards = (0..128).collect();
    })
    .await;
    let peer = RawPeer::start(&pair).await;
    // The node records the served shards that the peer subscribes to, although the peer first names
    // many other shards in the same frame.
    let mut stream = peer.stream(&pair).await;
    let mut hello = Vec::new();
    for at in 0..500 {
        subscription(&mut hello, &format!("/waku/2/rs/2/{at}"));
    }
    for at in 0..128 {
        subscription(&mut hello, &format!("/waku/2/rs/1/{at}"));
    }
    frame::write(&mut stream, &hello).await.unwrap();
    let known = async {
        loop {
            let peers = pair.waku.peers().await.unwrap();
            if peers.iter().any(|peer| peer.shards.len() == 128) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), known).await.unwrap();
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_with_128_shards_exchange_messages() {
    let many = |config: &mut NodeConfig| {
        relaying(config);
        config.shards = (0..128).collect();
    };
    let first = Pair::shaped("many-first", Clients::default(), many).await;
    let second = Pair::shaped("many-second", Clients::default(), |config| {
        many(config);
        if let Some(p2p) = &mut config.p2p {
            p2p.peers.push(first.addr.clone());
        }
    })
    .await;
    for pair in [&first, &second] {
        let known = async {
            while pair.waku.peers().await.unwrap().iter().all(|peer| peer.shards.len() != 128) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), known).await.unwrap();
    }
    for (from, to, shard) in [(&first, &second, 0), (&second, &first, 127)] {
        let topic = format!("/waku/2/rs/1/{shard}");
        from.waku.pass_on(topic, message(0, shard, 100)).await;
        to.stores(1).await;
    }
    second.end().await;
    first.end().await;
}

/// The decision about a gossip message with these bytes.
fn accepted(waku: &WakuNode, data: Vec<u8>) -> GossipVerdict {
    let topic = IdentTopic::new("/waku/2/rs/1/0").hash();
    accept(waku, &gossipsub::Message { source: None, data, sequence_number: None, topic })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_other_nodes_refuse_is_refused_of_gossip() {
    let pair = Pair::start("gossip").await;
    let now = Clock::System.now_ns().cast_signed();
    let good = Message {
        payload: b"hello",
        content_topic: "/a/1/b/proto",
        timestamp: Some(now),
        ..Message::default()
    };
    let written = |message: Message<'_>| {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        bytes
    };
    let with = |number: u64| {
        let mut bytes = written(good);
        hark_codec::waku::protobuf::put_number(&mut bytes, 3, number);
        bytes
    };
    let mut empty = written(Message { payload: b"", ..good });
    for (bytes, expected) in [
        (written(good), GossipVerdict::Yes),
        (with(u64::from(u32::MAX)), GossipVerdict::Yes),
        (with(u64::from(u32::MAX) + 1), GossipVerdict::Broken),
        (empty.clone(), GossipVerdict::Broken),
        // The payload field is present but empty.
        (
            {
                empty.extend([0x0a, 0]);
                empty
            },
            GossipVerdict::Broken,
        ),
        (written(Message { timestamp: Some(7), ..good }), GossipVerdict::Old),
        (vec![0x0a, 9], GossipVerdict::Broken),
    ] {
        assert!(accepted(&pair.waku, bytes.clone()) == expected, "{bytes:02x?}");
    }
    pair.end().await;
}
