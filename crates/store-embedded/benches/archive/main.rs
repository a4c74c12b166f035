//! Measures the embedded archive in one process, on a million events: ingest, size, restart,
//! questions, explanations, and readers beside a writer. Prints each figure and its ratio to a
//! reference figure, which was measured with an earlier archive of a similar layout on a machine of
//! the same kind.
//!
//!     cargo bench -p hark-store-embedded --bench archive -- [EVENTS] [DIR] [QUESTION]
//!
//! If DIR has the archive of an earlier run, the bench stores no events. With a QUESTION, the bench
//! asks only the questions whose names contain QUESTION, so that a profiler sees only these
//! questions. Each question is repeated for three seconds. The QUESTION `ingest` stores EVENTS
//! events without waiting for the disk, and does nothing else. The QUESTION `scrub` runs one pass
//! of the slow check, and does nothing else.

mod measure;
mod questions;
mod sample;
mod shapes;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hark_archive::effects::{KeepAll, Rules};
use hark_archive::{Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
use hark_testkit::events::Events;

use crate::measure::{NoSync, cpu, cpu_here, folder_bytes, rss_anon_mb, sync_floor, written};
use crate::questions::{explanations, questions, readers_beside_a_writer};
use crate::sample::sample;

/// The allocator that the binary uses.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn open(dir: &Path) -> EmbeddedStore {
    EmbeddedStore::open(dir, Box::new(NostrRules), EmbeddedOptions::default())
        .expect("the shelf opens")
}

/// Measures the ingest time without syncs of the disk, with and without Nostr's rules.
fn without_sync(dir: &Path, count: usize) {
    let both: [(&str, Box<dyn Rules>); 2] =
        [("32, no sync", Box::new(NostrRules)), ("... nor rules", Box::new(KeepAll))];
    for (name, rules) in both {
        let dir = dir.with_extension("nosync");
        let options = EmbeddedOptions { disk: Arc::new(NoSync), ..EmbeddedOptions::default() };
        let store = EmbeddedStore::open(&dir, rules, options).expect("the shelf opens");
        let mut events = Events::new(8);
        ingest(&store, &mut events, "(bulk)", count, 20_000);
        ingest(&store, &mut events, name, count / 4, 32);
        drop(store);
        // If the removal fails, only files of this run remain.
        let _ = std::fs::remove_dir_all(&dir);
    }
}

/// Stores `count` events in batches. The generation of the events is not timed.
fn ingest(store: &EmbeddedStore, events: &mut Events, name: &str, count: usize, batch: usize) {
    let (mut spent, mut wall, mut bytes) = (Duration::ZERO, Duration::ZERO, 0);
    let mut here = Duration::ZERO;
    let mut left = count;
    while left > 0 {
        let chunk = left.min(20_000.max(batch));
        let mut writes = Vec::with_capacity(chunk);
        for _ in 0..chunk {
            let mut record = Vec::new();
            events.record(&mut record);
            writes.push(Write::Put(record.into()));
        }
        let (cpu_before, here_before) = (cpu(), cpu_here());
        let (started, written_before) = (Instant::now(), written());
        for batch in writes.chunks(batch) {
            store.commit(batch).expect("commits");
        }
        wall += started.elapsed();
        here += cpu_here().saturating_sub(here_before);
        spent += cpu().saturating_sub(cpu_before);
        bytes += written() - written_before;
        left -= chunk;
    }
    let each = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
    println!(
        "ingest {name:<10} {count:>7} events: {:>6.2} us CPU ({:.2} of the writer), {:>6.2} us wall an event, {:>5} bytes written an event",
        each(spent),
        each(here),
        each(wall),
        bytes / count as u64
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let count: usize = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let dir = arguments.next().map_or_else(
        || std::env::temp_dir().join(format!("hark-bench-{}", std::process::id())),
        PathBuf::from,
    );
    let only = arguments.next();
    if only.as_deref() == Some("ingest") {
        return without_sync(&dir, count);
    }
    let mut events = Events::new(7);
    if !dir.exists() {
        fill(&dir, &mut events, count);
    }
    let begun = Instant::now();
    let store = Arc::new(open(&dir));
    println!("restart {:.0} ms, RssAnon {} MB", begun.elapsed().as_secs_f64() * 1e3, rss_anon_mb());
    if only.as_deref() == Some("scrub") {
        return scrub(&store);
    }

    let mut sample = sample(&store, &events);
    questions(&store, &mut sample, only.as_deref());
    if only.is_some() {
        return;
    }
    explanations(&store, &mut sample);
    readers_beside_a_writer(&store, &mut events, &mut sample);
    scrub(&store);
    drop(store);
    // Remove only the directory of this run; a directory named by the caller stays.
    if std::env::args().nth(2).is_none_or(|second| second == "--bench") {
        let _ = std::fs::remove_dir_all(&dir);
    }
}

/// Runs the slow check at full speed, and prints its cost at the default rate of one terabyte a
/// week.
fn scrub(store: &EmbeddedStore) {
    let (cpu_before, begun) = (cpu_here(), Instant::now());
    let read = |store: &EmbeddedStore| store.stats().scrub.map_or(0, |scrub| scrub.read_bytes);
    let before = read(store);
    store.scrub().expect("scrubs");
    let bytes = (read(store) - before) as f64;
    let (cpu, wall) = (cpu_here().saturating_sub(cpu_before), begun.elapsed());
    let cpu_s_per_gb = cpu.as_secs_f64() / bytes * 1e9;
    let week_s = 7.0 * 86_400.0;
    println!(
        "slow check: {:.0} MB in {:.2} s, {:.0} MB/s, {cpu_s_per_gb:.2} s CPU a GB; \
         1 TB a week takes {:.2} % of a core and {:.2} MB/s",
        bytes / 1e6,
        wall.as_secs_f64(),
        bytes / 1e6 / wall.as_secs_f64(),
        cpu_s_per_gb * 1e3 / week_s * 100.0,
        1e6 / week_s
    );
}

fn fill(dir: &Path, events: &mut Events, count: usize) {
    let store = open(dir);
    let bulk = count * 9 / 10;
    ingest(&store, events, "bulk 20k", bulk, 20_000);
    ingest(&store, events, "batch 1", count / 500, 1);
    ingest(&store, events, "batch 32", count * 48 / 1000, 32);
    ingest(&store, events, "batch 1000", count * 30 / 1000, 1_000);
    sync_floor(dir, 1_250);
    sync_floor(dir, 40_000);
    without_sync(dir, count / 5);
    let begun = Instant::now();
    store.run_due_maintenance().expect("settles");
    println!(
        "maintenance settled after {:.1} s, RssAnon {} MB",
        begun.elapsed().as_secs_f64(),
        rss_anon_mb()
    );
    let stats = store.stats();
    println!("{stats:?}");
    println!(
        "disk {} MB for {} MB of JSON: {:.3}; {:.2} labels an event, {:.0} bytes of JSON",
        folder_bytes(dir) >> 20,
        events.json_bytes >> 20,
        folder_bytes(dir) as f64 / events.json_bytes as f64,
        events.labels as f64 / count as f64,
        events.json_bytes as f64 / count as f64
    );
}
