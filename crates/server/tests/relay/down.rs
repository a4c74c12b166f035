//! How connections end.

use std::time::Duration;

use hark_testkit::nostr::note;
use hark_testkit::websocket::{masked, upgrade_request};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::kit::{NOW_S, Relay, http};
use crate::wire::{narrow, next_frame, upgrade, upgrade_on};

#[tokio::test(flavor = "multi_thread")]
async fn going_down_answers_what_was_taken_and_says_goodbye() {
    let mut relay = Relay::start(|_| {}).await;
    let (mut busy, mut idle) = (relay.client().await, relay.client().await);
    idle.ask("s", &[json!({})]).await;
    for n in 0..50 {
        busy.feed(json!(["EVENT", note(1, n, "x")])).await;
    }
    busy.flush().await;
    assert_eq!(busy.receive().await[0], "OK");
    relay.begin_stop();
    assert_eq!(busy.closed().await, Some(CloseCode::Away));
    assert_eq!(idle.closed().await, Some(CloseCode::Away));
    let url = relay.url.clone();
    relay.stop().await;
    assert!(tokio_tungstenite::connect_async(&url).await.is_err());
}

/// The client still sends when the server ends. The system would discard the last answers if the
/// server left the received bytes unread.
#[tokio::test(flavor = "multi_thread")]
async fn going_down_answers_a_client_that_goes_on_sending() {
    let mut relay = Relay::start(|_| {}).await;
    let (_, stream) = upgrade_on(narrow(&relay).await, "").await;
    let (mut from, mut to) = stream.into_split();
    let sending = tokio::spawn(async move {
        for n in 0.. {
            let event = json!(["EVENT", note(1, n, "x")]).to_string();
            if to.write_all(&masked(0x81, event.as_bytes())).await.is_err() {
                return;
            }
        }
    });
    let mut received = vec![0; 64 << 10];
    from.read_exact(&mut received).await.unwrap();
    relay.begin_stop();
    from.read_to_end(&mut received).await.expect("the connection is not reset");
    let goodbye =
        received.windows(4).rposition(|four| four[..1] == [0x88] && four[2..] == [3, 0xe9]);
    assert!(goodbye.is_some_and(|at| at + 200 > received.len()), "the close frame is the last");
    let stored = relay.store.stats().records;
    let told = received.windows(7).filter(|text| text == b"\",true,").count();
    assert_eq!(told as u64, stored, "every stored event is acknowledged");
    sending.abort();
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_long_a_message_ends_its_connection_only() {
    let relay = Relay::start(|config| {
        config.limits.message_bytes_max = 1_000;
        config.limits.events.event_bytes_max = 900;
    })
    .await;
    let (mut client, mut other) = (relay.client().await, relay.client().await);
    let exact = format!("[\"REQ\",\"s\",{{}}{}]", " ".repeat(1_000 - 14));
    client.send_text(&exact).await;
    assert!(client.stored("s").await.is_empty());
    client.send_text("x".repeat(1_001)).await;
    assert_eq!(client.closed().await, Some(CloseCode::Size));
    drop(client);
    // The connection is counted as soon as the server has seen its end.
    let counted = "\nhark_connections_ended_total{reason=\"protocol\"} 1\n";
    while !http(&relay.url, "/metrics", "").await.1.contains(counted) {
        tokio::task::yield_now().await;
    }
    let (accepted, reason) = other.publish(&note(1, NOW_S, &"x".repeat(560))).await;
    assert!(!accepted && reason.starts_with("invalid: event is larger"), "{reason}");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_too_many_is_closed_at_once() {
    let relay = Relay::start(|config| config.limits.connections_max = 2).await;
    let first = relay.client().await;
    let mut second = relay.client().await;
    assert!(tokio_tungstenite::connect_async(&relay.url).await.is_err());
    drop(first);
    // The permit is free as soon as the server has seen the end of the first connection.
    let mut third = loop {
        if let Ok((socket, _)) = tokio_tungstenite::connect_async(&relay.url).await {
            break socket;
        }
        tokio::task::yield_now().await;
    };
    third.close(None).await.unwrap();
    assert_eq!(second.count(&[json!({})]).await, 0);
    relay.stop().await;
}

/// A client that sends half a frame, half a request or nothing at all does not stay connected
/// forever. A WebSocket is pinged first.
#[tokio::test(flavor = "multi_thread")]
async fn who_says_nothing_is_closed() {
    let relay = Relay::start(|config| {
        config.limits.ping_after_s = 0;
        config.limits.idle_timeout_s = 1;
        config.limits.handshake_timeout_ms = 200;
    })
    .await;
    let addr = relay.url.strip_prefix("ws://").unwrap();
    let silent = TcpStream::connect(addr).await.unwrap();
    let mut half_head = TcpStream::connect(addr).await.unwrap();
    half_head.write_all(b"GET / HTTP/1.1\r\nHost:").await.unwrap();
    let mut half_frame = TcpStream::connect(addr).await.unwrap();
    half_frame.write_all(upgrade_request(addr, "").as_bytes()).await.unwrap();
    half_frame.write_all(&[0x81, 0xfe, 0x01]).await.unwrap();
    let mut received = Vec::new();
    half_frame.read_to_end(&mut received).await.unwrap();
    let frames = received.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let close = [&[0x88, 35, 0x03, 0xe9][..], b"nothing was received for too long"].concat();
    let ping = frames + 2 + usize::from(received[frames + 1]);
    assert!(received[frames + 2..ping].starts_with(b"[\"AUTH\","), "the challenge");
    assert_eq!(received[ping..ping + 2], [0x89, 0], "a ping comes first");
    assert!(received.ends_with(&close), "then a goodbye");
    for mut stream in [silent, half_head] {
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        assert!(received.is_empty() || received.starts_with(b"HTTP/1.1 408"));
    }
    relay.stop().await;
}

/// A proxy may end a connection that is silent for longer than the time between two pings.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_only_answers_pings_is_pinged_again_after_the_same_time() {
    let relay = Relay::start(|config| {
        config.limits.ping_after_s = 1;
        config.limits.idle_timeout_s = 100;
    })
    .await;
    let (_, mut stream) = upgrade(&relay, "").await;
    let pings = async {
        for _ in 0..3 {
            while next_frame(&mut stream).await.0 != 0x89 {}
            stream.write_all(&masked(0x8a, b"")).await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_mins(1), pings).await.expect("three pings");
    relay.stop().await;
}
