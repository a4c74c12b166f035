//! Tests of comparisons that peers begin (store sync).

use super::*;

/// A peer that compares, and counts the messages that it receives.
pub(super) struct Comparing {
    pub(super) opener: StreamOpener,
    sent: Arc<Semaphore>,
    pub(super) client: tokio::task::JoinHandle<()>,
}

impl Comparing {
    pub(super) async fn start(pair: &Pair, key: Keypair) -> Self {
        let swarm = with_key(key);
        let (opener, sent) = (swarm.behaviour().outgoing.opener(), Arc::new(Semaphore::new(0)));
        let counted = Arc::clone(&sent);
        swarm.behaviour().incoming.serve(transfer::PROTOCOL, move |_, mut stream| {
            let counted = Arc::clone(&counted);
            async move {
                while let Ok(Some(_)) = frame::read(&mut stream, 1 << 20).await {
                    counted.add_permits(1);
                }
            }
        });
        Self::connect(pair, swarm, (opener, sent)).await
    }

    /// Connects a peer whose transfers are served already.
    pub(super) async fn connect(
        pair: &Pair,
        mut swarm: Swarm<NodeBehaviour>,
        (opener, sent): (StreamOpener, Arc<Semaphore>),
    ) -> Self {
        swarm.dial(pair.addr.clone()).unwrap();
        let (sender, receiver) = oneshot::channel();
        let client = tokio::spawn(async move {
            let mut sender = Some(sender);
            loop {
                if let SwarmEvent::ConnectionEstablished { .. } = swarm.select_next_some().await {
                    // Only the first connection is reported.
                    sender.take().map(|sender| sender.send(()));
                }
            }
        });
        tokio::time::timeout(Duration::from_secs(30), receiver).await.unwrap().unwrap();
        Self { opener, sent, client }
    }

    /// Sends a payload, and returns the answer. Returns `None` if the stream is reset.
    pub(super) async fn send_text(&self, pair: &Pair, payload: &[u8]) -> Option<Vec<u8>> {
        let mut stream = self.opener.open(pair.peer, sync::PROTOCOL).await.unwrap();
        frame::write(&mut stream, payload).await.unwrap();
        frame::read(&mut stream, 8 << 20).await.ok().flatten()
    }

    /// Waits until the node sends this peer a message.
    async fn is_sent_one(&self) {
        let sent = tokio::time::timeout(Duration::from_secs(30), self.sent.acquire());
        sent.await.unwrap().unwrap().forget();
    }
}

/// Returns a payload that lists no messages up to time 100.
pub(super) fn nothing_there() -> Vec<u8> {
    let mut writer = hark_codec::waku::sync::PayloadWriter::new(&[], 1, 1_000);
    writer.items((100, [0; 32]), &[], true);
    writer.finish().0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_peer_was_sent_is_not_sent_to_it_again() {
    let pair = Pair::start("again").await;
    let key = Keypair::generate_secp256k1();
    let peer = Comparing::start(&pair, key.clone()).await;
    let done = || pair.waku.metrics.sync.differences.classes().iter().sum::<u64>();
    for round in 1..=5 {
        assert_eq!(peer.send_text(&pair, &nothing_there()).await.as_deref(), Some(&[0][..]));
        if round == 1 {
            peer.is_sent_one().await;
        }
        while done() < round {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert_eq!(peer.sent.available_permits(), 0);
    let sent = || pair.waku.metrics.sync.messages.of(crate::waku::metrics::Direction::Sent).get();
    assert_eq!(sent(), 1);
    // A disconnected peer may have lost the message, so the message is sent again.
    peer.client.abort();
    let _ = peer.client.await;
    let again = Comparing::start(&pair, key).await;
    again.send_text(&pair, &nothing_there()).await;
    again.is_sent_one().await;
    // The message is counted after it has been sent. The peer may receive the message earlier.
    while sent() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(sent(), 2);
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_of_millions_of_ranges_is_answered_with_a_few_bytes() {
    let pair = Pair::start("ranges").await;
    let peer = Comparing::start(&pair, Keypair::generate_secp256k1()).await;
    // From time 1 on, each range is 1 ns long, and is skipped.
    let mut ranges = vec![0, 0, 1];
    ranges.extend([1, 0].iter().cycle().take(4_000_000));
    assert_eq!(peer.send_text(&pair, &ranges).await.as_deref(), Some(&[0][..]));
    // Each range has a fingerprint that differs from the store's fingerprint.
    let print = [&[1, 1][..], &[7; 32]].concat();
    let prints: Vec<u8> =
        [0, 0, 1].into_iter().chain(print.iter().copied().cycle().take(3_400_000)).collect();
    let answer = peer.send_text(&pair, &prints).await.unwrap();
    assert!(answer.len() <= 4 << 20, "{} bytes", answer.len());
    // Too many topics are refused.
    let mut topics = vec![0x80, 0x80, 0x80, 1];
    topics.resize(4_000_000, 0);
    assert_eq!(peer.send_text(&pair, &topics).await, None);
    assert_eq!(pair.ask(&good()).await.0, 200);
    pair.end().await;
}
