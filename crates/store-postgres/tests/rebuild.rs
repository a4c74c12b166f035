//! A rebuild repairs each sort of fault, even while a process writes or after an interruption.
//! Afterwards the check finds nothing, and questions have the same answers as before the faults.

mod checked;
mod planted;

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::effects::KeepAll;
use hark_archive::{LabelSet, Query, Record, SearchProgress, Store, WordCondition};
use hark_networks::Network;
use hark_networks::nostr::Nostr;
use hark_networks::whisper::Whisper;
use hark_store_postgres::{
    CheckProgress, DatabaseRebuild, PostgresOptions, PostgresStore, RebuildError, rebuild,
};
use hark_testkit::postgres::{Cluster, Database};
use hark_words::SearchText;

use checked::{
    beside_a_writer, checked, counts, event, events, no_faults, open, open_with, options, put,
    shelves, texts,
};
use planted::{copied, faults, one, plant};

/// Rebuilds a shelf.
fn try_rebuild(
    url: &str,
    network: &dyn Network,
    options: &PostgresOptions,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<DatabaseRebuild, RebuildError> {
    let mut message = network.lines().record_check();
    let mut message = |record: &Record<'_>| message(record).err().map(|fault| fault.to_string());
    rebuild(url, network.name(), network.rules(), options, &mut message, progress)
}

/// Rebuilds a shelf with the options of its server.
fn rebuilt(url: &str, network: &dyn Network) -> DatabaseRebuild {
    try_rebuild(url, network, &options(network), &mut |_| {}).expect("rebuilds")
}

/// Returns the names of the repaired sorts, with their numbers of faults.
fn repaired(rebuilt: &DatabaseRebuild) -> Vec<(&'static str, u64)> {
    rebuilt.repaired.iter().map(|(sort, count)| (sort.name(), *count)).collect()
}

/// Returns the records that match a query, in order.
fn found(store: &PostgresStore, query: &Query) -> Vec<Box<[u8]>> {
    let mut found = Vec::new();
    let mut search = store.search(query).expect("searches");
    let done = search.slice(u64::MAX, &mut |record| {
        found.push(record.bytes().into());
        ControlFlow::Continue(())
    });
    assert!(matches!(done, Ok(SearchProgress::Done { .. })), "{done:?}");
    found
}

/// The answers to questions that read each table.
type Answers = Vec<(Vec<Box<[u8]>>, Option<u64>)>;

fn answers(database: &Database<'_>) -> Answers {
    let store = open(&database.url, &Nostr);
    let words = |text: &str| {
        let text = SearchText::parse(text).expect("is short").expect("has words");
        Some(Arc::new(WordCondition::new(text, texts())))
    };
    let label = |name, value: &str| vec![LabelSet::one(name, value.as_bytes())];
    let queries = [
        Query::default(),
        Query { kinds: Some(vec![1]), ..Query::default() },
        Query { labels: label(b't', "news"), ..Query::default() },
        Query { labels: label(b't', "7"), kinds: Some(vec![1]), ..Query::default() },
        Query { words: words("about"), ..Query::default() },
        Query { words: words("weather"), ..Query::default() },
    ];
    let answer = |query: &Query| (found(&store, query), store.count(query).expect("counts"));
    queries.iter().map(answer).collect()
}

/// Makes a shelf with events of every sort.
fn shelf(name: &str, rounds: u64) -> Database<'static> {
    let database = Cluster::shared().database(name);
    put(&open(&database.url, &Nostr), &Nostr, &events(rounds));
    database
}

#[test]
fn each_sort_of_fault_is_repaired_and_questions_have_the_same_answers() {
    let database = shelf("rebuild faults", 120);
    let expected = answers(&database);
    assert!(expected.iter().all(|(records, _)| !records.is_empty()));
    let none = rebuilt(&database.url, &Nostr);
    assert_eq!((repaired(&none), counts(&none.last)), (vec![], no_faults()));
    let all = copied(&database, 99);
    for (at, (sort, sql)) in faults().iter().enumerate() {
        let broken = copied(&database, at);
        plant(&broken, sql);
        let done = rebuilt(&broken.url, &Nostr);
        if ["message", "unreadable"].contains(sort) {
            assert_eq!(repaired(&done), [], "{sql}: {done:?}");
            assert_eq!(counts(&done.last), [(*sort, 1)].into(), "{sql}: {done:?}");
            assert_eq!(counts(&checked(&broken.url, &Nostr)), [(*sort, 1)].into());
            continue;
        }
        assert_eq!(repaired(&done), [(*sort, 1)], "{sql}: {done:?}");
        assert_eq!(counts(&done.last), no_faults(), "{sql}: {done:?}");
        assert_eq!(counts(&checked(&broken.url, &Nostr)), no_faults(), "{sql}");
        assert!(answers(&broken) == expected, "{sql}: other answers");
        plant(&all, sql);
    }
    let done = rebuilt(&all.url, &Nostr);
    assert_eq!(counts(&done.last), no_faults(), "{done:?}");
    assert_eq!(counts(&checked(&all.url, &Nostr)), no_faults());
    assert!(answers(&all) == expected, "other answers");
}

