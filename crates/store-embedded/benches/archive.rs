//! The archive in process, on a million events: ingest, size, restart, questions, explanations, and
//! readers beside a writer. Prints figures and their ratio to the reference: the layout that this
//! archive was designed after, measured on a machine of the same kind.
//!
//!     cargo bench -p hark-store-embedded --bench archive -- [EVENTS] [DIR] [QUESTION]
//!
//! With an existing DIR of an earlier run, the bench puts no events. With a QUESTION, it asks only
//! the questions with these words in their name, for three seconds each: for a profiler. The
//! QUESTION `ingest` only puts EVENTS without waiting for the disk. `scrub` only runs a pass of the
//! slow check.

use std::collections::HashMap;
use std::io;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hark_archive::effects::{KeepAll, Rules};
use hark_archive::{Id, LabelSet, Query, Record, SearchProgress, Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_embedded::disk::{Disk, DiskFile, RealDisk};
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
use hark_testkit::events::{Events, RARE_KIND};
use hark_testkit::random::Random;

/// The same allocator as in the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Number of parameter sets per shape.
const PARAMETERS: usize = 300;

fn open(dir: &Path) -> EmbeddedStore {
    EmbeddedStore::open(dir, Box::new(NostrRules), EmbeddedOptions::default())
        .expect("the shelf opens")
}

/// CPU time of this thread so far.
fn cpu_here() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let spent = stat.split(' ').next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(spent.unwrap_or(0))
}

/// CPU time of all threads so far.
fn cpu() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let spent = tasks.filter_map(|task| {
        let stat = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        stat.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(spent.sum())
}

/// Bytes passed to write calls so far.
fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").expect("Linux");
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

/// Prints the CPU time and the wall time of writing and syncing `bytes` bytes to a plain file.
fn sync_floor(dir: &Path, bytes: usize) {
    let mut file = std::fs::File::create(dir.join("sync-floor")).expect("creates");
    let block = vec![7; bytes];
    let rounds = 500u32;
    let (cpu_before, started) = (cpu(), Instant::now());
    for _ in 0..rounds {
        io::Write::write_all(&mut file, &block).expect("writes");
        file.sync_data().expect("syncs");
    }
    println!(
        "the disk alone: {:.0} us CPU, {:.0} us wall to write and sync {bytes} bytes",
        cpu().saturating_sub(cpu_before).as_secs_f64() * 1e6 / f64::from(rounds),
        started.elapsed().as_secs_f64() * 1e6 / f64::from(rounds)
    );
    std::fs::remove_file(dir.join("sync-floor")).expect("removes");
}

/// The machine's disk without waiting for syncs, so that only the archive's own share of the time
/// remains.
struct NoSync;

struct NoSyncFile(Box<dyn DiskFile>);

impl DiskFile for NoSyncFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn reserve(&mut self, len: u64, end: u64) -> io::Result<()> {
        self.0.reserve(len, end)
    }
}

impl Disk for NoSync {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(NoSyncFile(RealDisk.create(path)?)))
    }

    fn append(&self, path: &Path, sure: u64, len: u64) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(NoSyncFile(RealDisk.append(path, sure, len)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir(path)
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// The archive's own share of ingest, with and without Nostr's rules.
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
        // No other run uses this directory.
        let _ = std::fs::remove_dir_all(&dir);
    }
}

fn rss_anon_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|rest| rest.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// Puts `count` events in batches; generation is not timed.
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

/// Takes an answer as a socket would, by copying the wires. Returns the number of rows and of
/// visited rows.
fn ask(store: &EmbeddedStore, query: &Query, out: &mut Vec<u8>) -> (usize, u64) {
    out.clear();
    let mut rows = 0;
    let mut search = store.search(query).expect("searches");
    let progress = search.slice(u64::MAX, &mut |record| {
        out.extend_from_slice(record.wire());
        rows += 1;
        ControlFlow::Continue(())
    });
    assert!(matches!(progress, Ok(SearchProgress::Done { .. })));
    (rows, search.visited())
}

/// Data from which the questions are made.
struct Sample {
    random: Random,
    ids: Vec<Id>,
    /// Notes that have answers, each note once.
    notes: Vec<Id>,
    /// The notes with the most answers.
    hot: Vec<Id>,
    /// The notes that the newest records answer, once per answer.
    recent: Vec<Id>,
    authors: Vec<[u8; 32]>,
    newest: u64,
    /// All wires, concatenated, and the position of each wire: to measure the cost of copying an
    /// answer.
    wires: Vec<u8>,
    places: HashMap<Id, Range<usize>>,
}

