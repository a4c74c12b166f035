//! Opens a query on one source: looks up the posting lists that the planner needs.
//!
//! A query may name thousands of values, and a value may have a list for each of thousands of
//! kinds. So the lookups are made in steps, and count as work of the query. A set with too many
//! lists is not walked; its condition is checked on the records instead. Lists of excluded kinds
//! are dropped without a charge.

use std::cell::OnceCell;
use std::ops::ControlFlow;
use std::task::{Poll, ready};

use super::Query;
use super::plan::{Plan, driven_by, plan};
use super::prepared::PreparedQuery;
use super::set::{Set, SetSize};
use super::source::Source;
use super::stream::{PostingSlice, find};
use super::words::WORD_LISTS;

/// Maximum number of words that one word prefix may stand for. If more words have this prefix, the
/// condition is checked on the records instead.
const COMPLETED_MAX: usize = 64;
/// Number of terms that are looked up in one step.
const TERMS_AT_ONCE: usize = 32;
/// The work that is charged for looking up a term or an id.
const LOOKUP_WORK: u64 = 4;
/// Number of (term, kind) pairs whose look-ups are together charged as much as one found list.
const PAIRS_OF_A_LIST: usize = 8;
/// Maximum number of lists of a set that has several terms. A single term has about one list for
/// each kind.
const LISTS_MAX: usize = 1 << 15;
/// If a value has at most this number of posting lists, a row that was found by its id is looked up
/// in these lists before its record is read.
const FEW_LISTS: usize = 32;
const IDS_MIN: usize = 8;
/// Number of lookups and lists per source that are not charged as visited rows. Most queries need
/// fewer.
const LOOKUPS_FREE: u64 = 64;

/// A plan, with the posting lists and rows that the lookups found.
pub(super) struct OpenedPlan<S: Source> {
    pub(super) plan: Plan,
    found: Vec<FoundSet<S>>,
    /// The posting lists that a walk over all rows skips.
    pub(super) excluded: Vec<PostingSlice<S::PostingList>>,
    pub(super) rows: Vec<u32>,
    /// The cost of the lookups, as a number of visited rows.
    pub(super) visited: u64,
}

struct FoundSet<S: Source> {
    set: Set,
    /// `None` if the set has too many lists.
    size: Option<SetSize>,
    lists: Vec<PostingSlice<S::PostingList>>,
}

impl<S: Source> OpenedPlan<S> {
    /// Returns the posting lists of a set in the plan.
    pub(super) fn lists(&self, set: Set) -> Option<&[PostingSlice<S::PostingList>]> {
        self.found.iter().find(|known| known.set == set).map(|known| &*known.lists)
    }

    /// Removes and returns the posting lists of a set in the plan.
    pub(super) fn take(&mut self, set: Set) -> Vec<PostingSlice<S::PostingList>> {
        let at = self.found.iter().position(|known| known.set == set);
        at.map_or_else(Vec::new, |at| self.found.swap_remove(at).lists)
    }
}

/// The index of a needed word that is a prefix, and all words of one source with this prefix.
type CompletedWord = (usize, Vec<Box<str>>);

/// The conditions of a query for words, in one source.
struct WordSets {
    /// Conditions for which the source has posting lists.
    listed: Vec<(Set, u64)>,
    /// Conditions that must be checked on the records.
    others: Vec<Set>,
    completed: Vec<CompletedWord>,
}

impl WordSets {
    fn new<S: Source>(source: &S, query: &PreparedQuery) -> Self {
        let (mut listed, mut others, mut completed) = (Vec::new(), Vec::new(), Vec::new());
        let needed = query.words.as_ref().map_or(&[][..], |words| words.needed());
        for &(set, probes) in &query.conditions {
            let Set::Word(i) = set else {
                listed.push((set, probes));
                continue;
            };
            let one = needed.get(i).filter(|_| source.has_words());
            let words = one.filter(|one| one.is_prefix);
            let words = words.map(|one| source.words_from(&one.word, COMPLETED_MAX));
            match (one, words) {
                (Some(_), None) => listed.push((set, probes)),
                (Some(_), Some(Some(words))) => {
                    listed.push((set, probes));
                    completed.push((i, words));
                }
                _ => others.push(set),
            }
        }
        Self { listed, others, completed }
    }
}

/// A query that is being opened.
pub(super) struct Opening<S: Source> {
    words: Option<WordSets>,
    lookups: Lookups<S>,
}

