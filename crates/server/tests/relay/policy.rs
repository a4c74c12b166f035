//! The operator's policy: which clients may connect, and which events may be published.

use std::sync::Arc;

use hark_codec::hex;
use hark_networks::EventLimits;
use hark_server::limits::Limits;
use hark_server::nostr::policy::{ADDRESSED_KINDS, EventPolicy, WordList};
use hark_server::{AddressLists, Settings};
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::keys;
use hark_testkit::nostr::{event, note, pubkey};
use serde_json::{Value, json};

use crate::kit::{NOW_S, Relay, http};

/// An event with an id of exactly `bits` leading zero bits, and with a nonce tag that commits to
/// `bits`.
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
        config.policy.allow_keys = Some([*keys(1).public()].into());
        config.policy.addressed_kinds = ADDRESSED_KINDS.iter().map(|kind| *kind..=*kind).collect();
        config.policy.open_kinds = vec![3..=3, 10_000..=10_002];
        config.policy.deny_keys.insert(*keys(9).public());
    })
    .await;
    let (member, stranger) = (pubkey(1), pubkey(2));
    // The kinds of gift wraps, zaps, wallets and remote signers.
    for kind in [1059, 21_059, 9735, 23_194, 23_195, 23_196, 23_197, 24_133] {
        assert!(ADDRESSED_KINDS.contains(&kind), "{kind}");
    }
    let blocked = "blocked: this relay takes events of certain keys only";
    let mut client = relay.client().await;
    for kind in ADDRESSED_KINDS {
        // A key that is used once, like the keys of gift wraps.
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

/// Tests each allow list alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_empty_admits_nobody() {
    let relay = Relay::start(|config| config.proxies.trusted.clear()).await;
    let mut client = relay.client().await;
    let none = EventPolicy::default;
    for (name, policy) in [
        ("keys", EventPolicy { allow_keys: Some([].into()), ..none() }),
        ("kinds", EventPolicy { allow_kinds: Some(Vec::new()), ..none() }),
        ("words", EventPolicy { allow_words: Some(WordList::default()), ..none() }),
    ] {
        relay.policy.store(Arc::new(policy));
        refused(&mut client, &note(1, NOW_S, name), "blocked: ").await;
        let (_, body) = http(&relay.url, "/", "Accept: application/nostr+json").await;
        assert!(body.contains("\"restricted_writes\":true"), "{name}: {body}");
        let (status, health) = http(&relay.url, "/healthz", "").await;
        let said = format!("[policy] allow_{name} has no entry");
        assert!(status == 200 && health.contains(&said), "{name}: {health}");
    }
    relay.policy.store(Arc::new(none()));
    taken(&mut client, &note(1, NOW_S, "open")).await;
    let addresses = AddressLists { allow: Some(Vec::new()), ..AddressLists::default() };
    relay.reload.set(Settings { addresses, ..Settings::default() }).unwrap();
    assert_eq!(http(&relay.url, "/", "").await.0, 403);
    relay.stop().await;
}

/// Two authors have a note each. Under every policy that keeps the first author from publishing,
/// this author can still delete notes and vanish.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_publish_deletes_and_vanishes_all_the_same() {
    let none = EventPolicy::default;
    let others = || Some([*keys(2).public()].into());
    let policies = [
        EventPolicy { allow_keys: others(), ..none() },
        EventPolicy { allow_keys: Some([].into()), ..none() },
        EventPolicy { deny_keys: [*keys(1).public()].into(), ..none() },
        EventPolicy { allow_kinds: Some(vec![0..=1]), ..none() },
        EventPolicy { deny_kinds: vec![5..=5, 62..=62], ..none() },
        EventPolicy { allow_words: Some(WordList::new(&["gm"]).unwrap()), ..none() },
        EventPolicy { deny_words: WordList::new(&["please"]).unwrap(), ..none() },
        EventPolicy { pow_bits_min: 32, ..none() },
    ];
    let events = EventLimits {
        event_bytes_max: 600,
        content_chars_max: 5,
        event_tags_max: 1,
        created_at_behind_s_max: Some(10),
        created_at_ahead_s_max: 0,
        ..EventLimits::default()
    };
    let limits = Limits { events, ..Limits::default() };
    for policy in policies {
        let relay = Relay::start(|_| {}).await;
        let mut client = relay.client().await;
        let (mine, too) = (note(1, NOW_S - 100, "mine"), note(1, NOW_S - 99, "mine, too"));
        let wrap = event(9, NOW_S - 98, 1059, &[&["p", &pubkey(1)]], "to me");
        for kept in [&mine, &too, &wrap, &note(2, NOW_S, "another's")] {
            taken(&mut client, kept).await;
        }
        relay.policy.store(Arc::new(policy));
        relay.reload.set(Settings { limits: limits.clone(), ..Settings::default() }).unwrap();
        let reason = "please, for ".to_owned() + &"reasons ".repeat(100);
        let about = |note: &Value| note["id"].as_str().unwrap().to_owned();
        let deletion = |note: &Value, at| {
            let many = vec![&["k", "1"][..]; 20];
            event(1, at, 5, &[&many[..], &[&["e", about(note).as_str()][..]]].concat(), &reason)
        };
        taken(&mut client, &deletion(&mine, NOW_S - 50)).await;
        assert_eq!(client.count(&[json!({"authors": [pubkey(1)], "kinds": [1]})]).await, 1);
        // A deletion that covers no stored event of its author is treated like any other event.
        refused(&mut client, &deletion(&note(2, NOW_S, "another's"), NOW_S), "").await;
        let tags: &[&[&str]] = &[&["relay", "ALL_RELAYS"], &["relay", "wss://x.example"]];
        let request = event(1, NOW_S + 60, 62, tags, &reason);
        taken(&mut client, &request).await;
        client.auth(1).await;
        assert_eq!(client.find_now(&[json!({"authors": [pubkey(1)]})]).await, [request]);
        assert_eq!(client.count(&[json!({})]).await, 2);
        relay.policy.store(Arc::new(none()));
        relay.reload.set(Settings::default()).unwrap();
        for gone in [&mine, &too, &wrap] {
            refused(&mut client, gone, "blocked: its author asked to vanish").await;
        }
        relay.stop().await;
    }
}

