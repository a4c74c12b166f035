//! Comparisons of sets (NIP-77): refusals, and the bounds of memory, messages and cost.

use std::collections::BTreeSet;

use hark_server::Settings;
use hark_server::limits::{Limits, Rate, RateLimits};
use hark_testkit::digits::digits;
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::compare::{NOTHING, compare, held};
use hark_testkit::nostr::note;
use serde_json::{Value, json};

use crate::comparisons::{ids, open, publish_all};
use crate::kit::{NOW_S, Relay, http};
use crate::operators::scrape;
use crate::outboxes::until;

/// Sends a message that must be refused. Returns the reason.
async fn refused(client: &mut Client, said: Value) -> String {
    client.send_text(&said).await;
    let received = client.receive().await;
    assert_eq!((&received[0], &received[1]), (&json!("NEG-ERR"), &said[1]), "{said}: {received}");
    received[2].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_is_too_big_is_refused_with_the_bound() {
    let relay = Relay::start(|config| config.limits.negentropy_events_max = 5).await;
    let mut client = relay.client().await;
    let notes: Vec<Value> = (0..6).map(|n| note(1, NOW_S - n, "")).collect();
    publish_all(&mut client, &notes).await;
    for filter in [json!({"kinds": [1]}), json!({"limit": 6}), json!({"limit": 1_000_000})] {
        let refusal = compare(&mut client, &filter, &held([]), 0).await.unwrap_err();
        assert_eq!(refusal, json!(["NEG-ERR", "compare", "blocked: this query is too big", 5]));
    }
    // The events were counted, and not visited: each of the three comparisons cost hardly more than
    // its six events.
    assert!(scrape(&relay).await["hark_query_rows_total"] < 50.0);
    // The client's own limit selects the newest events.
    for filter in [json!({"limit": 5}), json!({"since": NOW_S - 4})] {
        let compared = compare(&mut client, &filter, &held([]), 0).await.unwrap();
        assert_eq!(compared.need, ids(&notes[..5]), "{filter}");
    }
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_says_why_and_ends_the_comparison() {
    let relay = Relay::start(|config| {
        config.limits.negentropy_per_connection_max = 2;
        config.limits.filters.filter_values_max = 3;
        config.limits.subscription_id_chars_max = 5;
    })
    .await;
    let mut client = relay.client().await;
    for (said, prefix) in [
        (json!(["NEG-MSG", "n", NOTHING]), "closed: "),
        (json!(["NEG-OPEN", "n", {}, ""]), "invalid: "),
        (json!(["NEG-OPEN", "n", {}, "5f"]), "invalid: "),
        (json!(["NEG-OPEN", "n", {}, "6100000"]), "invalid: "),
        (json!(["NEG-OPEN", "n", {}, "61000002ff"]), "invalid: "),
        (json!(["NEG-OPEN", "n", {}, "61000002FF"]), "invalid: "),
        (json!(["NEG-OPEN", "n", {}]), "invalid: "),
        (json!(["NEG-OPEN", "n", [], NOTHING]), "invalid: "),
        (json!(["NEG-OPEN", "n", {"ids": ["ab"]}, NOTHING]), "invalid: "),
        (json!(["NEG-OPEN", "sixsix", {}, NOTHING]), "invalid: "),
        (json!(["NEG-OPEN", "n", {"kinds": [1, 2, 3, 4]}, NOTHING]), "blocked: "),
        (json!(["NEG-OPEN", "n", {"search": "hark"}, NOTHING]), "unsupported: "),
        (json!(["NEG-OPEN", "n", {"kinds": [1059, 4]}, NOTHING]), "auth-required: "),
    ] {
        let reason = refused(&mut client, said.clone()).await;
        assert!(reason.starts_with(prefix), "{said}: {reason}");
    }
    assert!(scrape(&relay).await["hark_query_rows_total"] == 0.0, "nothing was searched for them");
    // A refused message ends only the comparison that has the message's id.
    open(&mut client, "a", json!({})).await;
    for said in [
        json!(["NEG-MSG", "n", "6103"]),
        json!(["NEG-MSG", "n", "zz"]),
        json!(["NEG-OPEN", "n", {"search": "hark"}, NOTHING]),
        json!(["NEG-OPEN", "n", {}, "6100000003"]),
    ] {
        open(&mut client, "n", json!({})).await;
        assert!(!refused(&mut client, said).await.starts_with("closed: "));
        let reason = refused(&mut client, json!(["NEG-MSG", "n", NOTHING])).await;
        assert_eq!(reason, "closed: no comparison of this id is open");
    }
    open(&mut client, "n", json!({})).await;
    let reason = refused(&mut client, json!(["NEG-OPEN", "third", {}, NOTHING])).await;
    assert_eq!(reason, "blocked: more than 2 comparisons; close some");
    // Ids of comparisons and ids of subscriptions are independent.
    assert!(client.ask("n", &[json!({})]).await.is_empty());
    for said in [json!(["CLOSE", "n"]), json!(["NEG-CLOSE", "a"]), json!(["NEG-CLOSE", "b"])] {
        client.send_text(said).await;
    }
    client.send_text(json!(["NEG-MSG", "n", NOTHING])).await;
    assert_eq!(client.receive().await, json!(["NEG-MSG", "n", NOTHING]));
    assert!(refused(&mut client, json!(["NEG-MSG", "a", NOTHING])).await.starts_with("closed: "));
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_go_on_is_told_and_its_memory_is_freed() {
    let relay = Relay::start(|config| config.limits.negentropy_idle_s = 1).await;
    let mut client = relay.client().await;
    publish_all(&mut client, &[note(1, NOW_S, "")]).await;
    for sub in ["a", "b"] {
        open(&mut client, sub, json!({})).await;
    }
    let mut ended = BTreeSet::new();
    for _ in 0..2 {
        let received = client.receive().await;
        assert_eq!((&received[0], &received[2]), (&json!("NEG-ERR"), &json!(IDLE)), "{received}");
        ended.insert(received[1].as_str().unwrap().to_owned());
    }
    assert!(ended.iter().eq(["a", "b"]));
    let metrics = scrape(&relay).await;
    assert_eq!((metrics["hark_comparisons"], metrics["hark_comparisons_bytes"]), (0.0, 0.0));
    assert_eq!(metrics["hark_messages_total{verb=\"NEG\",result=\"closed\"}"] as u64, 2);
    assert!(refused(&mut client, json!(["NEG-MSG", "a", NOTHING])).await.starts_with("closed: "));
    // The connection and its other questions continue.
    assert_eq!(client.count(&[json!({})]).await, 1);
    relay.stop().await;
}

const IDLE: &str = "closed: you took too long to respond";

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_comparisons_is_bounded_for_each_connection_and_for_all() {
    // A set of a few events takes one chunk of about 5 KB.
    for (connection, all, prefix) in
        [(12_500, 1 << 20, "blocked: "), (12_500, 50_000, "rate-limited: ")]
    {
        let relay = Relay::start(|config| {
            config.proxies.trusted.clear();
            config.limits.negentropy_connection_bytes_max = connection;
            config.limits.negentropy_bytes_max = all;
        })
        .await;
        let mut clients = [relay.client().await, relay.client().await];
        publish_all(&mut clients[0], &[note(1, NOW_S, "")]).await;
        for n in 0..2 {
            open(&mut clients[0], &n.to_string(), json!({})).await;
        }
        let who = usize::from(prefix == "rate-limited: ");
        let reason = refused(&mut clients[who], json!(["NEG-OPEN", "more", {}, NOTHING])).await;
        assert!(reason.starts_with(prefix), "{reason}");
        let bytes = scrape(&relay).await["hark_comparisons_bytes"];
        assert!(bytes > 10_000.0 && bytes <= 12_500.0, "{bytes}");
        clients[0].send_text(json!(["NEG-CLOSE", "0"])).await;
        until(&relay, "hark_comparisons_bytes", |bytes| bytes < 7_500.0).await;
        open(&mut clients[who], "more", json!({})).await;
        drop(clients);
        until(&relay, "hark_comparisons_bytes", |bytes| bytes == 0.0).await;
        relay.stop().await;
    }
}

/// Comparisons and questions share one rate of visited rows. When the rows are spent, no comparison
/// may begin, and an open comparison waits for rows and is not lost.
#[tokio::test(flavor = "multi_thread")]
async fn comparisons_count_into_the_rates() {
    let relay = Relay::start(|config| {
        let rows = Rate { per_minute: 1, at_once: 40 };
        config.limits.rates = RateLimits { rows_per_connection: Some(rows), ..RateLimits::none() };
    })
    .await;
    let mut client = relay.client().await;
    let notes: Vec<Value> = (0..60).map(|n| note(1, NOW_S - n, "")).collect();
    publish_all(&mut client, &notes).await;
    open(&mut client, "n", json!({})).await;
    client.send_text(json!(["NEG-MSG", "n", NOTHING])).await;
    for said in [json!(["NEG-MSG", "m", NOTHING]), json!(["NEG-OPEN", "m", {}, NOTHING])] {
        assert!(refused(&mut client, said).await.starts_with("rate-limited: "));
    }
    for said in [json!(["REQ", "s", {}]), json!(["COUNT", "s", {}])] {
        client.send_text(said).await;
        let closed = client.receive().await;
        assert!(closed[2].as_str().unwrap().starts_with("rate-limited: "), "{closed}");
    }
    let limits = Limits { rates: RateLimits::none(), ..Limits::default() };
    relay.reload.set(Settings { limits, ..Settings::default() }).unwrap();
    let answer = client.receive().await;
    assert_eq!((&answer[0], &answer[1]), (&json!("NEG-MSG"), &json!("n")), "{answer}");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_may_do_without_comparisons() {
    for (max, offered) in [(1, true), (0, false)] {
        let relay = Relay::start(|config| config.limits.negentropy_per_connection_max = max).await;
        let (_, body) = http(&relay.url, "/", "Accept: application/nostr+json").await;
        let document: Value = serde_json::from_str(&body).unwrap();
        let nips = document["supported_nips"].as_array().unwrap();
        assert_eq!(nips.contains(&json!(77)), offered);
        let mut client = relay.client().await;
        client.send_text(json!(["NEG-OPEN", "n", {}, NOTHING])).await;
        let received = client.receive().await;
        if offered {
            assert_eq!(received, json!(["NEG-MSG", "n", NOTHING]));
        } else {
            let reason = "unsupported: NIP-77 is not offered";
            assert_eq!(received, json!(["NEG-ERR", "n", reason]));
        }
        relay.stop().await;
    }
}

/// A message with many ranges, and a message of the maximum length, get answers within the bound.
#[tokio::test(flavor = "multi_thread")]
async fn long_messages_are_answered_within_the_bound() {
    let relay = Relay::start(|config| {
        config.limits.rates = RateLimits::none();
        config.limits.negentropy_message_bytes_max = 20_000;
    })
    .await;
    let mut client = relay.client().await;
    let notes: Vec<Value> = (0..2_000).map(|n| note(1, NOW_S - n / 40, &n.to_string())).collect();
    publish_all(&mut client, &notes).await;
    // The range of each second has a wrong fingerprint, and so have the ranges before and after.
    let mut message = vec![0x61];
    let digit = |at: u64| ((NOW_S - 49) >> (7 * at)) as u8 & 0x7f | if at == 0 { 0 } else { 0x80 };
    let first: Vec<u8> = (0..5).rev().map(digit).collect();
    for second in 0..50 {
        message.extend(if second == 0 { &first[..] } else { &[2] });
        message.extend([0, 1]);
        message.extend([7; 16]);
    }
    client.send_text(json!(["NEG-OPEN", "n", {}, digits(&message)])).await;
    let received = client.receive().await;
    let long = received.to_string().len();
    assert!(received[0] == "NEG-MSG" && long <= 20_000, "{long}: {received}");
    // As many empty ranges as fit into a message.
    for (opens, bytes) in [(true, 256 << 10), (false, Limits::default().message_bytes_max)] {
        let mut message = vec![0x61];
        message.extend([1, 0, 2, 0].iter().cycle().take((bytes / 2 - 100) / 4 * 4));
        let message = digits(&message);
        client
            .send_text(if opens {
                json!(["NEG-OPEN", "n", {}, message])
            } else {
                json!(["NEG-MSG", "n", message])
            })
            .await;
        let received = client.receive().await;
        assert!(received[0] == "NEG-MSG" && received.to_string().len() <= 20_000, "{received}");
    }
    relay.stop().await;
}
