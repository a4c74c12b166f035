//! Checks that the cost of a query does not reveal how many records are hidden from its reader.
//! Only one of two stores has hidden records. Both must give the same answers, counts and charges.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::{
    Gate, Id, Key, LabelSet, Outcome, Position, Query, RecordHeader, SearchProgress, Store, Write,
};
use hark_codec::id_sum::IdTally;

use crate::random::{Random, encode};

/// Kinds that are hidden from some readers.
const PRIVATE: [u32; 2] = [4, 1_059];
/// Public kinds: below, between and above the hidden kinds.
const PUBLIC: [u32; 6] = [1, 1, 1, 7, 1_000, 9_735];
/// Number of people who query, and number of people who never query.
const READERS: u8 = 3;
const OTHERS: u8 = 3;

/// Number of records that both stores get in a stage.
pub const SEEN: usize = 200;
/// Number of further records that only one store gets in a stage.
pub const HIDDEN: usize = 300;

/// Makes the records and the queries.
pub struct Secrets {
    random: Random,
    stage: u64,
    ids: Vec<Id>,
}

fn key(of: u8) -> Key {
    [0xa0 + of; 32]
}

fn hex(of: u8) -> Vec<u8> {
    hark_codec::hex::encode_32(&key(of)).to_vec()
}

impl Secrets {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), stage: 0, ids: Vec::new() }
    }

    fn draw_anyone(&mut self) -> u8 {
        self.random.below(usize::from(READERS + OTHERS)) as u8
    }

    fn other(&mut self) -> u8 {
        READERS + self.random.below(usize::from(OTHERS)) as u8
    }

    /// Makes a record with this time. If the record is hidden, its sender and its recipients are
    /// people who never query.
    fn record(&mut self, time: u64, hidden: bool) -> Box<[u8]> {
        let private = hidden || self.random.once_in(5);
        let kind = *self.random.pick(if private { &PRIVATE[..] } else { &PUBLIC[..] });
        let author = if hidden { self.other() } else { self.draw_anyone() };
        let mut labels = Vec::new();
        for _ in 0..self.random.below(3) {
            let to = if hidden { self.other() } else { self.draw_anyone() };
            labels.push((b'p', hex(to)));
        }
        if self.random.once_in(2) {
            labels.push((b't', self.random.pick(&["a", "b", "c"]).as_bytes().to_vec()));
        }
        let id = self.random.bytes();
        self.ids.push(id);
        encode(&RecordHeader { id, time, author: Some(key(author)), kind, expires: None }, &labels)
    }

    /// Makes the next writes for each store. Only the second store also gets the hidden records.
    /// Both stores get the records with the first and the last time.
    pub fn stage(&mut self) -> [Vec<Write>; 2] {
        let start = 1_000_000 + self.stage * 100;
        self.stage += 1;
        let mut both: Vec<(bool, Box<[u8]>)> = Vec::new();
        for at in 0..SEEN + HIDDEN {
            let hidden = at >= SEEN;
            let inner = start + 1 + self.random.below(148) as u64;
            let time = [start, start + 150].get(at).copied().unwrap_or(inner);
            both.push((hidden, self.record(time, hidden)));
        }
        // Half of the records swap places, so that hidden records are among the others.
        for at in (1..both.len()).rev() {
            if self.random.once_in(2) {
                both.swap(at, self.random.below(at + 1));
            }
        }
        let put = |(_, record): &(bool, Box<[u8]>)| Write::Put(record.clone());
        let seen = both.iter().filter(|(hidden, _)| !hidden).map(put).collect();
        [seen, both.iter().map(put).collect()]
    }

    /// Makes a query by some of the readers or by a stranger. Many queries ask for hidden records.
    pub fn question(&mut self) -> Query {
        let mut readers: Vec<Key> = Vec::new();
        if !self.random.once_in(3) {
            readers = (0..READERS).filter(|_| self.random.once_in(2)).map(key).collect();
        }
        let values = readers.iter().map(|key| hark_codec::hex::encode_32(key)[..].into()).collect();
        let addressed = LabelSet { name: b'p', values };
        let gate = Gate { kinds: PRIVATE.to_vec(), readers, addressed };
        let mut query = Query { gate: Some(Arc::new(gate)), ..Query::default() };
        let several = |random: &mut Random| 1 + random.below(3);
        if self.random.once_in(8) {
            let count = several(&mut self.random);
            query.ids = Some((0..count).map(|_| *self.random.pick(&self.ids)).collect());
        }
        if self.random.once_in(3) {
            let many = self.random.once_in(4);
            let count = if many { 80 } else { several(&mut self.random) };
            let author = |at: usize, of: u8| if at < 3 { key(of) } else { [at as u8; 32] };
            query.authors = Some((0..count).map(|at| author(at, self.draw_anyone())).collect());
        }
        if self.random.once_in(2) {
            let count = several(&mut self.random);
            let kinds = (0..count).map(|_| match self.random.below(3) {
                0 => *self.random.pick(&PRIVATE),
                _ => *self.random.pick(&PUBLIC),
            });
            query.kinds = Some(kinds.collect());
        }
        if !self.random.once_in(3) {
            let count = several(&mut self.random);
            let values = (0..count).map(|_| hex(self.draw_anyone()).into()).collect();
            query.labels.push(LabelSet { name: b'p', values });
        }
        if self.random.once_in(4) {
            query.labels.push(LabelSet::one(b't', b"a"));
        }
        let times = (self.stage * 100 + 50) as usize;
        if self.random.once_in(3) {
            query.from = 1_000_000 + self.random.below(times) as u64;
        }
        if self.random.once_in(3) {
            query.to = query.from.max(1_000_000) + self.random.below(times) as u64;
        }
        if self.random.once_in(2) {
            query.limit = self.random.below(40);
        }
        query.normalise();
        query
    }
}

