//! Records that a gate hides from a reader affect neither the reader's answers nor their cost.

use hark_archive::effects::KeepAll;
use hark_store_postgres::{PostgresOptions, PostgresStore};
use hark_testkit::citus::{CitusCluster, is_installed};
use hark_testkit::hidden::{Secrets, compare, put};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::runs::seed_or;

#[test]
fn postgres_answers_and_charges_as_if_nothing_hidden_were_there() {
    agree(&["hidden without", "hidden with"].map(|name| Cluster::shared().database(name)));
}

#[test]
fn citus_answers_and_charges_as_if_nothing_hidden_were_there() {
    if is_installed() {
        let databases = ["hidden without", "hidden with"];
        agree(&databases.map(|name| CitusCluster::shared().database(name)));
    }
}

fn agree(databases: &[Database<'_>; 2]) {
    let stores = databases.each_ref().map(|database| {
        // Both stores have the same parts, as parts are made only for the times of public records.
        let options =
            PostgresOptions { part_s: 40, parts_from_s: 900_000, ..PostgresOptions::default() };
        let store = PostgresStore::open(&database.url, "nostr", Box::new(KeepAll), &options);
        store.expect("the shelf opens")
    });
    let mut secrets = Secrets::new(seed_or(20_261_122));
    let mut answered = 0;
    for _ in 0..4 {
        let writes = secrets.stage();
        for (store, writes) in stores.iter().zip(&writes) {
            put(store, writes);
        }
        answered += compare([&stores[0], &stores[1]], &mut secrets, 250);
    }
    assert!(answered > 4_000, "{answered}");
}
