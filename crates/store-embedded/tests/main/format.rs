//! Archives of earlier formats are opened and converted to the current format. Segments of format 1
//! list no labels; the last version of Hark that wrote format 1 made the files in `format-1/`.
//! Segments of formats 1 and 2 have no ids. Without its last four sections, a segment of format 4
//! is a segment of format 2. Without its last two sections, it is a segment of format 3 that has no
//! words.

use std::fs;
use std::path::{Path, PathBuf};

use hark_archive::effects::KeepAll;
use hark_archive::store::memory::MemoryStore;
use hark_archive::{LabelSet, Position, Query, RecordHeader, Store, Write};
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore, check, rebuild};
use hark_testkit::contract::compare_values;
use hark_testkit::folder::{Folder, copy};
use hark_testkit::random::encode;

/// Applies the records and deletes of the files to the model.
fn model() -> MemoryStore {
    let model = MemoryStore::new(KeepAll);
    for first in (0..110).step_by(10) {
        let batch: Vec<Write> = (first..first + 10).map(record).collect();
        model.commit(&batch).expect("commits");
        let labels = vec![LabelSet::one(b't', b"topic 5")];
        let query = Query { labels, to: 1_000 + u64::from(first) / 4, ..Query::default() };
        model.commit(&[Write::Erase(Box::new(query))]).expect("erases");
    }
    model
}

fn record(number: u8) -> Write {
    let head = RecordHeader {
        id: [number; 32],
        time: 1_000 + u64::from(number % 40),
        author: Some([number % 3; 32]),
        kind: u32::from(number % 2),
        expires: number.is_multiple_of(10).then_some(9_000),
    };
    let topic = |number: u8| (b't', format!("topic {}", number % 7).into_bytes());
    Write::Put(encode(&head, &[topic(number), topic(number / 7), (b'p', vec![number; 3])]))
}

fn segments(shelf: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(shelf.join("seg")).expect("is there");
    let paths = files.map(|entry| entry.expect("is there").path());
    paths.filter(|path| path.extension().is_some_and(|ending| ending == "seg")).collect()
}

fn magics(shelf: &Path) -> Vec<Vec<u8>> {
    let magic = |path: PathBuf| fs::read(path).expect("is read")[..8].to_vec();
    segments(shelf).into_iter().map(magic).collect()
}

fn shelf(name: &str) -> Folder {
    let dir = Folder::new(name);
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/format-1"), &dir);
    dir
}

fn assert_same(store: &EmbeddedStore, listed: &[u8], context: &str) {
    let model = model();
    assert_eq!(store.stats().records, model.stats().records, "{context}");
    compare_values(store, &model, listed, context);
    for topic in 0..7 {
        let value = format!("topic {topic}").into_bytes();
        let query = Query { labels: vec![LabelSet::one(b't', &value)], ..Query::default() };
        let counts = (store.count(&query).expect("counts"), model.count(&query).expect("counts"));
        assert_eq!(counts.0, counts.1, "{context}, topic {topic}");
    }
}

#[test]
fn segments_of_format_1_are_read_and_made_again() {
    for (name, listed) in [("format-listed", &b"pt"[..]), ("format-plain", b"")] {
        let dir = shelf(name);
        assert_eq!(magics(&dir), [b"HARKseg1"; 2]);
        opened_and_brought_up(&dir, listed);
    }
}

#[test]
fn segments_of_format_2_are_read_and_made_again() {
    let dir = shelf("format-2");
    write_in_format(&dir, b"HARKseg2", 11);
    opened_and_brought_up(&dir, b"");
}

#[test]
fn segments_of_format_3_are_read_and_kept_until_they_are_merged() {
    let dir = shelf("format-3");
    write_in_format(&dir, b"HARKseg3", 13);
    let options = EmbeddedOptions { background: false, ..EmbeddedOptions::default() };
    assert_eq!(check(&dir, &options, &mut |_| {}).expect("checks").faults, Vec::new());
    let store = EmbeddedStore::open(&dir, Box::new(KeepAll), options.clone()).expect("opens");
    assert_same(&store, b"", "before maintenance");
    store.run_due_maintenance().expect("settles");
    assert!(magics(&dir).iter().all(|magic| magic == b"HARKseg3"), "{:?}", magics(&dir));
    store.compact(&mut |_| {}).expect("compacts");
    assert_eq!(magics(&dir), [b"HARKseg4"]);
    assert_same(&store, b"", "merged");
    drop(store);
    assert_eq!(check(&dir, &options, &mut |_| {}).expect("checks").faults, Vec::new());
}

