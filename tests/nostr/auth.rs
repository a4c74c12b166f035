//! The events that a client may read and publish with its authenticated keys: NIP-42, NIP-70, and
//! the events that NIP-04, NIP-17 and NIP-59 reserve for their parties.

use hark_testkit::clock::now_s;
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::{contents, event, note, pubkey};
use serde_json::{Value, json};

use super::kit::connect;
use crate::served::Relay;

async fn closed(client: &mut Client, said: Value, prefix: &str) {
    client.send_text(&said).await;
    let received = client.receive().await;
    assert_eq!((&received[0], &received[1]), (&json!("CLOSED"), &said[1]), "{received}");
    assert!(received[2].as_str().unwrap().starts_with(prefix), "{received}");
}

/// Publishes a message from 1 to 2, a wrap for 2, a wrap for 3 as the newest event, and public
/// notes between these.
async fn full(relay: &Relay) -> Vec<Value> {
    let mut client = connect(relay).await;
    let (two, three) = (pubkey(2), pubkey(3));
    let events = vec![
        event(4, 10, 1, &[&["p", &two]], "old"),
        event(1, 20, 4, &[&["p", &two]], "from 1 to 2"),
        event(8, 30, 1059, &[&["p", &two]], "wrap for 2"),
        event(4, 40, 1, &[&["p", &three]], "new"),
        event(9, 50, 1059, &[&["p", &three]], "wrap for 3"),
    ];
    for event in &events {
        client.publish_new(event).await;
    }
    events
}

#[tokio::test(flavor = "multi_thread")]
async fn nip42_kind_challenge_relay_and_time_are_checked() {
    let relay = Relay::start(
        "auth-checks",
        "[info]\nurl = \"wss://here.example\"\nother_urls = [\"ws://here.onion/\"]\n",
    );
    let mut client = connect(&relay).await;
    let stranger = connect(&relay).await;
    let challenge = client.challenge.clone();
    assert_ne!(challenge, stranger.challenge);
    let proof = |kind, at, relay: &str, challenge: &str| {
        event(1, at, kind, &[&["relay", relay], &["challenge", challenge]], "")
    };
    let here = "wss://here.example/";
    for bad in [
        proof(1, now_s(), here, &challenge),
        proof(22_242, now_s() - 700, here, &challenge),
        proof(22_242, now_s() + 700, here, &challenge),
        proof(22_242, now_s(), "wss://there.example/", &challenge),
        proof(22_242, now_s(), here, &stranger.challenge),
        event(1, now_s(), 22_242, &[&["relay", here]], ""),
        event(1, now_s(), 22_242, &[&["challenge", &challenge]], ""),
    ] {
        let (accepted, reason) = client.auth_with(&bad).await;
        assert!(!accepted && reason.starts_with("invalid: "), "{bad}: {reason}");
        closed(&mut client, json!(["REQ", "s", {"kinds": [4]}]), "auth-required: ").await;
    }
    for ours in ["WSS://HERE.example:443", "ws://here.onion", &relay.url()] {
        let good = proof(22_242, now_s() - 500, ours, &challenge);
        assert_eq!(client.auth_with(&good).await, (true, String::new()), "{ours}");
    }
    assert!(client.ask("s", &[json!({"kinds": [4]})]).await.is_empty());
}

