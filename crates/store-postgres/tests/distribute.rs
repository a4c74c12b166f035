//! A shelf on one server is distributed over the workers of a cluster. Its answers stay the same,
//! even after interruptions.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};

use hark_archive::store::memory::MemoryStore;
use hark_archive::{Query, RecordHeader, Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_postgres::{
    DistributeError, Distribution, PostgresOptions, PostgresStore, distribute,
};
use hark_testkit::citus::{CitusCluster, is_installed};
use hark_testkit::contract::{Size, Subject, compare, listed, rules, run};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::random::{Flavour, Random, encode};

fn options(flavour: Flavour) -> PostgresOptions {
    let listed_labels = listed(flavour);
    let common =
        PostgresOptions { part_s: 600, shards: 5, listed_labels, ..PostgresOptions::default() };
    match flavour {
        Flavour::Nostr => common,
        Flavour::Labels => PostgresOptions {
            units_per_s: 1_000_000_000,
            one_kind: true,
            common_labels: b"p",
            ..common
        },
    }
}

fn go_on(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A shelf that is on one server until the test first interferes.
struct Growing {
    cluster: &'static CitusCluster,
    database: Database<'static>,
    flavour: Flavour,
    store: Option<PostgresStore>,
    disturbances: usize,
}

impl Growing {
    fn open(&mut self) {
        let options = options(self.flavour);
        let opened = PostgresStore::open(&self.database.url, "test", rules(self.flavour), &options);
        self.store = Some(opened.expect("the shelf opens"));
    }
}

impl Subject for Growing {
    fn store(&self) -> &dyn Store {
        self.store.as_ref().expect("open")
    }

    fn disturb(&mut self, _: &mut Random) {
        self.store = None;
        if self.disturbances == 0 {
            self.cluster.unite(&self.database);
            let done = distribute(&self.database.url, "test", &options(self.flavour), &mut go_on);
            assert!(matches!(done, Ok(Distribution::Done(1..))), "{done:?}");
            let tables =
                "SELECT count(*) FROM citus_tables WHERE table_name::text LIKE 'hark_test.%'";
            assert_eq!(self.database.sql(tables), "3");
        }
        self.disturbances += 1;
        self.open();
    }
}

fn agree(name: &str, flavour: Flavour) {
    if !is_installed() {
        return;
    }
    let cluster = CitusCluster::shared();
    let database = cluster.alone(name);
    let mut shelf = Growing { cluster, database, flavour, store: None, disturbances: 0 };
    shelf.open();
    let size = Size { records: 3_000, queries: 2_000, disturbances: 2 };
    let compared = run(&mut shelf, flavour, 20_261_123, size);
    assert!(compared.queries >= size.queries && shelf.disturbances >= 2, "{compared:?}");
}

#[test]
fn a_shelf_of_nostr_that_is_divided_answers_like_the_model() {
    agree("divided nostr", Flavour::Nostr);
}

#[test]
fn a_shelf_of_labels_that_is_divided_answers_like_the_model() {
    agree("divided labels", Flavour::Labels);
}

/// A record of one of forty authors, with two labels.
fn put(number: u32) -> Write {
    let mut id = [7; 32];
    id[..4].copy_from_slice(&number.to_be_bytes());
    let time = 1_700_000_000 + u64::from(number / 3);
    let author = Some([(number % 40) as u8; 32]);
    let head = RecordHeader { id, time, author, kind: 1, expires: None };
    let label = |n: u32| (b't', (number % 500 + n).to_be_bytes().to_vec());
    Write::Put(encode(&head, &[label(0), label(1)]))
}

#[test]
fn a_division_that_was_stopped_goes_on_and_one_whose_records_changed_begins_anew() {
    if !is_installed() {
        return;
    }
    let cluster = CitusCluster::shared();
    let database = cluster.alone("stopped");
    let options = options(Flavour::Nostr);
    let open = || {
        PostgresStore::open(&database.url, "test", Box::new(NostrRules), &options).expect("opens")
    };
    let divide = |each: &mut dyn FnMut(u64, u64) -> ControlFlow<()>| {
        distribute(&database.url, "test", &options, each)
    };
    assert!(matches!(divide(&mut go_on), Err(DistributeError::NoShelf(_))));
    let (store, model) = (open(), MemoryStore::new(NostrRules));
    let writes: Vec<Write> = (0..16_000).map(put).collect();
    for writes in writes.chunks(2_000) {
        store.commit(writes).expect("commits");
        model.commit(writes).expect("commits");
    }
    drop(store);
    assert!(matches!(divide(&mut go_on), Err(DistributeError::NoCluster)));
    cluster.unite(&database);

    // While a server is connected, no run begins.
    let store = open();
    assert_eq!(store.count(&Query::default()).expect("counts"), Some(16_000));
    let refused = divide(&mut go_on);
    assert!(matches!(refused, Err(DistributeError::Used(1..))), "{refused:?}");
    drop(store);
    // Stopped after each transaction: each run continues where the previous run ended.
    let seen = AtomicUsize::new(0);
    for run in 0..3_u64 {
        let mut first = None;
        let stopped = divide(&mut |done, total| {
            seen.fetch_add(1, Ordering::Relaxed);
            assert_eq!(total, 16_000);
            assert_eq!(*first.get_or_insert(done), run * 5_000);
            if done == run * 5_000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        assert!(matches!(stopped, Ok(Distribution::Stopped)), "{stopped:?}");
    }
    // The old shelf is still in use. Records that it deletes must not be in the new shelf.
    let erase = [
        Write::Erase(Box::new(Query { authors: Some(vec![[3; 32]]), ..Query::default() })),
        put(16_001),
    ];
    let store = open();
    store.commit(&erase).expect("commits");
    model.commit(&erase).expect("commits");
    drop(store);
    let mut begins = Vec::new();
    let done = divide(&mut |done, _| {
        begins.push(done);
        ControlFlow::Continue(())
    });
    assert!(matches!(done, Ok(Distribution::Done(15_601))), "{done:?}");
    assert_eq!(begins.first(), Some(&0), "it begins anew");
    assert!(matches!(divide(&mut go_on), Ok(Distribution::Already)));

    let store = open();
    let mut random = Random::new(5);
    for author in 0..40 {
        let query = Query { authors: Some(vec![[author; 32]]), limit: 500, ..Query::default() };
        compare(&store, &model, &query, &mut random, "of an author");
    }
    let all =
        compare(&store, &model, &Query { limit: 20_000, ..Query::default() }, &mut random, "all");
    assert_eq!(all, 15_601);
    let left = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'hark%'";
    assert_eq!(database.sql(left), "1");
}

#[test]
fn a_server_without_a_cluster_is_told_so() {
    let database = Cluster::shared().database("no cluster");
    let options = options(Flavour::Nostr);
    let store = PostgresStore::open(&database.url, "test", Box::new(NostrRules), &options);
    drop(store.expect("opens"));
    let refused = distribute(&database.url, "test", &options, &mut go_on);
    assert!(matches!(refused, Err(DistributeError::NoCluster)), "{refused:?}");
    assert_eq!(database.sql("SELECT to_regclass('hark_test.state') IS NOT NULL"), "t");
}
