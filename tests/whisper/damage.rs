//! Answers that lack an envelope because the envelope is damaged on the disk.

use hark_testkit::http::get;
use hark_testkit::wait::until;
use serde_json::json;

use super::{JSON, MailNode, RLP, envelope};
use crate::served;

#[test]
fn an_answer_that_lacks_a_damaged_envelope_has_the_others_and_says_so() {
    let sealed = [("HARK_ARCHIVE_SEAL_RECORDS", "10")];
    let mut node = MailNode::start("damage", &sealed);
    let some = (0..30_u8).map(|at| {
        let data = if at == 10 { b"damaged".to_vec() } else { vec![at; 50] };
        envelope([1, 2, 3, at % 2], 60 - u32::from(at), &data)
    });
    node.publish(&some.collect::<Vec<_>>());
    // The next write hands a full head to maintenance.
    for at in 0..10 {
        node.publish(&[envelope([5; 4], 0, &[200 + at])]);
    }
    until("full heads are sealed", || {
        let page = get(&node.relay, "/metrics").ok();
        page.lines().any(|line| line == "hark_store_heads_waiting{shelf=\"whisper\"} 0")
    });
    node.stop();
    // The test does not damage the last batch, since damage there looks like a crash.
    served::damage(&node.data.join("whisper"), b"damaged");
    let node = MailNode::on(node.data.clone(), &[], &sealed);
    let headers = [JSON, ("Accept", "application/json")];
    let query = |request: &str| {
        let answer = node.ask("POST /whisper/messages", &headers, request.as_bytes());
        let says = answer.head.contains("\r\nhark-damaged: true");
        let json = answer.json();
        (says, json["damaged"].clone(), json["envelopes"].as_array().map(Vec::len))
    };
    assert_eq!(query("{\"limit\":5}"), (false, json!(null), Some(5)), "it is not reached");
    assert_eq!(query("{}"), (true, json!(true), Some(39)));
    let metrics = get(&node.relay, "/metrics").ok();
    for line in [
        "hark_whisper_damaged_pages_total{source=\"rest\"} 1",
        "hark_store_damaged_records{shelf=\"whisper\"} 1",
    ] {
        assert!(metrics.lines().any(|known| known == line), "{line}: {metrics}");
    }
    // An answer in RLP can report the damage only in a header.
    let rlp = node.ask("POST /whisper/messages", &[JSON, ("Accept", RLP.1)], b"{}");
    assert!(rlp.status == 200 && rlp.head.contains("\r\nhark-damaged: true"), "{}", rlp.head);
    let health = get(&node.relay, "/healthz");
    assert!(health.text().contains("damaged envelopes: 1"), "{}", health.text());
    assert!(node.log().contains("a record of the archive is damaged"), "{}", node.log());
}
