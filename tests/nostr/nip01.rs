//! NIP-01: events, filters, and the messages between client and relay.

use hark_testkit::clock::now_s;
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::{contents, event, note, pubkey};
use serde_json::{Value, json};

use super::kit::connect;
use crate::served::Relay;

fn id(event: &Value) -> &str {
    event["id"].as_str().unwrap()
}

/// Returns `count` events of `make` with equal times, sorted by id.
fn ties(count: usize, make: impl Fn(&str) -> Value) -> Vec<Value> {
    let mut events: Vec<Value> = (0..count).map(|n| make(&n.to_string())).collect();
    events.sort_by(|a, b| id(a).cmp(id(b)));
    events
}

/// Sends a message and returns the reason of the answer. The answer must name the message, and the
/// reason must begin with a standard prefix.
async fn refused(client: &mut Client, said: &str, verb: &str) -> String {
    client.send_text(said).await;
    let received = client.receive().await;
    assert_eq!(received[0], verb, "{said}: {received}");
    let reason = received.as_array().unwrap().last().unwrap().as_str().unwrap().to_owned();
    let prefix = reason.split(": ").next().unwrap();
    assert!(["invalid", "blocked", "unsupported", "error"].contains(&prefix), "{said}: {received}");
    reason
}

/// If several events have the same time, a limit keeps the events with the lowest ids (NIP-01).
#[tokio::test(flavor = "multi_thread")]
async fn newest_first_and_at_a_tie_the_lowest_id_first() {
    let relay = Relay::start("ties", "");
    let mut client = connect(&relay).await;
    let same = ties(9, |n| note(1, 1_000, n));
    let (older, newer) = (note(1, 999, "older"), note(1, 1_001, "newer"));
    // The published events are sorted neither by id nor by time.
    for event in
        same.iter().rev().step_by(2).chain([&newer, &older]).chain(same.iter().skip(1).step_by(2))
    {
        client.publish_new(event).await;
    }
    let all: Vec<Value> = [newer].into_iter().chain(same).chain([older]).collect();
    assert_eq!(client.ask("s", &[json!({})]).await, all);
    for limit in 1..all.len() {
        assert_eq!(client.ask("s", &[json!({"limit": limit})]).await, all[..limit]);
        let two = [json!({"authors": [pubkey(1)], "kinds": [1], "limit": limit})];
        assert_eq!(client.ask("s", &two).await, all[..limit]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_replaceable_events_the_newest_is_kept_and_at_a_tie_the_lowest_id() {
    let relay = Relay::start("replaceable", "");
    let mut client = connect(&relay).await;
    for (kind, tags) in [(0_u16, &[][..]), (3, &[]), (10_002, &[]), (30_023, &[&["d", "x"][..]])] {
        let make = |at, content: &str| event(1, at, kind, tags, content);
        let same = ties(3, |n| make(500, n));
        let filter = [json!({"kinds": [kind]})];
        client.publish_new(&same[1]).await;
        for event in [&same[2], &make(499, "older")] {
            let (accepted, reason) = client.publish(event).await;
            assert!(!accepted && reason.starts_with("replaced: "), "kind {kind}: {reason}");
            assert_eq!(client.find_now(&filter).await, [same[1].clone()], "kind {kind}");
        }
        client.publish_new(&same[0]).await;
        assert_eq!(client.find_now(&filter).await, [same[0].clone()]);
        let newer = make(501, "newer");
        client.publish_new(&newer).await;
        assert_eq!(client.find_now(&filter).await, [newer]);
        // An event of another author has another address, and so does an event with another `d`.
        client.publish_new(&event(2, 400, kind, tags, "")).await;
        assert_eq!(client.count(&filter).await, 2);
        if kind == 30_023 {
            client.publish_new(&event(1, 400, kind, &[&["d", "y"]], "")).await;
            assert_eq!(client.count(&filter).await, 3);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limit_binds_the_stored_phase_only() {
    let relay = Relay::start("limit", "");
    let (mut client, mut other) = (connect(&relay).await, connect(&relay).await);
    for n in 0..3 {
        other.publish_new(&note(1, 1_000 + n, "stored")).await;
    }
    assert_eq!(client.ask("s", &[json!({"kinds": [1], "limit": 2})]).await.len(), 2);
    assert!(client.ask("t", &[json!({"kinds": [1], "limit": 0})]).await.is_empty());
    for n in 0..5 {
        let live = note(1, 10 + n, "live");
        other.publish_new(&live).await;
        let mut received = [client.receive().await, client.receive().await];
        received.sort_by_key(|message| message[1].to_string());
        assert_eq!(received, [json!(["EVENT", "s", live]), json!(["EVENT", "t", live])]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn since_and_until_are_inclusive() {
    let relay = Relay::start("window", "");
    let (mut client, mut other) = (connect(&relay).await, connect(&relay).await);
    for at in 100..110 {
        client.publish_new(&note(1, at, &at.to_string())).await;
    }
    let window = [json!({"since": 103, "until": 105})];
    assert_eq!(contents(&client.ask("s", &window).await), ["105", "104", "103"]);
    assert_eq!(client.count(&[json!({"since": 109})]).await, 1);
    assert_eq!(client.count(&[json!({"until": 100})]).await, 1);
    assert_eq!(client.count(&[json!({"since": 106, "until": 105})]).await, 0);
    for at in [102, 103, 105, 106] {
        other.publish_new(&note(2, at, "live")).await;
    }
    assert_eq!(client.receive().await[2]["created_at"], 103);
    assert_eq!(client.receive().await[2]["created_at"], 105);
    assert_eq!(client.count(&[json!({"authors": [pubkey(2)]})]).await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_authors_e_and_p_are_exactly_64_lowercase_hex_digits() {
    let relay = Relay::start("hex", "");
    let mut client = connect(&relay).await;
    let key = pubkey(1);
    client.publish_new(&event(1, 100, 1, &[&["p", &key], &["e", &"ab".repeat(32)]], "")).await;
    for element in ["ids", "authors", "#e", "#p"] {
        for value in
            [&key[..8], "", &key[..63], &format!("{key}0"), &"AB".repeat(32), &"zz".repeat(32)]
        {
            for verb in ["REQ", "COUNT"] {
                let said = json!([verb, "s", {element: [key, value]}]).to_string();
                let reason = refused(&mut client, &said, "CLOSED").await;
                assert!(reason.contains(element), "{reason}");
            }
        }
    }
    for (element, count) in [("authors", 1), ("#p", 1), ("ids", 0), ("#e", 0)] {
        assert_eq!(client.count(&[json!({element: [key]})]).await, count);
    }
    // The values of other tags may be any text.
    assert_eq!(client.count(&[json!({"#E": ["x"], "#P": ["AB"]})]).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn subscription_ids_are_1_to_64_characters_and_each_connections_own() {
    let relay = Relay::start("subscriptions", "");
    let (mut one, mut two) = (connect(&relay).await, connect(&relay).await);
    refused(&mut one, &json!(["REQ", "", {}]).to_string(), "CLOSED").await;
    refused(&mut one, &json!(["REQ", "é".repeat(65), {}]).to_string(), "CLOSED").await;
    refused(&mut one, &json!(["REQ", 7, {}]).to_string(), "NOTICE").await;
    let longest = "é".repeat(64);
    assert!(one.ask(&longest, &[json!({"kinds": [1]})]).await.is_empty());
    assert!(two.ask(&longest, &[json!({"kinds": [7]})]).await.is_empty());
    two.send_text(json!(["CLOSE", longest])).await;
    let event = note(1, 100, "");
    two.publish_new(&event).await;
    assert_eq!(one.receive().await, json!(["EVENT", longest, event]));
    // A second REQ with the same id replaces the first.
    assert!(one.ask(&longest, &[json!({"kinds": [9]})]).await.is_empty());
    two.publish_new(&note(1, 101, "")).await;
    assert_eq!(one.count(&[json!({})]).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_first_value_of_single_letter_tags_is_found() {
    let relay = Relay::start("tags", "");
    let mut client = connect(&relay).await;
    let tags: &[&[&str]] =
        &[&["t", "first", "second"], &["T", "upper"], &["tt", "two"], &["t", "more"]];
    client.publish_new(&event(1, 100, 1, tags, "")).await;
    for (filter, count) in [
        (json!({"#t": ["first"]}), 1),
        (json!({"#t": ["more", "none"]}), 1),
        (json!({"#t": ["second"]}), 0),
        (json!({"#t": ["upper"]}), 0),
        (json!({"#T": ["upper"], "#t": ["first"]}), 1),
        (json!({"#T": ["upper"], "#t": ["none"]}), 0),
        (json!({"#t": []}), 0),
        // A filter may also have conditions on more than three tag names.
        (json!({"#t": ["first"], "#T": ["upper"], "#a": ["x"], "#b": ["x"], "#c": ["x"]}), 0),
    ] {
        assert_eq!(client.count(std::slice::from_ref(&filter)).await, count, "{filter}");
        assert_eq!(client.ask("s", std::slice::from_ref(&filter)).await.len() as u64, count);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ok_always_has_four_elements_and_refusals_a_standard_prefix() {
    let relay = Relay::start("ok", "");
    let mut client = connect(&relay).await;
    let good = note(1, now_s(), "good");
    let mut forged = note(1, now_s(), "forged");
    forged["content"] = json!("changed");
    let unformed = json!({"id": "ab".repeat(32), "kind": -1});
    for (event, accepted, prefix) in [
        (&good, true, ""),
        (&good, true, "duplicate: "),
        (&forged, false, "invalid: "),
        (&unformed, false, "invalid: "),
        (&note(1, now_s() + 10_000, "future"), false, "invalid: "),
    ] {
        client.send_text(json!(["EVENT", event])).await;
        let ok = client.receive().await;
        assert_eq!(ok.as_array().unwrap().len(), 4, "{ok}");
        assert_eq!((&ok[0], &ok[1], &ok[2]), (&json!("OK"), &event["id"], &json!(accepted)));
        let reason = ok[3].as_str().unwrap();
        assert!(reason.starts_with(prefix) && reason.is_empty() == prefix.is_empty(), "{ok}");
    }
}

/// A refusal is never only a NOTICE, and the reason in a NEG-ERR has a prefix.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_question_is_answered_with_closed() {
    let settings = "[limits]\nsubscriptions_max = 2\nfilters_max = 2\nfilter_values_max = 5\n";
    let relay = Relay::start("closed", settings);
    let mut client = connect(&relay).await;
    for sub in ["a", "b"] {
        client.ask(sub, &[json!({})]).await;
    }
    for said in [
        json!(["REQ", "c", {}]),
        json!(["REQ", "c"]),
        json!(["REQ", "c", []]),
        json!(["REQ", "c", {}, {}, {}]),
        json!(["REQ", "c", {"kinds": [1, 2, 3, 4, 5, 6]}]),
        json!(["REQ", "c", {"kinds": ["1"]}]),
        json!(["REQ", "c", {"since": -1}]),
        json!(["REQ", "c", {"limit": 1.5}]),
        json!(["COUNT", "c", {"kinds": [70_000]}]),
        json!(["COUNT", "c"]),
    ] {
        refused(&mut client, &said.to_string(), "CLOSED").await;
    }
    refused(&mut client, r#"["REQ","c",{"ids":[],"ids":[]}]"#, "CLOSED").await;
    refused(&mut client, &json!(["NEG-OPEN", "n", {}, "6100"]).to_string(), "NEG-ERR").await;
    // None of the refusals has ended the other subscriptions.
    connect(&relay).await.publish_new(&note(1, now_s(), "")).await;
    let received = [client.receive().await, client.receive().await];
    assert!(received.iter().all(|message| message[0] == "EVENT"), "{received:?}");
}

/// Unsupported filter elements, including those of NIP-91, are refused and not ignored.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_filter_elements_and_messages_are_unsupported() {
    let relay = Relay::start("unsupported", "");
    let mut client = connect(&relay).await;
    for element in ["&tt", "#tt", "#1", "#", "until_id", "Kinds", "authors "] {
        let said = json!(["REQ", "s", {element: ["a"]}]).to_string();
        assert!(refused(&mut client, &said, "CLOSED").await.starts_with("unsupported: "));
    }
    let said = json!(["HELLO", "s"]).to_string();
    assert!(refused(&mut client, &said, "NOTICE").await.starts_with("unsupported: "));
}

/// Subscribers get ephemeral events, which no search and no count finds.
#[tokio::test(flavor = "multi_thread")]
async fn ephemeral_events_are_passed_on_and_never_kept() {
    let relay = Relay::start("ephemeral", "");
    let (mut client, mut other) = (connect(&relay).await, connect(&relay).await);
    client.ask("s", &[json!({"kinds": [20_000, 29_999]})]).await;
    for kind in [20_000, 29_999] {
        let passing = event(1, now_s(), kind, &[], "");
        other.publish_new(&passing).await;
        assert_eq!(client.receive().await, json!(["EVENT", "s", passing]));
        assert_eq!(other.count(&[json!({"ids": [passing["id"]]})]).await, 0);
        // The relay does not remember the event's id either, so it delivers the event again.
        other.publish_new(&passing).await;
        assert_eq!(client.receive().await, json!(["EVENT", "s", passing]));
    }
    assert_eq!(other.count(&[json!({})]).await, 0);
}

/// Hark hashes, stores and serves the same bytes that clients hash.
#[tokio::test(flavor = "multi_thread")]
async fn odd_characters_are_hashed_and_served_as_clients_write_them() {
    let relay = Relay::start("characters", "");
    let mut client = connect(&relay).await;
    let odd =
        "\u{7f} \u{0}\u{1}\u{1f} \" \\ / \n\r\t\u{8}\u{c} \u{2028}\u{2029} é 🤙 \u{fffe} \u{ffff}";
    let event = event(1, 100, 1, &[&["t", odd], &["x", "\u{7f}"]], odd);
    client.publish_new(&event).await;
    assert_eq!(client.ask("s", &[json!({"#t": [odd]})]).await, std::slice::from_ref(&event));
    // With other escapes, the event is the same.
    let text = json!(["EVENT", event]).to_string();
    let spelt = text.replace('/', "\\/").replace('é', "\\u00e9").replace('\u{7f}', "\\u007f");
    assert_ne!(spelt, text);
    client.send_text(spelt).await;
    assert_eq!(client.receive().await[3], "duplicate: already have this event");
    // Half of a surrogate pair is not a character.
    let broken = text.replacen("é", "\\ud83e", 1);
    client.send_text(broken).await;
    let received = client.receive().await;
    assert!(received.to_string().contains("invalid: "), "{received}");
    assert_eq!(client.count(&[json!({})]).await, 1);
}

/// Some relays refuse these events, although NIP-01 allows such tags.
#[tokio::test(flavor = "multi_thread")]
async fn tags_may_hold_any_strings_and_are_found_by_them() {
    let relay = Relay::start("any-tags", "");
    let mut client = connect(&relay).await;
    let long = "x".repeat(60_000);
    let tags: &[&[&str]] = &[&["e", "no id"], &["p", ""], &["t"], &["r", &long], &["", "x"]];
    let event = event(1, 100, 1, tags, "");
    client.publish_new(&event).await;
    assert_eq!(client.ask("s", &[json!({"#r": [long]})]).await, [event]);
    assert_eq!(client.count(&[json!({"#r": [long[1..]]})]).await, 0);
}

/// The proposal of strict validation (nips issue 2188), as far as NIP-01 requires the same.
#[tokio::test(flavor = "multi_thread")]
async fn events_of_another_form_are_refused() {
    let relay = Relay::start("strict", "");
    let mut client = connect(&relay).await;
    let good = note(1, 100, "");
    for (field, value) in [
        ("id", json!("AB".repeat(32))),
        ("pubkey", json!("ab".repeat(31))),
        ("sig", json!("ab".repeat(63))),
        ("created_at", json!(-1)),
        ("created_at", json!(1.0)),
        ("created_at", json!("100")),
        ("kind", json!(65_536)),
        ("kind", json!(-1)),
        ("tags", json!([[]])),
        ("tags", json!([["t", 1]])),
        ("tags", json!([["t", null]])),
        ("tags", json!({})),
        ("content", json!(null)),
        ("sig", Value::Null),
    ] {
        let mut bad = good.clone();
        bad[field] = value;
        client.send_text(json!(["EVENT", bad])).await;
        let received = client.receive().await;
        let reason = received.as_array().unwrap().last().unwrap().as_str().unwrap();
        assert!(reason.starts_with("invalid: "), "{field}: {received}");
        assert_eq!(received[0], if field == "id" { "NOTICE" } else { "OK" }, "{received}");
    }
    let twice =
        json!(["EVENT", good]).to_string().replacen("\"kind\":1", "\"kind\":1,\"kind\":1", 1);
    client.send_text(twice).await;
    assert_eq!(client.receive().await[2], false);
    assert_eq!(client.count(&[json!({})]).await, 0);
}

/// Both bounds of `created_at` are set.
#[tokio::test(flavor = "multi_thread")]
async fn created_at_must_lie_within_the_bounds_that_nip11_names() {
    let settings = "[limits]\ncreated_at_ahead_s_max = 100\ncreated_at_behind_s_max = 1000\n";
    let relay = Relay::start("created-at", settings);
    let mut client = connect(&relay).await;
    for (at, accepted) in [
        (now_s() + 200, false),
        (now_s() + 50, true),
        (now_s() - 900, true),
        (now_s() - 1_100, false),
    ] {
        let (said, reason) = client.publish(&note(1, at, "")).await;
        assert_eq!((said, reason.starts_with("invalid: created_at")), (accepted, !accepted));
    }
}