/// Rewrites the segments of a shelf in an earlier format, which has `sections` sections.
fn write_in_format(dir: &Path, magic: &[u8], sections: usize) {
    let options = EmbeddedOptions { background: false, ..EmbeddedOptions::default() };
    let store = EmbeddedStore::open(dir, Box::new(KeepAll), options).expect("opens");
    store.run_due_maintenance().expect("settles");
    drop(store);
    for path in segments(dir) {
        let bytes = fs::read(&path).expect("is read");
        let trailer = bytes.len() - (15 * 20 + 32);
        let end = trailer + sections * 20;
        let table = [&bytes[trailer..end], &bytes[trailer + 15 * 20..bytes.len() - 12]].concat();
        let end = u64::from_le_bytes(bytes[end..end + 8].try_into().expect("8 bytes")) as usize;
        let sum = crc32c::crc32c(&table).to_le_bytes();
        fs::write(path, [magic, &bytes[8..end], &table, &sum, magic].concat()).expect("is written");
    }
    assert!(magics(dir).iter().all(|found| found == magic), "{:?}", magics(dir));
}

/// Checks a shelf of an earlier format: opened read-only, opened for writing, after maintenance,
/// after a compaction, and after a restart.
fn opened_and_brought_up(dir: &Path, listed: &'static [u8]) {
    let before = magics(dir);
    let options =
        EmbeddedOptions { background: false, listed_labels: listed, ..EmbeddedOptions::default() };
    let is_summed = |store: &EmbeddedStore| {
        let ranges = store.ranges(&Query::default()).expect("asks");
        ranges.is_some_and(|ranges| {
            let end = Position { time: u64::MAX, id: [0; 32] };
            let start = Position { time: 0, id: [0; 32] };
            let count = ranges.before(&end).minus(ranges.before(&start)).count;
            assert_eq!(count, store.stats().records);
            true
        })
    };
    let reader = EmbeddedStore::open_read_only(dir, options.clone()).expect("opens");
    assert_same(&reader, listed, "read only");
    assert!(!is_summed(&reader));
    assert_eq!(magics(dir), before);
    let store = EmbeddedStore::open(dir, Box::new(KeepAll), options.clone()).expect("opens");
    assert_same(&store, listed, "before maintenance");
    store.run_due_maintenance().expect("settles");
    assert_same(&store, listed, "after maintenance");
    assert!(magics(dir).iter().all(|magic| magic == b"HARKseg4"), "{:?}", magics(dir));
    assert!(is_summed(&store));
    if listed.is_empty() {
        let why = store.label_values(b't', &mut |_, _| {}).expect_err("is not listed").to_string();
        assert!(why.contains("label `t`"), "{why}");
    }
    let manifest = fs::read_to_string(dir.join("MANIFEST")).expect("is read");
    assert!(manifest.starts_with("hark-shelf 4\n"), "{manifest}");
    store.compact(&mut |_| {}).expect("compacts");
    assert_eq!(magics(dir), [b"HARKseg4"]);
    assert_same(&store, listed, "merged");
    drop(store);
    assert_eq!(check(dir, &options, &mut |_| {}).expect("checks").faults, Vec::new());
    let store = EmbeddedStore::open(dir, Box::new(KeepAll), options).expect("opens");
    assert_same(&store, listed, "opened again");
}

#[test]
fn a_damaged_list_of_values_is_found_and_mended() {
    let dir = shelf("format-damaged");
    let options =
        EmbeddedOptions { background: false, listed_labels: b"pt", ..EmbeddedOptions::default() };
    let open = || EmbeddedStore::open(&dir, Box::new(KeepAll), options.clone()).expect("opens");
    open().run_due_maintenance().expect("settles");
    // Only the section of values contains these bytes, since a dictionary contains hashes.
    let listed = b"t\x07\0\0\0topic 5";
    for (damage, fault) in [(5, "belongs to no row"), (11, "out of order")] {
        let files = fs::read_dir(dir.join("seg")).expect("is there");
        let paths = files.map(|entry| entry.expect("is there").path());
        let damaged = paths.filter(|path| {
            let mut bytes = fs::read(path).expect("is read");
            let found = bytes.windows(listed.len()).position(|window| window == listed);
            if let Some(at) = found {
                bytes[at + damage] ^= 1;
                fs::write(path, bytes).expect("is written");
            }
            found.is_some()
        });
        assert!(damaged.count() > 0, "a segment lists the value");
        let faults = check(&dir, &options, &mut |_| {}).expect("checks").faults;
        let is_reported =
            |what: &str| faults.iter().any(|fault| fault.mendable && fault.what.contains(what));
        assert!(is_reported("section Values is damaged"), "{faults:?}");
        assert!(is_reported("missing from the list") && is_reported(fault), "{faults:?}");
        rebuild(&dir, &options, &mut |_| {}).expect("rebuilds");
        assert_eq!(check(&dir, &options, &mut |_| {}).expect("checks").faults, Vec::new());
        assert_same(&open(), b"pt", "rebuilt");
    }
}
