//! Simulates, from a seed, writes, maintenance and restarts on a disk that fails and loses data.
//! After every crash the store is writable and has exactly the acknowledged writes.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use hark_archive::effects::KeepAll;
use hark_archive::store::memory::MemoryStore;
use hark_archive::{CommitError, Order, Query, Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore, ShelfOpenError, check};
use hark_testkit::contract::{compare, compare_outcomes, rules};
use hark_testkit::disk::{FaultyDisk, Trouble};
use hark_testkit::random::{Flavour, Random, World};

/// Number of crashes and failures per seed.
const ROUNDS: usize = 4;
/// Maximum number of bytes of a head: enough for a few records, for some records, and for all
/// records.
const HEAD_BYTES: [u64; 3] = [8_000, 40_000, 64 << 20];

struct Simulation {
    seed: u64,
    random: Random,
    world: World,
    flavour: Flavour,
    /// The acknowledged writes.
    model: MemoryStore,
    /// The writes of a batch that was not acknowledged. Any prefix of these writes may be stored.
    doubtful: Vec<Write>,
    disk: FaultyDisk,
    options: EmbeddedOptions,
    /// A log of all steps, printed if the simulation fails.
    story: Vec<String>,
}

impl Drop for Simulation {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "HARK_SEED={} shows it again. What was done:\n  {}",
                self.seed,
                self.story.join("\n  ")
            );
        }
    }
}

