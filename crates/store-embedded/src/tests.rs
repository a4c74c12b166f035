//! Tests that no setting loses or hides a record, panics, or takes unbounded memory. For these
//! tests the maximum sizes of a log and of a head are lower (`log::BYTES_MAX`, `head::ROWS_MAX`).

use std::alloc::System;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hark_archive::effects::KeepAll;
use hark_archive::{Id, Query, Record, Store as _, Write};
use hark_codec::record::{self, LabelPosition};
use hark_testkit::allocations::{Counting, bytes_of_this_thread};

use crate::head::{Head, ROWS_MAX};
use crate::log::{self, Log, LogFrame};
use crate::manifest::{LogEntry, Manifest};
use crate::options::EmbeddedOptions;
use crate::repair::check::check;
use crate::term::{TermBuffers, TermHasher};
use crate::{EmbeddedStore, rebuild};

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting(System);

/// The directory of a shelf. It is removed when this value is dropped.
struct Shelf(PathBuf);

impl Drop for Shelf {
    fn drop(&mut self) {
        // If the removal fails, only temporary files remain.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Shelf {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("hark-bounds-{name}-{}", std::process::id())))
    }

    fn open(&self, options: &EmbeddedOptions) -> EmbeddedStore {
        EmbeddedStore::open(&self.0, Box::new(KeepAll), options.clone()).expect("opens")
    }
}

fn id(number: u32) -> Id {
    let mut id = [0; 32];
    id[..4].copy_from_slice(&number.to_be_bytes());
    id
}

/// Makes a record with `labels` unique labels and `bytes` bytes of content.
fn record_of(number: u32, kind: u32, labels: u32, bytes: usize) -> Box<[u8]> {
    let time = u64::from(number);
    let head =
        record::RecordHeader { id: id(number), time, author: Some([1; 32]), kind, expires: None };
    let values: Vec<[u8; 8]> = (0..labels)
        .map(|label| (u64::from(number) << 32 | u64::from(label)).to_be_bytes())
        .collect();
    let mut out = Vec::new();
    let labels = values.iter().map(|value| (b't', LabelPosition::Bytes(&value[..])));
    record::write(&mut out, &head, &vec![b'x'; bytes], labels);
    out.into()
}

fn put(numbers: std::ops::Range<u32>, labels: u32, bytes: usize) -> Vec<Write> {
    numbers.map(|number| Write::Put(record_of(number, 1, labels, bytes))).collect()
}

/// Asserts that exactly the records with these numbers are found, by their ids and by one query for
/// all records.
fn assert_found(store: &EmbeddedStore, numbers: std::ops::Range<u32>) {
    let missing: Vec<u32> =
        numbers.clone().filter(|&number| !store.knows(&id(number)).expect("answers")).collect();
    assert_eq!(missing, [0; 0], "not found by their ids");
    let mut seen = Vec::new();
    let mut search = store.search(&Query::default()).expect("searches");
    let mut sink = |record: &Record<'_>| {
        seen.push(record.time() as u32);
        std::ops::ControlFlow::Continue(())
    };
    search.slice(u64::MAX, &mut sink).expect("answers");
    assert_eq!(seen, numbers.rev().collect::<Vec<_>>(), "newest first");
}

fn faults(shelf: &Path, options: &EmbeddedOptions) -> String {
    let report = check(shelf, options, &mut |_| {}).expect("checks");
    let faults: Vec<String> = report.faults.iter().map(ToString::to_string).collect();
    faults.join("\n")
}

fn quiet() -> EmbeddedOptions {
    EmbeddedOptions { background: false, ..EmbeddedOptions::default() }
}

#[test]
fn logs_end_where_indices_reach_whatever_is_set() {
    let shelf = Shelf::new("long");
    let options = EmbeddedOptions { log_bytes_max: u64::MAX, ..quiet() };
    let store = shelf.open(&options);
    // The records fill three times the maximum length of a log.
    for at in 0..30 {
        store.commit(&put(at * 10..at * 10 + 10, 1, 10_000)).expect("commits");
    }
    assert_found(&store, 0..300);
    drop(store);
    assert_found(&shelf.open(&options), 0..300);
    assert_eq!(faults(&shelf.0, &options), "");
}