impl Sample {
    fn author(&mut self, bound: usize) -> [u8; 32] {
        self.authors[Events::zipf(&mut self.random, bound)]
    }

    /// A thread with a length as in the reference, where the median thread is short and the mean is
    /// 90 answers.
    fn thread(&mut self) -> Id {
        let notes = if self.random.below(10) < 3 { &self.hot } else { &self.notes };
        notes[self.random.below(notes.len())]
    }

    /// A note that a client has on its screen.
    fn note(&mut self) -> Id {
        self.recent[self.random.below(self.recent.len())]
    }

    fn crowd(&mut self, count: usize) -> Vec<[u8; 32]> {
        (0..count).map(|_| self.author(20_000)).collect()
    }
}

fn hex(bytes: &[u8; 32]) -> Box<[u8]> {
    hark_codec::hex::encode_32(bytes).into()
}

fn label(name: u8, values: Vec<Box<[u8]>>) -> Vec<LabelSet> {
    vec![LabelSet { name, values }]
}

type Make = fn(&mut Sample) -> Query;

/// For each shape: the name, the reference's median in us, whether the question is a count, and a
/// function that makes a question.
const SHAPES: [(&str, f64, bool, Make); 17] = [
    ("1 id", 0.8, false, |s| Query { ids: Some(vec![*s.random.pick(&s.ids)]), ..Query::default() }),
    ("20 ids", 17.0, false, |s| {
        let ids = (0..20).map(|_| s.ids[s.random.below(s.ids.len())]).collect();
        Query { ids: Some(ids), ..Query::default() }
    }),
    ("author, 2 kinds, 20", 3.7, false, |s| Query {
        authors: Some(vec![s.author(5_000)]),
        kinds: Some(vec![1, 6]),
        limit: 20,
        ..Query::default()
    }),
    ("home of 200 authors, 100", 22.0, false, |s| Query {
        authors: Some(s.crowd(200)),
        kinds: Some(vec![1]),
        limit: 100,
        ..Query::default()
    }),
    ("thread by #e, 300", 5.5, false, |s| Query {
        labels: label(b'e', vec![hex(&s.thread())]),
        kinds: Some(vec![1]),
        limit: 300,
        ..Query::default()
    }),
    ("notifications #p, 4 kinds, 50", 12.0, false, |s| Query {
        labels: label(b'p', vec![hex(&s.author(5_000))]),
        kinds: Some(vec![1, 6, 7, 9735]),
        limit: 50,
        ..Query::default()
    }),
    ("hashtag, kind 1, 50", 5.6, false, |s| {
        let tag = Events::zipf(&mut s.random, 300);
        Query {
            labels: label(b't', vec![format!("tag{tag}").into_bytes().into()]),
            kinds: Some(vec![1]),
            limit: 50,
            ..Query::default()
        }
    }),
    ("kind 1, 500", 18.0, false, |_| Query {
        kinds: Some(vec![1]),
        limit: 500,
        ..Query::default()
    }),
    ("window of an hour, 500", 80.0, false, |s| {
        let to = s.newest - s.random.below(2_000_000) as u64;
        Query { from: to - 3_600, to, limit: 500, ..Query::default() }
    }),
    ("75 #e values, 500", 50.0, false, |s| Query {
        labels: label(b'e', (0..75).map(|_| hex(&s.note())).collect()),
        limit: 500,
        ..Query::default()
    }),
    ("a value that matches nothing", 1.3, false, |s| Query {
        labels: label(b'e', vec![hex(&s.random.bytes())]),
        ..Query::default()
    }),
    ("common #p, rare kind", 0.9, false, |s| Query {
        labels: label(b'p', vec![hex(&s.author(20))]),
        kinds: Some(vec![RARE_KIND + 1]),
        ..Query::default()
    }),
    ("200 authors, rare kind, 50", 14.0, false, |s| Query {
        authors: Some(s.crowd(200)),
        kinds: Some(vec![RARE_KIND]),
        limit: 50,
        ..Query::default()
    }),
    ("latest 100", 4.3, false, |_| Query { limit: 100, ..Query::default() }),
    ("deep page of an author, 500", 58.0, false, |s| {
        let to = s.newest - 1_000_000 - s.random.below(1_000_000) as u64;
        Query { authors: Some(vec![s.authors[0]]), to, limit: 500, ..Query::default() }
    }),
    ("count of a common #p", 3.1, true, |s| Query {
        labels: label(b'p', vec![hex(&s.author(20))]),
        ..Query::default()
    }),
    ("count of kind 1, 3 days", 1.5, true, |s| {
        let to = s.newest - s.random.below(2_000_000) as u64;
        Query { kinds: Some(vec![1]), from: to - 259_200, to, ..Query::default() }
    }),
];

