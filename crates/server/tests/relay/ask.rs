//! Answers to REQ, COUNT and CLOSE, and answers over HTTP.

use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::{contents, event, note, pubkey};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::kit::{NOW_S, Relay};
use crate::operators::scrape;

async fn full(relay: &Relay) -> Client {
    let mut client = relay.client().await;
    for n in 0..20 {
        let who = (n % 2 + 1) as u8;
        let tag = if n % 5 == 0 { "five" } else { "other" };
        let event = event(who, 100 + n, 1, &[&["t", tag]], &n.to_string());
        assert_eq!(client.publish(&event).await.1, "");
    }
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_come_newest_first_up_to_the_limit_and_once() {
    let relay = Relay::start(|config| {
        config.limits.filters.limit_default = 7;
        config.limits.filters.limit_max = 12;
        config.limits.slice_rows = 2;
    })
    .await;
    let mut client = full(&relay).await;
    let newest = client.ask("s", &[json!({"limit": 3})]).await;
    assert_eq!(contents(&newest), ["19", "18", "17"]);
    assert_eq!(client.ask("s", &[json!({})]).await.len(), 7);
    assert_eq!(client.ask("s", &[json!({"limit": 1000})]).await.len(), 12);
    assert!(client.ask("s", &[json!({"limit": 0})]).await.is_empty());
    let five = [json!({"#t": ["five"], "authors": [pubkey(1)]})];
    assert_eq!(contents(&client.ask("s", &five).await), ["10", "0"]);
    let window = [json!({"since": 105, "until": 107})];
    assert_eq!(contents(&client.ask("s", &window).await), ["7", "6", "5"]);
    let twice = [json!({"limit": 3}), json!({"limit": 5}), json!({"#t": ["five"]})];
    let mut found = client.ask("s", &twice).await;
    found.sort_by_key(|event| event["created_at"].as_u64());
    assert_eq!(contents(&found), ["0", "5", "10", "15", "16", "17", "18", "19"]);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_same_second_the_lowest_id_comes_first() {
    let relay = Relay::start(|_| {}).await;
    let mut client = relay.client().await;
    for n in 0..10 {
        client.publish(&note(1, 100, &n.to_string())).await;
    }
    let found = client.ask("s", &[json!({"limit": 6})]).await;
    let ids: Vec<&str> = found.iter().map(|event| event["id"].as_str().unwrap()).collect();
    assert!(ids.len() == 6 && ids.is_sorted());
    relay.stop().await;
}

/// Sends a REQ. Returns the contents of the events, and EOSE's hint about further events (NIP-67).
async fn page(client: &mut Client, filters: &[Value]) -> (Vec<String>, Option<Value>) {
    let mut message = vec![json!("REQ"), json!("s")];
    message.extend_from_slice(filters);
    client.send_text(json!(message)).await;
    let (events, hint) = client.page("s").await;
    (contents(&events).into_iter().map(str::to_owned).collect(), hint)
}

#[tokio::test(flavor = "multi_thread")]
async fn eose_says_whether_there_is_more() {
    let relay = Relay::start(|config| config.limits.slice_rows = 3).await;
    let mut client = full(&relay).await;
    let (finish, more) = (Some(json!(["finish"])), Some(json!(["more"])));
    for (filters, count, hint) in [
        (vec![json!({})], 20, &finish),
        (vec![json!({"limit": 20})], 20, &finish),
        (vec![json!({"limit": 19})], 19, &more),
        (vec![json!({"#t": ["five"], "limit": 4})], 4, &finish),
        (vec![json!({"#t": ["five"], "limit": 3})], 3, &more),
        (vec![json!({"kinds": [7]})], 0, &finish),
        (vec![json!({"kinds": []})], 0, &finish),
        (vec![json!({"limit": 0})], 0, &None),
        (vec![json!({"limit": 0}), json!({"kinds": [7]})], 0, &None),
        (vec![json!({"limit": 0}), json!({"limit": 1})], 1, &more),
        (vec![json!({"limit": 2}), json!({"kinds": [7]})], 2, &more),
        (vec![json!({"until": 101}), json!({"#t": ["five"]})], 5, &finish),
    ] {
        let (events, said) = page(&mut client, &filters).await;
        assert_eq!((events.len(), &said), (count, hint), "{filters:?}");
    }
    relay.stop().await;
}

/// If a bound of the relay ends a page, the page has all events of its last second. If the client's
/// own limit ends a page, the page has exactly as many events as the client wants.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_never_splits_a_second_silently() {
    let relay = Relay::start(|config| {
        config.limits.filters.limit_default = 3;
        config.limits.filters.limit_max = 5;
    })
    .await;
    let mut client = relay.client().await;
    // Two events at 104, three each at 103, 102 and 101, and five at 100.
    let times = [104, 104, 103, 103, 103, 102, 102, 102, 101, 101, 101];
    for (n, time) in times.into_iter().chain([100; 5]).enumerate() {
        client.publish(&note(1, time, &format!("{time} {n}"))).await;
    }
    let more = Some(json!(["more"]));
    for (filter, count, hint) in [
        (json!({}), 5, &more),
        (json!({"until": 103}), 3, &more),
        (json!({"until": 101, "limit": 6}), 5, &more),
        (json!({"limit": 4}), 4, &more),
        (json!({"limit": 999}), 5, &more),
        (json!({"until": 102, "limit": 999}), 5, &more),
        // At most `limit_max` events in all.
        (json!({"until": 100}), 5, &Some(json!(["finish"]))),
        (json!({"until": 100, "limit": 999}), 5, &Some(json!(["finish"]))),
    ] {
        let (events, said) = page(&mut client, std::slice::from_ref(&filter)).await;
        assert_eq!((events.len(), &said), (count, hint), "{filter}");
    }
    // A client that continues from the oldest second sees all events.
    let (mut seen, mut until) = (std::collections::HashSet::new(), u64::MAX);
    loop {
        let (events, hint) = page(&mut client, &[json!({"until": until})]).await;
        let time = |content: &String| content.split(' ').next().unwrap().parse().unwrap();
        until = events.last().map(time).unwrap();
        seen.extend(events);
        if hint != more {
            break;
        }
        until -= 1;
    }
    assert_eq!(seen.len(), 16);
    relay.stop().await;
}

/// The expected registers are computed bit by bit, as NIP-45 describes the algorithm.
#[tokio::test(flavor = "multi_thread")]
async fn a_count_of_reactions_comes_with_its_hyperloglog() {
    let relay = Relay::start(|config| config.limits.slice_rows = 7).await;
    let mut client = relay.client().await;
    let liked = note(1, NOW_S, "liked")["id"].as_str().unwrap().to_owned();
    let mut registers = vec![0_u32; 256];
    let offset = 8 + usize::from_str_radix(&liked[32..33], 16).unwrap();
    for who in 1..60 {
        let like = event(who, 100, 7, &[&["e", &liked]], "+");
        assert_eq!(client.publish(&like).await.1, "");
        let key = like["pubkey"].as_str().unwrap();
        let byte = |at: usize| usize::from_str_radix(&key[2 * at..2 * at + 2], 16).unwrap();
        let bits = (8 * (offset + 1)..256).map(|at| byte(at / 8) >> (7 - at % 8) & 1);
        let run = bits.take_while(|bit| *bit == 0).count() as u32 + 1;
        registers[byte(offset)] = registers[byte(offset)].max(run);
    }
    let hll: Vec<String> = registers.iter().map(|register| format!("{register:02x}")).collect();
    let hll = hll.concat();
    let count = json!({"kinds": [7], "#e": [liked]});
    client.send_text(json!(["COUNT", "n", count])).await;
    assert_eq!(client.receive().await, json!(["COUNT", "n", {"count": 59, "hll": hll}]));
    let none = json!({"kinds": [6], "#e": [liked]});
    client.send_text(json!(["COUNT", "n", none])).await;
    assert_eq!(
        client.receive().await,
        json!(["COUNT", "n", {"count": 0, "hll": "00".repeat(256)}])
    );
    for filters in [json!(["COUNT", "n", count, none]), json!(["COUNT", "n", {"kinds": [7]}])] {
        client.send_text(filters).await;
        assert_eq!(client.receive().await, json!(["COUNT", "n", {"count": 59}]));
    }
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn count_is_exact_over_the_union() {
    let relay = Relay::start(|config| config.limits.slice_rows = 3).await;
    let mut client = full(&relay).await;
    assert_eq!(client.count(&[json!({})]).await, 20);
    assert_eq!(client.count(&[json!({"limit": 1})]).await, 20);
    assert_eq!(client.count(&[json!({"#t": ["five"]})]).await, 4);
    let union = [json!({"#t": ["five"]}), json!({"authors": [pubkey(1)]}), json!({"since": 118})];
    assert_eq!(client.count(&union).await, 13);
    relay.stop().await;
}

/// Tests NIP-91 for stored and for live events.
#[tokio::test(flavor = "multi_thread")]
async fn events_that_have_all_of_several_tags_are_found() {
    let relay = Relay::start(|_| {}).await;
    let mut client = relay.client().await;
    let tags = |n: u64| -> Vec<Vec<String>> {
        let held = (0..3).filter(|bit| n >> bit & 1 == 1);
        held.map(|bit| vec!["t".to_owned(), format!("tag {bit}")]).collect()
    };
    let mut expected = Vec::new();
    for round in 0..2 {
        for n in 0..8 {
            let tags = tags(n);
            let tags: Vec<Vec<&str>> =
                tags.iter().map(|tag| tag.iter().map(String::as_str).collect()).collect();
            let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
            client.publish(&event(1, NOW_S - 100 + 10 * round + n, 1, &tags, "")).await;
        }
        expected.push(10 * round + 7);
        let all = json!({"&t": ["tag 0", "tag 1", "tag 2"], "#t": ["tag 0", "tag 1", "tag 2"]});
        assert_eq!(client.count(std::slice::from_ref(&all)).await, expected.len() as u64);
        let two = json!({"&t": ["tag 0", "tag 1"], "#t": ["tag 0", "tag 2"]});
        assert_eq!(client.count(&[two]).await, expected.len() as u64);
        assert_eq!(client.count(&[json!({"&t": ["tag 2"]})]).await, 4 * expected.len() as u64);
    }
    let mut other = relay.client().await;
    other.ask("live", &[json!({"&t": ["tag 0", "tag 2"], "limit": 0})]).await;
    for (content, tags) in
        [("one", &[&["t", "tag 0"][..]][..]), ("both", &[&["t", "tag 0"], &["t", "tag 2"]])]
    {
        client.publish(&event(1, NOW_S, 1, tags, content)).await;
    }
    assert_eq!(other.receive().await[2]["content"], "both");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_refuse_with_closed_and_a_reason() {
    let relay = Relay::start(|config| {
        config.limits.subscriptions_max = 2;
        config.limits.filters.filters_max = 2;
        config.limits.filters.filter_values_max = 3;
        config.limits.subscription_id_chars_max = 5;
        config.limits.subscription_bytes_max = 100;
    })
    .await;
    let mut client = relay.client().await;
    client.ask("a", &[json!({})]).await;
    client.ask("b", &[json!({})]).await;
    client.ask("b", &[json!({"kinds": [1]})]).await;
    let refused = [
        (json!(["REQ", "c", {}]), "blocked"),
        (json!(["REQ", "long id", {}]), "invalid"),
        (json!(["REQ", "d", {}, {}, {}]), "blocked"),
        (json!(["REQ", "b", {"#t": ["x".repeat(90)]}]), "blocked"),
        (
            json!(["COUNT", "d", {"kinds": [1, 2, 3, 4]}]),
            "blocked: a filter has more than 3 values;",
        ),
        // The rest of the message is not read.
        (json!(["REQ", "d", {"#t": ["a", "a", "a", "a", "a", "a", 7]}]), "blocked: a filter has"),
    ];
    let plain = Relay::start(|_| {}).await;
    let mut all = plain.client().await;
    let wanted: Vec<String> = (0..33).map(|n| n.to_string()).collect();
    all.send_text(json!(["REQ", "d", {"&t": wanted}])).await;
    assert!(all.receive().await[2].as_str().unwrap().starts_with("blocked: "));
    plain.stop().await;
    for (said, prefix) in refused {
        client.send_text(&said).await;
        let received = client.receive().await;
        assert_eq!((&received[0], &received[1]), (&json!("CLOSED"), &said[1]));
        assert!(received[2].as_str().unwrap().starts_with(prefix), "{received}");
    }
    // The refused REQ for `b` has also ended the subscription `b`, so a second subscription fits
    // again.
    client.ask("c", &[json!({})]).await;
    client.send_text(json!(["CLOSE", "a"])).await;
    client.ask("b", &[json!({})]).await;
    relay.stop().await;
}

/// While the client reads nothing, its search is parked and other connections are served. In the
/// end the client gets all events, in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_gets_everything_and_holds_nobody_up() {
    let relay = Relay::start(|config| {
        config.limits.outbox_pause_bytes = 10_000;
        config.limits.slice_rows = 10;
        config.relay.threads.read = 1;
    })
    .await;
    let (mut slow, mut other) = (relay.client().await, relay.client().await);
    let long = "x".repeat(50_000);
    for n in 0..200 {
        other.publish(&note(1, n, &long)).await;
    }
    slow.send_text(json!(["REQ", "s", {}])).await;
    for _ in 0..5 {
        assert_eq!(other.ask("o", &[json!({"limit": 3})]).await.len(), 3);
    }
    let times: Vec<u64> =
        slow.stored("s").await.iter().map(|event| event["created_at"].as_u64().unwrap()).collect();
    assert_eq!(times, (0..200).rev().collect::<Vec<_>>());
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_expires_is_not_sent_any_more() {
    let relay = Relay::start(|_| {}).await;
    let mut client = relay.client().await;
    let until = (NOW_S + 10).to_string();
    client.publish(&event(1, NOW_S, 1, &[&["expiration", &until]], "short")).await;
    assert_eq!(client.count(&[json!({})]).await, 1);
    relay.clock.set(NOW_S + 10);
    assert!(client.ask("s", &[json!({})]).await.is_empty());
    assert_eq!(client.count(&[json!({})]).await, 0);
    relay.stop().await;
}

async fn http(relay: &Relay, head: &str) -> String {
    let addr = relay.url.strip_prefix("ws://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
    let request = format!("{head}\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_port_shows_programs_and_people_what_it_is() {
    let relay = Relay::start(|config| config.info(|info| info.name = "Test <relay>".into())).await;
    let answer = http(&relay, "GET / HTTP/1.1\r\nAccept: application/nostr+json").await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("200 OK") && head.contains("access-control-allow-origin: *"), "{head}");
    let document: Value = serde_json::from_str(body).unwrap();
    assert_eq!(document["name"], "Test <relay>");
    assert_eq!(document["limitation"]["max_limit"], 5000);
    let page = http(&relay, "GET / HTTP/1.1").await;
    assert!(page.contains("text/html") && page.contains("Test &lt;relay&gt;"));
    assert!(http(&relay, "GET /x HTTP/1.1").await.contains(" 404 "));
    assert!(http(&relay, "POST / HTTP/1.1").await.contains(" 405 "));
    relay.stop().await;
}

/// The answer names the fault and the remedy, and the metrics count the faults.
#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_fails_says_why() {
    let relay = Relay::start(|_| {}).await;
    let key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    let asks = "Upgrade: websocket\r\nSec-WebSocket-Version: 13";
    for (head, status, says) in [
        (
            format!("GET / HTTP/1.1\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 8\r\n{key}"),
            426,
            "sec-websocket-version: 13",
        ),
        (format!("GET / HTTP/1.1\r\nUpgrade: websocket\r\n{key}"), 426, "version 13"),
        (format!("GET / HTTP/1.0\r\n{asks}\r\n{key}"), 426, "proxy_http_version 1.1"),
        // The form in which nginx forwards a client's request unless configured to forward Upgrade.
        (
            format!("GET / HTTP/1.0\r\nSec-WebSocket-Version: 13\r\n{key}"),
            426,
            "Upgrade is missing",
        ),
        (
            format!("GET / HTTP/1.1\r\nSec-WebSocket-Version: 13\r\n{key}"),
            426,
            "Upgrade is missing",
        ),
        (format!("GET / HTTP/1.1\r\n{asks}"), 400, "Sec-WebSocket-Key"),
        (format!("POST / HTTP/1.1\r\n{asks}\r\n{key}"), 405, "GET"),
    ] {
        let answer = http(&relay, &head).await;
        assert!(
            answer.contains(&format!(" {status} ")) && answer.contains(says),
            "{head}\n{answer}"
        );
    }
    let metrics = scrape(&relay).await;
    for (reason, count) in [("version", 2), ("http-1.0", 1), ("upgrade", 2), ("key", 1)] {
        let name = format!("hark_handshakes_refused_total{{reason=\"{reason}\"}}");
        assert_eq!(metrics[&name] as u64, count, "{name}");
    }
    relay.stop().await;
}

/// Some users have lists of 10,000 keys, each with a relay. White space in a received event is not
/// stored, and does not count toward the event's maximum length.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_10_000_entries_is_stored_and_found() {
    let relay = Relay::start(|config| config.limits.events.event_bytes_max = 1 << 20).await;
    let longest = hark_server::limits::Limits::default().message_bytes_max;
    let mut client = relay.client().await;
    let keys: Vec<String> = (0..10_001).map(|n| format!("{n:064x}")).collect();
    let tags: Vec<[&str; 3]> = keys.iter().map(|key| ["p", key, "wss://r.example"]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
    for kind in [3, 10_000, 30_000] {
        let list = event(1, NOW_S, kind, &tags[..10_000], "");
        let spaced = list.to_string().replace("],[", &format!("]\t{},[", " ".repeat(15)));
        assert!(list.to_string().len() < 1 << 20 && spaced.len() > 1 << 20);
        assert!(spaced.len() + 10 <= longest, "{}", spaced.len());
        client.send_text(format!("[\"EVENT\",{spaced}]")).await;
        let ok = client.receive().await;
        assert_eq!((&ok[2], &ok[3]), (&json!(true), &json!("")), "{kind}");
        let found = client.ask("s", &[json!({"kinds": [kind], "#p": [keys[9_999]]})]).await;
        assert_eq!(found, [list]);
        client.send_text(json!(["CLOSE", "s"])).await;
        let (taken, reason) = client.publish(&event(1, NOW_S + 1, kind, &tags, "")).await;
        assert!(!taken && reason == "invalid: event has more than 10000 tags", "{reason}");
    }
    let (taken, reason) = client.publish(&event(1, NOW_S, 1, &tags[..2_501], "")).await;
    assert!(!taken && reason == "invalid: event has more than 2500 tags", "{reason}");
    relay.stop().await;
}

/// NIP-01: a missing `d` tag, and a `d` tag without a value, count as an empty `d`.
#[tokio::test(flavor = "multi_thread")]
async fn an_addressable_event_without_d_is_found_by_the_empty_one() {
    let relay = Relay::start(|_| {}).await;
    let mut client = relay.client().await;
    let mut live = relay.client().await;
    let empty = json!({"kinds": [30_000, 1], "#d": [""]});
    assert!(live.ask("live", std::slice::from_ref(&empty)).await.is_empty());
    for (who, tags) in
        [(1, &[][..]), (2, &[&["d"][..]]), (3, &[&["d", ""][..]]), (4, &[&["d"][..], &["d", "x"]])]
    {
        let made = event(who, NOW_S, 30_000, tags, "");
        client.publish_new(&made).await;
        assert_eq!(live.receive().await[2], made);
        let author = json!({"authors": [pubkey(who)], "#d": [""]});
        assert_eq!(client.ask("s", &[author]).await, [made]);
    }
    // Only addressable events have an address.
    client.publish_new(&event(1, NOW_S, 1, &[&["d"]], "")).await;
    client.publish_new(&event(5, NOW_S, 30_000, &[&["d", "x"]], "")).await;
    assert_eq!(client.count(&[empty]).await, 4);
    relay.stop().await;
}

/// NIP-01: the relay has one endpoint, at `/` and at the path of the relay's URL. Other paths are
/// refused.
#[tokio::test(flavor = "multi_thread")]
async fn the_relay_is_found_at_one_path_only() {
    let plain = Relay::start(|_| {}).await;
    let moved = Relay::start(|config| {
        config.info(|info| info.url = Some("wss://here.example/relay/".into()));
    })
    .await;
    for (relay, path, is_there) in [
        (&plain, "/", true),
        (&plain, "/?x=1", true),
        (&plain, "/relay", false),
        (&plain, "/healthz", false),
        (&moved, "/", true),
        (&moved, "/relay", true),
        (&moved, "/relay/", true),
        (&moved, "/relay/x", false),
    ] {
        let url = format!("{}{path}", relay.url);
        assert_eq!(tokio_tungstenite::connect_async(&url).await.is_ok(), is_there, "{path}");
        if path.starts_with("/relay") {
            let get = format!("GET {path} HTTP/1.1\r\nAccept: application/nostr+json");
            assert_eq!(http(relay, &get).await.contains(" 200 "), is_there, "{path}");
        }
    }
    plain.stop().await;
    moved.stop().await;
}