#[test]
fn heads_end_where_they_are_full_whatever_is_set() {
    let shelf = Shelf::new("rows");
    let options = EmbeddedOptions { seal_records: u32::MAX, ..quiet() };
    let store = shelf.open(&options);
    let rows = ROWS_MAX as u32 + 1_000;
    for from in (0..rows).step_by(6_000) {
        store.commit(&put(from..(from + 6_000).min(rows), 0, 0)).expect("commits");
    }
    assert_found(&store, 0..rows);
}

#[test]
fn a_log_is_read_whole_though_less_is_set_than_when_it_was_written() {
    let shelf = Shelf::new("lowered");
    shelf.open(&quiet()).commit(&put(0..40, 1, 10_000)).expect("commits");
    let lowered = EmbeddedOptions { log_bytes_max: 1, ..quiet() };
    let store = shelf.open(&lowered);
    assert_found(&store, 0..40);
    store.commit(&put(40..41, 1, 10_000)).expect("commits");
    assert_found(&store, 0..41);
}

#[test]
fn one_deletion_of_very_many_is_written_in_pieces_that_can_be_read_again() {
    let shelf = Shelf::new("erase");
    // The batch needs more deletions than fit into one log.
    let rows = (log::BYTES_MAX / 45) as u32 + 1_000;
    let store = shelf.open(&quiet());
    for from in (0..rows).step_by(4_000) {
        store.commit(&put(from..(from + 4_000).min(rows), 0, 0)).expect("commits");
    }
    store.commit(&[Write::Erase(Box::new(Query { to: 9, ..Query::default() }))]).expect("commits");
    store.commit(&put(rows..rows + 1, 0, 0)).expect("commits");
    assert_eq!(store.stats().records, u64::from(rows) - 9);
    drop(store);
    let store = shelf.open(&quiet());
    assert_eq!(store.stats().records, u64::from(rows) - 9);
    assert_eq!(faults(&shelf.0, &quiet()), "");
}

/// Makes a shelf in a state that an earlier version could leave behind. Log 1 has the records
/// 0..10. Log 2 is too long and has the records 10..`end`. Log 3 has record `end`, the deletions of
/// records 5, 50 and 51, and record 50 once more.
fn leave_long_log(shelf: &Shelf, end: u32, sealed: bool) {
    let store = shelf.open(&EmbeddedOptions { seal_records: 10, ..quiet() });
    store.commit(&put(0..10, 1, 10_000)).expect("commits");
    if sealed {
        store.commit(&put(10..11, 1, 10_000)).expect("commits");
        assert_eq!(store.stats().segments, 1);
    }
    drop(store);
    let write = |number: u32, batches: Vec<Vec<LogFrame<'_>>>| {
        let mut out = log::header(number, 0, 7).to_vec();
        for batch in batches {
            let mut frames = Vec::new();
            for frame in batch {
                frame.write(7, &mut frames);
            }
            LogFrame::Batch(frames.len() as u32).write(7, &mut out);
            out.append(&mut frames);
        }
        std::fs::write(log::path(&shelf.0, number, 0), &out).expect("is written");
        out.len() as u64
    };
    let records: Vec<Box<[u8]>> = (0..=end).map(|number| record_of(number, 1, 1, 10_000)).collect();
    let put = |number: u32| LogFrame::Put(&records[number as usize]);
    let long = write(2, (10..end).map(|number| vec![put(number)]).collect());
    assert!(long > log::BYTES_MAX);
    let gone = |number, log| LogFrame::Delete { id: id(number), log };
    write(3, vec![vec![put(end), gone(5, 1)], vec![gone(50, 2), gone(51, 2), put(50)]]);
    let mut manifest =
        Manifest::read(&crate::disk::RealDisk, &shelf.0).expect("is read").expect("is there");
    let entry = LogEntry::new;
    manifest.logs.truncate(1);
    manifest.logs.extend([entry(2), entry(3)]);
    manifest.write(&crate::disk::RealDisk, &shelf.0).expect("is written");
}