/// The results of the lookups so far.
struct Lookups<S: Source> {
    /// The time window. It is prepared only when the first list is found, because the preparation
    /// costs more than a lookup without a result.
    window: OnceCell<S::Window>,
    found: Vec<FoundSet<S>>,
    excluded: Vec<PostingSlice<S::PostingList>>,
    rows: Vec<u32>,
    /// The lists of each condition that has a single value with few lists; see
    /// [`Lookups::few_lists`].
    few: Option<Vec<Vec<PostingSlice<S::PostingList>>>>,
    /// The lists of the current set, clipped to the window. `next` is the number of its terms that
    /// were looked up, and `seen` the number of lists that were found.
    lists: Vec<PostingSlice<S::PostingList>>,
    next: usize,
    seen: usize,
    /// Number of lookups made and lists found so far. Includes the first [`LOOKUPS_FREE`], which
    /// `visited` does not charge.
    counted: u64,
}

impl<S: Source> Opening<S> {
    pub(super) fn new(source: &S, query: &PreparedQuery) -> Self {
        let lookups = Lookups {
            window: OnceCell::new(),
            found: Vec::new(),
            excluded: Vec::new(),
            rows: Vec::new(),
            few: None,
            lists: Vec::new(),
            next: 0,
            seen: 0,
            counted: 0,
        };
        Self { words: query.words.is_some().then(|| WordSets::new(source, query)), lookups }
    }

    /// Returns the cost of the lookups so far, as a number of visited rows.
    pub(super) fn visited(&self) -> u64 {
        self.lookups.counted.saturating_sub(LOOKUPS_FREE)
    }

    /// Returns approximately how many bytes of memory the lists found so far use.
    pub(super) fn bytes(&self, source: &S) -> usize {
        let found = self.lookups.found.iter().map(|known| &known.lists);
        let lists = found.chain([&self.lookups.lists]);
        let bytes_of = |lists: &Vec<PostingSlice<S::PostingList>>| {
            let read: usize = lists.iter().map(|slice| source.list_bytes(&slice.list)).sum();
            lists.capacity() * size_of::<PostingSlice<S::PostingList>>() + read
        };
        lists.map(bytes_of).sum()
    }

    /// Looks up as much as `work` allows. The result is ready once the plan is known. The result is
    /// `None` if nothing in the source can match.
    pub(super) fn look_up(
        &mut self,
        source: &S,
        query: &PreparedQuery,
        work: &mut u64,
    ) -> Poll<Option<OpenedPlan<S>>> {
        if query.kinds.as_ref().is_some_and(|kinds| !source.has_kinds(kinds)) {
            return Poll::Ready(None);
        }
        let Self { words, lookups } = self;
        let words = words.as_ref();
        let conditions = words.map_or(&query.conditions, |words| &words.listed);
        let completed = words.map_or(&[][..], |words| &words.completed);
        let mut size = |set| lookups.size(source, query, (set, completed), work);
        let planned = ready!(match query.driver {
            None => plan(query, conditions, source.rows(), &mut size),
            Some(driver) => driven_by(driver, query, conditions, &mut size),
        });
        let visited = self.visited();
        let Some(mut plan) = planned else { return Poll::Ready(None) };
        plan.residual.extend(self.words.iter().flat_map(|words| &words.others));
        Poll::Ready(Some(OpenedPlan {
            plan,
            found: std::mem::take(&mut self.lookups.found),
            excluded: std::mem::take(&mut self.lookups.excluded),
            rows: std::mem::take(&mut self.lookups.rows),
            visited,
        }))
    }
}

