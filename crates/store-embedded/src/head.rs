//! The head: the newest records, indexed in memory while their log is being written.
//!
//! One thread inserts, any number read, none waits. Rows are numbered in the order of arrival. A
//! reader holds the number of rows that were published when it came and passes over later ones, so
//! it does not matter to it that lists grow meanwhile: a list is replaced as a whole, never changed.

use std::cmp::Ordering as Compare;
use std::collections::BTreeMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use hark_archive::query::source::Source;
use hark_archive::{Id, Key, Order, Query, Record};
use papaya::HashMap;

use crate::bits::{Bits, DeadKinds};
use crate::log::Log;
use crate::term::Terms;

/// Rows a chunk of the row table.
const CHUNK: usize = 1024;
/// Most rows a head can have, however large a single batch is.
pub const ROWS_MAX: usize = 1 << 22;
/// Sizes at which a list's tiers are merged into the next: an insert copies a few dozen entries,
/// whatever the list's length.
const TIERS: [usize; 2] = [32, 1024];
/// Kinds a term may have before its lists move into a map of their own.
const FEW_KINDS: usize = 16;

/// A row in a list, in the order of the list: newest first, then by id. The id's first 16 bytes
/// decide; more would take 2^64 tries to matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    time: u64,
    id: [u64; 2],
    row: u32,
}

impl Entry {
    fn new(time: u64, id: &Id, row: u32) -> Self {
        Self { time, id: id_prefix(id), row }
    }

    fn compare(&self, other: &Self) -> Compare {
        let (a, b) = (self, other);
        b.time.cmp(&a.time).then(a.id.cmp(&b.id)).then(a.row.cmp(&b.row))
    }
}

fn id_prefix(id: &Id) -> [u64; 2] {
    [0, 8].map(|at| id[at..].first_chunk().map_or(0, |eight| u64::from_be_bytes(*eight)))
}

/// A sorted list, in up to three sorted tiers.
#[derive(Clone)]
enum List {
    One(Entry),
    Tiers([Option<Arc<[Entry]>>; 3]),
}

impl List {
    fn insert(&self, entry: Entry) -> Self {
        let mut tiers = match self {
            Self::One(one) => [Some(Arc::from([*one])), None, None],
            Self::Tiers(tiers) => tiers.clone(),
        };
        tiers[0] = Some(merge(tiers[0].as_deref().unwrap_or_default(), &[entry]));
        for (at, full) in TIERS.into_iter().enumerate() {
            let here = tiers[at].as_deref().unwrap_or_default();
            if here.len() <= full {
                break;
            }
            let next = merge(here, tiers[at + 1].as_deref().unwrap_or_default());
            tiers[at + 1] = Some(next);
            tiers[at] = None;
        }
        Self::Tiers(tiers)
    }

    fn runs(&self, runs: &mut Vec<Run>) {
        match self {
            Self::One(entry) => runs.push(Run::One(*entry)),
            Self::Tiers(tiers) => {
                runs.extend(tiers.iter().flatten().map(|tier| Run::Tier(Arc::clone(tier))));
            }
        }
    }
}

fn merge(a: &[Entry], b: &[Entry]) -> Arc<[Entry]> {
    let mut out = Vec::with_capacity(a.len() + b.len());
    let (mut a, mut b) = (a, b);
    while let ([first_a, rest_a @ ..], [first_b, rest_b @ ..]) = (a, b) {
        if first_a.compare(first_b).is_lt() {
            out.push(*first_a);
            a = rest_a;
        } else {
            out.push(*first_b);
            b = rest_b;
        }
    }
    out.extend_from_slice(a);
    out.extend_from_slice(b);
    out.into()
}

/// A term's lists, by kind.
#[derive(Clone)]
enum Lists {
    Few(Vec<(u32, List)>),
    Many(Arc<HashMap<u32, List>>),
}

impl Lists {
    fn insert(&self, kind: u32, entry: Entry) -> Self {
        match self {
            Self::Few(lists) => {
                let mut lists = lists.clone();
                match lists.iter_mut().find(|(known, _)| *known == kind) {
                    Some((_, list)) => *list = list.insert(entry),
                    None => lists.push((kind, List::One(entry))),
                }
                if lists.len() <= FEW_KINDS {
                    return Self::Few(lists);
                }
                Self::Many(Arc::new(lists.into_iter().collect()))
            }
            Self::Many(lists) => {
                insert_in(lists, kind, entry);
                Self::Many(Arc::clone(lists))
            }
        }
    }

