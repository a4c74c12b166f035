//! Walks one source: merges the plan's posting lists lazily, intersects them, checks the records.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::task::Poll;

use hark_codec::record::{Id, Record};
use hark_words::CLASS_MAX;

use super::excluded::ExcludedLists;
use super::opening::{OpenedPlan, Opening};
use super::pace::ReadPace;
use super::plan::{Plan, Set};
use super::prepared::PreparedQuery;
use super::ranked::RankBound;
use super::source::Source;
use super::stream::{PostingSlice, PostingStream, find};
use super::words::LazyWords;
use super::{Order, Query};

/// Maximum number of rows that are gathered at once.
const BLOCK_MAX: usize = 32;
/// Records that are prefetched while one is read.
const AHEAD: usize = 8;
/// Comparisons of a label with a condition that count as a row.
const LABELS_OF_A_ROW: usize = 64;
/// Maximum number of rows of a driver that are intersected before they are sorted.
const FEW_MAX: u64 = 4096;
/// Maximum number of streams of a driver that are begun at once. More streams are begun in steps,
/// as beginning a stream reads its first row.
const BEGUN_MAX: usize = 64;
/// The least work that a count may use in a source to look up its posting lists. The lookups are
/// not divided into steps.
const COUNT_WORK: u64 = 2_048;

/// The state of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkStep {
    /// At a row that matches.
    Found,
    /// Out of work; continue later.
    Paused,
    /// Past the last row.
    End,
}

/// The rows that drive a walk.
enum Driver<S: Source> {
    /// Rows in order, each with the value whose posting list it came from.
    Keys(std::vec::IntoIter<(S::Key, u32)>),
    /// So few rows that they are intersected before they are sorted; see [`SourceWalk::cut_all`].
    Few(Vec<PostingStream<S::PostingList>>),
    One(PostingStream<S::PostingList>),
    /// Streams of which only the first `begun` have been stepped to their first rows, `heads`.
    Beginning {
        streams: Vec<PostingStream<S::PostingList>>,
        begun: usize,
        heads: Vec<Reverse<(S::Key, u32)>>,
    },
    /// One stream is followed as long as its next key comes before those of all others. The others
    /// wait in the heap with their next keys.
    Many {
        streams: Vec<PostingStream<S::PostingList>>,
        now: Option<(S::Key, u32)>,
        heap: RowHeap<S::Key>,
    },
}

impl<S: Source> Driver<S> {
    /// Returns the number of posting lists, or of rows if these are sorted.
    fn len(&self) -> usize {
        match self {
            Self::Keys(keys) => keys.len(),
            Self::Few(streams) | Self::Beginning { streams, .. } | Self::Many { streams, .. } => {
                streams.len()
            }
            Self::One(_) => 1,
        }
    }
}

type RowHeap<K> = BinaryHeap<Reverse<(K, u32)>>;

/// A walk over the rows of one source that match a query, in the query's order.
pub struct SourceWalk<S: Source> {
    source: Arc<S>,
    query: Arc<PreparedQuery>,
    driven_by: Set,
    driver: Driver<S>,
    /// The driver's rows that are skipped.
    excluded: ExcludedLists<S>,
    cuts: Vec<Vec<PostingSlice<S::PostingList>>>,
    /// The upper bound of a row's rank, if the query is ranked.
    rank: Option<RowRank>,
    last: Option<u32>,
    /// Rows to be checked next, already located, each with the value whose posting list it came
    /// from. `next` is the index of the first row that is not taken yet.
    block: Vec<(u32, S::RecordLocation, u32)>,
    next: usize,
    pace: ReadPace,
    /// The row at the walk's position.
    here: Option<(u32, S::RecordLocation)>,
    time: u64,
    visited: u64,
    /// Rows whose record could not be read.
    damaged: u64,
    /// The number of rows of the driver.
    driver_rows: u64,
    /// The number of posting lists that are walked or intersected, or of rows if these are sorted.
    lists: usize,
}

