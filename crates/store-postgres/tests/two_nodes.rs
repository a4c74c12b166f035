//! Two processes on one database: each answers with the records that the other has acknowledged,
//! and neither waits long for the other.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use hark_archive::effects::{Effects, Rules};
use hark_archive::{CommitError, Outcome, Query, Record, Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_postgres::{PostgresOptions, PostgresStore};
use hark_testkit::citus::{CitusCluster, is_installed};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::wait::until;

mod numbered;

use numbered::{open, record};

#[test]
fn what_one_node_has_acknowledged_the_other_answers_with_at_once() {
    let database = Cluster::shared().database("at once");
    let (one, other) = (open(&database), open(&database));
    let profiles = Query { kinds: Some(vec![0]), ..Query::default() };
    for n in 0..50 {
        let time = 1_700_000_000 + u64::from(n);
        let note = Write::Put(record(n, 1, 1, time));
        let done = one.commit(&[note, Write::Put(record(1_000 + n, 0, 1, time))]).unwrap();
        let Outcome::Stored { seq } = done.outcomes[1] else { panic!("{:?}", done.outcomes) };
        let mut search = other.search(&profiles).unwrap();
        assert!(search.seq() >= seq, "live delivery goes on behind what was found");
        let mut times = Vec::new();
        let mut sink = |record: &Record<'_>| {
            times.push(record.time());
            ControlFlow::Continue(())
        };
        search.slice(u64::MAX, &mut sink).unwrap();
        assert_eq!(times, [time], "the newest profile, and not the one that it replaced");
        assert_eq!(other.count(&Query::default()).unwrap(), Some(u64::from(n) + 2));
    }
    assert_eq!(other.news().len(), 51, "subscribers get each, too, but for the profiles of before");
}

/// Returns the times of the records that a query finds.
fn times(store: &PostgresStore, query: &Query) -> Vec<u64> {
    let mut times = Vec::new();
    let mut sink = |record: &Record<'_>| {
        times.push(record.time());
        ControlFlow::Continue(())
    };
    store.search(query).unwrap().slice(u64::MAX, &mut sink).unwrap();
    times
}

#[test]
fn what_one_node_of_a_cluster_has_acknowledged_the_other_answers_with_at_once() {
    if !is_installed() {
        return;
    }
    let database = CitusCluster::shared().database("at once");
    let nodes = [open(&database), open(&database)];
    let newest = Query { limit: 1, ..Query::default() };
    let labelled =
        Query { labels: vec![hark_archive::LabelSet::one(b't', b"a")], ..newest.clone() };
    let mut stale = Vec::new();
    for n in 0..1_000 {
        let (author, time) = ((n % 40) as u8, 1_700_000_000 + u64::from(n));
        let (putting, asking) = (&nodes[n as usize % 2], &nodes[(n as usize + 1) % 2]);
        let done = putting.commit(&[Write::Put(record(n, 0, author, time))]).unwrap();
        let [Outcome::Stored { seq }] = done.outcomes[..] else { panic!("{:?}", done.outcomes) };
        if n % 50 == 7 {
            // The state after a crash of the coordinator.
            database.sql("DELETE FROM hark_nostr.published");
        }
        let profile = Query { authors: Some(vec![[author; 32]]), ..Query::default() };
        assert!(asking.search(&profile).unwrap().seq() >= seq, "live delivery goes on behind {n}");
        let found = [&profile, &newest, &labelled].map(|query| times(asking, query));
        if found.iter().any(|found| *found != [time]) {
            stale.push((n, found));
        }
    }
    assert!(stale.is_empty(), "{} of 1,000 answers are stale: {stale:?}", stale.len());
}

/// The node that stored a record ended before it published the record's number. Another node
/// acknowledges the record as a duplicate.
#[test]
fn a_duplicate_that_one_node_of_a_cluster_acknowledges_the_other_answers_with() {
    if !is_installed() {
        return;
    }
    let database = CitusCluster::shared().database("duplicate");
    let (storing, other, asking) = (open(&database), open(&database), open(&database));
    let notes = [1_700_000_000, 1_700_000_001].map(|time| record(time as u32, 1, 1, time));
    for note in &notes {
        storing.commit(&[Write::Put(note.clone())]).unwrap();
    }
    database.sql("UPDATE hark_nostr.published SET seq = seq - 1");
    assert_eq!(times(&asking, &Query::default()), [1_700_000_000]);
    let again = other.commit(&[Write::Put(notes[1].clone())]).unwrap();
    assert_eq!(again.outcomes, [Outcome::Duplicate]);
    assert_eq!(times(&asking, &Query::default()), [1_700_000_001, 1_700_000_000]);
}