/// Commits the writes of a stage, and panics unless each record is stored.
pub fn put(store: &dyn Store, writes: &[Write]) {
    let committed = store.commit(writes).expect("the store commits");
    assert!(committed.outcomes.iter().all(|outcome| matches!(outcome, Outcome::Stored { .. })));
}

/// Everything that a reader can observe of a query: the ids, the progress and the rows visited so
/// far after each slice, and the result of a count.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    slices: Vec<(Vec<Id>, u64, SearchProgress)>,
    count: Option<u64>,
}

impl Seen {
    /// Runs a query in slices of at most `work` rows, and counts its matches.
    pub fn of(store: &dyn Store, query: &Query, work: u64) -> Self {
        let mut search = store.search(query).expect("the store searches");
        let mut slices = Vec::new();
        loop {
            let mut ids = Vec::new();
            let progress = search.slice(work, &mut |record| {
                ids.push(*record.id());
                ControlFlow::Continue(())
            });
            let progress = progress.expect("the store answers");
            slices.push((ids, search.visited(), progress));
            if progress != SearchProgress::Paused {
                break;
            }
        }
        let count = store.count(query).expect("the store counts");
        Self { slices, count }
    }

    /// Returns the total number of visited rows.
    pub fn rows(&self) -> u64 {
        self.slices.last().map_or(0, |(_, rows, _)| *rows)
    }

    /// Returns the number of records in the answer.
    pub fn answered(&self) -> usize {
        self.slices.iter().map(|(ids, ..)| ids.len()).sum()
    }
}

/// Runs the same queries on both stores, and panics if a result differs. Returns the number of
/// records in the answers of one store.
pub fn compare(stores: [&dyn Store; 2], secrets: &mut Secrets, questions: usize) -> usize {
    let mut answered = 0;
    for _ in 0..questions {
        let query = secrets.question();
        let work = if secrets.random.once_in(2) { 20 } else { 1_000_000 };
        let [without, with] = stores.map(|store| Seen::of(store, &query, work));
        assert_eq!(with, without, "what is hidden shows: {query:?}");
        answered += with.answered();
    }
    for _ in 0..questions / 20 {
        let [without, with] = stores.map(|store| ranges(store, &mut secrets.random.clone()));
        assert_eq!(with, without, "what is hidden shows in ranges of ids");
        secrets.random.below(2);
    }
    answered
}

/// Queries the ranges of a time window as a stranger, and returns all results.
fn ranges(store: &dyn Store, random: &mut Random) -> Vec<(IdTally, Vec<Position>, Vec<Position>)> {
    let gate = Gate { kinds: PRIVATE.to_vec(), ..Gate::default() };
    let from = 1_000_000 + random.below(200) as u64;
    let query = Query { from, gate: Some(Arc::new(gate)), ..Query::default() };
    // A store without sums has no ranges.
    let Some(ranges) = store.ranges(&query).expect("asks") else { return Vec::new() };
    let mut at = 0..5;
    std::iter::from_fn(|| {
        let low = Position { time: from + 100 * at.next()?, id: random.bytes() };
        let high = Position { time: low.time + 300, id: random.bytes() };
        let tally = ranges.before(&high).minus(ranges.before(&low));
        Some((tally, ranges.items(&low, &high, 50), ranges.divide(&low, &high, 16)))
    })
    .collect()
}