/// The upper bound of a row's rank that follows from posting lists of words: the highest possible
/// class of each word or phrase of the question. A record has each word of a phrase at least as
/// often as the phrase. So the class of a phrase is at most the class of each of its words.
struct RowRank {
    bound: Arc<RankBound>,
    /// For each intersected set, and last for the driver, the word or phrase whose class the set's
    /// lists determine.
    terms: Vec<Option<usize>>,
    classes: Vec<u8>,
}

impl RowRank {
    fn new(bound: &Arc<RankBound>, sets: impl Iterator<Item = Set>) -> Self {
        let needed = bound.words().needed();
        let term = |set| match set {
            // Lists of completed beginnings do not determine a class.
            Set::Word(i) => needed.get(i).filter(|one| !one.is_prefix).map(|one| one.term),
            _ => None,
        };
        let classes = vec![CLASS_MAX; bound.words().term_count()];
        Self { bound: Arc::clone(bound), terms: sets.map(term).collect(), classes }
    }

    fn reset(&mut self) {
        self.classes.fill(CLASS_MAX);
    }

    /// Notes that a row was found in the set's list of a class.
    #[inline]
    fn note(&mut self, set: usize, of_row: u32) {
        if let Some(class) =
            self.terms.get(set).copied().flatten().and_then(|t| self.classes.get_mut(t))
        {
            *class = (*class).min(of_row as u8);
        }
    }

    fn admits(&self, time: u64) -> bool {
        self.bound.admits(time, self.classes.iter().map(|&class| u32::from(class)).sum())
    }
}

impl<S: Source> SourceWalk<S> {
    /// Begins the walk of a plan.
    fn new(source: Arc<S>, query: Arc<PreparedQuery>, mut opened: OpenedPlan<S>) -> Self {
        let order = query.order;
        let cuts = std::mem::take(&mut opened.plan.cuts);
        let rank = query
            .rank
            .as_ref()
            .map(|bound| RowRank::new(bound, cuts.iter().copied().chain([opened.plan.driver])));
        let mut cuts: Vec<_> = cuts.into_iter().map(|set| opened.take(set)).collect();
        let driver = if opened.plan.driver == Set::Ids {
            let mut keys: Vec<(S::Key, u32)> =
                opened.rows.iter().map(|&row| (source.key_of(row, order), 0)).collect();
            keys.sort_unstable();
            Driver::Keys(keys.into_iter())
        } else {
            let mut driver = opened.take(opened.plan.driver);
            if !cuts.is_empty() && opened.plan.driver != Set::Time {
                pair_by_kind(&*source, &mut driver, &mut cuts, query.driver.is_some());
            }
            // Rows of a given driver are mostly not in the other sets, whatever the sets' sizes.
            if query.driver.is_some() && !cuts.is_empty() && opened.plan.size.rows <= FEW_MAX {
                Driver::Few(driver.into_iter().map(PostingStream::new).collect())
            } else {
                drive(&*source, driver, &query)
            }
        };
        let lists = driver.len() + cuts.iter().map(Vec::len).sum::<usize>();
        let excluded = match opened.plan.driver {
            Set::Time => ExcludedLists::new(&*source, std::mem::take(&mut opened.excluded), &query),
            _ => ExcludedLists::none(),
        };
        Self {
            source,
            query,
            driven_by: opened.plan.driver,
            driver_rows: opened.plan.size.rows,
            lists,
            driver,
            excluded,
            cuts,
            rank,
            last: None,
            block: Vec::new(),
            next: 0,
            pace: ReadPace::default(),
            here: None,
            time: 0,
            visited: opened.visited,
            damaged: 0,
        }
    }

    /// Gathers the next rows that are alive and in every intersected set: one at first, twice as
    /// many each time, so that few rows are visited in vain when a limit is reached.
    fn fill(&mut self, work: &mut u64) -> WalkStep {
        self.pace.note(self.block.len());
        let room = (self.block.len() * 2).clamp(1, BLOCK_MAX);
        self.block.clear();
        self.next = 0;
        let end = self.gather(room, work);
        if self.block.is_empty() {
            return end;
        }
        if self.pace.is_cold() {
            // The disk reads many records in little more time than a single record.
            self.block.iter().for_each(|(_, location, _)| self.source.read_ahead(*location));
        }
        for (_, location, _) in self.block.iter().take(AHEAD) {
            self.source.prefetch(*location);
        }
        WalkStep::Found
    }