#[test]
fn a_shelf_without_faults_stays_as_it_is() {
    let database = Cluster::shared().database("rebuild clean");
    for (network, lines) in shelves(40) {
        put(&open(&database.url, network), network, &lines);
        let done = rebuilt(&database.url, network);
        assert_eq!((repaired(&done), counts(&done.last)), (vec![], no_faults()), "{done:?}");
        assert_eq!(done.last, checked(&database.url, network));
    }
}

#[test]
fn all_rows_are_made_again_from_the_records() {
    let database = shelf("rebuild all", 120);
    let expected = answers(&database);
    plant(
        &database,
        "DELETE FROM tag; DELETE FROM forbid; DELETE FROM word; DELETE FROM worded; \
         UPDATE record SET terms = '{}', expires = 7, author = NULL; \
         UPDATE state SET records = 3",
    );
    let done = rebuilt(&database.url, &Nostr);
    assert_eq!(counts(&done.last), no_faults(), "{done:?}");
    assert_eq!(counts(&checked(&database.url, &Nostr)), no_faults());
    assert!(answers(&database) == expected, "other answers");
    // The shelf accepts further events, and its rules are in force.
    let again = put(&open(&database.url, &Nostr), &Nostr, &events(122));
    assert!(again > 0 && again < 20, "{again}");
    assert_eq!(counts(&checked(&database.url, &Nostr)), no_faults());
}

#[test]
fn records_that_the_rules_exclude_are_deleted() {
    let database = Cluster::shared().database("rebuild rules");
    let old = event(1, 10, 0, &[], "{}");
    let deleted = event(1, 20, 1, &[&["t", "a"]], "not so");
    let (new, deletion) =
        (event(1, 11, 0, &[], "{}"), event(1, 21, 5, &[&["e", &checked::id(&deleted)]], ""));
    let kept = [new, deletion];
    assert_eq!(put(&open(&database.url, &Nostr), &Nostr, &kept), 2);
    let expected = answers(&database);
    let lax = open_with(&database.url, &Nostr, Box::new(KeepAll));
    assert_eq!(put(&lax, &Nostr, &[old, deleted.clone()]), 2);
    drop(lax);
    // The deletion is in force again only once its row is rewritten.
    plant(&database, "DELETE FROM forbid");
    let done = rebuilt(&database.url, &Nostr);
    let sorts = [("old_version", 1), ("forbidden", 1), ("forbid_missing", 1)];
    assert_eq!(repaired(&done), sorts, "{done:?}");
    assert_eq!(counts(&checked(&database.url, &Nostr)), no_faults());
    assert!(answers(&database) == expected, "other answers");
    assert_eq!(put(&open(&database.url, &Nostr), &Nostr, &[deleted]), 0);
}

#[test]
fn a_damaged_record_and_wrong_columns_exclude_no_records() {
    let database = Cluster::shared().database("rebuild wrong rules");
    let profile = event(1, 10, 0, &[], "{}");
    put(&open(&database.url, &Nostr), &Nostr, std::slice::from_ref(&profile));
    let expected = answers(&database);
    let store = open(&database.url, &Nostr);
    let note = event(1, 900_000, 1, &[], "a note with the columns of a profile");
    put(&store, &Nostr, &[note]);
    let lax = open_with(&database.url, &Nostr, Box::new(KeepAll));
    put(&lax, &Nostr, &[event(1, 900_001, 0, &[], "a newer profile")]);
    drop((store, lax));
    let changed = "UPDATE record SET kind = 0 WHERE kind = 1; \
        UPDATE record SET body = substr(body, 1, 60) WHERE seq = 3; DELETE FROM worded; \
        DELETE FROM word";
    plant(&database, changed);
    let done = rebuilt(&database.url, &Nostr);
    let left: Vec<_> = counts(&done.last).into_keys().collect();
    assert_eq!(left, ["old_version", "unreadable"], "{done:?}");
    let ids: Vec<_> = done.last.faults.iter().filter_map(|fault| fault.id.clone()).collect();
    assert!(ids.contains(&checked::id(&profile)), "{done:?}");
    plant(&database, "DELETE FROM record WHERE seq = 3; UPDATE state SET records = 2");
    let done = rebuilt(&database.url, &Nostr);
    assert_eq!(counts(&done.last), no_faults(), "{done:?}");
    let now = answers(&database);
    assert_eq!(now[0].0.len(), 2);
    assert_eq!(now[0].0[1], expected[0].0[0], "the profile is still stored");
}

