//! The check of a shelf on a Citus cluster finds batches that are stored partly, for
//! example after a standby that lagged has taken over.

mod checked;

use hark_archive::{Outcome, Query, Record, Store, Write};
use hark_networks::nostr::Nostr;
use hark_testkit::citus::{CitusCluster, is_installed};

use checked::{beside_a_writer, checked, counts, event, events, no_faults, open, put, shelves};

#[test]
fn shelves_of_all_networks_have_no_faults_on_a_cluster() {
    if !is_installed() {
        return;
    }
    let database = CitusCluster::shared().database("check clean");
    for (network, lines) in shelves(120) {
        let store = open(&database.url, network);
        put(&store, network, &lines);
        let report = checked(&database.url, network);
        assert_eq!((counts(&report), &report.notes), (no_faults(), &Vec::new()));
        assert_eq!(report.records, store.stats().records);
        assert!(report.labels > 0 && report.words == 0 && report.parts == 0, "{report:?}");
    }
}

#[test]
fn half_stored_batches_are_found_on_a_cluster() {
    if !is_installed() {
        return;
    }
    let database = CitusCluster::shared().database("check half");
    let store = open(&database.url, &Nostr);
    let note = event(1, 1, 1, &[&["t", "one"], &["t", "two"]], "a note");
    let other = event(2, 2, 1, &[&["t", "one"]], "a note of another person");
    put(&store, &Nostr, &[note.clone(), other.clone()]);
    let (note, other) = (checked::id(&note), checked::id(&other));
    let sql = |text: &str| database.sql(&format!("SET search_path = hark_nostr; {text}"));
    let found = || counts(&checked(&database.url, &Nostr));

    sql(&format!("DELETE FROM id_place WHERE id = '\\x{note}'"));
    assert_eq!(found(), [("place_missing", 1)].into());
    sql(&format!("DELETE FROM tag WHERE id = '\\x{note}'"));
    assert_eq!(found(), [("label_missing", 2), ("place_missing", 1)].into());
    sql(&format!(
        "DELETE FROM record WHERE id = '\\x{note}'; UPDATE state SET records = records - 1"
    ));
    assert_eq!(found(), no_faults());

    sql(&format!("DELETE FROM record WHERE id = '\\x{other}'"));
    let report = checked(&database.url, &Nostr);
    let expected = [("counter", 1), ("label_orphan", 1), ("place_orphan", 1)].into();
    assert_eq!(counts(&report), expected, "{report:?}");
    let of_other = report.faults.iter().filter(|fault| fault.id.as_ref() == Some(&other));
    assert_eq!(of_other.count(), 2, "{report:?}");
}

#[test]
fn half_stored_events_are_stored_as_a_whole_when_they_are_sent_again() {
    if !is_installed() {
        return;
    }
    let database = CitusCluster::shared().database("check again");
    let store = open(&database.url, &Nostr);
    let note = |who: u8| event(who, u64::from(who), 1, &[&["t", "one"], &["t", "two"]], "a note");
    let notes: Vec<String> = (1..=6).map(note).collect();
    assert_eq!(put(&store, &Nostr, &notes), 6);
    let lose = |number: usize, tables: &[&str]| {
        for table in tables {
            let id = checked::id(&notes[number]);
            database.sql(&format!("DELETE FROM hark_nostr.{table} WHERE id = '\\x{id}'"));
        }
    };
    lose(0, &["record"]);
    lose(1, &["id_place"]);
    lose(2, &["record", "id_place"]);
    lose(3, &["record", "tag"]);
    lose(4, &["id_place", "tag"]);
    lose(5, &["tag"]);
    // Corrects the counter, as if the three lost records had not been counted.
    database.sql("UPDATE hark_nostr.state SET records = records - 3");
    // The last event is known, so that its tags are not stored again. A new event is stored.
    let again = [&notes[..], &[note(7)]].concat();
    assert_eq!(put(&store, &Nostr, &again), 6);
    let report = checked(&database.url, &Nostr);
    assert_eq!(counts(&report), [("label_missing", 2)].into(), "{report:?}");
    assert_eq!(report.records, 7);
    assert_eq!(put(&store, &Nostr, &again), 0);
}

