//! Concurrent use of the tables of words: by processes that index other texts, by long searches,
//! and by servers of a version without words.

use std::ops::ControlFlow;
use std::time::Duration;

use hark_archive::{Query, RecordHeader, Store, Write};
use hark_store_postgres::PostgresStore;
use hark_testkit::random::encode;
use hark_testkit::wait::{until, until_ok};

use word_shelf::{NOW, WordShelf, asked, ids, index_all, note, open_with, others, sentences};

mod word_shelf;

const PART_S: u64 = 600;
const START: u64 = NOW / PART_S * PART_S;
const PART: u64 = NOW / PART_S;
/// The settings of every session that may write.
const WRITES: &str = "SET search_path = hark_nostr; SET hark.writes_words = on;";

fn searched(text: &str) -> Query {
    Query { words: Some(asked(text)), ..Query::default() }
}

fn put(store: &PostgresStore, texts: impl Iterator<Item = (u8, String)>) {
    let puts: Vec<Write> = texts.map(|(n, text)| note(n, NOW + u64::from(n), &text)).collect();
    store.commit(&puts).expect("commits");
}

fn article(number: u8, time: u64, kind: u32, text: &str) -> Write {
    let head = RecordHeader { id: [number; 32], time, author: Some([9; 32]), kind, expires: None };
    Write::Put(encode(&head, &[(b's', text.into()), (b'd', format!("x{number}").into())]))
}

/// Runs `work` while another session holds this lock of the table `word`. That session executes
/// `first` and then `then`.
fn while_locked(shelf: &WordShelf, lock: &str, first: &str, then: &str, work: impl FnOnce()) {
    let text = format!("{WRITES} BEGIN; LOCK TABLE word IN {lock} MODE; {first}; {then}; COMMIT");
    let is_locked = "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation \
        JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database() \
        AND c.relname = 'word' AND l.granted AND l.pid <> pg_backend_pid()";
    std::thread::scope(|scope| {
        let other = scope.spawn(|| shelf.sql(&text));
        until("the table is locked", || {
            let has_ended = other.is_finished();
            let is_locked = shelf.sql(is_locked) != "0";
            assert!(is_locked || !has_ended, "nothing was locked");
            is_locked
        });
        work();
    });
}

/// Waits until another session waits for a lock on the words, and fails after a minute.
const UNTIL_READ: &str = "DO $$ BEGIN FOR n IN 1..1200 LOOP \
        IF EXISTS (SELECT FROM pg_locks l JOIN pg_class c ON c.oid = l.relation \
            JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database() \
            AND c.relname LIKE 'word%' AND NOT l.granted) THEN RETURN; END IF; \
        PERFORM pg_sleep(0.05); END LOOP; RAISE EXCEPTION 'nobody reads the words'; END $$";

#[test]
fn what_is_read_while_the_last_words_are_indexed_is_whole() {
    let shelf = WordShelf::new("words between");
    let store = shelf.postgres();
    put(store, (0..20).map(|n| (n, format!("a fox and xylophone{n}"))));
    let find = || ids(store, &searched("xyl*")).len();
    // The statement is prepared, so that it does not wait for the lock before it is executed.
    assert_eq!(find(), 20);
    // Simulates a read of `word` before the words were indexed.
    shelf.sql(&format!("{WRITES} DELETE FROM word; UPDATE state SET words_seq = 0"));
    let then = "UPDATE state SET words_seq = seq";
    while_locked(&shelf, "ACCESS EXCLUSIVE", UNTIL_READ, then, || assert_eq!(find(), 20));
}

#[test]
fn what_is_counted_while_the_words_are_removed_is_whole() {
    let shelf = WordShelf::new("words removed");
    let store = shelf.postgres();
    put(store, (0..20).map(|n| (n, format!("a fox and xylophone{n}"))));
    for text in ["fox", "a fox"] {
        let count = || store.count(&searched(text)).expect("counts").expect("has a budget");
        index_all(store);
        // The statement is prepared, so that it does not wait for the lock before it is executed.
        assert_eq!(count(), 20, "{text}");
        let then = "DELETE FROM word; UPDATE state SET words_seq = 0";
        while_locked(&shelf, "ACCESS EXCLUSIVE", UNTIL_READ, then, || {
            assert_eq!(count(), 20, "{text}");
        });
    }
}

