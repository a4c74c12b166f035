//! The relay enforces the limits that it reports, and its rate limits. Both can change while the
//! relay runs.

use hark_networks::{EventLimits, FilterLimits};
use hark_server::limits::{Limits, Rate, RateLimits};
use hark_server::{ListedClients, RateGroups, Settings};
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::{event, note, pubkey};
use hark_testkit::websocket::masked;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::kit::{NOW_S, Relay, http};
use crate::policy::worked;
use crate::wire::upgrade;

async fn limitation(relay: &Relay) -> Value {
    let (_, body) = http(&relay.url, "/", "Accept: application/nostr+json").await;
    let mut document: Value = serde_json::from_str(&body).unwrap();
    document["limitation"].take()
}

/// Sends a REQ. Returns the number of stored events, or the reason of CLOSED.
async fn req(client: &mut Client, sub: &str, filter: Value) -> Result<usize, String> {
    client.send_text(json!(["REQ", sub, filter])).await;
    let mut events = 0;
    loop {
        let received = client.receive().await;
        assert_eq!(received[1], sub, "{received}");
        match received[0].as_str().unwrap() {
            "EVENT" => events += 1,
            "EOSE" => return Ok(events),
            _ => return Err(received[2].as_str().unwrap().to_owned()),
        }
    }
}

/// Tests each field at its bound, and at one above the bound.
#[tokio::test(flavor = "multi_thread")]
async fn every_field_of_the_limitation_document_is_true() {
    let relay = Relay::start(|config| {
        config.limits = Limits {
            message_bytes_max: 5_000,
            events: EventLimits {
                event_bytes_max: 4_500,
                content_chars_max: 1_000,
                event_tags_max: 5,
                created_at_ahead_s_max: 60,
                created_at_behind_s_max: Some(1_000),
                ..EventLimits::default()
            },
            subscriptions_max: 3,
            subscription_id_chars_max: 10,
            filters: FilterLimits { limit_default: 4, limit_max: 7, ..FilterLimits::default() },
            ..Limits::default()
        };
        config.policy.pow_bits_min = 3;
    })
    .await;
    let said = limitation(&relay).await;
    let number = |name: &str| usize::try_from(said[name].as_u64().unwrap()).unwrap();
    let bits = number("min_pow_difficulty") as u32;
    let mut client = relay.client().await;

    let mut cases = Vec::new();
    let (ahead, behind) = (number("created_at_upper_limit"), number("created_at_lower_limit"));
    for (time, taken) in [
        (NOW_S + ahead as u64, true),
        (NOW_S + ahead as u64 + 1, false),
        (NOW_S - behind as u64, true),
        (NOW_S - behind as u64 - 1, false),
    ] {
        cases.push((worked(1, time, 1, &[], "", bits), taken));
    }
    let chars = number("max_content_length");
    cases.push((worked(1, NOW_S, 1, &[], &"ü".repeat(chars), bits), true));
    cases.push((worked(1, NOW_S, 1, &[], &"x".repeat(chars + 1), bits), false));
    // The nonce of the proof of work is a tag, too.
    let tags = number("max_event_tags");
    for (count, taken) in [(tags - 1, true), (tags, false)] {
        cases.push((worked(1, NOW_S, 1, &vec![&["t"][..]; count], "", bits), taken));
    }
    cases.push((worked(1, NOW_S, 1, &[], "less", bits - 1), false));
    for (event, taken) in cases {
        let (accepted, reason) = client.publish(&event).await;
        assert_eq!(accepted, taken, "{reason}: {event}");
    }
    // No key has to be proved, but not every event is accepted.
    assert_eq!((&said["auth_required"], &said["payment_required"]), (&json!(false), &json!(false)));
    assert_eq!(said["restricted_writes"], true);
    assert!(!client.publish(&event(1, NOW_S, 1, &[], "no work")).await.0);

    for n in 0..10 {
        client.publish(&worked(2, NOW_S - n, 1, &[], "", bits)).await;
    }
    let (default, max) = (number("default_limit"), number("max_limit"));
    assert_eq!(req(&mut client, "s", json!({"kinds": [1]})).await, Ok(default));
    assert_eq!(req(&mut client, "s", json!({"kinds": [1], "limit": 500})).await, Ok(max));

    let length = number("max_subid_length");
    assert!(req(&mut client, &"é".repeat(length), json!({})).await.is_ok());
    assert!(req(&mut client, &"x".repeat(length + 1), json!({})).await.is_err());
    for n in 2..number("max_subscriptions") {
        assert!(req(&mut client, &n.to_string(), json!({})).await.is_ok());
    }
    let refused = req(&mut client, "more", json!({})).await.unwrap_err();
    assert!(refused.starts_with("blocked: "), "{refused}");

    let longest = number("max_message_length");
    client.send_text(format!("[\"REQ\",\"s\",{{}}{}]", " ".repeat(longest - 14))).await;
    client.stored("s").await;
    client.send_text(" ".repeat(longest + 1)).await;
    assert_eq!(client.closed().await, Some(CloseCode::Size));
    relay.stop().await;

    let open = Relay::start(|_| {}).await;
    let said = limitation(&open).await;
    assert_eq!(
        (&said["restricted_writes"], &said["min_pow_difficulty"]),
        (&json!(false), &json!(0))
    );
    assert!(said.get("created_at_lower_limit").is_none());
    open.stop().await;
}

