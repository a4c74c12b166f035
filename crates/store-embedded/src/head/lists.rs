//! The posting lists of a head: the ordered rows of each term and kind.
//!
//! The lists are entries of a hash table with chains. An entry is one cache line, with the newest
//! time and the first few rows. So an insert touches little memory outside the cache: the start of
//! the chain, the entry, and for a long list the list itself.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::arena::Arena;
use super::long::{LongList, SharedRows};
use super::size::ROWS_MAX;
use super::table::RowTable;
use super::word_run::WordRun;

/// Maximum number of rows in the entry itself.
const INLINE: usize = 7;
/// Number of a term's first entries that are found only through links. A term has an entry for each
/// kind, and each entry links to the next. The entries of all further kinds are also in hash
/// chains, selected by the hash of term and kind.
const FEW_KINDS: usize = 16;
/// Number of tables of chains. Each table has four times as many chains as the previous table. New
/// entries go to the next table once the chains of all previous tables have one entry on average.
const TABLES: usize = 12;

/// The posting list of a term and kind. Links to other entries are stored as the entry's number
/// plus one; 0 means no entry.
#[derive(Default)]
#[repr(align(64))]
struct ListEntry {
    term: AtomicU64,
    /// Time of the list's newest row.
    newest: AtomicU64,
    kind: AtomicU32,
    /// The next entry of the chain.
    next: AtomicU32,
    /// The next entry of the same term.
    sibling: AtomicU32,
    /// The long list. If the rows do not fit into the entry, or if a row has arrived out of order,
    /// the long list has all rows of the entry.
    long: AtomicU32,
    /// Whether the hash of term and kind selects the entry's chain (true), or the term alone
    /// (false).
    is_far: AtomicBool,
    len: AtomicU8,
    /// In the first entry of a term: the bits of the term's kinds ([`bit`]). If the bit of a kind is
    /// not set, the term does not have the kind, and no further entry is read. Kinds share bits.
    kinds: AtomicU16,
    rows: [AtomicU32; INLINE],
}

/// Approximate memory of an entry in bytes, with its slot in the chains.
pub(super) const ENTRY_BYTES: u64 = 80;
/// Approximate memory of a long list without its rows, in bytes.
const LONG_BYTES: u64 = 200;
/// Approximate memory of a row in a long list, in bytes.
pub(super) const POSTING_BYTES: u64 = 4;

impl ListEntry {
    fn is(&self, term: u64) -> bool {
        self.term.load(Ordering::Relaxed) == term
    }

    fn is_far(&self) -> bool {
        self.is_far.load(Ordering::Relaxed)
    }

    fn kind(&self) -> u32 {
        self.kind.load(Ordering::Relaxed)
    }
}

fn bit(kind: u32) -> u16 {
    1 << (kind.wrapping_mul(0x9e37_79b9) >> 28)
}

/// The posting lists of a head; see the module's documentation.
pub(super) struct PostingLists {
    entries: Arena<ListEntry>,
    long: Arena<LongList>,
    /// Number of chains of the first table, a power of two.
    chains: usize,
    tables: [OnceLock<Box<[AtomicU32]>>; TABLES],
    /// The list of all rows.
    every: ListEntry,
}

