//! Comparisons of sets (NIP-77): what they find, what they hide, and their bounds.

use std::collections::BTreeSet;

use hark_archive::limits::{Limits, Rate, RateLimits};
use hark_testkit::random::Random;
use serde_json::{Value, json};

use crate::compare::{Compared, NOTHING, compare, held, id, text};
use crate::kit::{Client, NOW_S, Relay, event, http, note, pubkey};
use crate::operators::scrape;
use crate::outboxes::until;

/// Publishes all events, whatever the relay says of each.
async fn publish_all(client: &mut Client, events: &[Value]) {
    for event in events {
        client.feed(json!(["EVENT", event])).await;
    }
    client.flush().await;
    for _ in events {
        assert_eq!(client.receive().await[0], "OK");
    }
}

/// Notes of ten times, private events between three people, events that expire or are gone already,
/// versions that replace each other, and deletions.
fn archive(random: &mut Random, count: u64) -> Vec<Value> {
    let mut events: Vec<Value> = Vec::new();
    for n in 0..count {
        let (who, to) = (1 + random.below(3) as u8, pubkey(1 + random.below(3) as u8));
        let time = NOW_S - 10 + random.below(10) as u64;
        let ends = (NOW_S + random.below(40) as u64 - 20).to_string();
        let content = n.to_string();
        let event = match random.below(10) {
            0 => event(who, time, 4, &[&["p", &to]], &content),
            1 => event(who + 4, time, 1059, &[&["p", &to]], &content),
            2 => event(who, time, 1, &[&["expiration", &ends]], &content),
            3 => event(who, time, 0, &[], &content),
            4 if !events.is_empty() => {
                let target = id(random.pick(&events));
                event(who, time, 5, &[&["e", &target]], &content)
            }
            _ => event(who, time, 1, &[&["t", "hark"]], &content),
        };
        events.push(event);
    }
    events
}

fn ids<'a>(events: impl IntoIterator<Item = &'a Value>) -> BTreeSet<String> {
    events.into_iter().map(id).collect()
}

/// Whoever asks, and for whatever: the relay has what it would send, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_comparison_finds_what_a_question_finds() {
    let relay = Relay::start(|config| {
        config.limits = Limits {
            limit_default: 5_000,
            slice_rows: 7,
            // Some answers do not fit.
            negentropy_message_bytes_max: 9_216,
            rates: RateLimits::none(),
            ..Limits::default()
        };
    })
    .await;
    let mut random = Random::new(20);
    let mut client = relay.client().await;
    let events = archive(&mut random, 900);
    publish_all(&mut client, &events).await;
    let filters = [
        json!({}),
        json!({"kinds": [1]}),
        json!({"kinds": [1, 4, 1059], "since": NOW_S - 8, "until": NOW_S - 3}),
        json!({"authors": [pubkey(2)]}),
        json!({"#p": [pubkey(1), pubkey(2)]}),
        json!({"#t": ["hark"], "limit": 200}),
        json!({"limit": 0}),
        json!({"kinds": []}),
        json!({"kinds": [7]}),
    ];
    for reader in [None, Some(1), Some(9)] {
        let mut client = relay.client().await;
        if let Some(who) = reader {
            client.auth(who).await;
        }
        for filter in &filters {
            let theirs = ids(&client.look(std::slice::from_ref(filter)).await);
            for once_in in [1, 2, 50] {
                let ours: Vec<&Value> =
                    events.iter().filter(|_| !random.once_in(once_in)).collect();
                let Compared { have, need, .. } =
                    compare(&mut client, filter, &held(ours.iter().copied()), 4_096).await.unwrap();
                let ours = ids(ours);
                assert!(have.iter().eq(ours.difference(&theirs)), "{reader:?} {filter}");
                assert!(need.iter().eq(theirs.difference(&ours)), "{reader:?} {filter}");
            }
        }
    }
    drop(client);
    until(&relay, "hark_comparisons_bytes", |bytes| bytes == 0.0).await;
    assert_eq!(scrape(&relay).await["hark_comparisons"], 0.0);
    relay.stop().await;
}

