//! Tests of the embedded archive when the power, the disk or the process fails, and when bytes of
//! its files change.

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

/// A directory. Dropping the value removes the directory.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // Files that remain in the temporary directory do no harm.
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

/// Runs a test with `usual` seeds, or with `many` in a long run, on two threads. HARK_SEEDS sets
/// another number of seeds, and HARK_SEED runs a single seed.
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

/// Whether this is a long run (`scripts/test --long`).
fn long() -> bool {
    std::env::var_os("HARK_LONG").is_some()
}
