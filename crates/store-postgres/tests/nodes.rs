//! Several processes on one database, and a database that becomes unreachable. Acknowledged records
//! are stored, every subscriber receives every record once, and service resumes by itself.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use hark_archive::writer::{CommitListener, Writer, WriterOptions as Batches};
use hark_archive::{
    CommitError, Id, Outcome, Query, Record, RecordHeader, SearchError, Store, Write,
};
use hark_codec::record::LabelPosition;
use hark_networks::nostr::rules::NostrRules;
use hark_store_postgres::{PostgresOptions, PostgresStore};
use hark_testkit::citus::{CitusCluster, is_installed};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::wait::{PATIENCE, until, until_ok};

mod numbered;

use numbered::{open, record};

/// A node: a store, its writer, and the records that subscribers receive.
struct Node {
    store: Arc<PostgresStore>,
    writer: Arc<Writer>,
    received: Receiver<(u64, Id)>,
    /// How many times the node was notified that another process may have committed.
    noticed: Arc<AtomicU64>,
}

struct Ear(Sender<(u64, Id)>);

impl CommitListener for Ear {
    fn batch(
        &mut self,
        records: &mut dyn Iterator<Item = (u64, Record<'_>)>,
        answer: &mut dyn FnMut(),
    ) {
        for (seq, record) in records {
            // The receiver is gone if the test no longer listens.
            let _ = self.0.send((seq, *record.id()));
        }
        answer();
    }
}

impl Node {
    fn new(url: &str) -> Self {
        let options = PostgresOptions::default();
        let store = PostgresStore::open(url, "nostr", Box::new(NostrRules), &options);
        let store = Arc::new(store.expect("opens"));
        let (sender, received) = channel();
        let shared: Arc<dyn Store> = Arc::clone(&store) as _;
        let writer = Writer::start(shared, Batches::default(), Box::new(Ear(sender)));
        let writer = Arc::new(writer);
        let (woken, noticed) = (Arc::downgrade(&writer), Arc::<AtomicU64>::default());
        let notices = Arc::clone(&noticed);
        store.on_news(Box::new(move || {
            if let Some(writer) = woken.upgrade() {
                writer.deliver_news();
            }
            notices.fetch_add(1, Ordering::Relaxed);
        }));
        Self { store, writer, received, noticed }
    }

    /// Puts all records. No put waits for the outcome of the previous put.
    fn put(&self, records: &[Box<[u8]>]) -> Vec<Result<Outcome, Arc<CommitError>>> {
        let outcomes = Arc::new(Mutex::new(BTreeMap::new()));
        for (at, bytes) in records.iter().enumerate() {
            let outcomes = Arc::clone(&outcomes);
            let done = move |outcome| {
                outcomes.lock().unwrap().insert(at, outcome);
            };
            self.writer.submit(Write::Put(bytes.clone()), Box::new(done)).unwrap();
        }
        until("all writes are answered", || outcomes.lock().unwrap().len() == records.len());
        std::mem::take(&mut *outcomes.lock().unwrap()).into_values().collect()
    }

    /// Returns the ids of the stored records, in order. Shortly after the database was unreachable,
    /// reads may still fail.
    fn ids(&self) -> Vec<Id> {
        until_ok(|| self.try_ids())
    }

    fn try_ids(&self) -> Result<Vec<Id>, SearchError> {
        let mut search = self.store.search(&Query::default())?;
        let mut ids = Vec::new();
        let mut sink = |record: &Record<'_>| {
            ids.push(*record.id());
            ControlFlow::Continue(())
        };
        search.slice(u64::MAX, &mut sink)?;
        Ok(ids)
    }

    /// Waits for the next `count` records.
    fn receive(&self, count: usize) -> Vec<(u64, Id)> {
        (0..count).map(|_| self.received.recv_timeout(PATIENCE).expect("receives")).collect()
    }
}

#[test]
fn three_nodes_keep_one_copy_and_each_receives_everything_once_and_in_order() {
    keep_one_copy(&Cluster::shared().database("three nodes"));
}

