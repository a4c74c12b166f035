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
use std::sync::atomic::{AtomicU64, Ordering};

use hark_archive::{Id, Query, Store};
use hark_testkit::runs::{is_long, seed};

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
    if let Some(seed) = seed() {
        return run(seed);
    }
    let seeds = if is_long() { many } else { usual };
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
