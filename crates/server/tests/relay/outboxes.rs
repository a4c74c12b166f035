//! Bounds of the messages that wait for clients that do not read: bytes and time, for each client
//! and for all clients together.

use std::time::Duration;

use hark_testkit::nostr::note;
use hark_testkit::wait::until_async;
use hark_testkit::websocket::masked;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::kit::{NOW_S, Relay};
use crate::operators::scrape;
use crate::wire::{connect_with_buffer, narrow, status, upgrade_on};

/// Number of stored notes, and bytes of each note.
const NOTES: usize = 60;
const NOTE_BYTES: usize = 90_000;

/// Publishes more bytes than the socket buffers between a server and a client hold.
async fn fill(relay: &Relay) {
    publish_notes(relay, NOTES).await;
}

async fn publish_notes(relay: &Relay, count: usize) {
    let mut client = relay.client().await;
    for n in 0..count {
        client.publish_new(&note(1, NOW_S + n as u64, &"x".repeat(NOTE_BYTES))).await;
    }
}

/// A client that asks a given number of questions for all notes, and never reads.
async fn deaf(relay: &Relay, questions: usize) -> TcpStream {
    ask_on(narrow(relay).await, questions).await
}

/// Asks a given number of questions for all notes on a connection.
async fn ask_on(stream: TcpStream, questions: usize) -> TcpStream {
    let (head, mut stream) = upgrade_on(stream, "").await;
    assert_eq!(status(&head), 101);
    for n in 0..questions {
        let question = json!(["REQ", n.to_string(), { "kinds": [1] }]).to_string();
        stream.write_all(&masked(0x81, question.as_bytes())).await.unwrap();
    }
    stream
}

/// Waits until `is` accepts the value of a metric.
pub(crate) async fn until(relay: &Relay, name: &str, mut is: impl FnMut(f64) -> bool) {
    until_async(name, async || is(scrape(relay).await[name])).await;
}

/// Tests the bound of all clients and the bound of one address. Other clients are answered
/// meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn questions_of_many_who_never_read_hold_no_more_than_the_server_may() {
    const MAX: usize = 4_000_000;
    // Each thread may add one page, and the last event of a page may exceed the page's size.
    let cores = std::thread::available_parallelism().unwrap().get();
    let bound = MAX + (cores + 1) * (64 << 10) + (cores + 1) * NOTE_BYTES;
    for by_address in [false, true] {
        let relay = Relay::start(|config| {
            config.limits.outbox_pause_bytes = 200_000;
            if by_address {
                config.proxies.trusted.clear();
                config.limits.outboxes_per_address_bytes_max = MAX;
            } else {
                config.limits.outboxes_bytes_max = MAX;
            }
        })
        .await;
        fill(&relay).await;
        let mut silent = Vec::new();
        for _ in 0..20 {
            silent.push(deaf(&relay, 30).await);
        }
        let mut most = 0.0_f64;
        for _ in 0..20 {
            most = most.max(scrape(&relay).await["hark_outbox_bytes"]);
            sleep(Duration::from_millis(20)).await;
        }
        // Above the bound of an address, connections with nothing unread continue, so each may have
        // one more page.
        let bound = bound + if by_address { silent.len() * ((64 << 10) + NOTE_BYTES) } else { 0 };
        assert!(
            most <= bound as f64,
            "{most} bytes wait, {bound} may; of an address: {by_address}"
        );
        let mut other = relay.client().await;
        assert_eq!(other.find_now(&[json!({ "kinds": [1] })]).await.len(), NOTES);
        drop(silent);
        until(&relay, "hark_outbox_bytes", |bytes| bytes < 1.0).await;
        relay.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_nothing_is_closed_whatever_it_says() {
    let relay = Relay::start(|config| {
        config.limits.ping_after_s = 1;
        config.limits.idle_timeout_s = 2;
    })
    .await;
    fill(&relay).await;
    let mut silent = deaf(&relay, 4).await;
    let speaking = tokio::spawn(async move {
        while silent.write_all(&masked(0x8a, b"")).await.is_ok() {
            sleep(Duration::from_millis(100)).await;
        }
    });
    let ended = "hark_connections_ended_total{reason=\"slow\"}";
    until(&relay, ended, |ended| ended > 0.0).await;
    speaking.await.unwrap();
    relay.stop().await;
}

/// The client sends requests one after the other, and reads none of the answers.
#[tokio::test(flavor = "multi_thread")]
async fn who_takes_no_answer_over_http_is_closed() {
    let relay = Relay::start(|config| {
        config.limits.ping_after_s = 1;
        config.limits.idle_timeout_s = 2;
    })
    .await;
    let mut silent = narrow(&relay).await;
    let asking = tokio::spawn(async move {
        let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(100);
        while silent.write_all(&request).await.is_ok() {}
    });
    // This connection, and the connection that requests the metrics.
    until(&relay, "hark_connections_total", |made| made >= 2.0).await;
    until(&relay, "hark_connections", |open| open < 2.0).await;
    asking.await.unwrap();
    relay.stop().await;
}

/// Reads some bytes, sends a pong, and rests. Returns no bytes at the end of the connection.
async fn read_slowly(stream: &mut TcpStream) -> Vec<u8> {
    let mut part = vec![0; 60_000];
    let count = stream.read(&mut part).await.unwrap_or(0);
    part.truncate(count);
    // The end of the connection shows at the next read.
    let _ = stream.write_all(&masked(0x8a, b"")).await;
    sleep(Duration::from_millis(50)).await;
    part
}

/// Returns whether the bytes contain this text.
fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// Each connection has its share or more of the unread bytes of all clients.
#[tokio::test(flavor = "multi_thread")]
async fn who_never_reads_does_not_stop_the_questions_of_others() {
    const MAX: f64 = 1_000_000.0;
    let relay = Relay::start(|config| config.limits.outboxes_bytes_max = MAX as usize).await;
    fill(&relay).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(deaf(&relay, 30).await);
    }
    until(&relay, "hark_outbox_bytes", |bytes| bytes > MAX).await;
    let mut other = relay.client().await;
    // A connection that takes nothing is closed after two minutes.
    let filters = [json!({ "kinds": [1] })];
    let found = timeout(Duration::from_mins(1), other.find_now(&filters)).await.expect("an answer");
    assert_eq!(found.len(), NOTES);
    until(&relay, "hark_connections_ended_total{reason=\"slow\"}", |ended| ended > 0.0).await;
    drop(silent);
    relay.stop().await;
}