/// Parsing a long question would occupy a session's thread, so the question is refused by its first
/// bytes. An event may be as long as a message.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_has_a_bound_of_its_own_which_is_the_one_of_the_document() {
    let relay = Relay::start(|_| {}).await;
    let said = limitation(&relay).await;
    let longest = said["max_message_length"].as_u64().unwrap() as usize;
    assert!(longest < Limits::default().message_bytes_max);
    let mut client = relay.client().await;
    let padded = |head: &str, tail: &str, len: usize| {
        format!("{head}{}{tail}", " ".repeat(len - head.len() - tail.len()))
    };
    for (head, tail, answered, refused) in [
        ("[\"REQ\",\"s\",{}", "]", "EOSE", "CLOSED"),
        ("[\"COUNT\",\"s\",{}", "]", "COUNT", "CLOSED"),
        ("[\"NEG-OPEN\",\"s\",{}", ",\"61\"]", "NEG-MSG", "NEG-ERR"),
    ] {
        client.send_text(padded(head, tail, longest)).await;
        assert_eq!(client.receive().await[0], answered, "{head}");
        client.send_text(padded(head, tail, longest + 1)).await;
        let received = client.receive().await;
        assert_eq!((&received[0], &received[1]), (&json!(refused), &json!("s")), "{received}");
        let reason = received[2].as_str().unwrap();
        assert!(reason.contains("at most 262144 bytes"), "{reason}");
    }
    // The refused REQ has also ended the earlier subscription with the same id.
    client.publish_new(&note(1, NOW_S, "nobody hears of it")).await;
    let event = note(1, NOW_S, "long").to_string();
    client.send_text(padded("[\"EVENT\",", &format!("{event}]"), longest + 1)).await;
    let received = client.receive().await;
    assert_eq!((&received[0], &received[2]), (&json!("OK"), &json!(true)), "{received}");
    relay.stop().await;
}

