//! Tests of peers that fall silent or leave.

use std::collections::BTreeSet;

use hark_codec::waku::filter::FilterAction;
use hark_codec::waku::{FilterPush, FilterRequest, FilterResponse};
use libp2p::multiaddr::Protocol;
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::waku::config::{NodeSettings, shared};
use crate::waku::metrics::MessageOrigin;

const TOPIC: &str = "/waku/2/rs/1/0";
const CONTENT: &str = "/a/1/b/proto";

/// Forwards the bytes of one connection with a node. Once the forwarder is silent, no byte is
/// forwarded any more, but both sides of the connection stay open.
pub(super) struct Forwarder {
    /// The address at which a peer reaches the node through the forwarder.
    pub(super) addr: Multiaddr,
    pub(super) silence: oneshot::Sender<()>,
    /// Receives a value when the node has closed the silent connection.
    pub(super) closed: oneshot::Receiver<()>,
}

impl Forwarder {
    pub(super) async fn start(pair: &Pair) -> Self {
        let port = pair.addr.iter().find_map(|part| match part {
            Protocol::Tcp(port) => Some(port),
            _ => None,
        });
        let port = port.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let addr = format!("/ip4/127.0.0.1/tcp/{own}/p2p/{}", pair.peer).parse().unwrap();
        let (silence, silent) = oneshot::channel();
        let (close, closed) = oneshot::channel();
        tokio::spawn(async move {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut near, &mut far) => return,
                _ = silent => {}
            }
            // The node's bytes are discarded. An error is the end of the connection, too.
            let _ = tokio::io::copy(&mut far, &mut tokio::io::sink()).await;
            let _ = close.send(());
            // The peer's side stays open until the test ends.
            std::future::pending::<()>().await;
        });
        Self { addr, silence, closed }
    }
}

/// A peer that receives pushes.
pub(super) struct Subscriber {
    pub(super) opener: StreamOpener,
    /// The payloads of the received messages.
    pushed: mpsc::UnboundedReceiver<Vec<u8>>,
    pub(super) client: tokio::task::JoinHandle<()>,
}

impl Subscriber {
    /// Connects a peer to the node at this address.
    pub(super) async fn connect(mut swarm: Swarm<NodeBehaviour>, addr: &Multiaddr) -> Self {
        let opener = swarm.behaviour().outgoing.opener();
        let mut pushes = accept(&swarm.behaviour().incoming, push::PROTOCOL);
        swarm.dial(addr.clone()).unwrap();
        let connecting = async {
            while !matches!(
                swarm.select_next_some().await,
                SwarmEvent::ConnectionEstablished { .. }
            ) {}
        };
        tokio::time::timeout(Duration::from_secs(30), connecting).await.unwrap();
        let (sender, pushed) = mpsc::unbounded_channel();
        let client = tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = swarm.select_next_some() => {}
                    Some(mut stream) = pushes.recv() => {
                        let sender = sender.clone();
                        tokio::spawn(async move {
                            while let Ok(Some(bytes)) = frame::read(&mut stream, 1 << 20).await {
                                let push = FilterPush::parse(&bytes).unwrap();
                                let message = Message::parse(push.message).unwrap();
                                let _ = sender.send(message.payload.to_vec());
                            }
                        });
                    }
                }
            }
        });
        Self { opener, pushed, client }
    }

    /// Returns the payload of the next message.
    async fn receive(&mut self) -> Vec<u8> {
        let next = tokio::time::timeout(Duration::from_secs(30), self.pushed.recv()).await;
        next.expect("a message arrives").unwrap()
    }
}

/// Sends a request for [`CONTENT`] to the filter of the node. Returns the status.
async fn ask_filter(pair: &Pair, opener: &StreamOpener, action: FilterAction) -> u32 {
    let (request_id, pubsub_topic) = ("1", Some(TOPIC));
    let request = FilterRequest { request_id, action: Some(action), pubsub_topic, bytes: &[] };
    let mut bytes = Vec::new();
    request.write([CONTENT].into_iter(), &mut bytes);
    let mut stream = opener.open(pair.peer, filter::PROTOCOL).await.unwrap();
    frame::write(&mut stream, &bytes).await.unwrap();
    let answer = frame::read(&mut stream, 1 << 20).await.unwrap().unwrap();
    FilterResponse::parse(&answer).unwrap().status_code
}

/// Publishes a message with this payload.
async fn publish(pair: &Pair, payload: &[u8]) {
    let message = Message { payload, content_topic: CONTENT, ..Message::default() };
    pair.waku.publish(MessageOrigin::Rest, &message, Some(TOPIC)).await.unwrap();
}

