//! An archive of format 1, whose segments list no labels, is opened and brought to format 2. The
//! files in `format-1/` were written by the last version that wrote this format.

use std::fs;
use std::path::{Path, PathBuf};

use hark_archive::effects::KeepAll;
use hark_archive::store::memory::MemoryStore;
use hark_archive::{LabelSet, Query, RecordHeader, Store, Write};
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore, check, rebuild};
use hark_testkit::contract::compare_values;
use hark_testkit::disk::scratch;
use hark_testkit::random::encode;

/// The records and deletes that the files hold, in the model.
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

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("is made");
    for entry in fs::read_dir(from).expect("is there") {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).expect("is there");
        if path.is_dir() {
            copy(&path, &to.join(name));
        } else {
            fs::copy(&path, to.join(name)).expect("is copied");
        }
    }
}

fn magics(shelf: &Path) -> Vec<Vec<u8>> {
    let files = fs::read_dir(shelf.join("seg")).expect("is there");
    let paths = files.map(|entry| entry.expect("is there").path());
    let segments = paths.filter(|path| path.extension().is_some_and(|ending| ending == "seg"));
    segments.map(|path| fs::read(path).expect("is read")[..8].to_vec()).collect()
}

fn shelf(name: &str) -> PathBuf {
    let dir = scratch(name);
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
fn segments_of_the_format_before_are_read_and_made_again_where_labels_are_listed() {
    let dir = shelf("format-listed");
    assert_eq!(magics(&dir), [b"HARKseg1"; 2]);
    let options =
        EmbeddedOptions { background: false, listed_labels: b"pt", ..EmbeddedOptions::default() };
    let reader = EmbeddedStore::open_read_only(&dir, options.clone()).expect("opens");
    assert_same(&reader, b"pt", "read only");
    assert_eq!(magics(&dir), [b"HARKseg1"; 2]);
    let store = EmbeddedStore::open(&dir, Box::new(KeepAll), options.clone()).expect("opens");
    assert_same(&store, b"pt", "before maintenance");
    store.settle().expect("settles");
    assert_same(&store, b"pt", "after maintenance");
    assert!(magics(&dir).iter().all(|magic| magic == b"HARKseg2"), "{:?}", magics(&dir));
    let manifest = fs::read_to_string(dir.join("MANIFEST")).expect("is read");
    assert!(manifest.starts_with("hark-shelf 2\n"), "{manifest}");
    drop(store);
    assert_eq!(check(&dir, &options, &mut |_| {}).expect("checks").faults, Vec::new());
    let store = EmbeddedStore::open(&dir, Box::new(KeepAll), options).expect("opens");
    assert_same(&store, b"pt", "opened again");
    fs::remove_dir_all(dir).expect("is removed");
}

#[test]
fn segments_of_the_format_before_stay_where_no_labels_are_listed() {
    let dir = shelf("format-plain");
    let options = EmbeddedOptions { background: false, ..EmbeddedOptions::default() };
    let store = EmbeddedStore::open(&dir, Box::new(KeepAll), options.clone()).expect("opens");
    store.settle().expect("settles");
    assert_same(&store, b"", "without listed labels");
    assert_eq!(magics(&dir), [b"HARKseg1"; 2]);
    let why = store.label_values(b't', &mut |_, _| {}).expect_err("is not listed").to_string();
    assert!(why.contains("label `t`"), "{why}");
    store.compact(&mut |_| {}).expect("compacts");
    assert_eq!(magics(&dir), [b"HARKseg2"]);
    assert_same(&store, b"", "merged");
    drop(store);
    assert_eq!(check(&dir, &options, &mut |_| {}).expect("checks").faults, Vec::new());
    fs::remove_dir_all(dir).expect("is removed");
}

#[test]
fn a_damaged_list_of_values_is_found_and_mended() {
    let dir = shelf("format-damaged");
    let options =
        EmbeddedOptions { background: false, listed_labels: b"pt", ..EmbeddedOptions::default() };
    let open = || EmbeddedStore::open(&dir, Box::new(KeepAll), options.clone()).expect("opens");
    open().settle().expect("settles");
    // The values stand in the section alone: a dictionary has hashes.
    let listed = b"t\x07\0\0\0topic 5";
    for (damage, fault) in [(5, "that of no row"), (11, "out of order")] {
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
    fs::remove_dir_all(dir).expect("is removed");
}