/// Returns the hash that selects the chain of one kind of a term that has many kinds.
fn far(term: u64, kind: u32) -> u64 {
    term ^ u64::from(kind).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl PostingLists {
    /// Makes empty lists, sized for about `rows` rows. The tables can grow.
    pub(super) fn new(rows: u32) -> Self {
        let chains = (rows.clamp(512, ROWS_MAX as u32) * 4).next_power_of_two() as usize;
        Self {
            entries: Arena::new(),
            long: Arena::new(),
            chains,
            tables: [const { OnceLock::new() }; TABLES],
            every: ListEntry::default(),
        }
    }

    /// Approximate memory of the lists in bytes, without their rows and without the first table of
    /// chains.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.entries.len()) * ENTRY_BYTES + u64::from(self.long.len()) * LONG_BYTES
    }

    /// Memory of the first table of chains in bytes.
    pub(super) fn table_bytes(&self) -> u64 {
        self.chains as u64 * 4
    }

    fn entry(&self, link: &AtomicU32) -> Option<&ListEntry> {
        self.entries.get(link.load(Ordering::Acquire).checked_sub(1)?)
    }

    fn find(&self, hash: u64, is_it: impl Fn(&ListEntry) -> bool) -> Option<&ListEntry> {
        let tables = self.tables.iter().map_while(OnceLock::get);
        let mut chains = tables.map(|chains| &chains[hash as usize & (chains.len() - 1)]);
        chains.find_map(|chain| {
            let mut at = self.entry(chain);
            while let Some(entry) = at {
                if is_it(entry) {
                    return Some(entry);
                }
                at = self.entry(&entry.next);
            }
            None
        })
    }

    /// Returns the first entry of a term, which is the oldest.
    fn find_first(&self, term: u64) -> Option<&ListEntry> {
        self.find(term, |entry| entry.is(term) && !entry.is_far())
    }

    fn find_far(&self, term: u64, kind: u32) -> Option<&ListEntry> {
        let is_it = |entry: &ListEntry| entry.is(term) && entry.kind() == kind && entry.is_far();
        self.find(far(term, kind), is_it)
    }

    /// Makes an entry; `sibling` is the next entry of the same term. Readers cannot find the entry
    /// before [`Self::link`].
    fn make(&self, term: u64, kind: u32, sibling: u32) -> (u32, &ListEntry) {
        let (number, entry) = self.entries.add();
        entry.term.store(term, Ordering::Relaxed);
        entry.kind.store(kind, Ordering::Relaxed);
        entry.sibling.store(sibling, Ordering::Relaxed);
        (number, entry)
    }

    /// Puts an entry into a chain.
    fn link(&self, hash: u64, number: u32, entry: &ListEntry) {
        // The tables up to `at` have `chains * (4^(at + 1) - 1) / 3` chains in total.
        let full = |at: usize| number as usize >= ((self.chains << (2 * at + 2)) - self.chains) / 3;
        let at = (0..TABLES - 1).take_while(|&at| full(at)).count();
        let chains = self.tables[at]
            .get_or_init(|| (0..self.chains << (2 * at)).map(|_| AtomicU32::new(0)).collect());
        let chain = &chains[hash as usize & (chains.len() - 1)];
        entry.next.store(chain.load(Ordering::Relaxed), Ordering::Relaxed);
        chain.store(number + 1, Ordering::Release);
    }

    fn make_far(&self, term: u64, kind: u32, sibling: u32) -> (u32, &ListEntry) {
        let (number, entry) = self.make(term, kind, sibling);
        entry.is_far.store(true, Ordering::Relaxed);
        self.link(far(term, kind), number, entry);
        (number, entry)
    }

    /// Returns the list of a term and kind.
    fn list(&self, term: u64, kind: u32) -> &ListEntry {
        let Some(first) = self.find_first(term) else {
            let (number, entry) = self.make(term, kind, 0);
            entry.kinds.store(bit(kind), Ordering::Relaxed);
            self.link(term, number, entry);
            return entry;
        };
        // Only one thread inserts, so a load and a store suffice.
        let kinds = first.kinds.load(Ordering::Relaxed);
        if kinds & bit(kind) == 0 {
            first.kinds.store(kinds | bit(kind), Ordering::Relaxed);
        }
        let mut last = first;
        for _ in 1..FEW_KINDS {
            if last.kind() == kind {
                return last;
            }
            let Some(next) = self.entry(&last.sibling) else {
                let (number, entry) = self.make(term, kind, 0);
                last.sibling.store(number + 1, Ordering::Release);
                return entry;
            };
            last = next;
        }
        if last.kind() == kind {
            return last;
        }
        if let Some(known) = self.find_far(term, kind) {
            return known;
        }
        let (number, entry) = self.make_far(term, kind, last.sibling.load(Ordering::Relaxed));
        last.sibling.store(number + 1, Ordering::Release);
        entry
    }

    /// Loads the entries of a few dozen terms into the processor's cache, all at the same time.
    /// Otherwise the lookups would wait for memory one after the other.
    pub(super) fn warm(&self, terms: &[u64]) {
        let Some(chains) = self.tables[0].get() else { return };
        let first = |term: &u64| &chains[*term as usize & (chains.len() - 1)];
        let load = |link: &AtomicU32| link.load(Ordering::Relaxed);
        let behind = |link: &AtomicU32| Some(load(&self.entry(link)?.sibling));
        let second = |term: &u64| behind(&self.entry(first(term))?.sibling);
        let long = |term: &u64| Some(self.long(self.entry(first(term))?)?.len());
        std::hint::black_box(terms.iter().map(|term| load(first(term))).fold(0, u32::max));
        std::hint::black_box(terms.iter().filter_map(|term| behind(first(term))).fold(0, u32::max));
        std::hint::black_box(terms.iter().filter_map(second).fold(0, u32::max));
        std::hint::black_box(terms.iter().filter_map(long).fold(0, u32::max));
    }

    /// Inserts a row into the list of a term and kind.
    pub(super) fn insert(&self, term: u64, row: u32, (kind, time): (u32, u64), table: &RowTable) {
        self.grow(self.list(term, kind), row, time, table);
    }

    /// Inserts a row into the list of all rows and into the list of its kind. `every` is the term
    /// that all rows have. This term may have thousands of kinds, so the hash of term and kind
    /// selects the chain of each of its entries, and the entries are not linked to each other.
    pub(super) fn insert_every(
        &self,
        every: u64,
        row: u32,
        (kind, time): (u32, u64),
        table: &RowTable,
    ) {
        self.grow(&self.every, row, time, table);
        let known = self.find_far(every, kind);
        let list = known.unwrap_or_else(|| self.make_far(every, kind, 0).1);
        self.grow(list, row, time, table);
    }

    fn grow(&self, entry: &ListEntry, row: u32, time: u64, table: &RowTable) {
        let (len, newest) =
            (entry.len.load(Ordering::Relaxed), entry.newest.load(Ordering::Relaxed));
        let is_newest = len == 0 || time > newest;
        if is_newest {
            entry.newest.store(time, Ordering::Relaxed);
        }
        if let Some(long) = self.long(entry) {
            return long.insert(row, is_newest, table);
        }
        if is_newest && let Some(free) = entry.rows.get(usize::from(len)) {
            free.store(row, Ordering::Relaxed);
            entry.len.store(len + 1, Ordering::Release);
            return;
        }
        let (number, long) = self.long.add();
        let (rows, len) = few(entry);
        rows[..usize::from(len)].iter().for_each(|&row| long.insert(row, true, table));
        long.insert(row, is_newest, table);
        entry.long.store(number + 1, Ordering::Release);
    }

    fn long(&self, entry: &ListEntry) -> Option<&LongList> {
        self.long.get(entry.long.load(Ordering::Acquire).checked_sub(1)?)
    }

    fn postings_of(&self, entry: &ListEntry, each: &mut impl FnMut(HeadPostings)) {
        if let Some(long) = self.long(entry) {
            return long.postings(|rows| each(HeadPostings::Many(rows)));
        }
        let (rows, len) = few(entry);
        if len > 0 {
            each(HeadPostings::Few(rows, len));
        }
    }

    /// Passes the lists of a term to `each` until `each` returns true. If `kinds` is given, only
    /// lists of these kinds are passed. Returns whether `each` has returned true.
    fn any(
        &self,
        term: u64,
        kinds: Option<&[u32]>,
        each: &mut impl FnMut(&ListEntry) -> bool,
    ) -> bool {
        let mut at = self.find_first(term);
        if let (Some(first), Some(kinds)) = (at, kinds) {
            let bits = first.kinds.load(Ordering::Relaxed);
            if kinds.iter().all(|&kind| bits & bit(kind) == 0) {
                return false;
            }
        }
        let mut few = FEW_KINDS;
        let mut missing = kinds.map_or(usize::MAX, <[u32]>::len);
        while missing > 0
            && let Some(entry) = at
        {
            if few == 0
                && let Some(kinds) = kinds
            {
                return kinds.iter().any(|&kind| self.find_far(term, kind).is_some_and(&mut *each));
            }
            few = few.saturating_sub(1);
            if kinds.is_none_or(|kinds| kinds.binary_search(&entry.kind()).is_ok()) {
                if each(entry) {
                    return true;
                }
                missing -= 1;
            }
            at = self.entry(&entry.sibling);
        }
        false
    }

    /// Whether a row of these kinds has the term.
    pub(super) fn has(&self, term: u64, kinds: Option<&[u32]>) -> bool {
        self.any(term, kinds, &mut |_| true)
    }

    /// Passes the lists of a term to `each` until `each` breaks. If `kinds` is given, only lists of
    /// these kinds are passed.
    pub(super) fn postings(
        &self,
        term: u64,
        kinds: Option<&[u32]>,
        each: &mut impl FnMut(HeadPostings) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut flow = ControlFlow::Continue(());
        self.any(term, kinds, &mut |entry| {
            self.postings_of(entry, &mut |list| flow = each(list));
            flow.is_break()
        });
        flow
    }

    /// Whether a row of the kind exists.
    pub(super) fn has_kind(&self, every: u64, kind: u32) -> bool {
        self.find_far(every, kind).is_some()
    }

    /// Passes the list of a kind to `each`.
    pub(super) fn kind(&self, every: u64, kind: u32, each: &mut impl FnMut(HeadPostings)) {
        if let Some(list) = self.find_far(every, kind) {
            self.postings_of(list, each);
        }
    }

    /// Passes the list of all rows to `each`.
    pub(super) fn every(&self, each: &mut impl FnMut(HeadPostings)) {
        self.postings_of(&self.every, each);
    }

    /// The term, kind and number of every list except the list of all rows.
    pub(super) fn all(&self) -> impl Iterator<Item = (u64, u32, u32)> + '_ {
        (0..self.entries.len()).filter_map(|number| {
            let entry = self.entries.get(number)?;
            Some((entry.term.load(Ordering::Relaxed), entry.kind(), number))
        })
    }

    /// Passes the rows of list number `number` to `each`.
    pub(super) fn nth(&self, number: u32, each: &mut impl FnMut(HeadPostings)) {
        if let Some(entry) = self.entries.get(number) {
            self.postings_of(entry, each);
        }
    }
}

