//! The lists of a head: which rows carry a term, by kind, in order.
//!
//! A hash table of chains, made so that an insert touches little memory that is not at hand: the
//! chain's start, the entry (a cache line, which has the newest time and the first few rows in it),
//! and only for a longer list that itself.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::ROWS_MAX;
use super::arena::Arena;
use super::long::{Long, Rows};
use super::table::Table;

/// Rows that an entry has itself.
const INLINE: usize = 7;
/// So many kinds of a term are found one behind another. Those that come later are in chains of
/// their own as well.
const FEW_KINDS: usize = 16;
/// Tables of chains: each has four times as many as the one before, and takes over once that one's
/// chains are an entry long on average.
const TABLES: usize = 12;

/// The list of a term and kind. Numbers of other entries are one too high, so that 0 is none.
#[derive(Default)]
#[repr(align(64))]
struct Entry {
    term: AtomicU64,
    /// Time of its newest row.
    newest: AtomicU64,
    kind: AtomicU32,
    /// The next entry of the chain.
    next: AtomicU32,
    /// The next entry of the term.
    sibling: AtomicU32,
    /// The long list that has all its rows, once they are more than it has room for itself or did
    /// not come in order.
    long: AtomicU32,
    /// Whether it is in the chain of its term and kind, and not of its term.
    is_far: AtomicBool,
    len: AtomicU8,
    /// In the first entry of a term: a bit for each of its kinds ([`bit`]), so that a kind which it
    /// has not is nearly always known without a look at the others.
    kinds: AtomicU16,
    rows: [AtomicU32; INLINE],
}

/// Memory of an entry, about, with its place in the chains.
pub(super) const ENTRY_BYTES: u64 = 80;
/// Memory of a long list without its rows, about.
const LONG_BYTES: u64 = 200;
/// Memory of a row in a list, about: where it is in a long one.
pub(super) const POSTING_BYTES: u64 = 4;

