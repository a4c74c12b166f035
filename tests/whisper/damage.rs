//! Answers of a mail server whose files are damaged on the disk.

use hark_codec::whisper::Bloom;
use hark_store_embedded::segment::{SECTIONS, SegmentSection};
use hark_testkit::digits::digits;
use hark_testkit::http::get;
use hark_testkit::wait::until;
use serde_json::json;

use super::{JSON, MailNode, RLP, envelope};
use crate::served;

/// Settings that make an archive of a few envelopes have segments.
const SEALED: [(&str, &str); 1] = [("HARK_ARCHIVE_SEAL_RECORDS", "10")];

/// Waits until all full heads are sealed.
fn until_sealed(node: &MailNode) {
    // The next write hands a full head to maintenance.
    for at in 0..10 {
        node.publish(&[envelope([5; 4], 0, &[200 + at])]);
    }
    until("full heads are sealed", || {
        let page = get(&node.relay, "/metrics").ok();
        page.lines().any(|line| line == "hark_store_heads_waiting{shelf=\"whisper\"} 0")
    });
}

#[test]
fn an_answer_that_lacks_a_damaged_envelope_has_the_others_and_says_so() {
    let mut node = MailNode::start("damage", &SEALED);
    let some = (0..30_u8).map(|at| {
        let data = if at == 10 { b"damaged".to_vec() } else { vec![at; 50] };
        envelope([1, 2, 3, at % 2], 60 - u32::from(at), &data)
    });
    node.publish(&some.collect::<Vec<_>>());
    until_sealed(&node);
    node.stop();
    // The test does not damage the last batch, since damage there looks like a crash.
    served::damage(&node.data.join("whisper"), b"damaged");
    let node = MailNode::on(node.data.clone(), &[], &SEALED);
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

/// A bloom filter is answered from a list of all topics, which each segment has for its envelopes.
#[test]
fn a_bloom_filter_finds_all_envelopes_although_a_list_of_topics_is_damaged() {
    let mut node = MailNode::start("damaged-topics", &SEALED);
    let topic = |at: u8| [at, 2, 3, 4];
    let some = (0..30).map(|at| envelope(topic(at), 60 - u32::from(at), &[at; 50]));
    node.publish(&some.collect::<Vec<_>>());
    until_sealed(&node);
    let filter = |at| {
        let bloom = Bloom::of_topic(topic(at)).0;
        format!("{{\"bloom\":\"{}\"}}", digits(&bloom))
    };
    let found: Vec<_> = (0..30).map(|at| node.hashes(&filter(at))).collect();
    assert!(found.iter().all(|hashes| !hashes.is_empty()), "{found:?}");
    node.stop();
    for entry in std::fs::read_dir(node.data.join("whisper/seg")).expect("is there") {
        let path = entry.expect("is there").path();
        let mut bytes = std::fs::read(&path).expect("is read");
        // docs/format.md describes the table of sections.
        let number = SECTIONS.iter().position(|section| *section == SegmentSection::Values);
        let from_end = SECTIONS.len() * 20 + 32 - number.expect("is a section") * 20;
        let Some(at) = bytes.len().checked_sub(from_end) else { continue };
        let start = u64::from_le_bytes(*bytes[at..].first_chunk().expect("8 bytes")) as usize;
        // The length of the first topic.
        if path.extension().is_some_and(|ending| ending == "seg") {
            bytes[start + 3] ^= 0x40;
            std::fs::write(&path, bytes).expect("is written");
        }
    }
    let node = MailNode::on(node.data.clone(), &[], &SEALED);
    let again: Vec<_> = (0..30).map(|at| node.hashes(&filter(at))).collect();
    assert_eq!(again, found);
    assert!(node.log().contains("the topics of stored envelopes could not be read"));
    until("the topics are known again", || {
        let page = get(&node.relay, "/metrics").ok();
        page.lines().any(|line| line == "hark_whisper_topics 31")
    });
    assert_eq!((0..30).map(|at| node.hashes(&filter(at))).collect::<Vec<_>>(), found);
}
