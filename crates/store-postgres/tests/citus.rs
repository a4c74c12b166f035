//! A cluster that loses a server. Acknowledged records are kept, and no record is stored partly.
//! Queries that need the lost server fail soon, and other queries succeed.

use std::collections::BTreeSet;
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hark_archive::{CommitError, Outcome, Query, RecordHeader, Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_postgres::{PostgresOptions, PostgresStore};
use hark_testkit::citus::{CitusCluster, is_installed};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::random::encode;
use hark_testkit::wait::until;

const AUTHORS: u8 = 40;

fn open(database: &Database<'_>) -> PostgresStore {
    let options = PostgresOptions { shards: 6, ..PostgresOptions::default() };
    PostgresStore::open(&database.url, "nostr", Box::new(NostrRules), &options).expect("opens")
}

fn id(number: u32) -> [u8; 32] {
    let mut id = [7; 32];
    id[..4].copy_from_slice(&number.to_be_bytes());
    id
}

fn author(number: u32) -> [u8; 32] {
    [(number % u32::from(AUTHORS)) as u8; 32]
}

/// A record with labels in several shards.
fn put(number: u32) -> Write {
    let (id, author) = (id(number), Some(author(number)));
    let time = 1_700_000_000 + u64::from(number);
    let head = RecordHeader { id, time, author, kind: 1, expires: None };
    let label = |n: u32| (b't', (number * 3 + n).to_be_bytes().to_vec());
    Write::Put(encode(&head, &[label(0), label(1), label(2)]))
}

/// Returns the numbers of the records that are stored.
fn numbers(database: &Database<'_>) -> BTreeSet<u32> {
    let ids = database.sql("SELECT encode(id, 'hex') FROM hark_nostr.record");
    ids.lines().map(|id| u32::from_str_radix(&id[..8], 16).expect("is a number")).collect()
}

/// Checks that each record has its labels and its place, and that there are no other labels or
/// places.
fn check_whole(database: &Database<'_>) {
    let sql = |text: &str| database.sql(text);
    let records =
        sql("SELECT count(*), coalesce(sum(cardinality(terms)), 0) FROM hark_nostr.record");
    let tags = sql("SELECT count(*) FROM hark_nostr.tag");
    let places = sql("SELECT count(*) FROM hark_nostr.id_place");
    let kept = sql("SELECT records FROM hark_nostr.state");
    let (count, terms) = records.split_once('|').expect("two values");
    assert_eq!((terms, count, count), (&*tags, &*places, &*kept));
}

/// Returns the port of the worker that has an author's records.
fn worker_of(database: &Database<'_>, number: u32) -> u16 {
    let hex = format!("{:02x}", author(number)[0]).repeat(32);
    let text = format!(
        "SELECT nodeport FROM pg_dist_placement p JOIN pg_dist_node n USING (groupid) WHERE shardid = \
         get_shard_id_for_distribution_column('hark_nostr.record', '\\x{hex}'::bytea)"
    );
    database.sql(&text).parse().expect("a port")
}

#[test]
fn a_worker_that_dies_is_replaced_by_its_standby_and_nothing_acknowledged_is_lost() {
    if !is_installed() {
        return;
    }
    let cluster = CitusCluster::with(3, &["synchronous_commit=on"]);
    let database = cluster.database("worker");
    let store = open(&database);
    let worker = &cluster.workers[0];
    let standby = worker.replica();
    worker.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
    worker.sql("postgres", "SELECT pg_reload_conf()");
    let streams = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    until("the standby follows", || worker.sql("postgres", streams) == "1");

    let (acknowledged, ended) = (Mutex::new(BTreeSet::new()), AtomicBool::new(false));
    let refused = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !ended.load(Ordering::Relaxed) {
                let batch: Vec<u32> = (number..number + 5).collect();
                number += 5;
                let writes: Vec<Write> = batch.iter().map(|number| put(*number)).collect();
                match store.commit(&writes) {
                    Ok(done) => {
                        let stored = |one: &Outcome| matches!(one, Outcome::Stored { .. });
                        assert!(done.outcomes.iter().all(stored), "{:?}", done.outcomes);
                        acknowledged.lock().unwrap().extend(batch);
                    }
                    Err(error) => {
                        assert!(matches!(error, CommitError::Unavailable(_)), "{error}");
                        refused.lock().unwrap().push(Instant::now());
                        std::thread::sleep(Duration::from_millis(20));
                    }
                }
            }
        });
        let count = || acknowledged.lock().unwrap().len();
        until("records are stored", || count() >= 300);
        let dead = worker.port();
        let (lost, kept): (Vec<u32>, Vec<u32>) =
            (0..u32::from(AUTHORS)).partition(|number| worker_of(&database, *number) == dead);
        assert!(!lost.is_empty() && !kept.is_empty());
        worker.kill();
        until("clients get a reason", || !refused.lock().unwrap().is_empty());
        // Queries for authors of the dead worker fail, and queries for other authors are answered.
        let ask = |number: u32| {
            let query = Query { authors: Some(vec![author(number)]), limit: 5, ..Query::default() };
            let began = Instant::now();
            let mut found = 0;
            let asked = store.search(&query).and_then(|mut search| {
                search.slice(u64::MAX, &mut |_| {
                    found += 1;
                    std::ops::ControlFlow::Continue(())
                })
            });
            (asked.map(|_| found), began.elapsed())
        };
        let slowest = lost.iter().map(|number| {
            let (found, took) = ask(*number);
            assert!(found.is_err(), "of {number}");
            took
        });
        let slowest = slowest.max().expect("there are some");
        for number in kept {
            assert_eq!(ask(number).0.expect("is answered"), 5, "of {number}");
        }
        let (before, began) = (count(), Instant::now());
        standby.sql("postgres", "SELECT pg_promote()");
        database.sql(&format!(
            "SELECT citus_update_node(nodeid, '127.0.0.1', {}, force => true) FROM pg_dist_node \
             WHERE nodeport = {dead}",
            standby.port()
        ));
        until("writes go on", || count() > before);
        // If a batch was committed on the coordinator when the worker died, the standby may have it
        // only as a prepared transaction.
        database.sql("SELECT recover_prepared_transactions()");
        println!("errors after at most {slowest:?}, writes go on after {:?}", began.elapsed());
        until("more is stored", || count() >= before + 100);
        ended.store(true, Ordering::Relaxed);
    });
    let stored = numbers(&database);
    let acknowledged = acknowledged.into_inner().unwrap();
    assert!(acknowledged.is_subset(&stored), "{:?}", acknowledged.difference(&stored));
    check_whole(&database);
    println!("{} acknowledged, {} stored", acknowledged.len(), stored.len());
}