impl Entry {
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

/// See the module.
pub(super) struct Lists {
    entries: Arena<Entry>,
    long: Arena<Long>,
    /// Chains of the first table, a power of two.
    chains: usize,
    tables: [OnceLock<Box<[AtomicU32]>>; TABLES],
    /// The list of all rows.
    every: Entry,
}

/// The chain that the list of a term and kind is in, if the term has many.
fn far(term: u64, kind: u32) -> u64 {
    term ^ u64::from(kind).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Lists {
    /// For so many rows, or more.
    pub(super) fn new(rows: u32) -> Self {
        let chains = (rows.clamp(512, ROWS_MAX as u32) * 4).next_power_of_two() as usize;
        Self {
            entries: Arena::new(),
            long: Arena::new(),
            chains,
            tables: [const { OnceLock::new() }; TABLES],
            every: Entry::default(),
        }
    }

    /// Memory that the lists take, about, but for their rows and the first table of chains.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.entries.len()) * ENTRY_BYTES + u64::from(self.long.len()) * LONG_BYTES
    }

    /// Memory of the first table of chains.
    pub(super) fn table_bytes(&self) -> u64 {
        self.chains as u64 * 4
    }

    fn entry(&self, link: &AtomicU32) -> Option<&Entry> {
        self.entries.get(link.load(Ordering::Acquire).checked_sub(1)?)
    }

    fn find(&self, hash: u64, is_it: impl Fn(&Entry) -> bool) -> Option<&Entry> {
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

    /// The entry of a term that was made first.
    fn find_first(&self, term: u64) -> Option<&Entry> {
        self.find(term, |entry| entry.is(term) && !entry.is_far())
    }

    fn find_far(&self, term: u64, kind: u32) -> Option<&Entry> {
        let is_it = |entry: &Entry| entry.is(term) && entry.kind() == kind && entry.is_far();
        self.find(far(term, kind), is_it)
    }

    /// Makes an entry, in which the next of its term is `sibling`; nobody finds it yet.
    fn make(&self, term: u64, kind: u32, sibling: u32) -> (u32, &Entry) {
        let (number, entry) = self.entries.add();
        entry.term.store(term, Ordering::Relaxed);
        entry.kind.store(kind, Ordering::Relaxed);
        entry.sibling.store(sibling, Ordering::Relaxed);
        (number, entry)
    }

    /// Puts an entry into a chain.
    fn link(&self, hash: u64, number: u32, entry: &Entry) {
        // All tables up to `at` have `chains * (4^(at + 1) - 1) / 3` chains together.
        let full = |at: usize| number as usize >= ((self.chains << (2 * at + 2)) - self.chains) / 3;
        let at = (0..TABLES - 1).take_while(|&at| full(at)).count();
        let chains = self.tables[at]
            .get_or_init(|| (0..self.chains << (2 * at)).map(|_| AtomicU32::new(0)).collect());
        let chain = &chains[hash as usize & (chains.len() - 1)];
        entry.next.store(chain.load(Ordering::Relaxed), Ordering::Relaxed);
        chain.store(number + 1, Ordering::Release);
    }

    fn make_far(&self, term: u64, kind: u32, sibling: u32) -> (u32, &Entry) {
        let (number, entry) = self.make(term, kind, sibling);
        entry.is_far.store(true, Ordering::Relaxed);
        self.link(far(term, kind), number, entry);
        (number, entry)
    }

    /// The list of a term and kind, made if there is none.
    fn list(&self, term: u64, kind: u32) -> &Entry {
        let Some(first) = self.find_first(term) else {
            let (number, entry) = self.make(term, kind, 0);
            entry.kinds.store(bit(kind), Ordering::Relaxed);
            self.link(term, number, entry);
            return entry;
        };
        first.kinds.fetch_or(bit(kind), Ordering::Relaxed);
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

    /// Has what finds the lists of these terms, a few dozen, come nearer all at once; each look would
    /// be waited for on its own else.
    pub(super) fn warm(&self, terms: &[u64]) {
        let Some(chains) = self.tables[0].get() else { return };
        let first = |term: &u64| &chains[*term as usize & (chains.len() - 1)];
        let load = |link: &AtomicU32| link.load(Ordering::Relaxed);
        let behind = |link: &AtomicU32| Some(load(&self.entry(link)?.sibling));
        let second = |term: &u64| behind(&self.entry(first(term))?.sibling);
        std::hint::black_box(terms.iter().map(|term| load(first(term))).fold(0, u32::max));
        std::hint::black_box(terms.iter().filter_map(|term| behind(first(term))).fold(0, u32::max));
        std::hint::black_box(terms.iter().filter_map(second).fold(0, u32::max));
    }

    /// Inserts a row of a term.
    pub(super) fn insert(&self, term: u64, row: u32, (kind, time): (u32, u64), table: &Table) {
        self.grow(self.list(term, kind), row, time, table);
    }

    /// Inserts a row into the list of all, and into that of its kind; `every` is the term that all
    /// have. Its kinds, of which there may be thousands, are each found by themselves.
    pub(super) fn insert_every(
        &self,
        every: u64,
        row: u32,
        (kind, time): (u32, u64),
        table: &Table,
    ) {
        self.grow(&self.every, row, time, table);
        let known = self.find_far(every, kind);
        let list = known.unwrap_or_else(|| self.make_far(every, kind, 0).1);
        self.grow(list, row, time, table);
    }

    fn grow(&self, entry: &Entry, row: u32, time: u64, table: &Table) {
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

    fn long(&self, entry: &Entry) -> Option<&Long> {
        self.long.get(entry.long.load(Ordering::Acquire).checked_sub(1)?)
    }

    fn runs_of(&self, entry: &Entry, each: &mut impl FnMut(Run)) {
        if let Some(long) = self.long(entry) {
            return long.runs(|rows| each(Run::Many(rows)));
        }
        let (rows, len) = few(entry);
        if len > 0 {
            each(Run::Few(rows, len));
        }
    }

    /// Goes through the lists of a term, of these kinds or of all, until `each` is true.
    fn any(&self, term: u64, kinds: Option<&[u32]>, each: &mut impl FnMut(&Entry) -> bool) -> bool {
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

    /// The lists of a term, of these kinds or of all.
    pub(super) fn runs(&self, term: u64, kinds: Option<&[u32]>, each: &mut impl FnMut(Run)) {
        self.any(term, kinds, &mut |entry| {
            self.runs_of(entry, each);
            false
        });
    }

    /// Whether there is a row of the kind.
    pub(super) fn has_kind(&self, every: u64, kind: u32) -> bool {
        self.find_far(every, kind).is_some()
    }

    /// The list of a kind.
    pub(super) fn kind(&self, every: u64, kind: u32, each: &mut impl FnMut(Run)) {
        if let Some(list) = self.find_far(every, kind) {
            self.runs_of(list, each);
        }
    }

    /// The list of all rows.
    pub(super) fn every(&self, each: &mut impl FnMut(Run)) {
        self.runs_of(&self.every, each);
    }

    /// All lists but that of all rows, numbered: the term and kind of each.
    pub(super) fn all(&self) -> impl Iterator<Item = (u64, u32, u32)> + '_ {
        (0..self.entries.len()).filter_map(|number| {
            let entry = self.entries.get(number)?;
            Some((entry.term.load(Ordering::Relaxed), entry.kind(), number))
        })
    }

    /// The rows of a list, by its number.
    pub(super) fn nth(&self, number: u32, each: &mut impl FnMut(Run)) {
        if let Some(entry) = self.entries.get(number) {
            self.runs_of(entry, each);
        }
    }
}

/// The rows that an entry has itself, and how many they are.
fn few(entry: &Entry) -> ([u32; INLINE], u8) {
    let len = entry.len.load(Ordering::Acquire);
    (std::array::from_fn(|at| entry.rows[at].load(Ordering::Relaxed)), len)
}

/// A run of a head, oldest first.
#[derive(Clone)]
pub enum Run {
    /// A short list, and how many rows it had.
    Few([u32; INLINE], u8),
    /// A part of a longer list.
    Many(Rows),
}

impl Run {
    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few(_, len) => usize::from(*len),
            Self::Many(rows) => rows.len(),
        }
    }

    /// The `index`th row, newest first.
    #[inline]
    pub(super) fn row(&self, index: usize) -> u32 {
        match self {
            Self::Few(rows, len) => rows[usize::from(*len) - 1 - index],
            Self::Many(rows) => rows[rows.len() - 1 - index],
        }
    }
}
