//! A store can be called on every thread, and a panic loses no connection.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use hark_archive::blocking::may_block;
use hark_archive::{LabelSet, Query, RecordHeader, Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_postgres::{PostgresOptions, PostgresStore};
use hark_testkit::postgres::Cluster;
use hark_testkit::random::encode;

fn put(number: u8) -> Write {
    let head = RecordHeader {
        id: [number; 32],
        time: 1_700_000_000,
        author: Some([1; 32]),
        kind: 1,
        expires: None,
    };
    Write::Put(encode(&head, &[(b't', b"a".to_vec())]))
}

fn open(url: &str, options: &PostgresOptions) -> PostgresStore {
    PostgresStore::open(url, "nostr", Box::new(NostrRules), options).expect("opens")
}

/// Calls the methods of a store that doors and pages use. Returns the number of records.
fn ask(store: &PostgresStore) -> u64 {
    let mut found = 0;
    let mut search = store.search(&Query::default()).expect("begins");
    let mut sink = |_: &hark_archive::Record<'_>| {
        found += 1;
        ControlFlow::Continue(())
    };
    search.slice(u64::MAX, &mut sink).expect("answers");
    assert_eq!(store.count(&Query::default()).expect("counts"), Some(found));
    assert_eq!(store.stats().records, found);
    assert!(store.expired(0, 10).expect("answers").is_empty() && store.news().is_empty());
    found
}

#[test]
fn a_store_is_opened_asked_and_dropped_on_any_thread_of_any_runtime() {
    let database = Cluster::shared().database("threads");
    let url = &database.url;
    let all = |number: u8| {
        let options = PostgresOptions { read_url: Some(url.clone()), ..PostgresOptions::default() };
        let store = open(url, &options);
        store.on_news(Box::new(|| {}));
        store.commit(&[put(number)]).expect("commits");
        assert_eq!(ask(&store), u64::from(number));
    };
    let (one, two) = (
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap(),
    );
    all(1);
    one.block_on(async { all(2) });
    two.block_on(async { all(3) });
    // Like the metrics page of a door, this calls the store on a thread that may block.
    let url = url.clone();
    let asked =
        two.spawn_blocking(move || may_block(|| ask(&open(&url, &PostgresOptions::default()))));
    assert_eq!(two.block_on(asked).expect("no panic"), 3);
    assert_eq!(database.sql("SELECT count(*) FROM hark_nostr.record"), "3");
}

#[test]
fn a_panic_in_a_question_costs_no_connection() {
    let database = Cluster::shared().database("panics");
    let options =
        PostgresOptions { pool_max: 2, listed_labels: b"t", ..PostgresOptions::default() };
    let store = open(&database.url, &options);
    store.commit(&[put(1)]).expect("commits");
    for _ in 0..8 {
        let asked = || store.label_values(b't', &mut |_, _| panic!("a bug of the caller's"));
        assert!(catch_unwind(AssertUnwindSafe(asked)).is_err());
    }
    let database = store.stats().database.expect("is there");
    assert!(database.connections <= 2 && database.connections_used <= 1, "{database:?}");
    let labels = vec![LabelSet::one(b't', b"a")];
    assert_eq!(store.count(&Query { labels, ..Query::default() }).expect("counts"), Some(1));
    assert_eq!(ask(&store), 1);
}