/// Returns the bytes of all records in a store, newest first.
fn everything(store: &dyn Store) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let query = Query { order: Order::NewestFirst, ..Query::default() };
    let mut search = store.search(&query).expect("a store searches");
    search
        .slice(u64::MAX, &mut |record| {
            all.push(record.bytes().to_vec());
            ControlFlow::Continue(())
        })
        .expect("a store answers");
    all
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let flavour = if random.once_in(4) { Flavour::Labels } else { Flavour::Nostr };
        let model = match flavour {
            Flavour::Nostr => MemoryStore::new(NostrRules),
            Flavour::Labels => MemoryStore::new(KeepAll),
        };
        let disk = FaultyDisk::new(random.bits()).expect("a directory for the disk");
        let options = EmbeddedOptions {
            seal_records: 15 + random.below(45) as u32,
            log_bytes_max: *random.pick(&[3_000, 12_000, 1 << 20]),
            merge_fan_in: 2 + random.below(3),
            rewrite_dead_share: *random.pick(&[0.02, 0.3, 0.6]),
            segment_records_max: *random.pick(&[100, 1 << 20]),
            head_bytes_max: *random.pick(&HEAD_BYTES),
            background: false,
            // With a time of zero, every round of maintenance erases.
            erase_within: random.once_in(2).then_some(Duration::ZERO),
            ..EmbeddedOptions::default()
        };
        Self {
            seed,
            world: World::new(random.bits(), flavour),
            random,
            flavour,
            model,
            doubtful: Vec::new(),
            disk,
            options,
            story: Vec::new(),
        }
    }

    fn note(&mut self, what: impl Into<String>) {
        let at = self.disk.operations();
        self.story.push(format!("[{at}] {}", what.into()));
    }

    fn dir(&self) -> PathBuf {
        self.disk.root().join("data").join("nostr")
    }

    fn options(&self) -> EmbeddedOptions {
        EmbeddedOptions { disk: std::sync::Arc::new(self.disk.clone()), ..self.options.clone() }
    }

    fn open(&self) -> Result<EmbeddedStore, ShelfOpenError> {
        EmbeddedStore::open(&self.dir(), rules(self.flavour), self.options())
    }

    fn run(&mut self) {
        for _ in 0..ROUNDS {
            // If the new bound is lower than the old bound, logs are divided when the store opens.
            self.options.head_bytes_max = *self.random.pick(&HEAD_BYTES);
            self.arm();
            let store = match self.open() {
                Ok(store) => Some(store),
                Err(error) => {
                    assert!(self.disk.struck(), "a sound shelf does not open: {error}");
                    self.note(format!("opening failed: {error}"));
                    None
                }
            };
            if let Some(store) = store {
                self.use_it(store);
            }
            self.fall();
            let store = self.open().unwrap_or_else(|error| panic!("after a crash: {error}"));
            self.same_as_model(&store, "after the crash");
            self.doubtful.clear();
            self.no_faults();
            self.questions(&store, 6);
            for _ in 0..=self.random.below(3) {
                let batch = self.batch();
                assert!(self.commit(&store, batch), "writing does not go on");
            }
            drop(store);
        }
        let store = self.open().expect("opens at the end");
        self.same_as_model(&store, "at the end");
        store.compact(&mut |_| {}).expect("compacts");
        self.same_as_model(&store, "compacted");
        let stats = store.stats();
        assert_eq!(stats.records, everything(&self.model).len() as u64);
        self.questions(&store, 10);
        drop(store);
        self.no_faults();
    }

    fn arm(&mut self) {
        let trouble =
            *self.random.pick(&[Trouble::Once, Trouble::Full, Trouble::NoFiles, Trouble::Power]);
        // Sealing, merging and rewriting take dozens of operations of the disk. A commit takes two
        // operations.
        let far = *self.random.pick(&[20, 100, 300]);
        let after = self.random.below(far) as u64;
        self.note(format!("{trouble:?} in {after} operations"));
        self.disk.arm(trouble, after);
    }

    /// Writes until an injected failure of the disk has had an effect, and for a while after.
    fn use_it(&mut self, store: EmbeddedStore) {
        let mut store = store;
        self.same_as_model(&store, "opened");
        let mut after_trouble = 0;
        for _ in 0..60 {
            after_trouble += usize::from(self.disk.struck());
            if after_trouble > 4 {
                return;
            }
            match self.random.below(16) {
                0 => {
                    let settled = store.run_due_maintenance().map_err(|error| error.to_string());
                    self.note(format!("settled: {settled:?}"));
                    self.same_as_model(&store, "settled");
                }
                1 => {
                    let compacted = store.compact(&mut |_| {}).map_err(|error| error.to_string());
                    self.note(format!("compacted: {compacted:?}"));
                    assert!(compacted.is_ok() || self.disk.struck(), "{compacted:?}");
                    self.same_as_model(&store, "compacted");
                }
                2 => {
                    drop(store);
                    self.note("opened again");
                    match self.open() {
                        Ok(again) => store = again,
                        Err(error) => {
                            assert!(self.disk.struck(), "a sound shelf does not open: {error}");
                            self.note(format!("opening failed: {error}"));
                            return;
                        }
                    }
                    self.same_as_model(&store, "opened again");
                }
                _ => {
                    let batch = self.batch();
                    if !self.commit(&store, batch) {
                        return self.stopped(&store);
                    }
                }
            }
        }
    }

    fn batch(&mut self) -> Vec<Write> {
        let count = if self.random.once_in(8) { 60 } else { 1 + self.random.below(14) };
        let write = |world: &mut World| {
            if world.random.once_in(25) {
                let mut query = world.query();
                query.limit = query.limit.min(1 + world.random.below(9));
                return Write::Erase(Box::new(query));
            }
            Write::Put(world.record())
        };
        (0..count).map(|_| write(&mut self.world)).collect()
    }

    /// Commits a batch. Returns false if the store has stopped.
    fn commit(&mut self, store: &EmbeddedStore, batch: Vec<Write>) -> bool {
        match store.commit(&batch) {
            Ok(committed) => {
                let ours = self.model.commit(&batch).expect("the model commits");
                let made = self.world.made();
                compare_outcomes(&committed.outcomes, &ours.outcomes, self.seed, made);
                self.note(format!("{} writes", batch.len()));
                true
            }
            Err(error) => {
                self.note(format!("{} writes failed: {error}", batch.len()));
                assert!(self.disk.struck(), "a commit failed on a sound disk: {error}");
                self.doubtful = batch;
                if !matches!(error, CommitError::Unavailable(_)) {
                    return false;
                }
                // The disk was full. Once it has space again, the same store continues.
                self.disk.end_faults();
                self.same_as_model(store, "put off");
                self.doubtful.clear();
                true
            }
        }
    }

    /// Asserts that all commits after a failed commit fail, and that readers see only durable
    /// records.
    fn stopped(&mut self, store: &EmbeddedStore) {
        self.same_as_model(store, "stopped");
        self.disk.end_faults();
        for _ in 0..2 {
            let maintenance = store.run_due_maintenance().map_err(|error| error.to_string());
            self.note(format!("settled after the stop: {maintenance:?}"));
            let batch = self.batch();
            let refused = store.commit(&batch);
            assert!(matches!(refused, Err(CommitError::Stopped(_))), "{refused:?}");
            self.same_as_model(store, "stopped for good");
        }
        self.questions(store, 3);
    }

    /// Simulates the end of the process or a loss of power.
    fn fall(&mut self) {
        self.disk.end_faults();
        if self.random.once_in(3) {
            self.note("killed");
        } else {
            self.disk = self.disk.crash(&mut self.random).expect("room for another disk");
            self.note("the power was cut");
        }
        if self.random.once_in(3) {
            // Opening may be interrupted or fail, too.
            let trouble = *self.random.pick(&[Trouble::Once, Trouble::Power]);
            let after = self.random.below(12) as u64;
            self.disk.arm(trouble, after);
            let opened = self.open().map(drop).map_err(|error| error.to_string());
            self.note(format!("opened, with {trouble:?} in {after} operations: {opened:?}"));
            assert!(opened.is_ok() || self.disk.struck(), "{opened:?}");
            self.disk.end_faults();
            if self.random.once_in(2) {
                self.disk = self.disk.crash(&mut self.random).expect("room for another disk");
                self.note("the power was cut again");
            }
        }
    }

    /// Asserts that the store has the acknowledged writes, and a prefix of the doubtful batch.
    fn same_as_model(&mut self, store: &EmbeddedStore, when: &str) {
        let theirs = everything(store);
        let mut ours = everything(&self.model);
        let doubtful = self.doubtful.len();
        while theirs != ours {
            if self.doubtful.is_empty() {
                let lost = ours.iter().filter(|record| !theirs.contains(record)).count();
                let strange = theirs.iter().filter(|record| !ours.contains(record)).count();
                panic!(
                    "{when}: {lost} records lost, {strange} that should not be there, of {}; the \
                     last batch had {doubtful} doubtful writes",
                    ours.len()
                );
            }
            let next = self.doubtful.remove(0);
            self.model.commit(&[next]).expect("the model commits");
            ours = everything(&self.model);
        }
        assert_eq!(store.stats().damaged, 0, "{when}");
    }

    fn questions(&mut self, store: &EmbeddedStore, count: usize) {
        for _ in 0..count {
            let query = self.world.query();
            let context = format!("seed {}: {query:?}", self.seed);
            compare(store, &self.model, &query, &mut self.random, &context);
        }
    }

    fn no_faults(&mut self) {
        let report = check(&self.dir(), &self.options(), &mut |_| {}).expect("can be checked");
        assert_eq!((report.faults, report.torn_bytes), (Vec::new(), 0));
    }
}

