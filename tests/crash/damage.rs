//! Files that were cut, changed or removed by something other than Hark.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use hark_archive::effects::KeepAll;
use hark_archive::store::memory::MemoryStore;
use hark_archive::{Id, Query, Record, SearchError, Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore, check, rebuild};
use hark_testkit::contract::{compare, rules};
use hark_testkit::folder::{self, Folder};
use hark_testkit::random::{Flavour, Random, World};
use hark_testkit::runs::is_long;

use super::everything;

/// A shelf with its history. Dropping the value removes its directory.
struct Fixture {
    root: Folder,
    options: EmbeddedOptions,
    world: World,
    flavour: Flavour,
    /// The number of writes in a batch.
    writes: usize,
    model: MemoryStore,
    /// Every record that was ever put.
    put: HashMap<Id, Vec<Vec<u8>>>,
    /// The length of the last log and the shelf's records, after each batch of the last log.
    steps: Vec<(u64, BTreeMap<Id, Vec<u8>>)>,
}

fn files(shelf: &Path) -> Vec<PathBuf> {
    let mut files = vec![shelf.join("MANIFEST")];
    for folder in ["log", "seg"] {
        let entries = fs::read_dir(shelf.join(folder)).expect("is there");
        files.extend(entries.map(|entry| entry.expect("is there").path()));
    }
    files.sort();
    files
}

impl Fixture {
    fn new(seed: u64, batches: usize, seal_records: u32) -> Self {
        Self::with(seed, batches, seal_records, Flavour::Nostr, 5)
    }

    fn with(seed: u64, batches: usize, seal_records: u32, flavour: Flavour, writes: usize) -> Self {
        let root = Folder::to_be_made("damage");
        let options = EmbeddedOptions {
            seal_records,
            merge_fan_in: 6,
            rewrite_dead_share: 0.5,
            background: false,
            ..EmbeddedOptions::default()
        };
        let mut fixture = Self {
            root,
            options,
            world: World::new(seed, flavour),
            flavour,
            writes,
            model: match flavour {
                Flavour::Nostr => MemoryStore::new(NostrRules),
                Flavour::Labels => MemoryStore::new(KeepAll),
            },
            put: HashMap::new(),
            steps: Vec::new(),
        };
        let store = fixture.open(&fixture.shelf()).expect("opens");
        fixture.step(&store);
        for _ in 0..batches {
            fixture.write(&store);
            fixture.step(&store);
        }
        drop(store);
        assert_eq!(fixture.faults(&fixture.shelf()), "");
        fixture
    }

    fn write(&mut self, store: &EmbeddedStore) {
        let mut batch: Vec<Write> =
            (0..self.writes).map(|_| Write::Put(self.world.record())).collect();
        if self.writes > 1 && self.world.random.once_in(2) {
            // The erase is the first write, so it matches no record of its own batch.
            let query = Query { limit: 2, ..self.world.query() };
            batch.insert(0, Write::Erase(Box::new(query)));
        }
        for write in &batch {
            let Write::Put(bytes) = write else { continue };
            let id = *Record::new(bytes).expect("a record").id();
            // A second record with the same id is stored if the first was refused or deleted.
            self.put.entry(id).or_default().push(bytes.to_vec());
        }
        store.commit(&batch).expect("commits");
        self.model.commit(&batch).expect("commits");
    }

    fn step(&mut self, store: &EmbeddedStore) {
        let mut files = files(&self.shelf()).into_iter();
        let last = files.rfind(|path| path.extension().is_some_and(|ending| ending == "log"));
        let len = fs::metadata(last.expect("a log")).expect("is there").len();
        self.steps.push((len, everything(store)));
    }

    fn shelf(&self) -> PathBuf {
        self.root.join("nostr")
    }

    fn open(&self, shelf: &Path) -> Result<EmbeddedStore, hark_store_embedded::ShelfOpenError> {
        EmbeddedStore::open(shelf, rules(self.flavour), self.options.clone())
    }

    /// A copy of the shelf.
    fn copy(&self) -> PathBuf {
        let copy = self.root.join("copy");
        let _ = fs::remove_dir_all(&copy);
        folder::copy(&self.shelf(), &copy);
        copy
    }

    /// Returns the faults that `check` reports as text; empty if there are none.
    fn faults(&self, shelf: &Path) -> String {
        match check(shelf, &self.options, &mut |_| {}) {
            Err(error) => error.to_string(),
            Ok(report) if report.torn_bytes > 0 => format!("{} torn bytes", report.torn_bytes),
            Ok(report) => {
                let faults: Vec<String> = report.faults.iter().map(ToString::to_string).collect();
                faults.join("\n")
            }
        }
    }