/// A ping waits behind the answer. With one question at a time, the server does not read from a client
/// with an unanswered question, so the client's pongs wait as well.
#[tokio::test(flavor = "multi_thread")]
async fn who_reads_a_long_answer_slowly_is_not_silent() {
    for questions_max in [1, 64] {
        let relay = Relay::start(|config| {
            config.limits.searches_per_connection_max = questions_max;
            config.limits.ping_after_s = 1;
            config.limits.idle_timeout_s = 6;
        })
        .await;
        publish_notes(&relay, 3 * NOTES).await;
        let mut slow = ask_on(connect_with_buffer(&relay, 128 << 10).await, 1).await;
        let received = async {
            let mut received = Vec::new();
            while !contains(&received, "[\"EOSE\"") {
                let more = read_slowly(&mut slow).await;
                assert!(!more.is_empty(), "the connection ended after {} bytes", received.len());
                // The end of the answer may lie in two parts.
                received.drain(..received.len().saturating_sub(16));
                received.extend(more);
            }
        };
        received.await;
        relay.stop().await;
    }
}

/// Nothing else waits for these clients.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_above_the_bound_of_an_outbox_reaches_who_reads() {
    let relay = Relay::start(|config| {
        config.limits.outbox_bytes_max = 300_000;
        config.limits.outbox_pause_bytes = 100_000;
        config.limits.message_bytes_max = 900_000;
        config.limits.events.event_bytes_max = 800_000;
        config.limits.events.content_chars_max = 800_000;
    })
    .await;
    let (mut writer, mut reader) = (relay.client().await, relay.client().await);
    for id in ["a", "b", "c"] {
        assert!(reader.ask(id, &[json!({ "kinds": [1] })]).await.is_empty());
    }
    let large = note(1, NOW_S, &"x".repeat(400_000));
    writer.publish_new(&large).await;
    for _ in 0..3 {
        assert_eq!(reader.receive().await[2]["id"], large["id"], "the live event");
    }
    assert_eq!(writer.find_now(&[json!({ "kinds": [1] })]).await.len(), 1);
    relay.stop().await;
}
