//! How events are deleted and stay deleted: NIP-09, NIP-40, NIP-62, and NIP-59 for gift wraps.

use hark_testkit::clock::now_s;
use hark_testkit::nostr::{contents, event, note, pubkey};
use hark_testkit::wait::until_async;
use serde_json::{Value, json};

use super::kit::connect;
use crate::served::Relay;
use crate::served::hark;

fn id(event: &Value) -> &str {
    event["id"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn nip09_what_its_author_deletes_by_id_is_gone_and_stays_away() {
    let relay = Relay::start("delete-by-id", "");
    let mut client = connect(&relay).await;
    let (gone, never, kept) = (note(1, 100, "gone"), note(1, 101, "never"), note(1, 102, "kept"));
    client.publish_new(&gone).await;
    client.publish_new(&kept).await;
    let request = event(1, 90, 5, &[&["e", id(&gone)], &["e", id(&never)], &["k", "1"]], "oops");
    client.publish_new(&request).await;
    for event in [&gone, &never] {
        let (accepted, reason) = client.publish(event).await;
        assert!(!accepted && reason.starts_with("blocked: "), "{reason}");
    }
    // The relay still serves the request itself.
    assert_eq!(client.find_now(&[json!({})]).await, [kept, request]);
    assert_eq!(client.count(&[json!({"ids": [gone["id"]]})]).await, 0);
}

/// A deletion by address also works for replaceable events without a `d` tag.
#[tokio::test(flavor = "multi_thread")]
async fn nip09_an_address_means_all_versions_up_to_the_request() {
    let relay = Relay::start("delete-by-address", "");
    let mut client = connect(&relay).await;
    for (kind, d) in [(30_023_u16, "a:b"), (30_023, ""), (0, ""), (3, ""), (10_002, "")] {
        let tags: &[&[&str]] = if kind == 30_023 { &[&["d", d]] } else { &[] };
        let version = |at| event(1, at, kind, tags, &at.to_string());
        let address = format!("{kind}:{}:{d}", pubkey(1));
        let filter = if kind == 30_023 {
            [json!({"kinds": [kind], "#d": [d]})]
        } else {
            [json!({"kinds": [kind]})]
        };
        client.publish_new(&version(100)).await;
        client.publish_new(&event(1, 200, 5, &[&["a", &address]], "")).await;
        assert_eq!(client.count(&filter).await, 0, "{address}");
        for at in [50, 100, 199, 200] {
            let (accepted, reason) = client.publish(&version(at)).await;
            assert!(!accepted && reason.starts_with("blocked: "), "{address} at {at}: {reason}");
        }
        client.publish_new(&version(201)).await;
        assert_eq!(contents(&client.find_now(&filter).await), ["201"]);
        // A request with an earlier time does not delete newer versions.
        client.publish_new(&event(1, 150, 5, &[&["a", &address]], "")).await;
        assert_eq!(client.count(&filter).await, 1, "{address}");
    }
    // The newest event of the archive is deleted like any other event.
    let newest = note(1, now_s(), "newest");
    client.publish_new(&newest).await;
    client.publish_new(&event(1, now_s(), 5, &[&["e", id(&newest)]], "")).await;
    assert_eq!(client.count(&[json!({"kinds": [1]})]).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nip09_others_delete_nothing() {
    let relay = Relay::start("delete-others", "");
    let mut client = connect(&relay).await;
    let (a, b) = (note(1, 100, "a"), event(1, 100, 30_000, &[&["d", "x"]], "b"));
    let address = format!("30000:{}:x", pubkey(1));
    client.publish_new(&event(2, 200, 5, &[&["e", id(&a)], &["a", &address]], "")).await;
    client.publish_new(&a).await;
    client.publish_new(&b).await;
    client
        .publish_new(&event(2, 300, 5, &[&["e", id(&a)], &["e", id(&b)], &["a", &address]], ""))
        .await;
    assert_eq!(client.count(&[json!({"authors": [pubkey(1)]})]).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn nip09_deleting_a_deletion_does_nothing() {
    let relay = Relay::start("delete-deletion", "");
    let mut client = connect(&relay).await;
    let gone = note(1, 100, "gone");
    let request = event(1, 101, 5, &[&["e", id(&gone)]], "");
    client.publish_new(&request).await;
    client.publish_new(&event(1, 102, 5, &[&["e", id(&request)], &["k", "5"]], "")).await;
    assert_eq!(client.count(&[json!({"ids": [request["id"]]})]).await, 1);
    assert!(!client.publish(&gone).await.0);
}

/// A gift wrap is signed by a key that is used only once, so its recipient may delete the wrap.
#[tokio::test(flavor = "multi_thread")]
async fn nip59_recipients_delete_their_wraps_and_others_do_not() {
    let relay = Relay::start("delete-wraps", "");
    let mut client = connect(&relay).await;
    let (two, three) = (pubkey(2), pubkey(3));
    let (for_two, for_three) =
        (event(8, 100, 1059, &[&["p", &two]], ""), event(9, 101, 1059, &[&["p", &three]], ""));
    for wrap in [&for_two, &for_three] {
        client.publish_new(wrap).await;
    }
    client.auth(2).await;
    client.auth(3).await;
    let both: &[&[&str]] = &[&["e", id(&for_two)], &["e", id(&for_three)], &["k", "1059"]];
    client.publish_new(&event(2, 200, 5, both, "")).await;
    assert_eq!(
        client.find_now(&[json!({"kinds": [1059]})]).await,
        std::slice::from_ref(&for_three)
    );
    let (accepted, reason) = client.publish(&for_two).await;
    assert!(!accepted && reason.starts_with("blocked: "), "{reason}");
    assert_eq!(client.publish(&for_three).await.1, "duplicate: already have this event");
}

#[tokio::test(flavor = "multi_thread")]
async fn nip62_vanishing_takes_everything_and_for_good() {
    let relay = Relay::start("vanish", "[info]\nurl = \"wss://here.example\"\n");
    let mut client = connect(&relay).await;
    let (one, two) = (pubkey(1), pubkey(2));
    let deleted = note(1, 90, "deleted before");
    let mine = [
        note(1, 100, "note"),
        event(1, 101, 0, &[], "{}"),
        event(1, 102, 30_023, &[&["d", "x"]], ""),
        event(1, 103, 5, &[&["e", id(&deleted)]], ""),
        event(8, 104, 1059, &[&["p", &one]], "to me"),
    ];
    let others = [
        note(2, 100, "another's"),
        event(8, 105, 1059, &[&["p", &two]], "to another"),
        event(8, 201, 1059, &[&["p", &one]], "to me, later"),
        note(1, 201, "later"),
    ];
    for event in mine.iter().chain(&others) {
        client.publish_new(event).await;
    }
    for who in [1, 2] {
        client.auth(who).await;
    }
    // A request for another relay has no effect here, and a request that names no relay is refused.
    client.publish_new(&event(1, 200, 62, &[&["relay", "wss://there.example"]], "")).await;
    assert!(!client.publish(&event(1, 200, 62, &[], "")).await.0);
    assert_eq!(client.count(&[json!({})]).await, 10);

    let request = event(1, 200, 62, &[&["relay", "wss://Here.example/"]], "bye");
    client.publish_new(&request).await;
    let left = client.find_now(&[json!({})]).await;
    assert!(left.contains(&request), "{left:?}");
    assert_eq!(left.len(), others.len() + 1);
    for event in mine.iter().chain([&deleted]) {
        let (accepted, reason) = client.publish(event).await;
        assert!(!accepted && reason.starts_with("blocked: "), "{event}: {reason}");
    }
    // A request to vanish cannot be withdrawn.
    client.publish_new(&event(1, 300, 5, &[&["e", id(&request)], &["k", "62"]], "")).await;
    assert!(!client.publish(&mine[0]).await.0);
    let all = event(2, 400, 62, &[&["relay", "ALL_RELAYS"]], "");
    client.publish_new(&all).await;
    assert_eq!(client.count(&[json!({"authors": [two], "kinds": [1]})]).await, 0);
}

/// Expired events are refused. Stored events are not sent once they expire, and are then deleted.
#[tokio::test(flavor = "multi_thread")]
async fn nip40_what_has_expired_is_neither_accepted_nor_sent_and_goes() {
    let relay = Relay::start("expiry", "[retention]\nevery_s = 1\n");
    let (mut client, mut listener) = (connect(&relay).await, connect(&relay).await);
    let until = |at: u64| event(1, now_s(), 1, &[&["expiration", &at.to_string()]], "");
    let (accepted, reason) = client.publish(&until(now_s() - 1)).await;
    assert!(!accepted && reason.starts_with("invalid: "), "{reason}");
    let odd = event(1, now_s(), 1, &[&["expiration", "soon"]], "not a time");
    client.publish_new(&odd).await;
    let end = now_s() + 3;
    let short = until(end);
    client.publish_new(&short).await;
    let found = client.count(&[json!({"ids": [short["id"]]})]).await;
    // The event may have expired before the answer.
    assert!(found == 1 || now_s() >= end, "{found}");
    until_async("the event has expired", async || now_s() >= end).await;
    assert_eq!(listener.ask("s", &[json!({})]).await, [odd]);
    assert_eq!(client.count(&[json!({"kinds": [1]})]).await, 1);
    // The next round of retention deletes the event.
    until_async("the event is deleted", async || records(&relay) <= 1).await;
    // Ephemeral events are sent until they expire. Even with an expiration, ephemeral events are
    // not stored.
    let far = (now_s() + 1_000).to_string();
    listener.ask("e", &[json!({"kinds": [20_001]})]).await;
    let passing = event(1, now_s(), 20_001, &[&["expiration", &far]], "");
    client.publish_new(&passing).await;
    for _ in ["s", "e"] {
        assert_eq!(listener.receive().await[2], passing);
    }
    assert_eq!(client.count(&[json!({"kinds": [20_001]})]).await, 0);
}

/// Returns the number of records in the archive, from `hark stats`.
fn records(relay: &Relay) -> u64 {
    let output = hark(&relay.place.data()).args(["stats", "--json"]).output().unwrap();
    let stats: Value = serde_json::from_slice(&output.stdout).unwrap();
    stats["records"].as_u64().unwrap()
}