/// A rate that begins with `at_once` tokens, and gains no token during a test.
fn at_once(at_once: u64) -> Rate {
    Rate { per_minute: 1, at_once }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_as_fast_as_an_address_may() {
    let relay = Relay::start(|config| {
        config.proxies.trusted.clear();
        config.limits.rates =
            RateLimits { events_per_address: Some(at_once(5)), ..RateLimits::none() };
    })
    .await;
    let (mut one, mut two) = (relay.client().await, relay.client().await);
    for n in 0..3 {
        assert_eq!(one.publish(&note(1, NOW_S, &n.to_string())).await.1, "");
    }
    // A duplicate counts as well, and so does an EVENT without a valid event.
    assert!(two.publish(&note(1, NOW_S, "0")).await.1.starts_with("duplicate: "));
    two.send_text("[\"EVENT\",{}]").await;
    assert_eq!(two.receive().await[0], "NOTICE");
    let (accepted, reason) = one.publish(&note(2, NOW_S, "more")).await;
    assert!(
        !accepted
            && reason.starts_with("rate-limited: more than 1 events a minute of your address")
    );
    assert_eq!(two.count(&[json!({})]).await, 3, "questions have a rate of their own");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_as_fast_as_a_key_may_and_nobody_else_uses_that_up() {
    let relay = Relay::start(|config| {
        config.limits.rates = RateLimits { events_per_key: Some(at_once(2)), ..RateLimits::none() };
    })
    .await;
    let (mut one, mut two) = (relay.client().await, relay.client().await);
    for n in 0..5 {
        let mut forged = note(1, NOW_S, &n.to_string());
        forged["sig"] = json!("11".repeat(64));
        assert!(two.publish(&forged).await.1.starts_with("invalid: "));
    }
    assert_eq!(one.publish(&note(1, NOW_S, "a")).await.1, "");
    assert_eq!(two.publish(&note(1, NOW_S, "b")).await.1, "");
    for client in [&mut one, &mut two] {
        let (accepted, reason) = client.publish(&note(1, NOW_S, "c")).await;
        assert!(
            !accepted
                && reason.starts_with("rate-limited: more than 1 events a minute of this key")
        );
    }
    assert_eq!(one.publish(&note(2, NOW_S, "c")).await.1, "");
    relay.stop().await;
}

/// Anybody can send an author's earlier events, which are on other relays.
#[tokio::test(flavor = "multi_thread")]
async fn an_authors_rate_is_not_used_up_by_events_that_are_not_stored() {
    let relay = Relay::start(|config| {
        config.limits.rates = RateLimits { events_per_key: Some(at_once(4)), ..RateLimits::none() };
    })
    .await;
    let (mut author, mut other) = (relay.client().await, relay.client().await);
    let profile = |age| event(1, NOW_S - age, 0, &[], "profile");
    assert_eq!(author.publish(&profile(9)).await.1, "");
    assert_eq!(author.publish(&profile(0)).await.1, "");
    let ephemeral = event(1, NOW_S, 20_001, &[], "ephemeral");
    for _ in 0..10 {
        let (_, reason) = other.publish(&profile(9)).await;
        assert!(reason.starts_with("replaced: ") || reason.starts_with("duplicate: "), "{reason}");
        assert_eq!(other.publish(&ephemeral).await.1, "");
    }
    assert_eq!(author.publish(&note(1, NOW_S, "a")).await.1, "");
    assert_eq!(author.publish(&note(1, NOW_S, "b")).await.1, "");
    assert!(author.publish(&note(1, NOW_S, "c")).await.1.starts_with("rate-limited: "));
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_come_as_fast_as_an_address_may() {
    let relay = Relay::start(|config| {
        config.proxies.trusted.clear();
        config.limits.rates =
            RateLimits { questions_per_address: Some(at_once(4)), ..RateLimits::none() };
    })
    .await;
    let (mut one, mut two) = (relay.client().await, relay.client().await);
    assert_eq!(req(&mut one, "a", json!({})).await, Ok(0));
    assert_eq!(two.count(&[json!({})]).await, 0);
    two.send_text("what?").await;
    assert_eq!(two.receive().await[0], "NOTICE");
    // A CLOSE has no rate limit.
    for _ in 0..10 {
        one.send_text(json!(["CLOSE", "a"])).await;
    }
    assert_eq!(req(&mut one, "a", json!({})).await, Ok(0));
    let refused = req(&mut one, "b", json!({})).await.unwrap_err();
    assert!(refused.starts_with("rate-limited: more than 1 messages a minute of your address"));
    two.send_text(json!(["COUNT", "n", {}])).await;
    let received = two.receive().await;
    assert_eq!((&received[0], &received[1]), (&json!("CLOSED"), &json!("n")));
    assert!(received[2].as_str().unwrap().starts_with("rate-limited: "), "{received}");
    two.send_text("what?").await;
    assert!(two.receive().await[1].as_str().unwrap().starts_with("rate-limited: "));
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proved_key_asks_as_fast_as_it_may_on_all_connections_together() {
    let relay = Relay::start(|config| {
        config.limits.rates =
            RateLimits { questions_per_key: Some(at_once(2)), ..RateLimits::none() };
    })
    .await;
    let (mut one, mut two) = (relay.client().await, relay.client().await);
    for client in [&mut one, &mut two] {
        client.auth(7).await;
        assert_eq!(req(client, "s", json!({})).await, Ok(0));
    }
    let refused = req(&mut one, "s", json!({})).await.unwrap_err();
    assert!(refused.starts_with("rate-limited: more than 1 questions a minute of your key"));
    let mut stranger = relay.client().await;
    assert_eq!(req(&mut stranger, "s", json!({})).await, Ok(0));
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rows_that_questions_visit_are_counted() {
    let relay = Relay::start(|config| {
        config.limits.rates =
            RateLimits { rows_per_connection: Some(at_once(120)), ..RateLimits::none() };
    })
    .await;
    let mut client = relay.client().await;
    for n in 0..10 {
        client.publish(&note(1, NOW_S - n, "x")).await;
    }
    // The question that exceeds the rate is still answered.
    assert_eq!(req(&mut client, "s", json!({})).await, Ok(10));
    assert_eq!(req(&mut client, "s", json!({})).await, Ok(10));
    let refused = req(&mut client, "s", json!({})).await.unwrap_err();
    assert!(
        refused.starts_with("rate-limited: more than 1 rows visited a minute of this connection"),
        "{refused}"
    );
    assert_eq!(req(&mut relay.client().await, "s", json!({})).await, Ok(10));
    relay.stop().await;
}

/// A spared key exempts only the connection that has proved the key. Events of this key from other
/// clients are not exempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_spared_key_has_no_rates_once_it_is_proved() {
    let spared = |who| {
        let key = hark_codec::hex::decode_32(pubkey(who).as_bytes()).unwrap();
        RateGroups::new(ListedClients { keys: [key].into(), ..Default::default() }, Vec::new())
    };
    let rates = RateLimits {
        events_per_address: Some(at_once(2)),
        events_per_key: Some(at_once(1)),
        questions_per_address: Some(at_once(1)),
        questions_per_key: Some(at_once(1)),
        rows_per_connection: Some(at_once(1)),
        rows_per_address: Some(at_once(1)),
    };
    let relay = Relay::start(|config| {
        config.limits.rates = rates.clone();
        config.rate_groups = spared(7);
    })
    .await;
    let (mut peer, mut stranger) = (relay.client().await, relay.client().await);
    peer.auth(7).await;
    for n in 0..9 {
        assert_eq!(peer.publish(&note(1, NOW_S - n, "x")).await, (true, String::new()));
    }
    for _ in 0..9 {
        assert_eq!(peer.count(&[json!({})]).await, 9);
    }
    // A stranger who sends events of the spared key is not exempt, and the peer has not used up the
    // author's rate.
    for (event, taken) in
        [(note(7, NOW_S, "a"), true), (note(7, NOW_S, "b"), false), (note(1, NOW_S, "c"), false)]
    {
        assert_eq!(stranger.publish(&event).await.0, taken, "{event}");
    }
    let mut author = relay.client().await;
    assert_eq!(author.publish(&note(1, NOW_S, "d")).await.1, "");
    // After a reload, the peer's key is no longer spared.
    let limits = Limits { rates, ..Limits::default() };
    relay.reload.set(Settings { limits, ..Settings::default() }).unwrap();
    assert!(peer.publish(&note(7, NOW_S, "e")).await.1.starts_with("rate-limited: "));
    let (_, page) = http(&relay.url, "/metrics", "").await;
    let count = |rate: &str| {
        let line = format!("hark_rate_refusals_total{{rate=\"{rate}\"}} ");
        let at = page.lines().find_map(|text| text.strip_prefix(&line));
        at.map(|count| count.parse::<u64>().unwrap())
    };
    assert_eq!(
        (count("events_per_address"), count("events_per_key")),
        (Some(1), Some(2)),
        "{page}"
    );
    relay.stop().await;
}

/// A client behind a trusted proxy is spared by the address that the proxy names. An address in a
/// header has no effect unless a trusted proxy has written the header.
#[tokio::test(flavor = "multi_thread")]
async fn a_spared_address_is_that_of_the_client_behind_a_proxy() {
    for (trusted, from, taken) in [
        (true, "192.0.2.7", true),
        (true, "192.0.2.8", false),
        (true, "192.0.2.7, 192.0.2.8", false),
        (false, "192.0.2.7", false),
    ] {
        let relay = Relay::start(|config| {
            if !trusted {
                config.proxies.trusted.clear();
            }
            config.limits.rates =
                RateLimits { questions_per_address: Some(at_once(1)), ..RateLimits::none() };
            let addresses = vec!["192.0.2.7/32".parse().unwrap()];
            let spared = ListedClients { addresses, ..Default::default() };
            config.rate_groups = RateGroups::new(spared, Vec::new());
        })
        .await;
        let (_, mut stream) = upgrade(&relay, &format!("X-Forwarded-For: {from}\r\n")).await;
        for _ in 0..3 {
            stream.write_all(&masked(0x81, b"[\"COUNT\",\"n\",{}]")).await.unwrap();
        }
        let mut got = Vec::new();
        while got.windows(6).filter(|some| some == b"\",\"n\",").count() < 3 {
            got.push(stream.read_u8().await.unwrap());
        }
        let refused = got.windows(6).any(|some| some == b"CLOSED");
        assert_eq!(refused, !taken, "{from}: {}", String::from_utf8_lossy(&got));
        relay.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unlimited_means_no_rates() {
    let relay = Relay::start(|config| {
        config.limits.rates.events_per_address = Some(at_once(1));
        config.limits.rates.questions_per_address = Some(at_once(1));
        config.unlimited = true;
    })
    .await;
    let mut client = relay.client().await;
    for n in 0..20 {
        assert_eq!(client.publish(&note(1, NOW_S - n, "x")).await.1, "");
        assert_eq!(client.count(&[json!({})]).await, n + 1);
    }
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_change_while_connections_are_open() {
    let relay = Relay::start(|config| config.limits.rates = RateLimits::none()).await;
    let mut client = relay.client().await;
    for n in 0..5 {
        assert_eq!(client.publish(&note(1, NOW_S - n, "x")).await.1, "");
    }
    let settings = |limit_max, rates| {
        let filters = FilterLimits { limit_max, limit_default: 2, ..FilterLimits::default() };
        let limits = Limits { filters, rates, ..Limits::default() };
        Settings { limits, ..Settings::default() }
    };
    relay.reload.set(settings(3, RateLimits::none())).unwrap();
    assert_eq!(req(&mut client, "s", json!({"limit": 100})).await, Ok(3));
    assert_eq!(limitation(&relay).await["max_limit"], 3);
    // Limits that contradict each other are refused, and the previous ones stay.
    let conflict = relay.reload.set(settings(1, RateLimits::none())).unwrap_err();
    assert!(conflict.to_string().contains("limit_default"), "{conflict}");
    assert_eq!(req(&mut client, "s", json!({"limit": 100})).await, Ok(3));
    client.send_text(json!(["CLOSE", "s"])).await;
    let events_per_address = Some(at_once(1));
    relay.reload.set(settings(3, RateLimits { events_per_address, ..RateLimits::none() })).unwrap();
    assert_eq!(client.publish(&note(1, NOW_S, "y")).await.1, "");
    assert!(client.publish(&note(1, NOW_S, "z")).await.1.starts_with("rate-limited: "));
    relay.reload.set(settings(3, RateLimits::none())).unwrap();
    assert_eq!(client.publish(&note(1, NOW_S, "z")).await.1, "");
    relay.stop().await;
}

/// After the limit, a search only looks whether a further event matches, or whether the last second
/// has more events.
#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_ends_after_the_limit_does_not_end_the_subscription() {
    let relay = Relay::start(|config| {
        config.limits.filters.query_rows_max = 100;
        config.limits.filters.limit_default = 1;
    })
    .await;
    let mut client = relay.client().await;
    for n in 0..250 {
        let tags: &[&[&str]] = if n % 2 == 0 { &[&["t", "a"]] } else { &[&["t", "b"]] };
        client.publish_new(&event(1, n, 1, tags, "")).await;
    }
    let both: &[&[&str]] = &[&["t", "a"], &["t", "b"]];
    client.publish_new(&event(1, 1_000, 1, both, "first")).await;
    let filters =
        [json!({ "#t": ["a"], "&t": ["b"], "limit": 1 }), json!({ "#t": ["a"], "&t": ["b"] })];
    for (at, filter) in filters.into_iter().enumerate() {
        assert_eq!(client.ask("s", &[filter]).await.len(), 1);
        let later = event(1, 2_000 + at as u64, 2, both, "later");
        client.send_text(json!(["EVENT", later])).await;
        let received = [client.receive().await, client.receive().await];
        assert!(received.iter().any(|message| message[2] == later), "{received:?}");
        client.send_text(json!(["CLOSE", "s"])).await;
        client.publish_new(&event(1, 3_000, 5, &[&["e", later["id"].as_str().unwrap()]], "")).await;
    }
    relay.stop().await;
}
