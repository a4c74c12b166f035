//! Streams between archives: each new event reaches its destination once, even after a side was
//! down.

use std::time::Duration;

use hark_testkit::clock::now_s;
use hark_testkit::nostr::{event_line, pubkey};
use hark_testkit::wait::until;

use super::nodes::{Node, Running, notes};

/// Publishes new notes with current times to a node, as a client does.
fn publish(node: &Node, name: &str, count: u64) {
    let path = node.path("new.jsonl");
    let lines = notes(name, count, now_s() - count).concat();
    super::nodes::write(&path, &lines);
    let done = node.run(&["import", &path.to_string_lossy()]);
    assert_eq!(done.code, 0, "{done:?}");
}

/// The servers are killed and restarted. In the end both have all events, and no event is sent back
/// to its source.
#[test]
fn two_servers_stay_in_step_while_either_is_gone_for_a_while() {
    let mut left = Node::served("stream-left", "", &notes("old left", 20, now_s() - 600));
    let mut right = Node::served_again("stream-right", &notes("old right", 30, now_s() - 600));
    let url = right.url();
    let running = Running::start(left.command(&["stream", &url, "--dir", "both", "--json"]));
    left.wait_for(50);
    right.wait_for(50);
    publish(&left, "left", 40);
    publish(&right, "right", 40);
    left.wait_for(130);
    right.wait_for(130);
    right.kill();
    publish(&left, "while it is gone", 25);
    right.serve();
    right.wait_for(155);
    left.kill();
    publish(&right, "while this is gone", 25);
    std::thread::sleep(Duration::from_millis(500));
    left.serve();
    left.wait_for(180);
    publish(&left, "last", 10);
    right.wait_for(190);
    let done = running.stop();
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(left.ids("{}"), right.ids("{}"));
    let relay = &done.json_of_any()["relays"][0];
    // 20 old events, 40 live events, 25 events from the downtime and 10 last events. A few may be
    // sent twice.
    assert!(relay["taken"].as_u64().unwrap() >= 75, "{relay}");
    assert_eq!(relay["stored"], 95, "{relay}");
    assert!(relay["sent"].as_u64().unwrap() <= 95 + 10, "an echo: {relay}");
    assert!(relay["connections"].as_u64().unwrap() >= 2, "{relay}");
}

/// Without a server the command opens the archive itself. Private events are not sent.
#[test]
fn an_archive_without_a_server_takes_and_sends_too() {
    let there = Node::served("own-there", "", &notes("there", 15, now_s() - 60));
    let private = event_line(4, now_s() - 9, 4, &[&["p", &"ab".repeat(32)]], "a message");
    let mine = [notes("here", 10, now_s() - 60), vec![private]].concat();
    let here = Node::new("own-here", "", &mine);
    let running = Running::start(here.command(&["stream", &there.url(), "--dir", "both"]));
    there.wait_for(25);
    publish(&there, "new", 5);
    here.wait_for(31);
    let done = running.stop();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.contains("20 stored, 10 taken there"), "{done:?}");
}

/// A stream waits while another process holds the archive, such as a server that is still starting.
#[test]
fn a_stream_waits_for_whoever_holds_the_archive() {
    let there = Node::served("held-there", "", &notes("there", 15, now_s() - 60));
    let (here, url) = (Node::new("held-here", "", &[]), there.url());
    let first = Running::start(here.command(&["stream", &url]));
    here.wait_for(15);
    let mut second = Running::start(here.command(&["stream", &url]));
    second.wait_for_log("another process holds the archive");
    let done = first.stop();
    assert_eq!(done.code, 0, "{done:?}");
    publish(&there, "new", 5);
    here.wait_for(20);
    let done = second.stop();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stderr.contains("another process holds the archive"), "{done:?}");
}

/// Events that arrive faster than the relay accepts them are still sent in the end, even old
/// events.
#[test]
fn old_events_in_quantity_are_not_left_behind() {
    let rates = "[rates]\nevents_per_address = [0, 0]\nevents_per_key = [0, 0]\n";
    let there = Node::served("old-there", rates, &[]);
    let here = Node::served("old-here", rates, &[]);
    let (url, back) = (there.url(), ["--dir", "up", "--catch-up", "1h"]);
    let running = Running::start(here.command(&[&["stream", &url][..], &back].concat()));
    let lines = here.path("old.jsonl");
    super::nodes::write(&lines, &notes("old", 6_000, now_s() - 30 * 86_400).concat());
    let done = here.run(&["import", &lines.to_string_lossy()]);
    assert_eq!(done.code, 0, "{done:?}");
    let stored = here.ids("{}").len();
    there.wait_for(stored);
    assert_eq!(running.stop().code, 0);
}

/// A stream learns of a follow list that the server of its archive has stored.
#[test]
fn a_stream_takes_events_of_keys_that_are_trusted_since_it_began() {
    let settings = format!("[trust]\nmode = \"require\"\nroots = [\"{}\"]\n", pubkey(1));
    let here = Node::served("stream-trust-here", &settings, &[]);
    let there = Node::served("stream-trust-there", "", &[]);
    let running =
        Running::start(here.command(&["stream", &there.url(), "--dir", "down", "--json"]));
    let import = |node: &Node, line: String| {
        let path = node.path("one.jsonl");
        super::nodes::write(&path, &line);
        let done = node.run(&["import", &path.to_string_lossy()]);
        assert_eq!(done.code, 0, "{done:?}");
    };
    import(&there, event_line(1, now_s(), 1, &[], "of the root"));
    here.wait_for(1);
    import(&there, event_line(2, now_s(), 1, &[], "of a stranger"));
    import(&here, event_line(1, now_s(), 3, &[&["p", &pubkey(2)]], ""));
    // A refused event is not offered again, so each attempt is a new event.
    let mut attempts = 0;
    until("an event of the followed key comes", || {
        attempts += 1;
        import(&there, event_line(2, now_s(), 1, &[], &format!("attempt {attempts}")));
        !here.ids(&format!("{{\"authors\":[\"{}\"]}}", pubkey(2))).is_empty()
    });
    running.stop();
}