impl<S: Source> Lookups<S> {
    /// Returns the size of a set, after looking up the set if necessary.
    fn size(
        &mut self,
        source: &S,
        query: &PreparedQuery,
        (set, completed): (Set, &[CompletedWord]),
        work: &mut u64,
    ) -> Poll<Option<SetSize>> {
        if let Some(known) = self.found.iter().find(|known| known.set == set) {
            return Poll::Ready(known.size);
        }
        let kinds = query.kinds.as_deref();
        let is_whole = match set {
            Set::Ids => return self.find_ids(source, query, work).map(Some),
            Set::Authors => ready!(self.terms(source, query, (set, &query.authors), work)),
            Set::Label(i) => ready!(self.terms(source, query, (set, &query.labels[i]), work)),
            Set::Time => {
                let left_out =
                    &mut |list| clip(source, query, &self.window, &mut self.excluded, (0, list));
                if !query.not_kinds.is_empty() {
                    source.kinds(&query.not_kinds, left_out);
                }
                let (window, lists) = (&self.window, &mut self.lists);
                source.every(&mut |list| clip(source, query, window, lists, (0, list)));
                true
            }
            Set::Kinds => {
                let (window, lists) = (&self.window, &mut self.lists);
                let each = &mut |list| clip(source, query, window, lists, (0, list));
                source.kinds(kinds.unwrap_or_default(), each);
                self.count(query, set, self.lists.len(), work);
                true
            }
            // A query has few words, and few kinds of records have words, so there are few lists.
            Set::Word(i) => {
                self.words(source, query, (i, completed));
                self.count(query, set, self.lists.len(), work);
                true
            }
        };
        let lists = std::mem::take(&mut self.lists);
        (self.next, self.seen) = (0, 0);
        let none = if set == Set::Time { rows_of(&self.excluded) } else { 0 };
        let size = is_whole.then(|| SetSize {
            rows: rows_of(&lists).saturating_sub(none),
            lists: lists.len(),
            terms: lists.chunk_by(|a, b| a.value == b.value).count(),
        });
        let lists = if is_whole { lists } else { Vec::new() };
        self.found.push(FoundSet { set, size, lists });
        Poll::Ready(size)
    }

    /// Charges lookups and found lists. If the query has a given driver, only the driver is
    /// charged: the lists of other sets may have records that are hidden from the reader.
    fn count(&mut self, query: &PreparedQuery, set: Set, lists: usize, work: &mut u64) {
        if query.driver.is_none_or(|driver| driver == set) {
            self.counted += lists as u64;
            *work = work.saturating_sub(lists as u64);
        }
    }

    /// Looks up the terms of a set. Once ready, the result is false if the set has too many lists.
    fn terms(
        &mut self,
        source: &S,
        query: &PreparedQuery,
        (set, terms): (Set, &[u64]),
        work: &mut u64,
    ) -> Poll<bool> {
        let kinds = query.kinds.as_deref();
        let not_kinds = if kinds.is_none() { &query.not_kinds[..] } else { &[] };
        // The lists of a given driver are not bounded: its records belong to the readers, so there
        // are few lists.
        let is_bounded = terms.len() > 1 && query.driver.is_none_or(|driver| driver != set);
        let max = if is_bounded { LISTS_MAX } else { usize::MAX };
        let mut is_full = false;
        while self.next < terms.len() {
            if *work == 0 {
                return Poll::Pending;
            }
            let some = &terms[self.next..terms.len().min(self.next + TERMS_AT_ONCE)];
            let (first, before) = (self.next as u32, self.seen);
            let (window, lists, seen) = (&self.window, &mut self.lists, &mut self.seen);
            source.terms(some, kinds, &mut |at, list| {
                let is_excluded = !not_kinds.is_empty()
                    && source.list_kind(&list).is_some_and(|kind| not_kinds.contains(&kind));
                if is_excluded {
                    return ControlFlow::Continue(());
                }
                is_full = *seen >= max;
                if is_full {
                    return ControlFlow::Break(());
                }
                *seen += 1;
                clip(source, query, window, lists, (first + at, list));
                ControlFlow::Continue(())
            });
            self.next += some.len();
            let pairs = some.len() * kinds.map_or(0, <[u32]>::len) / PAIRS_OF_A_LIST;
            *work = work.saturating_sub(some.len() as u64 * (LOOKUP_WORK - 1));
            let seen = self.seen - before;
            self.count(query, set, some.len() + pairs + seen, work);
            if is_full {
                return Poll::Ready(false);
            }
        }
        Poll::Ready(true)
    }

    fn words(
        &mut self,
        source: &S,
        query: &PreparedQuery,
        (i, completed): (usize, &[CompletedWord]),
    ) {
        let kinds = query.kinds.as_deref();
        let (window, lists) = (&self.window, &mut self.lists);
        let mut clip = |value, list| clip(source, query, window, lists, (value, list));
        if let Some((_, words)) = completed.iter().find(|(word, _)| *word == i) {
            for (at, word) in (0..).zip(words) {
                let value = |class: u8| at * WORD_LISTS as u32 + u32::from(class);
                source.word(word, kinds, &mut |class, list| clip(value(class), list));
            }
        } else if let Some(one) = query.words.as_ref().and_then(|words| words.needed().get(i)) {
            source.word(&one.word, kinds, &mut |class, list| clip(class.into(), list));
        }
    }