/// A relay with private events says the same, byte for byte, as one without them.
#[tokio::test(flavor = "multi_thread")]
async fn private_events_are_in_no_fingerprint() {
    let mut said = Vec::new();
    for private in [0, 70] {
        let relay = Relay::start(|_| {}).await;
        let mut client = relay.client().await;
        let public = (0..100).map(|n| note(1, NOW_S - n, "public"));
        let wraps = (0..private).map(|n| event(2, NOW_S - n, 1059, &[&["p", &pubkey(3)]], ""));
        let gone = (0..private)
            .map(|n| event(2, NOW_S - n, 1, &[&["expiration", &(NOW_S + n).to_string()]], ""));
        let events: Vec<Value> = public.chain(wraps).chain(gone).collect();
        publish_all(&mut client, &events).await;
        relay.clock.set(NOW_S + 200);
        let half = held(events.iter().take(50));
        let mut answers = Vec::new();
        for who in [None, Some(7)] {
            let mut client = relay.client().await;
            if let Some(who) = who {
                client.auth(who).await;
            }
            for filter in [json!({}), json!({"kinds": [1, 1059]}), json!({"#p": [pubkey(3)]})] {
                for ours in [&held([]), &half] {
                    answers.push(compare(&mut client, &filter, ours, 0).await.unwrap().answers);
                }
            }
        }
        said.push(answers);
        relay.stop().await;
    }
    assert!(said[0].iter().any(|answers| answers.len() > 1));
    assert_eq!(said[0], said[1]);
}

/// Sends a message that must be refused. Returns the reason.
async fn refused(client: &mut Client, said: Value) -> String {
    client.say(&said).await;
    let received = client.receive().await;
    assert_eq!((&received[0], &received[1]), (&json!("NEG-ERR"), &said[1]), "{said}: {received}");
    received[2].as_str().unwrap().to_owned()
}

