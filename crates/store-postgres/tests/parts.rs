//! Parts are made by commits and dropped as a whole. Work that grows with the size of a part delays
//! no commits, and neither making nor dropping a part ends a search. The next process finishes a
//! drop that another process left unfinished.

use std::time::Duration;

use hark_archive::{Query, RecordHeader, Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_postgres::{PostgresOptions, PostgresStore, PutSnapshot};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::random::encode;
use hark_testkit::wait::until;

const DAY: u64 = 86_400;
const OLD: u64 = 19_700 * DAY;

fn open(database: &Database<'_>) -> PostgresStore {
    let options =
        PostgresOptions { part_s: DAY, listed_labels: b"t", ..PostgresOptions::default() };
    let store = PostgresStore::open(&database.url, "nostr", Box::new(NostrRules), &options);
    store.expect("opens")
}

fn put(store: &dyn Store, numbers: std::ops::Range<u32>, kind: u32, time: u64) {
    let write = |number: u32| {
        let mut id = [kind as u8; 32];
        id[..4].copy_from_slice(&number.to_be_bytes());
        let time = time + u64::from(number);
        let head = RecordHeader { id, time, author: Some([1; 32]), kind, expires: None };
        Write::Put(encode(&head, &[(b't', number.to_be_bytes().to_vec())]))
    };
    store.commit(&numbers.map(write).collect::<Vec<_>>()).unwrap();
}

fn all(store: &dyn Store) -> u64 {
    let counted = store.count(&Query::default()).unwrap().unwrap();
    assert_eq!(store.stats().records, counted);
    let mut values = Vec::new();
    store.label_values(b't', &mut |value, records| values.push((value.to_vec(), records))).unwrap();
    for (value, records) in &values {
        let labels = vec![hark_archive::LabelSet::one(b't', value)];
        let query = Query { labels, ..Query::default() };
        assert_eq!(store.count(&query).unwrap(), Some(*records), "{value:?}");
    }
    // Every record has one value.
    assert_eq!(values.iter().map(|(_, records)| records).sum::<u64>(), counted);
    counted
}

#[test]
fn a_part_with_much_that_is_spared_is_left_to_be_emptied_record_by_record() {
    let database = Cluster::shared().database("much spared");
    let store = open(&database);
    put(&store, 0..3_000, 5, OLD);
    put(&store, 0..200, 1, OLD);
    put(&store, 0..300, 1, OLD + DAY);
    put(&store, 0..2, 5, OLD + DAY);
    // The first part has too many spared records to be moved, so the second part is dropped.
    assert_eq!(store.drop_part(OLD + 10 * DAY, &[5]).unwrap(), Some(300));
    assert_eq!(store.drop_part(OLD + 10 * DAY, &[5]).unwrap(), None);
    assert_eq!(all(&store), 3_202);
    assert_eq!(store.drop_part(OLD + 10 * DAY, &[]).unwrap(), Some(3_200));
    assert_eq!(all(&store), 2);
    let tagged = vec![hark_archive::LabelSet::one(b't', &1u32.to_be_bytes())];
    let tagged = Query { labels: tagged, ..Query::default() };
    assert_eq!(store.count(&tagged).unwrap(), Some(1), "its tags have come along");
    assert_eq!(database.sql("SELECT count(*) FROM hark_nostr.retired"), "0");
}

#[test]
fn a_part_that_was_taken_out_and_not_dropped_is_dropped_by_whoever_is_next() {
    let database = Cluster::shared().database("half retired");
    let store = open(&database);
    put(&store, 0..200, 1, OLD);
    put(&store, 0..100, 1, OLD + DAY);
    put(&store, 0..50, 1, OLD + 5 * DAY);
    // The state after a process ended between detaching a part and dropping its tables. The ended
    // process counted 190 records before the last 10 of the 200 were committed.
    let part = OLD / DAY;
    database.sql(&format!(
        "SET search_path = hark_nostr; SET hark.writes_words = on; BEGIN;
         ALTER TABLE record DETACH PARTITION record_{part};
         ALTER TABLE tag DETACH PARTITION tag_{part};
         ALTER TABLE record_{part} RENAME TO retired_record_{part};
         ALTER TABLE tag_{part} RENAME TO retired_tag_{part};
         DROP TABLE word_{part}, worded_{part};
         DELETE FROM part WHERE number = {part};
         INSERT INTO retired VALUES ({part}, 190);
         UPDATE state SET parts = parts + 1, records = records - 190; COMMIT"
    ));
    let other = open(&database);
    // Late records make a part with the same number again.
    put(&other, 500..510, 1, OLD);
    assert_eq!(other.drop_part(OLD + 3 * DAY, &[5]).unwrap(), Some(10));
    assert_eq!(other.drop_part(OLD + 3 * DAY, &[5]).unwrap(), Some(100));
    assert_eq!(other.drop_part(OLD + 3 * DAY, &[5]).unwrap(), None);
    assert_eq!(all(&other), 50);
    let left = "SELECT count(*) FROM pg_tables WHERE schemaname = 'hark_nostr' \
                AND tablename LIKE 'retired_%'";
    assert_eq!(database.sql(left), "0");
}

#[test]
fn a_part_that_is_made_ends_no_search() {
    let database = Cluster::shared().database("parts and searches");
    let store = open(&database);
    put(&store, 0..10, 1, OLD);
    let held = "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation \
        JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database() \
        AND c.relname = 'tag_other' AND l.granted AND l.pid <> pg_backend_pid()";
    std::thread::scope(|scope| {
        // A long search reads tags, waits until the test has made its commit, and then reads
        // records. If the commit had to wait for the search, the search would end after two
        // minutes.
        let search = scope.spawn(|| {
            database.sql(
                "SET search_path = hark_nostr; BEGIN; SELECT count(*) FROM tag_other;
                 DO $$ BEGIN FOR n IN 1..1200 LOOP
                     EXIT WHEN EXISTS (SELECT FROM pg_class WHERE relname = 'committed');
                     PERFORM pg_sleep(0.1); END LOOP; END $$;
                 SELECT count(*) FROM record_other; COMMIT",
            )
        });
        until("the search has begun", || {
            let has_ended = search.is_finished();
            let is_held = database.sql(held) != "0";
            assert!(is_held || !has_ended, "nothing was locked");
            is_held
        });
        put(&store, 0..10, 1, OLD + DAY);
        assert!(!search.is_finished(), "the commit has waited for the search");
        // Without their part, the records are in the tables that the search has locked.
        assert_eq!(database.sql("SELECT count(*) FROM hark_nostr.record_other"), "10");
        assert_eq!(all(&store), 20);
        database.sql("CREATE TABLE public.committed ()");
        assert_eq!(search.join().unwrap(), "0\n10");
    });
    put(&store, 10..20, 1, OLD + DAY);
    assert_eq!(database.sql("SELECT count(*) FROM hark_nostr.record_other"), "0");
    assert_eq!(all(&store), 30);
}

/// A question for times outside all parts waits until the part is made, and then has the records
/// that have moved to the part.
#[test]
fn a_question_that_comes_while_a_part_is_made_has_the_records_that_move() {
    let database = Cluster::shared().database("records move");
    let open = |parts_max| {
        let options = PostgresOptions {
            part_s: DAY,
            parts_max,
            // The test decides how long the commit takes.
            statement_timeout: Duration::from_mins(5),
            ..PostgresOptions::default()
        };
        let store = PostgresStore::open(&database.url, "nostr", Box::new(NostrRules), &options);
        store.expect("opens")
    };
    let sql = |text: &str| database.sql(&format!("SET search_path = hark_nostr; {text}"));
    let store = open(1);
    put(&store, 0..10, 1, OLD);
    put(&store, 20..21, 1, OLD + DAY);
    assert_eq!(sql("SELECT count(*) FROM record_other"), "1");
    let (maker, asker) = (open(10), open(10));
    // The commit waits after it has made the part.
    sql("CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN FOR n IN 1..1200 LOOP \
             EXIT WHEN EXISTS (SELECT FROM pg_class WHERE relname = 'asked'); \
             PERFORM pg_sleep(0.1); END LOOP; RETURN NEW; END $$; \
         CREATE TRIGGER waits BEFORE INSERT ON record FOR EACH ROW EXECUTE FUNCTION waits()");
    let mut id = [1; 32];
    id[..4].copy_from_slice(&20_u32.to_be_bytes());
    let query = Query { ids: Some(vec![id]), ..Query::default() };
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| put(&maker, 30..31, 1, OLD + DAY));
        until("the part is being made", || {
            sql("SELECT count(*) FROM pg_locks WHERE relation = 'record_other'::regclass \
                 AND mode = 'AccessExclusiveLock' AND granted")
                != "0"
        });
        let question = scope.spawn(|| asker.count(&query));
        until("the question waits", || {
            sql("SELECT count(*) FROM pg_locks WHERE NOT granted \
                 AND relation IN ('record'::regclass, 'record_other'::regclass)")
                != "0"
        });
        database.sql("CREATE TABLE public.asked ()");
        commit.join().unwrap();
        assert_eq!(question.join().unwrap().unwrap(), Some(1));
    });
    assert_eq!(
        sql("SELECT (SELECT count(*) FROM part), (SELECT count(*) FROM record_other)"),
        "2|0"
    );
}

