//! Full-text search: the embedded store finds the same words as the model, while segments are
//! sealed, merged, rebuilt and indexed again. The words of deleted records leave the files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hark_archive::{Query, Store, TextSource, WordCondition, Write};
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore, check, rebuild};
use hark_testkit::contract::{
    Size, Subject, large_records_are_ranked, listed, rules, run_with_words,
};
use hark_testkit::folder::Folder;
use hark_testkit::random::{Flavour, Random, World};
use hark_testkit::runs::seed_or;
use hark_testkit::sentences::{SENTENCES, Sentences};
use hark_words::SearchText;

/// A shelf in its own directory, which is removed at the end.
struct WordShelf {
    dir: Folder,
    options: EmbeddedOptions,
    store: Option<EmbeddedStore>,
}

impl WordShelf {
    fn new(name: &str, background: bool, seal_records: u32) -> Self {
        let dir = Folder::on_disk(name);
        let options = EmbeddedOptions {
            seal_records,
            merge_fan_in: 4,
            segment_records_max: u64::from(seal_records) * 20,
            background,
            listed_labels: listed(Flavour::Nostr),
            texts: Some(Arc::new(SENTENCES)),
            ..EmbeddedOptions::default()
        };
        let mut shelf = Self { dir, options, store: None };
        shelf.open(shelf.options.clone());
        shelf
    }

    fn open(&mut self, options: EmbeddedOptions) {
        self.store = None;
        let opened = EmbeddedStore::open(&self.dir, rules(Flavour::Nostr), options);
        self.store = Some(opened.expect("the shelf opens"));
    }

    fn embedded(&self) -> &EmbeddedStore {
        self.store.as_ref().expect("open")
    }

    fn assert_sound(&self) {
        let report = check(&self.dir, &self.options, &mut |_| {});
        assert_eq!(report.expect("checks").faults, Vec::new());
    }
}

impl Subject for WordShelf {
    fn store(&self) -> &dyn Store {
        self.embedded()
    }

    fn disturb(&mut self, random: &mut Random) {
        match random.below(6) {
            0 => self.open(self.options.clone()),
            1 => {
                // Segments that index other words or no words are replaced, either at once or by
                // later maintenance.
                let others = Sentences { number: 2, kinds: &[1] };
                let texts = random.once_in(2).then(|| Arc::new(others) as Arc<dyn TextSource>);
                self.open(EmbeddedOptions { texts, ..self.options.clone() });
                self.embedded().run_due_maintenance().expect("settles");
                self.open(self.options.clone());
                if random.once_in(2) {
                    self.embedded().run_due_maintenance().expect("settles");
                }
            }
            2 => {
                self.embedded().compact(&mut |_| {}).expect("compacts");
            }
            3 => {
                self.store = None;
                rebuild(&self.dir, &self.options, &mut |_| {}).expect("rebuilds");
                self.open(self.options.clone());
            }
            _ => self.embedded().run_due_maintenance().expect("settles"),
        }
        self.assert_sound();
    }
}

fn finds_words(name: &str, background: bool, seal: u32, size: Size) {
    let seed = seed_or(20_261_123);
    let mut shelf = WordShelf::new(name, background, seal);
    let compared = run_with_words(&mut shelf, seed, size);
    println!("{name}, seed {seed}: {compared:?}, {:?}", shelf.embedded().stats());
    assert!(compared.queries >= size.queries && compared.answers > size.queries / 2);
}

#[test]
fn embedded_finds_words_like_the_model() {
    finds_words("words", false, 150, Size { records: 6_000, queries: 6_000, disturbances: 24 });
}

#[test]
fn embedded_finds_words_like_the_model_while_maintenance_runs_beside_it() {
    let size = Size { records: 2_500, queries: 2_500, disturbances: 6 };
    finds_words("words-background", true, 120, size);
}

#[test]
fn embedded_finds_words_like_the_model_from_the_head_alone() {
    let size = Size { records: 2_000, queries: 3_000, disturbances: 0 };
    finds_words("words-head", true, 1 << 20, size);
}

