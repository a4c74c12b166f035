//! One synchronisation between two archives.

use hark_testkit::nostr::{event_line, pubkey};
use hark_testkit::postgres::Cluster;

use super::nodes::{Node, Running, all, id, notes};
use crate::served::hark;

const START: u64 = 1_700_000_000;

/// Both archives have the same events afterwards, with and without a server. Archives in step need
/// one round trip.
#[test]
fn both_ends_are_equal_afterwards() {
    let shared = notes("shared", 700, START);
    let (left, right) = (notes("left", 50, START + 40), notes("right", 60, START + 90));
    for (test, is_served, settings) in [
        ("both", true, ""),
        ("alone", false, ""),
        ("divided", true, "negentropy_events_max = 200\n"),
    ] {
        let there = Node::served(
            &format!("{test}-there"),
            &format!("[limits]\n{settings}"),
            &all(&[&shared, &right]),
        );
        let here = if is_served { Node::served } else { Node::new };
        let here = here(&format!("{test}-here"), "", &all(&[&shared, &left]));
        let dry = here.run(&["sync", &there.url(), "--dry-run", "--json"]);
        assert_eq!(
            (dry.code, dry.json_of_any()["down"]["missing"].as_u64()),
            (0, Some(60)),
            "{dry:?}"
        );
        assert_eq!(dry.json_of_any()["up"]["missing"], 50);
        let done = here.run(&["sync", &there.url(), "--dir", "both", "--json"]);
        let report = done.json_of_any();
        assert_eq!(done.code, 0, "{done:?}");
        assert_eq!(report["down"]["stored"], 60, "{report}");
        assert_eq!(report["up"]["taken"], 50, "{report}");
        assert_eq!((&report["complete"], &report["compared"]), (&true.into(), &true.into()));
        assert_eq!(here.ids("{}").len(), 810);
        assert_eq!(here.ids("{}"), there.ids("{}"));
        let again = here.run(&["sync", &there.url(), "--dir", "both", "--json"]);
        let report = again.json_of_any();
        assert_eq!((again.code, report["down"]["received"].as_u64()), (0, Some(0)), "{again:?}");
        assert!(!settings.is_empty() || report["rounds"] == 1, "{report}");
    }
}