#[test]
fn a_snapshot_for_a_backup_lets_parts_be_made_and_keeps_its_own_from_being_dropped() {
    let database = Cluster::shared().database("snapshot");
    let store = open(&database);
    put(&store, 0..300, 1, OLD);
    put(&store, 0..20, 5, OLD);
    put(&store, 0..100, 1, OLD + DAY);
    let options = PostgresOptions { listed_labels: b"t", ..PostgresOptions::default() };
    let open = || PutSnapshot::open(&database.url, "nostr", &options).unwrap().unwrap();
    let mut snapshot = open();
    let parts = || database.sql("SELECT count(*) FROM hark_nostr.part");
    assert_eq!((parts().as_str(), snapshot.records()), ("2", 420));
    // A page is read after each change.
    let mut read = |after: u64| {
        let puts = snapshot.puts(after).unwrap();
        assert_eq!(snapshot.numbers(0, 1_000).unwrap().len(), 420);
        puts.last().map(|put| put.0)
    };
    let mut after = read(0);
    put(&store, 0..50, 1, OLD + 3 * DAY);
    assert_eq!(parts(), "3");
    let erased = Query { authors: Some(vec![[1; 32]]), kinds: Some(vec![5]), ..Query::default() };
    store.commit(&[Write::Erase(Box::new(erased))]).unwrap();
    put(&store, 400..420, 5, OLD);
    assert!(store.drop_part(OLD + 10 * DAY, &[5]).is_err(), "the part is in use");
    let mut last = 0;
    while let Some(number) = after {
        (last, after) = (number, read(number));
    }
    assert_eq!(last, 420);
    let position = snapshot.position(None);
    drop(snapshot);
    assert_eq!(store.drop_part(OLD + 10 * DAY, &[5]).unwrap(), Some(300));
    let mut now = open();
    assert_eq!(now.common(&position), Some(420));
    // The spared records still have their numbers.
    assert_eq!(now.numbers(420, 1_000).unwrap().len(), 70);
    assert_eq!(now.numbers(0, 420).unwrap().len(), 100);
    assert!(PutSnapshot::open(&database.url, "waku", &options).unwrap().is_none());
}