/// A standby that lagged has taken a worker's place, and lacks rows of the ids.
#[test]
fn events_whose_places_are_lost_are_deleted_on_a_cluster() {
    if !is_installed() {
        return;
    }
    let database = CitusCluster::shared().database("check places");
    let store = open(&database.url, &Nostr);
    let notes = [event(1, 1, 1, &[], "by id"), event(2, 1, 1, &[], "by author")];
    let profile = |at| event(3, at, 0, &[], "replaced");
    assert_eq!(put(&store, &Nostr, &[&notes[..], &[profile(1)]].concat()), 3);
    for lost in [&notes[0], &notes[1], &profile(1)] {
        let id = checked::id(lost);
        database.sql(&format!("DELETE FROM hark_nostr.id_place WHERE id = '\\x{id}'"));
    }
    let deletion = event(1, 2, 5, &[&["e", &checked::id(&notes[0])]], "");
    assert_eq!(put(&store, &Nostr, &[deletion, profile(2)]), 2);
    let bytes = checked::record(&Nostr, &notes[1]);
    let author = *Record::new(&bytes).unwrap().author().unwrap();
    let of_author = Query { authors: Some(vec![author]), ..Query::default() };
    let erased = store.commit(&[Write::Erase(Box::new(of_author))]).unwrap().outcomes;
    assert_eq!(erased, [Outcome::Erased(1)]);
    let report = checked(&database.url, &Nostr);
    assert_eq!((counts(&report), report.records), (no_faults(), 2), "{report:?}");
    assert_eq!(put(&store, &Nostr, &[notes[0].clone(), profile(1)]), 0, "they stay away");
}

/// The newer one of two deletions is lost with a worker. The older one still forbids.
#[test]
fn an_older_deletion_forbids_if_the_newer_one_is_lost_on_a_cluster() {
    if !is_installed() {
        return;
    }
    let database = CitusCluster::shared().database("check forbids");
    let store = open(&database.url, &Nostr);
    let address = format!("30023:{}:slug", checked::key(1));
    let deletion = |at| event(1, at, 5, &[&["a", &address]], "");
    let (older, newer) = (deletion(100), deletion(500));
    assert_eq!(put(&store, &Nostr, &[older, newer.clone()]), 2);
    let id = checked::id(&newer);
    for table in ["record", "tag", "id_place"] {
        database.sql(&format!("DELETE FROM hark_nostr.{table} WHERE id = '\\x{id}'"));
    }
    let article = |at| event(1, at, 30_023, &[&["d", "slug"]], "an article");
    assert_eq!(put(&store, &Nostr, &[article(50)]), 0);
    assert_eq!(put(&store, &Nostr, &[article(200)]), 1);
}

#[test]
fn rows_in_another_shard_are_found_on_a_cluster() {
    if !is_installed() {
        return;
    }
    let database = CitusCluster::shared().database("check shards");
    put(&open(&database.url, &Nostr), &Nostr, &[event(1, 1, 1, &[], "a note")]);
    // Adds the same row to all shards, so one shard is right and the others are wrong.
    let row = "INSERT INTO %s VALUES (decode(repeat(''ab'', 32), ''hex''), \
        decode(repeat(''cd'', 32), ''hex''))";
    database.sql(&format!("SELECT run_command_on_shards('hark_nostr.id_place', '{row}')"));
    let report = checked(&database.url, &Nostr);
    assert_eq!(counts(&report), [("place_orphan", 1), ("shard", 5)].into(), "{report:?}");
}

#[test]
fn a_published_number_of_the_future_is_found_on_a_cluster() {
    if !is_installed() {
        return;
    }
    let database = CitusCluster::shared().database("check published");
    put(&open(&database.url, &Nostr), &Nostr, &[event(1, 1, 1, &[], "a note")]);
    database.sql("UPDATE hark_nostr.published SET seq = seq + 1");
    let report = checked(&database.url, &Nostr);
    assert_eq!(counts(&report), [("counter", 1)].into(), "{report:?}");
    assert!(report.faults[0].what.contains("published"), "{report:?}");
}

#[test]
fn a_check_beside_a_writer_finds_no_faults_on_a_cluster() {
    if !is_installed() {
        return;
    }
    let database = CitusCluster::shared().database("check beside");
    let store = open(&database.url, &Nostr);
    put(&store, &Nostr, &events(40));
    beside_a_writer(&store, 60_000, || {
        for _ in 0..5 {
            let report = checked(&database.url, &Nostr);
            assert_eq!(counts(&report), no_faults(), "{report:?}");
        }
    });
}
