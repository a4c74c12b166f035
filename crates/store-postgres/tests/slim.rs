//! The slim form of the tables, for networks whose records have exactly one label each. New shelves
//! have this form. Existing shelves are changed to this form while servers use them, even after an
//! interruption.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use hark_archive::effects::KeepAll;
use hark_archive::{LabelSet, Order, Query, RecordHeader, SearchProgress, Store, Write};
use hark_store_postgres::{PostgresOptions, PostgresStore, check, migrations, rebuild};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::random::encode;
use hark_testkit::wait::until;

const DAY: u64 = 86_400;
/// A time before the year 2020.
const OLD: u64 = 17_900 * DAY;
const FORM: &str = "SELECT relkind FROM pg_class WHERE oid = 'hark_whisper.tag'::regclass";

fn options(one_label: bool) -> PostgresOptions {
    PostgresOptions {
        part_s: DAY,
        one_kind: true,
        one_label,
        listed_labels: b"t",
        ..PostgresOptions::default()
    }
}

fn open(database: &Database<'_>, one_label: bool) -> PostgresStore {
    let opened =
        PostgresStore::open(&database.url, "whisper", Box::new(KeepAll), &options(one_label));
    opened.expect("opens")
}

/// Returns a record with these labels, a minute after the record before.
fn record(number: u32, labels: &[Vec<u8>]) -> Write {
    let mut id = [3; 32];
    id[..4].copy_from_slice(&number.wrapping_mul(0x9e37_79b9).to_be_bytes());
    let time = OLD + u64::from(number / 4) * 240;
    let head = RecordHeader { id, time, author: None, kind: 0, expires: None };
    let labels: Vec<(u8, Vec<u8>)> = labels.iter().map(|label| (b't', label.clone())).collect();
    Write::Put(encode(&head, &labels))
}

fn topic(number: u32) -> Vec<u8> {
    (number % 40 * (number % 3)).to_be_bytes().to_vec()
}

fn put(store: &dyn Store, numbers: std::ops::Range<u32>) {
    let writes: Vec<Write> = numbers.map(|number| record(number, &[topic(number)])).collect();
    store.commit(&writes).expect("commits");
}

/// The ids of the answers to questions for few and for many topics, in both orders.
fn answers(store: &dyn Store) -> Vec<Vec<[u8; 32]>> {
    let mut all = Vec::new();
    for topics in [1, 3, 130] {
        for order in [Order::NewestFirst, Order::OldestFirst] {
            let values = (0..topics).map(|number: u32| topic(number).into()).collect();
            let labels = vec![LabelSet { name: b't', values }];
            let query = Query { labels, order, from: OLD + DAY / 2, ..Query::default() };
            let (mut search, mut ids) = (store.search(&query).expect("searches"), Vec::new());
            let mut sink = |record: &hark_archive::Record<'_>| {
                ids.push(*record.id());
                ControlFlow::Continue(())
            };
            // In small slices, a window has more records than a page.
            while search.slice(300, &mut sink).expect("searches") == SearchProgress::Paused {}
            all.push(ids);
        }
    }
    all
}

/// Checks the shelf, and lists the faults.
fn faults(database: &Database<'_>) -> Vec<String> {
    let report = check(
        &database.url,
        "whisper",
        Box::new(KeepAll),
        &options(true),
        &mut |_| None,
        &mut |_| {},
    );
    report.expect("checks").faults.iter().map(|fault| format!("{fault:?}")).collect()
}

#[test]
fn a_new_shelf_has_one_index_by_label_and_no_table_of_labels() {
    let database = Cluster::shared().database("slim new");
    let store = open(&database, true);
    put(&store, 0..3_000);
    assert_eq!(database.sql(FORM), "v");
    let indices = database.sql(
        "SELECT string_agg(pg_get_indexdef(indexrelid), '; ') FROM pg_index \
         WHERE indrelid = 'hark_whisper.record_17900'::regclass",
    );
    assert!(indices.contains("terms[1]") && !indices.contains("author"), "{indices}");
    let labelled = Cluster::shared().database("slim labelled");
    let other = open(&labelled, false);
    put(&other, 0..3_000);
    assert_eq!(labelled.sql(FORM), "p");
    assert!(answers(&store) == answers(&other));
    assert_eq!(faults(&database), [""; 0]);

    let dropped = store.drop_part(OLD + DAY, &[]).expect("drops");
    assert_eq!(dropped, other.drop_part(OLD + DAY, &[]).expect("drops"));
    assert!(dropped > Some(1_000));
    let erased = Query { to: OLD + DAY + 9_000, ..Query::default() };
    store.commit(&[Write::Erase(Box::new(erased.clone()))]).expect("erases");
    other.commit(&[Write::Erase(Box::new(erased))]).expect("erases");
    assert_eq!(store.stats().records, other.stats().records);
    assert!(answers(&store) == answers(&other));
    assert_eq!(faults(&database), [""; 0]);
}