#[test]
fn the_second_row_of_a_record_is_deleted() {
    let database = shelf("rebuild twice", 60);
    let expected = answers(&database);
    plant(
        &database,
        "INSERT INTO record SELECT seq + 100000, time + 1, expires, kind, id, author, terms, body \
         FROM record WHERE kind = 1 ORDER BY seq LIMIT 3; \
         UPDATE state SET records = records + 3, seq = seq + 100000, words_seq = words_seq + 100000",
    );
    let done = rebuilt(&database.url, &Nostr);
    assert_eq!(counts(&done.last), no_faults(), "{done:?}");
    assert!(repaired(&done).contains(&("column", 3)), "{done:?}");
    assert_eq!(counts(&checked(&database.url, &Nostr)), no_faults());
    assert!(answers(&database) == expected, "other answers");
}

#[test]
fn numbers_above_the_newest_and_double_numbers_are_given_anew() {
    let database = shelf("rebuild numbers", 60);
    let expected = answers(&database);
    plant(&database, "UPDATE record SET seq = 5 WHERE seq > (SELECT max(seq) - 40 FROM record)");
    plant(&database, "UPDATE state SET seq = 20, words_seq = 10");
    let done = rebuilt(&database.url, &Nostr);
    assert_eq!(counts(&done.last), no_faults(), "{done:?}");
    assert!(repaired(&done).iter().any(|(sort, _)| *sort == "number"), "{done:?}");
    let doubles = "SELECT count(*) - count(DISTINCT seq) FROM hark_nostr.record";
    assert_eq!(database.sql(doubles), "0");
    let store = open(&database.url, &Nostr);
    store.index_words(&mut |_| ControlFlow::Continue(())).expect("indexes");
    drop(store);
    assert_eq!(counts(&checked(&database.url, &Nostr)), no_faults());
    assert!(answers(&database) == expected, "other answers");
}

#[test]
fn the_list_of_parts_is_repaired() {
    let database = shelf("rebuild parts", 120);
    let expected = answers(&database);
    plant(&database, "INSERT INTO part VALUES (7, 700, 800)");
    let done = rebuilt(&database.url, &Nostr);
    assert_eq!((repaired(&done), counts(&done.last)), (vec![("part_table", 2)], no_faults()));
    let last = "WHERE number = (SELECT max(number) FROM part)";
    plant(&database, &format!("DELETE FROM part {last}"));
    let done = rebuilt(&database.url, &Nostr);
    assert_eq!((repaired(&done), counts(&done.last)), (vec![("part_table", 4)], no_faults()));
    plant(&database, &format!("UPDATE part SET stop = stop - 1 {last}"));
    let done = rebuilt(&database.url, &Nostr);
    assert_eq!(counts(&done.last), no_faults(), "{done:?}");
    plant(
        &database,
        "DO $$ DECLARE n bigint := (SELECT max(number) FROM part); BEGIN \
             EXECUTE format('DROP TABLE tag_%s', n); \
         END $$",
    );
    let done = rebuilt(&database.url, &Nostr);
    assert_eq!(counts(&done.last), no_faults(), "{done:?}");
    assert_eq!(counts(&checked(&database.url, &Nostr)), no_faults());
    assert!(answers(&database) == expected, "other answers");
    // A table that is not attached may have records, so the table and its entry in the list stay.
    plant(
        &database,
        "DO $$ DECLARE n bigint := (SELECT max(number) FROM part); BEGIN \
             EXECUTE format('ALTER TABLE record DETACH PARTITION record_%s', n); \
         END $$",
    );
    let done = rebuilt(&database.url, &Nostr);
    assert_eq!(counts(&done.last).get("part_table"), Some(&1), "{done:?}");
}

