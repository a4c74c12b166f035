//! Messages that other nodes refuse are not accepted, not returned and not forwarded.

use hark_archive::effects::KeepAll;
use hark_archive::{Store as _, Write};
use hark_codec::waku::{Message, MessageEncoder, Shard, signed};
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
use hark_testkit::clock::now_ns;
use hark_testkit::http::get;
use hark_testkit::wait::until;
use serde_json::{Value, json};

use super::{Node, folder, message};
use crate::served::hark;

const TOPIC: &str = "/waku/2/rs/1/0";

/// Returns a message without a payload. Archives may have such messages from versions that did not
/// require payloads.
fn void(timestamp: u64) -> Box<[u8]> {
    let message = Message {
        content_topic: "/void/1/chat/proto",
        timestamp: i64::try_from(timestamp).ok(),
        ..Message::default()
    };
    let mut record = Vec::new();
    MessageEncoder::default().encode(&message, TOPIC, &message.hash(TOPIC), &mut record);
    record.into()
}

/// A counter on the page for Prometheus.
fn counted(node: &Node, name: &str) -> u64 {
    let (_, page) = get(&node.relay, "/metrics").parts();
    let line = page.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|value| value.trim().parse().ok()).expect("a number")
}

#[test]
fn a_message_without_a_payload_is_refused_and_an_old_one_is_not_sent() {
    let data = folder("void");
    let now = now_ns();
    let shelf =
        EmbeddedStore::open(&data.join("waku"), Box::new(KeepAll), EmbeddedOptions::default());
    let old: Vec<Write> = (0..300).map(|at| Write::Put(void(now - 600_000_000_000 + at))).collect();
    shelf.expect("opens").commit(&old).expect("is kept");
    let settings = [("sync_every_s", "1"), ("sync_jitter_s", "0")];
    let node = Node::on(data, &settings);
    let mut empty = message("toychat", "", now);
    let (status, words) = node.ask("POST", "/relay/v1/auto/messages", &empty.to_string());
    assert_eq!((status, words.contains("payload")), (400, true), "{words}");
    empty["payload"] = Value::Null;
    assert_eq!(node.ask("POST", "/relay/v1/auto/messages", &empty.to_string()).0, 400);
    let mut long = message("toychat", "AA==", now);
    long["version"] = json!(1_u64 << 32);
    assert_eq!(node.ask("POST", "/relay/v1/auto/messages", &long.to_string()).0, 400);

    // Pages continue after omitted messages, in both directions and by both doors.
    for at in 0..25 {
        node.publish(&message("toychat", "AQ==", now + at));
    }
    let stores = [("stores", node.peers[0].as_str()), ("rest_any_peer", "true")];
    let stores = [&settings[..], &stores].concat();
    let other = Node::start("void-resume", &stores);
    until("all that may be sent is fetched", || other.hashes("").len() == 25);
    let fetched = "waku_messages_total{origin=\"store\",result=\"invalid_message\"}";
    assert_eq!(counted(&other, fetched), 0, "it was sent what it has to refuse");
    let peer = node.peers[1].replace('/', "%2F");
    for query in ["ascending=true", "ascending=false", &format!("peerAddr={peer}")] {
        let asked = if query.starts_with("peerAddr") { &other } else { &node };
        let (mut returned, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/store/v3/messages?includeData=true&pageSize=10&{query}{cursor}");
            let page = asked.get(&path);
            let messages = page["messages"].as_array().expect("a list");
            returned.extend(messages.iter().map(|one| one["message"]["payload"].clone()));
            match page["paginationCursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(returned, vec![json!("AQ=="); 25], "{query}");
    }
    // Comparisons omit messages without a payload, too. Otherwise each comparison, one a second here,
    // would send these messages again, because the other node refuses such messages.
    let compared = "waku_catch_ups_total{by=\"sync\",result=\"done\"}";
    until("both were compared", || counted(&other, compared) >= 2);
    let sent = "total_transfer_messages_exchanged_total{direction=\"sent\"}";
    assert!(counted(&node, sent) <= 25, "{} were sent", counted(&node, sent));

    // An export has all stored messages. An import of the export reports why such lines are
    // refused.
    let (mut node, other) = (node, folder("void-import"));
    node.stop();
    let output = hark(&node.data).args(["export", "--network", "waku"]).output().expect("runs");
    let file = other.join("all.jsonl");
    std::fs::write(&file, &output.stdout).expect("is written");
    let imported = hark(&other).args(["import", "--json", "--network", "waku"]).arg(&file).output();
    let said = String::from_utf8(imported.expect("runs").stdout).expect("text");
    let said: Value = serde_json::from_str(said.lines().last().expect("a line")).expect("JSON");
    assert_eq!(
        (&said["stored"], &said["refused"]["malformed"]),
        (&json!(25), &json!(300)),
        "{said}"
    );
}

#[test]
fn a_node_that_only_listens_keeps_what_it_receives_and_passes_nothing_on() {
    let speaking = Node::start("listener-speaking", &[]);
    // `auto` is the default on cluster 1.
    let listening = [("peers", speaking.peers[0].as_str()), ("forward", "auto")];
    let listening = Node::start("listener", &listening);
    let behind = Node::start(
        "listener-behind",
        &[("peers", &listening.peers[0]), ("rest_any_peer", "true")],
    );
    let path = "/relay/v1/auto/messages";
    let (status, words) =
        listening.ask("POST", path, &message("toychat", "AA==", now_ns()).to_string());
    assert_eq!((status, words.contains("`forward`")), (400, true), "{words}");
    until("a message gets through", || {
        speaking.publish(&proved("listener", "AA=="));
        !listening.hashes("").is_empty()
    });
    // `behind` is connected to `listening`, so `behind` would receive forwarded messages.
    let relayed = "waku_messages_total{origin=\"relay\",result=\"stored\"}";
    for count in 0..20 {
        let before = listening.hashes("").len();
        speaking.publish(&proved("listener", "AQ=="));
        until("it is kept", || listening.hashes("").len() > before);
        assert_eq!(counted(&behind, relayed), 0, "after {count}");
    }
    // `behind` gets the messages by a query.
    let asked = behind.get(&format!(
        "/store/v3/messages?pageSize=100&peerAddr={}",
        listening.peers[0].replace('/', "%2F")
    ));
    assert!(asked["messages"].as_array().expect("a list").len() > 20);
}

/// A message with an invalid rate-limit proof that has the right form and epoch.
fn proved(app: &str, payload: &str) -> Value {
    let now = now_ns();
    with_proof(message(app, payload, now), now / 600_000_000_000, now)
}

/// Adds a proof of this epoch to a message, with a nullifier made of a number.
fn with_proof(mut message: Value, epoch: u64, nullifier: u64) -> Value {
    let mut proof = Vec::new();
    for (field, len) in (1..).zip([128, 32, 32, 32, 32, 32]) {
        let mut value = vec![0; len];
        let number = match field {
            3 => epoch,
            6 => nullifier,
            _ => 1,
        };
        value[..8].copy_from_slice(&number.to_le_bytes());
        hark_codec::waku::protobuf::put_bytes(&mut proof, field, &value);
    }
    message["proof"] = base64_simd::STANDARD.encode_to_string(proof).into();
    message
}

#[test]
fn where_messages_need_proofs_those_without_are_not_kept() {
    let speaking = Node::start("proofs-speaking", &[]);
    let listening = [("peers", speaking.peers[0].as_str()), ("forward", "auto")];
    let listening = Node::start("proofs", &listening);
    until("a message gets through", || {
        speaking.publish(&proved("proofs", "AA=="));
        !listening.hashes("").is_empty()
    });
    let (now, shard) = (now_ns(), |payload| message("proofs", payload, now_ns()));
    // Some of the first messages may still be in transit, so only later messages are counted.
    let since = format!("startTime={now}");
    let epoch = now / 600_000_000_000;
    for _ in 0..100 {
        speaking.publish(&shard("AQ=="));
    }
    speaking.publish(&with_proof(shard("AQ=="), epoch - 1, 1));
    // One of two messages with the same nullifier is kept.
    for payload in ["Ag==", "Aw=="] {
        speaking.publish(&with_proof(message("proofs", payload, now), epoch, 7));
    }
    speaking.publish(&proved("proofs", "BA=="));
    until("the last ones are kept", || listening.hashes(&since).len() == 2);
    let refused = "waku_messages_total{origin=\"relay\",result=\"invalid_message\"}";
    until("the others are refused", || counted(&listening, refused) == 102);
    assert_eq!(listening.hashes(&since).len(), 2);
}

#[test]
fn on_a_protected_shard_only_signed_messages_are_taken() {
    const SECRET: [u8; 32] = [7; 32];
    let key = "02989c0b76cb563971fdc9bef31ec06c3560f3249d6ee9e5d83c57625596e05f6f";
    let shard: Shard = TOPIC.parse().expect("a shard");
    let protected = format!("{}:{key}", shard.index);
    let open = Node::start("protected-open", &[]);
    let settings = [("peers", open.peers[0].as_str()), ("protected_shards", &protected)];
    let node = Node::start("protected", &settings);
    let path = format!("/relay/v1/messages/{}", TOPIC.replace('/', "%2F"));
    let signed = |timestamp: u64, payload: &[u8]| {
        let plain = Message {
            payload,
            content_topic: "/signed/1/chat/proto",
            timestamp: i64::try_from(timestamp).ok(),
            ..Message::default()
        };
        let meta = signed::sign(SECRET, &plain, TOPIC).expect("a key");
        json!({
            "payload": base64_simd::STANDARD.encode_to_string(payload),
            "contentTopic": plain.content_topic, "timestamp": timestamp,
            "meta": base64_simd::STANDARD.encode_to_string(meta),
        })
    };
    let mut forged = signed(now_ns(), b"one");
    forged["payload"] = json!("AAAA");
    for body in [message("toychat", "AA==", now_ns()), forged.clone()] {
        let (status, words) = node.ask("POST", &path, &body.to_string());
        assert_eq!((status, words.contains("signed shard")), (400, true), "{words}");
    }
    assert_eq!(node.ask("POST", &path, &signed(now_ns(), b"two").to_string()).0, 200);
    // From gossip, only signed messages are stored.
    until("a signed message gets through", || {
        assert_eq!(open.ask("POST", &path, &forged.to_string()).0, 200);
        forged["timestamp"] = json!(now_ns());
        assert_eq!(open.ask("POST", &path, &signed(now_ns(), b"three").to_string()).0, 200);
        node.hashes("").len() > 1
    });
    let page = node.get("/store/v3/messages?includeData=true&pageSize=100");
    for one in page["messages"].as_array().expect("a list") {
        assert_ne!(one["message"]["payload"], "AAAA");
    }
    // Other shards are not affected.
    assert_eq!(
        node.ask(
            "POST",
            "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F1%2F1",
            &message("a", "AA==", now_ns()).to_string()
        )
        .0,
        200
    );
}
