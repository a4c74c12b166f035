//! Health and metrics for operators' programs, and the log of slow questions.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::sync::Mutex;
use std::time::Duration;

use hark_testkit::nostr::{event, note};
use serde_json::{Value, json};

use crate::kit::{NOW_S, Relay, http, http_as};
use crate::wire;

/// The samples of a page, by name and labels. Fails on anything that Prometheus would refuse.
fn samples(page: &str) -> BTreeMap<String, f64> {
    let (mut samples, mut described) = (BTreeMap::new(), BTreeSet::new());
    let mut last_class: Option<(String, f64)> = None;
    for line in page.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            if let Some(rest) = comment.strip_prefix("TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(["gauge", "counter", "histogram"].contains(&kind), "{line}");
                assert!(described.insert(name.to_owned()), "twice: {line}");
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
        let name = series.split('{').next().unwrap();
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end).filter(|family| described.contains(*family)))
            .unwrap_or(name);
        assert!(described.contains(family), "no TYPE before {line}");
        assert!(samples.insert(series.to_owned(), value).is_none(), "twice: {line}");
        let class = series.split_once("le=\"").map(|(before, _)| before.to_owned());
        if let (Some(class), Some((last, count))) = (&class, &last_class) {
            assert!(class != last || value >= *count, "fewer than in the class before: {line}");
        }
        last_class = class.map(|class| (class, value));
    }
    samples
}

