//! Hostile shapes of records and queries: the length of a query bounds the work and the memory of
//! its answer, for any stored records.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::effects::KeepAll;
use hark_archive::live::{LiveIndex, NewRecord, SubscriptionSink};
use hark_archive::{
    Gate, LabelSet, Order, Query, RecordHeader, SearchProgress, Store, WordCondition, Write,
};
use hark_networks::nostr::texts::TextChoice;
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
use hark_testkit::allocations::{Counting, bytes_of_this_thread, peak_of};
use hark_testkit::folder::Folder;
use hark_testkit::random::encode;
use hark_words::SearchText;
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: Counting<MiMalloc> = Counting(MiMalloc);

/// Number of labels of a record, and of values of a query.
const VALUES: usize = 2_500;
/// Number of records, each with its own kind.
const KINDS: u32 = 400;
const TIME: u64 = 1_000_000;

/// A shelf in its own directory.
struct Shelf {
    store: EmbeddedStore,
    /// The directory, which is removed after the store is closed.
    _folder: Folder,
}

/// Opens a shelf that seals its head at `seal_records` records.
fn shelf(name: &str, seal_records: u32) -> Shelf {
    let folder = Folder::to_be_made(name);
    let options = EmbeddedOptions {
        seal_records,
        head_bytes_max: 1 << 30,
        merge_fan_in: 100,
        background: false,
        ..EmbeddedOptions::default()
    };
    let store = EmbeddedStore::open(&folder, Box::new(KeepAll), options).expect("the shelf opens");
    Shelf { store, _folder: folder }
}

fn value(n: usize) -> Vec<u8> {
    format!("{n:03}").into_bytes()
}

/// A record with this number and kind, and with [`VALUES`] short labels.
fn wide(number: u32, kind: u32) -> Write {
    let mut id = [7; 32];
    id[..4].copy_from_slice(&number.to_be_bytes());
    let time = TIME + u64::from(number);
    let head = RecordHeader { id, time, author: Some([1; 32]), kind, expires: None };
    let labels: Vec<_> = (0..VALUES).map(|n| (b't', value(n))).collect();
    Write::Put(encode(&head, &labels))
}

/// A record with this number, without labels.
fn plain(number: u32) -> Write {
    let mut id = [7; 32];
    id[..4].copy_from_slice(&number.to_be_bytes());
    let time = TIME + u64::from(number);
    Write::Put(encode(
        &RecordHeader { id, time, author: Some([2; 32]), kind: 1, expires: None },
        &[],
    ))
}

fn any_value() -> LabelSet {
    LabelSet { name: b't', values: (0..VALUES).map(|n| value(n).into()).collect() }
}

/// Answers a query in slices, and returns the numbers of results, of visited rows, and of slices.
fn answer(store: &dyn Store, query: &Query, work: u64) -> (usize, u64, usize) {
    let mut search = store.search(query).expect("searches");
    let (mut found, mut slices) = (0, 0);
    loop {
        let progress = search.slice(work, &mut |_| {
            found += 1;
            ControlFlow::Continue(())
        });
        slices += 1;
        if progress.expect("answers") != SearchProgress::Paused {
            return (found, search.visited(), slices);
        }
    }
}

#[test]
fn values_that_records_of_many_kinds_have_take_memory_by_the_bytes_of_the_question() {
    for (name, seal_records) in [("wide-head", 10_000), ("wide-segment", KINDS + 2 * VALUES as u32)]
    {
        let shelf = shelf(name, seal_records);
        for number in 0..KINDS {
            shelf.store.commit(&[wide(number, 10_000 + number)]).expect("commits");
        }
        // These records have no labels. The planner looks values up only if there are many records.
        let others: Vec<Write> = (0..2 * VALUES as u32).map(|n| plain(KINDS + n)).collect();
        shelf.store.commit(&others).expect("commits");
        let query =
            Query { labels: vec![any_value()], to: TIME + 100_000, limit: 1, ..Query::default() };
        let ((found, visited, slices), peak) = peak_of(|| answer(&shelf.store, &query, 2_000));
        println!("{name}: {peak} bytes at most, {visited} rows, {slices} slices");
        assert_eq!(found, 1);
        assert!(peak < 16 << 20, "{peak} bytes");
    }
}

/// Approximate length of a query in the wire format of its network. The work of the answer may grow
/// with this length.
fn bytes_of(query: &Query) -> u64 {
    let labels = query.labels.iter().flat_map(|set| &set.values).map(|value| value.len() + 3);
    let keys = query.ids.iter().chain(&query.authors).map(|keys| keys.len() * 67);
    let kinds = query.kinds.iter().map(|kinds| kinds.len() * 5);
    (100 + labels.chain(keys).chain(kinds).sum::<usize>()) as u64
}

