//! Every command beside a running server, and the server's own start and end.

use std::net::TcpListener;

use hark_testkit::nostr::event_line;
use hark_testkit::wait::until;

use super::support::{Place, notes};

#[test]
fn commands_work_beside_a_running_server() {
    let place = Place::new("beside");
    let server = place.serve();
    let notes = notes(600);
    let report = place.hark_fed(&["import", "--json"], notes.as_bytes()).json();
    assert_eq!(report["stored"], 600, "{report}");
    assert_eq!(place.hark(&["count", "{}"]).text(), "600\n");
    assert_eq!(place.hark(&["query", "{\"limit\":3}"]).text().lines().count(), 3);
    let export = place.hark(&["export"]).text();
    let stats = place.hark(&["stats", "--json"]).json();
    assert_eq!((&stats["records"], &stats["server_running"]), (&600.into(), &true.into()));
    assert_eq!(
        (&stats["server"]["connections"], &stats["server"]["writes"]),
        (&0.into(), &600.into())
    );
    let table = place.hark(&["stats"]).text();
    assert!(table.contains("a server is running") && table.contains("events accepted"), "{table}");
    assert!(place.hark(&["explain", "--run", "{\"kinds\":[1]}"]).text().contains("plan: "));
    let top = place.hark(&["top", "--json", "--limit", "1"]).json();
    assert_eq!((&top["records"], &top["kind"]["groups"]), (&600.into(), &1.into()), "{top}");
    assert_eq!(
        (&top["kind"]["top"][0]["kind"], &top["bytes"]),
        (&1.into(), &top["kind"]["top"][0]["bytes"])
    );
    let again = place.hark_fed(&["import", "--json"], notes.as_bytes()).json();
    assert_eq!(again["refused"]["duplicate"], 600, "{again}");
    let newer = event_line(1, 9, 0, &[], "newer") + &event_line(1, 8, 0, &[], "older");
    let rules = place.hark_fed(&["import", "--json"], newer.as_bytes()).json();
    assert_eq!(rules["refused"]["superseded"], 1, "{rules}");
    let filter = "{\"#t\":[\"bread\"]}";
    assert!(place.hark(&["delete", filter]).text().contains("150 events match"));
    assert_eq!(place.hark(&["delete", "--yes", filter]).text(), "150 events deleted\n");
    place.hark(&["compact"]).text();
    assert_eq!(place.hark(&["count", "{}"]).text(), "451\n");
    let top = place.hark(&["top", "--by", "author"]).text();
    assert!(top.contains("451 events  100.0 %") && top.contains("  62c0a046"), "{top}");
    assert_eq!(place.hark(&["check", "--json"]).json()["faults"], serde_json::json!([]));
    let rebuild = place.hark(&["rebuild"]);
    assert!(rebuild.code == 1 && rebuild.stderr.contains("holds the archive"), "{rebuild:?}");
    let second = place.hark(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(second.code == 1 && second.stderr.contains("holds the archive"), "{second:?}");
    assert!(second.stderr.contains("let `hark serve --takeover` take its place"), "{second:?}");
    let (code, logged) = server.terminate();
    assert_eq!(code, 0, "{logged}");
    assert!(logged.contains("closed"), "{logged}");
    let kept = place.hark(&["export"]).text();
    assert_eq!(kept.lines().count(), 451);
    assert!(kept.lines().filter(|line| line.contains("note")).all(|line| export.contains(line)));
    assert_eq!(place.hark(&["rebuild", "--json"]).code, 0);
    assert_eq!(place.hark(&["export"]).text(), kept);
}

#[test]
fn a_taken_port_is_said_and_the_archive_let_go() {
    let place = Place::new("port");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let run = place.hark(&["serve", "--listen", &address]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    assert!(run.stderr.contains(&format!("cannot listen on {address}")), "{}", run.stderr);
    assert_eq!(run.stderr.matches("Address already in use").count(), 1, "{}", run.stderr);
    drop(taken);
    let server = place.serve();
    assert!(server.address.starts_with("127.0.0.1:"));
    assert_eq!(server.terminate().0, 0);
}

#[test]
fn as_many_files_are_allowed_as_may_be() {
    let place = Place::new("files");
    let server = place.serve();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.id())).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let mut words = line.split_whitespace();
    let (soft, hard) = (words.next().unwrap(), words.next().unwrap());
    assert_eq!(soft, hard);
    assert_eq!(server.terminate().0, 0);
}

#[test]
fn unlimited_says_so_loudly() {
    let place = Place::new("unlimited");
    let mut child = place.start(&["serve", "--listen", "127.0.0.1:0", "--unlimited"]);
    let mut first = String::new();
    let stdout = child.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut first).unwrap();
    child.signal("INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("RATE LIMITS ARE OFF"));
}

#[test]
fn localhost_is_an_address_to_listen_on_and_a_name_without_one_is_refused() {
    let place = Place::new("localhost");
    let mut child = place.start(&["serve", "--listen", "localhost:0"]);
    let mut first = String::new();
    let stdout = child.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut first).unwrap();
    child.signal("TERM");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(first.starts_with("listening on ws://127.0.0.1:"), "{first}");
    let run = place.hark(&["serve", "--listen", "no-such-host.invalid:0"]);
    let said = "cannot listen on no-such-host.invalid:0: the name cannot be resolved";
    assert!(run.code == 1 && run.stderr.contains(said), "{run:?}");
    for text in ["7777", "127.0.0:7777", "ws://127.0.0.1:7777"] {
        let run = place.hark(&["serve", "--listen", text]);
        assert!(run.code == 2 && run.stderr.contains("must be an address and port"), "{run:?}");
    }
}

#[test]
fn statistics_right_after_a_start_have_no_age_of_zero() {
    let place = Place::new("stats-at-start");
    let server = place.serve();
    // The slow check of an empty archive has nothing to read.
    until("the slow check ends", || {
        place.hark(&["stats", "--json"]).json()["server"]["scrub"]["passes"] != 0
    });
    let table = place.hark(&["stats"]).text();
    let (_, age) = table.split_once("the last ended ").unwrap_or_else(|| panic!("{table}"));
    let is_age = |words: &str| words.starts_with("just now,") || words.contains(" ago,");
    assert!(is_age(age) && !age.starts_with('0'), "{table}");
    assert_eq!(server.terminate().0, 0);
}

/// The longest record of an accepted configuration was longer than the longest frame.
#[test]
fn a_long_event_is_imported_beside_a_server() {
    let place = Place::new("beside-long");
    let flags = ["--config", &place.file("hark.toml", b"[limits]\nevent_bytes_max = 4000000\n")];
    let server = place.serve_with(&flags);
    let event = event_line(1, 1_700_000_000, 1, &[], &"x".repeat(3_000_000));
    let args = [&["import", "--json"][..], &flags].concat();
    let report = place.hark_fed(&args, event.as_bytes()).json();
    assert_eq!(report["stored"], 1, "{report}");
    assert_eq!(server.terminate().0, 0);
}