#[test]
fn a_server_of_an_earlier_version_may_read_and_not_write() {
    let shelf = WordShelf::new("words earlier");
    let store = shelf.postgres();
    put(store, (0..3).map(|n| (n, format!("fox {n}"))));
    // The statements of a commit by a version without words.
    let said = shelf.sql(
        "SET search_path = hark_nostr; CREATE TEMP TABLE said (text text);
         DO $$ BEGIN
             PERFORM seq, records, parts, line FROM state FOR UPDATE;
             DELETE FROM record WHERE seq = 1;
             UPDATE state SET seq = 4, records = 2;
             INSERT INTO said VALUES ('was written');
         EXCEPTION WHEN OTHERS THEN
             INSERT INTO said VALUES (SQLERRM);
         END $$;
         SELECT text FROM said; SELECT count(*) FROM record; SELECT seq, records FROM state",
    );
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].contains("a later version of Hark has changed the database"), "{said}");
    assert_eq!(lines[1..], ["3", "3|3"]);
    put(store, std::iter::once((4, "fox".to_owned())));
    assert_eq!(ids(store, &searched("fox")).len(), 4);
}

#[test]
fn parts_that_an_earlier_version_made_and_dropped_are_dropped_and_made_again() {
    let shelf = WordShelf::new("words of parts");
    let store = shelf.postgres();
    let puts = [
        article(1, START + 1, 1, "an old fox"),
        article(2, START + 2, 30_023, "a spared fox"),
        article(3, START + PART_S + 1, 1, "a new fox"),
    ];
    store.commit(&puts).expect("commits");
    // Simulates a part that was made by a version without tables of words.
    for table in ["word", "worded"] {
        shelf.sql(&format!(
            "{WRITES} BEGIN; ALTER TABLE {table} DETACH PARTITION {table}_{PART};
             INSERT INTO {table} SELECT * FROM {table}_{PART}; DROP TABLE {table}_{PART}; COMMIT"
        ));
    }
    assert_eq!(store.drop_part(START + PART_S, &[30_023]).expect("drops"), Some(1));
    assert_eq!(ids(store, &searched("fox")), [[3; 32], [2; 32]]);
    assert_eq!(shelf.sql("SELECT count(*) FROM hark_nostr.word WHERE word = 'old'"), "0");
    assert_eq!(shelf.rows().1, "2");
    shelf.assert_sound();
    store.commit(&[article(4, START + 3, 1, "late fox")]).expect("commits");
    // Simulates a part that was dropped without its tables of words.
    shelf.sql(&format!(
        "{WRITES} BEGIN; DROP TABLE record_{PART}, tag_{PART}; DELETE FROM part WHERE number = {PART};
         UPDATE state SET parts = parts + 1, records = records - 2; COMMIT"
    ));
    store.commit(&[article(5, START + 5, 1, "later fox")]).expect("makes the part again");
    assert_eq!(ids(store, &searched("fox")), [[3; 32], [5; 32]]);
    assert_eq!(store.count(&searched("fox")).expect("counts"), Some(2));
    assert_eq!(store.drop_part(START + PART_S, &[]).expect("drops"), Some(1));
    assert_eq!(shelf.rows().1, "1", "the words of the part that was dropped before are gone, too");
    shelf.assert_sound();
}

#[test]
fn a_part_whose_spared_records_have_many_words_is_left_to_be_emptied_record_by_record() {
    let mut shelf = WordShelf::new("words spared");
    let text = |n: u8| (0..60).map(|at| format!("w{n}x{at}")).collect::<Vec<_>>().join(" ");
    let puts = (0..80).map(|n| article(n, START + u64::from(n), 30_023, &text(n)));
    let puts: Vec<Write> = puts.chain([article(100, START, 1, "fox")]).collect();
    shelf.postgres().commit(&puts).expect("commits");
    let dropped = |shelf: &WordShelf| shelf.postgres().drop_part(START + PART_S, &[30_023]);
    assert_eq!(dropped(&shelf).expect("looks"), None);
    shelf.open(None);
    assert!(shelf.postgres().drop_words().expect("deletes"));
    assert_eq!(dropped(&shelf).expect("drops"), Some(1));
}