#[test]
fn three_nodes_of_citus_keep_one_copy_and_each_receives_everything_once_and_in_order() {
    if is_installed() {
        keep_one_copy(&CitusCluster::shared().database("three nodes"));
    }
}

fn keep_one_copy(database: &Database<'_>) {
    let mut nodes: Vec<Node> = (0..3).map(|_| Node::new(&database.url)).collect();
    let plain: Vec<_> = (0..3_000).map(|n| record(n, 1, 1, 1_700_000_000 + u64::from(n))).collect();
    let versions =
        (0..300).map(|n| record(10_000 + n, 10_002, (n % 10) as u8, 1_700_000_000 + u64::from(n)));
    let versions: Vec<_> = versions.collect();
    let all = [plain, versions].concat();
    let put = |node: &Node, turn: usize| {
        let mut mine = all.clone();
        mine.rotate_left(turn * 1_000);
        node.put(&mine)
    };
    let put = &put;
    let outcomes: Vec<Vec<_>> = std::thread::scope(|scope| {
        let nodes = nodes.iter_mut().enumerate();
        let running: Vec<_> =
            nodes.map(|(turn, node)| scope.spawn(move || put(node, turn))).collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let outcomes: Vec<Outcome> = outcomes.into_iter().flatten().map(Result::unwrap).collect();
    let stored = outcomes.iter().filter(|one| matches!(one, Outcome::Stored { .. })).count();
    let late = outcomes.iter().filter(|one| **one == Outcome::Superseded).count();
    let duplicates = outcomes.iter().filter(|one| **one == Outcome::Duplicate).count();
    assert_eq!(stored + late + duplicates, all.len() * 3);
    let kept = nodes[0].ids();
    assert_eq!(kept.len(), 3_010, "one copy of each, and the newest of ten replaceable ones");
    for node in &nodes[1..] {
        assert_eq!(node.ids(), kept);
    }
    for node in &nodes {
        let mut received = Vec::new();
        while !kept.iter().all(|id| received.iter().any(|(_, other)| other == id)) {
            received.extend(node.receive(1));
            received.extend(node.received.try_iter());
        }
        assert!(received.is_sorted_by(|a, b| a.0 < b.0), "in order, each once");
    }
}

#[test]
fn commits_of_one_node_make_no_batch_of_another_smaller() {
    let database = Cluster::shared().database("batches");
    let (node, other) = (Node::new(&database.url), Node::new(&database.url));
    let one = |number| record(number, 1, 1, 1_700_000_000 + u64::from(number));
    let put_elsewhere = |number| {
        other.writer.write(Write::Put(one(number))).unwrap();
    };
    // While a node writes nothing, it receives each record at once.
    (0..20).for_each(put_elsewhere);
    let mut received = node.receive(20);
    // Twenty commits of the other node come between the writes that wait for a batch.
    let (go, wait) = channel::<()>();
    assert!(node.writer.between(Box::new(move |_| wait.recv().unwrap())).is_ok());
    let (done, outcomes) = channel();
    for round in 1..=20 {
        let before = node.noticed.load(Ordering::Relaxed);
        put_elsewhere(1_000 * round);
        until("it is noticed", || node.noticed.load(Ordering::Relaxed) > before);
        for number in 1..=50 {
            let done = done.clone();
            let write = Write::Put(one(1_000 * round + number));
            let answer = move |outcome| done.send(outcome).unwrap();
            node.writer.submit(write, Box::new(answer)).unwrap();
        }
    }
    go.send(()).unwrap();
    for _ in 0..1_000 {
        let outcome: Result<Outcome, Arc<CommitError>> = outcomes.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(outcome, Ok(Outcome::Stored { .. })), "{outcome:?}");
    }
    assert_eq!(node.writer.counters().batches.read().count(), 1, "one batch");
    received.extend(node.receive(1_020));
    for received in [received, other.receive(1_040)] {
        let numbers: Vec<u64> = received.iter().map(|(seq, _)| *seq).collect();
        assert_eq!(numbers, (1..=1_040).collect::<Vec<_>>(), "all, once and in order");
    }
    assert!(node.received.try_recv().is_err() && other.received.try_recv().is_err());
}

#[test]
fn a_database_that_answers_but_commits_nothing_is_troubled_until_it_commits() {
    let database = Cluster::shared().database("refuses");
    let node = Node::new(&database.url);
    let put = |number| node.writer.write(Write::Put(record(number, 1, 1, 1_700_000_000)));
    let trouble = || node.writer.counters().unavailable();
    put(1).unwrap();
    database.sql(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$;
         CREATE TRIGGER fail BEFORE INSERT ON hark_nostr.record EXECUTE FUNCTION fail()",
    );
    assert!(matches!(*put(2).unwrap_err(), CommitError::Unavailable(_)));
    // Questions are answered, and notices arrive.
    for _ in 0..2 {
        let notices = node.noticed.load(Ordering::Relaxed);
        assert_eq!(node.ids().len(), 1);
        database.sql("NOTIFY hark_nostr, '9 0 0 0'");
        until("it is noticed", || node.noticed.load(Ordering::Relaxed) > notices);
        let why = trouble().expect("is troubled");
        assert!(why.contains("the database refused: could not extend file"), "{why}");
        let probe = node.store.commit_some(&[]);
        assert!(matches!(probe, Err(CommitError::Unavailable(_))), "{probe:?}");
    }
    // The trouble ends by itself.
    database.sql("DROP TRIGGER fail ON hark_nostr.record");
    until("the trouble ends", || trouble().is_none());
    assert_eq!(node.ids().len(), 1, "and nothing is written for this");
    assert_eq!(node.writer.counters().batches.read().count(), 1);
    assert!(matches!(put(3), Ok(Outcome::Stored { seq: 2 })));
}

#[test]
fn what_was_acknowledged_outlives_the_database_and_service_goes_on_by_itself() {
    let cluster = Cluster::with(&[]);
    let database = cluster.database("away");
    let (node, other) = (Node::new(&database.url), Node::new(&database.url));
    let mut acknowledged = Vec::new();
    let mut refused = 0;
    let mut number = 0;
    let mut put = |node: &Node, refused: &mut u32| {
        let batch: Vec<_> = (0..20)
            .map(|_| {
                number += 1;
                record(number, 1, 1, 1_700_000_000 + u64::from(number))
            })
            .collect();
        for (bytes, outcome) in batch.iter().zip(node.put(&batch)) {
            match outcome {
                Ok(_) => acknowledged.push(*Record::new(bytes).unwrap().id()),
                Err(error) => {
                    assert!(matches!(*error, CommitError::Unavailable(_)), "{error}");
                    *refused += 1;
                }
            }
        }
    };
    for end in [Cluster::stop, Cluster::kill] {
        for _ in 0..10 {
            put(&node, &mut refused);
        }
        end(&cluster);
        let before = refused;
        put(&node, &mut refused);
        assert!(refused > before, "clients get a reason");
        // The newest position is not known, so an answer might lack records of the other node.
        assert!(node.try_ids().is_err());
        cluster.start();
        until("it goes on", || {
            let before = refused;
            put(&node, &mut refused);
            refused == before
        });
    }
    let kept = node.ids();
    let lost = acknowledged.iter().filter(|id| !kept.contains(id)).count();
    assert_eq!(lost, 0, "of {} with an OK; {} are kept", acknowledged.len(), kept.len());
    let mut received = Vec::new();
    while !kept.iter().all(|id| received.iter().any(|(_, other)| other == id)) {
        received.extend(other.receive(1));
    }
    assert!(received.is_sorted_by(|a, b| a.0 < b.0), "in order, each once");
}

#[test]
fn a_part_that_is_old_goes_as_a_whole_but_for_what_is_spared() {
    const DAY: u64 = 86_400;
    let database = Cluster::shared().database("retention");
    let options = PostgresOptions { part_s: DAY, ..PostgresOptions::default() };
    let store = PostgresStore::open(&database.url, "nostr", Box::new(NostrRules), &options);
    let store = store.expect("opens");
    let time = |day: u64, n: u32| (19_700 + day) * DAY + u64::from(n);
    let put = |records: Vec<Box<[u8]>>| {
        let writes: Vec<Write> = records.into_iter().map(Write::Put).collect();
        store.commit(&writes).unwrap();
    };
    for day in 0..3 {
        let base = day as u32 * 1_000;
        put((0..200).map(|n| record(base + n, 1, 1, time(day, n))).collect());
        put((200..203).map(|n| record(base + n, 5, 2, time(day, n))).collect());
    }
    let spared = [5];
    assert_eq!(
        store.drop_part(time(0, 0) + DAY - 2, &spared).unwrap(),
        None,
        "not all of it is old"
    );
    assert_eq!(store.drop_part(time(0, 0) + DAY - 1, &spared).unwrap(), Some(200));
    assert_eq!(store.stats().records, 409);
    let all = |query: Query| store.count(&query).unwrap();
    assert_eq!(all(Query::default()), Some(409));
    assert_eq!(all(Query { to: time(1, 0) - 1, ..Query::default() }), Some(3));
    let tagged = vec![hark_archive::LabelSet::one(b't', b"a")];
    assert_eq!(all(Query { labels: tagged, ..Query::default() }), Some(409));
    // A late record recreates the part, and the spared records move to this part.
    put(vec![record(9_000, 1, 1, time(0, 900))]);
    assert_eq!(all(Query { to: time(1, 0) - 1, ..Query::default() }), Some(4));
    assert_eq!(store.drop_part(time(5, 0), &spared).unwrap(), Some(1));
    assert_eq!(store.drop_part(time(5, 0), &spared).unwrap(), Some(200));
    assert_eq!(all(Query::default()), Some(209));
}

#[test]
fn records_whose_part_is_not_where_it_is_thought_to_be_are_found_all_the_same() {
    let database = Cluster::shared().database("parts");
    let store = open(&database);
    let puts: Vec<Write> =
        (0..9).map(|n| Write::Put(record(n, n, 1, 1_700_000_000 + u64::from(n)))).collect();
    store.commit(&puts).unwrap();
    let found = |store: &PostgresStore| {
        let labels = vec![hark_archive::LabelSet::one(b't', b"a")];
        let mut search = store.search(&Query { labels, ..Query::default() }).unwrap();
        let mut times = Vec::new();
        let mut sink = |record: &Record<'_>| {
            times.push(record.time());
            ControlFlow::Continue(())
        };
        search.slice(u64::MAX, &mut sink).unwrap();
        times
    };
    let said = |store: &PostgresStore, form: &str| {
        let statements = store.stats().database.unwrap().statements;
        statements.iter().any(|(name, _)| *name == form)
    };
    let newest_first: Vec<u64> = (0..9).rev().map(|n| 1_700_000_000 + n).collect();
    assert_eq!(found(&store), newest_first);
    assert!(
        said(&store, "part_bodies") && !said(&store, "bodies"),
        "it was looked for in its part"
    );
    // Another process knows the parts but has not fetched anything yet.
    let other = open(&database);
    let part = database.sql("SELECT tablename FROM pg_tables WHERE tablename ~ '^record_[0-9]+$'");
    database.sql(&format!("ALTER TABLE hark_nostr.{part} RENAME TO elsewhere"));
    assert_eq!(found(&other), newest_first);
    assert!(said(&other, "bodies"), "it was looked for in all parts");
    assert_eq!(found(&store), newest_first, "what was fetched is kept");
    assert!(!said(&store, "bodies"));
}

