//! Tests of filter and light push: statuses, bounds, and peers that do not read.

use hark_codec::waku::filter::FilterAction;
use hark_codec::waku::light_push::LegacyPushRequest;
use hark_codec::waku::protobuf::put_varint;
use hark_codec::waku::{
    FilterPush, FilterRequest, FilterResponse, LegacyPush, LightPushRequest, LightPushResponse,
};

use super::*;
use crate::limits::Rate;
use crate::waku::config::{NodeSettings, shared};
use crate::waku::metrics::{LightPushStatus, LightPushVersion, PushOutcome};

const TOPIC: &str = "/waku/2/rs/1/0";
const CONTENT: &str = "/a/1/b/proto";

/// Configures a node that relays messages, with these settings.
fn with(settings: NodeSettings) -> impl FnOnce(&mut crate::waku::NodeConfig) {
    move |config| {
        (config.forward, config.settings) = (true, shared(settings));
    }
}

fn unlimited() -> NodeSettings {
    NodeSettings { filter_requests: None, light_pushes: None, ..NodeSettings::default() }
}

impl Pair {
    /// Sends one frame on a stream of its own, and returns the answer.
    async fn request(&self, protocol: &'static str, request: &[u8]) -> Vec<u8> {
        let mut stream = self.stream(protocol).await;
        frame::write(&mut stream, request).await.unwrap();
        let answer = frame::read(&mut stream, 1 << 20).await.unwrap().unwrap();
        // The stream ends after the answer.
        assert_eq!(frame::read(&mut stream, 1).await.unwrap(), None);
        answer
    }

    async fn filter(&self, action: u64, pubsub: Option<&str>, topics: &[&str]) -> (u32, String) {
        let request = FilterRequest {
            request_id: "id",
            action: Some(FilterAction::Ping),
            pubsub_topic: pubsub,
            bytes: &[],
        };
        let mut bytes = Vec::new();
        request.write(topics.iter().copied(), &mut bytes);
        // Of two fields with the same number, the last one counts.
        hark_codec::waku::protobuf::put_number(&mut bytes, 2, action);
        let answer = self.request(filter::PROTOCOL, &bytes).await;
        let answer = FilterResponse::parse(&answer).unwrap();
        assert!(["id", "N/A"].contains(&answer.request_id));
        (answer.status_code, answer.status_desc.unwrap().to_owned())
    }

    async fn push(
        &self,
        topic: Option<&str>,
        message: Option<&[u8]>,
    ) -> (u32, Option<u32>, String) {
        let request = LightPushRequest { request_id: "7", pubsub_topic: topic, message };
        let mut bytes = Vec::new();
        request.write(&mut bytes);
        let answer = self.request(light_push::PROTOCOL, &bytes).await;
        let answer = LightPushResponse::parse(&answer).unwrap();
        let words = answer.status_desc.unwrap_or_default().to_owned();
        (answer.status_code, answer.relay_peer_count, words)
    }
}