#[test]
fn a_page_reads_hardly_more_records_than_it_has_bytes() {
    let database = Cluster::shared().database("slim bytes");
    let store = open(&database, true);
    put(&store, 0..6_000);
    let query = Query { bytes: 30_000, ..Query::default() };
    let (mut bytes, mut records) = (0, 0);
    let mut search = store.search(&query).expect("searches");
    let mut sink = |record: &hark_archive::Record<'_>| {
        (bytes, records) = (bytes + record.bytes().len(), records + 1);
        if bytes > 30_000 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    search.slice(u64::MAX, &mut sink).expect("searches");
    assert!(bytes > 30_000);
    let visited = search.visited();
    assert!(visited < records * 2 + 100, "{visited} rows for {records} records");
}

#[test]
fn faults_of_slim_tables_are_found_and_repaired() {
    let database = Cluster::shared().database("slim faults");
    let store = open(&database, true);
    put(&store, 0..2_000);
    let expected = answers(&store);
    database.sql(
        "SET search_path = hark_whisper; SET hark.writes_words = on; \
         UPDATE record SET terms = ARRAY[terms[1] + 1] WHERE seq = 7; \
         UPDATE record SET kind = 3 WHERE seq = 8; UPDATE state SET records = records + 1; \
         DROP VIEW tag_17901; ALTER TABLE record DETACH PARTITION record_17901; \
         DROP TABLE record_17901",
    );
    assert!(!faults(&database).is_empty());
    let options = options(true);
    let (shelf, rules) = ("whisper", Box::new(KeepAll));
    let done =
        rebuild(&database.url, shelf, rules, &options, &mut |_| None, &mut |_| {}).expect("works");
    assert_eq!(done.last.fault_count(), 0, "{done:?}");
    assert_eq!(faults(&database), [""; 0]);
    let store = open(&database, true);
    put(&store, 1_400..2_000);
    assert!(answers(&store) == expected);
}

#[test]
fn a_shelf_becomes_slim_beside_its_servers_and_after_an_interruption() {
    let database = Cluster::shared().database("slim later");
    let (store, written) = (open(&database, false), AtomicU32::new(2_000));
    put(&store, 0..2_000);
    // The state after an interruption: some indices are there, and one is not valid.
    database.sql(
        "SET search_path = hark_whisper; \
         ALTER TABLE record ADD CONSTRAINT one_term CHECK (cardinality(terms) = 1) NOT VALID; \
         CREATE INDEX record_17900_term_time_id_idx \
             ON record_17900 ((terms[1]), time DESC, id); \
         CREATE INDEX record_17901_hashed_id_idx ON record_17901 USING hash (id); \
         UPDATE pg_index SET indisvalid = false \
             WHERE indexrelid = 'record_17901_hashed_id_idx'::regclass",
    );
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                let from = written.load(Ordering::Relaxed);
                put(&store, from..from + 10);
                written.store(from + 10, Ordering::Relaxed);
                assert_eq!(answers(&store).len(), 6);
            }
        });
        until("the writer has begun", || written.load(Ordering::Relaxed) > 2_000);
        migrations(&database.url, "whisper", &options(true), true).expect("migrates");
        let now = written.load(Ordering::Relaxed);
        until("the writer goes on", || written.load(Ordering::Relaxed) > now + 30);
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(database.sql(FORM), "v");
    let other = open(&database, true);
    assert!(answers(&store) == answers(&other));
    assert_eq!(other.stats().records, u64::from(written.load(Ordering::Relaxed)));
    assert_eq!(faults(&database), [""; 0]);
    // A server that was started before the change makes parts in the new form.
    put(&store, 20_000..20_010);
    assert_eq!(faults(&database), [""; 0]);
    // Another attempt changes nothing.
    migrations(&database.url, "whisper", &options(true), true).expect("migrates");
    assert!(answers(&store) == answers(&other));
}

#[test]
fn a_shelf_with_other_records_stays_as_it_is() {
    let database = Cluster::shared().database("slim never");
    let store = open(&database, false);
    store.commit(&[record(1, &[topic(1), topic(2)])]).expect("commits");
    assert!(migrations(&database.url, "whisper", &options(true), true).is_err());
    assert_eq!(database.sql(FORM), "p");
    store.commit(&[record(2, &[topic(1), topic(2)])]).expect("commits");
    assert_eq!(faults(&database), [""; 0]);
}