/// A record that is put with different bytes each time.
fn version(wire: &[u8]) -> Write {
    let head = RecordHeader {
        id: [7; 32],
        time: 1_700_000_000,
        author: Some([1; 32]),
        kind: 1,
        expires: None,
    };
    let mut bytes = Vec::new();
    let label = (b't', LabelPosition::Bytes(b"a"));
    hark_codec::record::write(&mut bytes, &head, wire, std::iter::once(label));
    Write::Put(bytes.into())
}

fn erase_version() -> Write {
    Write::Erase(Query { ids: Some(vec![[7; 32]]), ..Query::default() }.into())
}

/// Searches for the record. Returns the number up to which puts were seen, and the found bytes.
fn versions(store: &PostgresStore) -> (u64, Vec<String>) {
    // With this many values, records are fetched by their keys.
    let values = (b'a'..=b'z').map(|value| [value][..].into()).collect();
    let labels = vec![hark_archive::LabelSet { name: b't', values }];
    let mut search = store.search(&Query { labels, ..Query::default() }).unwrap();
    let mut found = Vec::new();
    let mut sink = |record: &Record<'_>| {
        found.push(String::from_utf8_lossy(record.wire()).into_owned());
        ControlFlow::Continue(())
    };
    search.slice(u64::MAX, &mut sink).unwrap();
    (search.seq(), found)
}

