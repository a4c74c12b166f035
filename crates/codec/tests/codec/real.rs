//! Checks real events from a file with one JSON object per line, if the file exists. Its path is
//! the value of HARK_REAL_EVENTS or, relative to the workspace, `../shared/data/real-events.jsonl`.

use std::path::PathBuf;

use hark_codec::crypto::SignatureVerifier;
use hark_codec::nostr::{Event, EventArena, VerifiedEvent};
use hark_testkit::skipped::skip;

use crate::support::assert_same;

#[test]
fn ids_and_signatures_of_real_events_hold() {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/real-events.jsonl");
    let path = std::env::var_os("HARK_REAL_EVENTS").map_or_else(|| default.into(), PathBuf::from);
    let Ok(lines) = std::fs::read_to_string(&path) else {
        let path = path.display();
        skip(format_args!("there are no real events at {path}; HARK_REAL_EVENTS names a file"));
        return;
    };
    let mut verifier = SignatureVerifier::new(1024);
    let mut arena = EventArena::new();
    let mut count = 0;
    for (n, line) in lines.lines().enumerate() {
        let event = Event::parse(line.as_bytes(), &mut arena)
            .unwrap_or_else(|error| panic!("line {}: {error}", n + 1));
        assert_same(&event, line);
        VerifiedEvent::check(event, &mut verifier)
            .unwrap_or_else(|error| panic!("line {}: {error}", n + 1));
        let mut written = Vec::new();
        event.write_json(&mut written);
        let again = Event::parse(&written, &mut EventArena::new()).map(|event| event.compute_id());
        assert_eq!(again.as_ref(), Ok(event.id()), "line {}, written again", n + 1);
        count += 1;
    }
    println!("{count} real events hold, from {}", path.display());
}
