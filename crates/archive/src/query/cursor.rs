//! Walks one source of rows: merges the posting lists of the plan's driver lazily, intersects them
//! with the other sets, and checks the records.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_codec::record::{Id, Record};

use super::driver_stream::{Driver, begin, drive, merged, of_kind, pair_by_kind};
use super::excluded::ExcludedLists;
use super::opening::OpenedPlan;
use super::pace::ReadPace;
use super::prepared::PreparedQuery;
use super::row_rank::RowRank;
use super::set::Set;
use super::source::Source;
use super::stream::{PostingSlice, PostingStream, find};
use super::walk::{AnyWalk, WalkEnd, WalkStep, time_key};
use super::words::LazyWords;
use super::{Order, Query};

/// Maximum number of rows that are gathered in one block.
const BLOCK_MAX: usize = 32;
/// Number of records that are prefetched ahead of the record being read.
const AHEAD: usize = 8;
/// Number of comparisons of a label with a condition that together are charged as one row.
const LABELS_OF_A_ROW: usize = 64;
/// If a driver has at most this number of rows, its rows are intersected with the other sets first,
/// and sorted afterwards.
const FEW_MAX: u64 = 4096;

/// A walk over the rows of one source that match a query, in the query's order.
pub(super) struct SourceWalk<S: Source> {
    source: Arc<S>,
    query: Arc<PreparedQuery>,
    driven_by: Set,
    driver: Driver<S>,
    /// The rows that are skipped, because their kinds are excluded.
    excluded: ExcludedLists<S>,
    cuts: Vec<Vec<PostingSlice<S::PostingList>>>,
    /// The upper bound of a row's rank, if the query is ranked.
    rank: Option<RowRank>,
    last: Option<u32>,
    /// The rows to check next. Each has the location of its record, and the value under which its
    /// posting list was found. `next` is the index of the first row that is still in the block.
    block: Vec<(u32, S::RecordLocation, u32)>,
    next: usize,
    pace: ReadPace,
    /// The row of the current match, with the location of its record.
    here: Option<(u32, S::RecordLocation)>,
    time: u64,
    visited: u64,
    /// Number of rows whose record could not be read.
    damaged: u64,
    /// The number of rows of the driver.
    driver_rows: u64,
    /// The number of posting lists that are walked or intersected. If the driver's rows are sorted,
    /// each of its rows counts as one list.
    lists: usize,
    /// See [`Source::list_bytes`], for all these lists.
    list_bytes: usize,
}

impl<S: Source> SourceWalk<S> {
    /// Begins the walk of a plan.
    pub(super) fn new(
        source: Arc<S>,
        query: Arc<PreparedQuery>,
        mut opened: OpenedPlan<S>,
    ) -> Self {
        let order = query.order;
        let cuts = std::mem::take(&mut opened.plan.cuts);
        let rank = query
            .rank
            .as_ref()
            .map(|bound| RowRank::new(bound, cuts.iter().copied().chain([opened.plan.driver])));
        let mut cuts: Vec<_> = cuts.into_iter().map(|set| opened.take(set)).collect();
        let bytes_of = |lists: &[PostingSlice<S::PostingList>]| -> usize {
            lists.iter().map(|slice| source.list_bytes(&slice.list)).sum()
        };
        let mut list_bytes = 0;
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
            list_bytes += bytes_of(&driver);
            // If the caller has chosen the driver, usually most of the driver's rows are not in the
            // other sets.
            if query.driver.is_some() && !cuts.is_empty() && opened.plan.size.rows <= FEW_MAX {
                Driver::Few(driver.into_iter().map(PostingStream::new).collect())
            } else {
                drive(&*source, driver, &query)
            }
        };
        list_bytes += cuts.iter().map(|lists| bytes_of(lists)).sum::<usize>();
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
            list_bytes,
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

