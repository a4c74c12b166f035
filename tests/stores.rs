//! Runs the contract on every store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hark_archive::Store;
use hark_archive::store::memory::MemoryStore;
use hark_networks::nostr::rules::NostrRules;
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
use hark_testkit::contract::{Compared, Size, Subject, listed, rules, run};
use hark_testkit::folder::Folder;
use hark_testkit::random::{Flavour, Random};
use hark_testkit::runs::seed_or;
use hark_testkit::tombstones::hold_for_thirty_days;

/// The embedded archive with small segments, so that a few thousand records are sealed and merged
/// many times.
struct Shelf {
    dir: Folder,
    flavour: Flavour,
    options: EmbeddedOptions,
    store: Option<EmbeddedStore>,
}

mod room;

impl Shelf {
    fn new(name: &str, flavour: Flavour, background: bool, seal_records: u32) -> Self {
        let options = EmbeddedOptions {
            seal_records,
            merge_fan_in: 4,
            segment_records_max: u64::from(seal_records) * 20,
            background,
            listed_labels: listed(flavour),
            ..EmbeddedOptions::default()
        };
        let mut shelf = Self { dir: Folder::on_disk(name), flavour, options, store: None };
        shelf.open();
        shelf
    }

    fn path(&self) -> PathBuf {
        self.dir.join("shelf")
    }

    fn open(&mut self) {
        self.store = None;
        let opened = EmbeddedStore::open(&self.path(), rules(self.flavour), self.options.clone());
        self.store = Some(opened.expect("the shelf opens"));
    }

    fn embedded(&self) -> &EmbeddedStore {
        self.store.as_ref().expect("open")
    }
}

impl Subject for Shelf {
    fn store(&self) -> &dyn Store {
        self.embedded()
    }

    fn disturb(&mut self, random: &mut Random) {
        match random.below(7) {
            0 => self.open(),
            1 => {
                // Segments that list other labels are rebuilt, some of them immediately.
                self.store = None;
                let options = EmbeddedOptions { listed_labels: b"e", ..self.options.clone() };
                let opened = EmbeddedStore::open(&self.path(), rules(self.flavour), options);
                opened.expect("opens").run_due_maintenance().expect("settles");
                self.open();
                if random.once_in(2) {
                    self.embedded().run_due_maintenance().expect("settles");
                }
            }
            2 => {
                self.embedded().compact(&mut |_| {}).expect("compacts");
                let stats = self.embedded().stats();
                let sealed = stats.records - stats.head_records;
                assert!(sealed <= stats.segments * self.options.segment_records_max, "{stats:?}");
            }
            3 => {
                self.store = None;
                let segments = files(&self.path(), "seg");
                if !segments.is_empty() {
                    std::fs::remove_file(random.pick(&segments)).expect("removes");
                }
                self.open();
            }
            4 => {
                self.store = None;
                hark_store_embedded::rebuild(&self.path(), &self.options, &mut |_| {})
                    .expect("rebuilds");
                self.open();
            }
            _ => self.embedded().run_due_maintenance().expect("settles"),
        }
        let report = hark_store_embedded::check(&self.path(), &self.options, &mut |_| {});
        assert_eq!(report.expect("checks").faults, Vec::new());
    }
}

fn files(shelf: &Path, folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(shelf.join(folder)).expect("is there");
    entries.map(|entry| entry.expect("is there").path()).collect()
}

fn contract(name: &str, flavour: Flavour, background: bool, seal: u32, size: Size) -> Compared {
    let seed = seed_or(20_261_121);
    let mut shelf = Shelf::new(name, flavour, background, seal);
    let compared = run(&mut shelf, flavour, seed, size);
    println!("{name}, seed {seed}: {compared:?}, {:?}", shelf.embedded().stats());
    assert!(compared.ranges >= 20, "sums of ids are there");
    compared
}

#[test]
fn who_deleted_or_vanished_stays_away_for_thirty_days_in_the_model() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(NostrRules));
    hold_for_thirty_days(|| Arc::clone(&store));
}

#[test]
fn who_deleted_or_vanished_stays_away_for_thirty_days_in_files() {
    let dir = Folder::on_disk("days");
    let options = EmbeddedOptions { seal_records: 3, background: false, ..Default::default() };
    hold_for_thirty_days(|| {
        let store = EmbeddedStore::open(&dir.join("shelf"), Box::new(NostrRules), options.clone());
        let store = store.expect("the shelf opens");
        store.compact(&mut |_| {}).expect("compacts");
        Arc::new(store)
    });
}

#[test]
fn embedded_answers_like_the_model_for_nostr() {
    let size = Size { records: 52_000, queries: 60_000, disturbances: 40 }.of_this_run();
    let compared = contract("contract-nostr", Flavour::Nostr, false, 500, size);
    assert!(compared.queries >= size.queries && compared.answers > compared.queries);
}

#[test]
fn embedded_answers_like_the_model_for_labels_and_nanoseconds() {
    let size = Size { records: 12_000, queries: 25_000, disturbances: 20 }.of_this_run();
    let compared = contract("contract-labels", Flavour::Labels, false, 300, size);
    assert!(compared.answers > compared.queries);
}

#[test]
fn embedded_answers_like_the_model_while_maintenance_runs_beside_it() {
    let size = Size { records: 20_000, queries: 20_000, disturbances: 10 }.of_this_run();
    let compared = contract("contract-background", Flavour::Nostr, true, 400, size);
    assert!(compared.answers > compared.queries);
}

#[test]
fn embedded_answers_like_the_model_from_the_head_alone() {
    let size = Size { records: 5_000, queries: 10_000, disturbances: 0 };
    contract("contract-head", Flavour::Nostr, true, 1 << 20, size);
}