/// Only events that match the filter are copied, and only in the given direction, by pages and by
/// comparison.
#[test]
fn a_filter_and_a_direction_bound_what_goes() {
    let (left, right) = (notes("left", 90, START), notes("right", 120, START + 5));
    let author = event_line(2, 0, 1, &[], "");
    let author = author.split_once("\"pubkey\":\"").unwrap().1[..64].to_owned();
    for (n, filter) in [
        r#"{"kinds":[7]}"#.to_owned(),
        format!(r#"{{"authors":["{author}"]}}"#),
        format!(r#"{{"since":{},"until":{}}}"#, START + 10, START + 20),
        r##"{"#t":["salt"],"kinds":[1,30]}"##.to_owned(),
    ]
    .into_iter()
    .enumerate()
    {
        for pages in [false, true] {
            let there = Node::served(&format!("filter-there-{n}-{pages}"), "", &right);
            let here = Node::new(&format!("filter-here-{n}-{pages}"), "", &left);
            let (before, wanted) = (here.ids("{}"), there.ids(&filter));
            let url = there.url();
            let mut args = vec!["sync", &url, "--filter", &filter, "--dir", "down", "--json"];
            args.extend(pages.then_some("--pages"));
            let done = here.run(&args);
            assert_eq!(done.code, 0, "{done:?}");
            assert_eq!(here.ids("{}"), &before | &wanted, "{filter} {pages}");
            assert_eq!(there.ids("{}").len(), 120);
            let mut args = vec!["sync", &url, "--filter", &filter, "--dir", "up", "--json"];
            args.extend(pages.then_some("--pages"));
            let done = here.run(&args);
            assert_eq!(done.code, 0, "{done:?}");
            assert_eq!(there.ids(&filter), here.ids(&filter), "{filter} {pages}");
            assert!(there.ids("{}").len() > 120 && here.ids("{}") == &before | &wanted);
        }
    }
}

/// A relay without comparisons is read by pages, even if many events share a second.
#[test]
fn a_relay_that_does_not_compare_is_read_by_pages() {
    let settings =
        "[limits]\nnegentropy_per_connection_max = 0\nlimit_max = 40\nlimit_default = 40\n";
    let right: Vec<String> = (0..300)
        .map(|n| event_line(1 + (n % 5) as u8, START + n / 30, 1, &[], &format!("note {n}")))
        .collect();
    let left = notes("left", 30, START);
    let there = Node::served("pages-there", settings, &right);
    let here = Node::new("pages-here", "", &left);
    let done = here.run(&["sync", &there.url(), "--dir", "both", "--json"]);
    let report = done.json_of_any();
    assert_eq!((done.code, &report["compared"]), (0, &false.into()), "{done:?}");
    assert!(report["paged_because"].as_str().unwrap().contains("NIP-77"), "{report}");
    assert_eq!(here.ids("{}").len(), 330);
    assert_eq!(here.ids("{}"), there.ids("{}"));
}

/// Private events are not sent, but deletions are. Refusals by the other side are counted and
/// reported.
#[test]
fn private_events_stay_deletions_travel_and_refusals_are_told() {
    let victim = event_line(3, START, 1, &[], "to be deleted");
    let deletion = event_line(3, START + 1, 5, &[&["e", &id(&victim)]], "");
    let private = [
        event_line(4, START + 2, 4, &[&["p", &"ab".repeat(32)]], "a message"),
        event_line(4, START + 3, 1, &[&["-"]], "protected"),
    ];
    let reaction = event_line(5, START + 4, 7, &[], "+");
    let there = Node::served(
        "private-there",
        "[policy]\ndeny_kinds = [7]\n",
        &[victim.clone(), notes("there", 3, START).concat()],
    );
    let here =
        Node::served("private-here", "", &[deletion.clone(), private.concat(), reaction.clone()]);
    let done = here.run(&["sync", &there.url(), "--dir", "both", "--json"]);
    let report = done.json_of_any();
    assert_eq!(done.code, 3, "{done:?}");
    assert_eq!(report["up"]["refused"]["blocked"]["events"], 1, "{report}");
    // The deletion may arrive before its target is requested.
    let deleted = report["down"]["not_stored"]["deleted"]["events"].as_u64().unwrap_or_default();
    assert_eq!(deleted + report["down"]["not_sent"].as_u64().unwrap(), 1, "{report}");
    assert_eq!(report["up"]["withheld"], 1, "{report}");
    let now = there.ids("{}");
    assert!(now.contains(&id(&deletion)) && !now.contains(&id(&victim)), "{now:?}");
    assert!(private.iter().all(|event| !now.contains(&id(event))));
    assert!(!here.ids("{}").contains(&id(&victim)));
    // With `--private`, the command sends the private events. A protected event may be sent only by
    // its author.
    let done = here.run(&["sync", &there.url(), "--dir", "up", "--private", "--json"]);
    assert_eq!(done.code, 3, "{done:?}");
    assert_eq!(done.json_of_any()["up"]["taken"], 1, "{done:?}");
    assert!(there.ids("{}").contains(&id(&private[0])));
    let policy = r#"{"kinds":[1,4,5]}"#;
    let again = here.run(&["sync", &there.url(), "--dir", "both", "--filter", policy]);
    assert_eq!(again.code, 0, "{again:?}");
}

/// The deletion and the request to vanish have an expiration in the past.
#[test]
fn deleted_events_and_vanished_authors_do_not_come_back_from_another_relay() {
    let past: &[&str] = &["expiration", "1700000100"];
    let gone = [
        event_line(1, START, 1, &[], "to be deleted"),
        event_line(2, START, 1, &[], "before vanishing"),
    ];
    let requests = [
        event_line(1, START + 50, 5, &[&["e", &id(&gone[0])], past], ""),
        event_line(2, START + 50, 62, &[&["relay", "ALL_RELAYS"], past], ""),
    ];
    let there = Node::served("away-there", "", &gone);
    let here = Node::new("away-here", "", &requests);
    let before = here.ids("{}");
    assert_eq!(before.len(), 2);
    let done = here.run(&["sync", &there.url(), "--json"]);
    assert_eq!(done.code, 0, "{done:?}");
    let refused = &done.json_of_any()["down"]["not_stored"];
    assert_eq!(refused["deleted"]["events"], 1, "{refused}");
    assert_eq!(refused["vanished"]["events"], 1, "{refused}");
    assert_eq!(here.ids("{}"), before);
    // The requests have the same effect on the relay.
    let done = here.run(&["sync", &there.url(), "--dir", "up", "--json"]);
    assert_eq!((done.code, &done.json_of_any()["up"]["taken"]), (0, &2.into()), "{done:?}");
    assert_eq!(there.ids("{}"), before);
}

/// A relay shows private events to their parties only, so no comparison finds these events.
#[test]
fn the_report_names_the_private_kinds_that_may_stay_on_the_other_side() {
    let shared = notes("shared", 3, START);
    let private = event_line(4, START, 4, &[&["p", &"ab".repeat(32)]], "a message");
    let there = Node::served("private-left-there", "", &all(&[&shared, &[private]]));
    let here = Node::new("private-left-here", "", &shared);
    let left = "private kinds (4, 1059, 21059) stay where they are: the relay shows a key";
    let url = there.url();
    for (filter, kinds, is_told) in
        [("{}", &[4, 1059, 21_059][..], true), (r#"{"kinds":[1,7,30]}"#, &[], false)]
    {
        let sync = ["sync", &url, "--filter", filter];
        let done = here.run(&[&sync[..], &["--json"]].concat());
        let kinds = serde_json::json!(kinds);
        assert_eq!((done.code, &done.json_of_any()["private_kinds_left"]), (0, &kinds), "{done:?}");
        let done = here.run(&sync);
        assert_eq!((done.code, done.stdout.contains(left)), (0, is_told), "{done:?}");
    }
    // With `--private`, this archive sends its own private events, but the relay still hides the
    // others.
    let sync = ["sync", &url, "--private"];
    for (dir, is_told) in [("down", true), ("both", true), ("up", false)] {
        let done = here.run(&[&sync[..], &["--dir", dir]].concat());
        assert_eq!((done.code, done.stdout.contains(left)), (0, is_told), "{dir}: {done:?}");
    }
    assert_eq!(here.ids("{}").len(), 3);
}

/// A stopped run reports the interruption, and the next run continues.
#[test]
fn what_was_stopped_or_cut_off_goes_on_with_the_next_run() {
    let events = notes("there", 6_000, START);
    let mut there = Node::served("stopped-there", "", &events);
    let here = Node::served("stopped-here", "", &[]);
    let running = Running::start(here.command(&["sync", &there.url(), "--json"]));
    std::thread::sleep(std::time::Duration::from_millis(150));
    let stopped = running.stop();
    assert!([130, 0].contains(&stopped.code), "{stopped:?}");
    let url = there.url();
    there.kill();
    let failed = here.run(&["sync", &url, "--json"]);
    assert_eq!((failed.code, &failed.json_of_any()["complete"]), (1, &false.into()), "{failed:?}");
    assert!(failed.stderr.contains("refused") && failed.stderr.contains(&url), "{failed:?}");
    there.serve();
    let done = here.run(&["sync", &there.url(), "--json"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(here.ids("{}"), there.ids("{}"));
}

/// The command gives up after a timeout if the relay does not answer, and Ctrl-C ends the command
/// before the timeout.
#[test]
fn a_relay_that_never_answers_holds_nobody_up() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("ws://{}", silent.local_addr().expect("an address"));
    let here = Node::new("silent", "", &notes("here", 3, START));
    let done = here.run(&["sync", &url, "--timeout", "1"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("no answer within 1 s"), "{done:?}");
    let running = Running::start(here.command(&["sync", &url, "--timeout", "3600", "--json"]));
    // The first connection belongs to the previous run.
    let _both = [silent.accept().expect("it connects"), silent.accept().expect("it connects")];
    let stopped = running.stop();
    assert_eq!(stopped.code, 130, "{stopped:?}");
    assert_eq!(stopped.json_of_any()["interrupted"], true, "{stopped:?}");
}

#[test]
fn what_cannot_be_done_is_said_at_once() {
    let here = Node::new("wrong", "", &notes("here", 3, START));
    let there = Node::served("wrong-there", "", &notes("here", 3, START));
    for (args, code, said) in [
        (vec!["sync", "https://relay.example"], 2, "ws://"),
        (vec!["sync", "ws://127.0.0.1:1"], 1, "ws://127.0.0.1:1"),
        (vec!["sync", "ws://127.0.0.1:70000"], 2, "65535"),
        (vec!["sync", "wss://127.0.0.1:1"], 1, "refused"),
        (vec!["sync", "ws://127.0.0.1:1", "--filter", "{"], 2, "filter"),
        (vec!["sync", "ws://127.0.0.1:1", "--filter", r#"{"limit":5}"#], 2, "no limit"),
        (vec!["sync", "ws://127.0.0.1:1", "--key-file", "nowhere.key"], 1, "nowhere.key"),
        (vec!["sync", "ws://127.0.0.1:1", "--network", "waku"], 2, "leave --network out"),
    ] {
        let done = here.run(&args);
        assert_eq!(done.code, code, "{args:?} {done:?}");
        assert!(done.stderr.contains(said), "{args:?} {done:?}");
    }
    // A failed connection creates no archive.
    let nowhere = here.path("nowhere");
    let ended = hark(&nowhere).args(["sync", "ws://127.0.0.1:1"]).output().expect("it runs");
    assert!(!ended.status.success() && !nowhere.exists(), "{ended:?}");
    let done = here.run(&["sync", &there.url().replace("ws://", "wss://")]);
    assert!(done.code == 1 && done.stderr.contains("No TLS is spoken there"), "{done:?}");
    let done = here.run(&["sync", &there.url()]);
    assert!(done.code == 0 && done.stdout.contains("both are in step"), "{done:?}");
}

#[test]
fn a_database_is_brought_into_step_as_files_are() {
    let shared = notes("shared", 300, START);
    let (left, right) = (notes("left", 40, START + 40), notes("right", 50, START + 90));
    let there = Node::served("database-there", "", &all(&[&shared, &right]));
    let database = Cluster::shared().database("peers");
    let settings = format!("[archive]\nstore = \"{}\"\n", database.url);
    let here = Node::new("database-here", &settings, &all(&[&shared, &left]));
    let done = here.run(&["sync", &there.url(), "--dir", "both", "--json"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(here.ids("{}").len(), 390);
    assert_eq!(here.ids("{}"), there.ids("{}"));
}

/// An archive for members stores no deletion of a stranger that deletes nothing here, and all events
/// of members that its managers have added.
#[test]
fn requests_of_strangers_and_events_of_members_are_judged_like_those_of_clients() {
    let line = |who: u8, kind: u16, tags: &[&[&str]], content: &str| {
        event_line(who, START + u64::from(who), kind, tags, content)
    };
    let unknown = "ab".repeat(32);
    let all: &[&[&str]] = &[&["relay", "ALL_RELAYS"]];
    let long = "x".repeat(20_000);
    let wrap = line(60, 1_059, &[&["p", &pubkey(53)]], "a gift wrap");
    let refused = [
        line(50, 5, &[&["e", &unknown]], "deletes nothing"),
        line(51, 5, &[&["e", &unknown]], &long),
        line(52, 62, all, &long),
        line(4, 1, &[], "of nobody"),
        line(3, 1, &[], "another note of the author of one allowed note"),
    ];
    let stored = [
        line(53, 5, &[&["e", &id(&wrap)]], "deletes the gift wrap"),
        line(54, 62, all, "short"),
        line(1, 1, &[], "of a listed key"),
        line(2, 1, &[], "of an allowed key"),
        event_line(3, START, 1, &[], "an allowed note"),
    ];
    let there = Node::served("requests-there", "", &[&refused[..], &stored[..]].concat());
    let settings = format!("[policy]\nallow_keys = [\"{}\"]\n", pubkey(1));
    for (name, is_served) in [("requests-served", true), ("requests-alone", false)] {
        let mut here = Node::new(name, &settings, std::slice::from_ref(&wrap));
        for allowed in [pubkey(2), format!("id:{}", id(&stored[4]))] {
            let done = here.run(&["allow", &allowed]);
            assert_eq!(done.code, 0, "{done:?}");
        }
        if is_served {
            here.serve();
        }
        let done = here.run(&["sync", &there.url(), "--dir", "down", "--json"]);
        let expected = stored.iter().map(|line| id(line)).collect();
        assert_eq!(here.ids("{}"), expected, "{name}: {done:?}");
    }
}

/// The rule of trusted keys applies as for a client, with the follow lists of this archive.
#[test]
fn events_of_trusted_keys_come_from_another_relay_and_others_do_not() {
    let list = event_line(1, START, 3, &[&["p", &pubkey(2)]], "");
    let line = |who, text| event_line(who, START + 1, 1, &[], text);
    let taken = [line(1, "of the root"), line(2, "of a followed key")];
    let refused = line(3, "of a stranger");
    let there =
        Node::served("trust-there", "", &[&taken[..], std::slice::from_ref(&refused)].concat());
    let settings = format!("[trust]\nmode = \"require\"\nroots = [\"{}\"]\n", pubkey(1));
    for (name, is_served) in [("trust-served", true), ("trust-alone", false)] {
        let mut here = Node::new(name, &settings, std::slice::from_ref(&list));
        if is_served {
            here.serve();
        }
        let done = here.run(&["sync", &there.url(), "--dir", "down", "--json"]);
        let expected = taken.iter().chain([&list]).map(|line| id(line)).collect();
        assert_eq!(here.ids("{}"), expected, "{name}: {done:?}");
    }
}
