//! The cost of a question. The cost is reported to the metrics, and logged if it is high.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hark_archive::query::SearchRank;
use hark_archive::{Query, Record, Search, SearchError, SearchProgress, Store};

use super::Relay;
use super::metrics::RelayMetrics;
use super::readers::Readers;
use crate::budget::BudgetShare;
use crate::metrics::SearchDriver;
use crate::rate::RatedConnection;
use crate::service::SearchCost;

/// Number of rows charged for copying, framing and sending a record.
const SENT_ROWS: u64 = 10;
/// Number of rows charged for each value of a query, because the value is looked up in every part
/// of the archive.
const VALUE_ROWS: u64 = 4;
/// Number of rows that a search in this process visits between two reads of the clock.
const STEP_ROWS: u64 = 256;
/// Time after which a slice of a search in this process ends. A bound in rows is not enough,
/// because a row from the disk takes far longer than other rows.
const SLICE_MAX: Duration = Duration::from_millis(2);
/// Up to this size in bytes, a paused search is not charged separately, because the memory charged
/// for a question includes this size. Larger searches are charged in multiples of this size, so
/// that the charge seldom changes.
const SMALL_SEARCH: usize = 1 << 10;

/// The cost so far of one REQ, COUNT or message of a comparison.
pub(super) struct QuestionCost {
    metrics: Arc<RelayMetrics>,
    /// The client that asks.
    pub(super) rated: RatedConnection,
    asked_at: Instant,
    waited: Option<Duration>,
    /// Total time spent on the question's searches and comparisons.
    spent: Duration,
    /// The time of the slowest search, and the condition that drove this search.
    slowest: (Duration, SearchDriver),
    /// Time spent on the answer to a message of a comparison.
    comparing: Duration,
    /// Number of rows visited.
    pub(super) visited: u64,
    readers: Arc<Readers>,
    /// The search's share of the memory for questions.
    memory: BudgetShare,
    memory_max: usize,
}

/// A search under way, and the time it has taken.
pub(super) struct TimedSearch {
    search: Box<dyn Search>,
    /// Number of rows of the search that are charged already.
    counted: u64,
    spent: Duration,
    metrics: Arc<RelayMetrics>,
}

impl QuestionCost {
    pub(super) fn new(relay: &Relay, rated: RatedConnection) -> Self {
        Self {
            metrics: Arc::clone(&relay.metrics),
            readers: Arc::clone(&relay.readers),
            memory: relay.questions.share(rated.address()),
            memory_max: relay.settings().limits.questions_bytes_max,
            rated,
            asked_at: Instant::now(),
            waited: None,
            spent: Duration::ZERO,
            slowest: (Duration::ZERO, SearchDriver::Nothing),
            comparing: Duration::ZERO,
            visited: 0,
        }
    }

    /// Records at the first call how long the question has waited; later calls do nothing. Must be
    /// called at the beginning of every time slice.
    pub(super) fn begin(&mut self) {
        if self.waited.is_none() {
            let waited = self.asked_at.elapsed();
            self.waited = Some(waited);
            self.metrics.search_wait.note(waited);
        }
    }

    /// Opens a search for `query`, and adds the time to the cost. Charges [`VALUE_ROWS`] for each
    /// value of the query, and subtracts these rows from `work`.
    pub(super) fn open(
        &self,
        store: &dyn Store,
        query: &Query,
        work: &mut u64,
    ) -> Result<TimedSearch, SearchError> {
        let started = Instant::now();
        let search = store.search(query)?;
        let rows = query.values() as u64 * VALUE_ROWS;
        self.rated.visited(rows);
        *work = work.saturating_sub(rows);
        let (spent, metrics) = (started.elapsed(), Arc::clone(&self.metrics));
        Ok(TimedSearch { search, counted: 0, spent, metrics })
    }

