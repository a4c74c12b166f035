//! The REST endpoints of filter and light push, with the requests of programs for nwaku.

use hark_codec::waku::Shard;
use hark_testkit::clock::now_ns;
use hark_testkit::http::get;
use serde_json::{Value, json};

use super::{Node, folder, message};

const SUBSCRIPTIONS: &str = "/filter/v2/subscriptions";
const MESSAGES: &str = "/filter/v2/messages/%2Ftoychat%2F1%2Fchat%2Fproto";

/// Sends a request with a JSON body, and returns the status and the JSON of the answer.
fn ask(node: &Node, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let (status, text) = node.ask(method, path, &body.to_string());
    (status, serde_json::from_str(&text).unwrap_or_else(|_| json!(text)))
}

#[test]
fn rest_subscribes_and_polls_as_in_nwaku() {
    let node = Node::start("rest-filter", &[]);
    let shard = Shard::of("/toychat/1/chat/proto", 1, 8).expect("a topic");
    let said = |id: &str, words: &str| json!({"requestId": id, "statusDesc": words});
    let none = "peer has no subscriptions";
    assert_eq!(ask(&node, "GET", "/filter/v2/subscriptions/7", &json!("")), (404, said("7", none)));
    let (status, text) = node.ask("GET", MESSAGES, "");
    assert_eq!((status, &*text), (400, "Not subscribed to topic: /toychat/1/chat/proto"));
    // Without a pubsub topic, the topic of the shard is used.
    let mut body = json!({"requestId": "1", "contentFilters": ["/toychat/1/chat/proto"]});
    assert_eq!(ask(&node, "POST", SUBSCRIPTIONS, &body), (200, said("1", "OK")));
    body["pubsubTopic"] = json!(shard.to_string());
    assert_eq!(ask(&node, "PUT", SUBSCRIPTIONS, &body), (200, said("1", "OK")));
    assert_eq!(ask(&node, "GET", "/filter/v2/subscriptions/8", &json!("")), (200, said("8", "OK")));
    let mut sent = message("toychat", "aGVsbG8=", now_ns());
    (sent["meta"], sent["ephemeral"], sent["proof"]) = (json!("bQ=="), json!(true), json!("AA=="));
    node.publish(&sent);
    node.publish(&message("another", "AA==", now_ns()));
    let mut expected = sent.clone();
    expected["version"] = json!(0);
    expected.as_object_mut().expect("an object").remove("proof");
    assert_eq!(node.get(MESSAGES), json!([expected]));
    assert_eq!(node.get(MESSAGES), json!([]));
    // Topics that the node cannot subscribe to, and bodies that are no request.
    let many: Vec<String> = (0..101).map(|n| format!("/a/1/{n}/proto")).collect();
    for (method, wrong) in [
        ("POST", json!({"requestId": "2", "contentFilters": []})),
        ("POST", json!({"requestId": "2", "contentFilters": ["nonsense"]})),
        ("PUT", json!({"requestId": "2", "contentFilters": many})),
        (
            "POST",
            json!({"requestId": "2", "pubsubTopic": "/waku/2/rs/1/99", "contentFilters": ["/a"]}),
        ),
        ("DELETE", json!({"contentFilters": ["/toychat/1/chat/proto"]})),
        ("POST", json!([])),
    ] {
        let (status, answer) = ask(&node, method, SUBSCRIPTIONS, &wrong);
        let id = answer["requestId"].as_str().expect("an id");
        assert!(status == 400 && ["2", "unknown"].contains(&id), "{wrong}: {answer}");
    }
    assert_eq!(ask(&node, "DELETE", SUBSCRIPTIONS, &body), (200, said("1", "OK")));
    assert_eq!(ask(&node, "DELETE", SUBSCRIPTIONS, &body), (404, said("1", none)));
    // At most 128 topics are allowed.
    let filters = |n: usize| json!({"requestId": "3", "contentFilters": &many[n..n + 64]});
    let others: Vec<String> = (0..65).map(|n| format!("/b/1/{n}/proto")).collect();
    assert_eq!(ask(&node, "POST", SUBSCRIPTIONS, &filters(0)).0, 200);
    let over = json!({"requestId": "4", "contentFilters": &others});
    assert_eq!(ask(&node, "POST", SUBSCRIPTIONS, &over).0, 503);
    let all = format!("{SUBSCRIPTIONS}/all");
    assert_eq!(ask(&node, "DELETE", &all, &json!({"requestId": "5"})), (200, said("5", "OK")));
    assert_eq!(ask(&node, "DELETE", &all, &json!({"requestId": "5"})), (404, said("5", none)));
}

#[test]
fn rest_publishes_by_light_push_as_in_nwaku() {
    let mut node = Node::start("rest-push", &[("light_pushes", "[1, 8]")]);
    let path = "/lightpush/v3/message";
    let good = message("toychat", "aGVsbG8=", now_ns());
    let push = |node: &Node, message: &Value, topic: &Value| {
        ask(node, "POST", path, &json!({"pubsubTopic": topic, "message": message}))
    };
    assert_eq!(push(&node, &good, &json!("")), (200, json!({"relayPeerCount": 1})));
    assert_eq!(push(&node, &good, &Value::Null), (200, json!({"relayPeerCount": 1})));
    for (message, topic, status) in [
        (&json!({"payload": "", "contentTopic": "/a/1/b/proto"}), json!("/waku/2/rs/1/0"), 420),
        (&json!({"payload": "AA==", "contentTopic": "nonsense"}), json!(""), 420),
        (&good, json!("/waku/2/rs/1/99"), 421),
        (&json!({"payload": "?"}), json!("/waku/2/rs/1/0"), 400),
    ] {
        let (code, answer) = push(&node, message, &topic);
        assert!(code == status && answer["statusDesc"].is_string(), "{topic}: {code} {answer}");
    }
    let legacy = "/lightpush/v1/message";
    let own = Shard::of("/toychat/1/chat/proto", 1, 8).expect("a topic").index;
    let another = Shard { cluster: 1, index: (own + 1) % 8 }.to_string();
    let body = json!({"pubsubTopic": another, "message": good});
    assert_eq!(ask(&node, "POST", legacy, &body), (200, json!("OK")));
    let (status, answer) =
        ask(&node, "POST", legacy, &json!({"pubsubTopic": "/waku/2/rs/1/99", "message": good}));
    assert!(status == 503 && answer.as_str().is_some_and(|it| it.contains("Failed to request")));
    // 8 messages at once are allowed.
    let (status, answer) = push(&node, &good, &Value::Null);
    assert_eq!((status, answer["statusDesc"].is_string()), (429, true));
    assert_eq!(ask(&node, "POST", legacy, &body).0, 429);
    // Acknowledged messages are stored after kill -9.
    let before = node.hashes("");
    assert_eq!(before.len(), 2);
    node.kill();
    let node = Node::on(node.data.clone(), &[]);
    assert_eq!(node.hashes(""), before);
    drop(node);
    // A node that forwards nothing refuses light pushes.
    let node = Node::on(folder("rest-push-listener"), &[("forward", "never")]);
    let (status, answer) = push(&node, &message("toychat", "AA==", now_ns()), &Value::Null);
    assert!(status == 503 && answer["statusDesc"].to_string().contains("passes none on"));
    let health = node.get("/health").to_string();
    assert!(health.contains(r#"{"Lightpush":"NOT_MOUNTED"}"#), "{health}");
    assert!(health.contains(r#"{"Filter":"READY"}"#), "{health}");
    assert!(get(&node.relay, "/metrics").ok().contains("waku_filter_subscriptions 0\n"));
}
