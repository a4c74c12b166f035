//! A second signal ends a command or a server immediately, with a message.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use hark_testkit::nostr::event_line;
use hark_testkit::program::Process;
use hark_testkit::wait::until;
use hark_testkit::websocket::Socket;

use super::support::{Place, notes};

/// Interrupts a command until the process has ended: signals in quick succession may count as a
/// single signal.
fn interrupt_until_it_ends(child: &mut Process) {
    until("the command ends", || {
        let has_ended = child.try_wait().unwrap().is_some();
        if !has_ended {
            child.signal("INT");
        }
        has_ended
    });
}

#[test]
fn an_export_that_is_interrupted_twice_names_what_it_leaves() {
    let place = Place::new("interrupted-twice");
    place.hark_fed(&["import"], notes(3_000).as_bytes()).text();
    let (output, unfinished) = (place.path("out.jsonl"), place.path("out.jsonl.unfinished"));
    // Nothing reads from the pipe, so the export waits for ever.
    assert!(Command::new("mkfifo").arg(&unfinished).status().unwrap().success());
    let mut child = place.start(&["export", "--output", &output]);
    let reader = File::open(&unfinished).unwrap();
    interrupt_until_it_ends(&mut child);
    let run = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(130), "{said}");
    assert!(said.contains("asked a second time to stop"), "{said}");
    assert!(said.contains(&format!("{unfinished} holds a part of the export")), "{said}");
    drop(reader);
    // The next export replaces the unfinished file of the first.
    std::fs::remove_file(&unfinished).unwrap();
    place.file("out.jsonl.unfinished", b"a part");
    place.hark(&["export", "--output", &output]).text();
    assert_eq!(std::fs::read_to_string(&output).unwrap().lines().count(), 3_000);
    assert!(!Path::new(&unfinished).exists());
}

#[test]
fn a_server_that_is_asked_twice_to_end_says_that_it_ends_at_once() {
    let place = Place::new("ended-twice");
    let events = (0..300).map(|n| event_line(1, 1_700_000_000 + n, 1, &[], &"x".repeat(100_000)));
    place.hark_fed(&["import", "--trusted"], events.collect::<String>().as_bytes()).text();
    let file = place.file("hark.toml", b"[limits]\ndrain_timeout_ms = 600000\n");
    let mut server = place.serve_with(&["--config", &file]);
    // A client that does not read the requested events.
    let mut socket = Socket::connect(&server.address);
    socket.send_text("[\"REQ\",\"a\",{\"limit\":300}]");
    assert!(socket.receive().is_some());
    // All buffers on the path are full once the size of the server's own buffer is above zero and
    // constant.
    let outbox = || place.hark(&["stats", "--json"]).json()["server"]["outbox_bytes"].as_u64();
    let mut before = None;
    until("the buffers are full", || {
        std::thread::sleep(Duration::from_millis(100));
        let now = outbox();
        let is_constant = now > Some(0) && now == before;
        before = now;
        is_constant
    });
    server.signal("TERM");
    server.wait_for_log("asked to end");
    server.signal("TERM");
    server.wait_for_log("asked a second time to end");
    assert_eq!(server.wait().unwrap().code(), Some(130));
}
