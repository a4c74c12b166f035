//! A segment file with any bytes. Opening, querying, checking, merging and compacting the file do
//! not panic. No query returns a record that was not stored or does not match.

use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use hark_archive::effects::KeepAll;
use hark_archive::{
    CommitError, Id, LabelPosition, LabelSet, Order, Position, Query, Record, RecordHeader,
    SearchError, SearchProgress, Store, TextSource, WordCondition, Write,
};
use hark_codec::record;
use hark_store_embedded::log::header;
use hark_store_embedded::segment::{SECTIONS, path};
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
use hark_words::{Part, SearchText};

/// Number of bytes of a segment file's trailer.
const TRAILER: usize = SECTIONS.len() * 20 + 8 + 8 + 4 + 4 + 8;
const RECORDS: u32 = 40;

/// Panics if a property does not hold.
///
/// The lowest bit of the first byte selects whether the trailer's checksum is corrected, so that
/// the file is opened in spite of the damage. The next bit selects whether the shelf is opened for
/// writing and compacted.
pub fn check(bytes: &[u8]) {
    let Some((mode, rest)) = bytes.split_first() else { return };
    let world = world();
    let mut file = rest.to_vec();
    if mode & 1 == 1 {
        seal(&mut file);
    }
    let shelf = super::scratch("segment");
    world.lay(&shelf);
    fs::write(path(&shelf, 1), &file).expect("a temporary file");
    if mode & 2 == 0 {
        if let Ok(store) = EmbeddedStore::open_read_only(&shelf, World::options(1000)) {
            world.ask(&store);
        }
    } else {
        let store =
            EmbeddedStore::open(&shelf, Box::new(KeepAll), World::options(20)).expect("rebuilt");
        world.ask(&store);
        // These records make more segments, with which the segment is merged.
        let more: Vec<Write> = (0..50).map(|n| Write::Put(make(1000 + n))).collect();
        for batch in more.chunks(10) {
            // If a segment has unreadable ids, a commit waits until the segment is rebuilt.
            let mut done = store.commit(batch);
            if let Err(CommitError::Unavailable(_)) = done {
                store.run_due_maintenance().expect("makes the segment anew");
                done = store.commit(batch);
            }
            done.expect("commits");
        }
        world.ask(&store);
        // The compaction may fail with an error that advises the operator. Then the shelf is
        // unchanged.
        let _ = store.compact(&mut |_| {});
        world.ask(&store);
    }
    let report = hark_store_embedded::check(&shelf, &World::options(1000), &mut |_| {});
    let report = report.expect("the manifest is sound");
    if mode.trailing_zeros() >= 2 && file.len() == world.segment.len() && file != world.segment {
        assert!(!report.faults.is_empty(), "harm that is not found");
    }
    fs::remove_dir_all(&shelf).expect("ours");
}

/// The files of a shelf with one segment, in memory, with the shelf's records and the queries to
/// run.
struct World {
    files: Vec<(PathBuf, Vec<u8>)>,
    segment: Vec<u8>,
    records: HashMap<Id, Box<[u8]>>,
    queries: Vec<Query>,
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(World::new)
}

fn seal(file: &mut [u8]) {
    let magic = hark_store_embedded::segment::MAGIC;
    let Some(body) = file.len().checked_sub(TRAILER) else { return };
    let sum = crc32c::crc32c(&file[body..][..TRAILER - 12]);
    file[body + TRAILER - 12..][..4].copy_from_slice(&sum.to_le_bytes());
    file[body + TRAILER - 8..].copy_from_slice(magic);
    if body >= 8 {
        file[..8].copy_from_slice(magic);
    }
}

/// Uses the whole wire form of a record as its searchable text.
struct Wires;

impl TextSource for Wires {
    fn texts(&self, record: &Record<'_>, each: &mut dyn FnMut(Part, &str)) {
        each(Part::Body, str::from_utf8(record.wire()).expect("is made as text"));
    }

    fn kinds(&self) -> &[u32] {
        &[0, 1, 2, 3]
    }

    fn fingerprint(&self) -> u64 {
        7
    }

    fn class_time(&self) -> u64 {
        1
    }
}

fn make(n: u32) -> Box<[u8]> {
    let mut id = [0; 32];
    id[..4].copy_from_slice(&n.wrapping_mul(0x9e37_79b9).to_be_bytes());
    id[31] = n as u8;
    let head = RecordHeader {
        id,
        time: 1_700_000_000 + u64::from(n / 3),
        author: Some([n as u8 % 3; 32]),
        kind: n % 4,
        expires: n.is_multiple_of(5).then_some(1_800_000_000 + u64::from(n)),
    };
    let wire = format!("{{{n}:nostr:{}}}", n % 6);
    let colon = wire.find(':').unwrap_or(0) as u32;
    let labels = [
        (b't', LabelPosition::Wire { at: colon + 1, len: 5 }),
        (b'x', LabelPosition::Wire { at: wire.len() as u32 - 2, len: 1 }),
    ];
    let mut out = Vec::new();
    record::write(&mut out, &head, wire.as_bytes(), labels.into_iter());
    out.into()
}