    /// Returns the lists of each condition that has a single value with few lists. A row found by
    /// id matches only if, for each of these conditions, one of the lists contains the row. Looking
    /// up the row in these lists costs less than reading the record of the row.
    fn few_lists(
        &self,
        source: &S,
        query: &PreparedQuery,
    ) -> Vec<Vec<PostingSlice<S::PostingList>>> {
        // With a gate, the check is omitted: the lists may have hidden records, and the number of
        // visited rows must not depend on hidden records.
        if query.id_hashes.len() < IDS_MIN || query.gate.is_some() || query.driver.is_some() {
            return Vec::new();
        }
        let values = [&query.authors].into_iter().chain(&query.labels);
        let few = values.filter_map(|values| {
            let [_] = values[..] else { return None };
            let (mut lists, mut seen) = (Vec::new(), 0);
            source.terms(values, query.kinds.as_deref(), &mut |_, list| {
                let kind = source.list_kind(&list);
                if kind.is_none_or(|kind| !query.not_kinds.contains(&kind)) {
                    seen += 1;
                    clip(source, query, &self.window, &mut lists, (0, list));
                }
                if seen > FEW_LISTS { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            (seen <= FEW_LISTS).then_some(lists)
        });
        few.collect()
    }

    /// Looks up the ids. The work does not depend on whether the records exist.
    fn find_ids(&mut self, source: &S, query: &PreparedQuery, work: &mut u64) -> Poll<SetSize> {
        let few = self.few.take().unwrap_or_else(|| self.few_lists(source, query));
        let few = &*self.few.insert(few);
        if few.iter().any(Vec::is_empty) {
            return Poll::Ready(SetSize::default());
        }
        let is_in = |row: u32| {
            let has = |list: &PostingSlice<_>| {
                source.may_have(&list.list, row) && find(source, list, row).1
            };
            few.iter().all(|lists| lists.iter().any(has))
        };
        let ids = query.ids.iter().flatten().zip(&query.id_hashes);
        for (id, &hash) in ids.skip(self.next) {
            if *work == 0 {
                return Poll::Pending;
            }
            *work = work.saturating_sub(LOOKUP_WORK);
            (self.next, self.counted) = (self.next + 1, self.counted + 1);
            let found = source.find(id, hash).filter(|&row| is_in(row));
            let Some(row) = found.filter(|&row| shows(source, query, row)) else { continue };
            let is_within = || source.within(row, self.window.get_or_init(|| source.window(query)));
            if !query.is_windowed() || is_within() {
                self.rows.push(row);
            }
        }
        Poll::Ready(SetSize { rows: self.rows.len() as u64, lists: 1, terms: 1 })
    }
}

/// Adds the part of a list that lies in the window to `lists`, unless this part is empty.
#[inline]
fn clip<S: Source>(
    source: &S,
    query: &Query,
    window: &OnceCell<S::Window>,
    lists: &mut Vec<PostingSlice<S::PostingList>>,
    (value, list): (u32, S::PostingList),
) {
    let range = source.clip(&list, window.get_or_init(|| source.window(query)));
    if !range.is_empty() {
        lists.push(PostingSlice { list, range, value, kind: None });
    }
}

/// Returns whether the reader may see the row of an id. Other rows are not visited, because the
/// cost of the query would reveal that their records exist.
fn shows<S: Source>(source: &S, query: &Query, row: u32) -> bool {
    let open = query.gate.is_none() && query.not_kinds.is_empty();
    // The row of a damaged record counts as visible, so that the search visits the row and reports
    // the damage.
    open || (!source.is_dead(row)
        && source.record(row).is_none_or(|record| {
            !query.not_kinds.contains(&record.kind())
                && query.gate.as_ref().is_none_or(|gate| gate.is_visible(&record))
        }))
}

fn rows_of(lists: &[PostingSlice<impl Sized>]) -> u64 {
    lists.iter().map(|list| list.range.len() as u64).sum()
}

/// Returns the plan for one source, for explanations.
pub(super) fn explain<S: Source>(source: &S, query: &PreparedQuery) -> Option<Plan> {
    match Opening::new(source, query).look_up(source, query, &mut { u64::MAX }) {
        Poll::Ready(opened) => opened.map(|opened| opened.plan),
        Poll::Pending => None,
    }
}
