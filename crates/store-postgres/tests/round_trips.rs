//! A commit takes a bounded number of round trips, regardless of the effects of its records.

use hark_archive::store::commit_whole;
use hark_archive::{Outcome, Query, RecordHeader, Store, Write};
use hark_codec::hex::encode_32 as hex;
use hark_networks::nostr::rules::{NostrRules, SLOT, VANISH};
use hark_store_postgres::{PostgresOptions, PostgresStore};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::random::encode;

const NOW: u64 = 1_700_000_000;
/// Maximum number of round trips of a commit, which reads, deletes, inserts in four tables, and
/// advances the shelf.
const TRIPS_MAX: u64 = 10;
/// Maximum number of round trips of a commit if two queries need a search. A search needs round
/// trips to plan and to read.
const SEARCHING_TRIPS_MAX: u64 = 24;

fn open(database: &Database<'_>) -> PostgresStore {
    let options = PostgresOptions::default();
    PostgresStore::open(&database.url, "nostr", Box::new(NostrRules), &options).expect("opens")
}

fn id(number: u32) -> [u8; 32] {
    let mut id = [7; 32];
    id[..4].copy_from_slice(&number.to_be_bytes());
    id
}

fn put(number: u32, author: u8, kind: u32, labels: &[(u8, Vec<u8>)]) -> Write {
    let time = NOW + u64::from(number);
    let head =
        RecordHeader { id: id(number), time, author: Some([author; 32]), kind, expires: None };
    Write::Put(encode(&head, labels))
}

fn addressable(number: u32, author: u8, kind: u32, d: &str) -> Write {
    put(number, author, kind, &[(SLOT, d.as_bytes().to_vec())])
}

fn address(author: u8, kind: u32, d: &str) -> (u8, Vec<u8>) {
    (b'a', format!("{kind}:{}:{d}", String::from_utf8_lossy(&hex(&[author; 32]))).into_bytes())
}

fn wrap(number: u32, recipient: u8) -> Write {
    put(number, 200, 1059, &[(b'p', hex(&[recipient; 32]).to_vec())])
}

fn named(number: u32) -> (u8, Vec<u8>) {
    (b'e', hex(&id(number)).to_vec())
}

/// Returns the number of statements, or groups of statements, that the database has answered.
fn trips(store: &PostgresStore) -> u64 {
    let statements = store.stats().database.expect("is there").statements;
    statements.iter().map(|(_, times)| times.count()).sum()
}

/// Carries out writes in steps. Returns the outcomes, the number of steps, and the highest number
/// of round trips of a step.
fn carry_out(store: &PostgresStore, writes: &[Write]) -> (Vec<Outcome>, u64, u64) {
    let steps = std::cell::Cell::new((0, 0));
    let done = commit_whole(writes, |writes| {
        let before = trips(store);
        let done = store.commit_some(writes);
        let (count, most) = steps.get();
        steps.set((count + 1, most.max(trips(store) - before)));
        done
    });
    let (count, most) = steps.get();
    (done.expect("commits").outcomes, count, most)
}

fn count(store: &PostgresStore, query: &Query) -> u64 {
    store.count(query).expect("counts").expect("is known")
}

#[test]
fn a_deletion_of_addresses_of_many_kinds_takes_a_few_round_trips() {
    let database = Cluster::shared().database("addresses");
    let store = open(&database);
    let mut stored: Vec<Write> = Vec::new();
    for kind in 0..64 {
        for d in 0..2 {
            let number = 2 * kind + d;
            stored.push(addressable(number, 1, 30_000 + kind, &d.to_string()));
            stored.push(addressable(1_000 + number, 2, 30_000 + kind, &d.to_string()));
        }
    }
    // Replaceable events, and a version that is newer than the deletion.
    stored.extend((0..40).map(|kind| put(3_000 + kind, 1, 10_000 + kind, &[])));
    stored.push(addressable(9_000, 1, 30_000, "new"));
    store.commit(&stored).expect("commits");
    let mut addresses: Vec<_> = (0..64)
        .flat_map(|kind| (0..2).map(move |d| address(1, 30_000 + kind, &d.to_string())))
        .collect();
    addresses.extend((0..40).map(|kind| address(1, 10_000 + kind, "")));
    addresses.push(address(1, 30_000, "new"));
    // Addresses of another author delete nothing.
    addresses.extend((0..64).map(|kind| address(2, 30_000 + kind, "0")));
    let (outcomes, steps, most) = carry_out(&store, &[put(5_000, 1, 5, &addresses)]);
    assert!(matches!(outcomes[..], [Outcome::Stored { .. }]), "{outcomes:?}");
    assert!(steps == 1 && most <= TRIPS_MAX, "{steps} steps, {most} round trips");
    let of = |author: u8| Query { authors: Some(vec![[author; 32]]), ..Query::default() };
    assert_eq!(count(&store, &of(1)), 2, "the newer version, and the deletion");
    assert_eq!(count(&store, &of(2)), 128);
    assert_eq!(store.stats().records, 130);
    let again = store.commit(&[addressable(4_000, 1, 30_001, "0")]).expect("commits").outcomes;
    assert!(matches!(again[..], [Outcome::Refused(_)]), "{again:?}");
}

