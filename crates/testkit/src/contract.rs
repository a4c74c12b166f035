//! The contract of a store: for random data and queries, the store must give the same answers as
//! the model store.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::effects::{KeepAll, Rules};
use hark_archive::store::memory::MemoryStore;
use hark_archive::store::shares::{ShareBy, scan_shares};
use hark_archive::{
    Id, LabelPosition, Outcome, Position, Query, RecordHeader, Search, SearchProgress, Store,
    WordCondition, Write,
};
use hark_codec::id_sum::IdTally;
use hark_networks::nostr::rules::NostrRules;
use hark_words::SearchText;

use crate::random::{Flavour, Random, World};
use crate::runs::is_long;
use crate::sentences::{SENTENCE, SENTENCES};

/// A store under test. The test can also disturb the store.
pub trait Subject {
    /// The store under test.
    fn store(&self) -> &dyn Store;
    /// Disturbs the store in a way that must not change any answer: seals, merges, compacts,
    /// reopens, rebuilds ...
    fn disturb(&mut self, random: &mut Random);
}

/// The size of a run.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Number of records to put.
    pub records: usize,
    /// Number of queries to run, spread evenly over the records.
    pub queries: usize,
    /// Number of disturbances, spread evenly over the records.
    pub disturbances: usize,
}

impl Size {
    /// Returns this size for a long run. For a short run, returns a smaller size, with which a
    /// store still seals and merges often.
    #[must_use]
    pub fn of_this_run(self) -> Self {
        if is_long() {
            return self;
        }
        let Self { records, queries, disturbances } = self;
        Self { records: records / 2, queries: queries / 3, disturbances: disturbances / 2 }
    }
}

/// How many items were compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Number of queries.
    pub queries: usize,
    /// Number of records in the answers.
    pub answers: usize,
    /// Number of outcomes of writes.
    pub outcomes: usize,
    /// Number of ranges of ids.
    pub ranges: usize,
}

/// Returns the rules of a flavour's network.
pub fn rules(flavour: Flavour) -> Box<dyn Rules> {
    match flavour {
        Flavour::Nostr => Box::new(NostrRules),
        Flavour::Labels => Box::new(KeepAll),
    }
}

/// Returns the labels of a flavour whose values a store must list.
pub fn listed(flavour: Flavour) -> &'static [u8] {
    match flavour {
        Flavour::Nostr => b"pt",
        Flavour::Labels => b"cp",
    }
}

/// Runs the same writes and queries on a store and on the model. If the answers differ, panics with
/// the seed in the message.
pub fn run(subject: &mut dyn Subject, flavour: Flavour, seed: u64, size: Size) -> Compared {
    run_in(World::new(seed, flavour), subject, flavour, seed, size)
}

/// Does the same as [`run`] with records that have sentences, and with queries for their words.
pub fn run_with_words(subject: &mut dyn Subject, seed: u64, size: Size) -> Compared {
    let world = World::new(seed, Flavour::Nostr).with_words();
    run_in(world, subject, Flavour::Nostr, seed, size)
}

/// Does the same as [`run`] for [`Flavour::Labels`], with records that have exactly one label each.
pub fn run_with_one_label(subject: &mut dyn Subject, seed: u64, size: Size) -> Compared {
    let world = World::new(seed, Flavour::Labels).with_one_label();
    run_in(world, subject, Flavour::Labels, seed, size)
}

/// Fills an empty store with records of very different sizes, and searches for their words. The
/// store must find the same records as the model, in the same order. No slice may read more text
/// than the bound for a slice.
pub fn large_records_are_ranked(store: &dyn Store) {
    let model = MemoryStore::new(NostrRules);
    for id in 0..90_u8 {
        let header = RecordHeader {
            id: [id; 32],
            time: 1_700_000_000 + u64::from(id % 7),
            author: Some([id; 32]),
            kind: 1,
            expires: None,
        };
        let wire = vec![b'x'; if id % 3 == 0 { 100 } else { 1_000 * usize::from(id) }];
        let text = format!("fox {}", "dog ".repeat(usize::from(id) % 40));
        let labels = [(SENTENCE, LabelPosition::Bytes(text.as_bytes()))];
        let mut bytes = Vec::new();
        hark_codec::record::write(&mut bytes, &header, &wire, labels.into_iter());
        for store in [store, &model] {
            store.commit(&[Write::Put(bytes.clone().into())]).expect("commits");
        }
    }
    let asked = SearchText::parse("fox").expect("is short").expect("has a word");
    let query = Query {
        words: Some(Arc::new(WordCondition::new(asked, Arc::new(SENTENCES)))),
        ranked: true,
        limit: 80,
        ..Query::default()
    };
    let answer = |store: &dyn Store, work: u64| {
        let (mut ids, mut slices) = (Vec::new(), 0);
        let mut search = store.search(&query).expect("searches");
        loop {
            slices += 1;
            let progress = search.slice(work, &mut |record| {
                ids.push(record.id()[0]);
                ControlFlow::Continue(())
            });
            if let SearchProgress::Done { more } = progress.expect("is read") {
                assert!(more);
                let last = search.last_rank().map(|rank| rank.id[0]);
                assert_eq!(last, ids.last().copied());
                return (ids, slices);
            }
        }
    };
    let (expected, _) = answer(&model, u64::MAX);
    assert_eq!(expected.len(), 80);
    assert_eq!(answer(store, u64::MAX).0, expected);
    let (found, slices) = answer(store, 2_000);
    assert_eq!(found, expected);
    // The texts have 2.6 MB in total, and each 32 bytes of text count as a row.
    assert!(slices > 30, "{slices} slices");
}

