//! Events that only their author and recipients may see: direct messages and gift wraps (NIP-04,
//! NIP-17, NIP-59).

use hark_server::limits::{Rate, RateLimits};
use hark_server::nostr::{RelayInfo, SharedIdentity};
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::{contents, event, note, pubkey};
use serde_json::{Value, json};

use crate::kit::{NOW_S, Relay};

/// Publishes a public note, a direct message from key 1 to key 2, a wrap for key 2, a wrap for key
/// 3, and another public note.
async fn full(relay: &Relay) -> Client {
    let mut client = relay.client().await;
    let (two, three) = (pubkey(2), pubkey(3));
    let events = [
        event(4, 10, 1, &[&["p", &two]], "public, old"),
        event(1, 20, 4, &[&["p", &two]], "from 1 to 2"),
        event(8, 30, 1059, &[&["p", &two]], "wrap for 2"),
        event(9, 40, 1059, &[&["p", &three]], "wrap for 3"),
        event(4, 50, 1, &[&["p", &three]], "public, new"),
    ];
    for event in events {
        assert_eq!(client.publish(&event).await.1, "");
    }
    client
}

async fn refused(client: &mut Client, said: Value, prefix: &str) {
    client.send_text(&said).await;
    let received = client.receive().await;
    assert_eq!((&received[0], &received[1]), (&json!("CLOSED"), &said[1]), "{received}");
    assert!(received[2].as_str().unwrap().starts_with(prefix), "{received}");
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_answered_as_if_nothing_private_were_here() {
    let relay = Relay::start(|_| {}).await;
    let mut stranger = full(&relay).await;
    let public = ["public, new", "public, old"];
    assert_eq!(contents(&stranger.ask("s", &[json!({})]).await), public);
    assert_eq!(contents(&stranger.ask("s", &[json!({"kinds": [1, 4, 1059]})]).await), public);
    // Newer private events are hidden, and do not count towards the limit.
    let two = [json!({"#p": [pubkey(2)], "limit": 1})];
    assert_eq!(contents(&stranger.ask("s", &two).await), ["public, old"]);
    let all = [json!({}), json!({"kinds": [1059, 1]})];
    assert_eq!(contents(&stranger.ask("s", &all).await), public);
    for filters in [vec![json!({})], vec![json!({"kinds": [4, 1]})], all.to_vec()] {
        assert_eq!(stranger.count(&filters).await, 2);
    }
    assert_eq!(stranger.count(&two).await, 1);
    // A client that has proved another person's key is a stranger, too.
    stranger.auth(7).await;
    assert_eq!(contents(&stranger.ask("s", &[json!({"kinds": [1, 4, 1059]})]).await), public);
    assert_eq!(stranger.count(&[json!({})]).await, 2);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parties_see_what_concerns_them_in_answers_counts_and_ids() {
    let relay = Relay::start(|_| {}).await;
    let mut client = full(&relay).await;
    client.auth(2).await;
    let mine = ["wrap for 2", "from 1 to 2"];
    let found = client.ask("s", &[json!({"kinds": [4, 1059]})]).await;
    assert_eq!(contents(&found), mine);
    let ids: Vec<&Value> = found.iter().map(|event| &event["id"]).collect();
    let by_id = [json!({"ids": ids})];
    assert_eq!(contents(&client.ask("s", &by_id).await), mine);
    assert_eq!(client.count(&[json!({"kinds": [4]}), json!({"#p": [pubkey(2)]})]).await, 3);
    assert_eq!(client.count(&by_id).await, 2);
    // The author of a message may see it as well. If the client proves a second key, the events
    // that this key may see are added.
    let mut author = relay.client().await;
    assert!(author.ask("s", &by_id).await.is_empty());
    assert_eq!(author.count(&by_id).await, 0);
    author.auth(1).await;
    assert_eq!(contents(&author.ask("s", &by_id).await), ["from 1 to 2"]);
    author.auth(3).await;
    let found = author.ask("s", &[json!({"kinds": [4, 1059]})]).await;
    assert_eq!(contents(&found), ["wrap for 3", "from 1 to 2"]);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_for_private_kinds_only_is_closed_until_a_party_asks() {
    let relay = Relay::start(|_| {}).await;
    let mut client = full(&relay).await;
    let questions = [
        json!([{"kinds": [1059]}]),
        json!([{"kinds": [4, 21_059, 1059], "#p": [pubkey(2)]}]),
        json!([{"kinds": [4], "authors": [pubkey(1)]}, {"kinds": [1059], "limit": 3}]),
    ];
    let message = |verb: &str, filters: &Value| {
        let mut message = vec![json!(verb), json!("s")];
        message.extend_from_slice(filters.as_array().unwrap());
        json!(message)
    };
    for filters in &questions {
        for verb in ["REQ", "COUNT"] {
            refused(&mut client, message(verb, filters), "auth-required: ").await;
        }
    }
    client.auth(2).await;
    for filters in &questions {
        assert!(!client.ask("s", filters.as_array().unwrap()).await.is_empty());
    }
    // A client finds a wrap for another person only if the client is a recipient as well.
    let (two, three) = (pubkey(2), pubkey(3));
    let others = [json!({"kinds": [1059], "#p": [three], "authors": [pubkey(9)]})];
    assert!(client.ask("s", &others).await.is_empty());
    let mut sender = relay.client().await;
    let both = event(9, 60, 1059, &[&["p", &three], &["p", &two]], "for both");
    sender.publish_new(&both).await;
    assert_eq!(client.receive().await, json!(["EVENT", "s", both]));
    assert_eq!(client.ask("s", &others).await, [both]);
    // A subscription that was closed gets no live events.
    refused(&mut sender, message("REQ", &questions[0]), "auth-required: ").await;
    sender.publish_new(&event(8, 70, 1059, &[&["p", &two]], "late")).await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn live_events_pass_the_same_gate() {
    let relay = Relay::start(|_| {}).await;
    let (mut stranger, mut party) = (relay.client().await, relay.client().await);
    let mut publisher = relay.client().await;
    party.auth(2).await;
    let filters = [json!({"#p": [pubkey(2)]}), json!({"kinds": [1, 4, 1059, 21_059]})];
    stranger.ask("s", &filters).await;
    party.ask("s", &filters).await;
    let two = pubkey(2);
    let to_two: &[&[&str]] = &[&["p", &two]];
    let private = [4, 1059, 21_059].map(|kind| event(1, NOW_S, kind, to_two, "private"));
    let public = note(1, NOW_S, "public");
    for event in private.iter().chain([&public]) {
        assert_eq!(publisher.publish(event).await.1, "");
    }
    for event in private.iter().chain([&public]) {
        assert_eq!(party.receive().await, json!(["EVENT", "s", event]));
    }
    assert_eq!(stranger.receive().await, json!(["EVENT", "s", public]));
    // A subscription keeps the gate with which it was opened. To see more events, the client opens
    // the subscription again.
    stranger.auth(2).await;
    let wrap = event(9, NOW_S, 21_059, to_two, "passing");
    assert_eq!(publisher.publish(&wrap).await.1, "");
    assert_eq!(party.receive().await, json!(["EVENT", "s", wrap]));
    assert_eq!(stranger.ask("s", &filters).await.len(), 3);
    let wrap = event(9, NOW_S, 21_059, to_two, "passing again");
    assert_eq!(publisher.publish(&wrap).await.1, "");
    assert_eq!(stranger.receive().await, json!(["EVENT", "s", wrap]));
    relay.stop().await;
}

/// The cost of a question must not reveal private events either. So the number of questions that a
/// client may ask at once does not depend on how many wraps a key has received.
#[tokio::test(flavor = "multi_thread")]
async fn private_events_cost_those_nothing_who_may_not_see_them() {
    let mut answered = Vec::new();
    for wraps in [0, 60] {
        let rows = Rate { per_minute: 1, at_once: 1_000 };
        let rates = RateLimits { rows_per_connection: Some(rows), ..RateLimits::none() };
        let relay = Relay::start(|config| config.limits.rates = rates).await;
        let (mut sender, two) = (relay.client().await, pubkey(2));
        for n in 0..10 + wraps {
            let kind = if n < 10 { 1 } else { 1059 };
            sender.publish_new(&event(9, NOW_S - n, kind, &[&["p", &two]], "")).await;
        }
        for (who, filter) in [
            (None, json!({"#p": [two], "limit": 1})),
            (Some(3), json!({"#p": [two], "limit": 1})),
            (Some(3), json!({"#p": [two], "kinds": [1059, 4]})),
            (Some(3), json!({"#p": [two, pubkey(3)], "authors": [pubkey(9)]})),
        ] {
            let mut asker = relay.client().await;
            if let Some(who) = who {
                asker.auth(who).await;
            }
            let mut count = 0;
            loop {
                asker.send_text(json!(["REQ", "s", filter])).await;
                let received = asker.receive().await;
                match received[0].as_str() {
                    Some("EVENT") => drop(asker.stored("s").await),
                    Some("EOSE") => {}
                    _ => {
                        assert!(received[2].as_str().unwrap().starts_with("rate-limited: "));
                        break;
                    }
                }
                count += 1;
            }
            answered.push((wraps, count));
        }
        relay.stop().await;
    }
    let (without, with) = answered.split_at(answered.len() / 2);
    let counts = |all: &[(u64, u64)]| all.iter().map(|(_, count)| *count).collect::<Vec<_>>();
    assert_eq!(counts(with), counts(without));
}

#[tokio::test(flavor = "multi_thread")]
async fn which_kinds_are_private_is_a_setting() {
    let relay = Relay::start(|config| {
        config.relay.identity = SharedIdentity::new(RelayInfo::default(), vec![30_078, 7]);
    })
    .await;
    let mut client = full(&relay).await;
    assert_eq!(client.count(&[json!({"kinds": [1059]})]).await, 2);
    assert_eq!(client.publish(&event(1, 60, 7, &[], "mine")).await.1, "");
    refused(&mut client, json!(["REQ", "s", {"kinds": [7]}]), "auth-required: ").await;
    client.auth(1).await;
    assert_eq!(contents(&client.ask("s", &[json!({"kinds": [7]})]).await), ["mine"]);
    relay.stop().await;
}