    /// Returns whether the work is spent although rows of the block are left. The texts of these
    /// rows cost far more than the rows themselves.
    fn is_tired(&self, work: u64) -> bool {
        work == 0 && self.query.words.is_some() && self.next < self.block.len()
    }

    /// Takes the next row of the block, and prefetches the record of a later row.
    #[inline]
    fn next_of_block(&mut self) -> Option<(u32, S::RecordLocation, u32)> {
        let next = *self.block.get(self.next)?;
        if let Some((_, location, _)) = self.block.get(self.next + AHEAD) {
            self.source.prefetch(*location);
        }
        self.next += 1;
        Some(next)
    }

    fn gather(&mut self, room: usize, work: &mut u64) -> WalkStep {
        if *work > 0 && !self.is_prepared(work) {
            return WalkStep::Paused;
        }
        while self.block.len() < room {
            if *work == 0 {
                return WalkStep::Paused;
            }
            let Some((row, value, kind)) = self.next_row() else { return WalkStep::End };
            *work -= 1;
            self.visited += 1;
            if self.last == Some(row) {
                continue;
            }
            self.last = Some(row);
            if let Some(rank) = &mut self.rank {
                rank.reset();
                rank.note(self.cuts.len(), value);
                // All further rows are older.
                if !rank.bound.admits_any(self.source.time_of(row)) {
                    self.driver = Driver::Keys(Vec::new().into_iter());
                    return WalkStep::End;
                }
            }
            // Posting lists are checked first, as they are denser in memory than the data of rows.
            if self.cut(row, kind)
                && self.rank.as_ref().is_none_or(|rank| rank.admits(self.source.time_of(row)))
                && let Some(location) = self.source.locate_alive(row)
            {
                self.block.push((row, location, value));
            }
        }
        WalkStep::Found
    }

    /// Prepares the driver for its first row. Returns false if `work` does not suffice.
    fn is_prepared(&mut self, work: &mut u64) -> bool {
        match &mut self.driver {
            Driver::Few(_) => {
                self.cut_all(work);
                true
            }
            Driver::Beginning { streams, begun, heads } => {
                let end = streams.len().min(begun.saturating_add(*work as usize));
                *work -= (end - *begun) as u64;
                begin(&*self.source, streams, *begun..end, &self.query, heads);
                *begun = end;
                if end == streams.len() {
                    self.driver = merged(std::mem::take(streams), std::mem::take(heads));
                    return true;
                }
                false
            }
            _ => true,
        }
    }

    /// Looks up all rows of a [`Driver::Few`] in the other sets at once, and sorts the rows that
    /// are in all these sets. If hardly any row is in all sets, sorting all rows first would cost
    /// many times as much.
    fn cut_all(&mut self, work: &mut u64) {
        let Driver::Few(streams) = &self.driver else { return };
        let (source, order) = (&*self.source, self.query.order);
        let (mut rows, mut kept) = (0, Vec::new());
        for stream in streams {
            rows += stream.left.len();
            let sets = self.cuts.iter().map(|set| {
                let lists = &set[of_kind(set, stream.kind)];
                (!lists.is_empty()).then_some(lists)
            });
            let Some(sets) = sets.collect::<Option<Vec<_>>>() else { continue };
            for index in stream.left.clone() {
                let row = source.row_at(&stream.list, index);
                let has = |cut: &PostingSlice<S::PostingList>| {
                    source.may_have(&cut.list, row) && find(source, cut, row).1
                };
                if sets.iter().all(|lists| lists.iter().any(has)) {
                    kept.push((source.key(&stream.list, index, order), stream.value));
                }
            }
        }
        kept.sort_unstable();
        // Kept rows count as visited when they are walked.
        let passed = (rows - kept.len()) as u64;
        self.visited += passed;
        *work = work.saturating_sub(passed);
        if let Some(rank) = &mut self.rank {
            // Only the driver's entry is left, as no set is intersected from now on.
            rank.terms.drain(..self.cuts.len());
        }
        self.cuts.clear();
        self.driver = Driver::Keys(kept.into_iter());
    }

