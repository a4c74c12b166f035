//! Answers that lack a message because the message is damaged on the disk.

use hark_codec::waku::Shard;
use hark_testkit::clock::now_ns;
use hark_testkit::http::get;
use hark_testkit::wait::until;
use serde_json::json;

use super::{Node, folder, import, message};
use crate::served;

/// A setting that makes an archive of thirty messages have segments.
const SEALED: (&str, &str) = ("HARK_ARCHIVE_SEAL_RECORDS", "10");

#[test]
fn a_page_that_lacks_a_damaged_message_has_the_others_and_says_so() {
    let (data, start) = (folder("damage"), now_ns());
    let shard = Shard::of("/damaged/1/chat/proto", 1, 8).expect("a topic");
    let lines = (0..30).map(|at| {
        // One message has a unique payload, "the lost one".
        let payload = if at == 10 { "dGhlIGxvc3Qgb25l" } else { "AAAA" };
        let message = message("damaged", payload, start + at);
        let topic = format!("/waku/2/rs/1/{}", shard.index);
        json!({ "message": message, "pubsubTopic": topic }).to_string() + "\n"
    });
    import(&data, &lines.collect::<String>());
    let node = Node::on(data.clone(), &[SEALED]);
    node.publish(&message("other", "AAAA", start));
    until("all but that are sealed", || {
        let page = get(&node.relay, "/metrics").ok();
        page.lines().any(|line| line == "hark_store_head_records{shelf=\"waku\"} 1")
    });
    let mut node = node;
    node.stop();
    // The test does not damage the last batch, since damage there looks like a crash.
    served::damage(&data.join("waku"), b"the lost one");
    let node = Node::on(data, &[SEALED]);
    let count = |page: &serde_json::Value| page["messages"].as_array().map(Vec::len);
    let page = node.get("/store/v3/messages?pageSize=5");
    assert_eq!((&page["statusDesc"], count(&page)), (&json!("OK"), Some(5)), "it is not reached");
    let page = node.get("/store/v3/messages?pageSize=100");
    assert_eq!((&page["statusCode"], count(&page)), (&json!(200), Some(30)), "{page}");
    let said = page["statusDesc"].as_str().unwrap_or_default();
    assert_eq!(said, "OK, but a message that may belong here is damaged and left out");
    // A node that queries this node for a client forwards the warning.
    let other = Node::start("damage-other", &[("rest_any_peer", "true")]);
    let asked = format!("/store/v3/messages?pageSize=100&peerAddr={}", node.peers[0]);
    let passed = other.get(&asked);
    assert_eq!((&passed["statusDesc"], count(&passed)), (&json!(said), Some(30)), "{passed}");
    let metrics = get(&node.relay, "/metrics").ok();
    for line in
        ["waku_store_damaged_answers_total 2", "hark_store_damaged_records{shelf=\"waku\"} 1"]
    {
        assert!(metrics.lines().any(|known| known == line), "{line}: {metrics}");
    }
    let (status, health) = get(&node.relay, "/healthz").parts();
    assert!(status == 503 && health.contains("damaged messages: 1"), "{status} {health}");
    let log = std::fs::read_to_string(node.data.join("log")).expect("is there");
    assert!(log.contains("a record of the archive is damaged"), "{log}");
}
