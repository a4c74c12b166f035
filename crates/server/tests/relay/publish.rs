//! The answers to EVENT: OK's verdict and reason.

use std::sync::Arc;

use hark_archive::store::memory::MemoryStore;
use hark_archive::{Store, Write};
use hark_networks::nostr::Nostr;
use hark_networks::nostr::rules::NostrRules;
use hark_networks::{Network as _, ReadOptions};
use hark_server::nostr::{self, RelayInfo, SharedIdentity};
use hark_testkit::nostr::{event, note, pubkey};
use hark_testkit::wait::until_async;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::kit::{NOW_S, Relay};

fn plain(accepted: bool, reason: &str) -> (bool, String) {
    (accepted, reason.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn ok_says_what_became_of_an_event() {
    let relay = Relay::start(|config| {
        config.limits.events.created_at_behind_s_max = Some(1_000_000);
        config.limits.events.event_tags_max = 3;
    })
    .await;
    let mut client = relay.client().await;
    let first = note(1, NOW_S, "a");
    assert_eq!(client.publish(&first).await, plain(true, ""));
    let again = client.publish(&first).await;
    assert_eq!(again, plain(true, "duplicate: already have this event"));

    let mut forged = note(1, NOW_S, "b");
    forged["content"] = json!("c");
    let (accepted, reason) = client.publish(&forged).await;
    assert!(!accepted && reason.starts_with("invalid: id"), "{reason}");
    let mut unsigned = note(1, NOW_S, "d");
    unsigned["sig"] = json!("11".repeat(64));
    let (accepted, reason) = client.publish(&unsigned).await;
    assert!(!accepted && reason.starts_with("invalid: "), "{reason}");

    let cases = [
        (note(1, NOW_S + 901, ""), "invalid: created_at is more than 900 s in the future"),
        (note(1, NOW_S - 1_000_001, ""), "invalid: created_at is more than 1000000 s in the past"),
        (
            event(1, NOW_S, 1, &[&["t"], &["t"], &["t"], &["t"]], ""),
            "invalid: event has more than 3 tags",
        ),
        (
            event(1, NOW_S, 22_242, &[], ""),
            "invalid: kind 22242 answers a challenge and belongs in AUTH",
        ),
        (event(1, NOW_S, 1, &[&["expiration", "1800000000"]], ""), "invalid: event has expired"),
        (
            event(1, NOW_S, 1, &[&["-"]], ""),
            "auth-required: event is protected; only its author may publish it",
        ),
    ];
    for (event, reason) in cases {
        assert_eq!(client.publish(&event).await, plain(false, reason));
    }
    assert_eq!(relay.store.stats().records, 1);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_deleted_and_vanished_events_are_refused_as_the_nips_say() {
    let relay =
        Relay::start(|config| config.info(|info| info.url = Some("wss://here.example/".into())))
            .await;
    let mut client = relay.client().await;
    let old = event(1, 100, 30_023, &[&["d", "x"]], "old");
    assert_eq!(client.publish(&event(1, 200, 30_023, &[&["d", "x"]], "new")).await.1, "");
    let replaced = "replaced: have a newer version, or one of the same time with a lower id";
    assert_eq!(client.publish(&old).await, plain(false, replaced));
    assert_eq!(client.publish(&event(1, 100, 30_023, &[&["d", "y"]], "")).await.1, "");

    let gone = note(1, 300, "gone");
    let id = gone["id"].as_str().unwrap();
    assert_eq!(client.publish(&event(1, 301, 5, &[&["e", id]], "")).await.1, "");
    let refused = client.publish(&gone).await;
    assert_eq!(refused, plain(false, "blocked: event was deleted by its author"));

    let elsewhere = event(2, 400, 62, &[&["relay", "wss://there.example"]], "");
    let (note_a, note_b) = (note(2, 350, "a"), note(2, 360, "b"));
    assert_eq!(client.publish(&elsewhere).await.1, "");
    assert_eq!(client.publish(&note_a).await.1, "");
    let here = event(2, 400, 62, &[&["relay", "WSS://here.example"]], "bye");
    assert_eq!(client.publish(&here).await.1, "");
    // No other event of the author is left. The author's request to another relay is gone, too, and
    // is not stored again.
    assert_eq!(
        client.find_now(&[json!({"authors": [pubkey(2)]})]).await,
        std::slice::from_ref(&here)
    );
    let already = plain(true, "duplicate: its author has asked to vanish already");
    assert_eq!(client.publish(&elsewhere).await, already);
    assert_eq!(
        client.find_now(&[json!({"authors": [pubkey(2)]})]).await,
        std::slice::from_ref(&here)
    );
    assert_eq!(client.publish(&note_b).await, plain(false, "blocked: its author asked to vanish"));
    // No deletion undoes a request to vanish, whether it comes before or after.
    let sorry = event(2, 500, 5, &[&["e", here["id"].as_str().unwrap()], &["k", "62"]], "");
    assert_eq!(client.publish(&sorry).await.1, "");
    assert_eq!(client.publish(&note_b).await, plain(false, "blocked: its author asked to vanish"));
    let again = event(2, 600, 62, &[&["relay", "ALL_RELAYS"]], "");
    let before = event(2, 700, 5, &[&["e", again["id"].as_str().unwrap()]], "");
    assert_eq!(client.publish(&before).await.1, "");
    assert_eq!(client.publish(&again).await, plain(true, ""));
    assert_eq!(client.count(&[json!({"authors": [pubkey(2)], "kinds": [62]})]).await, 1);
    let nowhere = event(2, 800, 62, &[], "");
    let reason = "invalid: request to vanish names no relay";
    assert_eq!(client.publish(&nowhere).await, plain(false, reason));
    relay.stop().await;
}

/// Each kind of address and each recipient requires searches, and all other events wait for these
/// searches.
#[tokio::test(flavor = "multi_thread")]
async fn deletions_of_too_many_kinds_and_wraps_for_too_many_recipients_are_blocked() {
    let relay = Relay::start(|_| {}).await;
    let mut client = relay.client().await;
    let addresses: Vec<String> =
        (30_000..30_065).map(|kind| format!("{kind}:{}:d", pubkey(1))).collect();
    let recipients: Vec<String> = (1..=17).map(pubkey).collect();
    for (who, kind, name, values, reason) in [
        (1, 5, "a", addresses, "blocked: deletes addresses of more than 64 kinds"),
        (9, 1059, "p", recipients, "blocked: a gift wrap for more than 16 recipients"),
    ] {
        let tags: Vec<[&str; 2]> = values.iter().map(|value| [name, value.as_str()]).collect();
        let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
        client.publish_new(&event(who, NOW_S, kind, &tags[1..], "")).await;
        assert_eq!(client.publish(&event(who, NOW_S, kind, &tags, "")).await, plain(false, reason));
    }
    relay.stop().await;
}

/// Without a configured URL, the relay does not know whether a request names this relay.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_vanish_is_not_taken_by_who_cannot_tell_whom_it_names() {
    for (url, is_known) in [(None, false), (Some("wss://here.example"), true)] {
        let relay =
            Relay::start(|config| config.info(|info| info.url = url.map(str::to_owned))).await;
        let mut client = relay.client().await;
        client.publish_new(&note(1, 100, "mine")).await;
        let request = |relay: &str| event(1, 200, 62, &[&["relay", relay]], relay);
        for (relay, is_us) in [("wss://there.example", false), ("wss://here.example", true)] {
            let (accepted, reason) = client.publish(&request(relay)).await;
            assert!(accepted == is_known && reason.starts_with("error: ") != is_known, "{reason}");
            let left = u64::from(!(is_known && is_us));
            assert_eq!(client.count(&[json!({"kinds": [1]})]).await, left, "{relay}");
        }
        let (_, document) =
            crate::kit::http(&relay.url, "/", "Accept: application/nostr+json").await;
        let document: Value = serde_json::from_str(&document).unwrap();
        let nips = document["supported_nips"].as_array().unwrap();
        assert_eq!(nips.contains(&json!(62)), is_known, "{nips:?}");
        // `ALL_RELAYS` includes this relay.
        client.publish_new(&event(1, 300, 62, &[&["relay", "ALL_RELAYS"]], "")).await;
        assert_eq!(client.count(&[json!({})]).await, 1);
        let (_, health) = crate::kit::http(&relay.url, "/healthz", "").await;
        assert_eq!(health.contains("[info] url is not set"), !is_known, "{health}");
        relay.stop().await;
    }
}

/// After an OK, the author would believe that all of the author's events are deleted. But another
/// path may belong to another relay.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_vanish_from_another_path_of_this_host_is_refused_in_words() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(NostrRules));
    let request = |url: &str| event(1, 200, 62, &[&["relay", url]], url);
    let brought = request("wss://here.example/brought");
    let options = ReadOptions { record_bytes_max: 1 << 20, ..ReadOptions::default() };
    let mut record = Vec::new();
    let mut reader = Nostr.lines().reader(&options);
    reader.read(brought.to_string().as_bytes(), &|_| false, &mut record).unwrap();
    store.commit(&[Write::Put(record.into())]).unwrap();
    let relay = Relay::on(Arc::clone(&store), |config| {
        config.info(|info| info.url = Some("wss://here.example/relay".into()));
    })
    .await;
    let mut client = relay.client().await;
    client.publish_new(&note(1, 100, "mine")).await;
    // An imported request is already stored, but has deleted nothing either.
    let others =
        ["wss://here.example", "wss://HERE.example:443/other/", "here.example"].map(request);
    for request in others.iter().chain([&brought]) {
        let (accepted, reason) = client.publish(request).await;
        assert!(!accepted && reason.starts_with("invalid: "), "{reason}");
        assert!(reason.contains("nothing was deleted. Name wss://here.example/relay"), "{reason}");
        assert_eq!(client.count(&[json!({"kinds": [1]})]).await, 1, "{request}");
    }
    assert_eq!(store.stats().records, 2);
    // A request names this relay in every spelling of the relay's own URL.
    assert_eq!(client.publish(&request("WSS://Here.example:443/relay/")).await, plain(true, ""));
    assert_eq!(client.count(&[json!({"kinds": [1]})]).await, 0);
    relay.stop().await;
}

/// The request came by an import, or from another relay, while no URL was set.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_vanish_that_was_kept_is_carried_out_once_the_relay_knows_its_url() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(NostrRules));
    let mine = [note(1, 100, "mine"), event(9, 90, 1059, &[&["p", &pubkey(1)]], "to me")];
    let request = event(1, 200, 62, &[&["relay", "wss://here.example/"]], "");
    let elsewhere = event(1, 150, 62, &[&["relay", "wss://there.example"]], "");
    let stays = [note(1, 201, "later"), note(2, 100, "another's")];
    let options = ReadOptions { record_bytes_max: 1 << 20, ..ReadOptions::default() };
    let mut reader = Nostr.lines().reader(&options);
    for event in mine.iter().chain([&request, &elsewhere]).chain(&stays) {
        let mut record = Vec::new();
        reader.read(event.to_string().as_bytes(), &|_| false, &mut record).unwrap();
        store.commit(&[Write::Put(record.into())]).unwrap();
    }
    let mut identity = SharedIdentity::default();
    let relay =
        Relay::on(Arc::clone(&store), |config| identity = config.relay.identity.clone()).await;
    let mut client = relay.client().await;
    assert_eq!(client.count(&[json!({"kinds": [1, 62]})]).await, 5);
    let url = Some("wss://here.example".to_owned());
    identity.set(RelayInfo { url, ..RelayInfo::default() }, nostr::PRIVATE_KINDS.to_vec());
    until_async("the author's events are deleted", async || store.stats().records <= 3).await;
    for gone in &mine {
        let (accepted, reason) = client.publish(gone).await;
        assert!(!accepted && reason == "blocked: its author asked to vanish", "{reason}");
    }
    let left = client.find_now(&[json!({})]).await;
    assert!(left.len() == 3 && left.contains(&request), "{left:?}");
    assert!(stays.iter().all(|event| left.contains(event)), "{left:?}");
    relay.stop().await;
}