#[test]
fn the_numbers_of_listed_values_are_repaired() {
    let database = Cluster::shared().database("rebuild values");
    put(&open(&database.url, &Whisper), &Whisper, &checked::envelopes(600));
    let schema = "SET search_path = hark_whisper; SET hark.writes_words = on;";
    let values = "SELECT name, value, records FROM hark_whisper.label_value ORDER BY value";
    let expected = database.sql(values);
    let value = one("label_value", "true");
    for change in [
        format!("UPDATE label_value SET records = records + 1 WHERE {value}"),
        format!("UPDATE label_value SET records = 1 WHERE {value}"),
        format!("DELETE FROM label_value WHERE {value}"),
        "DELETE FROM label_value".into(),
        "INSERT INTO label_value VALUES (77, 116, '\\x00', 5)".into(),
    ] {
        database.sql(&format!("{schema} {change}"));
        let done = rebuilt(&database.url, &Whisper);
        assert_eq!(counts(&done.last), no_faults(), "{change}: {done:?}");
        assert!(repaired(&done).iter().all(|(sort, _)| *sort == "counter"), "{done:?}");
        assert_eq!(database.sql(values), expected, "{change}");
    }
}

#[test]
fn an_interrupted_rebuild_is_continued() {
    let database = shelf("rebuild ended", 200);
    let expected = answers(&database);
    plant(&database, "DELETE FROM tag; DELETE FROM word; UPDATE state SET records = 3");
    let before = counts(&checked(&database.url, &Nostr));
    let mut ended = false;
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let failed = try_rebuild(&database.url, &Nostr, &options(&Nostr), &mut |progress| {
        if progress.done > 0 && !std::mem::replace(&mut ended, true) {
            database.sql(end);
        }
    });
    assert!(matches!(failed, Err(RebuildError::Database(_))), "{failed:?}");
    let after = counts(&checked(&database.url, &Nostr));
    assert!(after["label_missing"] < before["label_missing"], "{before:?} {after:?}");
    assert!(after["label_missing"] > 0 && after["word_missing"] > 0, "{after:?}");
    let done = rebuilt(&database.url, &Nostr);
    assert_eq!(done.repaired.values().sum::<u64>(), after.values().sum::<u64>(), "{done:?}");
    assert_eq!(counts(&checked(&database.url, &Nostr)), no_faults());
    assert!(answers(&database) == expected, "other answers");
}

#[test]
fn a_rebuild_beside_a_writer_repairs_everything() {
    let database = shelf("rebuild beside", 120);
    let store = open(&database.url, &Nostr);
    beside_a_writer(&store, 200_000, || {
        for _ in 0..3 {
            plant(
                &database,
                "UPDATE state SET records = records + 7; \
                 DELETE FROM tag WHERE kind = 1; DELETE FROM word; DELETE FROM forbid; \
                 UPDATE record SET expires = 7 WHERE kind = 0; \
                 INSERT INTO tag SELECT term, time, kind, decode(repeat('ab', 32), 'hex') \
                 FROM tag LIMIT 50",
            );
            let done = rebuilt(&database.url, &Nostr);
            assert_eq!(counts(&done.last), no_faults(), "{done:?}");
        }
    });
    assert_eq!(counts(&checked(&database.url, &Nostr)), no_faults());
    let bytes = checked::record(&Nostr, &event(9, 1, 1, &[], ""));
    let author = *Record::new(&bytes).expect("is a record").author().expect("has an author");
    let kept = Query { labels: vec![LabelSet::one(b't', b"kept")], ..Query::default() };
    let kept = found(&store, &kept);
    let notes = Query { kinds: Some(vec![1]), authors: Some(vec![author]), ..Query::default() };
    assert_eq!(kept.len(), found(&store, &notes).len());
}

#[test]
fn words_of_other_settings_are_left_with_a_note() {
    let database = shelf("rebuild other words", 30);
    plant(
        &database,
        &format!(
            "DELETE FROM tag WHERE {}; DELETE FROM word WHERE {}; \
             INSERT INTO word SELECT time, mark, kind, '\\x7a7a7a7a' FROM word LIMIT 1",
            one("tag", "true"),
            one("word", "true")
        ),
    );
    let other = PostgresOptions { texts: None, ..options(&Nostr) };
    let done = try_rebuild(&database.url, &Nostr, &other, &mut |_| {}).expect("rebuilds");
    assert_eq!(repaired(&done), [("label_missing", 1), ("word_orphan", 1)], "{done:?}");
    assert_eq!(counts(&done.last), [("word_missing", 1)].into(), "{done:?}");
    assert!(done.last.notes.iter().any(|note| note.contains("[search]")), "{done:?}");
    let done = rebuilt(&database.url, &Nostr);
    assert_eq!((repaired(&done), counts(&done.last)), (vec![("word_missing", 1)], no_faults()));
}
