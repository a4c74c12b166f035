//! What lies below the messages: who is let in, compression, and how long the handshake may take.

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use yawc::close::CloseCode;
use yawc::{Frame, OpCode, Options, WebSocket};

use crate::kit::{NOW_S, Relay, note};

/// Asks for a WebSocket with more headers; the answer's head, and the connection.
async fn upgrade(relay: &Relay, headers: &str) -> (String, TcpStream) {
    let addr = relay.url.strip_prefix("ws://").unwrap();
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {addr}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.expect("an answer"));
    }
    (String::from_utf8_lossy(&answer).into_owned(), stream)
}

fn status(head: &str) -> u16 {
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

/// All of it, to the end.
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
    assert!(answer.contains("rate-limited: the relay has as many connections"), "{answer}");
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
    // What somebody says who is not trusted makes no difference.
    let (answer, stream) = upgrade(&relay, "X-Forwarded-For: 192.0.2.1\r\n").await;
    assert_eq!(status(&answer), 429);
    let answer = rest(answer, stream).await;
    assert!(answer.contains("rate-limited: your address has"), "{answer}");
    assert_eq!(two.count(&[json!({})]).await, 0);
    relay.stop().await;
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
        // Only what the proxies have added counts.
        ("192.0.2.2, 192.0.2.1, 10.1.1.1", 429),
        ("192.0.2.1, 192.0.2.2", 101),
        // An IPv6 client is its network.
        ("2001:db8:0:1::1", 101),
        ("2001:db8:0:1::2", 429),
        ("2001:db8:0:2::1", 101),
    ] {
        let (answer, stream) = upgrade(&relay, &from(hops)).await;
        assert_eq!(status(&answer), expected, "{hops}");
        open.push(stream);
    }
    // A proxy that names nobody is not taken for a client.
    for _ in 0..3 {
        let (answer, stream) = upgrade(&relay, "X-Real-IP: 192.0.2.1\r\n").await;
        assert_eq!(status(&answer), 101);
        open.push(stream);
    }
    drop(open);
    // The place is free as soon as the server has seen the end.
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

async fn agreed(relay: &Relay, offer: &str) -> Option<String> {
    let (head, _) = upgrade(relay, &format!("Sec-WebSocket-Extensions: {offer}\r\n")).await;
    assert_eq!(status(&head), 101);
    let prefix = "sec-websocket-extensions: ";
    head.lines().find_map(|line| line.strip_prefix(prefix).map(str::to_owned))
}

#[tokio::test(flavor = "multi_thread")]
async fn compression_is_agreed_on_where_it_is_offered_on_terms_that_can_be_kept() {
    let relay = Relay::start(|_| {}).await;
    let terms = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
    for offer in [
        "permessage-deflate",
        "permessage-deflate; client_max_window_bits",
        "permessage-deflate;client_no_context_takeover; client_max_window_bits=12",
    ] {
        assert_eq!(agreed(&relay, offer).await.as_deref(), Some(terms), "{offer}");
    }
    for offer in [
        "permessage-deflate; server_max_window_bits=10",
        "permessage-deflate; unheard_of",
        "x-webkit-deflate-frame",
        "",
    ] {
        assert_eq!(agreed(&relay, offer).await, None, "{offer}");
    }
    relay.stop().await;
    let relay = Relay::start(|config| config.deflate_from_bytes = 0).await;
    assert_eq!(agreed(&relay, "permessage-deflate").await, None);
    relay.stop().await;
}

/// A client that compresses whatever it says.
async fn compressing(relay: &Relay) -> yawc::TcpWebSocket {
    let options = Options::default().with_balanced_compression();
    WebSocket::connect(relay.url.parse().unwrap()).with_options(options).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_conversation_says_the_same() {
    let relay = Relay::start(|_| {}).await;
    let mut client = compressing(&relay).await;
    let event = note(1, NOW_S, &"hark! ".repeat(2_000));
    client.send(Frame::text(json!(["EVENT", event]).to_string())).await.unwrap();
    client.send(Frame::text(json!(["REQ", "s", {}]).to_string())).await.unwrap();
    let challenge = client.next().await.unwrap();
    assert!(challenge.payload().starts_with(b"[\"AUTH\""));
    for expected in [
        json!(["OK", event["id"], true, ""]),
        json!(["EVENT", "s", event]),
        json!(["EOSE", "s", ["finish"]]),
    ] {
        let frame = client.next().await.unwrap();
        let heard: Value = serde_json::from_slice(frame.payload()).unwrap();
        assert_eq!(heard, expected);
    }
    relay.stop().await;
}

/// A hundred megabytes are a hundred kilobytes compressed. They are not unpacked further than the
/// bound for a message.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_long_only_when_unpacked_ends_its_connection() {
    let relay = Relay::start(|_| {}).await;
    let mut client = compressing(&relay).await;
    client.send(Frame::text(vec![b' '; 100_000_000])).await.unwrap();
    let close = loop {
        let frame = client.next().await.unwrap();
        if frame.opcode() == OpCode::Close {
            break frame;
        }
    };
    assert_eq!(close.close_code(), Some(CloseCode::Size));
    let mut other = relay.client().await;
    assert_eq!(other.count(&[json!({})]).await, 0);
    relay.stop().await;
}