/// Returns the files below a directory that contain `word`.
fn files_with(dir: &Path, word: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("is there") {
        let path = entry.expect("is there").path();
        if path.is_dir() {
            found.extend(files_with(&path, word));
        } else if std::fs::read(&path)
            .expect("is read")
            .windows(word.len())
            .any(|w| w == word.as_bytes())
        {
            found.push(path);
        }
    }
    found
}

#[test]
fn words_of_what_was_deleted_are_gone_from_the_files_after_a_compaction() {
    let shelf = WordShelf::new("words-erased", false, 50);
    let (store, word) = (shelf.embedded(), "xylophonequartz");
    let mut world = World::new(7, Flavour::Nostr).with_words();
    let head = |id: u8| hark_archive::RecordHeader {
        id: [id; 32],
        time: 1_700_000_000,
        author: Some([id; 32]),
        kind: 1,
        expires: None,
    };
    let secret = hark_testkit::random::encode(&head(1), &[(b's', format!("a {word}").into())]);
    store.commit(&[Write::Put(secret)]).expect("commits");
    for _ in 0..200 {
        store.commit(&[Write::Put(world.record())]).expect("commits");
    }
    store.run_due_maintenance().expect("settles");
    let asked = SearchText::parse(&word[..9]).unwrap().unwrap();
    let beginning = SearchText::parse(&format!("{}*", &word[..9])).unwrap().unwrap();
    let query = |asked: &SearchText| Query {
        words: Some(Arc::new(WordCondition::new(asked.clone(), Arc::new(SENTENCES)))),
        ..Query::default()
    };
    assert_eq!(store.count(&query(&asked)).unwrap(), Some(0));
    assert_eq!(store.count(&query(&beginning)).unwrap(), Some(1));
    let in_files = files_with(&shelf.dir, word);
    assert!(in_files.iter().any(|path| path.extension().is_some_and(|is| is == "seg")));
    let by_id = Query { ids: Some(vec![[1; 32]]), ..Query::default() };
    store.commit(&[Write::Erase(Box::new(by_id))]).expect("commits");
    assert_eq!(store.count(&query(&beginning)).unwrap(), Some(0));
    store.compact(&mut |_| {}).expect("compacts");
    assert_eq!(files_with(&shelf.dir, word), Vec::<PathBuf>::new());
    shelf.assert_sound();
}

#[test]
fn large_records_come_best_first_and_each_once() {
    let shelf = WordShelf::new("words-large", false, 50);
    large_records_are_ranked(shelf.store());
}

#[test]
fn what_is_indexed_anew_or_rebuilt_log_by_log_is_merged_again() {
    let mut shelf = WordShelf::new("words-anew", false, 50);
    shelf.open(EmbeddedOptions { texts: None, ..shelf.options.clone() });
    let mut world = World::new(7, Flavour::Nostr).with_words();
    for _ in 0..2_000 {
        shelf.embedded().commit(&[Write::Put(world.record())]).expect("commits");
    }
    let segments = |shelf: &WordShelf| shelf.embedded().stats().segments;
    shelf.embedded().run_due_maintenance().expect("settles");
    let (before, records) = (segments(&shelf), shelf.embedded().stats().records);
    shelf.open(shelf.options.clone());
    shelf.embedded().run_due_maintenance().expect("settles");
    shelf.assert_sound();
    assert!(segments(&shelf) <= before, "{} segments, {before} before", segments(&shelf));
    shelf.store = None;
    // A rebuild makes one segment for each log, and has only one segment in memory at a time.
    let rebuilt = rebuild(&shelf.dir, &shelf.options, &mut |_| {}).expect("rebuilds");
    assert!(rebuilt.segments > 2 * before, "{rebuilt:?}, {before} segments before");
    shelf.assert_sound();
    shelf.open(shelf.options.clone());
    shelf.embedded().run_due_maintenance().expect("settles");
    shelf.assert_sound();
    assert!(segments(&shelf) <= before, "{} segments, {before} before", segments(&shelf));
    assert_eq!(shelf.embedded().stats().records, records);
}