    fn runs(&self, kinds: Option<&[u32]>, runs: &mut Vec<Run>) {
        match (self, kinds) {
            (Self::Few(lists), _) => lists
                .iter()
                .filter(|(kind, _)| kinds.is_none_or(|kinds| kinds.binary_search(kind).is_ok()))
                .for_each(|(_, list)| list.runs(runs)),
            (Self::Many(lists), None) => {
                lists.pin().iter().for_each(|(_, list)| list.runs(runs));
            }
            (Self::Many(lists), Some(kinds)) => runs_in(lists, kinds, runs),
        }
    }
}

fn insert_in(lists: &HashMap<u32, List>, kind: u32, entry: Entry) {
    let lists = lists.pin();
    let list = lists.get(&kind).map_or(List::One(entry), |list| list.insert(entry));
    lists.insert(kind, list);
}

fn runs_in(lists: &HashMap<u32, List>, kinds: &[u32], runs: &mut Vec<Run>) {
    let lists = lists.pin();
    kinds.iter().filter_map(|kind| lists.get(kind)).for_each(|list| list.runs(runs));
}

/// A term is a keyed hash already.
#[derive(Default)]
pub struct AsIs(u64);

impl Hasher for AsIs {
    fn write(&mut self, _: &[u8]) {
        unreachable!("only terms are hashed with this");
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type ByTerm<V> = HashMap<u64, V, BuildHasherDefault<AsIs>>;

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The record's time.
    pub time: u64,
    id: [u64; 2],
    /// Where its frame starts in the log.
    pub offset: u32,
    /// Its kind.
    pub kind: u32,
}

struct Chunk {
    rows: Box<[OnceLock<Row>]>,
    /// Deleted, durably.
    dead: Bits,
    /// Deleted by a batch that is not synced yet; a superset of `dead`.
    doomed: Bits,
}

/// See the module.
pub struct Head {
    /// The log that its records are in.
    pub log: Arc<Log>,
    /// Rows put since the shelf was opened before this head began.
    pub base: u64,
    terms: Terms,
    chunks: Box<[OnceLock<Chunk>]>,
    every: ArcSwap<Option<List>>,
    kinds: HashMap<u32, List>,
    lists: ByTerm<Lists>,
    ids: ByTerm<u32>,
    inserted: AtomicU32,
    published: AtomicU32,
    /// Whether a record was asked for that is not in the log yet.
    missed: AtomicBool,
    dead: DeadKinds,
    oldest: AtomicU64,
    newest: AtomicU64,
    expiring: Mutex<BTreeMap<u64, Vec<u32>>>,
    next_expiry: AtomicU64,
}

impl Head {
    /// An empty head for `log`.
    pub fn new(log: Arc<Log>, terms: Terms, base: u64) -> Self {
        Self {
            log,
            base,
            terms,
            chunks: (0..ROWS_MAX / CHUNK).map(|_| OnceLock::new()).collect(),
            every: ArcSwap::from_pointee(None),
            kinds: HashMap::new(),
            lists: HashMap::default(),
            ids: HashMap::default(),
            inserted: AtomicU32::new(0),
            published: AtomicU32::new(0),
            missed: AtomicBool::new(false),
            dead: DeadKinds::default(),
            oldest: AtomicU64::new(u64::MAX),
            newest: AtomicU64::new(0),
            expiring: Mutex::default(),
            next_expiry: AtomicU64::new(u64::MAX),
        }
    }

    /// Rows inserted, published or not.
    pub fn inserted(&self) -> u32 {
        self.inserted.load(Ordering::Acquire)
    }

    /// Rows that readers may see.
    pub fn published(&self) -> u32 {
        self.published.load(Ordering::Acquire)
    }

    /// Lets readers see all that was inserted.
    pub fn publish(&self) {
        self.published.store(self.inserted(), Ordering::Release);
    }

    /// Rows that are durably dead.
    pub fn dead_count(&self) -> u32 {
        self.dead.count()
    }