impl World {
    fn new() -> Self {
        let shelf = super::scratch("world");
        for folder in ["log", "seg"] {
            fs::create_dir_all(shelf.join(folder)).expect("a temporary folder");
        }
        // The secret and the salt are constant, so that the segment is always the same.
        let log = header(1, 0, 0x5a17_5a17);
        fs::write(shelf.join("log/00000001-0.log"), log).expect("a temporary file");
        let secret = "07".repeat(16);
        let text = format!("hark-shelf 1\nsecret {secret}\nnext-segment 1\nlog 1 0 0 0\n");
        let sum = crc32c::crc32c(text.as_bytes());
        let manifest = format!("{text}crc32c {sum:08x}\n");
        fs::write(shelf.join("MANIFEST"), manifest).expect("a temporary file");

        let mut world = Self {
            files: Vec::new(),
            segment: Vec::new(),
            records: (0..RECORDS).chain(1000..1050).map(make).map(|r| (id(&r), r)).collect(),
            queries: queries(),
        };
        let store = EmbeddedStore::open(&shelf, Box::new(KeepAll), World::options(RECORDS));
        let store = store.expect("a shelf");
        let writes: Vec<Write> = (0..RECORDS).map(|n| Write::Put(make(n))).collect();
        store.commit(&writes).expect("commits");
        // The next commit needs room, so the head is sealed.
        store.commit(&[Write::Put(make(1000))]).expect("commits");
        world.ask(&store);
        drop(store);
        world.segment = fs::read(path(&shelf, 1)).expect("a segment");
        for folder in ["", "log", "seg"] {
            for entry in fs::read_dir(shelf.join(folder)).expect("a folder") {
                let path = entry.expect("a file").path();
                if path.is_file() {
                    let name = path.strip_prefix(&shelf).expect("in the shelf").to_path_buf();
                    world.files.push((name, fs::read(&path).expect("a file")));
                }
            }
        }
        fs::remove_dir_all(&shelf).expect("ours");
        world
    }

    fn options(seal_records: u32) -> EmbeddedOptions {
        EmbeddedOptions {
            seal_records,
            background: false,
            merge_fan_in: 2,
            texts: Some(Arc::new(Wires)),
            ..EmbeddedOptions::default()
        }
    }

    /// Writes the files of the original shelf.
    fn lay(&self, shelf: &Path) {
        for folder in ["log", "seg"] {
            fs::create_dir_all(shelf.join(folder)).expect("a temporary folder");
        }
        for (name, bytes) in &self.files {
            fs::write(shelf.join(name), bytes).expect("a temporary file");
        }
    }

    fn ask(&self, store: &dyn Store) {
        for query in &self.queries {
            let mut normal = query.clone();
            normal.normalise();
            let mut search = store.search(query).expect("an answer");
            // The loop is bounded, because damage may lead in circles.
            for _ in 0..1000 {
                let progress = search.slice(64, &mut |record: &Record<'_>| {
                    let known = self.records.get(record.id()).expect("a record that was put");
                    assert_eq!(record.bytes(), &known[..]);
                    assert!(normal.matches(record), "{normal:?} does not ask for {record:?}");
                    ControlFlow::Continue(())
                });
                if !matches!(progress, Ok(SearchProgress::Paused)) {
                    break;
                }
            }
            told(store.count(query));
            told(store.explain(query));
        }
        for n in [0, 7, 39, 40, 1000] {
            told(store.knows(&id(&make(n))));
        }
        told(store.expired(u64::MAX, 1000));
        let _ = store.stats();
    }
}

fn id(record: &[u8]) -> Id {
    *Record::new(record).expect("a record").id()
}

fn queries() -> Vec<Query> {
    let label = |name, value: &[u8]| LabelSet::one(name, value);
    let middle = Position { time: 1_700_000_006, id: id(&make(19)) };
    let mut queries = vec![
        Query::default(),
        Query { ids: Some((0..50).map(|n| id(&make(n))).collect()), ..Query::default() },
        Query { authors: Some(vec![[1; 32]]), limit: 5, ..Query::default() },
        Query { authors: Some(vec![[1; 32], [2; 32]]), kinds: Some(vec![1]), ..Query::default() },
        Query { kinds: Some(vec![0, 2]), not_kinds: vec![2], ..Query::default() },
        Query { labels: vec![label(b't', b"nostr")], limit: 7, ..Query::default() },
        Query { labels: vec![label(b't', b"nostr"), label(b'x', b"3")], ..Query::default() },
        Query { labels: vec![label(b'x', b"9")], kinds: Some(vec![3]), ..Query::default() },
        Query { from: 1_700_000_003, to: 1_700_000_009, limit: 4, ..Query::default() },
        Query { now: 1_800_000_020, kinds: Some(vec![1]), ..Query::default() },
        Query { after: Some(middle), ..Query::default() },
    ];
    for (asked, ranked) in
        [("nostr", false), ("nostr 3", true), ("1*", false), ("nos*", true), ("17", true)]
    {
        let asked = SearchText::parse(asked).expect("is a search").expect("has words");
        let words = Some(Arc::new(WordCondition::new(asked, Arc::new(Wires))));
        queries.push(Query { words, ranked, limit: 9, ..Query::default() });
    }
    let oldest_first = queries.clone().into_iter();
    queries.extend(oldest_first.map(|query| Query { order: Order::OldestFirst, ..query }));
    queries
}

/// Asserts that a question was answered, or that its error reports damage.
fn told<T>(answer: Result<T, SearchError>) {
    if let Err(error) = answer {
        let is_told = matches!(error, SearchError::LeftOut(_) | SearchError::Failed(_));
        assert!(is_told, "{error}");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_flipped_byte_is_found() {
        for at in 0..super::world().segment.len() {
            let mut seed = [&[0][..], &super::world().segment].concat();
            seed[at + 1] ^= 0x11;
            println!("byte {at}");
            super::check(&seed);
        }
    }

    /// Run this test after a change of the format: `cargo test -- --ignored seed` in fuzz/
    #[test]
    #[ignore = "writes into the source"]
    fn write_segment_seed() {
        for mode in 0..4u8 {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/segment");
            let seed = [&[mode][..], &super::world().segment].concat();
            std::fs::write(format!("{folder}/sound-{mode}"), seed).expect("a seed");
        }
    }
}
