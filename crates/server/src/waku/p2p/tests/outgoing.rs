//! Tests of the streams that the node opens.

use futures_util::FutureExt as _;

use super::silent::Forwarder;
use super::*;
use crate::waku::p2p::outgoing::OpenFault;

/// Connects a peer to the node at this address, and drives the peer's connections from then on.
async fn connected(
    mut swarm: Swarm<NodeBehaviour>,
    addr: &Multiaddr,
) -> tokio::task::JoinHandle<()> {
    swarm.dial(addr.clone()).unwrap();
    let is_open = |event: &SwarmEvent<_>| matches!(event, SwarmEvent::ConnectionEstablished { .. });
    while !is_open(&swarm.select_next_some().await) {}
    tokio::spawn(async move {
        loop {
            swarm.select_next_some().await;
        }
    })
}

/// The opener of the node.
fn opener(pair: &Pair) -> &StreamOpener {
    &pair.waku.network.as_ref().unwrap().opener
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_opened_on_the_newest_connection_of_a_peer() {
    let pair = Pair::start("newest").await;
    let forwarder = Forwarder::start(&pair).await;
    let key = Keypair::generate_secp256k1();
    let peer = key.public().to_peer_id();
    let first = connected(with_key(key.clone()), &forwarder.addr).await;
    forwarder.silence.send(()).unwrap();
    let swarm = with_key(key);
    let by_peer = swarm.behaviour().outgoing.opener();
    let _pushes = accept(&swarm.behaviour().incoming, push::PROTOCOL);
    let second = connected(swarm, &pair.addr).await;
    // The node has both connections by now.
    assert_eq!(pair.ask_by(&by_peer).await.0, 200);
    for _ in 0..20 {
        opener(&pair).open(peer, push::PROTOCOL).await.unwrap();
    }
    first.abort();
    second.abort();
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_wait_for_a_connection_fail_when_the_connection_ends() {
    let pair = Pair::start("ends").await;
    let forwarder = Forwarder::start(&pair).await;
    let swarm = stranger();
    let (peer, by_peer) = (*swarm.local_peer_id(), swarm.behaviour().outgoing.opener());
    let client = connected(swarm, &forwarder.addr).await;
    assert_eq!(pair.ask_by(&by_peer).await.0, 200);
    forwarder.silence.send(()).unwrap();
    // Some streams are being opened, some requests wait in the connection, and some callers wait.
    let opening = (0..40).map(|_| opener(&pair).open(peer, push::PROTOCOL));
    let opening = futures_util::future::join_all(opening);
    let network = pair.waku.network.as_ref().unwrap();
    let (opened, ()) = tokio::join!(opening, network.disconnect(peer));
    for opened in opened {
        assert!(matches!(opened, Err(OpenFault::Ended)), "{opened:?}");
    }
    let closed = tokio::time::timeout(Duration::from_secs(30), forwarder.closed).await;
    closed.expect("the node closes the connection").unwrap();
    while pair.waku.metrics.peers.get() > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let opened = opener(&pair).open(peer, push::PROTOCOL).await;
    assert!(matches!(opened, Err(OpenFault::NotConnected)), "{opened:?}");
    assert_eq!(opener(&pair).peers(), 1, "the connections that have ended are forgotten");
    client.abort();
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_keeps_a_stream_learns_of_a_newer_connection() {
    let pair = Pair::start("replaced").await;
    let key = Keypair::generate_secp256k1();
    let peer = key.public().to_peer_id();
    let first = with_key(key.clone());
    let _pushes = accept(&first.behaviour().incoming, push::PROTOCOL);
    let by_first = first.behaviour().outgoing.opener();
    let first = connected(first, &pair.addr).await;
    assert_eq!(pair.ask_by(&by_first).await.0, 200);
    let (_stream, mut newest) = opener(&pair).open_watched(peer, push::PROTOCOL).await.unwrap();
    let mut replaced = std::pin::pin!(newest.replaced());
    assert!((&mut replaced).now_or_never().is_none());
    let second = connected(with_key(key), &pair.addr).await;
    tokio::time::timeout(Duration::from_secs(30), replaced).await.unwrap();
    first.abort();
    second.abort();
    pair.end().await;
}
