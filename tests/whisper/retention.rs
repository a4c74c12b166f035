//! Tests which envelopes are kept under a bound while more envelopes arrive.

use hark_codec::crypto::keccak256;
use hark_codec::whisper::{Envelope, Topic};
use hark_testkit::http::get;
use hark_testkit::wait::until;

use super::rest::frames;
use super::{JSON, MailNode, envelope};

const TOPIC: Topic = [0x5c, 0x6c, 0x9b, 0x56];

/// Number of bytes that the shelf takes on the disk.
fn shelf_bytes(node: &MailNode) -> u64 {
    let page = get(&node.relay, "/metrics").ok();
    let series = "hark_store_bytes{shelf=\"whisper\"} ";
    let bytes = page.lines().find_map(|line| line.strip_prefix(series));
    bytes.expect("a size").parse().expect("a number")
}

/// Returns the kept envelopes, oldest first.
fn kept(node: &MailNode) -> Vec<Vec<u8>> {
    frames(&node.ask("POST /whisper/messages", &[JSON], b"{}").body).0
}

#[test]
fn above_a_bound_of_bytes_the_oldest_envelopes_are_deleted() {
    let settings =
        [("retention_days", "0"), ("bytes_max", "16MB"), ("HARK_RETENTION_EVERY_S", "1")];
    let node = MailNode::start("size", &settings);
    let mut published = Vec::new();
    // 24 MB in all. Each batch was sent at least a second after the previous batch.
    for ago_s in (0..80).rev() {
        let batch: Vec<_> = (0..10u8).map(|n| envelope(TOPIC, ago_s, &vec![n; 30_000])).collect();
        node.publish(&batch);
        published.extend(batch);
    }
    published.sort_by_key(|rlp| (Envelope::parse(rlp).expect("one").sent(), keccak256(rlp)));
    until("the bound is met", || shelf_bytes(&node) <= 16_800_000);
    let mut count = 0;
    until("none but the oldest are deleted", || {
        let kept = kept(&node);
        count = kept.len();
        count < published.len() && published.ends_with(&kept)
    });
    // The bound allows about 530 envelopes of 30 KB each.
    assert!((450..560).contains(&count), "{count} are kept");
}