#[test]
fn a_log_that_indices_do_not_reach_is_refused_found_by_a_check_and_divided_by_a_rebuild() {
    for sealed in [false, true] {
        let shelf = Shelf::new("divide");
        leave_long_log(&shelf, 250, sealed);
        let options = quiet();
        let refusals = [
            EmbeddedStore::open(&shelf.0, Box::new(KeepAll), options.clone()).err(),
            EmbeddedStore::open_read_only(&shelf.0, options.clone()).err(),
        ];
        for refusal in refusals {
            let words = refusal.expect("is refused").to_string();
            assert!(
                words.contains("00000002-0.log") && words.contains("`hark rebuild`"),
                "{words}"
            );
        }
        let found = faults(&shelf.0, &options);
        assert!(found.contains("longer than indices reach"), "{found}");
        rebuild(&shelf.0, &options, &mut |_| {}).expect("rebuilds");
        assert_eq!(faults(&shelf.0, &options), "");
        let store = shelf.open(&options);
        for number in 0..=250 {
            let known = store.knows(&id(number)).expect("answers");
            assert_eq!(known, ![5, 51].contains(&number), "record {number}");
        }
        assert_eq!(store.stats().records, 249);
        store.commit(&put(251..252, 1, 10)).expect("commits");
        drop(store);
        let store = shelf.open(&options);
        assert_eq!(store.stats().records, 250);
        store.compact(&mut |_| {}).expect("compacts");
        assert_eq!(store.stats().records, 250);
    }
}

#[test]
fn the_memory_of_a_head_is_about_what_it_says() {
    for (records, labels) in [(60, 2_000), (8_000, 3), (8_000, 0)] {
        let records: Vec<Box<[u8]>> =
            (0..records).map(|number| record_of(number, number % 5, labels, 0)).collect();
        let mut scratch = TermBuffers::default();
        scratch.terms.reserve(3_000);
        let terms = TermHasher::new(&[7; 16], &EmbeddedOptions::default());
        let before = bytes_of_this_thread();
        let head = Head::new(Arc::new(Log::empty()), terms.clone(), 0, 1_000);
        let empty = bytes_of_this_thread();
        for bytes in &records {
            head.insert(&Record::new(bytes).expect("sound"), 0, &mut scratch);
        }
        // The tables that an empty head reserves in advance do not count.
        let taken = (bytes_of_this_thread() - empty) as u64;
        assert!(empty - before < 200_000, "an empty head has {} bytes", empty - before);
        let said = head.bytes();
        let of_records: u64 =
            records.iter().map(|bytes| crate::head::bytes_of_record(bytes, &terms)).sum();
        assert!(
            said * 2 > taken && said < taken * 2,
            "{labels} labels: {taken} bytes taken, {said} said"
        );
        println!("{labels} labels: {taken} bytes taken, {said} said");
        assert!(of_records + 200_000 > said, "{labels} labels: {of_records} expected, {said} said");
    }
}

/// Memory of all heads of a store, in bytes.
fn heads_bytes(store: &EmbeddedStore) -> u64 {
    let view = store.shelf.view.load();
    view.frozen.iter().chain([&view.active]).map(|head| head.bytes()).sum()
}

#[test]
fn heads_of_records_with_many_labels_are_sealed_by_their_memory() {
    let shelf = Shelf::new("labels");
    let max = 2 << 20;
    for background in [false, true] {
        let options =
            EmbeddedOptions { head_bytes_max: max, background, ..EmbeddedOptions::default() };
        let store = shelf.open(&options);
        let from = if background { 100 } else { 0 };
        for number in from..from + 100 {
            store.commit(&put(number..number + 1, 1_500, 0)).expect("commits");
            let bytes = heads_bytes(&store);
            assert!(bytes <= max * 4, "{bytes} bytes after {number}");
        }
        assert_found(&store, 0..from + 100);
        drop(store);
        let store = shelf.open(&options);
        assert!(heads_bytes(&store) <= max * 4, "at the start");
    }
    // A large batch is committed in pieces.
    let options = EmbeddedOptions { head_bytes_max: max, ..quiet() };
    let store = shelf.open(&options);
    store.commit(&put(200..260, 1_500, 0)).expect("commits");
    assert!(heads_bytes(&store) <= max * 4);
    assert_found(&store, 0..260);
}

