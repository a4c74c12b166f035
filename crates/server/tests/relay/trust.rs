//! The rule about trusted keys: who may publish, and the effects of new and deleted follow lists.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hark_codec::record::Key;
use hark_server::nostr::policy::{ADDRESSED_KINDS, EventPolicy};
use hark_server::nostr::{Managers, RuleMode, Trust, TrustOptions, TrustRules};
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::keys;
use hark_testkit::nostr::{event, note, pubkey};
use hark_testkit::wait::until_async;
use serde_json::{Value, json};

use crate::kit::{Config, NOW_S, Relay, http};

const REFUSAL: &str =
    "restricted: this relay takes events of people whom its trusted people follow";

/// The rule with key 1 as the root.
fn options(mode: RuleMode, depth: u8, followers_min: u32) -> TrustOptions {
    let roots = vec![*keys(1).public()];
    let rules = TrustRules { roots, depth, followers_min, ..TrustRules::default() };
    TrustOptions { mode, rules }
}

async fn start(options: TrustOptions, change: impl FnOnce(&mut Config)) -> (Relay, Arc<Trust>) {
    let trust = Trust::new(options);
    let of_relay = Arc::clone(&trust);
    let relay = Relay::start(move |config| {
        config.relay.trust = of_relay;
        change(config);
    })
    .await;
    (relay, trust)
}

