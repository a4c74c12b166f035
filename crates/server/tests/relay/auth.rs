//! Keys that a client proves, and events that the client may then publish (NIP-42, NIP-70).

use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::{event, note, pubkey};
use serde_json::json;

use crate::kit::{NOW_S, Relay};

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

/// A foreign relay connects to Hark, passes Hark's challenge to a user of the foreign relay, and
/// forwards the user's answer to Hark. The answer names the foreign relay.
#[tokio::test(flavor = "multi_thread")]
async fn another_relay_reads_nothing_with_an_answer_that_was_meant_for_it() {
    for url in [None, Some("wss://here.example")] {
        let relay =
            Relay::start(|config| config.info(|info| info.url = url.map(str::to_owned))).await;
        let wrap = event(2, NOW_S, 1059, &[&["p", &pubkey(1)]], "secret");
        relay.client().await.publish_new(&wrap).await;
        let evil = ["wss://evil.example", "wss://evil.example/", "ws://evil.example:80/x"];
        for headers in [
            &[("Host", "evil.example")][..],
            &[("Host", "evil.example"), ("X-Forwarded-For", "192.0.2.1")],
            &[("Host", "evil.example:80"), ("X-Forwarded-Host", "evil.example")],
            &[("Host", "here.example"), ("Forwarded", "host=evil.example;proto=https")],
        ] {
            let mut client = Client::with_headers(&relay.url, NOW_S, headers).await;
            for name in evil {
                let tags: [&[&str]; 2] = [&["relay", name], &["challenge", &client.challenge]];
                let answer = event(1, NOW_S, 22_242, &tags, "");
                let (accepted, said) = client.auth_with(&answer).await;
                assert!(!accepted && said.starts_with("invalid: relay "), "{name}: {said}");
            }
            client.send_text(json!(["REQ", "s", {"kinds": [1059]}])).await;
            let closed = client.receive().await;
            assert_eq!((&closed[0], &closed[1]), (&json!("CLOSED"), &json!("s")), "{closed}");
        }
        // A user who authenticates under the name that the operator has set, or by this server's
        // address, can read.
        let mut client = relay.client().await;
        let name = url.unwrap_or(&relay.url);
        let tags: [&[&str]; 2] = [&["relay", name], &["challenge", &client.challenge]];
        assert_eq!(client.auth_with(&event(1, NOW_S, 22_242, &tags, "")).await, plain(true, ""));
        assert_eq!(client.find_now(&[json!({"kinds": [1059]})]).await, [wrap]);
        relay.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_missed_the_challenge_gets_it_with_the_first_demand_and_once() {
    let relay = Relay::start(|_| {}).await;
    let protected = event(1, NOW_S, 1, &[&["-"]], "");
    let mut client = relay.client().await;
    assert!(client.publish(&note(1, NOW_S, "open")).await.0 && client.challenged_again == 0);
    for _ in 0..2 {
        assert!(client.publish(&protected).await.1.starts_with("auth-required: "));
        assert_eq!(client.challenged_again, 1);
    }
    let mut client = relay.client().await;
    client.send_text(json!(["REQ", "s", {"kinds": [4]}])).await;
    assert_eq!(client.receive().await[0], "CLOSED");
    assert_eq!(client.challenged_again, 1);
    client.auth(1).await;
    relay.stop().await;
}

/// If a stranger publishes a protected event that is stored, the refusal is the same as for a new
/// event.
#[tokio::test(flavor = "multi_thread")]
async fn only_its_author_learns_that_a_protected_event_is_stored() {
    let relay = Relay::start(|_| {}).await;
    let protected = event(1, NOW_S, 1, &[&["-"]], "mine");
    let (mut author, mut other) = (relay.client().await, relay.client().await);
    author.auth(1).await;
    author.publish_new(&protected).await;
    let refusal = "event is protected; only its author may publish it";
    let said = other.publish(&protected).await;
    assert_eq!(said, plain(false, &format!("auth-required: {refusal}")));
    other.auth(2).await;
    let said = other.publish(&protected).await;
    assert_eq!(said, plain(false, &format!("restricted: {refusal}")));
    assert_eq!(author.publish(&protected).await, plain(true, "duplicate: already have this event"));
    relay.stop().await;
}

/// The client sends several AUTHs without waiting for OK. Each AUTH applies to all later messages.
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
    let reason = "invalid: kind 22242 answers a challenge and belongs in AUTH";
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

/// A client that knows only the id of an event cannot find out whether the relay has the event.
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
