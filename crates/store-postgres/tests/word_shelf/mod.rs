//! A shelf in a database, with records that have words.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::{
    Id, Query, RecordHeader, SearchProgress, Store, TextSource, WordCondition, Write,
};
use hark_store_postgres::{PostgresOptions, PostgresStore, WordProgress};
use hark_testkit::contract::{listed, rules};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::random::{Flavour, encode};
use hark_testkit::sentences::{SENTENCES, Sentences};
use hark_words::SearchText;

pub(crate) const NOW: u64 = 1_700_000_000;

/// A shelf in its own database, with many small parts.
pub(crate) struct WordShelf {
    pub(crate) database: Database<'static>,
    pub(crate) store: Option<PostgresStore>,
}

pub(crate) fn sentences() -> Arc<dyn TextSource> {
    Arc::new(SENTENCES)
}

/// Other texts of the same records.
pub(crate) fn others() -> Arc<dyn TextSource> {
    Arc::new(Sentences { number: 2, kinds: &[1] })
}

pub(crate) fn open_with(
    database: &Database<'_>,
    texts: Option<Arc<dyn TextSource>>,
) -> PostgresStore {
    let listed_labels = listed(Flavour::Nostr);
    let options =
        PostgresOptions { part_s: 600, listed_labels, texts, ..PostgresOptions::default() };
    PostgresStore::open(&database.url, "nostr", rules(Flavour::Nostr), &options).expect("opens")
}

impl WordShelf {
    pub(crate) fn new(name: &str) -> Self {
        let mut shelf = Self { database: Cluster::shared().database(name), store: None };
        shelf.open(Some(sentences()));
        shelf
    }

    pub(crate) fn open(&mut self, texts: Option<Arc<dyn TextSource>>) {
        self.store = None;
        self.store = Some(open_with(&self.database, texts));
    }

    pub(crate) fn postgres(&self) -> &PostgresStore {
        self.store.as_ref().expect("open")
    }

    pub(crate) fn sql(&self, text: &str) -> String {
        self.database.sql(text).trim().to_owned()
    }

    /// Returns the numbers of rows of the tables `word` and `worded`.
    pub(crate) fn rows(&self) -> (String, String) {
        let count = |table| self.sql(&format!("SELECT count(*) FROM hark_nostr.{table}"));
        (count("word"), count("worded"))
    }

    /// Panics unless the tables of words match each other and the stored records.
    pub(crate) fn assert_sound(&self) {
        let lost = "SELECT count(*) FROM hark_nostr.worded w WHERE NOT EXISTS (SELECT FROM \
            hark_nostr.record r WHERE r.time = w.time AND r.kind = w.kind)";
        assert_eq!(self.sql(lost), "0");
        let differ = "SELECT count(*) FROM (SELECT time, mark, kind, unnest(words) AS word FROM \
            hark_nostr.worded) a FULL JOIN (SELECT time, mark - (mark & 3) AS mark, kind, word FROM \
            hark_nostr.word) b USING (time, mark, kind, word) WHERE a IS NULL OR b IS NULL";
        assert_eq!(self.sql(differ), "0");
    }
}

/// Indexes words in at most `steps` steps.
pub(crate) fn index_some(store: &PostgresStore, mut steps: usize) -> Option<WordProgress> {
    let mut next = |_| {
        steps = steps.saturating_sub(1);
        if steps == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    store.index_words(&mut next).expect("indexes")
}

pub(crate) fn index_all(store: &PostgresStore) {
    let at = index_some(store, usize::MAX).expect("has texts");
    assert_eq!(at.indexed, at.newest);
    assert_eq!(store.word_progress().expect("reads"), Some(at));
}

pub(crate) fn asked(text: &str) -> Arc<WordCondition> {
    let asked = SearchText::parse(text).expect("is short").expect("has words");
    Arc::new(WordCondition::new(asked, Arc::new(SENTENCES)))
}

pub(crate) fn note(number: u8, time: u64, text: &str) -> Write {
    let (id, author) = ([number; 32], Some([number % 5; 32]));
    let head = RecordHeader { id, time, author, kind: 1, expires: None };
    Write::Put(encode(&head, &[(b's', text.into())]))
}

pub(crate) fn ids(store: &dyn Store, query: &Query) -> Vec<Id> {
    let mut ids = Vec::new();
    let mut search = store.search(query).expect("searches");
    let progress = search.slice(u64::MAX, &mut |record| {
        ids.push(*record.id());
        ControlFlow::Continue(())
    });
    assert!(matches!(progress, Ok(SearchProgress::Done { .. })), "{progress:?}");
    ids
}
