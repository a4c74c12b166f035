//! The operator's policy: who may connect and what may be published.

use std::sync::Arc;

use hark_codec::hex;
use hark_server::nostr::policy::{ADDRESSED_KINDS, EventPolicy, WordList};
use hark_server::{AddressLists, Settings};
use serde_json::{Value, json};

use crate::client::keys;
use crate::kit::{Client, NOW_S, Relay, event, http, note, pubkey};

/// An event whose nonce gives its id exactly `bits` leading zero bits, and commits to them.
pub(crate) fn worked(
    who: u8,
    created_at: u64,
    kind: u16,
    tags: &[&[&str]],
    content: &str,
    bits: u32,
) -> Value {
    aimed(who, created_at, kind, tags, content, bits, Some(bits))
}

fn aimed(
    who: u8,
    created_at: u64,
    kind: u16,
    tags: &[&[&str]],
    content: &str,
    bits: u32,
    aim: Option<u32>,
) -> Value {
    let aim = aim.map(|aim| aim.to_string());
    for nonce in 0.. {
        let nonce = format!("{nonce:x}");
        let mut tag = vec!["nonce", &nonce];
        tag.extend(aim.as_deref());
        let event = event(who, created_at, kind, &[tags, &[&tag]].concat(), content);
        let id = hex::decode_32(event["id"].as_str().unwrap().as_bytes()).unwrap();
        let zeros = u128::from_be_bytes(id[..16].try_into().unwrap()).leading_zeros();
        // Exactly `bits`, so that tests reach the bound itself.
        if zeros == bits {
            return event;
        }
    }
    unreachable!("some nonce will do")
}

async fn refused(client: &mut Client, event: &Value, reason: &str) {
    let (accepted, said) = client.publish(event).await;
    assert!(!accepted && said.starts_with(reason), "{said:?} is not {reason:?}: {event}");
}

