//! Tests of the number of rows and pages that queries read: in parts by time, for conditions that
//! no record meets together, and among records of one time.

use std::ops::ControlFlow;

use hark_archive::effects::KeepAll;
use hark_archive::{LabelSet, Order, Position, Query, RecordHeader, SearchProgress, Store, Write};
use hark_store_postgres::{PostgresOptions, PostgresStore};
use hark_testkit::citus::{CitusCluster, is_installed};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::random::encode;

const DAY: u64 = 86_400;
const DAYS: u64 = 30;
const START: u64 = 19_700 * DAY;
const TOPICS: u64 = 150;

/// A shelf with a part for each day.
fn open(database: &Database<'_>, one_kind: bool) -> PostgresStore {
    let options = PostgresOptions {
        part_s: DAY,
        one_kind,
        common_labels: b"p",
        ..PostgresOptions::default()
    };
    PostgresStore::open(&database.url, "reads", Box::new(KeepAll), &options).expect("opens")
}

fn value(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// An id that differs for each time and number.
fn id(time: u64, number: u64) -> [u8; 32] {
    let mut id = [1; 32];
    id[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    id[8..16].copy_from_slice(&time.to_be_bytes());
    id
}

fn put(time: u64, number: u64, kind: u32, labels: &[(u8, Vec<u8>)]) -> Write {
    let head =
        RecordHeader { id: id(time, number), time, author: Some([7; 32]), kind, expires: None };
    Write::Put(encode(&head, labels))
}

fn set(name: u8, values: impl Iterator<Item = u64>) -> LabelSet {
    LabelSet { name, values: values.map(|number| value(number).into()).collect() }
}

/// Runs a query in slices. Returns the found times, and the number of visited rows.
fn times_by(store: &PostgresStore, query: &Query, slice: u64) -> (Vec<u64>, u64) {
    let mut times = Vec::new();
    let mut search = store.search(query).expect("begins");
    loop {
        let done = search.slice(slice, &mut |record| {
            times.push(record.time());
            ControlFlow::Continue(())
        });
        match done.expect("answers") {
            SearchProgress::Paused => {}
            SearchProgress::Done { .. } => return (times, search.visited()),
            SearchProgress::Exhausted => panic!("a budget was exhausted"),
        }
    }
}

fn times(store: &PostgresStore, query: &Query) -> (Vec<u64>, u64) {
    times_by(store, query, u64::MAX)
}

/// Returns the names of a query's statements, and the number of pages of tables and indices that
/// they read.
fn pages(store: &PostgresStore, query: &Query) -> (Vec<String>, u64) {
    let explained = store.explain(query).expect("explains");
    let names = explained.steps.iter().map(|step| step.source.clone()).collect();
    let (mut pages, mut is_new) = (0, false);
    for line in &explained.details {
        is_new |= !line.starts_with(' ');
        if let Some((_, buffers)) = line.split_once("Buffers: shared").filter(|_| is_new) {
            let counts = buffers.split(['=', ' ']).filter_map(|count| count.parse::<u64>().ok());
            pages += counts.sum::<u64>();
            is_new = false;
        }
    }
    (names, pages)
}

/// Returns the number of statements, or groups of statements, that the database has answered.
fn trips(store: &PostgresStore) -> u64 {
    let statements = store.stats().database.expect("is there").statements;
    statements.iter().map(|(_, times)| times.count()).sum()
}

fn put_month(store: &PostgresStore, kinds: u32) {
    for day in 0..DAYS {
        let of_day = (0..4 * TOPICS).map(|n| {
            let (kind, topic) = (n as u32 / TOPICS as u32 % kinds, value(n % TOPICS));
            put(START + day * DAY + n, n, kind, &[(b't', topic)])
        });
        store.commit(&of_day.collect::<Vec<_>>()).expect("commits");
    }
}

/// Returns a query for `count` topics. The last twenty topics have no records.
fn topics(count: u64) -> Query {
    let known = (0..count - 20).chain(10_000..10_020);
    let mut query = Query {
        labels: vec![set(b't', known)],
        from: START,
        to: START + DAYS * DAY - 1,
        limit: 100,
        ..Query::default()
    };
    query.normalise();
    query
}

#[test]
fn a_page_of_a_month_reads_the_parts_that_it_needs_however_many_topics_it_asks_for() {
    let database = Cluster::shared().database("month");
    let store = open(&database, true);
    put_month(&store, 1);
    database.sql("VACUUM ANALYZE");
    let mut read = Vec::new();
    for count in [120, 140, 170] {
        let query = topics(count);
        let (found, visited) = times(&store, &query);
        let last = START + (DAYS - 1) * DAY;
        let expected = (0..4 * TOPICS).rev().filter(|n| n % TOPICS < count - 20).take(100);
        assert!(found.iter().copied().eq(expected.map(|n| last + n)), "{count} topics");
        let (names, pages) = pages(&store, &query);
        println!("{count} topics: {names:?}, {pages} pages, {visited} rows");
        assert!(!names.iter().any(|name| name.contains("few")), "{names:?}");
        assert!(visited < 1_200, "{count} topics: {visited} rows");
        read.push(pages);
    }
    // Queries for more than 128 values read no more parts than queries for fewer values.
    assert!(read[2] < 2 * read[0], "{read:?}");
}

#[test]
fn pages_end_in_the_midst_of_a_part_or_of_several() {
    let database = Cluster::shared().database("several parts");
    let store = open(&database, true);
    put_month(&store, 1);
    let all = (0..DAYS).flat_map(|day| {
        (0..4 * TOPICS).filter(|n| n % TOPICS < 3).map(move |n| START + day * DAY + n)
    });
    let mut all: Vec<u64> = all.collect();
    for order in [Order::OldestFirst, Order::NewestFirst] {
        for slice in [10, 50, u64::MAX] {
            let mut query = Query { labels: vec![set(b't', 0..3)], order, ..Query::default() };
            query.normalise();
            assert_eq!(times_by(&store, &query, slice).0, all, "{order:?}, slices of {slice}");
        }
        all.reverse();
    }
}

#[test]
fn topics_of_several_kinds_are_looked_up_in_the_parts_of_the_questions_times() {
    let database = Cluster::shared().database("kinds of a month");
    let store = open(&database, false);
    put_month(&store, 3);
    database.sql("VACUUM ANALYZE");
    let day = START + 5 * DAY;
    let mut read = Vec::new();
    for (from, to) in [(day + 10, day + DAY - 1), (START, START + DAYS * DAY - 1)] {
        let query = Query { from, to, limit: 20, ..topics(170) };
        let (found, _) = times(&store, &query);
        let newest = to / DAY * DAY;
        assert!(found.iter().copied().eq((580..600).rev().map(|n| newest + n)), "{found:?}");
        let (names, pages) = pages(&store, &query);
        println!("{names:?}, {pages} pages");
        assert_eq!(names[0], "term_few");
        read.push(pages);
    }
    assert!(read[0] * 5 < read[1], "{read:?}");
}

/// Puts `count` records of a topic and a shard, a second apart.
fn put_topic(store: &PostgresStore, topic: u64, shard: u64, count: u64) {
    let labels = [(b'c', value(topic)), (b'p', value(shard))];
    let writes: Vec<Write> =
        (0..count).map(|n| put(START + n * 5 + topic, n, 0, &labels)).collect();
    writes.chunks(2_000).for_each(|writes| drop(store.commit(writes).expect("commits")));
}

#[test]
fn a_topic_and_a_shard_that_never_meet_take_few_round_trips_and_rows() {
    let database = Cluster::shared().database("never meet");
    let store = open(&database, true);
    put_topic(&store, 1, 1, 8_000);
    put_topic(&store, 2, 2, 8_000);
    put_topic(&store, 3, 3, 200);
    let ask = |topic: u64, shard: u64, order: Order| {
        let labels = vec![set(b'c', std::iter::once(topic)), set(b'p', std::iter::once(shard))];
        let mut query = Query { labels, order, limit: 20, ..Query::default() };
        query.normalise();
        let before = trips(&store);
        let (found, visited) = times(&store, &query);
        (found.len(), visited, trips(&store) - before)
    };
    for order in [Order::NewestFirst, Order::OldestFirst] {
        // The topic and the shard have many records, so rows are read in large batches.
        let (found, visited, trips) = ask(1, 2, order);
        println!("many: {visited} rows, {trips} trips");
        assert!(found == 0 && visited < 12_000 && trips < 20, "{visited} rows, {trips} trips");
        // The shard has few or no records.
        for (shard, rows_max) in [(3, 4_000), (4, 3_000)] {
            let (found, visited, trips) = ask(1, shard, order);
            println!("{shard}: {visited} rows, {trips} trips");
            assert!(
                found == 0 && visited < rows_max && trips < 12,
                "{visited} rows, {trips} trips"
            );
        }
        let (found, visited, trips) = ask(1, 1, order);
        assert!(found == 20 && visited < 30 && trips < 4, "{visited} rows, {trips} trips");
    }
}

#[test]
fn a_page_among_records_of_one_time_begins_where_the_last_one_ended() {
    let database = Cluster::shared().database("one time");
    let store = open(&database, false);
    let (same, count) = (START + DAY / 2, 6_000);
    let labels = |n: u64| [(b't', value(n % 2)), (b'u', value(n % 20))];
    let writes: Vec<Write> = (0..count).map(|n| put(same, n, (n % 2) as u32, &labels(n))).collect();
    writes.chunks(2_000).for_each(|writes| drop(store.commit(writes).expect("commits")));
    for n in 0..40 {
        let time = same - 20 + n;
        store.commit(&[put(time, 100_000 + n, 0, &labels(n))]).expect("commits");
    }
    database.sql("VACUUM ANALYZE");
    let mut ids: Vec<[u8; 32]> = (0..count).map(|n| id(same, n)).collect();
    ids.sort_unstable();
    let after = Some(Position { time: same, id: ids[5_000] });
    let one = |name, value| vec![set(name, std::iter::once(value))];
    for (name, asked) in [
        ("time", Query::default()),
        ("kind", Query { kinds: Some(vec![0]), ..Query::default() }),
        (
            "author",
            Query { authors: Some(vec![[7; 32]]), kinds: Some(vec![0, 1]), ..Query::default() },
        ),
        ("label", Query { labels: one(b't', 1), kinds: Some(vec![0, 1]), ..Query::default() }),
        (
            "labels",
            Query { labels: vec![set(b'u', 0..20)], kinds: Some(vec![0, 1]), ..Query::default() },
        ),
        ("two labels", Query { labels: [one(b't', 1), one(b'u', 1)].concat(), ..Query::default() }),
    ] {
        for order in [Order::NewestFirst, Order::OldestFirst] {
            let mut query = Query { order, after, limit: 20, ..asked.clone() };
            query.normalise();
            let (found, _) = times(&store, &query);
            assert_eq!(found, [same; 20], "{name}");
            let (names, pages) = pages(&store, &query);
            println!("{name} {order:?}: {names:?}, {pages} pages");
            assert!(pages < 1_000, "{name}, {order:?}: {pages} pages by {names:?}");
        }
    }
}

#[test]
fn a_count_visits_no_more_rows_than_its_budget_and_is_charged_for_each() {
    let database = Cluster::shared().database("counts");
    let store = open(&database, false);
    let both = [(b't', value(5)), (b't', value(6))];
    let puts: Vec<Write> = (0..3_000).map(|n| put(START + n, n, 1, &both)).collect();
    store.commit(&puts).expect("commits");
    database.sql("ANALYZE");
    let counted = |labels: &[u64], not_authors: Vec<[u8; 32]>, budget| {
        let labels = vec![set(b't', labels.iter().copied())];
        let mut visited = 0;
        let query = Query { labels, not_authors, budget, ..Query::default() };
        (store.count_visiting(&query, &mut visited).expect("counts"), visited)
    };
    assert_eq!(counted(&[5], vec![], 10_000), (Some(3_000), 3_000));
    // Each record is found by two values, and counts once.
    assert_eq!(counted(&[5, 6], vec![], 10_000), (Some(3_000), 6_000));
    // No record matches, so only the visited rows can bound the count.
    assert_eq!(counted(&[5], vec![[7; 32]], 10_000), (Some(0), 3_000));
    assert_eq!(counted(&[5], vec![[7; 32]], 500), (None, 501));
    let of_author = Query {
        authors: Some(vec![[7; 32]]),
        not_kinds: vec![1],
        budget: 10_000,
        ..Query::default()
    };
    assert_eq!(store.count_visiting(&of_author, &mut 0).expect("counts"), Some(0));
}

#[test]
fn a_count_on_a_cluster_visits_no_more_rows_than_its_budget() {
    if !is_installed() {
        return;
    }
    let database = CitusCluster::shared().database("counts");
    let store = open(&database, false);
    let puts: Vec<Write> = (0..3_000).map(|n| put(START + n, n, 1, &[])).collect();
    store.commit(&puts).expect("commits");
    let counted = |query: &Query| {
        let mut visited = 0;
        (store.count_visiting(query, &mut visited).expect("counts"), visited)
    };
    assert_eq!(counted(&Query::default()).0, Some(3_000));
    for not_authors in [vec![], vec![[7; 32]]] {
        let (matches, visited) = counted(&Query { not_authors, budget: 500, ..Query::default() });
        assert!(matches.is_none() && (500..1_500).contains(&visited), "{visited} rows");
    }
}

/// Long records are read page by page, and not all at once.
#[test]
fn long_records_are_found_by_their_ids_and_by_their_authors_in_order() {
    let database = Cluster::shared().database("long");
    let store = open(&database, false);
    let author = |number: u64| [number as u8 % 12 + 1; 32];
    for number in 0..60 {
        let (id, time) = (id(START, number), START + number / 3);
        let head = RecordHeader { id, time, author: Some(author(number)), kind: 1, expires: None };
        store.commit(&[Write::Put(encode(&head, &[(b't', vec![7; 256 << 10])]))]).expect("commits");
    }
    let by_ids = Query { ids: Some((0..70).map(|n| id(START, n)).collect()), ..Query::default() };
    let authors = Some((0..12).map(author).collect());
    let by_authors = Query { authors, kinds: Some(vec![1]), ..Query::default() };
    let mut expected: Vec<u64> = (0..60).map(|number| START + number / 3).collect();
    expected.reverse();
    for query in [by_ids, by_authors] {
        for limit in [1, 20, 500] {
            let (before, query) = (trips(&store), Query { limit, ..query.clone() });
            assert_eq!(times(&store, &query).0, expected[..limit.min(60)]);
            let trips = trips(&store) - before;
            assert!(limit < 500 || trips > 2, "{trips} trips");
        }
    }
}