/// Returns the rows in the entry itself, and their number.
fn few(entry: &ListEntry) -> ([u32; INLINE], u8) {
    let len = entry.len.load(Ordering::Acquire);
    (std::array::from_fn(|at| entry.rows[at].load(Ordering::Relaxed)), len)
}

/// A posting list of a head, or a part of such a list.
#[derive(Clone)]
pub enum HeadPostings {
    /// The rows of a short list, oldest first, and their number.
    Few([u32; INLINE], u8),
    /// A part of a longer list, oldest row first.
    Many(SharedRows),
    /// The posting list of a word in a run.
    OfRun(RunPostings),
}

/// The posting list of a word in a run, newest row first.
#[derive(Clone)]
pub struct RunPostings {
    run: Arc<WordRun>,
    /// The list's position in the run's postings.
    at: Range<u32>,
    /// The rows that the run covers.
    span: Range<u32>,
    /// The kind of the list's rows.
    kind: u32,
}

impl RunPostings {
    pub(super) fn new(run: &Arc<WordRun>, kind: u32, at: Range<u32>) -> Self {
        Self { run: Arc::clone(run), at, span: run.span(), kind }
    }
}

impl HeadPostings {
    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few(_, len) => usize::from(*len),
            Self::Many(rows) => rows.len(),
            Self::OfRun(list) => list.at.len(),
        }
    }

    /// The `index`th row, newest first.
    #[inline]
    pub(super) fn row(&self, index: usize) -> u32 {
        match self {
            Self::Few(rows, len) => rows[usize::from(*len) - 1 - index],
            Self::Many(rows) => rows[rows.len() - 1 - index],
            Self::OfRun(list) => list.run.row(list.at.start + index as u32),
        }
    }

    /// Whether the list may have a row, by a test that needs no search.
    #[inline]
    pub(super) fn may_have(&self, row: u32) -> bool {
        match self {
            Self::OfRun(list) => list.span.contains(&row),
            _ => true,
        }
    }

    /// The kind of the list's rows, if the list knows the kind.
    #[inline]
    pub(super) fn kind(&self) -> Option<u32> {
        match self {
            Self::OfRun(list) => Some(list.kind),
            _ => None,
        }
    }
}
