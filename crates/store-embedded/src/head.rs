//! The head: the newest records, indexed in memory while their log is being written.
//!
//! One thread inserts, any number read, none waits. Rows are numbered in the order of arrival. A
//! reader holds the number of rows that were published when it came and passes over later ones, so
//! it does not matter to it that lists grow meanwhile: a list is replaced as a whole, never changed.

use std::collections::BTreeMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hark_archive::query::source::Source;
use hark_archive::{Id, Order, Query, Record};
use papaya::HashMap;

use crate::bits::{Bits, DeadKinds};
use crate::log::{Log, TOUCHED};
use crate::term::Terms;

/// Rows a chunk of the row table.
const CHUNK: usize = 1024;
/// Most rows a head can have, however large a single batch is.
pub const ROWS_MAX: usize = 1 << 22;
/// Sizes at which a list's tiers are merged into the next: an insert copies some hundred bytes,
/// whatever the list's length.
const TIERS: [usize; 2] = [64, 2048];
/// Kinds a term may have before its lists move into a map of their own.
const FEW_KINDS: usize = 16;

/// What orders rows: newest first, then by id, of which the first 16 bytes decide; it would take 2^64
/// tries to make two that agree in them.
type Rank = (u64, [u64; 2]);

fn id_prefix(id: &Id) -> [u64; 2] {
    [0, 8].map(|at| id[at..].first_chunk().map_or(0, |eight| u64::from_be_bytes(*eight)))
}

/// Rows in order, in up to three sorted tiers.
#[derive(Clone)]
enum List {
    One(u32),
    Few(Arc<[u32]>),
    Many(Arc<[Arc<[u32]>; 3]>),
}

impl List {
    fn insert(&self, row: u32, table: &Table) -> Self {
        match self {
            Self::One(one) => Self::Few(add(&[*one], row, table)),
            Self::Few(few) if few.len() < TIERS[0] => Self::Few(add(few, row, table)),
            Self::Few(few) => {
                Self::Many(Arc::new([Arc::default(), add(few, row, table), Arc::default()]))
            }
            Self::Many(tiers) => {
                let mut tiers = (**tiers).clone();
                tiers[0] = add(&tiers[0], row, table);
                for (at, full) in TIERS.into_iter().enumerate() {
                    if tiers[at].len() < full {
                        break;
                    }
                    tiers[at + 1] = merge(&tiers[at], &tiers[at + 1], table);
                    tiers[at] = Arc::default();
                }
                Self::Many(Arc::new(tiers))
            }
        }
    }

    fn runs(&self, runs: &mut Vec<Run>) {
        match self {
            Self::One(row) => runs.push(Run::One(*row)),
            Self::Few(tier) => runs.push(Run::Tier(Arc::clone(tier))),
            Self::Many(tiers) => {
                let tiers = tiers.iter().filter(|tier| !tier.is_empty());
                runs.extend(tiers.map(|tier| Run::Tier(Arc::clone(tier))));
            }
        }
    }
}

fn add(rows: &[u32], row: u32, table: &Table) -> Arc<[u32]> {
    let place = table.place(row);
    // Nearly always it belongs near the front.
    let mut ahead = 1;
    while ahead < rows.len() && table.place(rows[ahead - 1]) < place {
        ahead *= 2;
    }
    let near = &rows[..ahead.min(rows.len())];
    let (before, behind) = rows.split_at(near.partition_point(|&other| table.place(other) < place));
    before.iter().chain([&row]).chain(behind).copied().collect()
}

fn merge(newer: &[u32], older: &[u32], table: &Table) -> Arc<[u32]> {
    let mut out = Vec::with_capacity(newer.len() + older.len());
    let mut older = older;
    for &row in newer {
        let place = table.place(row);
        // What came later is newer as a rule: few of the older ones come before it.
        let mut ahead = 1;
        while ahead < older.len() && table.place(older[ahead]) < place {
            ahead *= 2;
        }
        let within = &older[..ahead.min(older.len())];
        let (before, behind) =
            older.split_at(within.partition_point(|&other| table.place(other) < place));
        out.extend_from_slice(before);
        out.push(row);
        older = behind;
    }
    out.extend_from_slice(older);
    out.into()
}

/// A term's lists, by kind.
#[derive(Clone)]
enum Lists {
    One(u32, List),
    Few(Vec<(u32, List)>),
    Many(Arc<HashMap<u32, List>>),
}

