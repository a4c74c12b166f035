//! Answers and their size: NIP-11, NIP-45, NIP-65, NIP-67, and queries that other relays answer
//! slowly or incorrectly.

use std::collections::HashSet;

use hark_testkit::clock::now_s;
use hark_testkit::http::{HttpReply, HttpRequest};
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::{contents, event, note, pubkey};
use serde_json::{Value, json};

use super::kit::connect;
use crate::served::Relay;
use crate::served::hark;

/// Publishes many events, without waiting for each OK.
async fn fill(client: &mut Client, events: &[Value]) {
    for some in events.chunks(500) {
        for event in some {
            client.feed(json!(["EVENT", event])).await;
        }
        client.flush().await;
        for _ in some {
            let ok = client.receive().await;
            assert_eq!((&ok[0], &ok[2]), (&json!("OK"), &json!(true)), "{ok}");
        }
    }
}

fn http(relay: &Relay, method: &str, accept: &str) -> HttpReply {
    let headers = [("Accept", accept), ("Origin", "https://app.example")];
    HttpRequest::new(method, "/").headers(&headers).send(relay.address())
}

#[tokio::test(flavor = "multi_thread")]
async fn nip11_the_document_is_there_for_every_origin_and_says_what_holds() {
    let settings = "[info]\nname = \"Test\"\ncontact = \"mailto:me@here.example\"\n\
                    icon = \"https://here.example/icon.png\"\n\
                    terms_of_service = \"https://here.example/terms\"\n\
                    [limits]\nlimit_max = 70\nlimit_default = 7\nsubscriptions_max = 3\n";
    let relay = Relay::start("nip11", settings);
    for method in ["GET", "OPTIONS"] {
        let head = http(&relay, method, "application/nostr+json").head;
        for name in ["origin", "headers", "methods"] {
            assert!(head.contains(&format!("access-control-allow-{name}: ")), "{head}");
        }
    }
    let reply = http(&relay, "GET", "application/nostr+json");
    let head = &reply.head;
    assert!(head.contains("200 ok") && head.contains("application/nostr+json"), "{head}");
    let document = reply.json();
    // The document has no `software`, which would be the URL of the project's page.
    for field in ["name", "description", "contact", "icon", "terms_of_service", "version"] {
        assert!(document[field].is_string(), "{field}: {document}");
    }
    let limitation = &document["limitation"];
    assert_eq!((&limitation["max_limit"], &limitation["default_limit"]), (&json!(70), &json!(7)));
    assert_eq!(limitation["auth_required"], false);
    let nips: HashSet<u64> =
        document["supported_nips"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    for nip in [1, 4, 9, 11, 17, 40, 42, 45, 59, 67, 70, 77, 91] {
        assert!(nips.contains(&nip), "{nip}");
    }
    // The relay does not claim NIPs that it does not offer, or that are no longer recommended.
    for nip in [62, 65, 26, 28, 29, 43, 50, 66, 72, 86] {
        assert!(!nips.contains(&nip), "{nip}");
    }
    // The relay enforces the limits in its document.
    let mut client = connect(&relay).await;
    let notes: Vec<Value> = (0..80).map(|n| note(1, 100 + n, "")).collect();
    fill(&mut client, &notes).await;
    assert_eq!(client.ask("s", &[json!({})]).await.len(), 7);
    assert_eq!(client.ask("s", &[json!({"limit": 1_000})]).await.len(), 70);
}

/// If no kind is private, the relay does not claim to protect private events.
#[tokio::test(flavor = "multi_thread")]
async fn nip11_does_not_claim_privacy_that_is_switched_off() {
    let relay = Relay::start("nip11-open", "[privacy]\nkinds = []\n");
    let document = http(&relay, "GET", "application/nostr+json").json();
    let nips = document["supported_nips"].as_array().unwrap();
    assert!(!nips.iter().any(|nip| [4, 17, 59].contains(&nip.as_u64().unwrap())), "{nips:?}");
    let mut client = connect(&relay).await;
    client.publish_new(&event(1, 100, 4, &[], "")).await;
    assert_eq!(client.ask("s", &[json!({"kinds": [4]})]).await.len(), 1);
}

/// Counts of any size are exact.
#[tokio::test(flavor = "multi_thread")]
async fn nip45_several_filters_are_one_union_and_every_event_counts_once() {
    let relay = Relay::start("count", "[archive]\nseal_records = 500\n");
    let mut client = connect(&relay).await;
    let notes: Vec<Value> = (0..2_000_u64)
        .map(|n| {
            let tag = if n % 3 == 0 { "three" } else { "other" };
            event((n % 5 + 1) as u8, n, (n % 2 + 1) as u16, &[&["t", tag]], "")
        })
        .collect();
    fill(&mut client, &notes).await;
    for (filters, is_in) in [
        (json!([{}]), (|_| true) as fn(u64) -> bool),
        (json!([{"limit": 1}]), |_| true),
        (json!([{"#t": ["three"]}]), |n| n % 3 == 0),
        (json!([{"#t": ["three"]}, {"kinds": [1]}]), |n| n % 3 == 0 || n % 2 == 0),
        (json!([{"kinds": [1]}, {"kinds": [1, 2]}, {}]), |_| true),
        (json!([{"authors": [pubkey(1)], "kinds": [1]}, {"since": 1_990}, {"until": 9}]), |n| {
            n % 10 == 0 || n >= 1_990 || n <= 9
        }),
    ] {
        let expected = (0..2_000).filter(|n| is_in(*n)).count() as u64;
        assert_eq!(client.count(filters.as_array().unwrap()).await, expected, "{filters}");
    }
    client.send_text(json!(["COUNT", "n", {"kinds": [1]}])).await;
    assert_eq!(client.receive().await, json!(["COUNT", "n", {"count": 1_000}]), "and nothing else");
}

/// NIP-45, step by step, with keys and bytes as text.
#[tokio::test(flavor = "multi_thread")]
async fn nip45_followers_come_with_a_hyperloglog_byte_for_byte() {
    let relay = Relay::start("hll", "");
    let mut client = connect(&relay).await;
    for target in [pubkey(201), pubkey(202)] {
        let offset = usize::from_str_radix(&target[32..33], 16).unwrap() + 8;
        let mut registers = [0_u8; 256];
        for who in 1..=120 {
            client
                .publish_new(&event(
                    who,
                    100 + u64::from(target == pubkey(202)),
                    3,
                    &[&["p", &target]],
                    "",
                ))
                .await;
            let key = pubkey(who);
            let bytes: Vec<u8> = (0..32)
                .map(|at| u8::from_str_radix(&key[2 * at..2 * at + 2], 16).unwrap())
                .collect();
            let mut zeros = 0;
            while zeros < 8 * (31 - offset)
                && bytes[offset + 1 + zeros / 8] >> (7 - zeros % 8) & 1 == 0
            {
                zeros += 1;
            }
            let register = &mut registers[usize::from(bytes[offset])];
            *register = (*register).max(zeros as u8 + 1);
        }
        let hex: Vec<String> = registers.iter().map(|register| format!("{register:02x}")).collect();
        client.send_text(json!(["COUNT", "n", {"kinds": [3], "#p": [target]}])).await;
        let expected = json!({"count": 120, "hll": hex.concat()});
        assert_eq!(client.receive().await, json!(["COUNT", "n", expected]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nip45_a_count_that_is_refused_is_closed() {
    let relay = Relay::start("count-closed", "[limits]\nquery_rows_max = 50\nslice_rows = 10\n");
    let mut client = connect(&relay).await;
    let events: Vec<Value> = (0..200).map(|n| event(1, n, 1, &[&["t", "a"]], "")).collect();
    fill(&mut client, &events).await;
    for said in [
        json!(["COUNT", "n", {"kinds": [1059]}]),
        json!(["COUNT", "n", {"search": "x".repeat(2_000)}]),
        json!(["COUNT", "n", {"#t": ["a", "b"], "authors": [pubkey(1)]}, {"#t": ["a"], "since": 1}]),
    ] {
        client.send_text(&said).await;
        let received = client.receive().await;
        assert_eq!(
            (&received[0], &received[1]),
            (&json!("CLOSED"), &json!("n")),
            "{said}: {received}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nip65_relay_lists_are_taken_from_anyone_and_the_newest_is_kept() {
    let relay = Relay::start("relay-lists", "");
    let mut client = connect(&relay).await;
    for who in 1..=20 {
        for at in [100, 200] {
            let url = format!("wss://{who}.example");
            client.publish_new(&event(who, at, 10_002, &[&["r", &url, "write"]], "")).await;
        }
    }
    let found = client.ask("s", &[json!({"kinds": [10_002]})]).await;
    assert_eq!(found.len(), 20);
    assert!(found.iter().all(|event| event["created_at"] == 200));
    assert_eq!(client.count(&[json!({"#r": ["wss://7.example"]})]).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nip67_eose_says_finish_or_more_and_a_second_is_never_split_in_silence() {
    let relay = Relay::start("eose", "[limits]\nlimit_default = 10\nlimit_max = 20\n");
    let mut client = connect(&relay).await;
    // Seven notes a second.
    let notes: Vec<Value> = (0..70).map(|n| note(1, 100 + n / 7, &n.to_string())).collect();
    fill(&mut client, &notes).await;
    let mut page = async |filter: Value| {
        client.send_text(json!(["REQ", "s", filter])).await;
        let (events, hint) = client.page("s").await;
        let times: Vec<u64> =
            events.iter().map(|event| event["created_at"].as_u64().unwrap()).collect();
        (times, hint)
    };
    let (finish, more) = (Some(json!(["finish"])), Some(json!(["more"])));
    // A page that the relay's limit cuts ends with all events of its last second.
    for (filter, count) in [(json!({}), 14), (json!({"limit": 100}), 20)] {
        let (times, hint) = page(filter).await;
        assert_eq!((times.len(), &hint), (count, &more));
    }
    // A page that the client's limit cuts has exactly the requested number of events, and the hint
    // that more events exist.
    assert_eq!(
        page(json!({"limit": 9})).await,
        ([vec![109; 7], vec![108; 2]].concat(), more.clone())
    );
    for (filter, count) in [
        (json!({"until": 100}), 7),
        (json!({"until": 100, "limit": 7}), 7),
        (json!({"until": 9}), 0),
    ] {
        let (times, hint) = page(filter).await;
        assert_eq!((times.len(), &hint), (count, &finish));
    }
    // A client that continues before the oldest second gets every event once, then `finish`.
    let (mut seen, mut until) = (Vec::new(), 1_000);
    loop {
        let (times, hint) = page(json!({"until": until})).await;
        until = times.last().unwrap() - 1;
        seen.extend(times);
        if hint == finish {
            break;
        }
        assert_eq!(hint, more);
    }
    assert_eq!(seen.len(), 70);
}

/// Queries that other relays answer slowly are answered correctly from a few rows.
#[tokio::test(flavor = "multi_thread")]
async fn tags_with_kinds_many_authors_and_deep_pages_cost_what_they_give() {
    // A query may visit 600 of 4,000 rows.
    let settings = "[archive]\nseal_records = 1000\n[limits]\nquery_rows_max = 600\n";
    let relay = Relay::start("costs", settings);
    let mut client = connect(&relay).await;
    let me = pubkey(250);
    let mut events: Vec<Value> = (0..3_900_u64)
        .map(|n| event((n % 200 + 1) as u8, 1_000 + n, 9735, &[&["p", &me]], ""))
        .collect();
    events.extend((0..100).map(|n| event(201, 1_000 + n * 30, 1, &[&["p", &me]], &n.to_string())));
    fill(&mut client, &events).await;
    // Case 1: nearly all of the tag's events have another kind.
    let mentions = [json!({"#p": [me], "kinds": [1, 7], "limit": 100})];
    assert_eq!(client.ask("s", &mentions).await.len(), 100);
    // Case 2: a thousand authors, few of which have events in the archive.
    let mut authors: Vec<String> = (0..1_000).map(|n| format!("{n:064x}")).collect();
    authors.push(pubkey(201));
    let newest = client.ask("s", &[json!({"authors": authors, "kinds": [1], "limit": 20})]).await;
    assert_eq!(contents(&newest), (80..100).rev().map(|n| n.to_string()).collect::<Vec<_>>());
    // Case 3: a client reads all pages, down to the oldest event. The limit of rows applies to each
    // page.
    let (mut seen, mut until) = (HashSet::new(), u64::MAX);
    loop {
        client
            .send_text(json!(["REQ", "s", {"kinds": [9735], "until": until, "limit": 500}]))
            .await;
        let (page, hint) = client.page("s").await;
        until = page.last().unwrap()["created_at"].as_u64().unwrap();
        seen.extend(page.iter().map(|event| event["id"].to_string()));
        if hint == Some(json!(["finish"])) {
            break;
        }
    }
    assert_eq!(seen.len(), 3_900);
}

/// A question that visits more rows than allowed ends with a CLOSED.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_costs_too_much_ends_with_closed() {
    let relay = Relay::start("budget", "[limits]\nquery_rows_max = 100\nslice_rows = 10\n");
    let mut client = connect(&relay).await;
    let events: Vec<Value> =
        (0..400).map(|n| event(1, n, 1, &[&["t", "a"], &["r", "b"]], "")).collect();
    fill(&mut client, &events).await;
    client.send_text(json!(["REQ", "s", {"#t": ["a"], "limit": 300}])).await;
    let closed = loop {
        let received = client.receive().await;
        if received[0] != "EVENT" {
            break received;
        }
    };
    assert_eq!((&closed[0], &closed[1]), (&json!("CLOSED"), &json!("s")), "{closed}");
    assert!(closed[2].as_str().unwrap().starts_with("error: "), "{closed}");
    assert_eq!(client.ask("s", &[json!({"#t": ["a"], "limit": 50})]).await.len(), 50);
}

/// A large deletion is one commit, and publishers still get their answers during the deletion.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_of_thousands_leaves_publishers_their_answers() {
    let relay = Relay::start("large-deletion", "");
    let (mut leaving, mut other) = (connect(&relay).await, connect(&relay).await);
    let events: Vec<Value> = (0..3_000).map(|n| note(1, 100 + n, "")).collect();
    fill(&mut leaving, &events).await;
    let vanish = event(1, now_s(), 62, &[&["relay", "ALL_RELAYS"]], "");
    leaving.feed(json!(["EVENT", vanish])).await;
    leaving.flush().await;
    for n in 0..50 {
        other.publish_new(&note(2, 100 + n, "")).await;
    }
    assert_eq!(leaving.receive().await[2], true);
    assert_eq!(other.count(&[json!({"kinds": [1]})]).await, 50);
}

/// Subscriptions to everything, or to a kind, are notified immediately, as are subscriptions to few
/// events.
#[tokio::test(flavor = "multi_thread")]
async fn live_events_reach_wide_and_narrow_filters_alike() {
    let relay = Relay::start("live", "");
    let mut sender = connect(&relay).await;
    let mut listeners = Vec::new();
    for filter in [
        json!({}),
        json!({"kinds": [1]}),
        json!({"authors": [pubkey(1)]}),
        json!({"#t": ["a"]}),
        json!({"since": now_s() - 10}),
    ] {
        let mut client = connect(&relay).await;
        client.ask("s", &[filter]).await;
        listeners.push(client);
    }
    for n in 0..20 {
        let event = event(1, now_s(), 1, &[&["t", "a"]], &n.to_string());
        sender.publish_new(&event).await;
        for client in &mut listeners {
            assert_eq!(client.receive().await, json!(["EVENT", "s", event]));
        }
    }
}

/// A start reserves no address space, and files are no larger than their content.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_archive_is_small() {
    let relay = Relay::start("small", "");
    connect(&relay).await.publish_new(&note(1, 100, "")).await;
    let output = hark(&relay.place.data()).args(["stats", "--json"]).output().unwrap();
    let stats: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(stats["bytes"].as_u64().unwrap() < 1 << 20, "{stats}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_one_search_at_a_time_gets_one_answer_after_the_other() {
    let settings = "[limits]\nsearches_per_connection_max = 1\n";
    let relay = Relay::start("one-at-a-time", settings);
    let mut client = connect(&relay).await;
    let text = "x".repeat(2_000);
    let notes: Vec<Value> = (0..100).map(|n| note(1, now_s() - n, &text)).collect();
    fill(&mut client, &notes).await;
    // The first answer has several pages, which the session's own thread writes in one step.
    for id in ["a", "b", "c"] {
        client.feed(json!(["REQ", id, {"kinds": [1], "limit": 100}])).await;
        client.feed(json!(["COUNT", id, {"kinds": [1]}])).await;
    }
    client.flush().await;
    let mut ends = Vec::new();
    while ends.len() < 6 {
        let message = client.receive().await;
        if message[0] != "EVENT" {
            ends.push(format!("{} {}", message[0], message[1]).replace('"', ""));
        }
    }
    assert_eq!(ends, ["EOSE a", "COUNT a", "EOSE b", "COUNT b", "EOSE c", "COUNT c"]);
}