    /// Inserts a record whose frame is at `offset` of the log. Called by one thread at a time.
    pub fn insert(&self, record: &Record<'_>, offset: u32, terms: &mut Vec<u64>) -> u32 {
        let row = self.inserted();
        let (time, kind, id) = (record.time(), record.kind(), record.id());
        let entry = Entry::new(time, id, row);
        let chunk = self.chunks[row as usize / CHUNK].get_or_init(|| Chunk {
            rows: (0..CHUNK).map(|_| OnceLock::new()).collect(),
            dead: Bits::new(CHUNK),
            doomed: Bits::new(CHUNK),
        });
        chunk.rows[row as usize % CHUNK].get_or_init(|| Row { time, id: entry.id, offset, kind });
        self.oldest.fetch_min(time, Ordering::AcqRel);
        self.newest.fetch_max(time, Ordering::AcqRel);
        if let Some(at) = record.expires() {
            self.expiring().entry(at).or_default().push(row);
            self.next_expiry.fetch_min(at, Ordering::AcqRel);
        }
        self.inserted.store(row + 1, Ordering::Release);
        let every = self.every.load();
        let list = (**every).as_ref().map_or(List::One(entry), |list| list.insert(entry));
        self.every.store(Arc::new(Some(list)));
        insert_in(&self.kinds, kind, entry);
        self.terms.of(record, terms);
        let all = self.terms.every();
        let lists = self.lists.pin();
        for &term in terms.iter().filter(|&&term| term != all) {
            let grown = match lists.get(&term) {
                Some(known) => known.insert(kind, entry),
                None => Lists::Few(vec![(kind, List::One(entry))]),
            };
            lists.insert(term, grown);
        }
        self.ids.pin().insert(self.terms.id(id), row);
        row
    }

    /// A row of the table.
    pub fn row(&self, row: u32) -> Option<Row> {
        self.chunks.get(row as usize / CHUNK)?.get()?.rows[row as usize % CHUNK].get().copied()
    }

    /// A row's record; `None`, and noted, if it is not written yet.
    pub fn record(&self, row: u32) -> Option<Record<'_>> {
        let offset = self.row(row)?.offset;
        if u64::from(offset) >= self.log.len() {
            self.missed.store(true, Ordering::Release);
            return None;
        }
        self.log.record(offset, false)
    }

    /// Whether, since it was asked last, a record was asked for that is not written yet. Only the
    /// writer ever does.
    pub fn take_missed(&self) -> bool {
        self.missed.swap(false, Ordering::AcqRel)
    }

    /// Marks a row as deleted by the batch under way; false if it was.
    pub fn doom(&self, row: u32) -> bool {
        self.chunk(row).is_some_and(|chunk| chunk.doomed.set(row % CHUNK as u32))
    }