#[test]
fn logs_whose_heads_would_take_too_much_memory_are_divided_at_the_start() {
    let shelf = Shelf::new("heavy");
    let store = shelf.open(&quiet());
    for number in 0..60 {
        store.commit(&put(number..number + 1, 1_500, 0)).expect("commits");
    }
    let erased = Query { ids: Some(vec![id(7)]), ..Query::default() };
    store.commit(&[Write::Erase(Box::new(erased))]).expect("commits");
    let taken = heads_bytes(&store);
    drop(store);
    let options = EmbeddedOptions { head_bytes_max: 512 << 10, ..quiet() };
    assert!(taken > options.head_bytes_max * 6, "{taken}");
    for _ in 0..2 {
        let store = shelf.open(&options);
        assert!(heads_bytes(&store) <= options.head_bytes_max * 4);
        assert_eq!(store.stats().records, 59);
        assert!(!store.knows(&id(7)).expect("answers") && store.knows(&id(8)).expect("answers"));
        drop(store);
        assert_eq!(faults(&shelf.0, &options), "");
    }
    let store = shelf.open(&options);
    assert_eq!(store.notes(), [""; 0]);
    store.commit(&put(60..61, 1, 0)).expect("commits");
    assert_eq!(store.stats().records, 60);
}

#[test]
fn merged_segments_are_bounded_by_their_lists_as_well() {
    let shelf = Shelf::new("weight");
    let options =
        EmbeddedOptions { seal_records: 2, merge_fan_in: 2, segment_records_max: 4_000, ..quiet() };
    let store = shelf.open(&options);
    for number in 0..40 {
        store.commit(&put(number..number + 1, 500, 0)).expect("commits");
    }
    store.compact(&mut |_| {}).expect("compacts");
    assert_found(&store, 0..40);
    let entries: Vec<usize> =
        store.shelf.view.load().segments.iter().map(|segment| segment.file.entries()).collect();
    // The limit of 4,000 records per segment counts two entries as one record.
    assert!(entries.iter().all(|&entries| entries <= 8_000), "{entries:?}");
    assert!(entries.len() < 8, "{entries:?}");
}

#[test]
fn what_a_segment_keeps_of_rare_kinds_is_bounded() {
    let shelf = Shelf::new("rare");
    let options = EmbeddedOptions { seal_records: 640, ..quiet() };
    let store = shelf.open(&options);
    let mut writes = put(0..640, 1, 0);
    for number in (0..640).step_by(64) {
        // One record has a kind and many labels, the other records have another kind and few
        // labels.
        writes[number as usize] = Write::Put(record_of(number, 7, 1_000, 0));
        writes[number as usize + 1] = Write::Put(record_of(number + 1, 5, 2, 0));
    }
    store.commit(&writes).expect("commits");
    store.commit(&put(640..641, 1, 0)).expect("commits");
    let view = store.shelf.view.load();
    let [segment] = view.segments.as_slice() else { panic!("one segment") };
    let kept: Vec<(u32, usize)> =
        segment.rare_kinds().map(|(kind, terms)| (kind, terms.len())).collect();
    assert_eq!(kept, [(5, 22)]);
    assert_found(&store, 0..641);
}

#[test]
fn counts_of_a_kind_are_right_while_records_of_all_kinds_are_deleted() {
    let shelf = Shelf::new("kinds");
    let store = shelf.open(&EmbeddedOptions { seal_records: 640, ..quiet() });
    // Half of the records have one kind. Dead rows are looked up in the long list of this kind, and
    // the short lists of the other kinds are read from end to end.
    let kind = |number: u32| if number.is_multiple_of(2) { 0 } else { number % 41 };
    let record = |number| Write::Put(record_of(number, kind(number), 1, 0));
    let puts: Vec<Write> = (0..641).map(record).collect();
    store.commit(&puts[..640]).expect("commits");
    store.commit(&puts[640..]).expect("commits");
    assert_eq!(store.stats().segments, 1);
    let mut left: Vec<u32> = (0..641).collect();
    for step in [37, 400, 23, 128, 11] {
        let ids: Vec<Id> = left.extract_if(.., |number| *number % step == 3).map(id).collect();
        let gone = Query { limit: ids.len(), ids: Some(ids), ..Query::default() };
        store.commit(&[Write::Erase(Box::new(gone))]).expect("commits");
        for wanted in 0..41 {
            let query = Query { kinds: Some(vec![wanted]), ..Query::default() };
            let expected = left.iter().filter(|&&number| kind(number) == wanted).count() as u64;
            assert_eq!(store.count(&query).expect("counts"), Some(expected), "kind {wanted}");
        }
    }
}
