//! Tests of transfers after comparisons, with messages that are too long for a store.

use hark_codec::waku::protobuf::put_bytes;

use super::*;
use crate::waku::intake::AcceptResult;
use crate::waku::metrics::{Direction, MessageFate, MessageOrigin};

const TOPIC: &str = "/waku/2/rs/1/0";

/// A message with a payload of this length.
fn message(payload: &[u8]) -> Message<'_> {
    let content_topic = "/a/1/b/proto";
    Message { payload, content_topic, timestamp: Some(5), ..Message::default() }
}

/// The frame by which a store transfers a message.
fn transferred(message: &Message<'_>) -> Vec<u8> {
    let (mut bytes, mut frame) = (Vec::new(), Vec::new());
    message.write(&mut bytes);
    put_bytes(&mut frame, 1, TOPIC.as_bytes());
    put_bytes(&mut frame, 2, &bytes);
    frame
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_too_long_does_not_end_a_transfer() {
    let key = Keypair::generate_secp256k1();
    let id = key.public().to_peer_id();
    let pair = Pair::shaped("transfer-long", Clients::default(), |config| {
        let p2p = config.p2p.as_mut().unwrap();
        p2p.peers.push(format!("/ip4/127.0.0.1/tcp/1/p2p/{id}").parse().unwrap());
    })
    .await;
    let store = Comparing::start(&pair, key).await;
    let mut stream = store.opener.open(pair.peer, transfer::PROTOCOL).await.unwrap();
    let too_long = pair.waku.config.message_bytes_max + 2_000;
    for payload_bytes in [10, too_long, 20, too_long, 30] {
        let payload = vec![7; payload_bytes];
        frame::write(&mut stream, &transferred(&message(&payload))).await.unwrap();
    }
    frame::end(&mut stream).await.unwrap();
    let counts = &pair.waku.metrics.messages;
    let stored = || counts.of(MessageOrigin::Store).of(MessageFate::Stored).get();
    let all = async {
        while stored() < 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), all).await.unwrap();
    assert_eq!(pair.waku.metrics.sync.messages.of(Direction::Received).get(), 3);
    store.client.abort();
    pair.end().await;
}

/// Another store may read no long messages, and nothing behind them on the same stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_messages_are_sent_last_and_on_another_stream() {
    let shape = |config: &mut crate::waku::NodeConfig| config.message_bytes_max = 1 << 20;
    let pair = Pair::shaped("transfer-last", Clients::default(), shape).await;
    // These messages are older than the short message of the fixture.
    for fill in [1, 2] {
        let payload = vec![fill; 200 << 10];
        let origin = MessageOrigin::Store;
        let taken =
            pair.waku.accept_message(origin, &message(&payload), payload.len(), TOPIC).await;
        assert!(matches!(taken, Ok(AcceptResult::Stored)));
    }
    let swarm = stranger();
    let opener = swarm.behaviour().outgoing.opener();
    let (sender, mut received) = mpsc::unbounded_channel();
    swarm.behaviour().incoming.serve(transfer::PROTOCOL, move |_, mut stream| {
        let sender = sender.clone();
        async move {
            let mut lens = Vec::new();
            while let Ok(Some(bytes)) = frame::read(&mut stream, 1 << 20).await {
                lens.push(bytes.len());
            }
            let _ = sender.send(lens);
        }
    });
    let counted = Arc::new(Semaphore::new(0));
    let store = Comparing::connect(&pair, swarm, (opener, counted)).await;
    assert!(store.send_text(&pair, &nothing_there()).await.is_some());
    let mut streams = Vec::new();
    for _ in 0..2 {
        let next = tokio::time::timeout(Duration::from_secs(30), received.recv()).await;
        streams.push(next.unwrap().unwrap());
    }
    streams.sort();
    let [short, long] = &streams[..] else { panic!("{streams:?}") };
    assert!(short.len() == 1 && short[0] < 1_000, "{short:?}");
    assert!(long.len() == 2 && long.iter().all(|len| *len > 200 << 10), "{long:?}");
    store.client.abort();
    pair.end().await;
}
