//! Functions that Waku's shelf shares with every other shelf: a mirror, metrics, the log of slow
//! queries, and reloaded settings.

use hark_testkit::clock::now_ns;
use hark_testkit::http::get;
use hark_testkit::wait::until;
use serde_json::Value;

use super::{Node, folder, hark, message};

/// The log of a node so far.
fn log(node: &Node) -> String {
    std::fs::read_to_string(node.data.join("log")).expect("is there")
}

#[test]
fn a_mirror_keeps_messages_in_step() {
    let second = folder("mirror-second");
    let address = second.to_str().expect("a path").to_owned();
    let mut node = Node::start("mirror", &[("HARK_MIRROR_STORE", &address)]);
    for n in 0..5 {
        node.publish(&message("mirror", "AA==", now_ns() - n));
    }
    let stats = || -> Value {
        let stats = hark(&node.data).args(["stats", "--json", "--network", "waku"]).output();
        serde_json::from_slice(&stats.expect("runs").stdout).expect("JSON")
    };
    until("the mirror has it", || {
        let mirror = &stats()["server"]["mirror"];
        mirror["in_step"] == true && mirror["copied"].as_u64() >= Some(5)
    });
    let page = get(&node.relay, "/metrics").ok();
    for line in ["hark_mirror_in_step 1\n", "hark_mirror_in_step{shelf=\"waku\"} 1\n"] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
    let kept = node.hashes("");
    node.stop();
    let count = hark(&second).args(["count", "--network", "waku", "{}"]).output().expect("runs");
    assert_eq!(String::from_utf8_lossy(&count.stdout), "5\n");
    let mirror = Node::on(second, &[]);
    assert_eq!(mirror.hashes(""), kept);
}

#[test]
fn commits_and_the_store_are_measured() {
    let node = Node::start("measured", &[]);
    for n in 0..3 {
        node.publish(&message("measured", "AA==", now_ns() - n));
    }
    let page = get(&node.relay, "/metrics").ok();
    for line in [
        "hark_committed_writes_total{shelf=\"waku\"} 3\n",
        "hark_committed_writes_total 0\n",
        "hark_store_records{shelf=\"waku\"} 3\n",
        "hark_store_writing{shelf=\"waku\"} 1\n",
        "hark_sync_seconds_count{shelf=\"waku\"} ",
        "hark_commit_seconds_bucket{shelf=\"waku\",le=\"+Inf\"} ",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
    // Each metric is described once.
    for head in ["# TYPE hark_store_records gauge", "# TYPE hark_commit_seconds histogram"] {
        assert_eq!(page.matches(head).count(), 1, "{page}");
    }
}

#[test]
fn slow_questions_are_logged_as_the_filters_that_ask_them() {
    let node = Node::start("slow", &[("HARK_LOG_SLOW_QUESTION_MS", "1")]);
    // A page of many bytes takes more than a millisecond.
    let payload = "AAAA".repeat(30_000);
    for n in 0..100 {
        node.publish(&message("slow", &payload, now_ns() - n));
    }
    let page =
        "/store/v3/messages?contentTopics=%2Fslow%2F1%2Fchat%2Fproto&pageSize=100&includeData=true";
    until("one is slow", || {
        node.get(page);
        log(&node).contains("a slow question")
    });
    let log = log(&node);
    let line = log.lines().find(|line| line.contains("a slow question")).expect("a line");
    for said in ["waku", "STORE", "contentTopics", "/slow/1/chat/proto", "\"pageSize\":100"] {
        assert!(line.replace("\\\"", "\"").contains(said), "{said} is not in {line}");
    }
}

#[test]
fn settings_are_read_again_while_it_runs() {
    let data = folder("reload");
    let file = data.join("hark.toml");
    let write = |queries: &str| {
        std::fs::write(&file, format!("[waku]\nqueries = {queries}\n")).expect("is written");
    };
    write("[0, 0]");
    let path = file.to_str().expect("a path").to_owned();
    let node = Node::with(data, &["--config", &path], &[]);
    let status = || node.ask("GET", "/store/v3/messages", "").0;
    assert_eq!([status(), status(), status()], [200; 3]);
    write("[1, 1]");
    until("questions are bounded", || status() == 429);
    assert!(log(&node).contains("now waku.queries = [1, 1]"), "{}", log(&node));
    write("[0, 0]");
    until("and are not any more", || status() == 200);
}
