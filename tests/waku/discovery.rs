//! Nodes that find each other by the peer exchange and by a list in the DNS, and `hark waku`.

use std::path::Path;
use std::process::Command;

use hark_testkit::clock::now_ns;
use hark_testkit::node_list::{DnsServer, NodeList, has_udp_port};
use hark_testkit::wait::until;
use serde_json::Value;

use super::{Node, hark, message, text};

const FINDS: [(&str, &str); 2] = [("discover_private", "true"), ("discovered_max", "5")];

/// The report of `hark waku`.
fn report(node: &Node) -> Value {
    let output = hark(&node.data).args(["waku", "--json"]).output().expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The id of a node.
fn id(node: &Node) -> String {
    node.peers[0].rsplit('/').next().expect("an id").to_owned()
}

/// Returns the entry of a connected peer in the report.
fn connected(report: &Value, id: &str) -> Option<Value> {
    let peers = report["peers"].as_array().expect("a list");
    peers.iter().find(|peer| peer["id"] == id && peer["state"] == "connected").cloned()
}

/// The record of a node.
fn record(node: &Node) -> String {
    let record = text(&node.get("/debug/v1/info")["enrUri"]);
    assert!(record.starts_with("enr:"), "{record}");
    assert_eq!(node.get("/info")["enrUri"], record.as_str());
    record
}

/// Checks that messages go from one node to the other.
fn gossips(from: &Node, to: &Node) {
    until("a message gets through", || {
        from.publish(&message("found", "AA==", now_ns()));
        !to.hashes("").is_empty()
    });
}

#[test]
fn nodes_find_each_other_by_the_peer_exchange_alone() {
    // The node in the middle dials nobody, and knows the others from the peer exchange.
    let mut middle = Node::start("exchange-1", &[("discover_private", "true")]);
    let settings = [FINDS[0], FINDS[1], ("peers", middle.peers[0].as_str())];
    let first = Node::start("exchange-2", &settings);
    let second = Node::start("exchange-3", &settings);
    let (of_first, of_second) = (id(&first), id(&second));
    until("the nodes find each other", || {
        connected(&report(&first), &of_second).is_some()
            && connected(&report(&second), &of_first).is_some()
    });
    let sources = [(&first, &of_second), (&second, &of_first)]
        .map(|(node, id)| text(&connected(&report(node), id).expect("is connected")["source"]));
    // One of the two has dialled the other.
    assert!(sources.contains(&"peer_exchange".to_owned()), "{sources:?}");
    let of_middle = report(&middle);
    assert_eq!(of_middle["discovery"]["known"]["peer_exchange"], 2, "{of_middle}");
    middle.kill();
    gossips(&first, &second);
    gossips(&second, &first);
}

#[test]
fn a_restarted_node_dials_the_nodes_that_it_reached_before() {
    let other = Node::start("nodes-1", &[FINDS[0]]);
    let mut list = NodeList::new("nodes.example");
    let of_other = record(&other);
    let entries = [list.add(&of_other)];
    let (entries, links) = (list.branch(&entries), list.branch(&[]));
    list.sign(&entries, &links, 1);
    let server = DnsServer::with(list.texts.clone());
    let (url, at) = (list.url(), server.at.to_string());
    let finds = [FINDS[0], FINDS[1], ("peer_exchange", "false")];
    let settings: Vec<_> =
        finds.into_iter().chain([("entry_nodes", &*url), ("dns_servers", &at)]).collect();
    let mut node = Node::start("nodes-2", &settings);
    let file = node.data.join("waku.nodes");
    until("the other node is remembered", || {
        std::fs::read_to_string(&file).is_ok_and(|text| text == format!("{of_other}\n"))
    });
    node.stop();
    // Garbage in the file is ignored.
    std::fs::write(&file, format!("\0\nenr:x\n{of_other}\n")).expect("is written");
    let node = Node::on(node.data.clone(), &finds);
    until("the other node is reached again", || connected(&report(&node), &id(&other)).is_some());
    let found = report(&node);
    let entry = connected(&found, &id(&other)).expect("is connected");
    assert_eq!(entry["source"], "file", "{found}");
    let discovery = &found["discovery"];
    assert_eq!((&discovery["known"]["file"], &discovery["refused"]), (&1.into(), &2.into()));
    let log = std::fs::read_to_string(node.data.join("log")).expect("is there");
    assert_eq!(log.matches("not all records of the file").count(), 1, "{log}");
    gossips(&other, &node);
}

#[test]
fn a_node_finds_others_by_a_list_in_the_dns_alone() {
    let first = Node::start("list-1", &[FINDS[0]]);
    let second = Node::start("list-2", &[FINDS[0]]);
    let elsewhere = Node::start("list-3", &[FINDS[0], ("cluster", "7")]);
    let mut list = NodeList::new("nodes.example");
    let nodes = [&first, &second, &elsewhere];
    let entries = nodes.map(|node| list.add(&record(node)));
    let (entries, links) = (list.branch(&entries), list.branch(&[]));
    list.sign(&entries, &links, 1);
    let server = DnsServer::with(list.texts.clone());
    let (url, at) = (list.url(), server.at.to_string());
    let settings = [FINDS[0], FINDS[1], ("entry_nodes", url.as_str()), ("dns_servers", &at)];
    let finder = Node::start("list-4", &settings);
    until("the nodes of the list are connected", || {
        [&first, &second].iter().all(|node| connected(&report(&finder), &id(node)).is_some())
    });
    let found = report(&finder);
    assert_eq!(connected(&found, &id(&first)).expect("is connected")["source"], "dns");
    assert_eq!(connected(&found, &id(&elsewhere)), None, "the node is in another cluster");
    let known = &found["discovery"];
    assert_eq!((&known["known"]["dns"], &known["refused"]), (&2.into(), &1.into()), "{found}");
    let lists = &known["lists"][0];
    assert_eq!((text(&lists["url"]), &lists["records"]), (url.clone(), &3.into()), "{found}");
    gossips(&first, &finder);
    gossips(&finder, &second);
    let page = hark_testkit::http::get(&finder.relay, "/metrics").text();
    for line in [
        "waku_known_nodes{source=\"dns\"} 2",
        "waku_node_dials_total{source=\"dns\",result=\"reached\"} 2",
        "waku_node_records_refused_total{source=\"dns\",reason=\"shard\"} 1",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}: {page}");
    }
}