#[test]
fn what_a_lagging_standby_of_a_worker_lacks_is_stored_when_it_is_sent_again() {
    if !is_installed() {
        return;
    }
    let cluster = CitusCluster::with(3, &["fsync=off"]);
    let database = cluster.database("lags");
    let store = open(&database);
    let commit = |numbers: std::ops::Range<u32>| {
        let writes: Vec<Write> = numbers.map(put).collect();
        store.commit(&writes).map(|done| done.outcomes)
    };
    let is_stored = |one: &Outcome| matches!(one, Outcome::Stored { .. });
    commit(0..120).unwrap();
    let worker = &cluster.workers[0];
    let standby = worker.replica();
    let streams = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
    until("the standby follows", || worker.sql("postgres", streams) == "1");
    standby.sql("postgres", "ALTER SYSTEM SET primary_conninfo = ''");
    standby.sql("postgres", "SELECT pg_reload_conf()");
    until("the standby lags", || worker.sql("postgres", streams) == "0");
    for first in (120..720).step_by(100) {
        commit(first..first + 100).unwrap();
    }
    let dead = worker.port();
    worker.kill();
    standby.promote();
    database.sql(&format!(
        "SELECT citus_update_node(nodeid, '127.0.0.1', {}, force => true) FROM pg_dist_node \
         WHERE nodeport = {dead}",
        standby.port()
    ));
    let lost = 720 - numbers(&database).len();
    assert!(lost > 0);
    // The partly stored records are put again, in a batch with a new record.
    until("commits go on", || commit(720..721).is_ok());
    let again = commit(0..722).unwrap();
    let stored = again.iter().filter(|one| is_stored(one)).count();
    assert!(is_stored(&again[721]) && stored > lost, "{stored} stored, {lost} were lost");
    assert_eq!(numbers(&database), (0..722).collect());
    assert_eq!(database.sql("SELECT count(*) FROM hark_nostr.record"), "722");
    assert_eq!(database.sql("SELECT count(*) FROM hark_nostr.id_place"), "722");
    let known = |one: &Outcome| *one == Outcome::Duplicate;
    assert!(commit(0..722).unwrap().iter().all(known));
    println!("{lost} records were lost, {stored} were stored again");
}

