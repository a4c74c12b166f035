//! The keys that a client proves, and what it may publish then (NIP-42, NIP-70).

use serde_json::json;

use crate::kit::{NOW_S, Relay, event, note, pubkey};

fn plain(accepted: bool, reason: &str) -> (bool, String) {
    (accepted, reason.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_counts_if_kind_challenge_relay_time_id_and_signature_are_right() {
    let relay =
        Relay::start(|config| config.info(|info| info.url = Some("wss://here.example".into())))
            .await;
    let (mut client, other) = (relay.client().await, relay.client().await);
    let challenge = client.challenge.clone();
    let answer = |kind, at, url: &str, challenge: &str| {
        event(1, at, kind, &[&["relay", url], &["challenge", challenge]], "")
    };
    let here = "wss://here.example/";
    let mut forged = answer(22_242, NOW_S, here, &challenge);
    forged["content"] = json!("changed");
    let mut unsigned = answer(22_242, NOW_S, here, &challenge);
    unsigned["sig"] = json!("11".repeat(64));
    let refused = [
        (answer(1, NOW_S, here, &challenge), "kind 22242"),
        (answer(22_242, NOW_S - 601, here, &challenge), "created_at"),
        (answer(22_242, NOW_S + 601, here, &challenge), "created_at"),
        (answer(22_242, NOW_S, "wss://there.example", &challenge), "this one, here.example"),
        (answer(22_242, NOW_S, here, &other.challenge), "challenge"),
        (answer(22_242, NOW_S, here, ""), "challenge"),
        (event(1, NOW_S, 22_242, &[], ""), "challenge"),
        (event(1, NOW_S, 22_242, &[&["challenge", &challenge]], ""), "relay"),
        (forged, "id is not"),
        (unsigned, "signature"),
    ];
    let protected = event(1, NOW_S, 1, &[&["-"]], "mine");
    for (answer, reason) in refused {
        let (accepted, said) = client.auth_with(&answer).await;
        assert!(!accepted && said.starts_with("invalid: ") && said.contains(reason), "{said}");
        assert!(client.publish(&protected).await.1.starts_with("auth-required: "));
    }
    let good = answer(22_242, NOW_S - 600, "ws://HERE.example:80", &challenge);
    for _ in 0..2 {
        assert_eq!(client.auth_with(&good).await, plain(true, ""));
    }
    assert_eq!(client.publish(&protected).await, plain(true, ""));
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_may_prove_several_keys_up_to_the_bound() {
    let relay = Relay::start(|config| config.limits.auth_keys_max = 2).await;
    let mut client = relay.client().await;
    let protected = |who| event(who, NOW_S, 1, &[&["-"]], "");
    client.auth(1).await;
    assert!(client.publish(&protected(2)).await.1.starts_with("restricted: "));
    client.auth(2).await;
    client.auth(1).await;
    let proof = client.proof(3);
    let (accepted, reason) = client.auth_with(&proof).await;
    assert!(!accepted && reason.starts_with("restricted: "), "{reason}");
    for who in [1, 2] {
        assert_eq!(client.publish(&protected(who)).await, plain(true, ""));
    }
    // Keys proved on one connection do not count on another.
    let mut other = relay.client().await;
    let mut third = protected(1);
    third["id"] = json!("00".repeat(32));
    assert!(other.publish(&third).await.1.starts_with("auth-required: "));
    relay.stop().await;
}

/// The client sends several AUTHs without waiting for OK. Each applies to the messages after it.
#[tokio::test(flavor = "multi_thread")]
async fn what_follows_an_auth_at_once_is_said_by_the_one_it_proves() {
    let relay = Relay::start(|_| {}).await;
    for round in 0..20 {
        let mut client = relay.client().await;
        for who in [1, 2] {
            let proof = client.proof(who);
            client.feed(json!(["AUTH", proof])).await;
            let protected = event(who, NOW_S, 1, &[&["-"]], &round.to_string());
            client.feed(json!(["EVENT", protected])).await;
        }
        client.flush().await;
        for _ in 0..4 {
            let ok = client.receive().await;
            assert_eq!((&ok[0], &ok[2]), (&json!("OK"), &json!(true)), "{ok}");
        }
    }
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_a_challenge_are_neither_stored_nor_sent() {
    let relay = Relay::start(|_| {}).await;
    let (mut client, mut listener) = (relay.client().await, relay.client().await);
    assert!(listener.ask("s", &[json!({}), json!({"kinds": [22_242]})]).await.is_empty());
    client.auth(1).await;
    let proof = client.proof(1);
    let reason = "invalid: kind 22242 answers a challenge and belongs into AUTH";
    assert_eq!(client.publish(&proof).await, plain(false, reason));
    assert_eq!(client.count(&[json!({"authors": [pubkey(1)]})]).await, 0);
    let last = note(1, NOW_S, "the only one");
    client.publish(&last).await;
    assert_eq!(listener.receive().await, json!(["EVENT", "s", last]));
    assert_eq!(relay.store.stats().records, 1);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repost_must_not_hold_a_protected_event() {
    let relay = Relay::start(|_| {}).await;
    let mut client = relay.client().await;
    client.auth(1).await;
    let protected = event(1, NOW_S, 1, &[&["-"]], "");
    assert_eq!(client.publish(&protected).await, plain(true, ""));
    for kind in [6, 16] {
        let repost = event(2, NOW_S, kind, &[], &protected.to_string());
        let reason = "blocked: repost holds a protected event";
        assert_eq!(client.publish(&repost).await, plain(false, reason));
        let open = event(2, NOW_S, kind, &[], &note(1, NOW_S, "open").to_string());
        assert_eq!(client.publish(&open).await, plain(true, ""));
    }
    let quote = event(2, NOW_S, 1, &[], &protected.to_string());
    assert_eq!(client.publish(&quote).await, plain(true, ""));
    relay.stop().await;
}

/// A known id alone does not show whether the relay has the event.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_only_an_id_does_not_learn_whether_its_event_is_here() {
    let relay = Relay::start(|_| {}).await;
    let mut client = relay.client().await;
    let wrap = event(1, NOW_S, 1059, &[&["p", &pubkey(2)]], "secret");
    assert_eq!(client.publish(&wrap).await, plain(true, ""));
    assert_eq!(client.publish(&wrap).await, plain(true, "duplicate: already have this event"));
    let mut probe = note(3, NOW_S, "what of it?");
    probe["id"] = wrap["id"].clone();
    let here = client.publish(&probe).await;
    probe["id"] = json!("ab".repeat(32));
    assert_eq!(client.publish(&probe).await, here);
    relay.stop().await;
}
