//! Large deletions are done in steps, and other writes wait for at most one step.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use hark_archive::effects::Refusal;
use hark_archive::limits::ERASE_STEP;
use hark_archive::writer::{Writer, WriterOptions as Batches};
use hark_archive::{Outcome, Query, RecordHeader, Store, Write};
use hark_networks::nostr::rules::{NostrRules, VANISH};
use hark_store_postgres::{PostgresOptions, PostgresStore};
use hark_testkit::citus::{CitusCluster, is_installed};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::random::encode;

const NOW: u64 = 1_700_000_000;

fn open(database: &Database<'_>) -> Arc<PostgresStore> {
    let store = PostgresStore::open(
        &database.url,
        "nostr",
        Box::new(NostrRules),
        &PostgresOptions::default(),
    );
    Arc::new(store.expect("opens"))
}

/// Runs a test on one server, and on a cluster.
fn on_each(name: &str, test: impl Fn(&Database<'_>)) {
    test(&Cluster::shared().database(name));
    if is_installed() {
        test(&CitusCluster::shared().database(name));
    }
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

/// Returns a request to vanish from this relay (NIP-62).
fn vanish(author: u8) -> Write {
    put(0, author, 62, (VANISH, b""))
}

fn of(author: u8) -> Query {
    Query { authors: Some(vec![[author; 32]]), ..Query::default() }
}

#[test]
fn whoever_puts_meanwhile_waits_for_a_step_of_a_vanishing_and_not_for_all_of_it() {
    on_each("vanish", waits_for_one_step);
}

fn waits_for_one_step(database: &Database<'_>) {
    let (store, other) = (open(database), open(database));
    let count = ERASE_STEP as u32 * 3 + 10;
    store.commit(&(1..=count).map(|n| note(n, 1)).collect::<Vec<_>>()).unwrap();
    let writer = Writer::start(Arc::clone(&store) as _, Batches::default(), Box::new(()));
    let (sender, receiver) = channel();
    let send = |name: &'static str| {
        let sender = sender.clone();
        Box::new(move |outcome: Result<Outcome, _>| {
            let _ = sender.send((name, outcome.unwrap()));
        })
    };
    writer.submit(vanish(1), send("vanish")).unwrap();
    writer.submit(note(100_000, 2), send("here")).unwrap();
    let first = receiver.recv().unwrap();
    assert!(matches!(first, ("here", Outcome::Stored { .. })), "{first:?}");
    // Another node does not wait for the whole deletion either.
    let outcome = other.commit(&[note(100_001, 2)]).unwrap().outcomes;
    assert!(matches!(outcome[..], [Outcome::Stored { .. }]));
    let last = receiver.recv().unwrap();
    assert!(matches!(last, ("vanish", Outcome::Stored { .. })), "{last:?}");
    // The request was stored, so it is the only record left, and its author's old records are
    // refused.
    assert_eq!(store.count(&of(1)).unwrap(), Some(1));
    // This node does not see the other node's last put, as nothing calls its `news`.
    assert_eq!(open(database).count(&of(2)).unwrap(), Some(2));
    assert_eq!(store.stats().records, 3);
    let again = other.commit(&[note(5, 1)]).unwrap().outcomes;
    assert_eq!(again, [Outcome::Refused(Refusal::Vanished)]);
}

#[test]
fn a_vanishing_that_ended_half_way_is_gone_on_with_by_whoever_gets_the_request_next() {
    on_each("vanish again", goes_on_with_a_vanishing);
}

fn goes_on_with_a_vanishing(database: &Database<'_>) {
    let (store, other) = (open(database), open(database));
    let count = ERASE_STEP as u32 * 2 + 10;
    store.commit(&(1..=count).map(|n| note(n, 1)).collect::<Vec<_>>()).unwrap();
    let request = [vanish(1), note(100_000, 2)];
    let done = store.commit_some(&request).unwrap();
    assert_eq!((done.outcomes, done.unfinished), (vec![Outcome::Erased(ERASE_STEP as u64)], true));
    let gone: HashSet<_> = done.erased.iter().map(|(at, id)| (*at, *id)).collect();
    assert_eq!(gone.len(), ERASE_STEP);
    // The node ends here. The request was neither stored nor answered, so the client sends it to
    // another node.
    drop(store);
    let left = open(database).count(&of(1)).unwrap();
    assert_eq!(left, Some(u64::from(count) - ERASE_STEP as u64));
    let outcomes = other.commit(&request).unwrap().outcomes;
    assert!(matches!(outcomes[..], [Outcome::Stored { .. }, Outcome::Stored { .. }]));
    assert_eq!(other.count(&of(1)).unwrap(), Some(1));
}

#[test]
fn an_erase_without_a_limit_comes_to_an_end_though_a_statement_may_not_take_long() {
    on_each("erase much", erases_in_steps);
}

fn erases_in_steps(database: &Database<'_>) {
    let options =
        PostgresOptions { statement_timeout: Duration::from_secs(4), ..PostgresOptions::default() };
    let store = PostgresStore::open(&database.url, "nostr", Box::new(NostrRules), &options);
    let store = store.expect("opens");
    // Records with many labels are long, so a step deletes fewer records.
    let labels: Vec<(u8, Vec<u8>)> =
        (0..2_000).map(|n: u32| (b't', n.to_be_bytes().to_vec())).collect();
    let long = |n: u32| {
        let mut id = [9; 32];
        id[..4].copy_from_slice(&n.to_be_bytes());
        let head = RecordHeader { id, time: NOW, author: Some([3; 32]), kind: 1, expires: None };
        Write::Put(encode(&head, &labels))
    };
    for n in 0..10 {
        store.commit(&(n * 10..n * 10 + 10).map(long).collect::<Vec<_>>()).unwrap();
    }
    let erase = [Write::Erase(Box::new(of(3))), note(1, 1)];
    let step = store.commit_some(&erase).unwrap();
    assert!(step.unfinished && step.outcomes.len() == 1, "{:?}", step.outcomes);
    let Some(Outcome::Erased(first)) = step.outcomes.first() else { panic!("{step:?}") };
    assert!((1..100).contains(first), "{first}");
    let outcomes = store.commit(&erase).unwrap().outcomes;
    assert_eq!(outcomes.first(), Some(&Outcome::Erased(100 - first)));
    assert_eq!(store.count(&of(3)).unwrap(), Some(0));
}

/// Measures the longest step of a large deletion. Another write may have to wait until the current
/// step ends.
#[test]
#[ignore = "takes minutes: scripts/test --long runs it"]
fn many_vanish_in_steps_of_which_the_longest_is_printed() {
    let database = Cluster::shared().database("many vanish");
    let store = open(&database);
    let count = 400_000;
    for first in (1..=count).step_by(1_000) {
        store.commit(&(first..first + 1_000).map(|n| note(n, 1)).collect::<Vec<_>>()).unwrap();
    }
    let (started, mut longest, mut steps) = (Instant::now(), Duration::ZERO, 0);
    loop {
        let step = Instant::now();
        let done = store.commit_some(&[vanish(1)]).unwrap();
        (longest, steps) = (longest.max(step.elapsed()), steps + 1);
        if !done.unfinished {
            break;
        }
    }
    println!("{count} records, {steps} steps in {:?}, the longest {longest:?}", started.elapsed());
    assert_eq!(store.count(&of(1)).unwrap(), Some(1));
}