/// A follow list.
fn follows(who: u8, created_at: u64, followed: &[u8]) -> Value {
    let followed: Vec<String> = followed.iter().map(|key| pubkey(*key)).collect();
    let tags: Vec<[&str; 2]> = followed.iter().map(|key| ["p", key.as_str()]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
    event(who, created_at, 3, &tags, "")
}

/// Publishes a new note of a key.
async fn says(client: &mut Client, who: u8) -> (bool, String) {
    static NOTES: AtomicU64 = AtomicU64::new(0);
    let number = NOTES.fetch_add(1, Ordering::Relaxed);
    client.publish(&note(who, NOW_S, &format!("note {number}"))).await
}

async fn until_trusted(client: &mut Client, who: u8) {
    until_async("the key may publish", async || says(client, who).await.0).await;
}

async fn until_refused(client: &mut Client, who: u8) {
    until_async("the key may not publish", async || says(client, who).await.1.starts_with(REFUSAL))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_followed_of_the_followed_may_publish_until_a_list_changes() {
    let (relay, _) = start(options(RuleMode::Require, 2, 1), |_| {}).await;
    let mut client = relay.client().await;
    until_refused(&mut client, 2).await;
    client.publish_new(&follows(1, NOW_S, &[2])).await;
    until_trusted(&mut client, 2).await;
    client.publish_new(&follows(2, NOW_S, &[3])).await;
    until_trusted(&mut client, 3).await;
    // A list counts until it expires.
    let in_a_day = (NOW_S + 86_400).to_string();
    let tags: &[&[&str]] = &[&["p", &pubkey(6)], &["expiration", &in_a_day]];
    client.publish_new(&event(2, NOW_S + 1, 3, tags, "")).await;
    until_trusted(&mut client, 6).await;
    client.publish_new(&follows(2, NOW_S + 2, &[3])).await;
    until_refused(&mut client, 6).await;
    // The list of the last ring makes nobody trusted.
    client.publish_new(&follows(3, NOW_S, &[4])).await;
    assert!(says(&mut client, 4).await.1.starts_with(REFUSAL));
    // A newer list without key 2 ends the trust in keys 2 and 3.
    client.publish_new(&follows(1, NOW_S + 1, &[5])).await;
    until_trusted(&mut client, 5).await;
    until_refused(&mut client, 2).await;
    until_refused(&mut client, 3).await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_list_and_a_vanished_author_end_the_trust() {
    let (relay, _) = start(options(RuleMode::Require, 2, 1), |config| {
        config.info(|info| info.url = Some("wss://relay.example".into()));
    })
    .await;
    let mut client = relay.client().await;
    let list = follows(1, NOW_S, &[2, 3]);
    client.publish_new(&list).await;
    until_trusted(&mut client, 3).await;
    client.publish_new(&follows(3, NOW_S, &[4])).await;
    until_trusted(&mut client, 4).await;
    client.publish_new(&event(3, NOW_S, 62, &[&["relay", "ALL_RELAYS"]], "")).await;
    until_refused(&mut client, 4).await;
    let id = list["id"].as_str().expect("an id");
    client.publish_new(&event(1, NOW_S, 5, &[&["e", id]], "")).await;
    until_refused(&mut client, 2).await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn enough_followers_are_needed() {
    let (relay, trust) = start(options(RuleMode::Require, 2, 2), |_| {}).await;
    let mut client = relay.client().await;
    // There is one root, so one follower is enough for the first ring.
    client.publish_new(&follows(1, NOW_S, &[2, 3])).await;
    until_trusted(&mut client, 3).await;
    client.publish_new(&follows(2, NOW_S, &[4, 5])).await;
    client.publish_new(&follows(3, NOW_S, &[5])).await;
    until_trusted(&mut client, 5).await;
    assert!(says(&mut client, 4).await.1.starts_with(REFUSAL));
    trust.set(options(RuleMode::Require, 2, 1));
    until_trusted(&mut client, 4).await;
    trust.set(options(RuleMode::Require, 1, 1));
    until_refused(&mut client, 5).await;
    trust.set(options(RuleMode::Off, 1, 1));
    assert!(says(&mut client, 9).await.0);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_lists_count_from_the_start() {
    let (before, _) = start(options(RuleMode::Off, 2, 1), |_| {}).await;
    let mut client = before.client().await;
    client.publish_new(&follows(1, NOW_S, &[2])).await;
    client.publish_new(&follows(2, NOW_S, &[3])).await;
    let store = Arc::clone(&before.store);
    before.stop().await;
    let trust = Trust::new(options(RuleMode::Require, 2, 1));
    let relay = Relay::on(store, |config| config.relay.trust = Arc::clone(&trust)).await;
    let mut client = relay.client().await;
    until_async("the lists are read", async || {
        let (accepted, words) = says(&mut client, 9).await;
        assert!(
            !accepted && (words.starts_with(REFUSAL) || words.starts_with("error: ")),
            "{words}"
        );
        words.starts_with(REFUSAL)
    })
    .await;
    assert!(says(&mut client, 3).await.0);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_of_banned_and_denied_keys_do_not_count() {
    let (relay, trust) = start(options(RuleMode::Require, 2, 1), |_| {}).await;
    relay.open_moderation();
    let mut client = relay.client().await;
    client.publish_new(&follows(1, NOW_S, &[2, 3])).await;
    until_trusted(&mut client, 2).await;
    client.publish_new(&follows(2, NOW_S, &[4])).await;
    until_trusted(&mut client, 4).await;
    relay.rule("ban", &pubkey(2)).await;
    until_refused(&mut client, 4).await;
    relay.rule("unban", &pubkey(2)).await;
    until_trusted(&mut client, 4).await;
    let policy = EventPolicy { deny_keys: [*keys(2).public()].into(), ..Default::default() };
    relay.policy.store(Arc::new(policy));
    trust.set(options(RuleMode::Require, 2, 1));
    until_refused(&mut client, 4).await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_managers_and_messages_to_those_who_may_publish_are_exempt() {
    let (relay, _) = start(options(RuleMode::Require, 1, 1), |config| {
        config.policy.addressed_kinds = ADDRESSED_KINDS.iter().map(|kind| *kind..=*kind).collect();
        config.policy.open_kinds = vec![10_002..=10_002];
        let admins: HashSet<Key> = [*keys(3).public()].into();
        config.relay.managers.store(Arc::new(Managers { admins, ..Managers::default() }));
    })
    .await;
    relay.open_moderation();
    let mut client = relay.client().await;
    until_refused(&mut client, 2).await;
    assert!(says(&mut client, 1).await.0, "the root");
    assert!(says(&mut client, 3).await.0, "a manager");
    // Gift wraps to a root and to a manager, and not to a stranger.
    let wrap = |to: u8| event(7, NOW_S, 1059, &[&["p", &pubkey(to)]], "");
    client.publish_new(&wrap(1)).await;
    client.publish_new(&wrap(3)).await;
    assert!(client.publish(&wrap(2)).await.1.starts_with(REFUSAL));
    client.publish_new(&event(2, NOW_S, 10_002, &[], "")).await;
    // An allowed event, and an allowed key.
    let allowed = note(2, NOW_S, "allowed");
    let id = allowed["id"].as_str().expect("an id");
    relay.rule("allow", &format!("id:{id}")).await;
    client.publish_new(&allowed).await;
    assert!(says(&mut client, 2).await.1.starts_with(REFUSAL));
    relay.rule("allow", &pubkey(2)).await;
    assert!(says(&mut client, 2).await.0);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_may_delete_and_vanish() {
    let (relay, trust) = start(options(RuleMode::Off, 1, 1), |_| {}).await;
    let mut client = relay.client().await;
    let note = note(2, NOW_S, "mine");
    client.publish_new(&note).await;
    trust.set(options(RuleMode::Require, 1, 1));
    until_refused(&mut client, 2).await;
    let id = note["id"].as_str().expect("an id");
    client.publish_new(&event(2, NOW_S, 5, &[&["e", id]], "")).await;
    assert_eq!(client.count(&[json!({ "ids": [id] })]).await, 0);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mode_watch_counts_and_accepts() {
    let (relay, trust) = start(options(RuleMode::Watch, 1, 1), |_| {}).await;
    let mut client = relay.client().await;
    client.publish_new(&follows(1, NOW_S, &[2])).await;
    let restricted = async || {
        let (_, document) = http(&relay.url, "/", "Accept: application/nostr+json").await;
        let document: Value = serde_json::from_str(&document).expect("JSON");
        document["limitation"]["restricted_writes"].clone()
    };
    let has = async |line: &str| http(&relay.url, "/metrics", "").await.1.contains(line);
    until_async("the list is read", async || has("hark_trust_keys{ring=\"1\"} 1\n").await).await;
    assert!(says(&mut client, 9).await.0 && says(&mut client, 2).await.0);
    assert!(has("hark_trust_events_total{result=\"watched\"} 1\n").await);
    assert!(has("hark_trust_lists 1\n").await);
    assert_eq!(restricted().await, json!(false));
    trust.set(options(RuleMode::Require, 1, 1));
    assert!(says(&mut client, 9).await.1.starts_with(REFUSAL));
    assert!(has("hark_trust_events_total{result=\"refused\"} 1\n").await);
    assert_eq!(restricted().await, json!(true));
    relay.stop().await;
}
