//! Tests that deletions and requests to vanish stay in force while retention runs for 30 days.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::clock::Clock;
use hark_archive::effects::Refusal;
use hark_archive::retention::{RetentionPolicy, RetentionRule};
use hark_archive::writer::{Writer, WriterOptions};
use hark_archive::{Outcome, Query, Store, Write};
use hark_codec::crypto::KeyPair;
use hark_codec::hex::encode_32;
use hark_codec::nostr::{Event, EventArena, EventDraft, EventEncoder};
use hark_networks::Network as _;
use hark_networks::nostr::Nostr;
use hark_networks::nostr::admit::{OwnUrls, PrivateLabels};

const DAY_S: u64 = 86_400;
const START_S: u64 = 1_800_000_000;

/// Returns the write of an event, signed by `who`, and its id as hex.
fn put(who: u8, created_at: u64, kind: u16, tags: &[&[&str]]) -> (Write, String) {
    let keys = KeyPair::from_secret([who; 32]).expect("is a secret key");
    let (mut json, mut arena, mut record) = (Vec::new(), EventArena::new(), Vec::new());
    EventDraft { created_at, kind, tags, content: "" }.sign(&keys, &mut json);
    let event = Event::parse(&json, &mut arena).expect("is an event");
    let private = PrivateLabels::of(&event, &OwnUrls::default());
    EventEncoder::default().encode(&event, private.labels(), &mut record);
    (Write::Put(record.into()), text(encode_32(event.id())))
}

fn text(digits: [u8; 64]) -> String {
    String::from_utf8(digits.to_vec()).expect("is hex")
}

/// Asserts that a store of Nostr events refuses deleted events and events of vanished authors for
/// 30 days. The requests to delete and to vanish expire soon and match a retention rule, so the
/// store would delete them earlier if they were not protected. `reopen` is called each day and
/// returns the store.
pub fn hold_for_thirty_days(mut reopen: impl FnMut() -> Arc<dyn Store>) {
    let key = |who: u8| text(encode_32(KeyPair::from_secret([who; 32]).expect("a key").public()));
    let soon = (START_S + 10).to_string();
    let expires: &[&str] = &["expiration", &soon];
    let (deleted, id) = put(1, START_S - 10, 1, &[]);
    let away = [
        (deleted, Refusal::Deleted),
        (put(2, START_S - 10, 1, &[]).0, Refusal::Vanished),
        (put(2, START_S - 9, 0, &[]).0, Refusal::Vanished),
        (put(9, START_S - 8, 1059, &[&["p", &key(2)]]).0, Refusal::Vanished),
    ];
    let requests = [
        put(1, START_S, 5, &[&["e", &id], expires]).0,
        put(2, START_S, 62, &[&["relay", "ALL_RELAYS"], expires]).0,
    ];
    let policy = RetentionPolicy {
        rules: vec![RetentionRule::default()],
        records_max: Some(1),
        tombstone_kinds: Nostr.tombstone_kinds().to_vec(),
        clock_ahead_max_s: None,
        ..RetentionPolicy::default()
    };
    let clock = Clock::fake(START_S);
    let first = reopen();
    let writes: Vec<Write> = away.iter().map(|(write, _)| write.clone()).chain(requests).collect();
    first.commit(&writes).expect("is stored");
    drop(first);
    for day in 0..=30 {
        let now = START_S + day * DAY_S;
        clock.set(now);
        let store = reopen();
        // An expiring event that is not a request, so that retention has something to delete.
        let (note, _) = put(3, now - 5, 1, &[expires]);
        store.commit(&[note]).expect("is stored");
        let writer = Writer::start(Arc::clone(&store), WriterOptions::default(), Box::new(()));
        while policy.step(&*store, &writer, &clock).expect("works").total() > 0 {}
        for (write, refusal) in &away {
            let outcome = writer.write(write.clone()).expect("is answered");
            assert_eq!(outcome, Outcome::Refused(*refusal), "day {day}");
        }
        writer.close();
        // Other relays can still read the requests, and so delete the same events.
        let mut kinds = Vec::new();
        let all = Query { now, ..Query::default() };
        let mut search = store.search(&all).expect("works");
        let each = &mut |record: &hark_archive::Record<'_>| {
            kinds.push(record.kind());
            ControlFlow::Continue(())
        };
        search.slice(u64::MAX, each).expect("works");
        kinds.sort_unstable();
        assert_eq!(kinds, [5, 62], "day {day}");
    }
}
