//! Comparisons of sets (NIP-77): the differences that they find, and the events that they hide.

use std::collections::BTreeSet;

use hark_networks::FilterLimits;
use hark_server::limits::{Limits, RateLimits};
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::compare::{Compared, NOTHING, compare, held, id};
use hark_testkit::nostr::{event, note, pubkey};
use hark_testkit::random::Random;
use serde_json::{Value, json};

use crate::kit::{NOW_S, Relay};
use crate::operators::scrape;
use crate::outboxes::until;

/// Publishes all events. The relay may accept or refuse each event.
pub(crate) async fn publish_all(client: &mut Client, events: &[Value]) {
    for event in events {
        client.feed(json!(["EVENT", event])).await;
    }
    client.flush().await;
    for _ in events {
        assert_eq!(client.receive().await[0], "OK");
    }
}

/// Makes notes with ten different times, private events between three people, events that expire or
/// have expired, versions that replace each other, and deletions.
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

pub(crate) fn ids<'a>(events: impl IntoIterator<Item = &'a Value>) -> BTreeSet<String> {
    events.into_iter().map(id).collect()
}

/// For every client and every filter, a comparison covers exactly the events that the relay would
/// send.
#[tokio::test(flavor = "multi_thread")]
async fn a_comparison_finds_what_a_question_finds() {
    let relay = Relay::start(|config| {
        config.limits = Limits {
            filters: FilterLimits { limit_default: 5_000, ..FilterLimits::default() },
            slice_rows: 7,
            // Some answers do not fit into one message.
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
            let theirs = ids(&client.find_now(std::slice::from_ref(filter)).await);
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
    assert!(scrape(&relay).await["hark_comparisons"] == 0.0);
    relay.stop().await;
}

/// A time window of many events is compared by the store's sums, without a set in memory.
#[tokio::test(flavor = "multi_thread")]
async fn more_events_than_a_set_may_have_are_compared_by_sums() {
    let relay = Relay::start(|config| {
        config.limits = Limits {
            filters: FilterLimits { limit_default: 5_000, ..FilterLimits::default() },
            negentropy_events_max: 20,
            negentropy_message_bytes_max: 9_216,
            rates: RateLimits::none(),
            ..Limits::default()
        };
    })
    .await;
    let mut random = Random::new(21);
    let mut client = relay.client().await;
    let mut events = archive(&mut random, 2_500);
    publish_all(&mut client, &events).await;
    for round in 0..3 {
        for reader in [None, Some(9)] {
            let mut client = relay.client().await;
            if let Some(who) = reader {
                client.auth(who).await;
            }
            for filter in [json!({}), json!({"since": NOW_S - 8, "until": NOW_S - 3})] {
                let theirs = ids(&client.find_now(std::slice::from_ref(&filter)).await);
                for once_in in [1, 2, 50] {
                    let ours: Vec<&Value> =
                        events.iter().filter(|_| !random.once_in(once_in)).collect();
                    let ours_held = held(ours.iter().copied());
                    let compared = compare(&mut client, &filter, &ours_held, 4_096).await;
                    let Compared { have, need, .. } = compared.unwrap();
                    let ours = ids(ours);
                    assert!(have.iter().eq(ours.difference(&theirs)), "{reader:?} {filter}");
                    assert!(need.iter().eq(theirs.difference(&ours)), "{reader:?} {filter}");
                }
            }
            open(&mut client, "held", json!({})).await;
            assert!(scrape(&relay).await["hark_comparisons_bytes"] == 0.0);
        }
        // The sums change when events are stored, deleted or expire.
        let more = archive(&mut random, 300);
        publish_all(&mut client, &more).await;
        events.extend(more);
        relay.clock.set(NOW_S + 5 * (round + 1));
    }
    // A client that sees private events is answered from a set, whose size is bounded.
    client.auth(1).await;
    let refusal = compare(&mut client, &json!({}), &held([]), 0).await.unwrap_err();
    assert_eq!(refusal[2], "blocked: this query is too big");
    relay.stop().await;
}

/// A relay with private events sends the same bytes as a relay without private events.
#[tokio::test(flavor = "multi_thread")]
async fn private_events_are_in_no_fingerprint() {
    said_alike(
        &Limits::default(),
        &[json!({}), json!({"kinds": [1, 1059]}), json!({"#p": [pubkey(3)]})],
    )
    .await;
    let by_sums = Limits { negentropy_events_max: 50, ..Limits::default() };
    said_alike(&by_sums, &[json!({}), json!({"since": 7})]).await;
}

async fn said_alike(limits: &Limits, filters: &[Value]) {
    let mut said = Vec::new();
    for private in [0, 70] {
        let relay = Relay::start(|config| config.limits = limits.clone()).await;
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
            for filter in filters {
                for ours in [&held([]), &half] {
                    answers.push(compare(&mut client, filter, ours, 0).await.unwrap().answers);
                }
            }
        }
        said.push(answers);
        relay.stop().await;
    }
    assert!(said[0].iter().any(|answers| answers.len() > 1));
    assert_eq!(said[0], said[1]);
}

pub(crate) async fn open(client: &mut Client, sub: &str, filter: Value) -> String {
    client.send_text(json!(["NEG-OPEN", sub, filter, NOTHING])).await;
    let received = client.receive().await;
    assert_eq!((&received[0], &received[1]), (&json!("NEG-MSG"), &json!(sub)), "{received}");
    received[2].as_str().unwrap().to_owned()
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
    client.send_text(json!(["NEG-MSG", "n", NOTHING])).await;
    assert_eq!(client.receive().await, json!(["NEG-MSG", "n", answer]));
    // A replaced comparison sends nothing more, whether or not it was answered before.
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

/// A comparison covers the events that were stored when it was opened.
#[tokio::test(flavor = "multi_thread")]
async fn events_that_come_or_go_meanwhile_change_nothing() {
    let relay = Relay::start(|_| {}).await;
    let mut client = relay.client().await;
    let notes: Vec<Value> = (0..40).map(|n| note(1, NOW_S - n, "")).collect();
    publish_all(&mut client, &notes).await;
    let answer = open(&mut client, "n", json!({})).await;
    let deletion = event(1, NOW_S, 5, &[&["e", &id(&notes[3])]], "");
    publish_all(&mut client, &[deletion, note(1, NOW_S - 5, "new")]).await;
    client.send_text(json!(["NEG-MSG", "n", NOTHING])).await;
    assert_eq!(client.receive().await, json!(["NEG-MSG", "n", answer]));
    assert_ne!(open(&mut client, "n", json!({})).await, answer);
    relay.stop().await;
}

/// A client of another protocol version receives the relay's version, and may continue with that
/// version.
#[tokio::test(flavor = "multi_thread")]
async fn another_version_is_answered_with_ours() {
    let relay = Relay::start(|_| {}).await;
    let mut client = relay.client().await;
    let one = note(1, NOW_S, "");
    publish_all(&mut client, std::slice::from_ref(&one)).await;
    client.send_text(json!(["NEG-OPEN", "n", {}, "62ffff"])).await;
    assert_eq!(client.receive().await, json!(["NEG-MSG", "n", "61"]));
    client.send_text(json!(["NEG-MSG", "n", NOTHING])).await;
    let expected = format!("6100000201{}", id(&one));
    assert_eq!(client.receive().await, json!(["NEG-MSG", "n", expected]));
    relay.stop().await;
}
