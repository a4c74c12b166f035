//! A query runs on a replica only if the replica has all records that the query must see.

use std::ops::ControlFlow;

use hark_archive::{Order, Query, RecordHeader, Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_postgres::{PostgresOptions, PostgresStore};
use hark_testkit::postgres::Cluster;
use hark_testkit::random::encode;
use hark_testkit::wait::until;

fn open(url: &str, read_url: &str) -> PostgresStore {
    let options = PostgresOptions { read_url: Some(read_url.into()), ..PostgresOptions::default() };
    PostgresStore::open(url, "nostr", Box::new(NostrRules), &options).expect("opens")
}

fn put(store: &dyn Store, number: u32) {
    let mut id = [7; 32];
    id[..4].copy_from_slice(&number.to_be_bytes());
    let time = 1_700_000_000 + u64::from(number);
    let head = RecordHeader { id, time, author: Some([1; 32]), kind: 1, expires: None };
    store.commit(&[Write::Put(encode(&head, &[]))]).expect("is kept");
}

fn found(store: &dyn Store) -> u32 {
    let mut search = store.search(&Query::default()).expect("begins");
    let mut count = 0;
    let mut sink = |_: &hark_archive::Record<'_>| {
        count += 1;
        ControlFlow::Continue(())
    };
    search.slice(u64::MAX, &mut sink).expect("answers");
    assert_eq!(store.count(&Query::default()).expect("counts"), Some(u64::from(count)));
    count
}

/// Returns how many queries ran on the replica, and how many went to the primary instead.
fn replica(store: &dyn Store) -> (u64, u64) {
    store.stats().database.expect("is there").replica.expect("is there")
}

/// Puts a record and queries the store, repeatedly, until the replica has answered.
fn until_asked(store: &dyn Store, kept: &mut u32) {
    let asked = replica(store).0;
    until("the replica is asked", || {
        put(store, *kept);
        *kept += 1;
        assert_eq!(found(store), *kept);
        replica(store).0 >= asked + 2
    });
}

#[test]
fn every_answer_has_all_that_was_acknowledged_whatever_the_replica_does() {
    let primary = Cluster::with(&["fsync=off"]);
    let database = primary.database("replica");
    let standby = primary.replica();
    let store = open(&database.url, &standby.url(&database.name));
    let mut kept = 0;
    until_asked(&store, &mut kept);

    standby.sql(&database.name, "SELECT pg_wal_replay_pause()");
    let passed = replica(&store).1;
    for _ in 0..20 {
        put(&store, kept);
        kept += 1;
        assert_eq!(found(&store), kept);
    }
    assert!(replica(&store).1 >= passed + 20, "it is behind, so it is not asked");
    standby.sql(&database.name, "SELECT pg_wal_replay_resume()");
    until_asked(&store, &mut kept);

    standby.kill();
    assert_eq!(found(&store), kept);
    put(&store, kept);
    kept += 1;
    assert_eq!(found(&store), kept);
    standby.start();
    until_asked(&store, &mut kept);
}

/// A deletion is acknowledged like a put, and a replica that lacks it would return the record.
#[test]
fn a_replica_that_lacks_a_deletion_is_not_asked() {
    let primary = Cluster::with(&["fsync=off"]);
    let database = primary.database("deletion");
    let standby = primary.replica();
    let store = open(&database.url, &standby.url(&database.name));
    let mut kept = 3;
    (0..kept).for_each(|number| put(&store, number));
    until_asked(&store, &mut kept);
    standby.sql(&database.name, "SELECT pg_wal_replay_pause()");
    let oldest = Query { order: Order::OldestFirst, limit: 1, ..Query::default() };
    for _ in 0..3 {
        store.commit(&[Write::Erase(Box::new(oldest.clone()))]).expect("is deleted");
        kept -= 1;
        assert_eq!(found(&store), kept);
    }
}

/// Several replicas can have one address, and each of them may lag.
#[test]
fn a_replica_that_takes_the_place_of_another_is_checked_anew() {
    let primary = Cluster::with(&["fsync=off"]);
    let database = primary.database("several");
    let (first, second) = (primary.replica(), primary.replica());
    let (ports, name) = ((first.port(), second.port()), &database.name);
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", ports.0, ports.1);
    let store = open(&database.url, &format!("postgres://postgres@{hosts}/{name}"));
    let mut kept = 0;
    until_asked(&store, &mut kept);
    second.sql(name, "SELECT pg_wal_replay_pause()");
    until_asked(&store, &mut kept);
    first.kill();
    assert_eq!(found(&store), kept);
}

#[test]
fn a_replica_of_something_else_is_never_asked() {
    let cluster = Cluster::shared();
    let (one, other) = (cluster.database("one"), cluster.database("other"));
    let elsewhere =
        PostgresStore::open(&other.url, "nostr", Box::new(NostrRules), &PostgresOptions::default());
    let elsewhere = elsewhere.expect("opens");
    let store = open(&one.url, &other.url);
    for number in 0..5 {
        put(&elsewhere, 100 + number);
        put(&store, number);
    }
    assert_eq!(found(&store), 5);
    assert_eq!(replica(&store).0, 0);
}
