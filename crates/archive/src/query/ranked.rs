//! Ranked searches: matches are ranked before the limit applies.
//!
//! A ranked search runs an ordinary search, newest first and without a limit, and ranks each match.
//! The search keeps only the ids of the best matches so far, at most as many as the limit. A score
//! is the sum of the record's time and a bounded bonus. Once there are as many matches as the
//! limit, a row is read only if it can rank better than the worst of these matches. The index can
//! decide this without reading the record. It has the row's time and the class of each of the row's
//! words (how much the record is about the word). The walk ends at the first row that is too old to
//! reach the needed score with the highest bonus. Then the best records are read by their ids.

use std::collections::{BTreeMap, BinaryHeap};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hark_codec::record::{Id, Record};
use hark_words::RecordWords;

use super::set::Set;
use super::words::{SearchRank, WordCondition};
use super::{Order, Query};
use crate::store::{Search, SearchError, SearchProgress};

/// Maximum number of records that one search reads by their ids.
const CHUNK: usize = 32;
/// Maximum number of bytes of these records in memory. A single record may exceed this maximum.
const READY_BYTES_MAX: usize = 64 << 10;

/// The score that a further record must reach to be among the best. A search and its walks share
/// this bound.
#[derive(Debug)]
pub struct RankBound {
    words: Arc<WordCondition>,
    least: AtomicU64,
}

impl RankBound {
    /// Makes a bound that excludes no record yet.
    pub fn new(words: &Arc<WordCondition>) -> Arc<Self> {
        Arc::new(Self { words: Arc::clone(words), least: AtomicU64::new(0) })
    }

    /// Returns the needed words.
    pub fn words(&self) -> &WordCondition {
        &self.words
    }

    /// Returns whether a record of this time can still rank high enough. `points` is an upper bound
    /// of the sum of its words' classes ([`hark_words::RecordWords::points`]).
    #[inline]
    pub fn admits(&self, time: u64, points: u32) -> bool {
        let least = self.least.load(Ordering::Relaxed);
        least == 0 || self.words.score(time, points) >= least
    }

    /// Returns whether any record of this time can still rank high enough.
    #[inline]
    pub fn admits_any(&self, time: u64) -> bool {
        self.admits(time, self.words.points_max())
    }
}

/// Starts a search for records by their ids, over the same snapshot as the ranked search.
pub type ReadById =
    Box<dyn FnMut(Vec<Id>, u64, u64) -> Result<Box<dyn Search>, SearchError> + Send>;

/// A search whose results come best first.
pub struct RankedSearch {
    /// The search for matches; `None` once all matches are ranked.
    search: Option<Box<dyn Search>>,
    bound: Arc<RankBound>,
    limit: usize,
    budget: u64,
    /// The best matches so far, the worst on top.
    best: BinaryHeap<SearchRank>,
    /// The best matches, worst first, after all matches are ranked.
    sorted: Vec<SearchRank>,
    /// Whether there are more matches than the limit.
    more: bool,
    read: ReadById,
    /// Records that were read but not delivered yet. The last one is delivered next.
    ready: Vec<(SearchRank, Box<[u8]>)>,
    /// Number of records to read next.
    chunk: usize,
    /// The rank of the last delivered record.
    last: Option<SearchRank>,
    seq: u64,
    visited: u64,
    /// The cost so far of dividing texts into words, as a number of visited rows.
    text_rows: u64,
    damaged: u64,
    driver: Option<Set>,
}

impl RankedSearch {
    /// Makes a ranked search from an unranked search for the same query. The walks of the unranked
    /// search must use the same `bound`.
    pub fn new(
        query: &Query,
        bound: Arc<RankBound>,
        search: Box<dyn Search>,
        read: ReadById,
    ) -> Self {
        let driver = search.driver();
        Self {
            seq: search.seq(),
            search: Some(search),
            bound,
            limit: query.limit,
            budget: query.budget,
            best: BinaryHeap::new(),
            sorted: Vec::new(),
            more: false,
            read,
            ready: Vec::new(),
            chunk: CHUNK,
            last: None,
            visited: 0,
            text_rows: 0,
            damaged: 0,
            driver,
        }
    }

    /// Returns the query without its ranking.
    pub fn unranked(query: &Query) -> Query {
        // With limit 0, no match is needed.
        let limit = if query.limit == 0 { 0 } else { usize::MAX };
        let order = Order::NewestFirst;
        Query { ranked: false, limit, after: None, order, ..query.clone() }
    }

