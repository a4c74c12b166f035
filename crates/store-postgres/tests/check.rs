//! The check of a shelf reports each sort of fault. In a shelf without faults it reports none, even
//! while records are stored and deleted.

mod checked;
mod planted;

use hark_archive::Store;
use hark_archive::effects::KeepAll;
use hark_networks::nostr::Nostr;
use hark_networks::whisper::Whisper;
use hark_store_postgres::{DatabaseOpenError, PostgresOptions};
use hark_testkit::postgres::Cluster;
use hark_testkit::wait::until;

use planted::{copied, faults, one, plant};

use checked::{
    beside_a_writer, checked, counts, event, events, no_faults, open, open_with, options, put,
    shelves, try_check,
};

#[test]
fn shelves_of_all_networks_have_no_faults_on_one_server_and_on_its_replica() {
    let cluster = Cluster::with(&["fsync=off"]);
    let database = cluster.database("check clean");
    let replica = cluster.replica();
    for (network, lines) in shelves(240) {
        let store = open(&database.url, network);
        assert!(put(&store, network, &lines) > lines.len() / 2);
        let stored = store.stats().records;
        let report = checked(&database.url, network);
        assert_eq!((counts(&report), &report.notes), (no_faults(), &Vec::new()));
        assert_eq!(report.records, stored);
        assert!(report.labels > 0 && report.parts >= 2, "{report:?}");
        assert_eq!(report.words > 0, network.name() == "nostr");
        let schema = format!("hark_{}", network.name());
        let newest = format!("SELECT seq FROM {schema}.state");
        let here = database.sql(&newest);
        until("the replica has all records", || {
            replica.try_sql(&database.name, &newest).is_ok_and(|there| there == here)
        });
        assert_eq!(checked(&replica.url(&database.name), network), report);
    }
    let (log, of_replica) = (cluster.log(), replica.log());
    assert!(!log.contains("ERROR:"), "{log}");
    assert!(!of_replica.contains("read-only transaction"), "{of_replica}");
}

#[test]
fn each_sort_of_fault_is_named_and_nothing_else() {
    let database = Cluster::shared().database("check faults");
    let store = open(&database.url, &Nostr);
    put(&store, &Nostr, &events(120));
    drop(store);
    for (at, (sort, sql)) in faults().iter().enumerate() {
        let broken = copied(&database, at);
        plant(&broken, sql);
        let report = checked(&broken.url, &Nostr);
        let found: Vec<_> = counts(&report).into_iter().collect();
        assert_eq!(found, [(*sort, 1)], "{sql}: {report:?}");
        assert_eq!(report.faults.len(), 1, "{sql}: {report:?}");
        // A process with other settings does not know the words of the records. It finds all faults
        // except those of words.
        if !sort.starts_with("word") {
            let options = PostgresOptions { texts: None, ..options(&Nostr) };
            let other = try_check(&broken.url, &Nostr, &options).expect("checks");
            assert_eq!(counts(&other), counts(&report));
        }
    }
    assert_eq!(counts(&checked(&database.url, &Nostr)), no_faults());
}

#[test]
fn the_list_of_parts_is_compared_with_the_tables() {
    let database = Cluster::shared().database("check parts");
    put(&open(&database.url, &Nostr), &Nostr, &events(120));
    let schema = "SET search_path = hark_nostr;";
    // A listed part without tables.
    database.sql(&format!("{schema} INSERT INTO part VALUES (7, 700, 800)"));
    let report = checked(&database.url, &Nostr);
    assert_eq!(counts(&report), [("part_table", 2)].into(), "{report:?}");
    assert!(report.faults[0].what.contains("record_7"), "{report:?}");
    // The tables of a part that is not listed.
    database.sql(&format!(
        "{schema} DELETE FROM part WHERE number = 7; \
         DELETE FROM part WHERE number = (SELECT max(number) FROM part)"
    ));
    let report = checked(&database.url, &Nostr);
    assert_eq!(counts(&report), [("part_table", 4)].into(), "{report:?}");
}

#[test]
fn records_that_the_rules_forbid_are_found() {
    let database = Cluster::shared().database("check rules");
    let old = event(1, 10, 0, &[], "{}");
    let deleted = event(1, 20, 1, &[], "not so");
    let (new, deletion) =
        (event(1, 11, 0, &[], "{}"), event(1, 21, 5, &[&["e", &checked::id(&deleted)]], ""));
    assert_eq!(put(&open(&database.url, &Nostr), &Nostr, &[new, deletion]), 2);
    let lax = open_with(&database.url, &Nostr, Box::new(KeepAll));
    assert_eq!(put(&lax, &Nostr, &[old.clone(), deleted.clone()]), 2);
    let report = checked(&database.url, &Nostr);
    assert_eq!(counts(&report), [("forbidden", 1), ("old_version", 1)].into(), "{report:?}");
    let ids: Vec<_> = report.faults.iter().filter_map(|fault| fault.id.clone()).collect();
    assert!(ids.contains(&checked::id(&old)) && ids.contains(&checked::id(&deleted)), "{ids:?}");
}