#[test]
fn a_search_that_takes_long_holds_no_commits_while_other_texts_wait_for_it() {
    let shelf = WordShelf::new("words waited for");
    let store = shelf.postgres();
    put(store, (0..20).map(|n| (n, format!("fox {n}"))));
    let other = open_with(&shelf.database, Some(others()));
    // The lock is held until the test has made its commits, or for two minutes. If a commit had to
    // wait for the lock, it would find the words indexed.
    let committed = "DO $$ BEGIN FOR n IN 1..1200 LOOP \
                 EXIT WHEN EXISTS (SELECT FROM pg_class WHERE relname = 'committed'); \
                 PERFORM pg_sleep(0.1); END LOOP; END $$";
    while_locked(&shelf, "ACCESS SHARE", committed, "SELECT 1", || {
        std::thread::scope(|scope| {
            // One call gives up after some twenty seconds.
            let indexing = scope.spawn(|| {
                until_ok(|| other.index_words(&mut |_| ControlFlow::Continue(())));
                index_all(&other);
            });
            let writer = open_with(&shelf.database, None);
            for n in 100..110 {
                put(&writer, std::iter::once((n, "fox".to_owned())));
                // Indexing tries to take the lock once a second.
                std::thread::sleep(Duration::from_millis(100));
            }
            assert!(!indexing.is_finished(), "the search still reads the words");
            shelf.sql("CREATE TABLE public.committed ()");
        });
    });
    let at = other.word_progress().expect("reads").expect("its texts are indexed");
    assert_eq!(at.indexed, at.newest);
    index_all(&open_with(&shelf.database, Some(sentences())));
    assert_eq!(ids(store, &searched("20")).len(), 0);
    shelf.assert_sound();
}

#[test]
fn a_page_of_many_words_has_a_bounded_number_of_rows() {
    let shelf = WordShelf::new("words of a page");
    let store = shelf.postgres();
    let text = (0..60).map(|at| format!("aa{at:02}")).collect::<Vec<_>>().join(" ");
    put(store, (0..200).map(|n| (n, text.clone())));
    let query = searched("aa*");
    assert_eq!(ids(store, &query).len(), 200);
    let explained = store.explain(&query).expect("explains");
    let pages = explained.steps.iter().filter(|step| step.source == "word_keys");
    let rows: Vec<u64> = pages.map(|step| step.rows).collect();
    assert!(
        rows.iter().any(|rows| *rows > 1_000) && rows.iter().all(|rows| *rows <= 4_000),
        "{rows:?}"
    );
}

#[test]
fn a_count_is_driven_by_the_rarest_word_and_goes_through_no_more_rows_than_its_budget() {
    let shelf = WordShelf::new("words counted");
    let store = shelf.postgres();
    let text = |n: u8| match n {
        77 => "a commonplace fox",
        n if n < 120 => "commonplace",
        _ => "unremarkable",
    };
    put(store, (0..240).map(|n| (n, text(n).to_owned())));
    let count =
        |text: &str, budget: u64| store.count(&Query { budget, ..searched(text) }).expect("counts");
    assert_eq!(count("commonplace fox", 20), Some(1));
    assert_eq!(count("commonplace dog", 20), Some(0));
    assert_eq!(count("commonplace unremarkable", 500), Some(0));
    assert_eq!(count("commonplace unremarkable", 100), None);
    assert_eq!(count("commonplace", 119), None);
    assert_eq!(count("commonplace", 120), Some(120));
    let mut visited = 0;
    let none = Query { budget: 500, ..searched("commonplace unremarkable") };
    assert_eq!(store.count_visiting(&none, &mut visited).expect("counts"), Some(0));
    assert_eq!(visited, 120, "rows of the rarest word");
}