/// Of two versions with the same time, the version with the lower id wins, in any order of arrival
/// (NIP-01).
#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_loses_is_refused_and_one_that_is_kept_is_a_duplicate() {
    let relay = Relay::start(|_| {}).await;
    let mut client = relay.client().await;
    for kind in [0, 10_002, 30_023] {
        let version = |content: &str| event(1, NOW_S, kind, &[&["d", "x"]], content);
        let mut versions: Vec<Value> = ["a", "b", "c"].into_iter().map(version).collect();
        versions.sort_by_key(|event| event["id"].as_str().unwrap().to_owned());
        let reason = "replaced: have a newer version, or one of the same time with a lower id";
        assert_eq!(client.publish(&versions[1]).await, plain(true, ""));
        assert_eq!(client.publish(&versions[2]).await, plain(false, reason));
        assert_eq!(client.publish(&versions[0]).await, plain(true, ""));
        assert_eq!(client.publish(&versions[1]).await, plain(false, reason));
        let kept = plain(true, "duplicate: already have this event");
        assert_eq!(client.publish(&versions[0]).await, kept);
        assert_eq!(client.find_now(&[json!({ "kinds": [kind] })]).await, versions[..1]);
    }
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ephemerals_are_passed_on_and_not_kept() {
    let relay = Relay::start(|_| {}).await;
    let (mut one, mut two) = (relay.client().await, relay.client().await);
    assert!(one.ask("s", &[json!({"kinds": [20_001]})]).await.is_empty());
    let passing = event(1, NOW_S, 20_001, &[], "hey");
    assert_eq!(two.publish(&passing).await.1, "");
    assert_eq!(one.receive().await, json!(["EVENT", "s", passing]));
    assert!(two.ask("s", &[json!({})]).await.is_empty());
    assert_eq!(relay.store.stats().records, 0);
    two.send_text(json!(["CLOSE", "s"])).await;
    // Without a subscription, the sender gets the same answer, which does not reveal who is online.
    let unheard = event(1, NOW_S, 20_002, &[&["p", &pubkey(9)]], "hey");
    assert_eq!(two.publish(&unheard).await, two.publish(&passing).await);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_messages_get_an_answer_and_the_connection_goes_on() {
    let relay = Relay::start(|_| {}).await;
    let mut client = relay.client().await;
    let id = "ab".repeat(32);
    let cases = [
        (String::new(), json!(["NOTICE"])),
        ("{}".to_owned(), json!(["NOTICE"])),
        ("[\"EVENT\"".to_owned(), json!(["NOTICE"])),
        ("[\"EVENT\",{}]".to_owned(), json!(["NOTICE"])),
        (format!("[\"EVENT\",{{\"id\":\"{id}\",\"kind\":-1}}]"), json!(["OK", id, false])),
        ("[\"HELLO\"]".to_owned(), json!(["NOTICE"])),
        ("[\"REQ\",\"s\"]".to_owned(), json!(["CLOSED", "s"])),
        ("[\"REQ\",\"s\",{\"ids\":[\"x\"]}]".to_owned(), json!(["CLOSED", "s"])),
        ("[\"REQ\",\"s\",{\"search\":\"x\"}]".to_owned(), json!(["CLOSED", "s"])),
        ("[\"REQ\",7,{}]".to_owned(), json!(["NOTICE"])),
        ("[\"COUNT\",\"s\",{\"kinds\":[1e99]}]".to_owned(), json!(["CLOSED", "s"])),
        ("[\"NEG-OPEN\",\"n\",{},\"6\"]".to_owned(), json!(["NEG-ERR", "n"])),
        ("[\"NEG-MSG\",\"n\",\"AA\"]".to_owned(), json!(["NEG-ERR", "n"])),
    ];
    for (said, expected) in cases {
        client.send_text(&said).await;
        let received = client.receive().await;
        let expected = expected.as_array().unwrap();
        assert_eq!(
            received.as_array().unwrap()[..expected.len()],
            expected[..],
            "{said}: {received}"
        );
        let reason = received.as_array().unwrap().last().and_then(Value::as_str).unwrap();
        let prefix = reason.split(':').next().unwrap();
        assert!(["invalid", "unsupported"].contains(&prefix), "{said}: {received}");
    }
    client.send(Message::binary(vec![1, 2, 3])).await;
    assert_eq!(client.receive().await[0], "NOTICE");
    let auth = event(1, NOW_S, 22_242, &[], "");
    client.send_text(json!(["AUTH", auth])).await;
    assert_eq!(client.receive().await[2], false);
    assert_eq!(client.publish(&note(1, NOW_S, "still here")).await.1, "");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_events_at_once_are_all_answered_and_none_waits_for_ever() {
    let relay = Relay::start(|config| {
        config.limits.message_bytes_max = 2_000;
        config.limits.events.event_bytes_max = 2_000;
        config.limits.intake_bytes_max = 4_000;
        config.limits.events_per_connection_max = 3;
    })
    .await;
    let mut clients = [relay.client().await, relay.client().await];
    for n in 0..150_u16 {
        for (who, client) in (1..).zip(&mut clients) {
            client.feed(json!(["EVENT", note(who, u64::from(n), "x")])).await;
        }
    }
    for client in &mut clients {
        client.flush().await;
    }
    for client in &mut clients {
        for _ in 0..150 {
            let ok = client.receive().await;
            assert_eq!((&ok[0], &ok[2]), (&json!("OK"), &json!(true)), "{ok}");
        }
    }
    assert_eq!(relay.store.stats().records, 300);
    relay.stop().await;
}
