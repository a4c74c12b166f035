//! Tests of peers that fall silent or leave.

use libp2p::multiaddr::Protocol;
use tokio::net::{TcpListener, TcpStream};

use super::*;

const TOPIC: &str = "/waku/2/rs/1/0";

/// Forwards the bytes of one connection with a node. Once the forwarder is silent, no byte is
/// forwarded any more, but both sides of the connection stay open.
struct Forwarder {
    /// The address at which a peer reaches the node through the forwarder.
    addr: Multiaddr,
    silence: oneshot::Sender<()>,
    /// Receives a value when the node has closed the silent connection.
    closed: oneshot::Receiver<()>,
}

impl Forwarder {
    async fn start(pair: &Pair) -> Self {
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

/// Waits until `holds` returns true.
async fn wait_until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
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
