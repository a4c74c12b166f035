//! Tests of waiting requests, of disconnected peers, and of the shares of an address.

use std::net::{IpAddr, TcpListener};

use hark_codec::waku::sync::PayloadWriter;
use hark_testkit::skipped::skip;

use super::*;
use crate::rate::RateSource;
use crate::service::StoreLocation;
use crate::waku::NodeConfig;
use crate::waku::node::{PEER_QUESTIONS_MAX, PEER_QUESTIONS_PER_ADDRESS_MAX};
use hark_networks::waku::history::HistoryError;

/// Configures a node whose store is a database with one connection, so that one request runs at a
/// time.
fn in_turn(config: &mut NodeConfig) {
    config.store_at = StoreLocation::Elsewhere(1);
}

impl Pair {
    /// Sends a request, followed by the bytes `behind`.
    async fn wait_for_turn(&self, behind: &[u8]) -> Stream {
        let mut stream = self.stream(STORE).await;
        stream.write_all(&framed(&good())).await.unwrap();
        stream.write_all(behind).await.unwrap();
        stream.flush().await.unwrap();
        stream
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_of_the_gone_leave_the_line() {
    let pair = Pair::shaped("gone", Clients::default(), in_turn).await;
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let waku = Arc::clone(&pair.waku);
    let (begin, begun) = oneshot::channel();
    let long = tokio::spawn(async move {
        let question = move || {
            let _ = begin.send(());
            wait.recv()
        };
        waku.service.questions.slots().run(question).await
    });
    begun.await.unwrap();
    let gone = async |count: u64| {
        while pair.waku.metrics.gone.get() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    // A stream with unrequested bytes after the request.
    let _more = pair.wait_for_turn(&vec![0; 70_000]).await;
    gone(1).await;
    // A peer that has finished sending still waits.
    let mut half = pair.wait_for_turn(&[]).await;
    half.close().await.unwrap();
    // A connection that ends.
    let mut swarm = stranger();
    let opener = swarm.behaviour().outgoing.opener();
    swarm.dial(pair.addr.clone()).unwrap();
    let peer = pair.peer;
    let client = tokio::spawn(async move {
        loop {
            swarm.select_next_some().await;
        }
    });
    let mut stream = loop {
        if let Ok(stream) = opener.open(peer, STORE).await {
            break stream;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    stream.write_all(&framed(&good())).await.unwrap();
    stream.close().await.unwrap();
    while pair.waku.service.questions.slots().waiting() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    client.abort();
    gone(2).await;
    go.send(()).unwrap();
    long.await.unwrap();
    let answer = frame::read(&mut half, 1 << 20).await.unwrap().unwrap();
    assert_eq!(StoreResponse::parse(&answer).unwrap().status_code, Some(200));
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_requests_of_one_address_leave_others_theirs() {
    let pair = Pair::start("long").await;
    let mut held = Vec::new();
    let mut peers = vec![pair.opener.clone()];
    let mut clients = Vec::new();
    for _ in 0..2 {
        let (entered, mut swarm) = pair.enters().await;
        assert!(entered);
        peers.push(swarm.behaviour().outgoing.opener());
        clients.push(tokio::spawn(async move {
            loop {
                swarm.select_next_some().await;
            }
        }));
    }
    // The beginning of a request of 100,000 bytes.
    let mut refused = 0;
    for opener in &peers {
        for _ in 0..15 {
            let mut stream = opener.open(pair.peer, STORE).await.unwrap();
            stream.write_all(&[0xa0, 0x8d, 6, 1]).await.unwrap();
            stream.flush().await.unwrap();
            let early =
                tokio::time::timeout(Duration::from_millis(200), frame::read(&mut stream, 1 << 20));
            match early.await {
                Ok(answer) => {
                    let answer = answer.unwrap().unwrap();
                    assert_eq!(StoreResponse::parse(&answer).unwrap().status_code, Some(400));
                    refused += 1;
                }
                Err(_) => held.push(stream),
            }
        }
    }
    assert_eq!((held.len(), refused), (32, 13));
    for client in clients {
        client.abort();
    }
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_of_clients_to_peers_are_bounded_per_address_and_in_all() {
    let pair = Pair::start("peer-questions").await;
    let take = |address: u8| {
        let address = IpAddr::from([192, 0, 2, address]);
        pair.waku.admit_peer_question(RateSource::Address(address.into()))
    };
    let mut held = Vec::new();
    for address in 1..=40 {
        let before = held.len();
        let own = std::iter::from_fn(|| take(address).ok());
        held.extend(own.take(PEER_QUESTIONS_MAX + 1));
        let own = held.len() - before;
        if address == 1 {
            assert_eq!(own, PEER_QUESTIONS_PER_ADDRESS_MAX, "no other address has asked");
        }
        assert!(own <= PEER_QUESTIONS_PER_ADDRESS_MAX, "{address} has {own}");
        assert!(own > 0 || held.len() == PEER_QUESTIONS_MAX, "{address} has none");
    }
    assert_eq!(held.len(), PEER_QUESTIONS_MAX);
    assert!(matches!(take(41), Err(HistoryError::TooMany)));
    drop(held.pop());
    assert!(take(41).is_ok());
    pair.end().await;
}

impl Comparing {
    /// Begins a comparison. Returns its stream, on which the node waits for another payload.
    /// Returns `None` if the node refuses.
    async fn begin(&self, pair: &Pair) -> Option<Stream> {
        let mut payload = PayloadWriter::new(&[], 1, 1_000);
        // The fingerprint differs from the node's fingerprint, so the node lists its messages.
        payload.fingerprint((100, [0; 32]), &[7; 32]);
        let mut stream = self.opener.open(pair.peer, sync::PROTOCOL).await.unwrap();
        frame::write(&mut stream, &payload.finish().0).await.unwrap();
        let answer = frame::read(&mut stream, 1 << 20).await.ok().flatten();
        answer.map(|_| stream)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_has_one_comparison_and_another_address_has_its_own_meanwhile() {
    if TcpListener::bind("[::1]:0").is_err() {
        skip("this machine has no second address of its own, as it lacks IPv6");
        return;
    }
    let mut pair = Pair::shaped("comparisons", Clients::default(), |config| {
        if let Some(p2p) = &mut config.p2p {
            p2p.listen.push("/ip6/::1/tcp/0".parse().unwrap());
        }
    })
    .await;
    let first = Comparing::start(&pair, Keypair::generate_secp256k1()).await;
    let second = Comparing::start(&pair, Keypair::generate_secp256k1()).await;
    pair.addr = pair.waku.addresses()[1].parse().unwrap();
    let elsewhere = Comparing::start(&pair, Keypair::generate_secp256k1()).await;
    let held = first.begin(&pair).await.unwrap();
    assert!(first.begin(&pair).await.is_none());
    assert!(second.begin(&pair).await.is_none(), "another peer of the same address has a session");
    assert!(elsewhere.begin(&pair).await.is_some());
    drop(held);
    let again = async {
        while second.begin(&pair).await.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), again).await.unwrap();
    pair.end().await;
}
