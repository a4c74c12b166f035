//! Large deletions take several steps, and an interrupted request to vanish continues.

use std::path::Path;
use std::time::{Duration, Instant};

use hark_archive::effects::Refusal;
use hark_archive::limits::ERASE_STEP;
use hark_archive::{Outcome, Query, RecordHeader, Store, Write};
use hark_networks::nostr::rules::{NostrRules, VANISH};
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
use hark_testkit::folder::Folder;
use hark_testkit::random::encode;

const NOW: u64 = 1_700_000_000;

/// Opens a store with small segments, so that the deleted records are in several segments and in
/// the head.
fn open(dir: &Path) -> EmbeddedStore {
    let options = EmbeddedOptions { seal_records: 700, ..EmbeddedOptions::default() };
    EmbeddedStore::open(dir, Box::new(NostrRules), options).expect("opens")
}

fn put(number: u32, author: u8, kind: u32, label: (u8, &[u8])) -> Write {
    let mut id = [7; 32];
    id[..4].copy_from_slice(&number.to_be_bytes());
    let time = NOW - u64::from(number);
    let head = RecordHeader { id, time, author: Some([author; 32]), kind, expires: None };
    Write::Put(encode(&head, &[(label.0, label.1.to_vec())]))
}

fn note(number: u32, author: u8) -> Write {
    put(number, author, 1, (b't', b"a"))
}

fn of(author: u8) -> Query {
    Query { authors: Some(vec![[author; 32]]), ..Query::default() }
}

#[test]
fn a_vanishing_that_ended_half_way_is_gone_on_with_by_who_sends_it_again() {
    let dir = Folder::on_disk("steps");
    let store = open(&dir);
    let count = ERASE_STEP as u32 * 2 + 10;
    store.commit(&(1..=count).map(|n| note(n, 1)).collect::<Vec<_>>()).unwrap();
    let request = [put(0, 1, 62, (VANISH, b"")), note(100_000, 2)];
    let step = store.commit_some(&request).unwrap();
    assert_eq!((step.outcomes, step.unfinished), (vec![Outcome::Erased(ERASE_STEP as u64)], true));
    assert_eq!(step.erased.len(), ERASE_STEP);
    drop(store);
    let store = open(&dir);
    let left = u64::from(count) - ERASE_STEP as u64;
    assert_eq!(store.count(&of(1)).unwrap(), Some(left), "the request is not among them");
    let whole = store.commit(&request).unwrap();
    assert!(matches!(whole.outcomes[..], [Outcome::Stored { .. }, Outcome::Stored { .. }]));
    assert_eq!(whole.erased.len() as u64, left);
    assert!(whole.erased.iter().all(|(by, _)| *by == 0));
    assert_eq!(store.count(&of(1)).unwrap(), Some(1));
    assert_eq!(store.count(&of(2)).unwrap(), Some(1));
    let again = store.commit(&[note(5, 1)]).unwrap().outcomes;
    assert_eq!(again, [Outcome::Refused(Refusal::Vanished)]);
}

#[test]
fn an_erase_says_how_many_went_in_all_its_steps_and_no_more_than_its_limit() {
    let dir = Folder::on_disk("erases");
    let store = open(&dir);
    let count = ERASE_STEP * 3;
    store.commit(&(1..=count as u32).map(|n| note(n, 1)).collect::<Vec<_>>()).unwrap();
    let limit = ERASE_STEP * 2 + 5;
    let writes = [
        Write::Erase(Box::new(Query { limit, ..of(1) })),
        note(100_000, 2),
        Write::Erase(Box::new(of(1))),
    ];
    let done = store.commit(&writes).unwrap();
    let rest = (count - limit) as u64;
    assert!(
        matches!(done.outcomes[..], [Outcome::Erased(first), Outcome::Stored { .. },
        Outcome::Erased(last)] if first == limit as u64 && last == rest),
        "{:?}",
        done.outcomes
    );
    assert_eq!(done.erased.iter().filter(|(by, _)| *by == 2).count() as u64, rest);
}

/// Prints the duration of the longest step in a large store; other writes wait for at most one
/// step.
#[test]
#[ignore = "takes minutes: scripts/test --long runs it"]
fn a_million_vanish_in_steps_of_which_the_longest_is_printed() {
    let dir = Folder::on_disk("million");
    let store =
        EmbeddedStore::open(&dir, Box::new(NostrRules), EmbeddedOptions::default()).expect("opens");
    let count = 1_000_000;
    for first in (1..=count).step_by(1_000) {
        store.commit(&(first..first + 1_000).map(|n| note(n, 1)).collect::<Vec<_>>()).unwrap();
    }
    let request = [put(0, 1, 62, (VANISH, b""))];
    let (started, mut longest, mut steps) = (Instant::now(), Duration::ZERO, 0);
    loop {
        let step = Instant::now();
        let done = store.commit_some(&request).unwrap();
        (longest, steps) = (longest.max(step.elapsed()), steps + 1);
        if !done.unfinished {
            break;
        }
    }
    println!("{count} records, {steps} steps in {:?}, the longest {longest:?}", started.elapsed());
    assert_eq!(store.count(&of(1)).unwrap(), Some(1));
}