    /// Marks a row as deleted for everyone. Its frame counts as dead bytes of the log.
    pub fn kill(&self, row: u32) {
        let (Some(chunk), Some(found)) = (self.chunk(row), self.row(row)) else { return };
        chunk.doomed.set(row % CHUNK as u32);
        if chunk.dead.set(row % CHUNK as u32) {
            self.dead.add(Some(found.kind));
            let bytes = self.log.frame_bytes(found.offset);
            self.log.dead_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Whether a row is durably dead.
    pub fn is_dead(&self, row: u32) -> bool {
        self.chunk(row).is_some_and(|chunk| chunk.dead.get(row % CHUNK as u32))
    }

    fn chunk(&self, row: u32) -> Option<&Chunk> {
        self.chunks.get(row as usize / CHUNK)?.get()
    }

    fn expiring(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Vec<u32>>> {
        self.expiring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A head as seen at one moment.
pub struct HeadView {
    head: Arc<Head>,
    /// Rows seen.
    rows: u32,
    /// Whether rows doomed by the batch under way are gone already.
    writing: bool,
}

impl HeadView {
    /// What readers see now.
    pub fn published(head: &Arc<Head>) -> Self {
        Self { head: Arc::clone(head), rows: head.published(), writing: false }
    }

    /// What the writer sees: its own batch included.
    pub fn writing(head: &Arc<Head>) -> Self {
        Self { head: Arc::clone(head), rows: u32::MAX, writing: true }
    }

    /// The head.
    pub fn head(&self) -> &Arc<Head> {
        &self.head
    }
}

/// A run of a head.
#[derive(Clone)]
pub enum Run {
    /// A list of one.
    One(Entry),
    /// A tier of a longer list.
    Tier(Arc<[Entry]>),
}

impl Run {
    fn entries(&self) -> &[Entry] {
        match self {
            Self::One(entry) => std::slice::from_ref(entry),
            Self::Tier(entries) => entries,
        }
    }
}

/// What of a query's window a head needs.
pub struct Window {
    from: u64,
    to: u64,
    /// Newest first only.
    after: Option<(u64, [u64; 2])>,
}

impl Window {
    /// Whether an entry lies before the window, newest first.
    fn is_before(&self, entry: &Entry) -> bool {
        entry.time > self.to
            || self.after.is_some_and(|(time, id)| {
                entry.time > time || (entry.time == time && entry.id <= id)
            })
    }
}

/// (time key, id, row), ascending in the query's order.
pub type HeadKey = (u64, [u64; 2], u32);

impl Source for HeadView {
    type Key = HeadKey;
    type Run = Run;
    type Window = Window;

    fn name(&self) -> String {
        format!("head of log {}", self.head.log.number)
    }

    fn rows(&self) -> u64 {
        u64::from(self.rows.min(self.head.inserted()))
    }

    fn span(&self) -> Option<(u64, u64)> {
        let oldest = self.head.oldest.load(Ordering::Acquire);
        (self.rows() > 0).then(|| (oldest, self.head.newest.load(Ordering::Acquire)))
    }

    fn every(&self, runs: &mut Vec<Run>) {
        if let Some(list) = &**self.head.every.load() {
            list.runs(runs);
        }
    }

    fn kinds(&self, kinds: &[u32], runs: &mut Vec<Run>) {
        runs_in(&self.head.kinds, kinds, runs);
    }

    fn author(&self, author: &Key, kinds: Option<&[u32]>, runs: &mut Vec<Run>) {
        if let Some(lists) = self.head.lists.pin().get(&self.head.terms.author(author)) {
            lists.runs(kinds, runs);
        }
    }

    fn label(&self, name: u8, value: &[u8], kinds: Option<&[u32]>, runs: &mut Vec<Run>) {
        if let Some(lists) = self.head.lists.pin().get(&self.head.terms.label(name, value)) {
            lists.runs(kinds, runs);
        }
    }

    fn find(&self, id: &Id) -> Option<u32> {
        let row = *self.head.ids.pin().get(&self.head.terms.id(id))?;
        (row < self.rows && self.head.row(row)?.id == id_prefix(id)).then_some(row)
    }

    fn window(&self, query: &Query) -> Window {
        let after = query.after.filter(|_| query.order == Order::NewestFirst);
        let after = after.map(|after| (after.time, id_prefix(&after.id)));
        let from = match query.after {
            Some(after) if query.order == Order::OldestFirst => query.from.max(after.time),
            _ => query.from,
        };
        Window { from, to: query.to, after }
    }

    fn clip(&self, run: &Run, window: &Window) -> Range<usize> {
        let entries = run.entries();
        let start = entries.partition_point(|entry| window.is_before(entry));
        let end = entries.partition_point(|entry| entry.time >= window.from);
        start..end.max(start)
    }

    fn within(&self, row: u32, window: &Window) -> bool {
        self.head.row(row).is_some_and(|found| {
            found.time >= window.from
                && !window.is_before(&Entry { time: found.time, id: found.id, row })
        })
    }

    fn key(&self, run: &Run, index: usize, order: Order) -> HeadKey {
        let entry = run.entries()[index];
        key(entry.time, entry.id, entry.row, order)
    }

    fn key_of(&self, row: u32, order: Order) -> HeadKey {
        let found = self.head.row(row);
        found.map_or((u64::MAX, [0; 2], row), |found| key(found.time, found.id, row, order))
    }

    fn row(&self, key: HeadKey) -> u32 {
        key.2
    }

    fn run_time(&self, run: &Run, index: usize) -> u64 {
        run.entries()[index].time
    }

    fn time(&self, row: u32) -> u64 {
        self.head.row(row).map_or(0, |row| row.time)
    }

    fn seek(&self, run: &Run, range: Range<usize>, row: u32) -> usize {
        let Some(found) = self.head.row(row) else { return range.end };
        let target = Entry { time: found.time, id: found.id, row };
        let entries = &run.entries()[range.clone()];
        range.start + entries.partition_point(|entry| entry.compare(&target).is_lt())
    }

    fn is_dead(&self, row: u32) -> bool {
        row >= self.rows
            || self.head.chunk(row).is_none_or(|chunk| {
                let bits = if self.writing { &chunk.doomed } else { &chunk.dead };
                bits.get(row % CHUNK as u32)
            })
    }

    fn may_have_dead(&self, kind: Option<u32>) -> bool {
        self.writing || self.head.inserted() > self.rows || self.head.dead.may_have(kind)
    }

    fn record(&self, row: u32) -> Option<Record<'_>> {
        self.head.record(row)
    }

    fn expired(&self, now: u64, rows: &mut Vec<u32>) {
        if self.head.next_expiry.load(Ordering::Acquire) <= now {
            rows.extend(self.head.expiring().range(..=now).flat_map(|(_, rows)| rows));
        }
    }
}

fn key(time: u64, id: [u64; 2], row: u32, order: Order) -> HeadKey {
    (if order == Order::NewestFirst { !time } else { time }, id, row)
}
