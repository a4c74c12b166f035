//! A database loses its last commits: a lagging standby is promoted, or a backup is restored. Later
//! puts reuse the lost numbers, but are still delivered to every subscriber.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use hark_archive::live::{LiveIndex, NewRecord, SubscriptionHandle, SubscriptionSink};
use hark_archive::writer::{CommitListener, Writer, WriterOptions as Batches};
use hark_archive::{Outcome, Query, Record, RecordHeader, Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_postgres::{PostgresOptions, PostgresStore};
use hark_testkit::postgres::Cluster;
use hark_testkit::random::encode;
use hark_testkit::wait::{until, until_ok};

fn put(number: u32) -> Write {
    let mut id = [7; 32];
    id[..4].copy_from_slice(&number.to_be_bytes());
    let time = 1_700_000_000 + u64::from(number);
    let head = RecordHeader { id, time, author: Some([1; 32]), kind: 1, expires: None };
    Write::Put(encode(&head, &[]))
}

type Numbers = Arc<Mutex<Vec<u32>>>;

/// A subscriber, with the numbers of the records that it received live.
struct Subscriber(Numbers);

impl SubscriptionSink for Subscriber {
    fn deliver(&self, news: &NewRecord) -> bool {
        let words = String::from_utf8_lossy(news.wire()).into_owned();
        let time = words.split(' ').nth(2).and_then(|time| time.parse::<u32>().ok());
        self.0.lock().unwrap().push(time.expect("a time") - 1_700_000_000);
        false
    }

    fn wake(&self) {}

    fn overflow(&self) {}
}

struct Ear(Arc<LiveIndex>, Arc<Mutex<Vec<u64>>>);

impl CommitListener for Ear {
    fn batch(
        &mut self,
        records: &mut dyn Iterator<Item = (u64, Record<'_>)>,
        answer: &mut dyn FnMut(),
    ) {
        for (seq, record) in records {
            self.1.lock().unwrap().push(seq);
            self.0.publish(Some(seq), &record);
        }
        answer();
    }
}

/// A node like a server's: a store, a writer, subscribers.
struct Node {
    store: Arc<PostgresStore>,
    writer: Arc<Writer>,
    live: Arc<LiveIndex>,
    /// The sequence numbers of all delivered records, in order.
    delivered: Arc<Mutex<Vec<u64>>>,
    subscribers: Vec<(SubscriptionHandle, Numbers)>,
}

impl Node {
    fn new(url: &str, receives: bool) -> Self {
        let options = PostgresOptions::default();
        let store = PostgresStore::open(url, "nostr", Box::new(NostrRules), &options);
        let store = Arc::new(store.expect("opens"));
        let (live, delivered) = (Arc::new(LiveIndex::default()), Arc::default());
        let ear = Ear(Arc::clone(&live), Arc::clone(&delivered));
        let writer = Writer::start(Arc::clone(&store) as _, Batches::default(), Box::new(ear));
        let writer = Arc::new(writer);
        let woken = Arc::downgrade(&writer);
        if receives {
            store.on_news(Box::new(move || {
                if let Some(writer) = woken.upgrade() {
                    writer.deliver_news();
                }
            }));
        }
        Self { store, writer, live, delivered, subscribers: Vec::new() }
    }

    /// Subscribes to all records.
    fn subscribe(&mut self) {
        let received = Numbers::default();
        let sink = Box::new(Subscriber(Arc::clone(&received)));
        let handle = self.live.subscribe(vec![Query::default()], sink, 1 << 20);
        while !handle.enter() {}
        let search = until_ok(|| self.store.search(&Query::default()));
        handle.opened(0, search.seq());
        handle.release(Vec::new());
        self.subscribers.push((handle, received));
    }

    /// Puts the records of `numbers`. Repeats each put until the record is stored.
    fn put(&self, numbers: impl IntoIterator<Item = u32>) {
        for number in numbers {
            until("is kept", || match self.writer.write(put(number)) {
                Ok(outcome) => matches!(outcome, Outcome::Stored { .. } | Outcome::Duplicate),
                Err(_) => false,
            });
        }
    }

    /// Waits until every subscriber has received the records of `numbers`.
    fn receives(&self, who: &str, numbers: impl IntoIterator<Item = u32>) {
        let wanted: BTreeSet<u32> = numbers.into_iter().collect();
        for (at, (_, received)) in self.subscribers.iter().enumerate() {
            until(&format!("{who}: subscriber {at} receives {wanted:?}"), || {
                let received: BTreeSet<u32> = received.lock().unwrap().iter().copied().collect();
                wanted.is_subset(&received)
            });
        }
        let delivered = self.delivered.lock().unwrap();
        assert!(delivered.is_sorted_by(|a, b| a < b), "{who}: {delivered:?}");
    }
}

/// Puts `shared`, disconnects the standby, puts `lost`, kills the primary and promotes the standby.
fn fail_over(primary: &Cluster, standby: &Cluster, shared: &dyn Fn(), lost: &dyn Fn()) {
    shared();
    let at = primary.sql("postgres", "SELECT pg_current_wal_lsn()");
    until("the standby follows", || {
        let text = format!("SELECT pg_last_wal_replay_lsn() >= '{at}'");
        standby.sql("postgres", &text) == "t"
    });
    standby.sql("postgres", "ALTER SYSTEM SET primary_conninfo = ''");
    standby.sql("postgres", "SELECT pg_reload_conf()");
    until("the standby is cut off", || {
        standby.sql("postgres", "SELECT count(*) FROM pg_stat_wal_receiver") == "0"
    });
    lost();
    primary.kill();
    assert_eq!(standby.sql("postgres", "SELECT pg_promote()"), "t");
}

fn both(primary: &Cluster, standby: &Cluster, database: &str) -> String {
    let ports = (primary.port(), standby.port());
    format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/{database}", ports.0, ports.1)
}

#[test]
fn after_a_failover_that_lost_commits_both_nodes_receive_all_that_comes() {
    let primary = Cluster::with(&["fsync=off"]);
    let database = primary.database("failover");
    let standby = primary.replica();
    let url = both(&primary, &standby, &database.name);
    let (mut one, mut two) = (Node::new(&url, true), Node::new(&url, true));
    one.subscribe();
    two.subscribe();
    let lost = || {
        one.put(10..20);
        two.receives("two", 0..20);
    };
    fail_over(&primary, &standby, &|| one.put(0..10), &lost);
    one.put(100..105);
    two.put(200..203);
    // Subscribers that come after the failover also receive all later records.
    one.subscribe();
    two.subscribe();
    one.put(105..107);
    two.put(203..205);
    let wanted = || (105..107).chain(203..205);
    one.receives("one", wanted());
    two.receives("two", wanted());
    for node in [&mut one, &mut two] {
        node.subscribers.truncate(1);
        node.receives("from before", (100..107).chain(200..205));
        until("all is delivered", || node.store.trouble().is_none());
        assert_eq!(node.store.count(&Query::default()).unwrap(), Some(10 + 7 + 5));
    }
    assert_eq!(standby.sql(&database.name, "SELECT count(*) FROM hark_nostr.line"), "2");
}

#[test]
fn a_node_that_looks_late_receives_all_though_the_numbers_have_passed_those_it_knew() {
    let primary = Cluster::with(&["fsync=off"]);
    let database = primary.database("late");
    let standby = primary.replica();
    let url = both(&primary, &standby, &database.name);
    // This node receives other nodes' records only when it commits.
    let mut late = Node::new(&url, false);
    late.subscribe();
    fail_over(&primary, &standby, &|| late.put(0..10), &|| late.put(10..20));
    let other = Node::new(&url, true);
    other.put(100..120);
    assert_eq!(standby.sql(&database.name, "SELECT seq FROM hark_nostr.state"), "30");
    late.put([200]);
    late.receives("late", (100..120).chain([200]));
}

#[test]
fn a_backup_in_the_place_of_the_database_is_noticed_and_all_that_comes_is_received() {
    let cluster = Cluster::with(&["fsync=off"]);
    let database = cluster.database("restored");
    let mut node = Node::new(&database.url, true);
    node.subscribe();
    node.put(0..20);
    // Puts the database into the state of a backup after ten puts. The server then starts on this
    // backup.
    database.sql(
        "BEGIN; SET LOCAL hark.writes_words = on; DELETE FROM hark_nostr.record WHERE seq > 10;
         UPDATE hark_nostr.state SET seq = 10, records = 10; COMMIT",
    );
    cluster.stop();
    cluster.start();
    // The first process to write has not seen the lost records.
    let other = Node::new(&database.url, true);
    other.put(100..105);
    node.receives("node", 100..105);
    node.put(200..203);
    node.receives("node", 200..203);
    until("all is delivered", || node.store.trouble().is_none());
    assert_eq!(node.store.count(&Query::default()).unwrap(), Some(10 + 5 + 3));
}

#[test]
fn a_restart_of_the_database_loses_nothing_and_delivers_nothing_twice() {
    let cluster = Cluster::with(&["fsync=off"]);
    let database = cluster.database("restarted");
    let (mut one, mut two) = (Node::new(&database.url, true), Node::new(&database.url, true));
    one.subscribe();
    two.subscribe();
    one.put(0..5);
    cluster.stop();
    cluster.start();
    two.put(5..10);
    one.put(10..12);
    for node in [&one, &two] {
        node.receives("each", 0..12);
        until("the database is heard again", || node.store.trouble().is_none());
        let received = node.subscribers[0].1.lock().unwrap().len();
        assert_eq!(received, 12, "each once");
    }
}

/// A restart begins another timeline, to which the other node must switch before it answers.
#[test]
fn after_each_restart_the_other_node_finds_what_is_acknowledged() {
    let cluster = Cluster::with(&["fsync=off"]);
    let database = cluster.database("found");
    let (one, two) = (Node::new(&database.url, true), Node::new(&database.url, true));
    one.put([0]);
    two.put([1]);
    for restart in 1..5 {
        cluster.stop();
        cluster.start();
        for number in restart * 10..restart * 10 + 10 {
            one.put([number]);
            let Write::Put(record) = put(number) else { unreachable!() };
            let ids = vec![*Record::new(&record).unwrap().id()];
            let asked = Query { ids: Some(ids), ..Query::default() };
            let count = until_ok(|| two.store.count(&asked));
            assert_eq!(count, Some(1), "restart {restart}, record {number}");
        }
    }
    assert_eq!(database.sql("SELECT count(*) FROM hark_nostr.line"), "5");
}

/// If somebody cancels PostgreSQL's wait for a synchronous standby, the commit succeeds with a
/// warning.
#[test]
fn a_commit_that_a_synchronous_standby_lacks_is_not_acknowledged() {
    let primary = Cluster::with(&["synchronous_commit=on"]);
    let database = primary.database("synchronous");
    let standby = primary.replica();
    primary.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
    primary.sql("postgres", "SELECT pg_reload_conf()");
    let options = PostgresOptions::default();
    let store = PostgresStore::open(&database.url, "nostr", Box::new(NostrRules), &options);
    let store = store.expect("opens");
    until("the standby is synchronous", || {
        primary.sql("postgres", "SELECT sync_state FROM pg_stat_replication") == "sync"
    });
    store.commit(&[put(1)]).expect("is stored");
    standby.pause();
    let answer = std::thread::scope(|scope| {
        let committing = scope.spawn(|| store.commit(&[put(2)]));
        let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity \
                      WHERE wait_event = 'SyncRep'";
        until("the commit waits, and its wait is cancelled", || {
            primary.sql("postgres", cancel) == "1" || committing.is_finished()
        });
        committing.join().unwrap()
    });
    standby.resume();
    // Otherwise the end of the test would wait for the standby.
    primary.sql("postgres", "ALTER SYSTEM RESET synchronous_standby_names");
    primary.sql("postgres", "SELECT pg_reload_conf()");
    let refused = answer.expect_err("the standby lacks the record").to_string();
    assert!(refused.contains("the commit is not safe yet"), "{refused}");
    let stored = until_ok(|| store.commit(&[put(2), put(3)]));
    assert!(matches!(stored.outcomes[..], [Outcome::Duplicate, Outcome::Stored { .. }]));
}