/// Waits until `holds` returns true.
pub(super) async fn wait_until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    waited.unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute or more: scripts/test --long runs it"]
async fn a_relay_node_that_falls_silent_is_disconnected_and_counted() {
    let pair = Pair::start("silent").await;
    let forwarder = Forwarder::start(&pair).await;
    let topic = IdentTopic::new(TOPIC);
    let mut swarm = serving(Keypair::generate_secp256k1(), std::slice::from_ref(&topic));
    swarm.behaviour_mut().gossip.subscribe(&topic).unwrap();
    swarm.dial(forwarder.addr.clone()).unwrap();
    let client = tokio::spawn(async move {
        loop {
            swarm.select_next_some().await;
        }
    });
    wait_until("the peer relays", async || {
        pair.waku.peers().await.unwrap().iter().any(|peer| !peer.shards.is_empty())
    })
    .await;
    forwarder.silence.send(()).unwrap();
    let closed = tokio::time::timeout(Duration::from_mins(3), forwarder.closed).await;
    closed.expect("the node closes the connection").unwrap();
    let silent = || pair.waku.network.as_ref().unwrap().silent_peers();
    // The peer that answers pings stays connected.
    wait_until("it is counted", async || silent() == 1 && pair.waku.metrics.peers.get() == 1).await;
    client.abort();
    pair.end().await;
}

/// A network that changes, such as that of a phone, leaves a connection that no side has closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_connects_again_gets_the_messages_on_its_new_connection() {
    let shape = |config: &mut crate::waku::NodeConfig| config.forward = true;
    let pair = Pair::shaped("subscriber-again", Clients::default(), shape).await;
    let forwarder = Forwarder::start(&pair).await;
    let key = Keypair::generate_secp256k1();
    let mut first = Subscriber::connect(with_key(key.clone()), &forwarder.addr).await;
    assert_eq!(ask_filter(&pair, &first.opener, FilterAction::Subscribe).await, 200);
    publish(&pair, b"0").await;
    assert_eq!(first.receive().await, b"0");
    forwarder.silence.send(()).unwrap();
    let mut second = Subscriber::connect(with_key(key), &pair.addr).await;
    // The node has the new connection by now.
    assert_eq!(pair.ask_by(&second.opener).await.0, 200);
    let expected: BTreeSet<Vec<u8>> = [b"1", b"2", b"3"].map(|payload| payload.to_vec()).into();
    for payload in &expected {
        publish(&pair, payload).await;
    }
    let mut received = BTreeSet::new();
    while received.len() < expected.len() {
        let payload = second.receive().await;
        // The last message of the earlier connection may be sent again.
        if payload != b"0" {
            received.insert(payload);
        }
    }
    assert_eq!(received, expected);
    assert_eq!(pair.waku.filter.count(), 1);
    first.client.abort();
    second.client.abort();
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_has_left_makes_room_for_another_of_its_address() {
    // An address may have two of eight places.
    let pair = Pair::shaped("subscriber-left", Clients::default(), |config| {
        let filter_peers_max = 8;
        let settings =
            NodeSettings { filter_peers_max, filter_requests: None, ..NodeSettings::default() };
        config.settings = shared(settings);
    })
    .await;
    let leaving = Subscriber::connect(stranger(), &pair.addr).await;
    let staying = Subscriber::connect(stranger(), &pair.addr).await;
    for subscriber in [&leaving, &staying] {
        assert_eq!(ask_filter(&pair, &subscriber.opener, FilterAction::Subscribe).await, 200);
    }
    assert_eq!(ask_filter(&pair, &pair.opener, FilterAction::Subscribe).await, 503);
    assert_eq!(pair.waku.filter.count(), 2, "a connected subscriber keeps its place");
    leaving.client.abort();
    wait_until("there is room", async || {
        ask_filter(&pair, &pair.opener, FilterAction::Subscribe).await == 200
    })
    .await;
    assert_eq!(ask_filter(&pair, &staying.opener, FilterAction::Ping).await, 200);
    assert_eq!(ask_filter(&pair, &pair.opener, FilterAction::Ping).await, 200);
    assert_eq!(pair.waku.filter.count(), 2);
    staying.client.abort();
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_addresses_that_a_subscriber_states_are_not_dialled() {
    let shape = |config: &mut crate::waku::NodeConfig| config.forward = true;
    let pair = Pair::shaped("subscriber-states", Clients::default(), shape).await;
    let private = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = private.local_addr().unwrap().port();
    let mut swarm = stranger();
    swarm.add_external_address(format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap());
    let mut subscriber = Subscriber::connect(swarm, &pair.addr).await;
    assert_eq!(ask_filter(&pair, &subscriber.opener, FilterAction::Subscribe).await, 200);
    let stated = format!("/tcp/{port}/");
    wait_until("the address is known", async || {
        pair.waku.peers().await.unwrap().iter().any(|peer| peer.addr.contains(&stated))
    })
    .await;
    for payload in 0..50_u8 {
        publish(&pair, &[payload]).await;
    }
    subscriber.receive().await;
    // The node sends the last messages again, as the stream ends soon after its first message.
    subscriber.client.abort();
    let dialled = tokio::time::timeout(Duration::from_secs(3), private.accept()).await;
    assert!(dialled.is_err(), "the node has dialled a private address");
    assert_eq!(pair.waku.metrics.peers.get(), 1, "the subscriber has left");
    pair.end().await;
}