/// A client may authenticate with several keys on a connection. All of these keys count on this
/// connection, and on no other.
#[tokio::test(flavor = "multi_thread")]
async fn nip42_several_keys_count_on_one_connection() {
    let relay = Relay::start("auth-several", "");
    full(&relay).await;
    let mut client = connect(&relay).await;
    let private = [json!({"kinds": [4, 1059]})];
    let mine = [("1", vec!["from 1 to 2"]), ("3", vec!["wrap for 3", "from 1 to 2"])];
    for (who, expected) in mine {
        client.auth(who.parse().unwrap()).await;
        assert_eq!(contents(&client.ask("s", &private).await), expected);
    }
    // The authentication does not apply to another connection.
    let mut other = connect(&relay).await;
    closed(&mut other, json!(["REQ", "s", {"kinds": [4]}]), "auth-required: ").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nip42_kind_22242_is_never_stored_or_sent() {
    let relay = Relay::start("auth-unheard", "");
    let (mut client, mut listener) = (connect(&relay).await, connect(&relay).await);
    listener.ask("s", &[json!({}), json!({"kinds": [22_242]})]).await;
    client.auth(1).await;
    let proof = client.proof(1);
    let (accepted, reason) = client.publish(&proof).await;
    assert!(!accepted && reason.starts_with("invalid: "), "{reason}");
    let last = note(1, now_s(), "");
    client.publish_new(&last).await;
    assert_eq!(listener.receive().await, json!(["EVENT", "s", last]));
    assert_eq!(client.ask("s", &[json!({})]).await, [last]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nip70_protected_events_come_from_their_author_only() {
    let relay = Relay::start("protected", "");
    let mut client = connect(&relay).await;
    let protected = event(1, now_s(), 1, &[&["-"]], "members only");
    assert!(client.publish(&protected).await.1.starts_with("auth-required: "));
    client.auth(2).await;
    assert!(client.publish(&protected).await.1.starts_with("restricted: "));
    let repost = event(2, now_s(), 6, &[], &protected.to_string());
    assert!(client.publish(&repost).await.1.starts_with("blocked: "));
    client.auth(1).await;
    client.publish_new(&protected).await;
    assert!(!client.publish(&repost).await.0);
    assert_eq!(client.ask("s", &[json!({})]).await, [protected]);
}

/// Gift wraps and private messages reach only their parties: by REQ, by COUNT, by id, by
/// comparison, and live.
#[tokio::test(flavor = "multi_thread")]
async fn nip17_and_59_wraps_reach_their_recipients_only() {
    let relay = Relay::start("wraps", "");
    let events = full(&relay).await;
    let (mut stranger, mut party) = (connect(&relay).await, connect(&relay).await);
    party.auth(2).await;
    let ids = json!({"ids": events.iter().map(|event| &event["id"]).collect::<Vec<_>>()});
    let to_two = json!({"#p": [pubkey(2)]});
    let mixed = json!({"kinds": [1, 4, 1059, 21_059]});
    for filter in [&ids, &mixed, &json!({}), &json!({"since": 0, "until": 100})] {
        let filter = std::slice::from_ref(filter);
        assert_eq!(contents(&stranger.ask("s", filter).await), ["new", "old"]);
        assert_eq!(stranger.count(filter).await, 2);
        let seen = ["new", "wrap for 2", "from 1 to 2", "old"];
        assert_eq!(contents(&party.ask("s", filter).await), seen);
        assert_eq!(party.count(filter).await, 4);
    }
    for kinds in [json!([1059]), json!([4]), json!([4, 1059, 21_059])] {
        for verb in ["REQ", "COUNT"] {
            closed(&mut stranger, json!([verb, "s", {"kinds": kinds}]), "auth-required: ").await;
        }
        let theirs = json!({"kinds": kinds, "#p": [pubkey(3)]});
        assert!(party.ask("s", &[theirs]).await.is_empty());
    }
    stranger.send_text(json!(["NEG-OPEN", "n", {"kinds": [1059]}, "6100000200"])).await;
    assert_eq!(stranger.receive().await[0], "NEG-ERR");

    stranger.ask("s", &[mixed.clone(), to_two.clone()]).await;
    party.ask("s", &[mixed, to_two]).await;
    let mut sender = connect(&relay).await;
    let two = pubkey(2);
    for kind in [4, 1059, 21_059, 1] {
        let sent = event(7, now_s(), kind, &[&["p", &two]], "live");
        sender.publish_new(&sent).await;
        assert_eq!(party.receive().await, json!(["EVENT", "s", sent]));
        if kind == 1 {
            assert_eq!(stranger.receive().await, json!(["EVENT", "s", sent]));
        }
    }
    // Ephemeral wraps are not stored.
    assert_eq!(party.count(&[json!({"kinds": [21_059]})]).await, 0);
}

/// The newest events are hidden, and a limit of 1 still finds an older public event.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_hidden_does_not_count_for_the_limit() {
    let relay = Relay::start("limit-gate", "");
    let mut client = connect(&relay).await;
    let two = pubkey(2);
    client.publish_new(&event(1, 10, 1, &[&["p", &two]], "public")).await;
    for n in 0..30 {
        client.publish_new(&event(1, 100 + n, 1059, &[&["p", &two]], "")).await;
    }
    for limit in [1, 20] {
        let filter = [json!({"#p": [two], "limit": limit})];
        assert_eq!(contents(&client.ask("s", &filter).await), ["public"]);
    }
    client.send_text(json!(["REQ", "s", {"#p": [two], "limit": 1}])).await;
    assert_eq!(client.page("s").await.1, Some(json!(["finish"])), "nor for what is left");
}