/// A commit can make a part and then fail. Another server can meanwhile make another part, and the
/// list of parts then has the version that the failed commit gave to its list.
#[test]
fn after_a_failed_commit_the_parts_of_another_server_are_found() {
    let database = Cluster::shared().database("failed part");
    let (one, other) = (open(&database), open(&database));
    put(&one, 0..10, 1, OLD);
    assert_eq!(all(&other), 10);
    database.sql(
        "CREATE FUNCTION hark_nostr.fails() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN RAISE EXCEPTION 'not this record'; END $$;
         CREATE TRIGGER fails BEFORE INSERT ON hark_nostr.record FOR EACH ROW
         WHEN (get_byte(NEW.id, 0) = 9) EXECUTE FUNCTION hark_nostr.fails()",
    );
    let head = RecordHeader {
        id: [9; 32],
        time: OLD + 3 * DAY,
        author: Some([1; 32]),
        kind: 1,
        expires: None,
    };
    one.commit(&[Write::Put(encode(&head, &[]))]).unwrap_err();
    assert_eq!(database.sql("SELECT count(*) FROM hark_nostr.part"), "1");
    put(&other, 0..20, 1, OLD + 5 * DAY);
    put(&one, 20..30, 1, OLD);
    assert_eq!(all(&one), 40);
    assert_eq!(all(&other), 40);
}

/// A part cannot be made while a backup reads the tables for times outside all parts. By the end of
/// the backup these tables can have too many records to be moved within a commit.
#[test]
fn records_that_cannot_be_moved_in_time_stop_no_commit() {
    let database = Cluster::shared().database("slow part");
    let store = open(&database);
    put(&store, 0..10, 1, OLD);
    let sql = |text: &str| database.sql(&format!("SET search_path = hark_nostr; {text}"));
    std::thread::scope(|scope| {
        let backup = scope.spawn(|| {
            sql("BEGIN; LOCK TABLE record_other IN ACCESS SHARE MODE; \
                 DO $$ BEGIN FOR n IN 1..1200 LOOP \
                     EXIT WHEN EXISTS (SELECT FROM pg_class WHERE relname = 'copied'); \
                     PERFORM pg_sleep(0.1); END LOOP; END $$; COMMIT")
        });
        until("the backup has begun", || {
            sql("SELECT count(*) FROM pg_locks WHERE relation = 'record_other'::regclass \
                 AND mode = 'AccessShareLock' AND pid <> pg_backend_pid()")
                != "0"
        });
        put(&store, 0..10, 1, OLD + DAY);
        database.sql("CREATE TABLE public.copied ()");
        backup.join().unwrap();
    });
    assert_eq!(sql("SELECT count(*) FROM record_other"), "10");
    sql("CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM pg_sleep(1); RETURN OLD; END $$; \
         CREATE TRIGGER waits BEFORE DELETE ON record_other FOR EACH ROW EXECUTE FUNCTION waits()");
    for number in 1..4 {
        put(&store, number * 10..number * 10 + 10, 1, OLD + DAY);
    }
    assert_eq!(all(&store), 50);
    assert_eq!(
        sql("SELECT (SELECT count(*) FROM part), (SELECT count(*) FROM record_other)"),
        "1|40"
    );
    // A server that starts now makes the part.
    sql("DROP TRIGGER waits ON record_other");
    let other = open(&database);
    put(&other, 40..50, 1, OLD + DAY);
    assert_eq!(sql("SELECT count(*) FROM record_other"), "0");
    assert_eq!((all(&store), all(&other)), (60, 60));
}