    /// Counts the remaining matches. `None` if `work` does not suffice, or if a record could not be
    /// read.
    fn count_rest(&mut self, work: &mut u64) -> Option<u64> {
        let mut count = 0;
        loop {
            match self.advance(work) {
                WalkStep::Found => count += 1,
                WalkStep::Paused => return None,
                WalkStep::End => return (self.damaged == 0).then_some(count),
            }
        }
    }

    /// Returns whether the row is in every intersected set.
    fn cut(&mut self, row: u32, kind: Option<u32>) -> bool {
        let (source, forward) = (&*self.source, self.query.order == Order::NewestFirst);
        let rank = &mut self.rank;
        self.cuts.iter_mut().enumerate().all(|(number, set)| {
            let lists = of_kind(set, kind);
            let lists = set[lists].iter_mut().filter(|cut| source.may_have(&cut.list, row));
            let cut = { lists }.find_map(|cut| {
                let (at, found) = find(source, cut, row);
                if forward {
                    cut.range.start = at;
                }
                found.then_some(cut.value)
            });
            if let (Some(rank), Some(value)) = (rank.as_mut(), cut) {
                rank.note(number, value);
            }
            cut.is_some()
        })
    }

    /// Takes the next row of the driver that is not skipped.
    #[inline]
    fn next_row(&mut self) -> Option<(u32, u32, Option<u32>)> {
        loop {
            let next = self.next_of_driver()?;
            if self.excluded.is_empty() {
                return Some(next);
            }
            let (source, order) = (&*self.source, self.query.order);
            let passed = match (source.kind_of(next.0), &mut self.driver) {
                (Some(kind), _) => self.query.not_kinds.contains(&kind),
                (None, Driver::One(every)) => self.excluded.hold(
                    source,
                    source.key_of(next.0, order),
                    Some(every),
                    &self.query,
                ),
                (None, _) => {
                    self.excluded.hold(source, source.key_of(next.0, order), None, &self.query)
                }
            };
            if !passed {
                return Some(next);
            }
        }
    }

    /// Takes the next row of the driver, with the value and the kind of its posting list. A row in
    /// several lists comes once for each, in succession.
    fn next_of_driver(&mut self) -> Option<(u32, u32, Option<u32>)> {
        let (source, order) = (&*self.source, self.query.order);
        match &mut self.driver {
            Driver::Keys(keys) => keys.next().map(|(key, value)| (source.row(key), value, None)),
            // There is no work left to prepare these rows.
            Driver::Few(_) | Driver::Beginning { .. } => None,
            Driver::One(stream) => {
                let index = stream.step(source, &self.query)?;
                Some((source.row_at(&stream.list, index), stream.value, stream.kind))
            }
            Driver::Many { streams, now, heap } => {
                let (key, at) = now.take()?;
                let stream = &mut streams[at as usize];
                let found = (source.row(key), stream.value, stream.kind);
                let next = stream.step(source, &self.query);
                let next = next.map(|index| (source.key(&stream.list, index, order), at));
                *now = match (next, heap.peek_mut()) {
                    (Some(next), Some(mut first)) if first.0 < next => {
                        Some(std::mem::replace(&mut first.0, next))
                    }
                    (Some(next), _) => Some(next),
                    (None, Some(first)) => Some(PeekMut::pop(first).0),
                    (None, None) => None,
                };
                Some(found)
            }
        }
    }
}

/// Counts the cost of comparing the record's labels as `work`, if the labels or the conditions are
/// many.
fn count_labels(query: &PreparedQuery, record: &Record<'_>, work: &mut u64, visited: &mut u64) {
    let rows = (record.labels_max() * query.labels.len() / LABELS_OF_A_ROW) as u64;
    *work = work.saturating_sub(rows);
    *visited += rows;
}

