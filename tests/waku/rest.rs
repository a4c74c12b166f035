//! The REST door, with the requests of programs for nwaku.

use std::sync::atomic::{AtomicUsize, Ordering};

use hark_testkit::clock::now_ns;
use hark_testkit::http::HttpRequest;
use hark_testkit::http::get;
use hark_testkit::wait::until;
use serde_json::{Value, json};

use super::{Node, message, text};
use crate::served::hark;

#[test]
fn what_is_published_is_durable_polled_once_and_asked_for() {
    let mut node = Node::start("rest", &[]);
    let now = now_ns();
    let first = message("toychat", "aGVsbG8=", now);
    node.publish(&first);
    // A message that is published twice counts once.
    node.publish(&first);
    let mut second = message("toychat", "AP8=", now + 1);
    second["meta"] = json!("bQ==");
    let at = "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F1%2F2";
    assert_eq!(node.ask("POST", at, &second.to_string()).0, 200);
    let mut passing = message("toychat", "AA==", now + 2);
    passing["ephemeral"] = json!(true);
    passing["proof"] = json!("cHJvb2Y=");
    node.publish(&passing);

    // The node subscribes to its shards from the start. A message that was polled once is not
    // returned again.
    let shard = hark_codec::waku::Shard::of("/toychat/1/chat/proto", 1, 8).expect("a topic");
    let shard = format!("/relay/v1/messages/%2Fwaku%2F2%2Frs%2F1%2F{}", shard.index);
    let polled = node.get(&shard);
    let payloads: Vec<_> =
        polled.as_array().expect("a list").iter().map(|m| &m["payload"]).collect();
    assert_eq!(payloads, ["aGVsbG8=", "AA=="]);
    assert_eq!((&polled[0]["proof"], &polled[1]["proof"]), (&json!(""), &json!("cHJvb2Y=")));
    assert_eq!(node.get(&shard), json!([]));
    let content = "/relay/v1/auto/messages/%2Ftoychat%2F1%2Fchat%2Fproto";
    assert_eq!(node.ask("GET", content, "").0, 404);
    let subscriptions = "/relay/v1/auto/subscriptions";
    let topics = "[\"/toychat/1/chat/proto\"]";
    assert_eq!(node.ask("POST", subscriptions, topics), (200, "OK".into()));
    // A payload without padding, which nwaku accepts too, and a proof, which must be returned
    // unchanged.
    let mut proven = message("toychat", "AQ", now + 3);
    proven["proof"] = json!("AAEC");
    node.publish(&proven);
    let polled = node.get(content);
    assert_eq!((&polled[0]["payload"], &polled[0]["proof"]), (&json!("AQ=="), &json!("AAEC")));
    assert_eq!(node.ask("DELETE", subscriptions, topics), (200, "OK".into()));
    assert_eq!(node.ask("GET", content, "").0, 404);

    // Acknowledged messages are stored after kill -9. Ephemeral messages were never stored.
    let before = node.hashes("");
    assert_eq!(before.len(), 3);
    node.kill();
    let node = Node::on(node.data.clone(), &[]);
    assert_eq!(node.hashes(""), before);
    let page = node.get("/store/v3/messages?includeData=true&pubsubTopic=/waku/2/rs/1/2");
    assert_eq!(page["messages"][0]["message"]["meta"], "bQ==");
    assert_eq!(page["messages"].as_array().map(Vec::len), Some(1));
}

