//! A shelf on a faulty disk, and a model store that gives the expected answers.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hark_archive::store::memory::MemoryStore;
use hark_archive::{Query, Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore, check};
use hark_testkit::disk::FaultyDisk;
use hark_testkit::random::{Flavour, World};

/// All records of a store, newest first.
pub(crate) fn everything(store: &dyn Store) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut search = store.search(&Query::default()).expect("searches");
    search
        .slice(u64::MAX, &mut |record| {
            all.push(record.bytes().to_vec());
            ControlFlow::Continue(())
        })
        .expect("answers");
    all
}

/// Changes bytes of a file in place, as a failing disk does. Memory maps of the file show the
/// change.
pub(crate) fn overwrite(path: &Path, at: u64, change: impl Fn(&mut [u8]), len: usize) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("opens");
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).expect("is read");
    change(&mut bytes);
    file.write_all_at(&bytes, at).expect("is written");
}

/// The files with this extension, sorted by name.
pub(crate) fn files(fixture: &Fixture, folder: &str, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(fixture.dir().join(folder)).expect("is there");
    let paths = entries.map(|entry| entry.expect("is there").path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|is| is == ending)).collect();
    paths.sort();
    paths
}

/// A shelf, and a model with the expected content.
pub(crate) struct Fixture {
    pub disk: FaultyDisk,
    pub world: World,
    pub model: MemoryStore,
}

impl Fixture {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            disk: FaultyDisk::new(seed).expect("a directory for the disk"),
            world: World::new(seed, Flavour::Nostr),
            model: MemoryStore::new(NostrRules),
        }
    }

    /// A shelf with pending maintenance: three heads to seal, four segments to merge, and dead
    /// records in its logs.
    pub(crate) fn with_all_maintenance_due(seed: u64) -> Self {
        let mut fixture = Self::new(seed);
        let nothing_due =
            EmbeddedOptions { merge_fan_in: 1_000, rewrite_dead_share: 2.0, ..fixture.options() };
        let store = fixture.open(nothing_due.clone());
        while store.stats().segments < 4 {
            fixture.write(&store, 10);
        }
        drop(store);
        let store = fixture.open(EmbeddedOptions { background: true, ..nothing_due });
        store.pause_maintenance(true);
        while store.stats().heads_waiting < 3 {
            fixture.write(&store, 10);
        }
        drop(store);
        fixture
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.disk.root().join("nostr")
    }

    pub(crate) fn options(&self) -> EmbeddedOptions {
        EmbeddedOptions {
            seal_records: 30,
            merge_fan_in: 3,
            rewrite_dead_share: 0.02,
            background: false,
            disk: Arc::new(self.disk.clone()),
            ..EmbeddedOptions::default()
        }
    }

    pub(crate) fn open(&self, options: EmbeddedOptions) -> EmbeddedStore {
        EmbeddedStore::open(&self.dir(), Box::new(NostrRules), options).expect("opens")
    }

    pub(crate) fn write(&mut self, store: &EmbeddedStore, count: usize) {
        let batch: Vec<Write> = (0..count).map(|_| Write::Put(self.world.record())).collect();
        store.commit(&batch).expect("commits");
        self.model.commit(&batch).expect("commits");
    }

    pub(crate) fn same_as_model(&self, store: &EmbeddedStore, when: &str) {
        assert!(everything(store) == everything(&self.model), "{when}");
    }

    pub(crate) fn no_faults(&self, when: &str) {
        let report = check(&self.dir(), &self.options(), &mut |_| {}).expect("can be checked");
        assert_eq!(report.faults, Vec::new(), "{when}");
    }

    /// The files in the shelf's folders that MANIFEST does not name.
    pub(crate) fn unnamed(&self) -> Vec<String> {
        let named = named(&self.dir());
        let mut unnamed = Vec::new();
        for folder in ["", "log", "seg"] {
            for entry in std::fs::read_dir(self.dir().join(folder)).expect("is there") {
                let entry = entry.expect("is there");
                let name = Path::new(folder).join(entry.file_name()).display().to_string();
                if entry.path().is_file() && !named.contains(&name) {
                    unnamed.push(name);
                }
            }
        }
        unnamed
    }
}

/// The files that MANIFEST names, and MANIFEST.
fn named(shelf: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(shelf.join("MANIFEST")).expect("is there");
    let mut named = BTreeSet::from(["MANIFEST".to_owned()]);
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| fields[at].parse::<u32>().expect("a number");
        match fields[0] {
            "log" => {
                named.insert(format!("log/{:08}-{}.log", number(1), number(2)));
            }
            "segment" => {
                named.insert(format!("seg/{:08}.seg", number(1)));
                named.insert(format!("seg/{:08}-{}.addr", number(1), number(4)));
                if number(5) > 0 {
                    named.insert(format!("seg/{:08}-{}.dead", number(1), number(5)));
                }
            }
            _ => {}
        }
    }
    named
}