/// Returns whether the record has the words of the query, and counts the cost of this check as
/// `work`. Returns true if the query is ranked, as the caller that ranks records checks their words
/// itself.
fn has_words(
    query: &PreparedQuery,
    record: &Record<'_>,
    work: &mut u64,
    visited: &mut u64,
) -> bool {
    let Some(words) = query.words.as_ref().filter(|_| query.rank.is_none()) else { return true };
    let rows = words.cost(record);
    *work = work.saturating_sub(rows);
    *visited += rows;
    words.matches(record, &LazyWords::default())
}

/// Returns whether a record comes after the cursor, as far as [`Source::window`] leaves that open.
fn is_behind(query: &Query, record: &Record<'_>) -> bool {
    query.order == Order::NewestFirst
        || query.after.is_none_or(|after| record.time() > after.time || *record.id() > after.id)
}

/// Returns the range of a kind's posting lists in a set, whose lists ascend by kind.
#[inline]
fn of_kind<R>(set: &[PostingSlice<R>], kind: Option<u32>) -> Range<usize> {
    let start = set.partition_point(|cut| cut.kind < kind);
    start..start + set[start..].partition_point(|cut| cut.kind == kind)
}

/// Sets the kinds of posting lists, and drops lists of a kind for which another set has no list: a
/// row is only in lists of its own kind. The lists of a `fixed` driver stay, as the number of rows
/// walked must not depend on the other sets. Sorts the lists of the other sets by kind; those of
/// one kind stay in their order.
fn pair_by_kind<S: Source>(
    source: &S,
    driver: &mut Vec<PostingSlice<S::PostingList>>,
    sets: &mut [Vec<PostingSlice<S::PostingList>>],
    fixed: bool,
) {
    for cut in driver.iter_mut().chain(sets.iter_mut().flatten()) {
        cut.kind = source.list_kind(&cut.list);
    }
    for set in &mut *sets {
        set.sort_by_key(|cut| cut.kind);
    }
    let has = |set: &[PostingSlice<S::PostingList>], kind| {
        set.binary_search_by_key(&kind, |cut| cut.kind).is_ok()
    };
    driver.retain(|cut| fixed || sets.iter().all(|set| has(set, cut.kind)));
    let mut kinds: Vec<Option<u32>> = driver.iter().map(|cut| cut.kind).collect();
    kinds.sort_unstable();
    for set in sets {
        set.retain(|cut| kinds.binary_search(&cut.kind).is_ok());
    }
}

fn drive<S: Source>(
    source: &S,
    cuts: Vec<PostingSlice<S::PostingList>>,
    query: &Query,
) -> Driver<S> {
    let mut streams: Vec<PostingStream<S::PostingList>> =
        cuts.into_iter().map(PostingStream::new).collect();
    if streams.len() == 1
        && let Some(stream) = streams.pop()
    {
        return Driver::One(stream);
    }
    if streams.len() > BEGUN_MAX {
        return Driver::Beginning { streams, begun: 0, heads: Vec::new() };
    }
    let mut heads = Vec::with_capacity(streams.len());
    let all = 0..streams.len();
    begin(source, &mut streams, all, query, &mut heads);
    merged(streams, heads)
}

/// Steps some streams to their first rows.
fn begin<S: Source>(
    source: &S,
    streams: &mut [PostingStream<S::PostingList>],
    some: Range<usize>,
    query: &Query,
    heads: &mut Vec<Reverse<(S::Key, u32)>>,
) {
    for at in some {
        let stream = &mut streams[at];
        if let Some(index) = stream.step(source, query) {
            heads.push(Reverse((source.key(&stream.list, index, query.order), at as u32)));
        }
    }
}

fn merged<S: Source>(
    streams: Vec<PostingStream<S::PostingList>>,
    heads: Vec<Reverse<(S::Key, u32)>>,
) -> Driver<S> {
    let mut heap = BinaryHeap::from(heads);
    let now = heap.pop().map(|Reverse(first)| first);
    Driver::Many { streams, now, heap }
}

/// Maps a time to a key that ascends in the order of a query.
pub(super) fn time_key(time: u64, order: Order) -> u64 {
    if order == Order::NewestFirst { !time } else { time }
}

