//! Tests which messages are kept under a bound while more messages arrive.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use hark_testkit::clock::now_ns;
use hark_testkit::wait::until;
use serde_json::Value;

use super::{Node, message};

/// Number of bytes that a directory takes on the disk.
fn on_disk(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).expect("is a directory");
    let sizes = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        // A file that is removed during the walk counts as empty.
        let found = entry.metadata().ok()?;
        Some(if found.is_dir() { on_disk(&entry.path()) } else { found.blocks() * 512 })
    });
    sizes.sum()
}

/// Publishes `count` messages of 10 KB from four clients at once, with times one nanosecond apart.
fn publish(node: &Node, count: u64, start: u64) {
    std::thread::scope(|scope| {
        for first in 0..4 {
            scope.spawn(move || {
                for at in (first..count).step_by(4) {
                    node.publish(&message("kept", &"AAAA".repeat(3_400), start + at));
                }
            });
        }
    });
}

/// Returns the number of kept messages, which must be the newest.
fn newest(node: &Node, count: u64, start: u64) -> u64 {
    let kept = || node.hashes("").len() as u64;
    let (mut before, mut oldest) = (kept(), 0);
    until("nothing is deleted meanwhile", || {
        let page: Value = node.get("/store/v3/messages?includeData=true&pageSize=1");
        oldest = page["messages"][0]["message"]["timestamp"].as_u64().expect("a time");
        std::mem::replace(&mut before, kept()) == before
    });
    assert_eq!(before, count - (oldest - start), "none but the oldest went");
    before
}

#[test]
fn a_bound_of_bytes_is_met_on_the_disk() {
    let every = ("HARK_RETENTION_EVERY_S", "1");
    let node = Node::start("size", &[("retention", "size:16MB"), every]);
    let (bound, start, count) = (16 << 20, now_ns(), 4_000);
    publish(&node, count, start);
    let folder = node.data.join("waku");
    until("the bound is met", || on_disk(&folder) as f64 <= f64::from(bound) * 1.05);
    // With 10.2 KB each, the node keeps nearly as many messages as the bound allows.
    let kept = newest(&node, count, start);
    assert!((1_400..1_650).contains(&kept), "{kept} are kept");
    println!("{kept} of {count} are kept, {} of {bound} bytes on the disk", on_disk(&folder));
}

#[test]
fn of_several_bounds_each_holds() {
    let every = ("HARK_RETENTION_EVERY_S", "1");
    let policy = "time:3600;size:1GB;capacity:500";
    let node = Node::start("union", &[("retention", policy), every]);
    let start = now_ns();
    publish(&node, 1_500, start);
    until("the bound is met", || newest(&node, 1_500, start) == 500);
}
