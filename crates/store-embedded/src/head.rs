//! The head: the newest records, indexed in memory while their log is being written.
//!
//! One thread inserts, any number read, none waits. Rows are numbered in the order of arrival. A
//! reader holds the number of rows that were published when it came and passes over later ones, so
//! it does not matter to it that lists grow meanwhile: rows are put behind those that it knows of, or the
//! list is replaced as a whole.

use std::collections::BTreeMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hark_archive::query::prepared::Terms as _;
use hark_archive::query::source::Source;
use hark_archive::{Id, Order, Query, Record};
use papaya::HashMap;

use crate::bits::{Bits, DeadRows};
use crate::log::Log;
use crate::segment::file::partition;
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

/// Rows in order, oldest first, with room to grow: the first number says how many follow. What comes
/// in order is put behind the others, where a reader that came before does not look.
type Tier = Arc<[AtomicU32]>;

fn new_tier(rows: impl ExactSizeIterator<Item = u32>, room: usize) -> Tier {
    let len = rows.len() as u32;
    let empty = std::iter::repeat_n(0, room.saturating_sub(rows.len()));
    std::iter::once(len).chain(rows).chain(empty).map(AtomicU32::new).collect()
}

fn no_tier() -> Tier {
    new_tier(std::iter::empty(), 0)
}

/// How many rows a tier has.
#[inline]
fn tier_len(tier: &[AtomicU32]) -> usize {
    tier.first().map_or(0, |len| len.load(Ordering::Acquire) as usize)
}

/// A tier's `index`th row, oldest first.
#[inline]
fn tier_row(tier: &[AtomicU32], index: usize) -> u32 {
    tier.get(index + 1).map_or(u32::MAX, |row| row.load(Ordering::Relaxed))
}

fn tier_rows(tier: &[AtomicU32]) -> impl DoubleEndedIterator<Item = u32> + ExactSizeIterator {
    (0..tier_len(tier)).map(|index| tier_row(tier, index))
}

/// Puts a row into its place, behind the others if it is the newest and there is room; else gives the
/// tier that is to replace this one.
fn add(tier: &Tier, row: u32, table: &Table) -> Option<Tier> {
    let (len, place) = (tier_len(tier), table.place(row));
    let is_newer = |index: usize| table.place(tier_row(tier, index)) < place;
    // Nearly always it belongs at the end or near it.
    let mut ahead = 1;
    while ahead <= len && is_newer(len - ahead) {
        ahead *= 2;
    }
    let near = len.saturating_sub(ahead);
    let at = near + partition((len - near) as u32, |i| !is_newer(near + i as usize)) as usize;
    if at == len
        && let Some(free) = tier.get(len + 1)
    {
        free.store(row, Ordering::Relaxed);
        tier[0].store(len as u32 + 1, Ordering::Release);
        return None;
    }
    let room = if len + 1 < tier.len() { tier.len() - 1 } else { (len * 2).max(4) };
    let mut rows: Vec<u32> = tier_rows(tier).collect();
    rows.insert(at, row);
    Some(new_tier(rows.into_iter(), room))
}

fn merge(newer: &[AtomicU32], older: &[AtomicU32], table: &Table) -> Tier {
    let mut out = Vec::with_capacity(tier_len(newer) + tier_len(older));
    let mut from = 0;
    for row in tier_rows(newer) {
        let (len, place) = (tier_len(older), table.place(row));
        let is_older = |index: usize| table.place(tier_row(older, index)) > place;
        // What came later is newer as a rule: few of the older ones come behind it.
        let mut ahead = 1;
        while ahead <= len - from && !is_older(len - ahead) {
            ahead *= 2;
        }
        let near = len.saturating_sub(ahead).max(from);
        let to = near + partition((len - near) as u32, |i| is_older(near + i as usize)) as usize;
        out.extend((from..to).map(|index| tier_row(older, index)));
        out.push(row);
        from = to;
    }
    out.extend((from..tier_len(older)).map(|index| tier_row(older, index)));
    new_tier(out.into_iter(), 0)
}

/// Rows in order, in up to three tiers.
#[derive(Clone)]
enum List {
    One(u32),
    Few(Tier),
    Many(Arc<[Tier; 3]>),
}