/// Why [`AnyWalk::run`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkEnd {
    /// The walk is at a match that was not delivered.
    AtMatch,
    /// Out of work; continue later.
    Paused,
    /// Past the last row.
    End,
    /// All wanted records were delivered.
    Full,
    /// The sink asked to pause.
    Broke,
}

/// A walk over a source of any type.
pub trait AnyWalk: Send {
    /// Advances to the next match. Visits at most `work` rows and counts `work` down.
    fn advance(&mut self, work: &mut u64) -> WalkStep;
    /// Passes the record at the walk's position to `sink`, then the following matches as long as
    /// their time key is below `bound`. Counts down `wanted`, which must not be 0.
    fn run(
        &mut self,
        work: &mut u64,
        bound: u64,
        wanted: &mut usize,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> WalkEnd;
    /// Returns the time of the row at the walk's position.
    fn time(&self) -> u64;
    /// Returns the id of the row at the walk's position.
    fn id(&self) -> Option<Id>;
    /// Returns the number of rows visited so far.
    fn visited(&self) -> u64;
    /// Returns how many of the rows visited have a record that could not be read.
    fn damaged(&self) -> u64;
    /// Returns the number of rows of the driver, and the driver, once they are known.
    fn driver(&self) -> Option<(u64, Set)>;
    /// Returns the approximate bytes of memory of the walk.
    fn bytes(&self) -> usize;
}

/// Begins a walk and looks up its lists as far as `work` allows. `None` if nothing in the source
/// can match. The rows charged for the lookups are added to `visited`, and are also part of
/// [`AnyWalk::visited`].
pub fn walk<S: Source>(
    source: Arc<S>,
    query: &Arc<PreparedQuery>,
    work: &mut u64,
    visited: &mut u64,
) -> Option<Box<dyn AnyWalk>> {
    let (query, mut opening) = (Arc::clone(query), Opening::new(&*source, query));
    let opened = opening.go_on(&*source, &query, work);
    *visited += opening.visited();
    match opened {
        Poll::Ready(None) => None,
        Poll::Ready(Some(opened)) => Some(Box::new(SourceWalk::new(source, query, opened))),
        Poll::Pending => Some(Box::new(OpeningWalk { source, query, opening, walk: None })),
    }
}

/// A walk whose lists are still being looked up, or were when it began.
struct OpeningWalk<S: Source> {
    source: Arc<S>,
    query: Arc<PreparedQuery>,
    opening: Opening<S>,
    walk: Option<SourceWalk<S>>,
}

impl<S: Source> AnyWalk for OpeningWalk<S> {
    fn advance(&mut self, work: &mut u64) -> WalkStep {
        if self.walk.is_none() {
            if *work == 0 {
                return WalkStep::Paused;
            }
            match self.opening.go_on(&*self.source, &self.query, work) {
                Poll::Pending => return WalkStep::Paused,
                Poll::Ready(None) => return WalkStep::End,
                Poll::Ready(Some(opened)) => {
                    let (source, query) = (Arc::clone(&self.source), Arc::clone(&self.query));
                    self.walk = Some(SourceWalk::new(source, query, opened));
                }
            }
        }
        self.walk.as_mut().map_or(WalkStep::End, |walk| walk.advance(work))
    }