#[test]
fn many_deletions_of_events_and_gift_wraps_take_a_few_round_trips() {
    let database = Cluster::shared().database("named");
    let store = open(&database);
    let mut stored: Vec<Write> = (0..600).map(|n| put(n, 1 + (n % 3) as u8, 1, &[])).collect();
    stored.extend((600..700).map(|n| wrap(n, 1 + (n % 3) as u8)));
    stored.push(put(700, 1, 5, &[named(100_000)]));
    store.commit(&stored).expect("commits");
    // Each deletion names all stored events, including other authors' events and a deletion, and an
    // event of its own batch.
    let all: Vec<_> = (0..=700).map(named).chain([named(2_000)]).collect();
    let deletions = [put(1_000, 1, 5, &all), put(2_000, 2, 1, &[]), put(1_001, 2, 5, &all)];
    let (outcomes, steps, most) = carry_out(&store, &deletions);
    let is_stored = |outcome: &Outcome| matches!(outcome, Outcome::Stored { .. });
    assert!(outcomes.iter().all(is_stored) && outcomes.len() == 3, "{outcomes:?}");
    assert!(steps <= 2 && most <= TRIPS_MAX, "{steps} steps, {most} round trips");
    let of = |author: u8, kind| {
        let authors = Some(vec![[author; 32]]);
        count(&store, &Query { authors, kinds: Some(vec![kind]), ..Query::default() })
    };
    assert_eq!([of(1, 1), of(2, 1), of(3, 1)], [0, 0, 200]);
    assert_eq!([of(1, 5), of(2, 5)], [2, 1]);
    // Only the gift wraps for the third author are left.
    let for_third = (600..700).filter(|n| n % 3 == 2).count() as u64;
    assert_eq!(count(&store, &Query { kinds: Some(vec![1059]), ..Query::default() }), for_third);
}

#[test]
fn a_step_looks_up_and_searches_no_more_than_its_bound_whatever_a_batch_names() {
    let database = Cluster::shared().database("bounded");
    let store = open(&database);
    let notes: Vec<Write> = (0..200).map(|n| put(n, n as u8, 1, &[])).collect();
    store.commit(&notes).expect("commits");
    // Ten deletions, which together name more events than a step looks up, and twenty requests to
    // vanish.
    let many = |n: u32| (0..1_000).map(|e| named(10_000 + n * 1_000 + e)).collect::<Vec<_>>();
    let mut batch: Vec<Write> = (0..10).map(|n| put(1_000 + n, 250, 5, &many(n))).collect();
    batch.extend((0..20).map(|n| put(2_000 + n, n as u8, 62, &[(VANISH, Vec::new())])));
    batch.extend((0..100).map(|n| put(3_000 + n, 251, 1, &[])));
    let (outcomes, steps, most) = carry_out(&store, &batch);
    assert_eq!(outcomes.len(), batch.len());
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Stored { .. })));
    assert!((25..=60).contains(&steps) && most <= SEARCHING_TRIPS_MAX, "{steps}, {most}");
    assert_eq!(store.stats().records, 200 - 20 + 10 + 20 + 100);
}

#[test]
fn versions_of_one_event_in_one_batch_are_one_row() {
    let database = Cluster::shared().database("versions");
    let store = open(&database);
    let profiles: Vec<Write> = (0..500).map(|n| put(n, (n % 3) as u8, 0, &[])).collect();
    let (outcomes, steps, most) = carry_out(&store, &profiles);
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Stored { .. })));
    assert!(steps == 1 && most <= TRIPS_MAX, "{steps} steps, {most} round trips");
    assert_eq!(database.sql("SELECT count(*), sum(seq) FROM hark_nostr.record"), "3|1497");
    // Versions that are older than the stored version, before and after its deletion in the same
    // batch.
    let old = [put(10, 1, 0, &[]), put(600, 1, 5, &[address(1, 0, "")]), put(11, 1, 0, &[])];
    let (outcomes, _, most) = carry_out(&store, &old);
    assert!(
        matches!(outcomes[..], [Outcome::Superseded, Outcome::Stored { .. }, Outcome::Refused(_)]),
        "{outcomes:?}"
    );
    assert!(most <= TRIPS_MAX, "{most} round trips");
}