impl List {
    /// Inserts a row; gives the list that is to replace this one, if it does not grow where it is.
    fn insert(&self, row: u32, table: &Table) -> Option<Self> {
        match self {
            Self::One(one) => {
                let few = new_tier(std::iter::once(*one), 4);
                Some(Self::Few(add(&few, row, table).unwrap_or(few)))
            }
            Self::Few(few) if tier_len(few) < TIERS[0] => add(few, row, table).map(Self::Few),
            Self::Few(few) => {
                let first = new_tier(std::iter::once(row), TIERS[0]);
                Some(Self::Many(Arc::new([first, Arc::clone(few), no_tier()])))
            }
            Self::Many(tiers) => {
                let added = add(&tiers[0], row, table);
                let len = added.as_ref().map_or_else(|| tier_len(&tiers[0]), |tier| tier_len(tier));
                if added.is_none() && len < TIERS[0] {
                    return None;
                }
                let mut tiers = (**tiers).clone();
                if let Some(added) = added {
                    tiers[0] = added;
                }
                for (at, full) in TIERS.into_iter().enumerate() {
                    if tier_len(&tiers[at]) < full {
                        break;
                    }
                    tiers[at + 1] = merge(&tiers[at], &tiers[at + 1], table);
                    tiers[at] =
                        if at == 0 { new_tier(std::iter::empty(), TIERS[0]) } else { no_tier() };
                }
                Some(Self::Many(Arc::new(tiers)))
            }
        }
    }

    fn runs(&self, each: &mut impl FnMut(Run)) {
        let mut tier = |tier: &Tier| {
            let len = tier_len(tier);
            if len > 0 {
                each(Run::Tier(Arc::clone(tier), len as u32));
            }
        };
        match self {
            Self::One(row) => each(Run::One(*row)),
            Self::Few(few) => tier(few),
            Self::Many(tiers) => tiers.iter().for_each(tier),
        }
    }
}

/// A term's lists, by kind.
#[derive(Clone)]
enum Lists {
    One(u32, List),
    Few(Vec<(u32, List)>),
    Many(Arc<HashMap<u32, List>>),
}