    /// Asserts that every found record was put with exactly these bytes and matches its query.
    fn nothing_strange(&mut self, store: &EmbeddedStore, queries: usize) {
        for at in 0..queries {
            let query = if at == 0 { Query::default() } else { self.world.query() };
            let mut search = store.search(&query).expect("searches");
            let mut normal = query.clone();
            normal.normalise();
            let answered = search.slice(u64::MAX, &mut |record| {
                let known = self.put.get(record.id()).is_some_and(|versions| {
                    versions.iter().any(|version| **version == *record.bytes())
                });
                assert!(known, "this was never put: {record:?}");
                assert!(normal.matches(record), "{query:?} is answered with {record:?}");
                ControlFlow::Continue(())
            });
            told(answered);
            told(store.count(&query));
        }
    }

    fn same_answers(&mut self, store: &EmbeddedStore, queries: usize, context: &str) {
        let mut random = Random::new(1);
        for _ in 0..queries {
            let query = self.world.query();
            compare(store, &self.model, &query, &mut random, &format!("{context}: {query:?}"));
        }
    }
}

/// Asserts that a query was answered, or failed with a report of damage.
fn told<T>(answer: Result<T, SearchError>) {
    if let Err(error) = answer {
        let is_told = matches!(error, SearchError::LeftOut(_) | SearchError::Failed(_));
        assert!(is_told, "{error}");
    }
}

#[test]
fn a_log_cut_at_any_byte_opens_with_its_whole_batches_and_goes_on() {
    // A batch that deletes its own puts is synced in two parts; these fixtures have no such batch.
    cut_at_every_byte(Fixture::with(11, 14, 10_000, Flavour::Nostr, 1));
    cut_at_every_byte(Fixture::with(12, 7, 10_000, Flavour::Labels, 4));
}

fn cut_at_every_byte(mut fixture: Fixture) {
    let log = PathBuf::from("log").join("00000001-0.log");
    let whole = fs::read(fixture.shelf().join(&log)).expect("is there");
    let steps = std::mem::take(&mut fixture.steps);
    // An ordinary run cuts at every few bytes and around the end of each batch.
    let is_near_end = |cut: usize| steps.iter().any(|(len, _)| len.abs_diff(cut as u64) <= 2);
    let step = if is_long() { 1 } else { 5 };
    for cut in (0..whole.len()).filter(|cut| cut % step == 0 || is_near_end(*cut)) {
        let copy = fixture.copy();
        fs::write(copy.join(&log), &whole[..cut]).expect("is cut");
        let opened = fixture.open(&copy);
        let Some((_, expected)) = steps.iter().rev().find(|(len, _)| *len <= cut as u64) else {
            let error = opened.err().expect("a log without a header is no log");
            assert!(error.to_string().contains("header"), "{error}");
            continue;
        };
        let store = opened.unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        assert!(everything(&store) == *expected, "cut at {cut}");
        assert_eq!(fixture.faults(&copy), "", "cut at {cut}");
        let bytes = fixture.world.record();
        let outcome = store.commit(&[Write::Put(bytes)]).expect("writing goes on");
        let (now, outcome) = (everything(&store), outcome.outcomes);
        drop(store);
        let again = fixture.open(&copy).expect("opens again");
        assert!(everything(&again) == now, "cut at {cut}, then {outcome:?}");
    }
}