    fn run(
        &mut self,
        work: &mut u64,
        bound: u64,
        wanted: &mut usize,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> WalkEnd {
        // A walk is run only once it is at a match.
        self.walk.as_mut().map_or(WalkEnd::End, |walk| walk.run(work, bound, wanted, sink))
    }

    fn time(&self) -> u64 {
        self.walk.as_ref().map_or(0, AnyWalk::time)
    }

    fn id(&self) -> Option<Id> {
        self.walk.as_ref().and_then(AnyWalk::id)
    }

    fn visited(&self) -> u64 {
        self.walk.as_ref().map_or_else(|| self.opening.visited(), AnyWalk::visited)
    }

    fn damaged(&self) -> u64 {
        self.walk.as_ref().map_or(0, AnyWalk::damaged)
    }

    fn driver(&self) -> Option<(u64, Set)> {
        self.walk.as_ref().and_then(AnyWalk::driver)
    }

    fn bytes(&self) -> usize {
        self.walk.as_ref().map_or_else(|| self.opening.bytes(), AnyWalk::bytes)
    }
}

impl<S: Source> AnyWalk for SourceWalk<S> {
    fn advance(&mut self, work: &mut u64) -> WalkStep {
        loop {
            while !self.is_tired(*work)
                && let Some((row, location, value)) = self.next_of_block()
            {
                let Some(record) = self.source.read(row, location) else {
                    self.damaged += 1;
                    continue;
                };
                count_labels(&self.query, &record, work, &mut self.visited);
                let matches = self.query.matches_knowing(&record, self.driven_by, value as usize);
                if matches
                    && is_behind(&self.query, &record)
                    && has_words(&self.query, &record, work, &mut self.visited)
                {
                    self.time = record.time();
                    self.here = Some((row, location));
                    return WalkStep::Found;
                }
            }
            if self.is_tired(*work) {
                return WalkStep::Paused;
            }
            match self.fill(work) {
                WalkStep::Found => {}
                step => return step,
            }
        }
    }