#[test]
fn a_record_that_was_deleted_and_put_again_is_read_as_it_is_now() {
    let database = Cluster::shared().database("again");
    let (one, other) = (open(&database), open(&database));
    one.commit(&[version(b"first")]).unwrap();
    other.news();
    for store in [&one, &other, &one] {
        assert_eq!(versions(store).1, ["first"]);
    }
    one.commit(&[erase_version()]).unwrap();
    for store in [&one, &other] {
        assert!(versions(store).1.is_empty(), "no index names it any more");
    }
    one.commit(&[version(b"second")]).unwrap();
    other.news();
    for store in [&one, &other] {
        assert_eq!(versions(store).1, ["second"]);
    }
}

#[test]
fn no_search_finds_a_record_as_it_was_before_a_put_that_the_search_sees() {
    let database = Cluster::shared().database("versions");
    let (one, other) = (open(&database), open(&database));
    let put = |number: u32| {
        let wire = number.to_string();
        let done = one.commit(&[erase_version(), version(wire.as_bytes())]).unwrap();
        let Outcome::Stored { seq } = done.outcomes[1] else { panic!("{:?}", done.outcomes) };
        other.news();
        (seq, wire)
    };
    let (puts, seen) = std::thread::scope(|scope| {
        let writing = scope.spawn(|| (0..100).map(put).collect::<Vec<_>>());
        let mut seen = Vec::new();
        while !writing.is_finished() {
            seen.extend([&one, &other].map(versions));
        }
        (writing.join().unwrap(), seen)
    });
    for (seq, found) in seen {
        let newest = puts.iter().rfind(|(put, _)| *put <= seq).map(|(_, wire)| wire);
        assert!(found.iter().all(|wire| Some(wire) == newest), "{found:?}, not {newest:?}");
    }
}

#[test]
fn a_node_asks_for_the_newest_put_only_while_there_are_others() {
    let database = Cluster::shared().database("others");
    let asked = |store: &PostgresStore| {
        let statements = store.stats().database.unwrap().statements;
        statements.iter().find(|(form, _)| *form == "newest").map_or(0, |(_, times)| times.count())
    };
    let asks = |store: &PostgresStore| {
        let before = asked(store);
        store.count(&Query::default()).unwrap();
        asked(store) > before
    };
    let one = open(&database);
    assert!(asks(&one), "it does not know yet");
    one.on_news(Box::new(|| {}));
    one.commit(&[Write::Put(record(1, 1, 1, 1_700_000_000))]).unwrap();
    until("it is alone", || !asks(&one));
    let other = open(&database);
    other.commit(&[Write::Put(record(2, 1, 1, 1_700_000_001))]).unwrap();
    until("another writes", || asks(&one));
    assert_eq!(one.count(&Query::default()).unwrap(), Some(2));
    drop(other);
    until("it is alone again", || !asks(&one));
}