#[test]
fn what_is_no_message_is_refused_and_says_why() {
    let node = Node::start("refused", &[]);
    let now = now_ns();
    let with = |key: &str, value: Value| {
        let mut message = message("toychat", "AA==", now);
        message[key] = value;
        message.to_string()
    };
    for (body, status, said) in [
        ("{".to_owned(), 400, "not a message"),
        (json!(["AA==", "/a/1/b/c", 0, now, null, null, null]).to_string(), 400, "not a message"),
        (with("payload", json!("?")), 400, "not base64"),
        (with("payload", Value::Null), 400, "not a message"),
        (with("contentTopic", json!("toychat")), 400, "content topic"),
        (with("timestamp", json!(now - 21_000_000_000)), 400, "in the past"),
        (with("timestamp", json!(now + 40_000_000_000)), 400, "in the future"),
        (with("meta", json!("A".repeat(88))), 400, "meta has 66 bytes"),
        (with("payload", json!("AAAA".repeat(52_000))), 400, "more than"),
        (with("payload", json!("AAAA".repeat(100_000))), 413, ""),
    ] {
        let (answered, words) = node.ask("POST", "/relay/v1/auto/messages", &body);
        let shown = &body[..body.len().min(200)];
        assert!(answered == status && words.contains(said), "{shown}: {answered} {words}");
    }
    let strange = "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F1%2F8";
    let (status, words) = node.ask("POST", strange, &with("version", json!(0)));
    assert_eq!((status, words.contains("Node not subscribed")), (400, true), "{words}");
    assert_eq!(node.ask("GET", "/nothing", "").0, 404);
    assert_eq!(node.ask("DELETE", "/store/v3/messages", "").0, 405);
    assert_eq!(node.get("/store/v3/messages")["messages"], json!([]));

    let (status, page) = get(&node.relay, "/metrics").parts();
    assert_eq!(status, 200);
    for line in [
        "waku_archive_messages{type=\"stored\"} 0",
        "waku_archive_errors_total{type=\"invalid_message_too_old\"} 1",
        "waku_archive_errors_total{type=\"invalid_message_future_timestamp\"} 1",
        "waku_store_queries_total 1",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in {page}");
    }
}