async fn taken(client: &mut Client, event: &Value) {
    assert_eq!(client.publish(event).await, (true, String::new()), "{event}");
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_keys_kinds_and_words_are_blocked_with_a_reason() {
    let relay = Relay::start(|config| {
        config.policy.deny_keys.insert(*keys(1).public());
        config.policy.deny_kinds = vec![7..=7, 30_000..=39_999];
        config.policy.deny_words = WordList::new(&["casino", "*coin"]).unwrap();
    })
    .await;
    let mut client = relay.client().await;
    refused(
        &mut client,
        &note(1, NOW_S, "hi"),
        "blocked: this relay does not take events of this key",
    )
    .await;
    for kind in [7, 30_000, 39_999] {
        refused(
            &mut client,
            &event(2, NOW_S, kind, &[], ""),
            "blocked: this relay does not take events of kind",
        )
        .await;
    }
    for content in ["best Casino!", "buy BITCOIN"] {
        refused(&mut client, &note(2, NOW_S, content), "blocked: the event has a word").await;
    }
    refused(
        &mut client,
        &event(2, NOW_S, 1, &[&["t", "casino"]], ""),
        "blocked: the event has a word",
    )
    .await;
    taken(&mut client, &note(2, NOW_S, "casinos coined")).await;
    taken(&mut client, &event(2, NOW_S, 6, &[], "")).await;
    assert_eq!(client.count(&[json!({})]).await, 2);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_are_reached_by_strangers_and_nobody_else_is() {
    let relay = Relay::start(|config| {
        config.policy.allow_keys.insert(*keys(1).public());
        config.policy.addressed_kinds = ADDRESSED_KINDS.iter().map(|kind| *kind..=*kind).collect();
        config.policy.open_kinds = vec![3..=3, 10_000..=10_002];
        config.policy.deny_keys.insert(*keys(9).public());
    })
    .await;
    let (member, stranger) = (pubkey(1), pubkey(2));
    let blocked = "blocked: this relay takes events of certain keys only";
    let mut client = relay.client().await;
    for kind in ADDRESSED_KINDS {
        // A key that is used once, as gift wraps have it.
        let who = 3 + (kind % 5) as u8;
        taken(&mut client, &event(who, NOW_S, kind, &[&["p", &stranger], &["p", &member]], ""))
            .await;
        for tags in
            [&[&["p", stranger.as_str()][..]][..], &[&["e", &member]], &[&["p", "no key"]], &[]]
        {
            refused(&mut client, &event(who, NOW_S, kind, tags, ""), blocked).await;
        }
        refused(&mut client, &event(9, NOW_S, kind, &[&["p", &member]], ""), "blocked: ").await;
    }
    refused(&mut client, &event(2, NOW_S, 1, &[&["p", &member]], "hi"), blocked).await;
    for kind in [3, 10_002] {
        taken(&mut client, &event(2, NOW_S, kind, &[], "")).await;
    }
    taken(&mut client, &note(1, NOW_S, "mine")).await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_some_are_allowed_the_others_are_not() {
    let relay = Relay::start(|config| {
        config.policy.allow_keys.extend([*keys(1).public(), *keys(2).public()]);
        config.policy.deny_keys.insert(*keys(2).public());
        config.policy.allow_kinds = vec![0..=1];
        config.policy.allow_words = WordList::new(&["gm"]).unwrap();
    })
    .await;
    let mut client = relay.client().await;
    taken(&mut client, &note(1, NOW_S, "GM!")).await;
    for who in [2, 3] {
        refused(&mut client, &note(who, NOW_S, "gm"), "blocked: this relay").await;
    }
    refused(
        &mut client,
        &event(1, NOW_S, 2, &[], "gm"),
        "blocked: this relay does not take events of kind 2",
    )
    .await;
    refused(&mut client, &note(1, NOW_S, "bonjour"), "blocked: the event has none of the words")
        .await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_asked_for_and_must_be_committed_to() {
    let relay = Relay::start(|config| config.policy.pow_bits_min = 6).await;
    let mut client = relay.client().await;
    let made = |bits, aim| aimed(1, NOW_S, 1, &[], "", bits, aim);
    taken(&mut client, &made(6, Some(6))).await;
    taken(&mut client, &made(7, Some(20))).await;
    refused(&mut client, &made(5, Some(6)), "pow: difficulty 5 is less than 6").await;
    for lucky in [made(8, None), made(8, Some(5))] {
        refused(&mut client, &lucky, "pow: the nonce tag must commit to a difficulty of 6").await;
    }
    // A new policy applies from the next event on.
    relay.policy.store(Arc::new(EventPolicy::default()));
    taken(&mut client, &made(8, None)).await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_address_gets_a_403_also_behind_a_proxy() {
    let relay = Relay::start(|config| {
        config.addresses.deny = vec!["192.0.2.0/24".parse().unwrap()];
    })
    .await;
    let upgrade = |from: &str| {
        format!(
            "Upgrade: websocket\r\nX-Forwarded-For: {from}\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
        )
    };
    let (status, answer) = http(&relay.url, "/", &upgrade("192.0.2.77")).await;
    assert!(status == 403 && answer.starts_with("blocked: "), "{status}: {answer}");
    let mut client = relay.client().await;
    let deny = vec!["127.0.0.0/8".parse().unwrap()];
    let addresses = AddressLists { deny, ..AddressLists::default() };
    relay.reload.set(Settings { addresses, ..Settings::default() }).unwrap();
    // The lists of clients do not apply to a trusted proxy.
    assert_eq!(client.count(&[json!({})]).await, 0);
    let mut other = relay.client().await;
    assert_eq!(other.count(&[json!({})]).await, 0);
    relay.stop().await;

    let relay = Relay::start(|config| {
        config.proxies.trusted.clear();
        config.addresses.allow = vec!["192.0.2.0/24".parse().unwrap()];
    })
    .await;
    let (status, answer) = http(&relay.url, "/", "").await;
    assert!(status == 403 && answer.starts_with("blocked: "), "{status}: {answer}");
    relay.stop().await;
}
