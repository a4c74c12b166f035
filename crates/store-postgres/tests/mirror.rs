//! A mirror of a database with several writing processes receives the puts of all processes.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::mirror::{MirrorOptions as Waits, MirroredStore};
use hark_archive::store::memory::MemoryStore;
use hark_archive::writer::{Writer, WriterOptions as Batches};
use hark_archive::{Id, Query, Record, RecordHeader, Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_postgres::{PostgresOptions, PostgresStore};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::random::encode;
use hark_testkit::wait::until;

const DAY: u64 = 86_400;

fn open(database: &Database<'_>) -> Arc<PostgresStore> {
    let options = PostgresOptions { part_s: DAY, ..PostgresOptions::default() };
    let store = PostgresStore::open(&database.url, "nostr", Box::new(NostrRules), &options);
    Arc::new(store.expect("opens"))
}

fn put(number: u32, time: u64) -> Write {
    let mut id = [7; 32];
    id[..4].copy_from_slice(&number.to_be_bytes());
    let head = RecordHeader { id, time, author: Some([1; 32]), kind: 1, expires: None };
    Write::Put(encode(&head, &[]))
}

fn ids(store: &dyn Store) -> Vec<Id> {
    let mut search = store.search(&Query::default()).unwrap();
    let mut ids = Vec::new();
    let mut sink = |record: &Record<'_>| {
        ids.push(*record.id());
        ControlFlow::Continue(())
    };
    search.slice(u64::MAX, &mut sink).unwrap();
    ids
}

/// A node with a mirror, like a server's.
struct Node {
    mirrored: Arc<MirroredStore>,
    writer: Arc<Writer>,
    second: Arc<dyn Store>,
}

fn mirrored(database: &Database<'_>) -> Node {
    let second: Arc<dyn Store> = Arc::new(MemoryStore::new(NostrRules));
    let target = Arc::clone(&second);
    let open = Box::new(move || Ok(Arc::clone(&target)));
    let first: Arc<dyn Store> = self::open(database);
    let mirrored = MirroredStore::start(first, open, Waits::default(), Box::new(|_| {}));
    let mirrored = Arc::new(mirrored);
    until("in step", || mirrored.lag().in_step);
    let writer = Writer::start(Arc::clone(&mirrored) as _, Batches::default(), Box::new(()));
    let writer = Arc::new(writer);
    let woken = Arc::downgrade(&writer);
    mirrored.on_news(Box::new(move || {
        if let Some(writer) = woken.upgrade() {
            writer.deliver_news();
        }
    }));
    Node { mirrored, writer, second }
}

#[test]
fn what_other_nodes_put_reaches_the_mirror_of_one() {
    let database = Cluster::shared().database("mirror nodes");
    let node = mirrored(&database);
    let other = open(&database);
    // The other node's commits come between this node's commits, at arbitrary times.
    for round in 0..5 {
        let number = round * 10;
        let puts: Vec<Write> =
            (0..3).map(|n| put(number + n, 1_700_000_000 + u64::from(number + n))).collect();
        other.commit(&puts).unwrap();
        node.writer.write(put(number + 5, 1_700_000_500)).unwrap();
    }
    other.commit(&[put(100, 1_700_001_000)]).unwrap();
    let all = ids(&*other);
    assert_eq!(all.len(), 21);
    until("the mirror has all", || ids(&*node.second).len() == all.len());
    assert_eq!(ids(&*node.second), all);
    until("nothing waits", || node.mirrored.lag().queued == 0);
    assert_eq!(node.mirrored.lag().extra, 0);
}

#[test]
fn parts_that_go_as_a_whole_go_in_the_mirror_as_well() {
    let database = Cluster::shared().database("mirror parts");
    let node = mirrored(&database);
    let old = 19_700 * DAY;
    for n in 0..50 {
        node.writer.write(put(n, old + u64::from(n))).unwrap();
    }
    let kept = put(100, old + 10 * DAY);
    node.writer.write(kept).unwrap();
    // Only the mirror has this record, which is as old as the dropped records.
    node.second.commit(&[put(200, old)]).unwrap();
    let rule = hark_archive::retention::RetentionRule { older_than_s: DAY, ..Default::default() };
    let policy =
        hark_archive::retention::RetentionPolicy { rules: vec![rule], ..Default::default() };
    let clock = hark_archive::clock::Clock::fake(old + 3 * DAY);
    while policy.step(&*node.mirrored, &node.writer, &clock).unwrap().total() > 0 {}
    until("nothing waits", || node.mirrored.lag().queued == 0);
    let kept = ids(&*node.mirrored);
    assert_eq!(kept.len(), 1);
    let mut own = [7; 32];
    own[..4].copy_from_slice(&200u32.to_be_bytes());
    until("the mirror follows", || ids(&*node.second) == [kept[0], own]);
}