#[test]
fn every_message_that_got_its_200_is_there_after_kill_9() {
    let mut node = Node::start("kill", &[]);
    let start = now_ns();
    let (rest, answered) = (node.rest.clone(), AtomicUsize::new(0));
    let publish = |thread: u64| {
        let mut kept = Vec::new();
        for at in 0.. {
            let timestamp = start + at * 4 + thread;
            let body = message("kill", "AAAA", timestamp).to_string();
            let request = HttpRequest::new("POST", "/relay/v1/auto/messages").json(&body);
            match request.try_send(&rest) {
                Ok(reply) if reply.status == 200 => {
                    kept.push(timestamp);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                // The server is gone.
                _ => break,
            }
        }
        kept
    };
    let kept: Vec<u64> = std::thread::scope(|scope| {
        let publish = &publish;
        let publishers = [0, 1, 2, 3].map(|thread| scope.spawn(move || publish(thread)));
        until("many get their 200", || answered.load(Ordering::Relaxed) > 100);
        node.kill();
        publishers.into_iter().flat_map(|thread| thread.join().expect("ends")).collect()
    });
    assert!(kept.len() > 100, "{} got their 200", kept.len());
    let node = Node::on(node.data.clone(), &[]);
    let topic = "/kill/1/chat/proto";
    let shard = hark_codec::waku::Shard::of(topic, 1, 8).expect("a topic").to_string();
    let there: std::collections::HashSet<String> = node.hashes("").into_iter().collect();
    for timestamp in &kept {
        let message = hark_codec::waku::Message {
            payload: &[0; 3],
            content_topic: topic,
            timestamp: i64::try_from(*timestamp).ok(),
            ..hark_codec::waku::Message::default()
        };
        let hash = hark_codec::hex::encode_32(&message.hash(&shard));
        let hash = format!("0x{}", String::from_utf8_lossy(&hash));
        assert!(there.contains(&hash), "{timestamp} of {} is lost", kept.len());
    }
    println!("{} messages got their 200, none is lost", kept.len());
}

#[test]
fn a_client_that_asks_too_fast_is_refused() {
    let node = Node::start("rate", &[("queries", "[6, 2]")]);
    let status = || node.ask("GET", "/store/v3/messages", "").0;
    assert_eq!([status(), status(), status()], [200, 200, 429]);
    // Queries that a node forwards to another node count at the other node, by address. The client
    // gets the refusal of the other node.
    let asked = Node::start("rate-asked", &[("queries", "[6, 2]")]);
    let other = Node::start("rate-other", &[("rest_any_peer", "true")]);
    let path = format!("/store/v3/messages?peerAddr={}", asked.peers[0]);
    let asked = [0; 3].map(|_| other.ask("GET", &path, ""));
    assert_eq!(asked.each_ref().map(|(status, _)| *status), [200, 200, 429]);
}

#[test]
fn the_rate_is_checked_before_the_address_of_a_peer_is_read() {
    let node = Node::start("rate-peer", &[("queries", "[6, 2]")]);
    let status = || node.ask("GET", "/store/v3/messages?peerAddr=nonsense", "").0;
    assert_eq!([status(), status(), status()], [400, 400, 429]);
    // Requests to the node's own store count towards the same rate.
    assert_eq!(node.ask("GET", "/store/v3/messages", "").0, 429);
}

#[test]
fn an_export_is_imported_and_exported_alike() {
    let mut node = Node::start("export", &[]);
    let now = now_ns();
    for at in 0..30 {
        node.publish(&message("export", "c29tZXRoaW5n", now + at));
    }
    node.stop();
    let export = |data: &std::path::Path| {
        let output = hark(data).args(["export", "--network", "waku"]).output().expect("runs");
        String::from_utf8(output.stdout).expect("text")
    };
    let lines = export(&node.data);
    assert_eq!(lines.lines().count(), 30);
    let other = super::folder("import");
    super::import(&other, &lines);
    assert_eq!(export(&other), lines);
    // A wrong hash of a message is reported.
    let file = other.join("bad.jsonl");
    let bad = lines.lines().next().expect("a line").replace("c29tZXRoaW5n", "AAAA");
    std::fs::write(&file, bad).expect("is written");
    let output = hark(&other).args(["import", "--json", "--network", "waku"]).arg(&file).output();
    let said = String::from_utf8(output.expect("runs").stdout).expect("text");
    assert!(said.contains("\"bad_id\":1"), "{said}");
    let check = hark(&other).args(["check", "--network", "waku"]).output().expect("runs");
    assert!(check.status.success());
}

/// Every answer conforms to the OpenAPI document.
#[test]
fn answers_are_as_the_openapi_document_has_them() {
    let settings = [("rest_admin", "true"), ("rest_any_peer", "true")];
    let node = Node::start("openapi", &settings);
    let document = node.get("/openapi.json");
    node.publish(&message("toychat", "AA==", now_ns()));
    let shard = hark_codec::waku::Shard::of("/toychat/1/chat/proto", 1, 8).expect("a topic");
    let shard = format!("/relay/v1/messages/%2Fwaku%2F2%2Frs%2F1%2F{}", shard.index);
    let own = node.peers[0].rsplit('/').next().expect("an id");
    // No peer listens at this address.
    let away = format!("/store/v3/messages?peerAddr=/ip4/127.0.0.1/tcp/1/p2p/{own}");
    let other = Node::start("openapi-peer", &[("peers", &node.peers[0])]);
    until("the other is connected", || node.get("/admin/v1/peers") != json!([]));
    let mut seen = 0;
    for (method, path, template) in [
        ("GET", "/store/v3/messages?includeData=true&pageSize=1", "/store/v3/messages"),
        ("GET", "/store/v3/messages", "/store/v3/messages"),
        ("GET", "/store/v3/messages?pageSize=x", "/store/v3/messages"),
        ("GET", "/store/v3/messages?peerAddr=/ip4/127.0.0.1/tcp/1", "/store/v3/messages"),
        ("GET", &*away, "/store/v3/messages"),
        ("GET", &*shard, "/relay/v1/messages/{pubsubTopic}"),
        ("GET", "/relay/v1/messages/none", "/relay/v1/messages/{pubsubTopic}"),
        ("POST", "/relay/v1/auto/messages", "/relay/v1/auto/messages"),
        ("GET", "/relay/v1/auto/messages/x", "/relay/v1/auto/messages/{contentTopic}"),
        ("POST", "/relay/v1/subscriptions", "/relay/v1/subscriptions"),
        ("DELETE", "/relay/v1/auto/subscriptions", "/relay/v1/auto/subscriptions"),
        ("GET", "/health", "/health"),
        ("GET", "/info", "/info"),
        ("GET", "/debug/v1/info", "/debug/v1/info"),
        ("GET", "/version", "/version"),
        ("GET", "/openapi.json", "/openapi.json"),
        ("GET", "/admin/v1/peers", "/admin/v1/peers"),
        ("POST", "/admin/v1/peers", "/admin/v1/peers"),
        ("GET", "/admin/v1/peers/service", "/admin/v1/peers/service"),
        ("GET", "/admin/v1/peers/connected", "/admin/v1/peers/connected"),
        ("GET", "/admin/v1/peers/connected/on/0", "/admin/v1/peers/connected/on/{shardId}"),
        ("GET", "/admin/v1/peers/relay", "/admin/v1/peers/relay"),
        ("GET", "/admin/v1/peers/relay/on/0", "/admin/v1/peers/relay/on/{shardId}"),
        ("GET", "/admin/v1/peers/relay/on/x", "/admin/v1/peers/relay/on/{shardId}"),
        ("GET", "/admin/v1/peers/mesh", "/admin/v1/peers/mesh"),
        ("GET", "/admin/v1/peers/mesh/on/0", "/admin/v1/peers/mesh/on/{shardId}"),
        ("GET", "/admin/v1/peers/stats", "/admin/v1/peers/stats"),
        ("GET", "/admin/v1/peer/x", "/admin/v1/peer/{peerId}"),
        ("GET", "/admin/v1/filter/subscriptions", "/admin/v1/filter/subscriptions"),
        ("POST", "/filter/v2/subscriptions", "/filter/v2/subscriptions"),
        ("PUT", "/filter/v2/subscriptions", "/filter/v2/subscriptions"),
        ("DELETE", "/filter/v2/subscriptions", "/filter/v2/subscriptions"),
        ("DELETE", "/filter/v2/subscriptions/all", "/filter/v2/subscriptions/all"),
        ("GET", "/filter/v2/subscriptions/1", "/filter/v2/subscriptions/{requestId}"),
        ("GET", "/filter/v2/messages/x", "/filter/v2/messages/{contentTopic}"),
        ("POST", "/lightpush/v3/message", "/lightpush/v3/message"),
        ("POST", "/lightpush/v1/message", "/lightpush/v1/message"),
    ] {
        let (status, body) = node.ask(method, path, "[]");
        let operation = &document["paths"][template][method.to_lowercase()];
        let answer = &operation["responses"][status.to_string()];
        assert!(answer["description"].is_string(), "{method} {path}: {status} is not described");
        let schema = &answer["content"]["application/json"]["schema"];
        if schema.is_object() {
            let value = serde_json::from_str(&body).expect("JSON");
            fits(&document, schema, &value, path);
            seen += 1;
        }
    }
    assert!(seen >= 15);
    drop(other);
    assert_eq!(text(&node.get("/info")["listenAddresses"][0]), node.peers[0]);
}

/// Checks a value against the part of JSON Schema that the document uses.
fn fits(document: &Value, schema: &Value, value: &Value, place: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let schema = document.pointer(name.trim_start_matches('#')).expect("a schema");
        return fits(document, schema, value, place);
    }
    let right = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        other => panic!("{place}: a type {other:?}"),
    };
    assert!(right, "{place}: {value} is not {schema}");
    if let Some(of) = schema["enum"].as_array() {
        assert!(of.contains(value), "{place}: {value} is none of {of:?}");
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        assert!(value.get(text(name)).is_some(), "{place}: {name} is missing");
    }
    for (name, value) in value.as_object().into_iter().flatten() {
        if schema["properties"].is_object() {
            let of = &schema["properties"][name];
            assert!(of.is_object(), "{place}: {name} is not described");
            fits(document, of, value, &format!("{place}.{name}"));
        }
    }
    for (at, value) in value.as_array().into_iter().flatten().enumerate() {
        fits(document, &schema["items"], value, &format!("{place}[{at}]"));
    }
}