async fn open(client: &mut Client, sub: &str, filter: Value) -> String {
    client.say(json!(["NEG-OPEN", sub, filter, NOTHING])).await;
    let received = client.receive().await;
    assert_eq!((&received[0], &received[1]), (&json!("NEG-MSG"), &json!(sub)), "{received}");
    received[2].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_is_too_big_is_refused_with_the_bound() {
    let relay = Relay::start(|config| config.limits.negentropy_events_max = 5).await;
    let mut client = relay.client().await;
    let notes: Vec<Value> = (0..6).map(|n| note(1, NOW_S - n, "")).collect();
    publish_all(&mut client, &notes).await;
    for filter in [json!({}), json!({"limit": 6}), json!({"limit": 1_000_000})] {
        let refusal = compare(&mut client, &filter, &held([]), 0).await.unwrap_err();
        assert_eq!(refusal, json!(["NEG-ERR", "compare", "blocked: this query is too big", 5]));
    }
    // The client's own limit, which names the newest events.
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
        config.limits.filter_values_max = 3;
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
    // What is refused ends the comparison of that id, and no other.
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
    // An id of a comparison is none of a subscription, and the other way round.
    assert!(client.ask("n", &[json!({})]).await.is_empty());
    for said in [json!(["CLOSE", "n"]), json!(["NEG-CLOSE", "a"]), json!(["NEG-CLOSE", "b"])] {
        client.say(said).await;
    }
    client.say(json!(["NEG-MSG", "n", NOTHING])).await;
    assert_eq!(client.receive().await, json!(["NEG-MSG", "n", NOTHING]));
    assert!(refused(&mut client, json!(["NEG-MSG", "a", NOTHING])).await.starts_with("closed: "));
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_is_open_is_replaced() {
    let relay = Relay::start(|config| config.limits.negentropy_per_connection_max = 1).await;
    let mut client = relay.client().await;
    let (one, two) = (note(1, NOW_S, "one"), event(2, NOW_S, 2, &[], "two"));
    publish_all(&mut client, &[one.clone(), two.clone()]).await;
    assert!(open(&mut client, "n", json!({"kinds": [1]})).await.contains(&id(&one)));
    let answer = open(&mut client, "n", json!({"kinds": [2]})).await;
    assert!(answer.contains(&id(&two)) && !answer.contains(&id(&one)));
    client.say(json!(["NEG-MSG", "n", NOTHING])).await;
    assert_eq!(client.receive().await, json!(["NEG-MSG", "n", answer]));
    // Nothing comes of a comparison once it is replaced, whether it was answered before or not.
    for n in 0..20 {
        client.feed(json!(["NEG-OPEN", "n", { "kinds": [n % 2 + 1] }, NOTHING])).await;
    }
    client.feed(json!(["NEG-OPEN", "n", { "kinds": [7] }, NOTHING])).await;
    client.flush().await;
    let mut answers = 0;
    while client.receive().await[2] != NOTHING {
        answers += 1;
        assert!(answers <= 20);
    }
    assert_eq!(client.count(&[json!({})]).await, 2);
    relay.stop().await;
}

/// A comparison is over what there was when it was opened.
#[tokio::test(flavor = "multi_thread")]
async fn events_that_come_or_go_meanwhile_change_nothing() {
    let relay = Relay::start(|_| {}).await;
    let mut client = relay.client().await;
    let notes: Vec<Value> = (0..40).map(|n| note(1, NOW_S - n, "")).collect();
    publish_all(&mut client, &notes).await;
    let answer = open(&mut client, "n", json!({})).await;
    let deletion = event(1, NOW_S, 5, &[&["e", &id(&notes[3])]], "");
    publish_all(&mut client, &[deletion, note(1, NOW_S - 5, "new")]).await;
    client.say(json!(["NEG-MSG", "n", NOTHING])).await;
    assert_eq!(client.receive().await, json!(["NEG-MSG", "n", answer]));
    assert_ne!(open(&mut client, "n", json!({})).await, answer);
    relay.stop().await;
}

/// A client of another version is told ours, and may go on in it.
#[tokio::test(flavor = "multi_thread")]
async fn another_version_is_answered_with_ours() {
    let relay = Relay::start(|_| {}).await;
    let mut client = relay.client().await;
    let one = note(1, NOW_S, "");
    publish_all(&mut client, std::slice::from_ref(&one)).await;
    client.say(json!(["NEG-OPEN", "n", {}, "62ffff"])).await;
    assert_eq!(client.receive().await, json!(["NEG-MSG", "n", "61"]));
    client.say(json!(["NEG-MSG", "n", NOTHING])).await;
    let expected = format!("6100000201{}", id(&one));
    assert_eq!(client.receive().await, json!(["NEG-MSG", "n", expected]));
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
    assert_eq!(metrics["hark_messages_total{verb=\"NEG\",result=\"closed\"}"], 2.0);
    assert!(refused(&mut client, json!(["NEG-MSG", "a", NOTHING])).await.starts_with("closed: "));
    // The connection and its other questions go on.
    assert_eq!(client.count(&[json!({})]).await, 1);
    relay.stop().await;
}

const IDLE: &str = "closed: you took too long to respond";

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_comparisons_is_bounded_for_each_connection_and_for_all() {
    // A set of a few events takes one chunk of about 10 KB.
    for (connection, all, prefix) in
        [(25_000, 1 << 20, "blocked: "), (25_000, 100_000, "rate-limited: ")]
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
        assert!(bytes > 20_000.0 && bytes <= 25_000.0, "{bytes}");
        clients[0].say(json!(["NEG-CLOSE", "0"])).await;
        until(&relay, "hark_comparisons_bytes", |bytes| bytes < 15_000.0).await;
        open(&mut clients[who], "more", json!({})).await;
        drop(clients);
        until(&relay, "hark_comparisons_bytes", |bytes| bytes == 0.0).await;
        relay.stop().await;
    }
}

/// Comparisons spend the same rows as questions.
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
    for said in [json!(["NEG-MSG", "n", NOTHING]), json!(["NEG-OPEN", "n", {}, NOTHING])] {
        assert!(refused(&mut client, said).await.starts_with("rate-limited: "));
    }
    client.say(json!(["REQ", "s", {}])).await;
    let closed = client.receive().await;
    assert!(closed[2].as_str().unwrap().starts_with("rate-limited: "), "{closed}");
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
        client.say(json!(["NEG-OPEN", "n", {}, NOTHING])).await;
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

/// A message that asks for much, and one that is as long as a message may be, cost no more than their
/// bytes.
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
    // Each second has a fingerprint that is wrong, and so has the time before and after.
    let mut message = vec![0x61];
    let digit = |at: u64| ((NOW_S - 49) >> (7 * at)) as u8 & 0x7f | if at == 0 { 0 } else { 0x80 };
    let first: Vec<u8> = (0..5).rev().map(digit).collect();
    for second in 0..50 {
        message.extend(if second == 0 { &first[..] } else { &[2] });
        message.extend([0, 1]);
        message.extend([7; 16]);
    }
    client.say(json!(["NEG-OPEN", "n", {}, text(&message)])).await;
    let received = client.receive().await;
    let long = received.to_string().len();
    assert!(received[0] == "NEG-MSG" && long <= 20_000, "{long}: {received}");
    // Ranges of nothing, as many as fit.
    let bytes = Limits::default().message_bytes_max / 2 - 100;
    let mut message = vec![0x61];
    message.extend([1, 0, 2, 0].iter().cycle().take(bytes / 4 * 4));
    client.say(json!(["NEG-OPEN", "n", {}, text(&message)])).await;
    let received = client.receive().await;
    assert!(received[0] == "NEG-MSG" && received.to_string().len() <= 20_000, "{received}");
    relay.stop().await;
}
