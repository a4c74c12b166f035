//! The contract of all stores, on a real PostgreSQL and a real Citus. For random data and queries,
//! over many small parts, the answers are the model's.

use std::sync::Arc;

use hark_archive::Store;
use hark_store_postgres::{PostgresOptions, PostgresStore};
use hark_testkit::citus::{self, CitusCluster};
use hark_testkit::contract::{Size, Subject, listed, rules, run, run_with_one_label};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::random::{Flavour, Random};
use hark_testkit::runs::seed_or;
use hark_testkit::tombstones::hold_for_thirty_days;

/// A shelf in its own database, with many small parts.
struct Schema {
    database: Database<'static>,
    flavour: Flavour,
    /// Whether each record has exactly one label.
    one_label: bool,
    store: Option<PostgresStore>,
}

impl Schema {
    fn new(database: Database<'static>, flavour: Flavour) -> Self {
        Self::with_labels(database, flavour, false)
    }

    fn with_labels(database: Database<'static>, flavour: Flavour, one_label: bool) -> Self {
        let mut schema = Self { database, flavour, one_label, store: None };
        schema.open();
        schema
    }

    fn open(&mut self) {
        self.open_listing(listed(self.flavour));
    }

    fn open_listing(&mut self, listed_labels: &'static [u8]) {
        let common =
            PostgresOptions { part_s: 600, shards: 5, listed_labels, ..PostgresOptions::default() };
        let (shelf, options) = match self.flavour {
            Flavour::Nostr => ("nostr", common),
            Flavour::Labels => (
                "labels",
                PostgresOptions {
                    units_per_s: 1_000_000_000,
                    one_kind: true,
                    one_label: self.one_label,
                    common_labels: b"p",
                    ..common
                },
            ),
        };
        self.store = None;
        let opened = PostgresStore::open(&self.database.url, shelf, rules(self.flavour), &options);
        self.store = Some(opened.expect("the shelf opens"));
    }
}

impl Subject for Schema {
    fn store(&self) -> &dyn Store {
        self.store.as_ref().expect("open")
    }

    fn disturb(&mut self, random: &mut Random) {
        match random.below(3) {
            0 => {
                // Opening with other listed labels in between makes the next opening count the
                // labels' values again.
                if random.once_in(2) {
                    self.open_listing(b"c");
                }
                self.open();
            }
            1 => drop(self.database.sql("VACUUM ANALYZE")),
            _ => drop(self.database.sql("ANALYZE")),
        }
    }
}

fn postgres(name: &str, flavour: Flavour, size: Size) {
    agree(name, Cluster::shared().database(name), flavour, size);
}

fn agree(name: &str, database: Database<'static>, flavour: Flavour, size: Size) {
    let seed = seed_or(20_261_121);
    let mut schema = Schema::new(database, flavour);
    let compared = run(&mut schema, flavour, seed, size);
    println!("{name}, seed {seed}: {compared:?}, {:?}", schema.store().stats());
    assert!(compared.queries >= size.queries && compared.answers > compared.queries);
}

#[test]
fn postgres_answers_like_the_model_for_nostr() {
    let size = Size { records: 9_000, queries: 14_000, disturbances: 20 }.of_this_run();
    postgres("contract nostr", Flavour::Nostr, size);
}

#[test]
fn postgres_answers_like_the_model_for_labels_and_nanoseconds() {
    let size = Size { records: 4_000, queries: 7_000, disturbances: 10 }.of_this_run();
    postgres("contract labels", Flavour::Labels, size);
}

#[test]
fn postgres_answers_like_the_model_for_records_with_one_label() {
    let size = Size { records: 4_000, queries: 7_000, disturbances: 10 }.of_this_run();
    let database = Cluster::shared().database("contract slim");
    let mut schema = Schema::with_labels(database, Flavour::Labels, true);
    let compared = run_with_one_label(&mut schema, seed_or(20_261_128), size);
    println!("contract slim: {compared:?}, {:?}", schema.store().stats());
    assert!(compared.queries >= size.queries);
    let form = "SELECT relkind FROM pg_class WHERE oid = 'hark_labels.tag'::regclass";
    assert_eq!(schema.database.sql(form), "v");
}

/// Checks a shelf that is reopened each day.
fn hold(database: &Database<'static>) {
    let options = PostgresOptions { part_s: 86_400, shards: 5, ..PostgresOptions::default() };
    hold_for_thirty_days(|| {
        let store = PostgresStore::open(&database.url, "nostr", rules(Flavour::Nostr), &options);
        Arc::new(store.expect("the shelf opens"))
    });
}

#[test]
fn who_deleted_or_vanished_stays_away_for_thirty_days_in_postgres() {
    hold(&Cluster::shared().database("thirty days"));
}

#[test]
fn who_deleted_or_vanished_stays_away_for_thirty_days_on_citus() {
    let name = "thirty days on Citus";
    if citus::is_installed() {
        hold(&CitusCluster::shared().database(name));
    }
}

fn citus(name: &str, flavour: Flavour, size: Size) {
    if citus::is_installed() {
        let database = CitusCluster::shared().database(name);
        agree(name, database, flavour, size);
    }
}

#[test]
fn citus_answers_like_the_model_for_nostr() {
    let size = Size { records: 5_000, queries: 7_000, disturbances: 10 }.of_this_run();
    citus("contract nostr on Citus", Flavour::Nostr, size);
}

#[test]
fn citus_answers_like_the_model_for_labels_and_nanoseconds() {
    let size = Size { records: 3_000, queries: 4_000, disturbances: 8 }.of_this_run();
    citus("contract labels on Citus", Flavour::Labels, size);
}