    /// Gathers the next rows that are alive and in every intersected set: first one row, then twice
    /// as many each time. So a small limit is reached with few extra rows.
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
            // A disk can read many records at once in little more time than one record.
            self.block.iter().for_each(|(_, location, _)| self.source.read_ahead(*location));
        }
        for (_, location, _) in self.block.iter().take(AHEAD) {
            self.source.prefetch(*location);
        }
        WalkStep::Found
    }

    /// Returns whether the work is spent while the block still has rows. Then the walk pauses,
    /// because reading the texts of these rows would cost far more than finding the rows.
    fn is_out_of_work(&self, work: u64) -> bool {
        work == 0 && self.query.words.is_some() && self.next < self.block.len()
    }

    /// Pops the next row of the block, and prefetches the record of a later row.
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
            // The posting lists are checked before the record, because lookups in them need less
            // memory access.
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
    /// are in all these sets. Usually only a few rows are in all sets, so sorting all rows first
    /// would cost many times as much.
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
        // The kept rows count as visited only when the walk reaches them later.
        let passed = (rows - kept.len()) as u64;
        self.visited += passed;
        *work = work.saturating_sub(passed);
        if let Some(rank) = &mut self.rank {
            // Drops the entries of the other sets, because no set is intersected from now on. Only
            // the driver's entry remains.
            rank.terms.drain(..self.cuts.len());
        }
        self.cuts.clear();
        self.driver = Driver::Keys(kept.into_iter());
    }

    /// Counts the remaining matches. Returns `None` if `work` does not suffice, or if a record
    /// could not be read.
    pub(super) fn count_remaining(&mut self, work: &mut u64) -> Option<u64> {
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

    /// Pops the driver's next row that is not excluded.
    #[inline]
    fn next_row(&mut self) -> Option<(u32, u32, Option<u32>)> {
        loop {
            let next = self.driver.next_row(&self.source, &self.query)?;
            if self.excluded.is_empty() {
                return Some(next);
            }
            let (source, order) = (&*self.source, self.query.order);
            let passed = match (source.kind_of(next.0), &mut self.driver) {
                (Some(kind), _) => self.query.not_kinds.contains(&kind),
                (None, Driver::One(every)) => self.excluded.skip(
                    source,
                    source.key_of(next.0, order),
                    Some(every),
                    &self.query,
                ),
                (None, _) => {
                    self.excluded.skip(source, source.key_of(next.0, order), None, &self.query)
                }
            };
            if !passed {
                return Some(next);
            }
        }
    }
}

/// Deducts the cost of comparing the record's labels from `work`. The cost is 0 rows unless the
/// record has many labels or the query has many conditions.
fn count_labels(query: &PreparedQuery, record: &Record<'_>, work: &mut u64, visited: &mut u64) {
    let rows = (record.labels_max() * query.labels.len() / LABELS_OF_A_ROW) as u64;
    *work = work.saturating_sub(rows);
    *visited += rows;
}

/// Returns whether the record has the words of the query, and deducts the cost of this check from
/// `work`. Always returns true if the query is ranked, because the ranked search checks the words
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

/// Returns whether a record comes after the cursor. For newest first, [`Source::window`] has
/// already excluded the other records.
fn is_behind(query: &Query, record: &Record<'_>) -> bool {
    query.order == Order::NewestFirst
        || query.after.is_none_or(|after| record.time() > after.time || *record.id() > after.id)
}

impl<S: Source> AnyWalk for SourceWalk<S> {
    fn advance(&mut self, work: &mut u64) -> WalkStep {
        loop {
            while !self.is_out_of_work(*work)
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
            if self.is_out_of_work(*work) {
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
                && !self.is_out_of_work(*work)
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
            if self.is_out_of_work(*work) {
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
        // Each list of a driver needs a stream and an entry in the heap.
        let of_list = size_of::<PostingStream<S::PostingList>>() + size_of::<(S::Key, u32)>();
        size_of::<Self>() + self.lists * of_list + self.list_bytes
    }
}
