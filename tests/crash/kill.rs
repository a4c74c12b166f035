//! The server is killed under load: every event that got its OK is stored afterwards.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hark_archive::{Id, Store as _};
use hark_codec::hex;
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
use hark_testkit::clock::now_s;
use hark_testkit::nostr::{keys, publication, publish};
use hark_testkit::random::Random;
use hark_testkit::runs::is_long;
use hark_testkit::wait::until;
use hark_testkit::websocket::Socket;
use parking_lot::Mutex;

use crate::served::{Place, hark};

/// Publishes until the server is killed. Returns the ids of the events that got their OK.
/// `answered` counts these events.
fn load(address: &str, round: u64, now: u64, answered: &AtomicUsize) -> Vec<Id> {
    let keys = keys(9);
    let mut acknowledged = Vec::new();
    let mut numbers = 0u64..;
    publish(
        Socket::connect(address),
        400,
        || {
            let n = numbers.next()?;
            let content = format!("round {round}, note {n} {}", "x".repeat((n % 200) as usize));
            Some(publication(&keys, now - n % 1_000, 1, &[&["t", "load"]], &content).0)
        },
        |id, verdict| {
            assert!(verdict.starts_with(b"\",true"), "{}", String::from_utf8_lossy(verdict));
            acknowledged.push(id);
            answered.fetch_add(1, Ordering::Relaxed);
        },
    );
    acknowledged
}

#[test]
fn every_event_that_got_its_ok_is_there_after_kill_9() {
    // Heads are small, so that the kill also interrupts sealing and merging.
    let place = Place::new("kill", "[archive]\nseal_records = 1000\n");
    let data = place.data();
    let mut random = Random::new(2);
    let mut acknowledged: Vec<Id> = Vec::new();
    let rounds = if is_long() { 20 } else { 5 };
    let now = now_s();
    for round in 0..rounds {
        let mut server = place.start();
        let address = server.address.clone();
        let answered = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&answered);
        let loading = std::thread::spawn(move || load(&address, round, now, &counted));
        until("an event gets its OK", || answered.load(Ordering::Relaxed) > 0);
        // The kill comes at a random moment.
        std::thread::sleep(Duration::from_millis(300 + random.below(700) as u64));
        server.kill();
        let fresh = loading.join().expect("the client goes on to the end");
        assert!(!fresh.is_empty(), "no event was acknowledged");
        acknowledged.extend(fresh);

        let server = place.start();
        let reader = EmbeddedStore::open_read_only(&data.join("nostr"), EmbeddedOptions::default())
            .expect("opens beside the server");
        let known = |id: &&Id| !reader.knows(id).expect("answers");
        let lost = acknowledged.iter().filter(known).count();
        assert_eq!(lost, 0, "of {} events with an OK, round {round}", acknowledged.len());
        let checked = hark(&data).arg("check").output().expect("runs");
        let said = String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.success() && said.contains("no faults"), "{said}");
        drop(server);
    }
    println!("{rounds} kills, {} events acknowledged", acknowledged.len());
}

/// Maximum number of events of a client without an OK.
const WINDOW: usize = 100;

/// Publishes notes and deletes a third of the notes, until the server is killed. Returns the ids of
/// the kept notes and of the deleted notes whose writes got their OK. `answered` counts the
/// deletions that got their OK.
fn load_and_delete(
    address: &str,
    round: u64,
    now: u64,
    answered: &AtomicUsize,
) -> (Vec<Id>, Vec<Id>) {
    let keys = keys(8);
    let (mut kept, mut deleted) = (Vec::new(), Vec::new());
    // The target of each sent event, by the event's id. `None` if the event deletes nothing.
    let sent: Mutex<HashMap<Id, Option<Id>>> = Mutex::default();
    let (mut numbers, mut notes) = (0u64.., VecDeque::new());
    publish(
        Socket::connect(address),
        WINDOW,
        || {
            let n = numbers.next()?;
            // The deletion of a note is sent after the note's OK, since the deletion might
            // otherwise arrive first.
            if n % 4 == 3 && notes.len() > WINDOW {
                let target = notes.pop_front()?;
                let target_hex = hex::encode_32(&target);
                let target_hex = std::str::from_utf8(&target_hex).expect("hex digits");
                let (message, id) = publication(&keys, now, 5, &[&["e", target_hex]], "");
                sent.lock().insert(id, Some(target));
                return Some(message);
            }
            let content = format!("round {round}, note {n} {}", "y".repeat((n % 200) as usize));
            let (message, id) = publication(&keys, now - n % 1_000, 1, &[], &content);
            sent.lock().insert(id, None);
            notes.push_back(id);
            Some(message)
        },
        |id, verdict| {
            assert!(verdict.starts_with(b"\",true"), "{}", String::from_utf8_lossy(verdict));
            match sent.lock()[&id] {
                Some(target) => {
                    deleted.push(target);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                None => kept.push(id),
            }
        },
    );
    // A deletion without an OK may still have been applied.
    let doubtful: HashSet<Id> = sent.lock().values().flatten().copied().collect();
    kept.retain(|id| !doubtful.contains(id));
    (kept, deleted)
}

#[test]
fn what_was_not_deleted_is_there_after_kill_9_while_the_rest_is_erased() {
    // With these settings, files are rewritten all the time.
    let text = "[archive]\nseal_records = 500\n[retention]\nerase_within = \"1s\"\n";
    let place = Place::new("kill-erasing", text);
    let data = place.data();
    let mut random = Random::new(3);
    let (mut kept, mut deleted) = (Vec::new(), Vec::new());
    let rounds = if is_long() { 20 } else { 4 };
    let now = now_s();
    for round in 0..rounds {
        let mut server = place.start();
        let address = server.address.clone();
        let answered = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&answered);
        let loading = std::thread::spawn(move || load_and_delete(&address, round, now, &counted));
        until("a deletion gets its OK", || answered.load(Ordering::Relaxed) > 0);
        // The kill comes at a random moment.
        let end = Instant::now() + Duration::from_millis(1_000 + random.below(1_500) as u64);
        let open = || {
            EmbeddedStore::open_read_only(&data.join("nostr"), EmbeddedOptions::default())
                .expect("opens beside the server")
        };
        while Instant::now() < end {
            // A reader opens the archive while maintenance replaces files.
            let reader = open();
            let is_lost = |id: &&Id| !reader.knows(id).expect("answers");
            assert_eq!(kept.iter().filter(is_lost).count(), 0, "round {round}");
        }
        server.kill();
        let (stayed, gone) = loading.join().expect("the client goes on to the end");
        assert!(!stayed.is_empty() && !gone.is_empty(), "nothing was acknowledged");
        kept.extend(stayed);
        deleted.extend(gone);

        let server = place.start();
        let reader = open();
        let lost = kept.iter().filter(|id| !reader.knows(id).expect("answers")).count();
        assert_eq!(lost, 0, "of {} events with an OK, round {round}", kept.len());
        let back = deleted.iter().filter(|id| reader.knows(id).expect("answers")).count();
        assert_eq!(back, 0, "of {} deleted events, round {round}", deleted.len());
        let checked = hark(&data).arg("check").output().expect("runs");
        let said = String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.success() && said.contains("no faults"), "{said}");
        drop(server);
    }
    println!("{rounds} kills, {} events stayed, {} were deleted", kept.len(), deleted.len());
}