/// An allow list must not let strangers store content that is disguised as a deletion.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_keeps_nothing_by_calling_it_a_deletion() {
    let relay =
        Relay::start(|config| config.policy.allow_keys = Some([*keys(2).public()].into())).await;
    let mut client = relay.client().await;
    let blocked = "blocked: this relay takes events of certain keys only";
    let theirs = note(2, NOW_S, "another's");
    taken(&mut client, &theirs).await;
    for tags in [&[][..], &[&["e", theirs["id"].as_str().unwrap()][..]]] {
        refused(&mut client, &event(1, NOW_S, 5, tags, "a picture"), blocked).await;
    }
    let request = |relay, content: &str| event(1, NOW_S, 62, &[&["relay", relay]], content);
    refused(&mut client, &request("ALL_RELAYS", &"picture".repeat(2_000)), blocked).await;
    taken(&mut client, &request("ALL_RELAYS", "nothing of mine may come")).await;
    relay.stop().await;
}

/// The keys of gift wraps are made for one message, so only the client's own key identifies the
/// sender.
#[tokio::test(flavor = "multi_thread")]
async fn gift_wraps_are_taken_from_those_who_authenticate_where_that_is_set() {
    let relay = Relay::start(|config| config.policy.wraps_need_auth = true).await;
    let mut client = relay.client().await;
    let wraps = [1059, 21_059].map(|kind| event(3, NOW_S, kind, &[&["p", &pubkey(1)]], ""));
    for wrap in &wraps {
        refused(&mut client, wrap, "auth-required: gift wraps").await;
    }
    taken(&mut client, &note(3, NOW_S, "no wrap")).await;
    client.auth(2).await;
    for wrap in &wraps {
        taken(&mut client, wrap).await;
    }
    relay.stop().await;
}

/// Clients may date gift wraps up to two days back (NIP-59).
#[tokio::test(flavor = "multi_thread")]
async fn a_gift_wrap_is_not_too_old_for_its_date() {
    let relay =
        Relay::start(|config| config.limits.events.created_at_behind_s_max = Some(60)).await;
    let mut client = relay.client().await;
    let wrap = |age, kind| event(3, NOW_S - age, kind, &[&["p", &pubkey(1)]], "");
    for kind in [1059, 21_059] {
        taken(&mut client, &wrap(2 * 86_400 + 60, kind)).await;
        refused(&mut client, &wrap(2 * 86_400 + 61, kind), "invalid: created_at").await;
    }
    refused(&mut client, &note(3, NOW_S - 61, "old"), "invalid: created_at").await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_some_are_allowed_the_others_are_not() {
    let relay = Relay::start(|config| {
        config.policy.allow_keys = Some([*keys(1).public(), *keys(2).public()].into());
        config.policy.deny_keys.insert(*keys(2).public());
        config.policy.allow_kinds = Some(vec![0..=1]);
        config.policy.allow_words = Some(WordList::new(&["gm"]).unwrap());
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
async fn work_is_asked_for_and_less_must_not_be_committed_to() {
    let relay = Relay::start(|config| config.policy.pow_bits_min = 6).await;
    let mut client = relay.client().await;
    let made = |bits, aim| aimed(1, NOW_S, 1, &[], "", bits, aim);
    taken(&mut client, &made(6, Some(6))).await;
    taken(&mut client, &made(7, Some(20))).await;
    // NIP-11 gives clients only the number of bits, and NIP-13 only recommends a commitment to this
    // number.
    taken(&mut client, &made(6, None)).await;
    refused(&mut client, &made(5, Some(6)), "pow: difficulty 5 is less than 6").await;
    let lucky = made(8, Some(5));
    refused(&mut client, &lucky, "pow: the nonce tag commits to 5, less than 6").await;
    // A new policy applies from the next event on.
    relay.policy.store(Arc::new(EventPolicy::default()));
    taken(&mut client, &lucky).await;
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
        config.addresses.allow = Some(vec!["192.0.2.0/24".parse().unwrap()]);
    })
    .await;
    let (status, answer) = http(&relay.url, "/", "").await;
    assert!(status == 403 && answer.starts_with("blocked: "), "{status}: {answer}");
    relay.stop().await;
}
