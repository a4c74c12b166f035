//! Measures the web of trust (`[trust]`) in an archive of 1,000,000 events: the time to read the
//! follow lists of 50,000 authors at the start, the memory, and the time until a changed list is in
//! force.
//!
//!     cargo bench -p hark-server --bench trust
//!
//! The lists have 150 follows on average. Few keys have many followers, and most have few, as in
//! the lists of people.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hark_archive::clock::Clock;
use hark_archive::{LabelPosition, Record, RecordHeader, Store, Write};
use hark_codec::crypto::sha256;
use hark_codec::hex;
use hark_networks::Network as _;
use hark_networks::nostr::Nostr;
use hark_server::nostr::{RuleMode, Trust, TrustOptions, TrustRules, TrustSource};
use hark_testkit::folder::Folder;
use hark_testkit::random::Random;

const EVENTS: u64 = 1_000_000;
const AUTHORS: u64 = 50_000;
/// Number of keys that are followed.
const FOLLOWED: u64 = 250_000;
/// Average number of follows of an author.
const FOLLOWS: u64 = 150;
/// Number of follows of the root.
const FIRST_RING: u64 = 5_000;
/// Maximum number of events of a batch.
const BATCH: usize = 10_000;
const PATIENCE: Duration = Duration::from_mins(2);

fn key(number: u64) -> [u8; 32] {
    sha256(&number.to_le_bytes())
}

/// A number below `end`, small numbers more often.
fn popular(random: &mut Random, end: u64) -> u64 {
    let part = random.below(1 << 20) as f64 / f64::from(1 << 20);
    (part.powi(4) * end as f64) as u64
}

/// The record of an event with these keys in `p` tags.
fn record(id: u64, author: u64, kind: u32, followed: &[u64]) -> Vec<u8> {
    let mut wire = b"{\"tags\":[".to_vec();
    let mut labels = Vec::new();
    for number in followed {
        wire.extend_from_slice(b"[\"p\",\"");
        labels.push((b'p', LabelPosition::Wire { at: wire.len() as u32, len: 64 }));
        wire.extend_from_slice(&hex::encode_32(&key(*number)));
        wire.extend_from_slice(b"\"],");
    }
    wire.extend_from_slice(&[b' '; 200]);
    let id = sha256(&(!id).to_le_bytes());
    let time = 1_700_000_000 + u64::from(id[0]);
    let head = RecordHeader { id, time, author: Some(key(author)), kind, expires: None };
    let mut bytes = Vec::new();
    hark_codec::record::write(&mut bytes, &head, &wire, labels.into_iter());
    bytes
}

fn fill(store: &dyn Store) {
    let mut random = Random::new(1);
    let mut batch = Vec::new();
    for number in 0..EVENTS {
        let bytes = if number == 0 {
            let first: Vec<u64> = (1..=FIRST_RING).collect();
            record(0, 0, 3, &first)
        } else if number.is_multiple_of(EVENTS / AUTHORS) {
            let count = 1 + popular(&mut random, 5 * FOLLOWS - 5);
            let follows: Vec<u64> = (0..count).map(|_| popular(&mut random, FOLLOWED)).collect();
            record(number, number / (EVENTS / AUTHORS), 3, &follows)
        } else {
            record(number, random.below(AUTHORS as usize) as u64, 1, &[])
        };
        batch.push(Write::Put(bytes.into()));
        if batch.len() == BATCH || number + 1 == EVENTS {
            store.commit(&batch).expect("the events are stored");
            batch.clear();
        }
    }
}

/// Memory of this process that is no file, in MiB.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) >> 10
}

fn main() {
    let directory = Folder::new("bench-trust");
    let store = hark_testkit::embedded::store(&directory.join("events"), Nostr.rules());
    let began = Instant::now();
    fill(&*store);
    println!(
        "{EVENTS} events of {AUTHORS} authors stored in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    let rules = TrustRules { roots: vec![key(0)], depth: 3, ..TrustRules::default() };
    let before = memory();
    let began = Instant::now();
    let trust = Trust::new(TrustOptions { mode: RuleMode::Require, rules });
    let of_trust = Arc::clone(&store);
    let source = TrustSource {
        open: Box::new(move || Ok(Arc::clone(&of_trust))),
        clock: Clock::System,
        hidden: None,
        is_barred: Box::new(|_| false),
    };
    let running = trust.start(source).expect("a thread");
    trust.begin();
    assert!(trust.wait_until_read(PATIENCE), "the lists are not read");
    let took = began.elapsed();
    println!("read in {:.2} s: {:?}", took.as_secs_f64(), trust.stats());
    println!("memory of the process: {before} MiB before, {} MiB after", memory());
    let list = record(EVENTS, 0, 3, &[FOLLOWED + 1]);
    store
        .commit(&[Write::Erase(Box::new(list_of_root())), Write::Put(list.clone().into())])
        .expect("stored");
    let began = Instant::now();
    trust.note(&Record::new(&list).expect("a record"));
    while trust.stats().lists > 2 {
        std::thread::yield_now();
    }
    println!(
        "a new list of the root, which ends the trust in all others, is in force in {:.0} ms",
        began.elapsed().as_secs_f64() * 1e3
    );
    trust.close();
    // The thread does not panic.
    let _ = running.join();
}

fn list_of_root() -> hark_archive::Query {
    hark_archive::Query {
        authors: Some(vec![key(0)]),
        kinds: Some(vec![3]),
        ..hark_archive::Query::default()
    }
}