/// A client's frame.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0x37, 0xfa, 0x21, 0x3d];
    let mut bytes = vec![first];
    match payload.len() {
        len @ 0..126 => bytes.push(0x80 | len as u8),
        len @ 126..65_536 => {
            bytes.push(0xfe);
            bytes.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            bytes.push(0xff);
            bytes.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(&mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

/// The first byte and the payload of the server's next frame that is no ping.
async fn answer(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    loop {
        let first = stream.read_u8().await.unwrap();
        let len = match stream.read_u8().await.unwrap() {
            126 => usize::from(stream.read_u16().await.unwrap()),
            127 => stream.read_u64().await.unwrap() as usize,
            len => usize::from(len),
        };
        let mut payload = vec![0; len];
        stream.read_exact(&mut payload).await.unwrap();
        if first != 0x89 {
            return (first, payload);
        }
    }
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
        frame(0x01, one),
        frame(0x89, b"are you there?"),
        frame(0x00, two),
        frame(0x00, b""),
        frame(0x80, three),
        frame(0x81, short.as_bytes()),
        frame(0x8a, b"nobody asked"),
        frame(0x81, short.replace("\"s\"", "\"t\"").as_bytes()),
    ]
    .concat();
    for piece in [97, 1_000, 33_333, sent.len()] {
        let (_, mut stream) = upgrade(&relay, "").await;
        stream.set_nodelay(true).unwrap();
        assert!(answer(&mut stream).await.1.starts_with(b"[\"AUTH\""));
        for piece in sent.chunks(piece) {
            stream.write_all(piece).await.unwrap();
        }
        let mut heard = Vec::new();
        for _ in 0..4 {
            let (first, text) = answer(&mut stream).await;
            heard.push(format!("{first:x} {}", String::from_utf8_lossy(&text[..6])));
        }
        heard.sort();
        assert_eq!(heard, ["81 [\"EOSE", "81 [\"EOSE", "81 [\"OK\",", "8a are yo"], "{piece}");
    }
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_breaks_the_protocol_is_told_how_and_closed() {
    let relay = Relay::start(|config| config.limits.message_bytes_max = 200_000).await;
    let begun = frame(0x01, b"one");
    // It is told by the head, and who goes on sending might not hear it.
    let cut = |frame: Vec<u8>| frame[..100].to_vec();
    for (what, sent, code) in [
        ("no mask", vec![0x81, 0x01, b'a'], Some(1002)),
        ("a reserved bit", frame(0xa1, b"x"), Some(1002)),
        ("compression that was not agreed on", frame(0xc1, b"x"), Some(1002)),
        ("no opcode", frame(0x83, b"x"), Some(1002)),
        ("the end of no message", frame(0x80, b"x"), Some(1002)),
        ("one message within another", [begun.clone(), frame(0x81, b"x")].concat(), Some(1002)),
        ("a long ping", frame(0x89, &[0; 126]), Some(1002)),
        ("half a close code", frame(0x88, &[3]), Some(1002)),
        ("a close code that is none", frame(0x88, &[0, 5]), Some(1002)),
        ("too long", cut(frame(0x81, &vec![b' '; 200_001])), Some(1009)),
        ("too long in all", [begun, cut(frame(0x00, &vec![b' '; 199_998]))].concat(), Some(1009)),
        ("a farewell", frame(0x88, &[0x03, 0xe8]), Some(1000)),
        ("a farewell without a word", frame(0x88, b""), None),
    ] {
        let (_, mut stream) = upgrade(&relay, "").await;
        stream.write_all(&sent).await.unwrap();
        let payload = loop {
            let (first, payload) = answer(&mut stream).await;
            if first == 0x88 {
                break payload;
            }
        };
        let heard = payload.first_chunk().map(|code| u16::from_be_bytes(*code));
        assert_eq!(heard, code, "{what}");
        assert!(stream.read_u8().await.is_err(), "{what}");
    }
    relay.stop().await;
}