/// Everything that is logged in this process, once the subscriber is set.
static LOGGED: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOGGED.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The threshold is 0, so every question counts as slow.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_question_is_logged_with_its_filters_and_plan() {
    let log = tracing_subscriber::fmt().json().flatten_event(true).with_writer(|| Log).finish();
    tracing::subscriber::set_global_default(log).unwrap();
    let relay = Relay::start(|config| config.slow_question = Some(Duration::ZERO)).await;
    let mut client = relay.client().await;
    assert!(client.publish(&note(7, NOW_S, "slow")).await.0);
    let filters = [json!({"kinds": [7_777], "limit": 3}), json!({"#t": ["a \"slow\" one"]})];
    assert!(client.ask("s", &filters).await.is_empty());
    assert_eq!(client.count(&[json!({"kinds": [7_778]})]).await, 0);
    relay.stop().await;
    let lines = LOGGED.lock().unwrap().clone();
    let lines: Vec<Value> = lines
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .filter(|line: &Value| line["message"] == "a slow question")
        .collect();
    let find = |filters: &str| lines.iter().find(|line| line["filters"] == filters);
    let req = find(r##"{"kinds":[7777],"limit":3} {"#t":["a \"slow\" one"],"limit":500}"##);
    let req = req.unwrap_or_else(|| panic!("{lines:?}"));
    assert_eq!(
        (&req["verb"], &req["plan"], &req["level"]),
        (&json!("REQ"), &json!("time"), &json!("WARN"))
    );
    assert!(req["ms"].is_u64() && req["waited_ms"].is_u64() && req["rows"].is_u64(), "{req}");
    let count = find(r#"{"kinds":[7778]}"#).unwrap_or_else(|| panic!("{lines:?}"));
    assert_eq!((&count["verb"], &count["plan"]), (&json!("COUNT"), &json!("count")));
}

pub(crate) async fn scrape(relay: &Relay) -> BTreeMap<String, f64> {
    let (status, page) = http(&relay.url, "/metrics", "").await;
    assert_eq!(status, 200, "{page}");
    samples(&page)
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_say_what_was_done() {
    let relay = Relay::start(|_| {}).await;
    let (status, health) = http(&relay.url, "/healthz", "").await;
    assert!(status == 200 && health.starts_with("ok\n"), "{health}");
    let mut client = relay.client().await;
    assert!(client.publish(&note(1, NOW_S, "a")).await.0);
    assert!(client.publish(&note(1, NOW_S, "a")).await.0);
    assert!(client.publish(&event(1, NOW_S, 10_002, &[], "b")).await.0);
    assert!(client.publish(&event(1, NOW_S, 54_321, &[], "c")).await.0);
    assert!(!client.publish(&note(1, NOW_S * 2, "from the future")).await.0);
    assert_eq!(client.ask("s", &[json!({"kinds": [1]}), json!({"ids": []})]).await.len(), 1);
    let mut other = relay.client().await;
    assert!(other.publish(&note(2, NOW_S, "live")).await.0);
    client.receive().await;
    assert_eq!(client.count(&[json!({})]).await, 4);
    client.send_text("what?").await;
    client.receive().await;
    let found = scrape(&relay).await;
    for (series, value) in [
        ("hark_messages_total{verb=\"EVENT\",result=\"ok\"}", 4.0),
        ("hark_messages_total{verb=\"EVENT\",result=\"duplicate\"}", 1.0),
        ("hark_messages_total{verb=\"EVENT\",result=\"invalid\"}", 1.0),
        ("hark_messages_total{verb=\"REQ\",result=\"ok\"}", 1.0),
        ("hark_messages_total{verb=\"REQ\",result=\"blocked\"}", 0.0),
        ("hark_messages_total{verb=\"COUNT\",result=\"ok\"}", 1.0),
        ("hark_messages_total{verb=\"unknown\",result=\"invalid\"}", 1.0),
        ("hark_events_total{kind=\"1\"}", 2.0),
        ("hark_events_total{kind=\"10002\"}", 1.0),
        ("hark_events_total{kind=\"other regular\"}", 1.0),
        ("hark_verified_events_total", 4.0),
        ("hark_committed_writes_total", 4.0),
        ("hark_query_wait_seconds_count", 2.0),
        ("hark_query_seconds_count{plan=\"count\"}", 1.0),
        ("hark_query_records_total", 1.0),
        ("hark_live_records_total", 1.0),
        ("hark_subscriptions", 1.0),
        ("hark_store_records", 4.0),
        ("hark_store_writing", 1.0),
        // Two WebSockets, and this request.
        ("hark_connections", 3.0),
        ("hark_outbox_bytes", 0.0),
    ] {
        assert_eq!(found.get(series), Some(&value), "{series}");
    }
    assert!(found["process_resident_memory_bytes"] > 1e6 && found["process_open_fds"] > 2.0);
    relay.stop().await;
}

/// A stranger must not read the metrics, least of all through a proxy on the same machine.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_for_those_who_may_read_them() {
    let relay = Relay::start(|_| {}).await;
    for header in ["X-Forwarded-For: 192.0.2.1", "Forwarded: for=192.0.2.1", "X-Real-IP: 1.2.3.4"] {
        let (status, text) = http(&relay.url, "/metrics", header).await;
        assert!(status == 403 && text.contains("not through a proxy"), "{header}: {text}");
        assert_eq!(http(&relay.url, "/healthz", header).await.0, 200);
    }
    relay.stop().await;
    let relay = Relay::start(|config| {
        config.metrics.allow = vec!["192.0.2.0/24".parse().unwrap()];
    })
    .await;
    let (status, text) = http(&relay.url, "/metrics", "").await;
    assert!(status == 403 && text.contains("server.metrics_allow"), "{text}");
    relay.stop().await;
}

/// A web page in a browser on this network can make its own host name resolve to this server (DNS
/// rebinding).
#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_not_read_under_the_name_of_a_stranger() {
    for (allow, strangers) in [("127.0.0.0/8", 403), ("0.0.0.0/0", 200)] {
        let relay = Relay::start(|config| {
            config.metrics.allow = vec![allow.parse().unwrap()];
            config.metrics.listen = Some("127.0.0.1:0".parse().unwrap());
            config.info(|info| info.url = Some("wss://relay.example/inbox".into()));
        })
        .await;
        for (host, expected) in [
            ("127.0.0.1:7777", 200),
            ("hark:7777", 200),
            ("Relay.example", 200),
            ("evil.example", strangers),
            ("relay.example.evil.example:7777", strangers),
        ] {
            let (status, page) = http_as(relay.metrics.unwrap(), host, "/metrics", "").await;
            assert_eq!(status, expected, "{host}: {page}");
        }
        relay.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_can_have_an_address_of_their_own() {
    let own = "127.0.0.1:0".parse().unwrap();
    let relay = Relay::start(|config| config.metrics.listen = Some(own)).await;
    assert_eq!(http(&relay.url, "/metrics", "").await.0, 404);
    assert_eq!(http(&relay.url, "/healthz", "").await.0, 200);
    let own = format!("ws://{}", relay.metrics.unwrap());
    let (status, health) = http(&own, "/healthz", "").await;
    assert!(status == 200 && health.starts_with("ok\n"), "{health}");
    let (status, page) = http(&own, "/metrics", "").await;
    assert!(status == 200 && samples(&page)["hark_store_writing"] > 0.0, "{page}");
    assert_eq!(http(&own, "/", "").await.0, 404);
    relay.stop().await;
}

/// An address list that admits nobody is reported where the operator looks: at the separate address
/// of the metrics.
#[tokio::test(flavor = "multi_thread")]
async fn health_tells_that_no_address_is_served() {
    for (allow, is_told) in
        [(None, false), (Some(vec![]), true), (Some(vec!["192.0.2.1/32".parse().unwrap()]), false)]
    {
        let relay = Relay::start(|config| {
            config.addresses.allow = allow;
            config.metrics.listen = Some("127.0.0.1:0".parse().unwrap());
        })
        .await;
        let at = format!("ws://{}", relay.metrics.unwrap());
        let (status, health) = http(&at, "/healthz", "").await;
        assert!(status == 200 && health.starts_with("ok\n"), "{health}");
        let said = "[policy] allow_addresses has no entry, so no client is served";
        assert_eq!(health.contains(said), is_told, "{health}");
        relay.stop().await;
    }
}

/// A program on this machine learns the health of a server that refuses all clients from this
/// machine.
#[tokio::test(flavor = "multi_thread")]
async fn health_answers_while_the_relay_is_full_and_where_loopback_is_not_allowed() {
    for (is_full, status, reason) in
        [(true, 503, "rate-limited: the server has"), (false, 403, "blocked: this server")]
    {
        let relay = Relay::start(|config| {
            config.proxies.trusted.clear();
            if is_full {
                config.limits.connections_max = 1;
            } else {
                config.addresses.allow = Some(vec!["192.0.2.0/24".parse().unwrap()]);
            }
        })
        .await;
        let client = if is_full { Some(relay.client().await) } else { None };
        let (health_status, health) = http(&relay.url, "/healthz", "").await;
        assert!(health_status == 200 && health.starts_with("ok\n"), "{health}");
        let (answered, answer) = http(&relay.url, "/", "").await;
        assert!(answered == status && answer.starts_with(reason), "{answered}: {answer}");
        let (answer, _) = wire::upgrade(&relay, "").await;
        assert_eq!(wire::status(&answer), status, "{answer}");
        let refused = if is_full { "full" } else { "denied" };
        let found = scrape(&relay).await;
        let series = format!("hark_connections_refused_total{{reason=\"{refused}\"}}");
        assert_eq!(found.get(&series), Some(&2.0), "{series}");
        drop(client);
        relay.stop().await;
    }
}

/// Programs on this machine share the bound of the loopback address.
#[tokio::test(flavor = "multi_thread")]
async fn health_and_metrics_answer_while_loopback_has_all_its_connections() {
    let relay = Relay::start(|config| {
        config.proxies.trusted.clear();
        config.limits.connections_per_address_max = 2;
    })
    .await;
    let (_one, _two) = (relay.client().await, relay.client().await);
    let (answer, _) = wire::upgrade(&relay, "").await;
    assert_eq!(wire::status(&answer), 429, "{answer}");
    let (status, health) = http(&relay.url, "/healthz", "").await;
    assert!(status == 200 && health.starts_with("ok\n"), "{health}");
    let found = scrape(&relay).await;
    for (series, value) in
        [("hark_websockets", 2.0), ("hark_connections_refused_total{reason=\"address\"}", 1.0)]
    {
        assert_eq!(found.get(series), Some(&value), "{series}");
    }
    relay.stop().await;
}