fn short(n: usize) -> [u8; 32] {
    let mut key = [1; 32];
    key[..8].copy_from_slice(&(n as u64).to_be_bytes());
    key
}

/// Each query may be charged only a bounded number of rows per byte, in addition to the rows of its
/// time window. (The test counts work and reads no clock.)
#[test]
fn hostile_questions_are_charged_and_sliced_by_what_they_make_the_store_look_up() {
    let shelf = shelf("hostile", 1_000);
    let kinds = 120;
    for number in 0..kinds {
        shelf.store.commit(&[wide(number, 10_000 + number)]).expect("commits");
    }
    let others: Vec<Write> = (0..3 * VALUES as u32).map(|n| plain(kinds + n)).collect();
    for some in others.chunks(500) {
        shelf.store.commit(some).expect("commits");
    }
    let parts = shelf.store.stats().segments + 1;
    assert!(parts > 5, "{parts} parts");
    let many = |n: usize| (0..n).map(short).collect::<Vec<_>>();
    let narrow = Query { from: TIME, to: TIME, limit: 1, ..Query::default() };
    let none = LabelSet { name: b'x', values: any_value().values };
    for (name, query) in [
        ("values of records of many kinds", Query { labels: vec![any_value()], ..narrow.clone() }),
        (
            "values that nobody has",
            Query { labels: vec![none.clone()], limit: 1, ..Query::default() },
        ),
        (
            "two sets of them",
            Query { labels: vec![none, any_value()], limit: 1, ..Query::default() },
        ),
        ("ids that are not there", Query { ids: Some(many(VALUES)), ..Query::default() }),
        ("authors", Query { authors: Some(many(VALUES)), ..Query::default() }),
        (
            "values and kinds",
            Query {
                labels: vec![LabelSet { values: any_value().values[..1_250].to_vec(), name: b't' }],
                kinds: Some((10_000..11_250).collect()),
                ..narrow.clone()
            },
        ),
    ] {
        let query = Query { budget: 2_000_000, ..query };
        let (_, visited, slices) = answer(&shelf.store, &query, 256);
        let bytes = bytes_of(&query);
        println!("{name}: {visited} rows and {slices} slices for {bytes} bytes in {parts} parts");
        // The bound holds because a value has at least 3 bytes, and at most 32,768 lists of a set
        // of values are looked up.
        assert!(visited <= 8 * bytes * parts, "{name}: {visited} rows for {bytes} bytes");
        assert!(slices as u64 >= visited / 5_000, "{name}: {visited} rows in {slices} slices");
        let is_free = visited == 0 && slices == 1;
        assert!(!is_free, "{name}: lookups are counted");
    }
}

/// A count is charged for its lookups and visited rows, and the result does not change the charge.
/// A count from the lengths of lists is free. For values that no record has, each lookup in each
/// head and segment is charged.
#[test]
fn a_count_is_charged_by_its_work_and_not_by_its_result() {
    let shelf = shelf("counts", 1_000);
    let puts: Vec<Write> = (0..6_000).map(plain).collect();
    for some in puts.chunks(500) {
        shelf.store.commit(some).expect("commits");
    }
    let parts = shelf.store.stats().segments + 1;
    assert!(parts > 5, "{parts} parts");
    let counted = |query: Query| {
        let mut visited = 0;
        let query = Query { budget: 2_000, ..query };
        (shelf.store.count_visiting(&query, &mut visited).expect("counts"), visited)
    };
    let of_kind = |kind| Query { kinds: Some(vec![kind]), ..Query::default() };
    assert_eq!(counted(of_kind(1)), (Some(6_000), 0));
    let values = any_value().values[..400].to_vec();
    let (none, looked_up) =
        counted(Query { labels: vec![LabelSet { name: b'x', values }], ..Query::default() });
    assert!(none == Some(0) && looked_up >= 300 * parts, "{none:?}: {looked_up} in {parts} parts");
    // Two conditions are checked record by record, until the budget is spent.
    let both = Query { authors: Some(vec![[2; 32]]), ..of_kind(1) };
    let (some, visited) = counted(Query { not_authors: vec![[3; 32]], ..both });
    assert!(some.is_none() && (2_000..3_000).contains(&visited), "{some:?}: {visited}");
}

/// Opening a search takes as many slices as its lookups need, whether the records exist or not.
#[test]
fn thousands_of_ids_are_looked_up_in_slices() {
    let shelf = shelf("ids", 1_000_000);
    let puts: Vec<Write> = (0..VALUES as u32).map(plain).collect();
    shelf.store.commit(&puts).expect("commits");
    let there = (0..VALUES as u32).map(|number| {
        let mut id = [7; 32];
        id[..4].copy_from_slice(&number.to_be_bytes());
        id
    });
    let slices = |ids: Vec<[u8; 32]>| {
        let mut search = shelf.store.search(&Query { ids: Some(ids), ..Query::default() }).unwrap();
        (1..10_000).find(|_| {
            let progress = search.slice(256, &mut |_| ControlFlow::Break(())).unwrap();
            progress != SearchProgress::Paused || search.driver().is_some()
        })
    };
    let (found, missing) = (slices(there.collect()), slices((0..VALUES).map(short).collect()));
    assert_eq!(found, missing, "the cost of a lookup does not reveal the result");
    assert!(found > Some(30), "{found:?} slices for {VALUES} ids");
}

