//! Real clients: js-waku, the library of Waku's web applications, and go-waku, the library of Status.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use hark_codec::waku::{Message, Shard};
use hark_testkit::clock::now_ns;
use hark_testkit::http::get;
use hark_testkit::runs::is_long;
use hark_testkit::skipped::skip;
use serde_json::{Value, json};

use super::{Node, folder, import};
use crate::go_program::go_program;

/// 1,000 messages of seven applications over an hour, some at the same time.
fn messages() -> Vec<(Value, Value)> {
    let start = now_ns() - 3_700_000_000_000;
    let mut all: Vec<_> = (0..1_000_u64)
        .map(|at| {
            let content_topic = format!("/app{}/1/chat/proto", at % 7);
            let timestamp = start + at / 3 * 10_000_000_000;
            let payload = format!("message {at}").into_bytes();
            let topic = Shard::of(&content_topic, 1, 8).expect("a topic").to_string();
            let message = Message {
                payload: &payload,
                content_topic: &content_topic,
                timestamp: i64::try_from(timestamp).ok(),
                ..Message::default()
            };
            (timestamp, message.hash(&topic), payload.clone(), content_topic.clone(), topic)
        })
        .collect();
    all.sort();
    let hex = |bytes: &[u8]| {
        bytes.iter().fold(String::new(), |mut out, byte| {
            let _ = write!(out, "{byte:02x}");
            out
        })
    };
    all.into_iter()
        .map(|(timestamp, hash, payload, content_topic, topic)| {
            let kept = json!({
                "pubsubTopic": topic,
                "message": {
                    "payload": base64_simd::STANDARD.encode_to_string(&payload), "contentTopic": content_topic,
                    "timestamp": timestamp,
                },
            });
            let expected = json!({
                "hash": hex(&hash), "contentTopic": content_topic, "pubsubTopic": topic,
                "timestamp": timestamp.to_string(), "payloadHex": hex(&payload),
            });
            (kept, expected)
        })
        .collect()
}

#[test]
fn js_waku_pages_through_a_thousand_messages_each_once_and_in_order() {
    let data = folder("js-waku");
    let (kept, expected): (Vec<_>, Vec<_>) = messages().into_iter().unzip();
    let lines: Vec<String> = kept.iter().map(Value::to_string).collect();
    import(&data, &lines.join("\n"));
    let file = data.join("expected.json");
    std::fs::write(&file, Value::from(expected).to_string()).expect("is written");
    let node = Node::on(data, &[]);

    let of = |ws: bool| {
        let found = node.peers.iter().find(|addr| addr.contains("/ws") == ws);
        found.expect("an address").clone()
    };
    let said = js_waku(
        "js-waku.mjs",
        &[&of(true), &of(false), "1", "8", file.to_str().expect("a path in UTF-8")],
    );
    assert_eq!((&said["ok"], &said["expected"]), (&json!(true), &json!(1_000)));
}

/// Runs a program of tests/js-waku, and returns its result.
fn js_waku(name: &str, args: &[&str]) -> Value {
    js_waku_trusting(name, args, None)
}

/// Runs a program of tests/js-waku that trusts the authority in a file as well.
pub(super) fn js_waku_trusting(name: &str, args: &[&str], authority: Option<&Path>) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/js-waku");
    assert!(
        folder.join("node_modules").is_dir(),
        "js-waku is not installed: run `npm ci` in {}, or scripts/test",
        folder.display()
    );
    let mut command = Command::new("node");
    command.arg(folder.join(name)).args(args);
    if let Some(authority) = authority {
        command.env("NODE_EXTRA_CA_CERTS", authority);
    }
    let output = command.output().expect("node runs");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{out}{}", String::from_utf8_lossy(&output.stderr));
    // js-waku writes notes to stdout, too.
    serde_json::from_str(out.lines().last().expect("a line")).expect("a line of JSON")
}

#[test]
fn js_waku_lives_on_this_node_alone() {
    let mut node = Node::start("js-waku-light", &[("cluster", "2"), ("light_pushes", "[0, 0]")]);
    let address = node.peers.iter().find(|addr| addr.contains("/ws")).expect("an address").clone();
    let said = js_waku("light-client.mjs", &[&address, "2", "8", "200"]);
    assert_eq!((&said["ok"], &said["health"]), (&json!(true), &json!("MinimallyHealthy")));
    println!("{said}");
    let metrics = get(&node.relay, "/metrics").ok();
    for line in [
        "waku_filter_pushes_total{result=\"dropped\"} 0",
        "waku_filter_pushes_total{result=\"unread\"} 0",
        "waku_filter_pushes_total{result=\"broken\"} 0",
        "waku_lightpush_v3_errors_total{type=\"413\"} 1",
    ] {
        assert!(metrics.contains(&format!("{line}\n")), "{line}: {metrics}");
    }
    node.stop();
}

#[test]
fn go_wakus_light_clients_live_on_this_node_alone() {
    if !is_long() {
        return skip("go-waku takes minutes to build: scripts/test --long runs it");
    }
    let Some(folder) = go_program("go-waku") else {
        return skip("the light clients of tests/go-waku could not be built, e.g. without Go");
    };
    let mut node = Node::start("go-waku-light", &[("light_pushes", "[0, 0]")]);
    for address in node.peers.clone() {
        let output = Command::new(folder.join("go-waku")).args([&*address, "1", "200"]).output();
        let output = output.expect("the program runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        let said: Value = serde_json::from_str(said.lines().last().expect("a line")).expect("JSON");
        assert_eq!(said, json!({ "ok": true, "received": 202, "pages": 5 }), "{address}");
    }
    let metrics = get(&node.relay, "/metrics").ok();
    for result in ["dropped", "unread", "broken"] {
        let line = format!("waku_filter_pushes_total{{result=\"{result}\"}} 0\n");
        assert!(metrics.contains(&line), "{metrics}");
    }
    node.stop();
}
