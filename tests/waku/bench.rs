//! `hark bench waku` as a peer of nodes, with small numbers. No test measures speed.

use super::{Node, folder, hark};

const TOPIC: &str = "/waku/2/rs/1/3";

/// Publishes 200 messages by gossip, as five peers. Returns the exit code and the output.
fn gossip(node: &Node, more: &[&str]) -> (Option<i32>, String) {
    let (data, url) = (folder("bench"), format!("http://{}", node.rest));
    let mut command = hark(&data);
    command.args(["bench", "waku", "--url", &url, "--publish-by", "gossip"]);
    command.args(["--publishers", "5", "--messages", "200", "--payload-bytes", "100"]);
    command.args(more);
    let output = command.output().expect("the binary runs");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn what_the_driver_gossips_is_stored_timed_and_plotted() {
    let (first, second) = (Node::start("bench-1", &[]), Node::start("bench-2", &[]));
    let url = format!("http://{}", second.rest);
    // The bench gets the first node's peer address from the node, and the second node's from an
    // argument.
    let both = ["--pubsub-topic", TOPIC, "--against", &url, "--against-peer", &second.peers[0]];
    let (code, said) = gossip(&first, &[&both[..], &["--readers", "0"]].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("\npublish: 200 of 200 messages are stored.\n"), "{said}");
    assert!(said.contains("\nother: publish: 200 of 200 messages are stored.\n"), "{said}");
    assert_eq!((first.hashes("").len(), second.hashes("").len()), (200, 200));

    let page = first.data.join("page.html");
    let page = page.to_str().expect("UTF-8");
    let rates = ["--publish-rate", "100", "--readers", "1", "--query-rate", "20", "--html", page];
    let (code, said) = gossip(&first, &[&both[..], &rates].concat());
    assert_eq!(code, Some(0), "{said}");
    let page = std::fs::read_to_string(page).expect("is written");
    for curve in ["publish", "questions", "other: publish", "other: questions"] {
        assert!(page.contains(&format!("<h2>Latency, {curve}</h2>")), "{curve}: {page}");
    }
}

#[test]
fn a_topic_that_nobody_listens_to_is_refused() {
    let node = Node::start("bench-topic", &[("shards", "3,5")]);
    let (code, said) = gossip(&node, &["--readers", "0"]);
    assert_eq!((code, said.contains("--pubsub-topic <TOPIC>")), (Some(2), true), "{said}");
    let (code, said) = gossip(&node, &["--readers", "0", "--pubsub-topic", "/waku/2/rs/1/0"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("give one of /waku/2/rs/1/3, /waku/2/rs/1/5 as"), "{said}");
}