fn run_in(
    mut world: World,
    subject: &mut dyn Subject,
    flavour: Flavour,
    seed: u64,
    size: Size,
) -> Compared {
    let model = match flavour {
        Flavour::Nostr => MemoryStore::new(NostrRules),
        Flavour::Labels => MemoryStore::new(KeepAll),
    };
    let mut compared = Compared::default();
    let mut disturbed = 0;
    while world.made() < size.records {
        let batch = batch(&mut world);
        let theirs = subject.store().commit(&batch).expect("the store commits");
        let ours = model.commit(&batch).expect("the model commits");
        compare_outcomes(&theirs.outcomes, &ours.outcomes, seed, world.made());
        compared.outcomes += batch.len();
        while disturbed < size.disturbances * world.made() / size.records {
            subject.disturb(&mut world.random);
            disturbed += 1;
            let context = format!("seed {seed}, after {} records", world.made());
            compare_values(subject.store(), &model, listed(flavour), &context);
            compared.ranges += compare_ranges(subject.store(), &model, &mut world, &context);
        }
        while compared.queries < size.queries * world.made() / size.records {
            let query = world.query();
            let context = format!("seed {seed}, after {} records: {query:?}", world.made());
            compared.answers +=
                compare(subject.store(), &model, &query, &mut world.random, &context);
            compared.queries += 1;
        }
    }
    let context = format!("seed {seed}, at the end");
    compare_values(subject.store(), &model, listed(flavour), &context);
    compare_shares(subject.store(), &model, &context);
    compared.ranges += compare_ranges(subject.store(), &model, &mut world, &context);
    compared
}

/// Compares the values of these labels, and the number of records with each value. Panics with
/// `context` if the store and the model differ.
pub fn compare_values(store: &dyn Store, model: &MemoryStore, listed: &[u8], context: &str) {
    let values = |store: &dyn Store, name| {
        let mut values = Vec::new();
        let mut each = |value: &[u8], count| values.push((value.to_vec(), count));
        store.label_values(name, &mut each).expect("the store lists values");
        values.sort_unstable();
        values
    };
    for &name in listed {
        let (theirs, ours) = (values(store, name), values(model, name));
        assert!(theirs == ours, "values of {name} differ, {context}: {theirs:?} for {ours:?}");
    }
}

/// Compares the records and bytes of each kind, author and span of time with those that a scan of
/// the model finds. Panics with `context` if they differ.
fn compare_shares(store: &dyn Store, model: &MemoryStore, context: &str) {
    for by in [ShareBy::Kind, ShareBy::Author, ShareBy::Time(1), ShareBy::Time(86_400)] {
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        let mut begin = || model.search(&Query::default());
        scan_shares(by, &mut begin, &mut |key, share| ours.push((key, share))).expect("scans");
        store.shares(by, &mut |key, share| theirs.push((key, share))).expect("sums up");
        assert_eq!(theirs, ours, "{by:?} differ, {context}");
    }
}

