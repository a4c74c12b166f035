//! Live events, and the transition from stored events to live events.

use std::collections::HashMap;

use hark_testkit::nostr::{event, note, pubkey};
use hark_testkit::websocket::masked;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::kit::{NOW_S, Relay};
use crate::wire::{answer, narrow, upgrade_on};

#[tokio::test(flavor = "multi_thread")]
async fn live_events_come_after_eose_to_whom_they_concern() {
    let relay = Relay::start(|_| {}).await;
    let (mut one, mut two) = (relay.client().await, relay.client().await);
    one.ask("s", &[json!({"authors": [pubkey(1)], "limit": 0}), json!({"kinds": [1]})]).await;
    two.ask("t", &[json!({"authors": [pubkey(2)]})]).await;
    let (a, b) = (note(1, NOW_S, "a"), note(2, NOW_S, "b"));
    let mut third = relay.client().await;
    third.publish(&a).await;
    third.publish(&b).await;
    third.publish(&b).await;
    assert_eq!(one.receive().await, json!(["EVENT", "s", a]));
    assert_eq!(one.receive().await, json!(["EVENT", "s", b]));
    assert_eq!(two.receive().await, json!(["EVENT", "t", b]));
    one.send_text(json!(["CLOSE", "s"])).await;
    // The answer to the COUNT shows that the CLOSE was processed before.
    one.count(&[json!({})]).await;
    let c = note(2, NOW_S, "c");
    third.publish(&c).await;
    assert_eq!(two.receive().await, json!(["EVENT", "t", c]));
    assert_eq!(one.count(&[json!({})]).await, 3);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_name_again_replaces_the_subscription() {
    let relay = Relay::start(|_| {}).await;
    let mut client = relay.client().await;
    client.ask("s", &[json!({"kinds": [1]})]).await;
    client.ask("s", &[json!({"kinds": [2]})]).await;
    assert_eq!(client.publish(&note(1, NOW_S, "a")).await.1, "");
    assert_eq!(client.count(&[json!({})]).await, 1);
    relay.stop().await;
}

/// Clients subscribe while events arrive, with one filter and with several that overlap. Each
/// subscriber gets each event once, stored or live.
#[tokio::test(flavor = "multi_thread")]
async fn no_gap_and_no_duplicate_between_stored_and_live() {
    const EVENTS: usize = 400;
    let relay = Relay::start(|config| config.limits.slice_rows = 7).await;
    let mut publisher = relay.client().await;
    let publishing = tokio::spawn(async move {
        for n in 0..EVENTS {
            let event = note((n % 3 + 1) as u8, n as u64, &n.to_string());
            publisher.feed(json!(["EVENT", event])).await;
            if n % 10 == 9 {
                publisher.flush().await;
                for _ in 0..10 {
                    publisher.receive().await;
                }
            }
        }
    });
    let mut hearing = Vec::new();
    for round in 0..12 {
        let mut client = relay.client().await;
        hearing.push(tokio::spawn(async move {
            let all = json!({"kinds": [1], "limit": 5000});
            let filters = if round % 2 == 0 {
                json!(["REQ", "s", all])
            } else {
                let some = json!({"authors": [pubkey(1), pubkey(2)], "limit": 5000});
                json!(["REQ", "s", some, {"kinds": [1], "authors": [pubkey(2)], "limit": 5000}, all])
            };
            client.send_text(filters).await;
            let mut received: HashMap<String, u32> = HashMap::new();
            let mut eose = 0;
            while received.len() < EVENTS || eose == 0 {
                let message = client.receive().await;
                if message[0] == "EOSE" {
                    eose += 1;
                } else {
                    let content = message[2]["content"].as_str().unwrap().to_owned();
                    *received.entry(content).or_default() += 1;
                }
            }
            // An event that is still in transit would arrive before the answer to this COUNT.
            client.send_text(json!(["COUNT", "n", {"kinds": [1]}])).await;
            let last = client.receive().await;
            assert_eq!(last[0], "COUNT", "a duplicate: {last}");
            assert!(received.values().all(|times| *times == 1), "round {round}");
        }));
        tokio::task::yield_now().await;
    }
    publishing.await.unwrap();
    for each in hearing {
        each.await.unwrap();
    }
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_reads_is_closed_and_the_others_are_served() {
    let relay = Relay::start(|config| {
        config.limits.outbox_bytes_max = 300_000;
        config.limits.outbox_pause_bytes = 100_000;
    })
    .await;
    let (mut deaf, mut other) = (relay.client().await, relay.client().await);
    deaf.ask("s", &[json!({})]).await;
    let long = "x".repeat(100_000);
    for n in 0..200 {
        assert_eq!(other.publish(&note(1, n, &long)).await.1, "");
    }
    deaf.closed().await;
    assert_eq!(other.count(&[json!({})]).await, 200);
    relay.stop().await;
}

/// A search sees no event that came after its start, and none that was replaced meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_is_replaced_during_an_answer_comes_before_eose() {
    let relay = Relay::start(|config| {
        config.limits.outbox_pause_bytes = 10_000;
        config.limits.slice_rows = 10;
    })
    .await;
    let mut writer = relay.client().await;
    writer.publish_new(&event(2, 1, 0, &[], "the old name")).await;
    for n in 0..200 {
        writer.publish_new(&note(1, 10 + n, &"x".repeat(50_000))).await;
    }
    let (_, mut slow) = upgrade_on(narrow(&relay).await, "").await;
    slow.write_all(&masked(0x81, br#"["REQ","s",{"kinds":[0,1]}]"#)).await.unwrap();
    while !answer(&mut slow).await.1.starts_with(b"[\"EVENT") {}
    writer.publish_new(&event(2, 2, 0, &[], "the new name")).await;
    writer.publish_new(&note(1, 3, "a note")).await;
    let mut received = Vec::new();
    while received.last().is_none_or(|last| last != "a note") {
        let (_, text) = answer(&mut slow).await;
        let message: Value = serde_json::from_slice(&text).unwrap();
        let said = message[2]["content"].as_str().filter(|_| message[0] == "EVENT");
        received.push(said.unwrap_or("end").to_owned());
    }
    let at = |wanted: &str| received.iter().position(|said| said == wanted).expect("is there");
    assert!(at("the new name") < at("end") && at("end") < at("a note"));
    assert_eq!(received.iter().filter(|said| *said == "the new name").count(), 1);
    relay.stop().await;
}
