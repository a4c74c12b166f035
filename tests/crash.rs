//! What the embedded archive keeps if the power, the disk or the process fails, and how it treats
//! changed bytes.

mod backup;
mod beside;
mod damage;
mod follow;
mod kill;
mod salvage;
mod simulation;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use hark_archive::{Id, Query, Store};

/// A directory that is removed with its value.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left behind in the temporary directory harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// All records of a store, by their ids.
fn everything(store: &dyn Store) -> BTreeMap<Id, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut search = store.search(&Query::default()).expect("searches");
    search
        .slice(u64::MAX, &mut |record| {
            all.insert(*record.id(), record.bytes().to_vec());
            ControlFlow::Continue(())
        })
        .expect("answers");
    all
}

/// Runs a test with `usual` seeds, or with `many` in a long run, on two threads; with HARK_SEEDS as
/// many as that says, and with HARK_SEED that one alone.
fn each_seed(usual: u64, many: u64, run: impl Fn(u64) + Sync) {
    if let Ok(seed) = std::env::var("HARK_SEED") {
        return run(seed.parse().expect("HARK_SEED is a number"));
    }
    let seeds = if long() { many } else { usual };
    let seeds = std::env::var("HARK_SEEDS").map_or(seeds, |n| n.parse().expect("a number"));
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        break;
                    }
                    run(seed);
                }
            });
        }
    });
    println!("{seeds} seeds");
}

/// Whether `scripts/test --long` runs this.
fn long() -> bool {
    std::env::var_os("HARK_LONG").is_some()
}