    /// Runs [`Search::slice`]. Returns the progress, and the rest of `work`, which is at least 1.
    pub(super) fn slice(
        &mut self,
        search: &mut TimedSearch,
        work: u64,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<(SearchProgress, u64), SearchError> {
        let started = Instant::now();
        let step = if self.readers.is_local() { STEP_ROWS } else { u64::MAX };
        let mut is_late = || started.elapsed() >= SLICE_MAX;
        let progress = in_steps(&mut *search.search, (work, step), &mut is_late, sink);
        let visited = search.search.visited().saturating_sub(search.counted);
        search.counted += visited;
        let spent = started.elapsed();
        search.spent += spent;
        self.note(spent, search.spent, SearchDriver::from(search.search.driver()));
        self.read(visited);
        // A search that has ended holds nothing, although its question may go on.
        let is_paused = progress.as_ref().is_ok_and(|it| *it == SearchProgress::Paused);
        let bytes = if is_paused { search.search.bytes() } else { 0 };
        hold(&mut self.memory, bytes, self.memory_max)?;
        Ok((progress?, work.saturating_sub(visited).max(1)))
    }

    /// Drops a paused search, and with it the memory that is charged for the search.
    pub(super) fn drop_search(&mut self, search: TimedSearch) {
        drop(search);
        self.memory.resize(0, self.memory_max);
    }

    /// Charges for `rows` rows that were visited outside a search.
    pub(super) fn read(&mut self, rows: u64) {
        self.visited += rows;
        self.metrics.rows_visited.add(rows);
        self.rated.listed().counts.rows.add(rows);
        self.rated.visited(rows);
    }

    /// Charges for `records` records that were sent.
    pub(super) fn sent(&self, records: u64) {
        self.rated.visited(records * SENT_ROWS);
    }

    /// Lets the store count the matches of a query, and charges the rows that the store has
    /// visited. The result is `None` if the query's budget of rows did not suffice. A count that
    /// comes from the lengths of lists costs only the lookup of the lists.
    pub(super) fn count(
        &mut self,
        store: &dyn Store,
        query: &Query,
    ) -> Result<Option<u64>, SearchError> {
        let started = Instant::now();
        let mut visited = 0;
        let counted = store.count_visiting(query, &mut visited);
        let spent = started.elapsed();
        self.metrics.search.of(SearchDriver::Count).note(spent);
        self.note(spent, spent, SearchDriver::Count);
        self.read(visited + (query.values() as u64 + 1) * VALUE_ROWS);
        counted
    }

    /// Runs `work`, a part of the answer to a message of a comparison, and charges the rows that
    /// `work` returns.
    pub(super) fn compare<T>(&mut self, work: impl FnOnce() -> (T, u64)) -> T {
        let started = Instant::now();
        let (worked, rows) = work();
        let spent = started.elapsed();
        self.read(rows);
        self.comparing += spent;
        self.spent += spent;
        worked
    }

    /// Records in the metrics how long a complete comparison answer took.
    pub(super) fn compared(&self) {
        self.metrics.comparison_step.note(self.comparing);
    }

    fn note(&mut self, spent: Duration, of_search: Duration, plan: SearchDriver) {
        self.spent += spent;
        if of_search >= self.slowest.0 {
            self.slowest = (of_search, plan);
        }
    }

    /// The whole cost so far.
    pub(super) fn spent(&self) -> SearchCost {
        SearchCost {
            time: self.spent,
            waited: self.waited.unwrap_or_default(),
            rows: self.visited,
            plan: self.slowest.1,
        }
    }
}

/// Charges the memory of a paused search.
fn hold(memory: &mut BudgetShare, bytes: usize, max: usize) -> Result<(), SearchError> {
    let counted = bytes.next_multiple_of(SMALL_SEARCH).saturating_sub(SMALL_SEARCH);
    let is_held = counted == memory.bytes() || memory.resize(counted, max);
    is_held.then_some(()).ok_or(SearchError::NoMemory)
}

/// Searches in steps of `step` rows. Stops when `work` rows are visited, when the search ends or
/// `sink` pauses it, or when `is_late` returns true after a step.
fn in_steps(
    search: &mut dyn Search,
    (mut work, step): (u64, u64),
    is_late: &mut dyn FnMut() -> bool,
    sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
) -> Result<SearchProgress, SearchError> {
    let is_paused = Cell::new(false);
    let mut sink = |record: &Record<'_>| {
        let flow = sink(record);
        is_paused.set(flow.is_break());
        flow
    };
    loop {
        let rows = work.min(step);
        let progress = search.slice(rows, &mut sink)?;
        work -= rows;
        if progress != SearchProgress::Paused || is_paused.get() || work == 0 || is_late() {
            return Ok(progress);
        }
    }
}

