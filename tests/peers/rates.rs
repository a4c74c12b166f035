//! Servers with limits on the rates of clients, and peers that exceed these limits.

use hark_testkit::http::get;
use hark_testkit::nostr::event_line;

use super::nodes::{Node, notes, write};

const START: u64 = 1_700_000_000;

/// Notes of one author: more than an address or a key may send at once.
fn history() -> Vec<String> {
    (0..1_500).map(|n| event_line(1, START + n, 1, &[], &n.to_string())).collect()
}

/// A list exempts the peer from the rates by its address or by a key. The list is in a file that
/// changes while the server runs.
#[test]
fn a_peer_that_is_spared_sends_without_rates() {
    for (name, list, peer) in [
        ("address", "spared_addresses", "127.0.0.0/8 # the peers"),
        ("key", "spared_keys", "1b84c5567b126440995d3ed5aaba0565d71e1834604819ff9c17f5e9d5dd078f"),
    ] {
        let settings = format!("[rates]\n{list} = [\"@peers.txt\"]\n");
        let mut there = Node::new(&format!("spared-{name}"), "", &[]);
        write(&there.path("peers.txt"), "");
        write(&there.path("hark.toml"), &settings);
        there.serve_with_rates();
        write(&there.path("peers.txt"), peer);
        assert_eq!(there.run(&["reload"]).code, 0);
        let here = Node::new(&format!("spared-{name}-here"), "", &history());
        write(&here.path("key"), &"01".repeat(32));
        let key = here.path("key").display().to_string();
        let mut sync = vec!["sync", "--dir", "up", "--json"];
        let url = there.url();
        sync.push(&url);
        if name == "key" {
            sync.extend(["--key-file", &key]);
        }
        let done = here.run(&sync);
        assert_eq!(done.code, 0, "{done:?}");
        let report = done.json_of_any();
        assert_eq!((&report["waits"], &report["up"]["taken"]), (&0.into(), &1_500.into()));
    }
}

/// A peer without an exemption from the rates takes longer, and no event is lost.
#[test]
fn a_peer_that_comes_too_fast_waits_and_loses_nothing() {
    let settings = "[rates]\nevents_per_address = [6_000, 50]\n";
    let mut there = Node::new("waits-there", settings, &[]);
    there.serve_with_rates();
    let here = Node::new("waits-here", "", &notes("here", 700, START));
    let done = here.run(&["sync", &there.url(), "--dir", "up", "--json"]);
    let report = done.json_of_any();
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(report["up"]["taken"], 700, "{report}");
    assert!(report["waits"].as_u64() > Some(0), "{report}");
    assert_eq!(there.ids("{}"), here.ids("{}"));
}

/// Both sides share most of 50,000 events, in segments and in memory. The test uses a twentieth of
/// a million events, and a twentieth of the default rates. So if the comparison ends here, a
/// comparison of a million events ends at the default rates.
#[test]
fn comparing_many_events_ends_under_rates_that_scale_with_them() {
    const COUNT: u64 = 50_000;
    let settings = "[archive]\nseal_records = 10_000\n[rates]\nevents_per_address = [0, 0]\n\
                    events_per_key = [0, 0]\nrows_per_connection = [600_000, 150_000]\n\
                    rows_per_address = [1_200_000, 300_000]\n";
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for (n, event) in (0..).zip(notes("shared", COUNT, START)) {
        // Differences are scattered, as in practice.
        match n % 47 {
            0 => left.push(event),
            1 => right.push(event),
            _ => {
                left.push(event.clone());
                right.push(event);
            }
        }
    }
    let mut there = Node::new("many-there", settings, &right);
    there.serve_with_rates();
    let here = Node::new("many-here", "", &left);
    let done = here.run(&["sync", &there.url(), "--dir", "both", "--json"]);
    let report = done.json_of_any();
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(report["compared"], true, "{report}");
    let lacked = COUNT.div_ceil(47);
    assert_eq!(
        (&report["down"]["received"], &report["up"]["sent"]),
        (&lacked.into(), &lacked.into())
    );
    let page = get(there.url().trim_start_matches("ws://"), "/metrics").ok();
    let count =
        |name: &str| page.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    let rows: u64 = count("hark_query_rows_total ").expect("is counted").parse().expect("a number");
    eprintln!("{rows} rows, {} messages", report["rounds"]);
    let refused = count("hark_messages_total{verb=\"NEG\",result=\"rate-limited\"} ");
    assert_eq!(refused.as_deref().unwrap_or("0"), "0", "{rows} rows");
}
