//! Runs the searches for a page of a network's history. They run in slices, visit a bounded number
//! of rows, and stop if no client waits for the answer any more.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hark_archive::query::plan::Set;
use hark_archive::{Query, Record, SearchError, SearchProgress, Store};

/// The state shared between a search and the task that waits for its answer.
#[derive(Debug, Default)]
pub struct AnswerWaiter {
    gone: AtomicBool,
    visited: AtomicU64,
}

impl AnswerWaiter {
    /// Signals to the search that nobody waits for the answer any more.
    pub fn leave(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// Whether nobody waits for the answer any more.
    pub fn is_abandoned(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Adds to the number of visited rows.
    pub fn visit(&self, rows: u64) {
        self.visited.fetch_add(rows, Ordering::Relaxed);
    }

    /// Number of visited rows.
    pub fn visited(&self) -> u64 {
        self.visited.load(Ordering::Relaxed)
    }
}

/// Why a search has no result.
#[derive(Debug, thiserror::Error)]
pub enum SearchStop {
    /// The client does not wait for the answer any more.
    #[error("nobody waits for the answer")]
    Gone,
    /// The search would visit too many rows.
    #[error("too much would have to be read")]
    TooDear,
    /// The archive failed.
    #[error(transparent)]
    Archive(#[from] SearchError),
}

/// The searches for one request. Together they visit a bounded number of rows.
pub struct BoundedSearch<'a> {
    store: &'a dyn Store,
    waiter: &'a AnswerWaiter,
    rows_max: u64,
    visited: u64,
    driver: Option<Set>,
    is_damaged: bool,
    has_run_out: bool,
}

impl<'a> BoundedSearch<'a> {
    /// Makes searches of `store` that visit at most `rows_max` rows in total, and end when `waiter`
    /// is abandoned.
    pub fn new(store: &'a dyn Store, waiter: &'a AnswerWaiter, rows_max: u64) -> Self {
        Self {
            store,
            waiter,
            rows_max,
            visited: 0,
            driver: None,
            is_damaged: false,
            has_run_out: false,
        }
    }

    /// The store, for lookups that are not charged as rows.
    pub fn store(&self) -> &'a dyn Store {
        self.store
    }

    /// Number of rows that the searches have visited.
    pub fn visited(&self) -> u64 {
        self.visited
    }

    /// The set that drove the last search.
    pub fn driver(&self) -> Option<Set> {
        self.driver
    }

    /// Whether a damaged record may be missing in a result.
    pub fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// Whether a search ended because it would have visited too many rows.
    pub fn has_run_out(&self) -> bool {
        self.has_run_out
    }

    /// Passes the records that match `query` to `sink`, until `sink` breaks. Returns whether more
    /// records match. After every `slice_rows` visited rows, checks whether the client still waits.
    pub fn run(
        &mut self,
        query: &Query,
        slice_rows: u64,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<bool, SearchStop> {
        let budget = self.rows_max.saturating_sub(self.visited);
        let mut search = self.store.search(&Query { budget, ..query.clone() })?;
        let enough = Cell::new(false);
        let mut sink = |record: &Record<'_>| {
            let flow = sink(record);
            enough.set(flow.is_break());
            flow
        };
        let mut noted = 0;
        let more = loop {
            if self.waiter.is_abandoned() {
                break Err(SearchStop::Gone);
            }
            let progress = search.slice(slice_rows, &mut sink);
            self.waiter.visit(search.visited() - noted);
            noted = search.visited();
            match progress? {
                SearchProgress::Paused if enough.get() => break Ok(true),
                SearchProgress::Paused => {}
                SearchProgress::Exhausted => break Err(SearchStop::TooDear),
                SearchProgress::Done { more } => break Ok(more || enough.get()),
            }
        };
        self.has_run_out |= matches!(more, Err(SearchStop::TooDear));
        self.visited += search.visited();
        self.driver = search.driver();
        self.is_damaged |= search.damaged() > 0;
        more
    }
}