impl TimedSearch {
    /// Whether the search met a record that could not be read.
    pub(super) fn has_met_damage(&self) -> bool {
        self.search.damaged() > 0
    }

    /// See [`Search::last_rank`].
    pub(super) fn last_rank(&self) -> Option<SearchRank> {
        self.search.last_rank()
    }

    /// See [`Search::seq`].
    pub(super) fn seq(&self) -> u64 {
        self.search.seq()
    }
}

impl Drop for TimedSearch {
    fn drop(&mut self) {
        // The time is noted on drop, so that an abandoned search counts as well.
        self.metrics.search.of(SearchDriver::from(self.search.driver())).note(self.spent);
    }
}

#[cfg(test)]
mod tests {
    use hark_archive::query::plan::Set;

    use super::*;

    /// A search that never ends. It notes the work of its slices.
    #[derive(Default)]
    struct EndlessSearch(Vec<u64>);

    impl Search for EndlessSearch {
        fn slice(
            &mut self,
            work: u64,
            _: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
        ) -> Result<SearchProgress, SearchError> {
            self.0.push(work);
            Ok(SearchProgress::Paused)
        }

        fn seq(&self) -> u64 {
            0
        }

        fn visited(&self) -> u64 {
            self.0.iter().sum()
        }

        fn driver(&self) -> Option<Set> {
            None
        }
    }

    /// Runs a slice of 600 rows with a clock that advances by a millisecond at each read, and is
    /// late at `late_after_ms`. Returns the rows of each step.
    fn steps(step: u64, late_after_ms: u64) -> Vec<u64> {
        let (mut search, mut now_ms) = (EndlessSearch::default(), 0);
        let mut is_late = || {
            now_ms += 1;
            now_ms >= late_after_ms
        };
        let ended =
            in_steps(&mut search, (600, step), &mut is_late, &mut |_| ControlFlow::Continue(()));
        assert_eq!(ended.expect("searches"), SearchProgress::Paused);
        search.0
    }

    #[test]
    fn a_search_that_waits_is_part_of_the_memory_of_questions() {
        let (budget, max) = (Arc::<crate::budget::Budget>::default(), 8 * SMALL_SEARCH);
        let mut memory = budget.share(None);
        assert!(hold(&mut memory, SMALL_SEARCH, max).is_ok() && budget.bytes() == 0);
        assert!(hold(&mut memory, SMALL_SEARCH + 1, max).is_ok());
        assert_eq!(budget.bytes(), SMALL_SEARCH);
        assert!(hold(&mut memory, 7 * SMALL_SEARCH, max).is_ok());
        assert_eq!(budget.bytes(), 6 * SMALL_SEARCH);
        let mut other = budget.share(None);
        assert!(matches!(hold(&mut other, 4 * SMALL_SEARCH, max), Err(SearchError::NoMemory)));
        assert!(hold(&mut memory, 0, max).is_ok() && budget.bytes() == 0);
        assert!(hold(&mut other, 4 * SMALL_SEARCH, max).is_ok());
    }

    #[test]
    fn a_slice_ends_by_the_clock_as_well_as_by_rows() {
        assert_eq!(steps(256, u64::MAX), [256, 256, 88]);
        assert_eq!(steps(256, 2), [256, 256]);
        assert_eq!(steps(256, 1), [256]);
        assert_eq!(steps(u64::MAX, 1), [600], "a database is asked for a whole slice");
    }
}
