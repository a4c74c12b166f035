//! Compressed messages (permessage-deflate, RFC 7692) in the form that browsers send.

use hark_server::limits::RateLimits;
use hark_testkit::deflate::{Content, deflate, inflate};
use hark_testkit::nostr::note;
use hark_testkit::random::Random;
use hark_testkit::websocket::masked;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::kit::{NOW_S, Relay};
use crate::wire::{answer, status, upgrade};

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
    let relay = Relay::start(|config| config.relay.deflate_from_bytes = 0).await;
    assert_eq!(agreed(&relay, "permessage-deflate").await, None);
    relay.stop().await;
}

/// A client that compresses every message it sends, with zlib's default level and window.
struct Compressing(TcpStream);

impl Compressing {
    async fn connect(relay: &Relay) -> Self {
        let offer = "Sec-WebSocket-Extensions: permessage-deflate\r\n";
        let (head, stream) = upgrade(relay, offer).await;
        assert_eq!(status(&head), 101);
        Self(stream)
    }

    /// Sends one message in `cuts` + 1 frames.
    async fn send_text(&mut self, message: &[u8], random: &mut Random, cuts: usize) {
        let payload = deflate(message, 6, 15);
        let mut ends: Vec<usize> = (0..cuts).map(|_| random.below(payload.len() + 1)).collect();
        ends.sort_unstable();
        ends.push(payload.len());
        let (mut from, mut bytes) = (0, Vec::new());
        for (at, &to) in ends.iter().enumerate() {
            let fin = if at == cuts { 0x80 } else { 0 };
            let first = if at == 0 { 0x41 } else { 0 };
            bytes.extend_from_slice(&masked(fin | first, &payload[from..to]));
            from = to;
        }
        self.0.write_all(&bytes).await.unwrap();
    }

    /// The next message. Fails with the text of a close frame.
    async fn receive(&mut self) -> Result<Value, String> {
        let (first, payload) = answer(&mut self.0).await;
        let text = match first {
            0x81 => payload,
            0xc1 => inflate(&payload, 1 << 20),
            _ => return Err(format!("{first:x} {}", String::from_utf8_lossy(&payload[2..]))),
        };
        Ok(serde_json::from_slice(&text).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_conversation_says_the_same() {
    let relay = Relay::start(|_| {}).await;
    let (mut client, mut random) = (Compressing::connect(&relay).await, Random::new(1));
    assert_eq!(client.receive().await.unwrap()[0], "AUTH");
    let event = note(1, NOW_S, &"hark! ".repeat(2_000));
    client.send_text(json!(["EVENT", event]).to_string().as_bytes(), &mut random, 0).await;
    client.send_text(json!(["REQ", "s", {}]).to_string().as_bytes(), &mut random, 0).await;
    for expected in [
        json!(["OK", event["id"], true, ""]),
        json!(["EVENT", "s", event]),
        json!(["EOSE", "s", ["finish"]]),
    ] {
        assert_eq!(client.receive().await.unwrap(), expected);
    }
    relay.stop().await;
}

/// Sends several kinds of content, short and long, in one frame and in several.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_client_compresses_is_understood() {
    let relay = Relay::start(|config| config.limits.rates = RateLimits::none()).await;
    let mut random = Random::new(2);
    let (mut refused, mut first) = (0, String::new());
    for (content, len) in [Content::Letter, Content::Events, Content::Words, Content::Hex]
        .into_iter()
        .flat_map(|content| [100, 20_000, 33_000, 60_000, 99_000].map(|len| (content, len)))
    {
        let mut client = Compressing::connect(&relay).await;
        assert_eq!(client.receive().await.unwrap()[0], "AUTH");
        let text = String::from_utf8(content.make(&mut random, len)).unwrap();
        let event = note(1, NOW_S, &text);
        for (cuts, reason) in [(0, ""), (1, "duplicate: already have this event"), (7, "")] {
            let message = match cuts {
                7 => json!(["COUNT", "n", { "ids": [event["id"]] }]).to_string() + &" ".repeat(len),
                _ => json!(["EVENT", event]).to_string(),
            };
            client.send_text(message.as_bytes(), &mut random, cuts).await;
            let expected = match cuts {
                7 => json!(["COUNT", "n", { "count": 1 }]),
                _ => json!(["OK", event["id"], true, reason]),
            };
            match client.receive().await {
                Ok(received) => assert_eq!(received, expected),
                Err(closed) => {
                    refused += 1;
                    first = format!("{content:?} of {len} bytes in {cuts} cuts: {closed}");
                    break;
                }
            }
        }
    }
    assert_eq!(refused, 0, "of 20 clients were closed, the last one at {first}");
    relay.stop().await;
}

/// A hundred megabytes compress to a hundred kilobytes. They are decompressed only up to the bound
/// for a message.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_long_only_when_unpacked_ends_its_connection() {
    let relay = Relay::start(|_| {}).await;
    let mut client = Compressing::connect(&relay).await;
    assert_eq!(client.receive().await.unwrap()[0], "AUTH");
    client.send_text(&vec![b' '; 100_000_000], &mut Random::new(3), 0).await;
    assert_eq!(client.receive().await.unwrap_err(), "88 a message is longer than it may be");
    let mut other = relay.client().await;
    assert_eq!(other.count(&[json!({})]).await, 0);
    relay.stop().await;
}
