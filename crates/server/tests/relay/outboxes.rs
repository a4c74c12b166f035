//! Bounds of the messages that wait for clients that do not read: bytes and time, for each client
//! and for all clients together.

use std::time::Duration;

use hark_testkit::nostr::note;
use hark_testkit::wait::until_async;
use hark_testkit::websocket::masked;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::kit::{NOW_S, Relay};
use crate::operators::scrape;
use crate::wire::{narrow, status, upgrade_on};

/// Number of stored notes, and bytes of each note.
const NOTES: usize = 60;
const NOTE_BYTES: usize = 90_000;

/// Publishes more bytes than the socket buffers between a server and a client hold.
async fn fill(relay: &Relay) {
    let mut client = relay.client().await;
    for n in 0..NOTES {
        client.publish_new(&note(1, NOW_S + n as u64, &"x".repeat(NOTE_BYTES))).await;
    }
}

/// A client that asks a given number of questions for all notes, and never reads.
async fn deaf(relay: &Relay, questions: usize) -> TcpStream {
    let (head, mut stream) = upgrade_on(narrow(relay).await, "").await;
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
