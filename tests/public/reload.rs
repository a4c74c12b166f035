//! A new limit applies to busy connections.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use hark_testkit::wait::until;
use hark_testkit::websocket::{masked, read_frame, upgrade};
use serde_json::json;

use crate::cli::support::{Place, notes};

/// Sends queries without a pause. `last` is set to the number of events in the last answer.
fn ask(address: &str, over: &AtomicBool, last: &AtomicUsize) {
    let (_, mut socket) = upgrade(address, "").unwrap();
    read_frame(&mut socket).unwrap();
    let req = json!(["REQ", "s", {"limit": 500}]).to_string();
    while !over.load(Ordering::Relaxed) {
        socket.get_mut().write_all(&masked(0x81, req.as_bytes())).unwrap();
        let mut events = 0;
        loop {
            let (_, text) = read_frame(&mut socket).unwrap();
            if text.starts_with(b"[\"EOSE\"") {
                break;
            }
            assert!(text.starts_with(b"[\"EVENT\""), "{}", String::from_utf8_lossy(&text));
            events += 1;
        }
        last.store(events, Ordering::Relaxed);
    }
}

#[test]
fn a_changed_limit_holds_at_once_under_load() {
    let place = Place::new("reload-under-load");
    let config = |limit: usize| {
        let text = format!(
            "[limits]\nlimit_max = {limit}\nlimit_default = 1\n\n[log]\nlevel = \"error\"\n\n\
             [rates]\nquestions_per_address = [0, 0]\nrows_per_connection = [0, 0]\n\
             rows_per_address = [0, 0]\n"
        );
        place.file("hark.toml", text.as_bytes())
    };
    let file = config(10);
    assert_eq!(place.hark_fed(&["import", "--json"], notes(300).as_bytes()).json()["stored"], 300);
    let server = place.serve_with(&["--config", &file]);
    let over = AtomicBool::new(false);
    let last: [AtomicUsize; 4] = Default::default();
    thread::scope(|scope| {
        let (address, over) = (&server.address, &over);
        let ask = |last| scope.spawn(move || ask(address, over, last));
        let askers: Vec<_> = last.iter().map(ask).collect();
        for limit in (11..).step_by(10).take(10) {
            config(limit);
            // If the relay's limit cuts an answer, the relay adds the remaining events of the last
            // second: up to two notes.
            let has =
                |last: &AtomicUsize| (limit..limit + 3).contains(&last.load(Ordering::Relaxed));
            until("the limit is in force", || {
                let ended = askers.iter().any(thread::ScopedJoinHandle::is_finished);
                assert!(!ended, "an asker was turned away");
                last.iter().all(has)
            });
        }
        over.store(true, Ordering::Relaxed);
    });
    let (code, _) = server.terminate();
    assert_eq!(code, 0);
}