/// Compares the ranges of ids in a random time window with the model's. Returns the number of
/// compared ranges; 0 if the store has no sums. Panics with `context` if the ranges differ.
pub fn compare_ranges(
    store: &dyn Store,
    model: &MemoryStore,
    world: &mut World,
    context: &str,
) -> usize {
    let Query { from, to, now, mut not_kinds, gate, .. } = world.query();
    // Stores have no sums for readers who see some hidden records, so the query is for readers who
    // see none.
    not_kinds.extend(gate.iter().flat_map(|gate| gate.kinds.clone()));
    let query = Query { from, to, now, not_kinds, ..Query::default() };
    let Some(ranges) = store.ranges(&query).expect("the store has ranges") else { return 0 };
    let mut items = model.matching(&query);
    items.sort_unstable_by_key(|at| (at.time, at.id));
    let key = |at: &Position| (at.time, at.id);
    let index = |at: &Position| items.partition_point(|item| key(item) < key(at));
    let at = |random: &mut Random| match items.get(random.below(items.len() + 1)) {
        Some(item) if random.below(2) == 0 => *item,
        Some(item) => Position { time: item.time, id: random.bytes() },
        None => Position { time: u64::MAX, id: [0; 32] },
    };
    let context = format!("{query:?}, {context}");
    for _ in 0..20 {
        let mut ends = [at(&mut world.random), at(&mut world.random)];
        ends.sort_unstable_by_key(key);
        let [low, high] = &ends;
        let expected = &items[index(low)..index(high)];
        let mut tally = IdTally::default();
        for at in expected {
            tally.add(&at.id);
        }
        assert_eq!(ranges.before(high).minus(ranges.before(low)), tally, "sums differ, {context}");
        let max = world.random.below(expected.len() + 2);
        let found = ranges.items(low, high, max);
        assert_eq!(found, expected[..max.min(expected.len())], "ranges differ, {context}");
        let cuts = ranges.divide(low, high, 16);
        assert!(cuts.len() <= 16 && cuts.is_sorted_by_key(key), "{context}");
        assert!(cuts.iter().all(|cut| key(low) <= key(cut) && key(cut) < key(high)), "{context}");
    }
    ranges.check().expect("nothing is damaged");
    20
}

fn batch(world: &mut World) -> Vec<Write> {
    let count = match world.random.below(6) {
        0 => 1,
        1 => 300,
        _ => 1 + world.random.below(60),
    };
    let write = |world: &mut World| {
        if world.random.once_in(150) {
            let mut query = world.query();
            query.limit = query.limit.min(1 + world.random.below(20));
            return Write::Erase(Box::new(query));
        }
        Write::Put(world.record())
    };
    (0..count).map(|_| write(world)).collect()
}

/// Compares outcomes with those of the model, and panics if they differ. Sequence numbers may
/// differ.
pub fn compare_outcomes(theirs: &[Outcome], ours: &[Outcome], seed: u64, made: usize) {
    let plain = |outcome: &Outcome| match outcome {
        Outcome::Stored { .. } => Outcome::Stored { seq: 0 },
        other => *other,
    };
    let theirs: Vec<Outcome> = theirs.iter().map(plain).collect();
    let ours: Vec<Outcome> = ours.iter().map(plain).collect();
    assert_eq!(theirs, ours, "outcomes differ, seed {seed}, after {made} records");
}

/// Reads an answer. Returns its ids in order, and whether more records match.
fn answer(search: &mut dyn Search, random: &mut Random, context: &str) -> (Vec<Id>, bool) {
    let mut ids = Vec::new();
    // The search is run in small slices with pauses, or in a single slice.
    let work = if random.once_in(3) { 1 + random.below(20) as u64 } else { u64::MAX };
    let pause_at = random.below(40);
    loop {
        let progress = search.slice(work, &mut |record| {
            ids.push(*record.id());
            if ids.len() == pause_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match progress.expect("the store answers") {
            SearchProgress::Paused => {}
            SearchProgress::Done { more } => return (ids, more),
            SearchProgress::Exhausted => panic!("no budget was set, {context}"),
        }
    }
}

/// Runs a query on the store and on the model, and returns the number of records found. Panics with
/// `context` if answers or counts differ, or if the store knows an id that the model lacks.
pub fn compare(
    store: &dyn Store,
    model: &MemoryStore,
    query: &Query,
    random: &mut Random,
    context: &str,
) -> usize {
    let matching = model.matching(query);
    // A ranked query has no cursor.
    let behind = |at: &&Position| query.after.is_none_or(|c| query.order.compare(&c, at).is_lt());
    let page: Vec<Id> = matching.iter().filter(behind).map(|at| at.id).collect();
    let more = query.limit > 0 && page.len() > query.limit;
    let ours = (page.into_iter().take(query.limit).collect(), more);
    let mut search = store.search(query).expect("the store searches");
    let theirs = answer(&mut *search, random, context);
    assert_eq!(theirs, ours, "answers differ, {context}");
    let count = store.count(query).expect("the store counts");
    assert_eq!(count, Some(matching.len() as u64), "counts differ, {context}");
    if let Some(id) = query.ids.iter().flatten().next() {
        let known = (store.knows(id).expect("knows"), model.knows(id).expect("knows"));
        assert!(known.1 || !known.0, "{id:02x?} is known and not kept, {context}");
    }
    theirs.0.len()
}
