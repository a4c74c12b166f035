//! The layers below the messages: accepted connections, frames, and the ends of connections.

use hark_server::Proxies;
use hark_testkit::nostr::note;
use hark_testkit::websocket::masked;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::kit::{NOW_S, Relay};
use crate::wire::{answer, status, upgrade};

/// The whole answer, read to the end of the stream.
async fn rest(mut answer: String, mut stream: TcpStream) -> String {
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_too_many_gets_a_503_with_a_reason() {
    let relay = Relay::start(|config| config.limits.connections_max = 1).await;
    let mut first = relay.client().await;
    let (answer, stream) = upgrade(&relay, "").await;
    assert_eq!(status(&answer), 503);
    let answer = rest(answer, stream).await;
    assert!(answer.contains("rate-limited: the server has as many connections"), "{answer}");
    assert_eq!(first.count(&[json!({})]).await, 0);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_has_a_bound_of_its_own() {
    let relay = Relay::start(|config| {
        config.proxies.trusted.clear();
        config.limits.connections_per_address_max = 2;
    })
    .await;
    let (_one, mut two) = (relay.client().await, relay.client().await);
    // The header has no effect if the peer is not a trusted proxy.
    let (answer, stream) = upgrade(&relay, "X-Forwarded-For: 192.0.2.1\r\n").await;
    assert_eq!(status(&answer), 429);
    let answer = rest(answer, stream).await;
    assert!(answer.contains("rate-limited: your address has"), "{answer}");
    assert_eq!(two.count(&[json!({})]).await, 0);
    relay.stop().await;
}

/// Tor, `ssh -L` and TCP load balancers connect from this machine and forward any header a client
/// sends.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_on_this_machine_is_believed_only_if_the_operator_names_it() {
    for (proxies, named) in [(Proxies::default(), false), (named_loopback(), true)] {
        let relay = Relay::start(|config| {
            config.proxies = proxies;
            config.limits.connections_per_address_max = 2;
        })
        .await;
        let mut open = Vec::new();
        for client in 1..=3 {
            let header = format!("X-Forwarded-For: 203.0.113.{client}\r\n");
            let (answer, stream) = upgrade(&relay, &header).await;
            let expected = if named || client < 3 { 101 } else { 429 };
            assert_eq!(status(&answer), expected, "{client}, named: {named}");
            open.push(stream);
        }
        relay.stop().await;
    }
}

fn named_loopback() -> Proxies {
    Proxies { trusted: vec!["127.0.0.1/32".parse().unwrap()], ..Proxies::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trusted_proxy_names_its_clients() {
    let relay = Relay::start(|config| {
        config.proxies.trusted.push("10.0.0.0/8".parse().unwrap());
        config.limits.connections_per_address_max = 1;
    })
    .await;
    let from = |hops: &str| format!("X-Forwarded-For: {hops}\r\n");
    let mut open = Vec::new();
    for (hops, expected) in [
        ("192.0.2.1", 101),
        ("192.0.2.1", 429),
        // Only the hops that trusted proxies have added count.
        ("192.0.2.2, 192.0.2.1, 10.1.1.1", 429),
        ("192.0.2.1, 192.0.2.2", 101),
        // An IPv6 client counts by the first 64 bits of its address.
        ("2001:db8:0:1::1", 101),
        ("2001:db8:0:1::2", 429),
        ("2001:db8:0:2::1", 101),
    ] {
        let (answer, stream) = upgrade(&relay, &from(hops)).await;
        assert_eq!(status(&answer), expected, "{hops}");
        open.push(stream);
    }
    // A proxy that names no client does not count as a client.
    for _ in 0..3 {
        let (answer, stream) = upgrade(&relay, "X-Real-IP: 192.0.2.1\r\n").await;
        assert_eq!(status(&answer), 101);
        open.push(stream);
    }
    drop(open);
    // The permit is free as soon as the server has seen the end of the connection.
    while status(&upgrade(&relay, &from("192.0.2.1")).await.0) == 429 {
        tokio::task::yield_now().await;
    }
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_limits_an_address_may_have_any_number() {
    let relay = Relay::start(|config| {
        config.proxies.trusted.clear();
        config.limits.connections_per_address_max = 1;
        config.unlimited = true;
    })
    .await;
    let (_one, mut two) = (relay.client().await, relay.client().await);
    assert_eq!(two.count(&[json!({})]).await, 0);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_the_same_however_it_is_cut() {
    let relay = Relay::start(|_| {}).await;
    let event = note(1, NOW_S, &"x".repeat(90_000));
    let (long, short) =
        (json!(["EVENT", event]).to_string(), r#"["REQ","s",{"kinds":[9],"limit":0}]"#);
    let (one, rest) = long.as_bytes().split_at(30_000);
    let (two, three) = rest.split_at(1);
    let sent = [
        masked(0x01, one),
        masked(0x89, b"are you there?"),
        masked(0x00, two),
        masked(0x00, b""),
        masked(0x80, three),
        masked(0x81, short.as_bytes()),
        masked(0x8a, b"nobody asked"),
        masked(0x81, short.replace("\"s\"", "\"t\"").as_bytes()),
    ]
    .concat();
    for piece in [97, 1_000, 33_333, sent.len()] {
        let (_, mut stream) = upgrade(&relay, "").await;
        stream.set_nodelay(true).unwrap();
        assert!(answer(&mut stream).await.1.starts_with(b"[\"AUTH\""));
        for piece in sent.chunks(piece) {
            stream.write_all(piece).await.unwrap();
        }
        let mut received = Vec::new();
        for _ in 0..4 {
            let (first, text) = answer(&mut stream).await;
            received.push(format!("{first:x} {}", String::from_utf8_lossy(&text[..6])));
        }
        received.sort();
        assert_eq!(received, ["81 [\"EOSE", "81 [\"EOSE", "81 [\"OK\",", "8a are yo"], "{piece}");
    }
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_breaks_the_protocol_gets_a_reason_and_is_closed() {
    let relay = Relay::start(|config| config.limits.message_bytes_max = 200_000).await;
    let begun = masked(0x01, b"one");
    for (what, sent, code) in [
        ("no mask", vec![0x81, 0x01, b'a'], Some(1002)),
        ("a reserved bit", masked(0xa1, b"x"), Some(1002)),
        ("compression that was not agreed on", masked(0xc1, b"x"), Some(1002)),
        ("no opcode", masked(0x83, b"x"), Some(1002)),
        ("the end of no message", masked(0x80, b"x"), Some(1002)),
        ("one message within another", [begun.clone(), masked(0x81, b"x")].concat(), Some(1002)),
        ("a long ping", masked(0x89, &[0; 126]), Some(1002)),
        ("half a close code", masked(0x88, &[3]), Some(1002)),
        ("a close code that is none", masked(0x88, &[0, 5]), Some(1002)),
        ("too long", masked(0x81, &vec![b' '; 200_001]), Some(1009)),
        ("too long in all", [begun, masked(0x00, &vec![b' '; 199_998])].concat(), Some(1009)),
        ("a farewell", masked(0x88, &[0x03, 0xe8]), Some(1000)),
        ("a farewell without a word", masked(0x88, b""), None),
    ] {
        let (_, mut stream) = upgrade(&relay, "").await;
        stream.write_all(&sent).await.unwrap();
        let payload = loop {
            let (first, payload) = answer(&mut stream).await;
            if first == 0x88 {
                break payload;
            }
        };
        let received = payload.first_chunk().map(|code| u16::from_be_bytes(*code));
        assert_eq!(received, code, "{what}");
        assert!(stream.read_u8().await.is_err(), "{what}");
    }
    relay.stop().await;
}

/// The client receives the reason, although most of its bytes are never processed. A connection
/// that is closed with unread bytes is reset, and a reset discards the close frame.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_too_much_and_only_then_reads_gets_a_reason() {
    let relay = Relay::start(|config| config.limits.message_bytes_max = 200_000).await;
    for len in [200_001, 1_000_000, 8_000_000] {
        for _ in 0..10 {
            let (_, mut stream) = upgrade(&relay, "").await;
            let sent = stream.write_all(&masked(0x81, &vec![b' '; len])).await;
            sent.unwrap_or_else(|error| panic!("{len} bytes: {error}"));
            let mut received = Vec::new();
            let end = stream.read_to_end(&mut received).await;
            end.unwrap_or_else(|error| panic!("{len} bytes: {error} after {received:?}"));
            let close =
                [&[0x88, 36, 0x03, 0xf1][..], b"a message is longer than it may be"].concat();
            assert!(received.ends_with(&close), "{len} bytes: {received:?}");
        }
    }
    relay.stop().await;
}