/// A message with the current time, this payload and this content topic.
fn encoded(payload: &[u8], content_topic: &str) -> Vec<u8> {
    let message = Message { payload, content_topic, ..Message::default() };
    let mut bytes = Vec::new();
    message.write(&mut bytes);
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_to_subscribe_get_the_statuses_of_the_protocol() {
    let pair = Pair::shaped("filter-statuses", Clients::default(), with(unlimited())).await;
    let many: Vec<String> = (0..101).map(|n| format!("/a/1/{n}/proto")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (action, pubsub, topics, status, said) in [
        (0, None, &[][..], 404, "NOT_FOUND: peer has no subscriptions"),
        (3, None, &[], 404, "NOT_FOUND"),
        (2, Some(TOPIC), &[CONTENT], 404, "NOT_FOUND"),
        (1, None, &[CONTENT], 400, "BAD_REQUEST: pubsubTopic and contentTopics"),
        (1, Some(TOPIC), &[], 400, "BAD_REQUEST"),
        (1, Some(TOPIC), &many, 400, "BAD_REQUEST: exceeds maximum content topics: 100"),
        (1, Some("/waku/2/rs/1/9"), &[CONTENT], 400, "BAD_REQUEST: this node does not serve"),
        (9, Some(TOPIC), &[CONTENT], 400, "BAD_REQUEST"),
        (1, Some(TOPIC), &[CONTENT, CONTENT], 200, "OK"),
        (0, None, &[], 200, "OK"),
        (2, Some(TOPIC), &["/other/1/b/proto"], 404, "NOT_FOUND"),
        (2, Some(TOPIC), &[CONTENT], 200, "OK"),
        (0, None, &[], 404, "NOT_FOUND"),
        (1, Some(TOPIC), &many[..100], 200, "OK"),
        (3, None, &[], 200, "OK"),
        (3, None, &[], 404, "NOT_FOUND"),
    ] {
        let (code, words) = pair.filter(action, pubsub, topics).await;
        assert!(code == status && words.starts_with(said), "{action} {topics:?}: {code} {words}");
    }
    // A peer may subscribe to 1,000 topics.
    for part in 0..11 {
        let topics: Vec<String> = (0..100).map(|n| format!("/a/1/{part}-{n}/proto")).collect();
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        let (code, words) = pair.filter(1, Some(TOPIC), &topics).await;
        assert_eq!(code, if part < 10 { 200 } else { 503 }, "{words}");
    }
    assert_eq!(pair.waku.filter.count(), 1);
    // Bytes that are no request, and a request that is too long.
    let answer = pair.request(filter::PROTOCOL, &[0x0a, 9]).await;
    assert_eq!(FilterResponse::parse(&answer).unwrap().status_code, 400);
    let mut stream = pair.stream(filter::PROTOCOL).await;
    stream.write_all(&[0xff, 0xff, 0xff, 0x7f]).await.unwrap();
    stream.flush().await.unwrap();
    let answer = frame::read(&mut stream, 1 << 20).await.unwrap().unwrap();
    assert_eq!(FilterResponse::parse(&answer).unwrap().status_code, 400);
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_above_a_rate_and_peers_above_the_bound_are_refused() {
    let slow = Some(Rate { per_minute: 1, at_once: 3 });
    let settings = NodeSettings {
        filter_peers_max: 1,
        filter_requests: slow,
        light_pushes: slow,
        ..NodeSettings::default()
    };
    let pair = Pair::shaped("filter-rates", Clients::default(), with(settings)).await;
    assert_eq!(pair.filter(1, Some(TOPIC), &[CONTENT]).await.0, 200);
    // A second peer, from the same address.
    let (entered, mut swarm) = pair.enters().await;
    assert!(entered);
    let opener = swarm.behaviour().outgoing.opener();
    let client = tokio::spawn(async move {
        loop {
            swarm.select_next_some().await;
        }
    });
    let request = FilterRequest {
        request_id: "2",
        action: Some(FilterAction::Subscribe),
        pubsub_topic: Some(TOPIC),
        bytes: &[],
    };
    let mut bytes = Vec::new();
    request.write([CONTENT].into_iter(), &mut bytes);
    let mut stream = opener.open(pair.peer, filter::PROTOCOL).await.unwrap();
    frame::write(&mut stream, &bytes).await.unwrap();
    let answer = frame::read(&mut stream, 1 << 20).await.unwrap().unwrap();
    let answer = FilterResponse::parse(&answer).unwrap();
    let words = answer.status_desc.unwrap();
    assert_eq!(answer.status_code, 503, "{words}");
    assert!(words.contains("maximum number of subscriptions: 1"), "{words}");
    client.abort();
    // The first peer has sent one request of three.
    let mut codes = Vec::new();
    for _ in 0..4 {
        codes.push(pair.filter(0, None, &[]).await.0);
    }
    assert_eq!(codes, [200, 200, 429, 429]);
    let mut codes = Vec::new();
    for n in 0..4 {
        codes.push(pair.push(Some(TOPIC), Some(&encoded(&[n], CONTENT))).await.0);
    }
    assert_eq!(codes, [200, 200, 200, 429]);
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_light_push_gets_the_statuses_of_the_protocol() {
    let pair = Pair::shaped("push-statuses", Clients::default(), with(unlimited())).await;
    let good = encoded(b"hello", CONTENT);
    let long = encoded(&vec![7; 160_000], CONTENT);
    let longer = vec![0; 300_000];
    for (topic, message, status, said) in [
        (Some(TOPIC), Some(&good[..]), 200, ""),
        (None, Some(&good), 200, ""),
        // The message is stored already.
        (Some(TOPIC), Some(&good), 200, ""),
        (Some(" "), Some(&good), 400, "topic must not be empty"),
        (Some(TOPIC), None, 400, "no message"),
        (Some(TOPIC), Some(&[0x0a, 9]), 400, "decode_rpc_failure"),
        (Some(TOPIC), Some(&long), 413, "bytes"),
        (Some(TOPIC), Some(&longer), 413, "bytes"),
        (Some(TOPIC), Some(&encoded(b"", CONTENT)), 420, "no payload"),
        (None, Some(&encoded(b"x", "nonsense")), 420, "a content topic is"),
        (Some("/waku/2/rs/1/9"), Some(&good), 421, "not subscribed to topic"),
        (Some("nonsense"), Some(&good), 421, "not subscribed to topic"),
    ] {
        let (code, peers, words) = pair.push(topic, message).await;
        assert!(code == status && words.contains(said), "{topic:?}: {code} {words}");
        // Clients of nwaku treat 0 peers as a failure.
        assert_eq!(peers, (status == 200).then_some(1));
    }
    let answer = pair.request(light_push::PROTOCOL, &[0x0a, 9]).await;
    let answer = LightPushResponse::parse(&answer).unwrap();
    assert_eq!((answer.status_code, answer.request_id), (400, "N/A"));
    for (pubsub_topic, is_success) in [(TOPIC, true), ("/waku/2/rs/1/9", false)] {
        let request = Some(LegacyPushRequest { pubsub_topic, message: &good });
        let mut bytes = Vec::new();
        LegacyPush { request_id: "8", request, response: None }.write(&mut bytes);
        let answer = pair.request(light_push::LEGACY_PROTOCOL, &bytes).await;
        let answer = LegacyPush::parse(&answer).unwrap();
        let response = answer.response.unwrap();
        assert_eq!((answer.request_id, response.is_success), ("8", is_success));
        assert_eq!(response.info == "OK", is_success, "{}", response.info);
    }
    let counts = &pair.waku.metrics.light_pushes;
    assert_eq!(counts.of(LightPushVersion::Three).of(LightPushStatus::TooLarge).get(), 2);
    assert_eq!(counts.of(LightPushVersion::Two).of(LightPushStatus::UnsupportedTopic).get(), 1);
    pair.end().await;
    // A node that relays nothing refuses, and says why.
    let only_listens = |config: &mut crate::waku::NodeConfig| config.forward = false;
    let pair = Pair::shaped("push-listener", Clients::default(), only_listens).await;
    let (code, _, words) = pair.push(Some(TOPIC), Some(&good)).await;
    assert!(code == 503 && words.contains("passes none on"), "{words}");
    pair.end().await;
}

/// A client that accepts pushes. It resets the first `refused` streams, reads `per_stream` messages
/// of each further stream, and then closes this stream.
async fn receive(
    mut pushes: mpsc::UnboundedReceiver<Stream>,
    (refused, per_stream): (usize, usize),
    messages: mpsc::UnboundedSender<Vec<u8>>,
) {
    for _ in 0..refused {
        drop(pushes.recv().await);
    }
    while let Some(mut stream) = pushes.recv().await {
        let messages = messages.clone();
        tokio::spawn(async move {
            for _ in 0..per_stream {
                let Ok(Some(bytes)) = frame::read(&mut stream, 1 << 20).await else { return };
                let push = FilterPush::parse(&bytes).unwrap();
                assert_eq!(push.pubsub_topic, TOPIC);
                let _ = messages.send(Message::parse(push.message).unwrap().payload.to_vec());
            }
            // Like go-libp2p, the client discards further messages, and does not reset the stream.
            let _ = stream.close().await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        });
    }
}

/// Clients that read one message of a stream, as go-waku's, and clients that read all, as
/// js-waku's, receive each message once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_client_receives_all_messages_however_many_it_reads_from_a_stream() {
    for per_stream in [1, usize::MAX] {
        let mut pair = Pair::shaped("filter-push", Clients::default(), with(unlimited())).await;
        let (sender, mut messages) = mpsc::unbounded_channel();
        let client = tokio::spawn(receive(pair.take_pushes(), (0, per_stream), sender));
        assert_eq!(pair.filter(1, Some(TOPIC), &[CONTENT]).await.0, 200);
        let mut expected = Vec::new();
        for n in 0..100_u32 {
            // Some messages come after the node has learned how the client reads.
            if n == 80 {
                tokio::time::sleep(Duration::from_millis(1_500)).await;
            }
            let payload = n.to_be_bytes();
            let message = Message {
                payload: &payload,
                content_topic: CONTENT,
                ephemeral: Some(n % 2 == 0),
                ..Message::default()
            };
            let mut bytes = Vec::new();
            message.write(&mut bytes);
            assert_eq!(pair.push(Some(TOPIC), Some(&bytes)).await.0, 200);
            assert_eq!(
                pair.push(Some(TOPIC), Some(&encoded(&payload, "/other/1/b/c"))).await.0,
                200
            );
            expected.push(payload.to_vec());
        }
        let mut received = Vec::new();
        while received.len() < expected.len() {
            let next = tokio::time::timeout(Duration::from_secs(30), messages.recv()).await;
            received.push(next.expect("a message arrives").unwrap());
        }
        received.sort();
        assert_eq!(received, expected);
        assert!(messages.try_recv().is_err(), "no message arrives twice");
        let pushes = &pair.waku.metrics.filter.pushes;
        assert_eq!(pushes.sum(|outcome| outcome != PushOutcome::Sent), 0);
        client.abort();
        pair.end().await;
    }
}

/// A new subscriber receives a burst that is longer than the window of a stream, even if it reads
/// one message of each stream, or resets its first stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_reaches_each_client_however_it_ends_its_streams() {
    for (refused, per_stream) in [(0, 1), (0, usize::MAX), (1, 1), (1, usize::MAX)] {
        let mut pair = Pair::shaped("filter-burst", Clients::default(), with(unlimited())).await;
        let (sender, mut messages) = mpsc::unbounded_channel();
        let client = tokio::spawn(receive(pair.take_pushes(), (refused, per_stream), sender));
        assert_eq!(pair.filter(1, Some(TOPIC), &[CONTENT]).await.0, 200);
        let mut expected = std::collections::BTreeSet::new();
        for n in 0..400_u32 {
            let payload = [&n.to_be_bytes()[..], &[7; 1_400]].concat();
            let message =
                Message { payload: &payload, content_topic: CONTENT, ..Message::default() };
            let origin = crate::waku::metrics::MessageOrigin::Rest;
            pair.waku.publish(origin, &message, Some(TOPIC)).await.unwrap();
            expected.insert(payload);
        }
        let mut received = std::collections::BTreeSet::new();
        while received.len() < expected.len() {
            let next = tokio::time::timeout(Duration::from_mins(1), messages.recv()).await;
            let Ok(Some(message)) = next else {
                let pushes = &pair.waku.metrics.filter.pushes;
                let others = pushes.sum(|outcome| outcome != PushOutcome::Sent);
                let sent = pushes.of(PushOutcome::Sent).get();
                panic!("{refused} {per_stream}: {} came, {sent} sent, {others}", received.len());
            };
            received.insert(message);
        }
        assert_eq!(received, expected);
        assert_eq!(pair.waku.filter.count(), 1, "the client stays subscribed");
        let pushes = &pair.waku.metrics.filter.pushes;
        assert_eq!(pushes.sum(|outcome| outcome != PushOutcome::Sent), 0);
        client.abort();
        pair.end().await;
    }
}

/// A peer that reads nothing, and a peer that does not speak the protocol of pushes, lose their
/// subscriptions; meanwhile messages are stored as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_never_reads_is_dropped_and_counted() {
    let pair = Pair::shaped("filter-unread", Clients::default(), with(unlimited())).await;
    // The streams are accepted, but not read.
    assert_eq!(pair.filter(1, Some(TOPIC), &[CONTENT]).await.0, 200);
    let publish = async |payload: &[u8]| {
        let message = Message { payload, content_topic: CONTENT, ..Message::default() };
        pair.waku.publish(crate::waku::metrics::MessageOrigin::Rest, &message, Some(TOPIC)).await
    };
    let pushes = &pair.waku.metrics.filter.pushes;
    let mut payload = vec![7; 120_000];
    let mut n = 0_u32;
    while pair.waku.filter.count() == 1 {
        payload[..4].copy_from_slice(&n.to_be_bytes());
        n += 1;
        publish(&payload).await.unwrap();
        // The outbox is full long before the time limit of a push ends, so few further messages
        // suffice.
        if n > 60 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    assert_eq!(pushes.of(PushOutcome::Unread).get(), 1);
    assert!(pushes.of(PushOutcome::Dropped).get() > 0);
    // The memory of the waiting messages is free again, and so is the connection.
    while pair.waku.metrics.peers.get() > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (waku, stored) = (Arc::clone(&pair.waku), n as usize + 1);
    let page = waku.service.shelf.store().stats().records;
    assert_eq!(page, stored as u64, "with the message of the fixture");
    pair.end().await;

    let node = (Clients::default(), with(unlimited()));
    let peer = (without_pushes(), no_streams());
    let pair = Box::pin(Pair::of("filter-unsupported", node, peer)).await;
    assert_eq!(pair.filter(1, Some(TOPIC), &[CONTENT]).await.0, 200);
    assert_eq!(pair.push(Some(TOPIC), Some(&encoded(b"x", CONTENT))).await.0, 200);
    while pair.waku.filter.count() == 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(pair.waku.metrics.filter.pushes.of(PushOutcome::Unsupported).get(), 1);
    assert_eq!(pair.filter(0, None, &[]).await.0, 404);
    pair.end().await;
}

/// Bytes made from a seed never make the node panic, and each gets an answer or the end of its
/// stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_bytes_are_answered() {
    let pair = Pair::shaped("light-random", Clients::default(), with(unlimited())).await;
    let mut valid = Vec::new();
    let message = encoded(b"hello", CONTENT);
    let request =
        LightPushRequest { request_id: "1", pubsub_topic: Some(TOPIC), message: Some(&message) };
    request.write(&mut valid);
    let mut random = 1_u64;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize
    };
    let protocols = [filter::PROTOCOL, light_push::PROTOCOL, light_push::LEGACY_PROTOCOL];
    for round in 0..600 {
        let mut bytes = if round % 2 == 0 {
            (0..next() % 80).map(|_| next() as u8).collect()
        } else {
            valid.clone()
        };
        for _ in 0..next() % 4 {
            if let Some(at) = next().checked_rem(bytes.len()) {
                bytes[at] = next() as u8;
            }
        }
        let mut framed = Vec::new();
        put_varint(&mut framed, bytes.len() as u64);
        framed.extend_from_slice(&bytes);
        let mut stream = pair.stream(protocols[round % 3]).await;
        stream.write_all(&framed).await.unwrap();
        stream.close().await.unwrap();
        let answer =
            tokio::time::timeout(Duration::from_secs(30), frame::read(&mut stream, 1 << 20));
        assert!(matches!(answer.await, Ok(Ok(Some(_)))), "{bytes:?}");
    }
    assert_eq!(pair.ask(&good()).await.0, 200);
    pair.end().await;
}