#[test]
fn the_published_number_never_goes_back_while_two_nodes_write() {
    if !is_installed() {
        return;
    }
    let database = CitusCluster::shared().database("published");
    let nodes = [open(&database), open(&database)];
    std::thread::scope(|scope| {
        let writing: Vec<_> = (0..2_u32)
            .map(|node| {
                let (nodes, time) = (&nodes, 1_700_000_000);
                scope.spawn(move || {
                    for n in 0..200 {
                        let number = n * 2 + node;
                        let put = Write::Put(record(number, 1, (n % 40) as u8, time));
                        nodes[node as usize].commit(&[put]).unwrap();
                    }
                })
            })
            .collect();
        let mut last = 0;
        while !writing.iter().all(ScopedJoinHandle::is_finished) {
            let now = database.sql("SELECT seq FROM hark_nostr.published");
            let now: u32 = now.parse().unwrap_or(0);
            assert!(now >= last, "{now} after {last}");
            last = now;
        }
    });
    assert_eq!(database.sql("SELECT seq FROM hark_nostr.published"), "400");
}

/// The rules of Nostr. While `is_suspended` is true, a commit stops within its transaction, as in a
/// suspended process.
struct SuspendedRules {
    is_suspended: Arc<AtomicBool>,
}

impl Rules for SuspendedRules {
    fn effects(&self, record: &Record<'_>, effects: &mut Effects) {
        NostrRules.effects(record, effects);
    }

    fn forbids(&self, kind: u32) -> bool {
        while self.is_suspended.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
        NostrRules.forbids(kind)
    }
}

#[test]
fn others_write_though_a_node_is_suspended_in_the_middle_of_a_commit() {
    write_beside_a_suspended_node(&Cluster::shared().database("suspended"));
}

#[test]
fn others_write_to_a_cluster_though_a_node_is_suspended_in_the_middle_of_a_commit() {
    if is_installed() {
        write_beside_a_suspended_node(&CitusCluster::shared().database("suspended"));
    }
}

fn write_beside_a_suspended_node(database: &Database<'_>) {
    let is_suspended = Arc::new(AtomicBool::new(false));
    let rules = SuspendedRules { is_suspended: Arc::clone(&is_suspended) };
    let options = PostgresOptions::default();
    let node = PostgresStore::open(&database.url, "nostr", Box::new(rules), &options).unwrap();
    let other = open(database);
    let put = |n: u32| [Write::Put(record(n, 1, n as u8, 1_700_000_000 + u64::from(n)))];
    node.commit(&put(0)).unwrap();
    other.commit(&put(1)).unwrap();
    std::thread::scope(|scope| {
        is_suspended.store(true, Ordering::Relaxed);
        let suspended = scope.spawn(|| node.commit(&put(2)));
        let idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' \
                    AND datname = current_database()";
        until("a commit stands still", || database.sql(idle) == "1");
        let began = Instant::now();
        let written = other.commit(&put(3));
        let took = began.elapsed();
        is_suspended.store(false, Ordering::Relaxed);
        written.expect("the others need not send again");
        assert!(took < Duration::from_secs(15), "{took:?}");
        let error = suspended.join().unwrap().expect_err("its transaction has ended");
        assert!(matches!(error, CommitError::Unavailable(_)), "{error}");
    });
    let again = node.commit(&put(2)).unwrap().outcomes;
    assert!(matches!(again[..], [Outcome::Stored { .. }]), "{again:?}");
    let newest = [3, 2, 1, 0].map(|n| 1_700_000_000 + n);
    assert_eq!(times(&node, &Query::default()), newest);
    assert_eq!(times(&other, &Query::default()), newest);
}