impl Lists {
    /// Inserts a row; gives the lists that are to replace these, if they do not grow where they are.
    fn insert(&self, kind: u32, row: u32, table: &Table) -> Option<Self> {
        match self {
            Self::One(known, list) if *known == kind => {
                list.insert(row, table).map(|list| Self::One(kind, list))
            }
            Self::One(known, list) => {
                Some(Self::Few(vec![(*known, list.clone()), (kind, List::One(row))]))
            }
            Self::Few(lists) => {
                let at = lists.iter().position(|(known, _)| *known == kind);
                let grown = match at {
                    Some(at) => lists[at].1.insert(row, table)?,
                    None => List::One(row),
                };
                let mut lists = lists.clone();
                match at {
                    Some(at) => lists[at].1 = grown,
                    None => lists.push((kind, grown)),
                }
                if lists.len() <= FEW_KINDS {
                    return Some(Self::Few(lists));
                }
                Some(Self::Many(Arc::new(lists.into_iter().collect())))
            }
            Self::Many(lists) => {
                insert_in(lists, kind, row, table);
                None
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

    fn runs(&self, kinds: Option<&[u32]>, each: &mut impl FnMut(Run)) {
        match (self, kinds) {
            (Self::One(kind, list), _) => {
                if kinds.is_none_or(|kinds| kinds.binary_search(kind).is_ok()) {
                    list.runs(each);
                }
            }
            (Self::Few(lists), _) => lists
                .iter()
                .filter(|(kind, _)| kinds.is_none_or(|kinds| kinds.binary_search(kind).is_ok()))
                .for_each(|(_, list)| list.runs(each)),
            (Self::Many(lists), None) => {
                lists.pin().iter().for_each(|(_, list)| list.runs(each));
            }
            (Self::Many(lists), Some(kinds)) => runs_in(lists, kinds, each),
        }
    }
}

fn insert_in(lists: &HashMap<u32, List>, kind: u32, row: u32, table: &Table) {
    let lists = lists.pin();
    let grown = match lists.get(&kind) {
        Some(list) => list.insert(row, table),
        None => Some(List::One(row)),
    };
    if let Some(grown) = grown {
        lists.insert(kind, grown);
    }
}

fn runs_in(lists: &HashMap<u32, List>, kinds: &[u32], each: &mut impl FnMut(Run)) {
    let lists = lists.pin();
    kinds.iter().filter_map(|kind| lists.get(kind)).for_each(|list| list.runs(each));
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

/// Tables of ids: together they take all rows that a head can have.
const ID_TABLES: usize = 14;

/// Rows by the hash of their id: open addressing, in tables of which only the last one is filled. A
/// slot is a row and one, or 0.
struct Ids {
    /// Slots of the first table, a power of two; each next one has twice as many.
    slots: usize,
    tables: [OnceLock<Box<[AtomicU32]>>; ID_TABLES],
}

impl Ids {
    /// For so many rows, or more.
    fn new(rows: u32) -> Self {
        let slots = (rows.clamp(512, ROWS_MAX as u32) * 2).next_power_of_two() as usize;
        Self { slots, tables: [const { OnceLock::new() }; ID_TABLES] }
    }

    /// Rows that may have this hash, the latest table's first.
    fn rows(&self, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let tables = self.tables.iter().rev().filter_map(OnceLock::get);
        tables.flat_map(move |slots| {
            let start = hash as usize & (slots.len() - 1);
            let (before, behind) = slots.split_at(start);
            let slots = behind.iter().chain(before);
            let rows = slots.map(|slot| slot.load(Ordering::Acquire));
            rows.take_while(|row| *row > 0).map(|row| row - 1)
        })
    }

    /// Notes a row; `row` rows are there before it.
    fn insert(&self, hash: u64, row: u32) {
        let full = |at: usize| row as usize >= ((self.slots << (at + 1)) - self.slots) / 8 * 5;
        let at = (0..ID_TABLES - 1).take_while(|&at| full(at)).count();
        let slots = self.tables[at]
            .get_or_init(|| (0..self.slots << at).map(|_| AtomicU32::new(0)).collect());
        let start = hash as usize & (slots.len() - 1);
        let (before, behind) = slots.split_at(start);
        let free = behind.iter().chain(before).find(|slot| slot.load(Ordering::Relaxed) == 0);
        if let Some(slot) = free {
            slot.store(row + 1, Ordering::Release);
        }
    }
}

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
    ids: Ids,
    inserted: AtomicU32,
    published: AtomicU32,
    /// Whether a record was asked for that is not in the log yet.
    missed: AtomicBool,
    dead: DeadRows,
    oldest: AtomicU64,
    newest: AtomicU64,
    expiring: Mutex<BTreeMap<u64, Vec<u32>>>,
    next_expiry: AtomicU64,
}

impl Head {
    /// An empty head for `log`, with room for about so many rows before its tables grow, which costs
    /// the one that inserts.
    pub fn new(log: Arc<Log>, terms: Terms, base: u64, rows: u32) -> Self {
        let room = rows.min(ROWS_MAX as u32) as usize * 2;
        Self {
            log,
            base,
            terms,
            table: Table::new(),
            every: terms.every(),
            kinds: HashMap::new(),
            lists: HashMap::with_capacity_and_hasher(room, BuildHasherDefault::default()),
            ids: Ids::new(rows),
            inserted: AtomicU32::new(0),
            published: AtomicU32::new(0),
            missed: AtomicBool::new(false),
            dead: DeadRows::new(0),
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
                None => Some(Lists::One(kind, List::One(row))),
            };
            if let Some(grown) = grown {
                lists.insert(term, grown);
            }
        }
        self.ids.insert(self.terms.id(id), row);
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
        let record = self.log.record(offset, false);
        if record.is_none() && u64::from(offset) >= self.log.written() {
            self.missed.store(true, Ordering::Release);
        }
        record
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
        if self.dead.kill(row, || chunk.dead.set(row % CHUNK as u32), || Some(found.kind)) {
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
    /// A tier of a longer list, and how many rows it had.
    Tier(Tier, u32),
}

impl Run {
    fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Tier(_, len) => *len as usize,
        }
    }

    /// The `index`th row, newest first.
    #[inline]
    fn row(&self, index: usize) -> u32 {
        match self {
            Self::One(row) => *row,
            Self::Tier(tier, len) => tier_row(tier, *len as usize - 1 - index),
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

    fn every(&self, each: &mut impl FnMut(Run)) {
        self.terms(&[self.head.every], None, &mut |_, run| each(run));
    }

    fn kinds(&self, kinds: &[u32], each: &mut impl FnMut(Run)) {
        runs_in(&self.head.kinds, kinds, each);
    }

    fn has_kinds(&self, kinds: &[u32]) -> bool {
        let lists = self.head.kinds.pin();
        kinds.iter().any(|kind| lists.contains_key(kind))
    }

    fn run_kind(&self, run: &Run) -> Option<u32> {
        self.head.row(run.row(0)).map(|row| row.kind)
    }

    fn has_term(&self, term: u64, kinds: Option<&[u32]>) -> bool {
        self.head.lists.pin().get(&term).is_some_and(|lists| lists.has(kinds))
    }

    fn terms(&self, terms: &[u64], kinds: Option<&[u32]>, each: &mut impl FnMut(u32, Run)) {
        let lists = self.head.lists.pin();
        for (at, term) in (0..).zip(terms) {
            if let Some(lists) = lists.get(term) {
                lists.runs(kinds, &mut |run| each(at, run));
            }
        }
    }

    fn find(&self, id: &Id, hash: u64) -> Option<u32> {
        let prefix = id_prefix(id);
        let mut rows = self.head.ids.rows(hash).filter(|&row| {
            row < self.rows && self.head.row(row).is_some_and(|row| row.id == prefix)
        });
        // An id that was deleted and put again has several rows, of which one may be alive.
        let first = rows.next()?;
        if !self.is_dead(first) {
            return Some(first);
        }
        rows.find(|&row| !self.is_dead(row)).or(Some(first))
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
        let len = run.len();
        if window.is_everything() {
            return 0..len;
        }
        let rank = |index: u32| self.head.table.rank(run.row(index as usize));
        let start = partition(len as u32, |index| window.is_before(rank(index)));
        let end = partition(len as u32, |index| !rank(index).0 >= window.from);
        start as usize..end.max(start) as usize
    }

    fn within(&self, row: u32, window: &Window) -> bool {
        let rank = self.head.table.rank(row);
        !rank.0 >= window.from && !window.is_before(rank)
    }

    fn key(&self, run: &Run, index: usize, order: Order) -> HeadKey {
        self.key_of(run.row(index), order)
    }

    fn key_of(&self, row: u32, order: Order) -> HeadKey {
        let (time, id) = self.head.table.rank(row);
        (if order == Order::NewestFirst { time } else { !time }, id, row)
    }

    fn row(&self, key: HeadKey) -> u32 {
        key.2
    }

    #[inline]
    fn row_at(&self, run: &Run, index: usize) -> u32 {
        run.row(index)
    }

    fn run_time(&self, run: &Run, index: usize) -> u64 {
        self.time(run.row(index))
    }

    fn time(&self, row: u32) -> u64 {
        self.head.row(row).map_or(0, |row| row.time)
    }

    fn seek(&self, run: &Run, range: Range<usize>, row: u32) -> usize {
        let table = &self.head.table;
        let place = table.place(row);
        let before = |at: u32| table.place(run.row(range.start + at as usize)) < place;
        range.start + partition(range.len() as u32, before) as usize
    }

    fn is_dead(&self, row: u32) -> bool {
        row >= self.rows
            || self.head.chunk(row).is_none_or(|chunk| {
                let bits = if self.writing { &chunk.doomed } else { &chunk.dead };
                bits.get(row % CHUNK as u32)
            })
    }

    fn dead_rows(&self, kind: Option<u32>, rows: &mut Vec<u32>) {
        let all = || {
            let rows = 0..self.head.inserted().min(self.rows);
            rows.filter(|&row| self.is_dead(row)).collect::<Vec<u32>>()
        };
        match kind {
            Some(kind) if !self.writing => {
                let kind_of = |row| self.head.row(row).map(|row| row.kind);
                self.head.dead.of_kind(kind, all, kind_of, rows);
                rows.retain(|&row| row < self.rows);
            }
            _ if self.writing || self.head.dead_count() > 0 => rows.extend(all()),
            _ => {}
        }
        rows.extend(self.rows..self.head.inserted());
    }

    fn locate(&self, row: u32) -> u32 {
        self.head.row(row).map_or(u32::MAX, |row| row.offset)
    }

    fn locate_alive(&self, row: u32) -> Option<u32> {
        let chunk = self.head.chunk(row).filter(|_| row < self.rows)?;
        let (bits, at) =
            (if self.writing { &chunk.doomed } else { &chunk.dead }, row % CHUNK as u32);
        let found = chunk.rows[at as usize].get()?;
        (!bits.get(at)).then_some(found.offset)
    }

    fn prefetch(&self, offset: u32) {
        self.head.log.prefetch(offset);
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

#[cfg(test)]
mod tests {
    use hark_archive::query::prepared::Terms as _;
    use hark_codec::record::{self, Place};
    use hark_testkit::random::Random;

    use super::*;

    const SECRET: [u8; 16] = [7; 16];

    /// Few times, ids that agree in their first bytes, few kinds and labels: all that makes lists
    /// grow at any place.
    fn records(count: usize, seed: u64) -> Vec<Vec<u8>> {
        let mut random = Random::new(seed);
        let one = |at: usize| {
            let mut id: Id = random.bytes();
            id[..7].fill(0);
            let late = if random.once_in(3) { random.below(400) } else { 0 };
            let head = record::Head {
                id,
                time: 10_000 + (at / 4) as u64 - late as u64,
                author: Some([random.below(3) as u8; 32]),
                kind: if random.once_in(2) { 1 } else { random.below(30) as u32 },
                expires: None,
            };
            let value = [b'a' + random.below(5) as u8];
            let mut out = Vec::new();
            record::write(&mut out, &head, b"", [(b't', Place::Bytes(&value))].into_iter());
            out
        };
        (0..count).map(one).collect()
    }

    /// Rows of all runs in one list, after a look at each run's own order.
    fn gather(view: &HeadView, terms: &[u64], kinds: Option<&[u32]>) -> Vec<u32> {
        let mut rows = Vec::new();
        view.terms(terms, kinds, &mut |_, run| {
            let of_run: Vec<u32> = (0..run.len()).map(|index| run.row(index)).collect();
            assert!(of_run.is_sorted_by_key(|&row| view.head.table.place(row)), "newest first");
            rows.extend(of_run);
        });
        rows.retain(|&row| row < view.rows);
        rows.sort_unstable();
        rows
    }

    fn look(head: &Arc<Head>, records: &[Vec<u8>], terms: &Terms, random: &mut Random) -> usize {
        let view = HeadView::published(head);
        let seen = view.rows as usize;
        let author = [random.below(3) as u8; 32];
        let kind = random.below(30) as u32;
        let value = [b'a' + random.below(5) as u8];
        let expected = |wanted: &dyn Fn(&Record<'_>) -> bool| -> Vec<u32> {
            let view = |bytes: &'_ [u8]| Record::new(bytes).is_ok_and(|record| wanted(&record));
            (0u32..).zip(&records[..seen]).filter(|(_, r)| view(r)).map(|(row, _)| row).collect()
        };
        let by_author = gather(&view, &[terms.author(&author)], None);
        assert_eq!(by_author, expected(&|record| record.author() == Some(&author)));
        let labelled = gather(&view, &[terms.label(b't', &value)], Some(&[kind]));
        let has = |record: &Record<'_>| record.labels().any(|label| label == (b't', &value[..]));
        assert_eq!(labelled, expected(&|record| record.kind() == kind && has(record)));
        assert_eq!(gather(&view, &[terms.every()], None).len(), seen);
        for (row, bytes) in records[..seen].iter().enumerate().rev().take(50) {
            let id = Record::new(bytes).expect("sound").id();
            assert_eq!(view.find(id, terms.id(id)), Some(row as u32));
        }
        seen
    }

    #[test]
    fn readers_find_every_published_row_in_order_while_rows_are_inserted() {
        let records = records(6_000, 3);
        let terms = Terms::new(&SECRET);
        // Room for fewer, so that tables grow.
        let head = Arc::new(Head::new(Arc::new(Log::empty()), terms, 0, 500));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut random = Random::new(5);
                while look(&head, &records, &terms, &mut random) < records.len() {}
            });
            let mut scratch = Vec::new();
            for batch in records.chunks(7) {
                for bytes in batch {
                    let record = Record::new(bytes).expect("sound");
                    head.insert(&record, 0, &mut scratch);
                }
                head.publish();
            }
        });
        let mut random = Random::new(6);
        for _ in 0..200 {
            look(&head, &records, &terms, &mut random);
        }
    }
}