#[test]
fn what_was_acknowledged_survives_any_crash_and_nothing_else_appears() {
    super::each_seed(300, 10_000, |seed| Simulation::new(seed).run());
}

#[test]
fn a_new_archive_is_there_after_a_power_cut_however_deep_its_directory_lies() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let disk = FaultyDisk::new(seed).expect("a directory for the disk");
        let deep = |disk: &FaultyDisk| disk.root().join("srv/a/b/c/d/nostr");
        let options = |disk: &FaultyDisk| EmbeddedOptions {
            background: false,
            disk: std::sync::Arc::new(disk.clone()),
            ..EmbeddedOptions::default()
        };
        let open = |disk: &FaultyDisk| {
            EmbeddedStore::open(&deep(disk), rules(Flavour::Labels), options(disk))
        };
        // A first attempt may have stopped at any step.
        disk.arm(Trouble::Once, random.below(24) as u64);
        let _ = open(&disk).map(drop);
        disk.end_faults();
        let store = open(&disk).expect("opens");
        let record = World::new(seed, Flavour::Labels).record();
        store.commit(&[Write::Put(record)]).expect("commits");
        drop(store);
        let disk = disk.crash(&mut random).expect("room for another disk");
        let store = open(&disk).expect("opens after the crash");
        assert_eq!(everything(&store).len(), 1, "seed {seed}");
    }
}
