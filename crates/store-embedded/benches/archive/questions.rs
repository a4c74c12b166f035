//! Questions, explanations, and readers beside a writer.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hark_archive::{LabelSet, Query, Record, SearchProgress, Store, Write};
use hark_store_embedded::EmbeddedStore;
use hark_testkit::events::{Events, RARE_KIND};

use crate::sample::{Sample, hex, label};
use crate::shapes::SHAPES;

/// Number of questions of each type.
const PARAMETERS: usize = 300;

/// Asks a question, and copies the wire bytes of the answer as for a socket. Returns the number of
/// rows in the answer and the number of visited rows.
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

/// Returns the median time of copying an answer whose records have already been found.
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

pub(crate) fn questions(store: &EmbeddedStore, sample: &mut Sample, only: Option<&str>) {
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
        // The codec sorts the filters of clients, so the queries of the bench are sorted, too.
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

pub(crate) fn explanations(store: &EmbeddedStore, sample: &mut Sample) {
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

pub(crate) fn readers_beside_a_writer(
    store: &Arc<EmbeddedStore>,
    events: &mut Events,
    sample: &mut Sample,
) {
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
