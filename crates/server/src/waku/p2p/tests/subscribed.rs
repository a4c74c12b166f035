//! A load of filter: 1,000 subscriptions of 100 peers to 50 topics, and 200 messages in a second.

use std::collections::HashMap;
use std::time::Instant;

use hark_codec::waku::filter::FilterAction;
use hark_codec::waku::{FilterPush, FilterRequest, FilterResponse};

use super::*;
use crate::waku::config::{NodeSettings, shared};
use crate::waku::metrics::{MessageOrigin, PushOutcome};

const TOPIC: &str = "/waku/2/rs/1/0";
const PEERS: usize = 100;
const TOPICS: usize = 50;
const TOPICS_PER_PEER: usize = 10;
const MESSAGES: usize = 1_000;
const MESSAGES_PER_S: u32 = 200;

fn content_topic(number: usize) -> String {
    format!("/load/1/{number}/proto")
}

/// Connects a peer, and subscribes to its topics. Each received message is sent to `received`.
async fn subscriber(
    pair: &Pair,
    number: usize,
    received: mpsc::UnboundedSender<(usize, u32)>,
) -> tokio::task::JoinHandle<()> {
    let (entered, mut swarm) = pair.enters().await;
    assert!(entered);
    let opener = swarm.behaviour().outgoing.opener();
    let mut pushes = accept(&swarm.behaviour().incoming, push::PROTOCOL);
    let client = tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = swarm.select_next_some() => {}
                Some(mut stream) = pushes.recv() => {
                    let received = received.clone();
                    tokio::spawn(async move {
                        while let Ok(Some(bytes)) = frame::read(&mut stream, 1 << 20).await {
                            let push = FilterPush::parse(&bytes).unwrap();
                            let payload = Message::parse(push.message).unwrap().payload;
                            let message = u32::from_be_bytes(payload[..4].try_into().unwrap());
                            let _ = received.send((number, message));
                        }
                    });
                }
            }
        }
    });
    let topics: Vec<String> = (0..TOPICS_PER_PEER)
        .map(|at| content_topic((number * TOPICS_PER_PEER + at) % TOPICS))
        .collect();
    let request = FilterRequest {
        request_id: "1",
        action: Some(FilterAction::Subscribe),
        pubsub_topic: Some(TOPIC),
        bytes: &[],
    };
    let mut bytes = Vec::new();
    request.write(topics.iter().map(String::as_str), &mut bytes);
    let mut stream = opener.open(pair.peer, filter::PROTOCOL).await.unwrap();
    frame::write(&mut stream, &bytes).await.unwrap();
    let answer = frame::read(&mut stream, 1 << 20).await.unwrap().unwrap();
    assert_eq!(FilterResponse::parse(&answer).unwrap().status_code, 200);
    client
}

/// An import writes old messages without the node's checks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_do_not_get_imported_messages() {
    let forward = |config: &mut crate::waku::NodeConfig| config.forward = true;
    let pair = Pair::shaped("filter-import", Clients::default(), forward).await;
    let (sender, mut received) = mpsc::unbounded_channel();
    let client = subscriber(&pair, 0, sender).await;
    let content_topic = content_topic(0);
    let now_ns = i64::try_from(pair.waku.now_ns()).unwrap();
    let message = |payload: &'static [u8; 4], age_s: i64| Message {
        payload,
        content_topic: &content_topic,
        timestamp: Some(now_ns - age_s * 1_000_000_000),
        ..Message::default()
    };
    let (old, new) = (message(&[0, 0, 0, 1], 100), message(&[0, 0, 0, 2], 0));
    let mut record = Vec::new();
    MessageEncoder::default().encode(&old, TOPIC, &old.hash(TOPIC), &mut record);
    let (sender, stored) = tokio::sync::oneshot::channel();
    let done = Box::new(move |outcome| drop(sender.send(outcome)));
    pair.waku.service.shelf.writer().submit(Write::Put(record.into()), done).unwrap();
    assert!(stored.await.unwrap().is_ok());
    pair.waku.publish(MessageOrigin::Rest, &new, Some(TOPIC)).await.unwrap();
    assert_eq!(received.recv().await, Some((0, 2)));
    // Another store may return a new message before gossip does.
    let first = message(&[0, 0, 0, 3], 0);
    for origin in [MessageOrigin::Store, MessageOrigin::Relay] {
        // The second copy is a duplicate.
        let _ = pair.waku.accept_message(origin, &first, 100, TOPIC).await;
    }
    let last = message(&[0, 0, 0, 4], 0);
    pair.waku.publish(MessageOrigin::Rest, &last, Some(TOPIC)).await.unwrap();
    assert_eq!(received.recv().await, Some((0, 3)));
    assert_eq!(received.recv().await, Some((0, 4)));
    client.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_subscriptions_lose_no_message() {
    let shape = |config: &mut crate::waku::NodeConfig| {
        config.forward = true;
        config.settings =
            shared(NodeSettings { filter_peers_max: 4 * PEERS, ..NodeSettings::default() });
        let p2p = config.p2p.as_mut().unwrap();
        (p2p.connections_max, p2p.connections_per_address_max) = (1_000, 1_000);
    };
    let pair = Pair::shaped("filter-load", Clients::default(), shape).await;
    let (sender, mut received) = mpsc::unbounded_channel();
    let mut clients = Vec::new();
    for number in 0..PEERS {
        clients.push(subscriber(&pair, number, sender.clone()).await);
    }
    assert_eq!(pair.waku.filter.count(), PEERS);
    let per_topic = PEERS * TOPICS_PER_PEER / TOPICS;
    let arrivals = tokio::spawn(async move {
        let mut arrived = HashMap::new();
        while arrived.len() < MESSAGES * per_topic {
            let next = tokio::time::timeout(Duration::from_mins(2), received.recv()).await;
            let one = next.expect("a message arrives").unwrap();
            assert!(arrived.insert(one, Instant::now()).is_none(), "{one:?} arrives twice");
        }
        arrived
    });
    let mut tick = tokio::time::interval(Duration::from_secs(1) / MESSAGES_PER_S);
    let (mut sent, mut payload) = (Vec::new(), [7; 300]);
    for number in 0..MESSAGES {
        tick.tick().await;
        payload[..4].copy_from_slice(&(number as u32).to_be_bytes());
        let content_topic = content_topic(number % TOPICS);
        let message =
            Message { payload: &payload, content_topic: &content_topic, ..Message::default() };
        sent.push(Instant::now());
        pair.waku.publish(MessageOrigin::Rest, &message, Some(TOPIC)).await.unwrap();
        // The store answers meanwhile.
        if number % 50 == 0 {
            assert_eq!(pair.ask(&good()).await.0, 200);
        }
    }
    let arrived = arrivals.await.unwrap();
    let mut times: Vec<Duration> =
        arrived.iter().map(|((_, message), at)| *at - sent[*message as usize]).collect();
    times.sort();
    let part = |percent: usize| times[times.len() * percent / 100];
    println!(
        "{} deliveries of {MESSAGES} messages at {MESSAGES_PER_S}/s to {PEERS} peers: p50 {:?}, p99 {:?}, \
         longest {:?}",
        times.len(),
        part(50),
        part(99),
        times[times.len() - 1]
    );
    let pushes = &pair.waku.metrics.filter.pushes;
    assert_eq!(pushes.of(PushOutcome::Sent).get(), (MESSAGES * per_topic) as u64);
    assert_eq!(pushes.sum(|outcome| outcome != PushOutcome::Sent), 0);
    clients.iter().for_each(tokio::task::JoinHandle::abort);
    pair.end().await;
}
