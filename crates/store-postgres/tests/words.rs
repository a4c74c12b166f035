//! Full-text search: PostgreSQL finds words like the model, regardless of which process has indexed
//! which texts and when. The words of deleted records are deleted.

use std::ops::ControlFlow;

use hark_archive::store::memory::MemoryStore;
use hark_archive::{Id, Query, RecordHeader, SearchProgress, Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_postgres::{PostgresOptions, PostgresStore, WordProgress};
use hark_testkit::citus::{CitusCluster, is_installed};
use hark_testkit::contract::{Size, Subject, large_records_are_ranked, rules, run_with_words};
use hark_testkit::random::{Flavour, Random, World, encode};
use hark_testkit::runs::seed_or;
use hark_testkit::wait::until_ok;

use word_shelf::{
    NOW, WordShelf, asked, ids, index_all, index_some, note, open_with, others, sentences,
};

mod word_shelf;

impl Subject for WordShelf {
    fn store(&self) -> &dyn Store {
        self.postgres()
    }

    fn disturb(&mut self, random: &mut Random) {
        match random.below(7) {
            0 => self.open(Some(sentences())),
            // The next records are not indexed, and searches read records.
            1 => self.open(None),
            2 => {
                // Other texts are indexed, completely or partly.
                self.open(Some(others()));
                index_some(self.postgres(), 1 + random.below(20));
                self.open(Some(sentences()));
                index_some(self.postgres(), 1 + random.below(8));
            }
            3 => {
                // Words are deleted, and later records are not indexed.
                self.open(None);
                self.postgres().drop_words().expect("deletes");
                assert_eq!(self.rows(), ("0".into(), "0".into()));
            }
            4 => drop(self.database.sql("VACUUM ANALYZE")),
            _ => {
                self.open(Some(sentences()));
                index_all(self.postgres());
            }
        }
        self.assert_sound();
    }
}

#[test]
fn postgres_finds_words_like_the_model() {
    let seed = seed_or(20_261_123);
    let size = Size { records: 4_000, queries: 5_000, disturbances: 24 }.of_this_run();
    let mut shelf = WordShelf::new("words");
    let compared = run_with_words(&mut shelf, seed, size);
    println!("seed {seed}: {compared:?}, {:?}", shelf.postgres().stats());
    assert!(compared.queries >= size.queries && compared.answers > size.queries / 2);
}

#[test]
fn postgres_finds_words_like_the_model_from_the_index_alone() {
    let seed = seed_or(20_261_124);
    let size = Size { records: 3_000, queries: 6_000, disturbances: 0 }.of_this_run();
    let mut shelf = WordShelf::new("words indexed");
    let compared = run_with_words(&mut shelf, seed, size);
    println!("seed {seed}: {compared:?}");
    assert!(compared.answers > size.queries / 2);
    let at = shelf.postgres().word_progress().expect("reads").expect("is indexed");
    assert_eq!(at.indexed, at.newest, "every commit has indexed its records");
    shelf.assert_sound();
}

#[test]
fn words_of_what_is_deleted_leave_the_tables_whatever_the_settings_of_who_deletes_it() {
    let shelf = WordShelf::new("words deleted");
    let store = shelf.postgres();
    let puts: Vec<Write> =
        (0..20).map(|n| note(n, NOW + u64::from(n), &format!("a xylophone{n}"))).collect();
    store.commit(&puts).expect("commits");
    let query = Query { words: Some(asked("xyl*")), ..Query::default() };
    assert_eq!(store.count(&query).expect("counts"), Some(20));
    assert_eq!(shelf.rows(), ("40".into(), "20".into()));
    let erase = |store: &PostgresStore, ids: std::ops::Range<u8>| {
        let ids = Some(ids.map(|id| [id; 32]).collect());
        let erase = Write::Erase(Box::new(Query { ids, ..Query::default() }));
        store.commit(&[erase]).expect("erases");
    };
    erase(store, 0..5);
    erase(&open_with(&shelf.database, None), 5..10);
    assert_eq!(shelf.rows(), ("20".into(), "10".into()));
    assert_eq!(
        open_with(&shelf.database, Some(sentences())).count(&query).expect("counts"),
        Some(10)
    );
    // Another process puts a record without indexing. The record is found nevertheless, and is
    // indexed later.
    let other = open_with(&shelf.database, None);
    other.commit(&[note(30, NOW + 30, "another xylophone")]).expect("commits");
    let again = open_with(&shelf.database, Some(sentences()));
    assert_eq!(again.count(&query).expect("counts"), Some(11));
    assert_eq!(shelf.rows(), ("20".into(), "10".into()));
    again.commit(&[note(31, NOW + 31, "one more xylophone")]).expect("commits");
    assert_eq!((again.count(&query).expect("counts"), shelf.rows().1), (Some(12), "10".into()));
    index_all(&again);
    assert_eq!((again.count(&query).expect("counts"), shelf.rows().1), (Some(12), "12".into()));
    again.commit(&[note(32, NOW + 32, "indexed at once: xylophone")]).expect("commits");
    assert_eq!(shelf.rows().1, "13");
    erase(&other, 0..40);
    assert_eq!(shelf.rows(), ("0".into(), "0".into()));
}

#[test]
fn a_server_indexes_what_is_stored_while_it_takes_more() {
    let shelf = WordShelf::new("words background");
    let plain = open_with(&shelf.database, None);
    assert!(plain.drop_words().expect("deletes"));
    let mut world = World::new(5, Flavour::Nostr).with_words();
    for _ in 0..20 {
        let puts: Vec<Write> = (0..50).map(|_| Write::Put(world.record())).collect();
        plain.commit(&puts).expect("commits");
    }
    assert_eq!(shelf.rows().1, "0");
    let server = open_with(&shelf.database, Some(sentences()));
    server.on_news(Box::new(|| {}));
    let query = Query { words: Some(asked("the relay")), ..Query::default() };
    until_ok(|| {
        // The answer is complete, regardless of the progress of indexing.
        let found = ids(&server, &query);
        assert_eq!(server.count(&query).expect("counts"), Some(found.len() as u64));
        let at = server.word_progress().expect("reads").expect("is indexed");
        if at.indexed == at.newest {
            return Ok(());
        }
        plain.commit(&[Write::Put(world.record())]).expect("commits");
        Err(format!("{at:?}"))
    });
    assert!(!ids(&server, &query).is_empty());
    shelf.assert_sound();
}

#[test]
fn indexing_goes_on_where_it_was_stopped_and_begins_anew_for_other_texts() {
    let shelf = WordShelf::new("words resumed");
    let plain = open_with(&shelf.database, None);
    assert!(plain.drop_words().expect("deletes"));
    let puts: Vec<Write> = (0..250).map(|n| note(n, NOW, "fox")).collect();
    plain.commit(&puts).expect("commits");
    let store = open_with(&shelf.database, Some(sentences()));
    assert_eq!(index_some(&store, 1), Some(WordProgress { indexed: 100, newest: 250 }));
    assert_eq!(shelf.rows().1, "100");
    drop(store);
    let store = open_with(&shelf.database, Some(sentences()));
    let query = Query { words: Some(asked("fox")), ..Query::default() };
    assert_eq!(ids(&store, &query).len(), 250);
    assert_eq!(index_some(&store, 1), Some(WordProgress { indexed: 200, newest: 250 }));
    index_all(&store);
    assert_eq!(shelf.rows(), ("250".into(), "250".into()));
    // A process with other settings lets the database index its own texts. The first process
    // notices the change.
    let other = open_with(&shelf.database, Some(others()));
    assert_eq!(other.word_progress().expect("reads"), None);
    index_all(&other);
    assert_eq!(store.word_progress().expect("reads"), None);
    assert_eq!(ids(&store, &query).len(), 250);
    store.commit(&[note(251, NOW, "fox")]).expect("commits");
    assert_eq!(ids(&store, &query).len(), 251);
    assert_eq!(shelf.rows().1, "250", "what a process with other texts puts is indexed later");
    index_all(&other);
    assert_eq!(shelf.rows().1, "251");
}

#[test]
fn the_words_of_dropped_parts_go_and_those_of_spared_records_stay() {
    let shelf = WordShelf::new("words retired");
    let store = shelf.postgres();
    let start = NOW / 600 * 600;
    let article = |number: u8, time: u64, kind: u32, text: &str| {
        let head =
            RecordHeader { id: [number; 32], time, author: Some([9; 32]), kind, expires: None };
        Write::Put(encode(&head, &[(b's', text.into()), (b'd', format!("x{number}").into())]))
    };
    let puts = [
        article(1, start + 1, 1, "an old fox"),
        article(2, start + 2, 30_023, "a spared fox"),
        article(3, start + 601, 1, "a new fox"),
    ];
    store.commit(&puts).expect("commits");
    assert_eq!(shelf.sql("SELECT count(*) FROM hark_nostr.part"), "2");
    let query = Query { words: Some(asked("fox")), ..Query::default() };
    assert_eq!(ids(store, &query).len(), 3);
    assert_eq!(store.drop_part(start + 600, &[30_023]).expect("drops"), Some(1));
    assert_eq!(ids(store, &query), [[3; 32], [2; 32]]);
    assert_eq!(store.count(&query).expect("counts"), Some(2));
    assert_eq!(shelf.rows().1, "2");
    shelf.assert_sound();
    let words = "SELECT count(*) FROM hark_nostr.word WHERE word = 'old'";
    assert_eq!(shelf.sql(words), "0");
    // When the part is made again, the words of the spared records move to the part's tables.
    store.commit(&[article(4, start + 3, 1, "late fox")]).expect("commits");
    assert_eq!(shelf.sql("SELECT count(*) FROM hark_nostr.word_other"), "0");
    assert_eq!(ids(store, &query), [[3; 32], [4; 32], [2; 32]]);
}

#[test]
fn large_records_come_best_first_and_each_once() {
    let shelf = WordShelf::new("words large");
    large_records_are_ranked(shelf.store());
}

/// Long records are read page by page, and not all at once.
#[test]
fn long_records_are_found_by_their_words_in_order() {
    let shelf = WordShelf::new("words long");
    let (store, model) = (shelf.postgres(), MemoryStore::new(NostrRules));
    for n in 0..60_u8 {
        let (id, time) = ([n; 32], NOW + u64::from(n / 3));
        let head = RecordHeader { id, time, author: Some([n; 32]), kind: 1, expires: None };
        let labels = [(b's', b"a fox".to_vec()), (b'x', vec![7; 256 << 10])];
        let puts = [Write::Put(encode(&head, &labels))];
        store.commit(&puts).expect("commits");
        model.commit(&puts).expect("commits");
    }
    let reads = || -> u64 {
        let statements = store.stats().database.expect("is there").statements;
        let reads = statements.iter().filter(|(name, _)| name.ends_with("word_bodies"));
        reads.map(|(_, times)| times.count()).sum()
    };
    for limit in [1, 20, 500] {
        let query = Query { words: Some(asked("fox")), limit, ..Query::default() };
        let (before, expected) = (reads(), ids(&model, &query));
        assert_eq!(expected.len(), limit.min(60));
        assert!(ids(store, &query) == expected, "{limit}");
        // The records have 15 MiB together, and a page has at most 2 MiB.
        let reads = reads() - before;
        assert!(limit < 500 || reads > 7, "{reads} reads");
    }
}

#[test]
fn records_whose_ids_begin_alike_are_told_apart() {
    let shelf = WordShelf::new("words alike");
    let model = MemoryStore::new(NostrRules);
    let mut puts = Vec::new();
    for n in 0..12_u8 {
        // Groups of three ids have the same first 62 bits. One record of each group does not have
        // the word.
        let mut id = [n / 3; 32];
        (id[7], id[31]) = (n / 3 * 4 + n % 3, n);
        let text = if n % 3 == 1 { "dog" } else { "fox and more" };
        let head = RecordHeader { id, time: NOW, author: Some([n; 32]), kind: 1, expires: None };
        puts.push(Write::Put(encode(&head, &[(b's', text.into())])));
    }
    for store in [shelf.store(), &model] {
        store.commit(&puts).expect("commits");
    }
    for text in ["fox", "fo*", "dog", "more fox"] {
        let query = Query { words: Some(asked(text)), ..Query::default() };
        let all = ids(&model, &query);
        assert_eq!(ids(shelf.store(), &query), all, "{text}");
        for (at, id) in all.iter().enumerate() {
            let after = Some(hark_archive::Position { time: NOW, id: *id });
            let query = Query { after, limit: 2, ..query.clone() };
            let next: Vec<Id> = all[at + 1..].iter().take(2).copied().collect();
            assert_eq!(ids(shelf.store(), &query), next, "{text} behind {at}");
        }
    }
}

#[test]
fn a_search_above_its_budget_says_so_and_one_by_the_index_does_not_get_there() {
    let shelf = WordShelf::new("words budget");
    let plain = open_with(&shelf.database, None);
    let store = shelf.postgres();
    for first in [0, 125] {
        let text = |n: u8| if n == 77 { "a rare fox" } else { "a common dog" };
        let puts: Vec<Write> =
            (first..first + 125).map(|n| note(n, NOW + u64::from(n), text(n))).collect();
        store.commit(&puts).expect("commits");
    }
    let rare = Query {
        words: Some(asked("fox")),
        ranked: true,
        limit: 5,
        budget: 200,
        ..Query::default()
    };
    assert_eq!(ids(store, &rare), [[77; 32]]);
    assert_eq!(store.count(&rare).expect("counts"), Some(1));
    let explained = store.explain(&rare).expect("explains");
    assert!(explained.plan.contains("word fox"), "{explained:?}");
    assert!(explained.details.iter().any(|line| line.contains("word_keys")), "{explained:?}");
    // Because one record is not indexed yet, all records are read: too many for this budget.
    plain.commit(&[note(250, NOW + 250, "not indexed")]).expect("commits");
    let store = open_with(&shelf.database, Some(sentences()));
    let mut search = store.search(&rare).expect("searches");
    let progress = search.slice(u64::MAX, &mut |_| ControlFlow::Continue(()));
    assert_eq!(progress.expect("is read"), SearchProgress::Exhausted);
    assert_eq!(store.count(&rare).expect("counts"), None);
    index_all(&store);
    assert_eq!(ids(&store, &rare), [[77; 32]]);
}

#[test]
fn a_cluster_is_not_searched_and_says_so() {
    if !is_installed() {
        return;
    }
    let database = CitusCluster::shared().database("words");
    let options = PostgresOptions { texts: Some(sentences()), ..PostgresOptions::default() };
    let store = PostgresStore::open(&database.url, "nostr", rules(Flavour::Nostr), &options);
    let store = store.expect("opens");
    assert!(store.is_cluster());
    store.commit(&[note(1, NOW, "fox")]).expect("commits");
    let query = Query { words: Some(asked("fox")), ..Query::default() };
    for refused in [store.search(&query).err(), store.count(&query).err()] {
        let said = refused.expect("is refused").to_string();
        assert!(said.contains("not on a Citus cluster"), "{said}");
    }
    assert_eq!(store.count(&Query::default()).expect("counts"), Some(1));
}