#[test]
fn every_flipped_byte_is_found_and_none_shows_a_record_that_was_not_put() {
    // Some random histories do not produce files of all kinds, so the test looks for a history with
    // all kinds of files.
    let has = |fixture: &Fixture, ending: &str| {
        files(&fixture.shelf()).iter().any(|path| path.extension().is_some_and(|is| is == ending))
    };
    let mut fixture = (5..50)
        .map(|seed| Fixture::new(seed, 26, 12))
        .find(|fixture| ["log", "seg", "addr", "dead"].iter().all(|ending| has(fixture, ending)))
        .expect("a shelf with files of all sorts");
    let mut random = Random::new(77);
    // An ordinary run changes only every n-th byte, the same bytes in every run.
    let (checked_step, opened_step) = if is_long() { (1, 4) } else { (29, 97) };
    let (mut checked, mut opened, mut refused) = (0, 0, 0);
    for path in files(&fixture.shelf()) {
        let name = path.strip_prefix(fixture.shelf()).expect("within").to_path_buf();
        let good = fs::read(&path).expect("is there");
        let copy = fixture.copy();
        let ends = |from: usize| good.len().saturating_sub(from);
        for at in 0..good.len() {
            // Every byte of headers and trailers is changed.
            let edge = at < 32 || at >= ends(if name.ends_with("seg") { 212 } else { 40 });
            if !edge && at % checked_step != 0 {
                continue;
            }
            let mut bad = good.clone();
            bad[at] ^= 1 << random.below(8);
            fs::write(copy.join(&name), &bad).expect("is written");
            assert_ne!(fixture.faults(&copy), "", "{} byte {at} is not found", name.display());
            checked += 1;
        }
        for at in (random.below(opened_step)..good.len()).step_by(opened_step) {
            let mut bad = good.clone();
            for _ in 0..=random.below(3) {
                bad[at] ^= 1 << random.below(8);
            }
            if bad == good {
                continue;
            }
            let copy = fixture.copy();
            fs::write(copy.join(&name), &bad).expect("is written");
            if let Ok(reader) = EmbeddedStore::open_read_only(&copy, fixture.options.clone()) {
                fixture.nothing_strange(&reader, 2);
            }
            opened += 1;
            match fixture.open(&copy) {
                Err(error) => {
                    refused += 1;
                    assert!(error.to_string().len() > 20, "{error}");
                    let ending = name.extension().and_then(|ending| ending.to_str());
                    assert!(matches!(ending, None | Some("log")), "{}: {error}", name.display());
                }
                Ok(store) => {
                    fixture.nothing_strange(&store, 5);
                    // Results are not asserted: these operations may fail, but must not reveal
                    // strange records or lose more.
                    let _ = store.compact(&mut |_| {});
                    fixture.nothing_strange(&store, 2);
                    drop(store);
                    if name.starts_with("seg") {
                        rebuild(&copy, &fixture.options, &mut |_| {}).expect("is rebuilt");
                        let store = fixture.open(&copy).expect("opens");
                        assert!(
                            everything(&store) == everything(&fixture.model),
                            "{} byte {at}: not mended by a rebuild",
                            name.display()
                        );
                        drop(store);
                        assert_eq!(fixture.faults(&copy), "");
                    }
                }
            }
        }
    }
    println!("{checked} flips checked, {opened} opened, {refused} of them refused");
}

#[test]
fn every_file_of_a_segment_that_is_missing_is_made_again_with_equal_answers() {
    let mut fixture = Fixture::new(3, 60, 25);
    let mut missing = 0;
    for path in files(&fixture.shelf()) {
        let name = path.strip_prefix(fixture.shelf()).expect("within").to_path_buf();
        if !name.starts_with("seg") {
            continue;
        }
        missing += 1;
        let copy = fixture.copy();
        fs::remove_file(copy.join(&name)).expect("was there");
        assert!(fixture.faults(&copy).contains("rebuild"), "{}", name.display());
        let store = fixture.open(&copy).expect("opens");
        assert_eq!(store.notes().len(), 1, "{:?}", store.notes());
        assert!(everything(&store) == everything(&fixture.model), "{}", name.display());
        fixture.same_answers(&store, 60, &format!("without {}", name.display()));
        drop(store);
        assert_eq!(fixture.faults(&copy), "", "{}", name.display());
        let store = fixture.open(&copy).expect("opens");
        assert_eq!(store.notes().len(), 0, "it is made again once");
    }
    assert!(missing > 6, "{missing}");
}

#[test]
fn without_a_manifest_a_rebuild_takes_whole_logs_and_no_unfinished_ones() {
    let fixture = Fixture::new(8, 60, 25);
    let copy = fixture.copy();
    // An unfinished rewrite in the form of an earlier version of Hark.
    let rewritten = copy.join("log").join("00000001-9.log");
    let first = files(&copy).into_iter().find(|path| path.to_string_lossy().contains("00000001-"));
    let bytes = fs::read(first.expect("a first log")).expect("is there");
    fs::write(rewritten, &bytes[..bytes.len() - 3]).expect("is written");
    fs::remove_file(copy.join("MANIFEST")).expect("was there");
    let refused = fixture.open(&copy).err().expect("it does not guess");
    assert!(refused.to_string().contains("hark rebuild"), "{refused}");
    rebuild(&copy, &fixture.options, &mut |_| {}).expect("is rebuilt");
    let store = fixture.open(&copy).expect("opens");
    assert!(everything(&store) == everything(&fixture.model));
}