    /// Ranks matches until the work of the slice is spent. Returns the progress; `None` once all
    /// matches are ranked.
    fn rank(&mut self, work: u64) -> Result<Option<SearchProgress>, SearchError> {
        let Self { search: Some(search), best, bound, limit, more, text_rows, .. } = self else {
            return Ok(None);
        };
        let (mut is_over, mut left) = (false, work);
        // A search that waits keeps no words: the text of a record may be long.
        let mut words = RecordWords::default();
        let progress = search.slice(work, &mut |record: &Record<'_>| {
            if *more && !bound.admits_any(record.time()) {
                is_over = true;
                return ControlFlow::Break(());
            }
            let rows = bound.words.cost(record);
            left = left.saturating_sub(rows);
            *text_rows += rows;
            let flow = if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            let Some(rank) = bound.words.rank_in(record, &mut words) else { return flow };
            if best.len() < *limit {
                best.push(rank);
                return flow;
            }
            *more = true;
            if let Some(mut worst) = best.peek_mut()
                && rank < *worst
            {
                *worst = rank;
            }
            if let Some(worst) = best.peek() {
                bound.least.store(worst.score(), Ordering::Relaxed);
            }
            flow
        });
        let progress = progress?;
        self.visited = search.visited() + self.text_rows;
        self.damaged = search.damaged();
        self.driver = search.driver();
        match progress {
            SearchProgress::Paused if !is_over && self.visited >= self.budget => {
                return Ok(Some(SearchProgress::Exhausted));
            }
            SearchProgress::Paused if !is_over => return Ok(Some(SearchProgress::Paused)),
            SearchProgress::Exhausted => return Ok(Some(SearchProgress::Exhausted)),
            SearchProgress::Paused | SearchProgress::Done { .. } => {}
        }
        self.search = None;
        self.sorted = std::mem::take(&mut self.best).into_sorted_vec();
        self.sorted.reverse();
        Ok(None)
    }

    /// Reads the next records by their ids.
    fn read_some(&mut self) -> Result<(), SearchError> {
        let from = self.sorted.len().saturating_sub(self.chunk);
        let mut chunk = self.sorted.split_off(from);
        let times = || chunk.iter().map(SearchRank::time);
        let (first, last) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
        let mut search = (self.read)(chunk.iter().map(|rank| rank.id).collect(), first, last)?;
        // The keys are indices in the chunk, which is sorted worst first, as `sorted` is. If all
        // records together are too large, the worst ones are read later.
        let mut found: BTreeMap<usize, Box<[u8]>> = BTreeMap::new();
        let (mut bytes, mut left) = (0, 0);
        let progress = search.slice(u64::MAX, &mut |record| {
            if let Some(at) = chunk.iter().position(|rank| rank.id == *record.id()) {
                if at < left {
                    return ControlFlow::Continue(());
                }
                bytes += record.bytes().len();
                found.insert(at, record.bytes().into());
                while bytes > READY_BYTES_MAX
                    && found.len() > 1
                    && let Some((at, dropped)) = found.pop_first()
                {
                    bytes -= dropped.len();
                    left = at + 1;
                }
            }
            ControlFlow::Continue(())
        })?;
        if !matches!(progress, SearchProgress::Done { .. }) {
            return Err(SearchError::Failed("records could not be read by their ids".into()));
        }
        self.visited += search.visited();
        self.damaged += search.damaged();
        // A record that was deleted in the meantime is left out.
        self.ready = found.into_iter().map(|(at, bytes)| (chunk[at], bytes)).collect();
        // The next chunk is at most twice as long as the number of buffered records.
        self.chunk = if left == 0 { CHUNK } else { (2 * self.ready.len()).clamp(1, CHUNK) };
        chunk.truncate(left);
        self.sorted.append(&mut chunk);
        Ok(())
    }
}

impl Search for RankedSearch {
    fn slice(
        &mut self,
        work: u64,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<SearchProgress, SearchError> {
        if self.search.is_some()
            && let Some(progress) = self.rank(work)?
        {
            return Ok(progress);
        }
        let mut work = work.max(1);
        loop {
            while let Some((rank, bytes)) = self.ready.pop() {
                work = work.saturating_sub(1);
                self.last = Some(rank);
                let is_break = Record::new(&bytes).is_ok_and(|record| sink(&record).is_break());
                if is_break || work == 0 {
                    return Ok(SearchProgress::Paused);
                }
            }
            if self.sorted.is_empty() {
                return Ok(SearchProgress::Done { more: self.more });
            }
            self.read_some()?;
        }
    }

    fn seq(&self) -> u64 {
        self.seq
    }

    fn visited(&self) -> u64 {
        self.visited
    }

    fn damaged(&self) -> u64 {
        self.damaged
    }

    fn driver(&self) -> Option<Set> {
        self.driver
    }

    fn bytes(&self) -> usize {
        let ranks = self.best.capacity() + self.sorted.capacity();
        let ready: usize = self.ready.iter().map(|(_, bytes)| bytes.len()).sum();
        let search = self.search.as_ref().map_or(0, |search| search.bytes());
        search + ranks * size_of::<SearchRank>() + ready
    }

    fn last_rank(&self) -> Option<SearchRank> {
        self.last
    }
}