#[test]
fn the_numbers_of_listed_values_are_compared() {
    let database = Cluster::shared().database("check values");
    put(&open(&database.url, &Whisper), &Whisper, &checked::envelopes(600));
    let schema = "SET search_path = hark_whisper;";
    let value = one("label_value", "true");
    database.sql(&format!("{schema} UPDATE label_value SET records = records + 1 WHERE {value}"));
    let report = checked(&database.url, &Whisper);
    assert_eq!(counts(&report), [("counter", 1)].into(), "{report:?}");
    database.sql(&format!("{schema} DELETE FROM label_value"));
    let report = checked(&database.url, &Whisper);
    assert_eq!(counts(&report), [("counter", 12)].into(), "{report:?}");
}

#[test]
fn faults_are_listed_up_to_a_number_of_each_sort() {
    let database = Cluster::shared().database("check many");
    put(&open(&database.url, &Nostr), &Nostr, &events(120));
    let tags = database.sql("SELECT count(*) FROM hark_nostr.tag").parse().expect("a number");
    database.sql("DELETE FROM hark_nostr.tag");
    let report = checked(&database.url, &Nostr);
    assert_eq!(counts(&report), [("label_missing", tags)].into());
    assert_eq!((report.fault_count(), report.faults.len()), (tags, 20));
}

#[test]
fn a_check_beside_a_writer_finds_no_faults() {
    let database = Cluster::shared().database("check beside");
    let store = open(&database.url, &Nostr);
    put(&store, &Nostr, &events(60));
    beside_a_writer(&store, 60_000, || {
        for _ in 0..10 {
            let report = checked(&database.url, &Nostr);
            assert_eq!(counts(&report), no_faults(), "{report:?}");
        }
    });
    assert_eq!(counts(&checked(&database.url, &Nostr)), no_faults());
}

#[test]
fn a_part_that_is_being_dropped_is_no_fault() {
    let database = Cluster::shared().database("check retired");
    let store = open(&database.url, &Whisper);
    put(&store, &Whisper, &checked::envelopes(600));
    // The state after a process has detached a part. It counted the part's records before the last
    // 3 of them were stored.
    database.sql(
        "SET search_path = hark_whisper; SET hark.writes_words = on; DO $$ DECLARE
             n bigint := (SELECT min(number) FROM part);
             counted bigint;
         BEGIN
             EXECUTE format('SELECT count(*) - 3 FROM record_%s', n) INTO counted;
             EXECUTE format('ALTER TABLE record DETACH PARTITION record_%s', n);
             EXECUTE format('ALTER TABLE tag DETACH PARTITION tag_%s', n);
             EXECUTE format('ALTER TABLE record_%s RENAME TO retired_record_%s', n, n);
             EXECUTE format('ALTER TABLE tag_%s RENAME TO retired_tag_%s', n, n);
             EXECUTE format('DROP TABLE word_%s, worded_%s', n, n);
             DELETE FROM part WHERE number = n;
             INSERT INTO retired VALUES (n, counted);
             UPDATE state SET parts = parts + 1, records = records - counted;
         END $$",
    );
    let report = checked(&database.url, &Whisper);
    assert_eq!(counts(&report), no_faults(), "{report:?}");
    // The values are counted again. The next process subtracts those of the part when it drops the
    // part, so they are counted as well.
    drop(store);
    database.sql("SET search_path = hark_whisper; DELETE FROM listed_label");
    let store = open(&database.url, &Whisper);
    let report = checked(&database.url, &Whisper);
    assert_eq!(counts(&report), no_faults(), "{report:?}");
    drop(store);
}

#[test]
fn a_database_that_cannot_be_reached_or_has_no_shelf_is_reported() {
    let options = PostgresOptions::default();
    let error = try_check("postgres://hark@127.0.0.1:1/hark", &Nostr, &options).unwrap_err();
    assert!(matches!(error, DatabaseOpenError::Away(_)), "{error:?}");
    let database = Cluster::shared().database("check nothing");
    let error = try_check(&database.url, &Nostr, &options).unwrap_err();
    assert!(matches!(error, DatabaseOpenError::Migrate(_)), "{error:?}");
    assert_eq!(database.sql("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'hark%'"), "0");
}
