//! Nodes as peers of each other.

use hark_testkit::clock::now_ns;
use hark_testkit::http::HttpRequest;
use hark_testkit::postgres::Cluster;
use hark_testkit::wait::until;

use super::{Node, folder, message};

#[test]
fn what_is_published_on_one_node_is_kept_by_its_peers() {
    let first = Node::start("gossip-1", &[]);
    let second = Node::start("gossip-2", &[("peers", &first.peers[0])]);
    let third = Node::start("gossip-3", &[("peers", &second.peers[1])]);
    // Gossip needs a second to find its subscribers.
    until("a message gets through", || {
        first.publish(&message("gossip", "AA==", now_ns()));
        !third.hashes("").is_empty()
    });
    // A content topic of the same shard.
    let topic = "/gossip/1/talk/proto";
    let of = |payload: &str| {
        let mut message = message("gossip", payload, now_ns());
        message["contentTopic"] = topic.into();
        message
    };
    for at in 0..50 {
        [&first, &second, &third][at % 3].publish(&of("AQ=="));
    }
    let mut passing = of("Ag==");
    passing["ephemeral"] = true.into();
    first.publish(&passing);
    let kept = |node: &Node| node.hashes(&format!("contentTopics={topic}"));
    until("all are everywhere", || kept(&first).len() == 50 && kept(&second).len() == 50);
    until("all are everywhere", || kept(&third).len() == 50);
    assert_eq!(kept(&first), kept(&second));
    assert_eq!(kept(&first), kept(&third));
}

#[test]
fn a_node_is_the_same_after_a_restart() {
    let mut node = Node::start("key", &[]);
    let id = |node: &Node| node.peers[0].rsplit('/').next().map(str::to_owned);
    let before = id(&node);
    node.stop();
    let node = Node::on(node.data.clone(), &[]);
    assert_eq!(id(&node), before);
}

#[test]
fn a_node_that_was_away_fetches_what_came_meanwhile() {
    let first = Node::start("resume-1", &[]);
    let stores = [("stores", first.peers[0].as_str())];
    let mut second = Node::start("resume-2", &stores);
    first.publish(&message("resume", "AA==", now_ns()));
    until("the first is fetched or received", || second.hashes("").len() == 1);
    second.stop();
    for _ in 0..250 {
        first.publish(&message("resume", "AQ==", now_ns()));
    }
    let second = Node::on(second.data.clone(), &stores);
    until("all are fetched", || second.hashes("").len() == 251);
    assert_eq!(second.hashes(""), first.hashes(""));

    // A node without any of the messages queries another node.
    let third = Node::start("resume-3", &[("rest_any_peer", "true")]);
    let peer = first.peers[1].replace('/', "%2F");
    let mine = first.get("/store/v3/messages?includeData=true&pageSize=3&ascending=false");
    let path = "/store/v3/messages?includeData=true&pageSize=3&ascending=false&peerAddr=";
    assert_eq!(third.get(&format!("{path}{peer}")), mine);
    assert_eq!(third.hashes(""), [""; 0]);
    let (status, words) = third.ask("GET", &format!("{path}/ip4/127.0.0.1/tcp/1"), "");
    assert_eq!((status, words.contains("/p2p/")), (400, true), "{words}");
}

/// Gossip brings each message once, so a message that cannot be stored is missed.
#[test]
fn messages_that_came_while_the_database_was_away_are_fetched_later() {
    let cluster = Cluster::with(&["fsync=off"]);
    let database = cluster.database("unkept");
    let first = Node::start("unkept-1", &[]);
    let settings = [("stores", first.peers[0].as_str()), ("sync_every_s", "0")];
    let second = Node::with(folder("unkept-2"), &["--store", &database.url], &settings);
    first.publish(&message("unkept", "AA==", now_ns()));
    let log = || std::fs::read_to_string(second.data.join("log")).unwrap();
    until("the first fetch", || log().contains("fetched the missed messages"));
    until("gossip arrives", || {
        first.publish(&message("unkept", "AQ==", now_ns()));
        first.hashes("").len() > 2 && second.hashes("") == first.hashes("")
    });
    cluster.stop();
    for _ in 0..20 {
        first.publish(&message("unkept", "Ag==", now_ns()));
    }
    let failures = || {
        let page = HttpRequest::new("GET", "/metrics").send(&second.relay).parts().1;
        let is_failure =
            |line: &&str| line.contains("\"relay\"") && line.contains("insert_failure");
        let number = |line: &str| line.rsplit(' ').next().and_then(|text| text.parse::<u64>().ok());
        page.lines().filter(is_failure).filter_map(number).sum::<u64>()
    };
    until("messages cannot be stored", || failures() > 0);
    cluster.start();
    until("all are fetched", || {
        second.ask("GET", "/store/v3/messages", "").0 == 200
            && second.hashes("") == first.hashes("")
    });
}

#[test]
fn nodes_with_different_losses_become_the_same() {
    let now = now_ns();
    let all = |keep: &dyn Fn(u64) -> bool| -> String {
        let lines = (0..2_000_u64).filter(|at| keep(*at)).map(|at| {
            let mut message = message("sync", "AAAA", now - 3_000_000_000_000 + at * 1_000_000_000);
            message["meta"] = ["AA==", "AQ==", "Ag=="][at as usize % 3].into();
            let kept = serde_json::json!({ "message": message, "pubsubTopic": "/waku/2/rs/1/4" });
            format!("{kept}\n")
        });
        lines.collect()
    };
    // Each node lacks 5 of 100 messages, but the nodes lack different messages.
    let datas = [folder("sync-1"), folder("sync-2")];
    super::import(&datas[0], &all(&|at| at % 20 != 3));
    super::import(&datas[1], &all(&|at| at % 20 != 11));
    let [one, two] = datas;
    // Each node's settings name the other node's id, so the second node starts once without
    // settings.
    let mut second = Node::on(two, &[]);
    assert_eq!(second.hashes("").len(), 1_900);
    second.stop();
    let first = Node::on(one, &[("peers", &second.peers[0])]);
    let settings = [
        ("stores", first.peers[0].as_str()),
        ("resume_max_s", "0"),
        ("sync_every_s", "1"),
        ("sync_jitter_s", "0"),
    ];
    let second = Node::on(second.data.clone(), &settings);
    let done = || [&first, &second].iter().all(|node| node.hashes("").len() == 2_000);
    until("both have all", done);
    assert_eq!(first.hashes(""), second.hashes(""));
}