/// Hidden records must influence neither the decision that values have too many lists to walk, nor
/// the charge of the lookups.
#[test]
fn kinds_that_are_hidden_do_not_count_among_the_lists_of_a_value() {
    let hidden: Vec<u32> = (20_000..20_400).collect();
    let shelves = ["lists-without", "lists-with"].map(|name| shelf(name, 1_000_000));
    for (at, shelf) in shelves.iter().enumerate() {
        for number in 0..8 {
            shelf.store.commit(&[wide(number, 10_000 + number)]).expect("commits");
        }
        let others: Vec<Write> = (0..2 * VALUES as u32).map(|n| plain(1_000 + n)).collect();
        shelf.store.commit(&others).expect("commits");
        if at == 1 {
            for (number, &kind) in (10..).zip(&hidden) {
                shelf.store.commit(&[wide(number, kind)]).expect("commits");
            }
        }
    }
    let gate = Some(Arc::new(Gate { kinds: hidden, ..Gate::default() }));
    for order in [Order::NewestFirst, Order::OldestFirst] {
        let query =
            Query { labels: vec![any_value()], gate: gate.clone(), order, ..Query::default() };
        let [without, with] = shelves.each_ref().map(|shelf| answer(&shelf.store, &query, 256));
        assert_eq!(without, with);
        assert_eq!(without.0, 8);
    }
}

/// If the cursor of a page is within many records of the same time, the search begins at the
/// cursor.
#[test]
fn a_page_within_many_records_of_one_time_reads_none_before_its_cursor() {
    for (name, seal_records) in [("tie-head", 100_000), ("tie-segment", 20_000)] {
        let shelf = shelf(name, seal_records);
        let put = |number: u32| {
            let mut id = [7; 32];
            id[..4].copy_from_slice(&number.to_be_bytes());
            let (author, expires) = (Some([3; 32]), None);
            let head = RecordHeader { id, time: TIME, author, kind: 1, expires };
            Write::Put(encode(&head, &[(b't', b"a".to_vec())]))
        };
        shelf.store.commit(&(0..20_000).map(put).collect::<Vec<_>>()).expect("commits");
        let labels = vec![LabelSet::one(b't', b"a")];
        for order in [Order::NewestFirst, Order::OldestFirst] {
            let mut query =
                Query { order, limit: 1_000, labels: labels.clone(), ..Query::default() };
            let (mut found, mut rows) = (0, 0);
            loop {
                let mut search = shelf.store.search(&query).expect("searches");
                let progress = search.slice(u64::MAX, &mut |record| {
                    found += 1;
                    query.after = Some(hark_archive::Position::of(record));
                    ControlFlow::Continue(())
                });
                rows += search.visited();
                if progress.expect("answers") == (SearchProgress::Done { more: false }) {
                    break;
                }
            }
            assert_eq!(found, 20_000);
            assert!(rows < 25_000, "{name}: {rows} rows for {found} records, {order:?}");
        }
    }
}

struct DeafSink;

impl SubscriptionSink for DeafSink {
    fn deliver(&self, _: &NewRecord) -> bool {
        false
    }

    fn wake(&self) {}

    fn overflow(&self) {}
}

/// The relay charges 2,560 bytes for a filter with a search, and four bytes for each byte of the
/// filter.
#[test]
fn a_subscription_that_searches_takes_no_more_memory_than_it_is_charged() {
    let live = Arc::new(LiveIndex::default());
    let texts = TextChoice::default().source(&[]);
    for text in ["x*", "\"one two three\" four language:en"] {
        let (before, mut handles) = (bytes_of_this_thread(), Vec::new());
        for _ in 0..200 {
            let asked = || SearchText::parse(text).unwrap().unwrap();
            let words = || Some(Arc::new(WordCondition::new(asked(), Arc::clone(&texts))));
            let queries: Vec<Query> =
                (0..20).map(|_| Query { words: words(), ..Query::default() }).collect();
            let stored = queries.clone();
            handles.push((live.subscribe(queries, Box::new(DeafSink), 1 << 20), stored));
            while !handles.iter().all(|(handle, _)| handle.enter()) {}
        }
        let each = (bytes_of_this_thread() - before) / 4_000;
        println!("{text}: {each} bytes for a filter");
        assert!(each <= 2_560 + 4 * text.len().cast_signed(), "{each} bytes for {text}");
    }
}