impl Lists {
    fn insert(&self, kind: u32, row: u32, table: &Table) -> Self {
        match self {
            Self::One(known, list) if *known == kind => Self::One(kind, list.insert(row, table)),
            Self::One(known, list) => {
                Self::Few(vec![(*known, list.clone()), (kind, List::One(row))])
            }
            Self::Few(lists) => {
                let mut lists = lists.clone();
                match lists.iter_mut().find(|(known, _)| *known == kind) {
                    Some((_, list)) => *list = list.insert(row, table),
                    None => lists.push((kind, List::One(row))),
                }
                if lists.len() <= FEW_KINDS {
                    return Self::Few(lists);
                }
                Self::Many(Arc::new(lists.into_iter().collect()))
            }
            Self::Many(lists) => {
                insert_in(lists, kind, row, table);
                Self::Many(Arc::clone(lists))
            }
        }
    }

    fn has(&self, kinds: Option<&[u32]>) -> bool {
        let Some(kinds) = kinds else { return true };
        match self {
            Self::One(kind, _) => kinds.contains(kind),
            Self::Few(lists) => lists.iter().any(|(kind, _)| kinds.contains(kind)),
            Self::Many(lists) => kinds.iter().any(|kind| lists.pin().contains_key(kind)),
        }
    }

    fn runs(&self, kinds: Option<&[u32]>, runs: &mut Vec<Run>) {
        match (self, kinds) {
            (Self::One(kind, list), _) => {
                if kinds.is_none_or(|kinds| kinds.binary_search(kind).is_ok()) {
                    list.runs(runs);
                }
            }
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

fn insert_in(lists: &HashMap<u32, List>, kind: u32, row: u32, table: &Table) {
    let lists = lists.pin();
    let list = lists.get(&kind).map_or(List::One(row), |list| list.insert(row, table));
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

/// All rows, in the order of arrival.
struct Table(Box<[OnceLock<Chunk>]>);

impl Table {
    fn new() -> Self {
        Self((0..ROWS_MAX / CHUNK).map(|_| OnceLock::new()).collect())
    }

    fn set(&self, at: u32, row: Row) {
        let chunk = self.0[at as usize / CHUNK].get_or_init(|| Chunk {
            rows: (0..CHUNK).map(|_| OnceLock::new()).collect(),
            dead: Bits::new(CHUNK),
            doomed: Bits::new(CHUNK),
        });
        chunk.rows[at as usize % CHUNK].get_or_init(|| row);
    }

    #[inline]
    fn chunk(&self, row: u32) -> Option<&Chunk> {
        self.0.get(row as usize / CHUNK)?.get()
    }

    #[inline]
    fn get(&self, row: u32) -> Option<&Row> {
        self.chunk(row)?.rows[row as usize % CHUNK].get()
    }

    /// A row's place in every list it is in.
    #[inline]
    fn place(&self, row: u32) -> (Rank, u32) {
        (self.rank(row), row)
    }

    #[inline]
    fn rank(&self, row: u32) -> Rank {
        self.get(row).map_or((u64::MAX, [u64::MAX; 2]), |row| (!row.time, row.id))
    }
}

/// See the module.
pub struct Head {
    /// The log that its records are in.
    pub log: Arc<Log>,
    /// Rows put since the shelf was opened before this head began.
    pub base: u64,
    terms: Terms,
    table: Table,
    /// The term that all rows have.
    every: u64,
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
            table: Table::new(),
            every: terms.every(),
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
        self.table.set(row, Row { time, id: id_prefix(id), offset, kind });
        self.oldest.fetch_min(time, Ordering::AcqRel);
        self.newest.fetch_max(time, Ordering::AcqRel);
        if let Some(at) = record.expires() {
            self.expiring().entry(at).or_default().push(row);
            self.next_expiry.fetch_min(at, Ordering::AcqRel);
        }
        self.inserted.store(row + 1, Ordering::Release);
        insert_in(&self.kinds, kind, row, &self.table);
        self.terms.of(record, terms);
        let lists = self.lists.pin();
        for &term in terms.iter() {
            // The lists of the term that all have are the kinds, which have a map of their own; here
            // it has one list, of all rows.
            let kind = if term == self.every { 0 } else { kind };
            let grown = match lists.get(&term) {
                Some(known) => known.insert(kind, row, &self.table),
                None => Lists::One(kind, List::One(row)),
            };
            lists.insert(term, grown);
        }
        self.ids.pin().insert(self.terms.id(id), row);
        row
    }

    /// A row of the table.
    pub fn row(&self, row: u32) -> Option<&Row> {
        self.table.get(row)
    }

    /// A row's record; `None`, and noted, if it is not written yet.
    pub fn record(&self, row: u32) -> Option<Record<'_>> {
        self.record_at(self.row(row)?.offset)
    }

    fn record_at(&self, offset: u32) -> Option<Record<'_>> {
        if u64::from(offset) >= self.log.written() {
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
        self.table.chunk(row)
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
    One(u32),
    /// A tier of a longer list.
    Tier(Arc<[u32]>),
}

impl Run {
    fn rows(&self) -> &[u32] {
        match self {
            Self::One(row) => std::slice::from_ref(row),
            Self::Tier(rows) => rows,
        }
    }
}

/// What of a query's window a head needs.
pub struct Window {
    from: u64,
    /// Rows up to this place, newest first, lie before the window.
    before: Rank,
}

impl Window {
    fn is_before(&self, rank: Rank) -> bool {
        rank <= self.before
    }

    fn is_everything(&self) -> bool {
        self.from == 0 && self.before == (0, [0; 2])
    }
}

/// (time key, id, row), ascending in the query's order.
pub type HeadKey = (u64, [u64; 2], u32);

impl Source for HeadView {
    type Key = HeadKey;
    type Run = Run;
    type Window = Window;
    /// An offset in the log.
    type Place = u32;

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
        self.term(self.head.every, None, runs);
    }

    fn kinds(&self, kinds: &[u32], runs: &mut Vec<Run>) {
        runs_in(&self.head.kinds, kinds, runs);
    }

    fn has_kinds(&self, kinds: &[u32]) -> bool {
        let lists = self.head.kinds.pin();
        kinds.iter().any(|kind| lists.contains_key(kind))
    }

    fn run_kind(&self, run: &Run) -> Option<u32> {
        self.head.row(*run.rows().first()?).map(|row| row.kind)
    }

    fn has_term(&self, term: u64, kinds: Option<&[u32]>) -> bool {
        self.head.lists.pin().get(&term).is_some_and(|lists| lists.has(kinds))
    }

    fn term(&self, term: u64, kinds: Option<&[u32]>, runs: &mut Vec<Run>) {
        if let Some(lists) = self.head.lists.pin().get(&term) {
            lists.runs(kinds, runs);
        }
    }

    fn find(&self, id: &Id) -> Option<u32> {
        let row = *self.head.ids.pin().get(&self.head.terms.id(id))?;
        (row < self.rows && self.head.row(row)?.id == id_prefix(id)).then_some(row)
    }

    fn window(&self, query: &Query) -> Window {
        // The last place before all of `to`: newer by one, with the highest id.
        let newer = query.to.checked_add(1).map_or((0, [0; 2]), |time| (!time, [u64::MAX; 2]));
        match (query.after, query.order) {
            (Some(after), Order::NewestFirst) => {
                let before = newer.max((!after.time, id_prefix(&after.id)));
                Window { from: query.from, before }
            }
            (Some(after), Order::OldestFirst) => {
                Window { from: query.from.max(after.time), before: newer }
            }
            (None, _) => Window { from: query.from, before: newer },
        }
    }

    fn clip(&self, run: &Run, window: &Window) -> Range<usize> {
        let (rows, table) = (run.rows(), &self.head.table);
        if window.is_everything() {
            return 0..rows.len();
        }
        let start = rows.partition_point(|&row| window.is_before(table.rank(row)));
        let end = rows.partition_point(|&row| !table.rank(row).0 >= window.from);
        start..end.max(start)
    }

    fn within(&self, row: u32, window: &Window) -> bool {
        let rank = self.head.table.rank(row);
        !rank.0 >= window.from && !window.is_before(rank)
    }

    fn key(&self, run: &Run, index: usize, order: Order) -> HeadKey {
        self.key_of(run.rows()[index], order)
    }

    fn key_of(&self, row: u32, order: Order) -> HeadKey {
        let (time, id) = self.head.table.rank(row);
        (if order == Order::NewestFirst { time } else { !time }, id, row)
    }

    fn row(&self, key: HeadKey) -> u32 {
        key.2
    }

    fn run_time(&self, run: &Run, index: usize) -> u64 {
        self.time(run.rows()[index])
    }

    fn time(&self, row: u32) -> u64 {
        self.head.row(row).map_or(0, |row| row.time)
    }

    fn seek(&self, run: &Run, range: Range<usize>, row: u32) -> usize {
        let table = &self.head.table;
        let place = table.place(row);
        let before = |&other: &u32| table.place(other) < place;
        range.start + run.rows()[range.clone()].partition_point(before)
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

    fn locate(&self, row: u32) -> u32 {
        self.head.row(row).map_or(u32::MAX, |row| row.offset)
    }

    fn touch(&self, block: &[(u32, u32)]) {
        let mut sum = 0;
        for line in TOUCHED {
            for (_, offset) in block {
                sum ^= self.head.log.touch(*offset as usize + line);
            }
        }
        std::hint::black_box(sum);
    }

    fn read(&self, _: u32, offset: u32) -> Option<Record<'_>> {
        self.head.record_at(offset)
    }

    fn expired(&self, now: u64, rows: &mut Vec<u32>) {
        if self.head.next_expiry.load(Ordering::Acquire) <= now {
            rows.extend(self.head.expiring().range(..=now).flat_map(|(_, rows)| rows));
        }
    }
}