/// Holds an advisory lock of a worker until it is dropped.
struct HeldLock(Child);

impl HeldLock {
    fn take(worker: &Cluster, database: &str) -> Self {
        let mut psql = worker.program("psql");
        psql.args(["-Xq", "-d", &worker.url(database), "-c", "SELECT pg_advisory_lock(42)"]);
        psql.args(["-c", "SELECT pg_sleep(600)"]).stdout(Stdio::null()).stderr(Stdio::null());
        let held = Self(psql.spawn().expect("psql runs"));
        let locks =
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 42 AND granted";
        until("the lock is held", || worker.sql(database, locks) == "1");
        held
    }

    fn release(self, worker: &Cluster, database: &str) {
        worker.sql(
            database,
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = 42 \
             AND granted",
        );
        drop(self);
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sets up a worker so that the preparation of a commit of records waits there while the worker's
/// [`HeldLock`] is held.
fn wait_when_preparing(worker: &Cluster, database: &str) {
    worker.sql(
        database,
        "SET citus.enable_ddl_propagation = off;
         CREATE FUNCTION public.wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             PERFORM pg_advisory_lock(42); PERFORM pg_advisory_unlock(42); RETURN NULL; END $$;
         SET citus.override_table_visibility = off;
         DO $$ DECLARE t regclass; BEGIN
             FOR t IN SELECT oid FROM pg_class WHERE relname ~ '^record_[0-9]+$' AND relkind = 'r' LOOP
                 EXECUTE format('CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON %s DEFERRABLE \
         INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.wait()', t);
             END LOOP; END $$",
    );
}

/// The coordinator has committed, but a worker has not yet. Until this worker has committed, no
/// other commit begins.
#[test]
fn a_commit_waits_until_all_workers_have_ended_the_commit_before() {
    if !is_installed() {
        return;
    }
    let cluster = CitusCluster::with(3, &["citus.recover_2pc_interval=1h"]);
    let database = cluster.database("slow");
    let name = database.name.as_str();
    let (store, other) = (open(&database), open(&database));
    store.commit(&(0..50).map(put).collect::<Vec<_>>()).unwrap();
    other.commit(&[put(50)]).unwrap();
    let (slow, held) = (&cluster.workers[0], &cluster.workers[1]);
    wait_when_preparing(held, name);
    let lock = HeldLock::take(held, name);
    let in_doubt = |worker: &Cluster| worker.sql(name, "SELECT count(*) FROM pg_prepared_xacts");
    let state = || database.sql("SELECT seq FROM hark_nostr.state");
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    std::thread::scope(|scope| {
        let batch: Vec<Write> = (100..150).map(put).collect();
        let store = &store;
        let committing = scope.spawn(move || (store.commit(&batch), Instant::now()));
        until("a worker has prepared", || in_doubt(slow) == "1");
        slow.pause();
        lock.release(held, name);
        until("the coordinator has committed", || state() == "101");
        let next = scope.spawn(|| (other.commit(&[put(200)]), Instant::now()));
        until("the other waits", || database.sql(waiting) == "1");
        std::thread::sleep(Duration::from_millis(500));
        let is_free = "SELECT pg_try_advisory_xact_lock( \
                       hashtextextended('hark_nostr', 7235419860234518))";
        assert_eq!((database.sql(is_free), state()), ("f".into(), "101".into()));
        assert!(!committing.is_finished() && !next.is_finished());
        slow.resume();
        let (first, second) = (committing.join().unwrap(), next.join().unwrap());
        first.0.unwrap();
        second.0.unwrap();
        assert!(first.1 < second.1);
    });
    for worker in &cluster.workers {
        assert_eq!(in_doubt(worker), "0");
    }
    assert_eq!(database.sql("SELECT seq FROM hark_nostr.published"), "102");
    check_whole(&database);
}

/// The coordinator dies while a commit is prepared on a worker, before or after its decision to
/// commit.
fn dies_in_doubt(has_decided: bool) {
    let cluster = CitusCluster::with(3, &["citus.recover_2pc_interval=1h"]);
    let database = cluster.database("doubt");
    let name = database.name.as_str();
    let store = open(&database);
    store.commit(&(0..50).map(put).collect::<Vec<_>>()).unwrap();
    let (prepared, held) = (&cluster.workers[0], &cluster.workers[1]);
    wait_when_preparing(held, name);
    let lock = HeldLock::take(held, name);
    let in_doubt = |worker: &Cluster| worker.sql(name, "SELECT count(*) FROM pg_prepared_xacts");
    let answer = std::thread::scope(|scope| {
        let batch: Vec<Write> = (100..150).map(put).collect();
        let store = &store;
        let committing = scope.spawn(move || store.commit(&batch));
        until("a worker has prepared", || in_doubt(prepared) == "1");
        if has_decided {
            prepared.pause();
            lock.release(held, name);
            let seq = || database.sql("SELECT seq FROM hark_nostr.state");
            until("the coordinator has committed", || seq() == "100");
            // Queries of other nodes must not search the workers for these records yet.
            assert_eq!(database.sql("SELECT seq FROM hark_nostr.published"), "50");
            cluster.coordinator.kill();
            prepared.resume();
        } else {
            cluster.coordinator.kill();
            lock.release(held, name);
        }
        committing.join().unwrap()
    });
    assert!(answer.is_err(), "nobody knows how it ended");
    cluster.coordinator.start();
    // The coordinator ends the transaction when it starts, or else the next commit does.
    until("commits go on", || store.commit(&[put(200)]).is_ok());
    let is_published = "SELECT (p.line, p.seq) = (s.line, s.seq) \
                        FROM hark_nostr.published p, hark_nostr.state s";
    assert_eq!(database.sql(is_published), "t");
    for worker in &cluster.workers {
        assert_eq!(in_doubt(worker), "0");
    }
    let stored = numbers(&database);
    let expected = if has_decided { 101 } else { 51 };
    assert_eq!(stored.len(), expected, "all of the batch, or nothing");
    check_whole(&database);
    // Records that clients send again are stored once.
    let again = store.commit(&(100..150).map(put).collect::<Vec<_>>()).unwrap().outcomes;
    let duplicates = again.iter().filter(|one| **one == Outcome::Duplicate).count();
    assert_eq!(duplicates, if has_decided { 50 } else { 0 });
    check_whole(&database);
}

#[test]
fn a_batch_that_was_decided_when_the_coordinator_died_is_there_as_a_whole() {
    if is_installed() {
        dies_in_doubt(true);
    }
}

#[test]
fn a_batch_that_was_not_decided_when_the_coordinator_died_is_absent_as_a_whole() {
    if is_installed() {
        dies_in_doubt(false);
    }
}

/// A worker dies while it ends a commit that the coordinator has decided, and is back at once. The
/// commit is not acknowledged, and the next commit ends it first, so that the rules see its records.
#[test]
fn a_worker_that_dies_at_the_end_of_a_commit_ends_it_before_the_next_one() {
    if !is_installed() {
        return;
    }
    let cluster = CitusCluster::with(3, &["citus.recover_2pc_interval=1h"]);
    let database = cluster.database("end");
    let name = database.name.as_str();
    let store = open(&database);
    store.commit(&(0..50).map(put).collect::<Vec<_>>()).unwrap();
    let (dies, held) = (&cluster.workers[0], &cluster.workers[1]);
    wait_when_preparing(held, name);
    let lock = HeldLock::take(held, name);
    let in_doubt = || dies.sql(name, "SELECT count(*) FROM pg_prepared_xacts");
    let batch: Vec<Write> = (100..150).map(put).collect();
    let answer = std::thread::scope(|scope| {
        let committing = scope.spawn(|| store.commit(&batch));
        until("a worker has prepared", || in_doubt() == "1");
        dies.pause();
        lock.release(held, name);
        let seq = || database.sql("SELECT seq FROM hark_nostr.state");
        until("the coordinator has committed", || seq() == "100");
        dies.kill();
        dies.start();
        committing.join().unwrap()
    });
    let refusal = answer.unwrap_err().to_string();
    assert!(refusal.contains("the commit is not safe yet"), "{refusal}");
    until("commits go on", || store.commit(&[put(200)]).is_ok());
    assert_eq!(in_doubt(), "0");
    let again = store.commit(&batch).unwrap().outcomes;
    assert!(again.iter().all(|one| *one == Outcome::Duplicate), "{again:?}");
    assert_eq!(numbers(&database).len(), 101);
    check_whole(&database);
}