    fn run(
        &mut self,
        work: &mut u64,
        bound: u64,
        wanted: &mut usize,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> WalkEnd {
        let order = self.query.order;
        if let Some((row, location)) = self.here.take()
            && let Some(record) = self.source.read(row, location)
        {
            *wanted -= 1;
            if sink(&record).is_break() {
                return WalkEnd::Broke;
            }
        }
        loop {
            while *wanted > 0
                && !self.is_tired(*work)
                && let Some((row, location, value)) = self.next_of_block()
            {
                let Some(record) = self.source.read(row, location) else {
                    self.damaged += 1;
                    continue;
                };
                count_labels(&self.query, &record, work, &mut self.visited);
                let matches = self.query.matches_knowing(&record, self.driven_by, value as usize);
                if !matches
                    || !is_behind(&self.query, &record)
                    || !has_words(&self.query, &record, work, &mut self.visited)
                {
                    continue;
                }
                if time_key(record.time(), order) >= bound {
                    self.time = record.time();
                    self.here = Some((row, location));
                    return WalkEnd::AtMatch;
                }
                *wanted -= 1;
                if sink(&record).is_break() {
                    return WalkEnd::Broke;
                }
            }
            if *wanted == 0 {
                return WalkEnd::Full;
            }
            if self.is_tired(*work) {
                return WalkEnd::Paused;
            }
            match self.fill(work) {
                WalkStep::Found => {}
                WalkStep::Paused => return WalkEnd::Paused,
                WalkStep::End => return WalkEnd::End,
            }
        }
    }

    fn time(&self) -> u64 {
        self.time
    }

    fn id(&self) -> Option<Id> {
        let (row, location) = self.here?;
        self.source.read(row, location).map(|record| *record.id())
    }

    fn visited(&self) -> u64 {
        self.visited
    }

    fn damaged(&self) -> u64 {
        self.damaged
    }

    fn driver(&self) -> Option<(u64, Set)> {
        Some((self.driver_rows, self.driven_by))
    }

    fn bytes(&self) -> usize {
        // Each list of a driver has a stream and a place in the heap.
        let of_list = size_of::<PostingStream<S::PostingList>>() + size_of::<(S::Key, u32)>();
        size_of::<Self>() + self.lists * of_list
    }
}

/// Counts the rows of `source` that match, ignoring cursor and limit. `None` if `work` does not
/// suffice, or if a record that may match could not be read. If the lengths of posting lists
/// suffice, the count is computed from these lengths and no row is visited. Adds to `visited` the
/// rows that were visited, and the lookups that count as rows.
pub fn count<S: Source>(
    source: &Arc<S>,
    query: &Arc<PreparedQuery>,
    work: &mut u64,
    visited: &mut u64,
) -> Option<u64> {
    let (mut opening, mut allowed) = (Opening::new(&**source, query), (*work).max(COUNT_WORK));
    let opened = opening.go_on(&**source, query, &mut allowed);
    *visited += opening.visited();
    let Poll::Ready(opened) = opened else { return None };
    let Some(opened) = opened else { return Some(0) };
    let before = *work;
    let counted = count_opened(source, query, opened, work);
    *visited += before.saturating_sub(*work);
    counted
}

/// Counts the rows of an opened plan, as [`count`] does.
fn count_opened<S: Source>(
    source: &Arc<S>,
    query: &Arc<PreparedQuery>,
    opened: OpenedPlan<S>,
    work: &mut u64,
) -> Option<u64> {
    if !lengths_suffice(query, &opened.plan) {
        return SourceWalk::new(Arc::clone(source), Arc::clone(query), opened).count_rest(work);
    }
    let driver = opened.plan.driver;
    let mut count = alive_in(&**source, opened.lists(driver)?, driver != Set::Time, work)?;
    if driver == Set::Time {
        count -= alive_in(&**source, &opened.excluded, true, work)?.min(count);
    }
    let mut expired = Vec::new();
    source.expired(query.now, &mut expired);
    if expired.is_empty() {
        return Some(count);
    }
    *work = work.saturating_sub(expired.len() as u64);
    let alive = Query { now: 0, ..Query::clone(query) };
    let lost = expired.iter().filter(|&&row| {
        !source.is_dead(row) && source.record(row).is_some_and(|record| alive.matches(&record))
    });
    Some(count - lost.count() as u64)
}

/// Counts the live rows of posting lists. With `by_kind`, each list is of one kind.
fn alive_in<S: Source>(
    source: &S,
    cuts: &[PostingSlice<S::PostingList>],
    by_kind: bool,
    work: &mut u64,
) -> Option<u64> {
    let (mut count, mut dead, mut dead_kind) = (0, Vec::new(), None);
    let kind = |cut: &PostingSlice<_>| source.list_kind(&cut.list).filter(|_| by_kind);
    let mut cuts: Vec<_> = cuts.iter().map(|cut| (kind(cut), cut)).collect();
    // The dead rows of a kind are looked up once.
    cuts.sort_by_key(|(kind, _)| *kind);
    for (kind, cut) in cuts {
        count += cut.range.len() as u64;
        if dead_kind != Some(kind) {
            dead.clear();
            source.dead_rows(kind, &mut dead);
            dead_kind = Some(kind);
        }
        count -= dead_of(source, cut, &dead, work)?;
    }
    Some(count)
}

/// Counts the dead rows of a posting list. `dead` has all dead rows of the list's kind.
fn dead_of<S: Source>(
    source: &S,
    cut: &PostingSlice<S::PostingList>,
    dead: &[u32],
    work: &mut u64,
) -> Option<u64> {
    *work = work.checked_sub(dead.len().min(cut.range.len()) as u64)?;
    // Looking up one row costs about as much as checking 16 rows.
    if dead.len() * 16 > cut.range.len() {
        return Some(source.count_dead(&cut.list, cut.range.clone()));
    }
    let is_in = |row: u32| {
        source.may_have(&cut.list, row) && source.is_dead(row) && find(source, cut, row).1
    };
    Some(dead.iter().filter(|&&row| is_in(row)).count() as u64)
}

/// Returns whether the driver's posting lists are disjoint and contain only matches.
fn lengths_suffice(query: &Query, plan: &Plan) -> bool {
    let disjoint = match plan.driver {
        Set::Label(i) => query.labels[i].values.len() == 1,
        Set::Ids => false,
        // Each record that has a word is in the list of one class.
        Set::Authors | Set::Kinds | Set::Word(_) | Set::Time => true,
    };
    disjoint
        && query.gate.is_none()
        && query.not_authors.is_empty()
        && query.words.as_ref().is_none_or(|words| {
            words.is_needed_enough() && words.needed().iter().all(|one| !one.is_prefix)
        })
        && plan.cuts.is_empty()
        && plan.residual.is_empty()
}

/// Returns the plan for one source, for explanations.
pub fn explain<S: Source>(source: &S, query: &PreparedQuery) -> Option<Plan> {
    match Opening::new(source, query).go_on(source, query, &mut { u64::MAX }) {
        Poll::Ready(opened) => opened.map(|opened| opened.plan),
        Poll::Pending => None,
    }
}