/// Median time of copying the answers from known positions.
fn copies(store: &EmbeddedStore, queries: &[Query], sample: &Sample, out: &mut Vec<u8>) -> f64 {
    let mut answers = Vec::new();
    for query in queries {
        let mut answer = Vec::new();
        let mut search = store.search(query).expect("searches");
        let mut each = |record: &Record<'_>| {
            answer.extend(sample.places.get(record.id()).cloned());
            ControlFlow::Continue(())
        };
        search.slice(u64::MAX, &mut each).expect("answers");
        answers.push(answer);
    }
    let mut times = Vec::new();
    for _ in 0..5 {
        for answer in &answers {
            out.clear();
            let started = Instant::now();
            for place in answer {
                out.extend_from_slice(&sample.wires[place.clone()]);
            }
            times.push(started.elapsed().as_nanos() as f64 / 1e3);
        }
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn questions(store: &EmbeddedStore, sample: &mut Sample, only: Option<&str>) {
    println!(
        "\n{:<32}{:>8}{:>10}{:>10}{:>8}{:>12}{:>8}",
        "question, us", "rows", "median", "p99", "copy", "reference", "ratio"
    );
    let mut out = Vec::new();
    let mut logs = 0.0;
    for (name, reference, is_count, make) in SHAPES {
        if only.is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let mut queries: Vec<Query> = (0..PARAMETERS).map(|_| make(sample)).collect();
        // Filters from the codec are sorted.
        queries.iter_mut().for_each(Query::normalise);
        let mut times = Vec::new();
        let (mut rows, mut round) = (0, 0);
        let begun = Instant::now();
        let enough = Duration::from_millis(if only.is_some() { 3_000 } else { 300 });
        while round < 3 || begun.elapsed() < enough {
            round += 1;
            for query in &queries {
                let started = Instant::now();
                let found = if is_count {
                    store.count(query).expect("counts").unwrap_or(0) as usize
                } else {
                    ask(store, query, &mut out).0
                };
                if round > 1 {
                    times.push(started.elapsed().as_nanos() as f64 / 1e3);
                    rows += found;
                }
            }
        }
        times.sort_by(f64::total_cmp);
        let (median, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
        logs += (median / reference).ln();
        println!(
            "{name:<32}{:>8}{median:>10.1}{p99:>10.1}{:>8.1}{reference:>12.1}{:>8.2}",
            rows / times.len(),
            if is_count { 0.0 } else { copies(store, &queries, sample, &mut out) },
            median / reference
        );
    }
    println!("geometric mean of the ratios: {:.2}", (logs / SHAPES.len() as f64).exp());
}

fn explanations(store: &EmbeddedStore, sample: &mut Sample) {
    println!("\n{:<32}{:>10}{:>10}{:>8}  plan", "explained", "estimate", "visited", "ratio");
    let crowd = sample.crowd(500);
    let busy = vec![hex(&sample.authors[1])];
    let cases = [
        (
            "an author and a kind",
            Query {
                authors: Some(vec![sample.authors[40]]),
                kinds: Some(vec![1]),
                limit: 100,
                ..Query::default()
            },
        ),
        (
            "a tag with few hits, a common kind",
            Query {
                labels: label(b't', vec![b"tag900".as_slice().into()]),
                kinds: Some(vec![1]),
                limit: 500,
                ..Query::default()
            },
        ),
        (
            "a common tag, a rare kind",
            Query {
                labels: label(b'p', busy.clone()),
                kinds: Some(vec![RARE_KIND]),
                limit: 500,
                ..Query::default()
            },
        ),
        ("500 authors", Query { authors: Some(crowd), limit: 500, ..Query::default() }),
        (
            "a bare time window",
            Query {
                from: sample.newest - 7_200,
                to: sample.newest - 3_600,
                limit: 5_000,
                ..Query::default()
            },
        ),
        (
            "a common tag and an author",
            Query {
                labels: label(b'p', busy),
                authors: Some(vec![sample.authors[3]]),
                limit: 500,
                ..Query::default()
            },
        ),
        (
            "two common tags",
            Query {
                labels: vec![LabelSet::one(b't', b"tag0"), LabelSet::one(b't', b"tag1")],
                limit: 500,
                ..Query::default()
            },
        ),
        ("kind 1, 500", Query { kinds: Some(vec![1]), limit: 500, ..Query::default() }),
    ];
    let mut out = Vec::new();
    for (name, query) in cases {
        let explained = store.explain(&query).expect("explains");
        let (_, visited) = ask(store, &query, &mut out);
        println!(
            "{name:<36}{:>6}{visited:>10}{:>8.2}  {}",
            explained.estimate,
            explained.estimate as f64 / visited.max(1) as f64,
            explained.plan
        );
    }
}

fn readers_beside_a_writer(store: &Arc<EmbeddedStore>, events: &mut Events, sample: &mut Sample) {
    let queries: Vec<Query> = (0..20 * 14).map(|at| SHAPES[at % 14].3(sample)).collect();
    let mut writes = Vec::new();
    for _ in 0..20_000 {
        let mut record = Vec::new();
        events.record(&mut record);
        writes.push(Write::Put(record.into()));
    }
    let done = Arc::new(AtomicBool::new(false));
    let reader = std::thread::spawn({
        let (store, done) = (Arc::clone(store), Arc::clone(&done));
        move || {
            let mut out = Vec::new();
            let mut times = Vec::new();
            for query in queries.iter().cycle() {
                let started = Instant::now();
                ask(&store, query, &mut out);
                times.push(started.elapsed().as_nanos() as f64 / 1e3);
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
            times.sort_by(f64::total_cmp);
            times
        }
    });
    let started = Instant::now();
    let mut commits = Vec::new();
    for (at, batch) in writes.chunks(32).enumerate() {
        let due = Duration::from_secs_f64(at as f64 * 32.0 / 4_000.0);
        std::thread::sleep(due.saturating_sub(started.elapsed()));
        let begun = Instant::now();
        store.commit(batch).expect("commits");
        commits.push(begun.elapsed().as_nanos() as f64 / 1e3);
    }
    let took = started.elapsed().as_secs_f64();
    done.store(true, Ordering::Relaxed);
    let times = reader.join().expect("the reader ends");
    commits.sort_by(f64::total_cmp);
    println!(
        "\nreaders beside a writer of {:.0} events/s: {} reads, median {:.0} us, p99 {:.0} us, max {:.0} us; commit of 32 median {:.0} us, p99 {:.0} us",
        20_000.0 / took,
        times.len(),
        times[times.len() / 2],
        times[times.len() * 99 / 100],
        times[times.len() - 1],
        commits[commits.len() / 2],
        commits[commits.len() * 99 / 100]
    );
}

fn folder_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => folder_bytes(&entry.path()),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
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

/// Runs the slow check at full speed, and prints the resulting cost of a terabyte a week, the
/// default rate.
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
    store.settle().expect("settles");
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

fn sample(store: &EmbeddedStore, events: &Events) -> Sample {
    let (mut ids, mut recent, mut at) = (Vec::new(), Vec::new(), 0u32);
    let (mut wires, mut places) = (Vec::new(), HashMap::new());
    let mut answers: HashMap<Id, u32> = HashMap::new();
    let mut search = store.search(&Query::default()).expect("searches");
    let mut each = |record: &Record<'_>| {
        at += 1;
        if at.is_multiple_of(7) {
            ids.push(*record.id());
        }
        let start = wires.len();
        wires.extend_from_slice(record.wire());
        places.insert(*record.id(), start..wires.len());
        let named = record.labels().find(|(name, _)| *name == b'e');
        if let Some(note) = named.and_then(|(_, id)| hark_codec::hex::decode_32(id)) {
            *answers.entry(note).or_default() += 1;
            if at < 20_000 {
                recent.push(note);
            }
        }
        ControlFlow::Continue(())
    };
    search.slice(u64::MAX, &mut each).expect("answers");
    let mut notes: Vec<(u32, Id)> = answers.into_iter().map(|(id, count)| (count, id)).collect();
    notes.sort_unstable();
    let notes: Vec<Id> = notes.into_iter().map(|(_, id)| id).collect();
    Sample {
        hot: notes[notes.len().saturating_sub(1_000)..].to_vec(),
        recent,
        wires,
        places,
        random: Random::new(99),
        ids,
        notes,
        authors: events.authors().to_vec(),
        newest: store.stats().newest.unwrap_or(0),
    }
}