#[test]
fn three_nodes_find_each_other_by_discv5_alone() {
    let settings = [FINDS[0], FINDS[1], ("discv5", "127.0.0.1:0"), ("peer_exchange", "false")];
    let first = Node::start("discv5-1", &settings);
    let shown = || text(&first.get("/info")["enrUri"]);
    until("the record has the port of discv5", || has_udp_port(&shown()));
    let bootstrap = record(&first);
    let settings: Vec<_> = settings.into_iter().chain([("entry_nodes", &*bootstrap)]).collect();
    let second = Node::start("discv5-2", &settings);
    let third = Node::start("discv5-3", &settings);
    let of_second = id(&second);
    until("the nodes find each other", || connected(&report(&third), &of_second).is_some());
    let known = report(&third)["discovery"]["known"]["discv5"].as_u64();
    assert!(known >= Some(1), "{known:?}");
    gossips(&second, &third);
}

#[test]
fn records_and_strangers_leave_configured_peers_their_place() {
    // The setting names the peer only by its record.
    let peer = Node::start("record-1", &[FINDS[0]]);
    let record = record(&peer);
    let settings = [("peers", record.as_str()), ("connections_max", "0"), FINDS[0], FINDS[1]];
    let node = Node::start("record-2", &settings);
    until("the peer is connected", || connected(&report(&node), &id(&peer)).is_some());
    // A stranger is refused, and the configured peer stays.
    let stranger = Node::start("record-3", &[("peers", &node.peers[0])]);
    until("the stranger was refused", || {
        let known = report(&stranger);
        known["peers"][0]["state"] != "connected" && known["peers"][0]["error"].is_string()
            || known["peers"][0]["state"] == "not connected"
    });
    let entry = connected(&report(&node), &id(&peer)).expect("is connected");
    assert_eq!(entry["source"], "configuration", "{entry}");
    gossips(&peer, &node);
}

#[test]
fn js_waku_reads_the_records_of_the_peer_exchange() {
    let node = Node::start("js-exchange", &[FINDS[0]]);
    let address = node.peers.iter().find(|addr| addr.contains("/ws")).expect("an address");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/js-waku");
    assert!(folder.join("node_modules").is_dir(), "js-waku is not installed: see scripts/test");
    let script = folder.join("exchange.mjs");
    let output = Command::new("node").arg(script).args([address, "1", "8"]).output();
    let output = output.expect("node runs");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{out}{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_str(&out).expect("one line of JSON");
    let record = &answer["records"][0];
    assert_eq!(record["peerId"], id(&node).as_str(), "{answer}");
    assert_eq!(record["shards"]["clusterId"], 1, "{answer}");
    assert_eq!(record["shards"]["shards"], serde_json::json!([0, 1, 2, 3, 4, 5, 6, 7]), "{answer}");
    assert_eq!(
        (&record["waku2"]["relay"], &record["waku2"]["store"]),
        (&true.into(), &true.into())
    );
    assert_eq!(record["ip"], "127.0.0.1");
    assert!(record["multiaddrs"][0].as_str().is_some_and(|addr| addr.ends_with("/ws")), "{answer}");
}

#[test]
fn the_report_says_why_a_node_is_not_reached() {
    let node = Node::start("report", &[("preset", "status.prod"), ("entry_nodes", "")]);
    let output = hark(&node.data).arg("waku").output().expect("the binary runs");
    let shown = String::from_utf8(output.stdout).expect("text");
    for part in [
        format!("node       {}", id(&node)),
        "record     enr:".into(),
        "network    cluster 16, shards 0 of 1, preset status.prod except entry_nodes".into(),
        "reach      unreachable: 0 connections from others".into(),
        "the node listens on loopback addresses only".into(),
        "peers      0 connected, 0 known".into(),
    ] {
        assert!(shown.contains(&part), "{part}: {shown}");
    }
    // Without a node, the command names the networks that are served.
    let output = hark(&node.data.join("nowhere")).arg("waku").output().expect("the binary runs");
    assert!(!output.status.success());
}
