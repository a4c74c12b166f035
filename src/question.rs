//! Runs the filters of a command line as one query. The result has every record that matches any of
//! the filters, once, in order.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use hark_archive::resumed::ResumedSearch;
use hark_archive::{Id, Order, Position, Query, SearchError, SearchProgress, Store};
use hark_networks::{LineFormat, Network};

use crate::location::ArchiveLocation;

/// Number of rows that a search visits in one time slice.
const SLICE_ROWS: u64 = 4096;
/// Maximum number of rows that may be visited to find the total for a progress display.
const TOTAL_ROWS: u64 = 1 << 20;
/// Approximate maximum number of bytes of records that one search buffers.
const READY_BYTES: usize = 256 << 10;

/// The error for an invalid filter. The separate type lets [`crate::run`] distinguish this error
/// from other failures.
#[derive(Debug)]
pub(crate) struct FilterFault(pub(crate) String);

impl std::fmt::Display for FilterFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for FilterFault {}

/// Parses filters of the archive's network. Opens the archive for reading if a filter is matched
/// against label values of the archive. The queries do not find records that expire at or before
/// `now`.
pub(crate) fn read(
    location: &ArchiveLocation,
    texts: &[String],
    now: u64,
) -> anyhow::Result<Vec<Query>> {
    let network = location.network;
    let searched = location.texts();
    let mut queries = Vec::with_capacity(texts.len());
    for text in texts {
        // A failure to read the archive is not a fault of the filter.
        let mut unread = None;
        let mut values = |name| {
            let mut values = Vec::new();
            let read = location.read().and_then(|store| {
                Ok(store.label_values(name, &mut |value, _| values.push(value.into()))?)
            });
            match read {
                Ok(()) => Some(values),
                Err(error) => {
                    unread = Some(error);
                    None
                }
            }
        };
        let query = network.filters().searching_query(text, &mut values, searched.as_ref());
        if let Some(error) = unread {
            return Err(error);
        }
        let query = query.map_err(|error| {
            FilterFault(format!(
                "{text} is no filter Hark can answer: {error}. A filter looks like '{}'; quote it for \
                 the shell",
                network.filters().example()
            ))
        })?;
        queries.extend(query.map(|query| Query { now, ..query }));
    }
    if queries.len() > 1 {
        // The answers of several queries are merged by time, not by rank.
        for query in &mut queries {
            query.ranked = false;
        }
    }
    Ok(queries)
}

/// Counts the records that match any of `queries`. The limits of the queries are ignored.
pub(crate) fn count(store: &dyn Store, queries: &[Query]) -> anyhow::Result<u64> {
    if let [query] = queries {
        match store.count(query) {
            Ok(Some(count)) => return Ok(count),
            // Some records could not be read. The search below counts the others.
            Ok(None) | Err(SearchError::LeftOut(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let whole = |query: &Query| Query { limit: usize::MAX, ranked: false, ..query.clone() };
    let whole: Vec<Query> = queries.iter().map(whole).collect();
    let mut answer = MergedAnswer::new(store, &whole)?;
    let mut count = 0;
    while answer.next()?.is_some() {
        count += 1;
    }
    Ok(count)
}

/// Returns the number of matching records for a progress display; 0 for several queries, and if
/// counting would take too long.
pub(crate) fn total(store: &dyn Store, queries: &[Query]) -> anyhow::Result<u64> {
    let [query] = queries else { return Ok(0) };
    let query = Query { budget: TOTAL_ROWS, ..query.clone() };
    Ok(store.count(&query)?.unwrap_or(0))
}

/// A record that a query found.
pub(crate) struct FoundRecord {
    pub(crate) position: Position,
    /// The record's line; empty without [`MergedAnswer::with_lines`].
    pub(crate) json: Box<[u8]>,
}

/// Several searches merged into one, in their common order, each record once.
pub(crate) struct MergedAnswer<'a> {
    searches: Vec<RunningSearch<'a>>,
    order: Order,
    last: Option<Id>,
    lines: Option<&'a dyn LineFormat>,
}

struct RunningSearch<'a> {
    search: ResumedSearch<'a>,
    /// Records found, and their lines.
    ready: VecDeque<(Position, Box<[u8]>)>,
    done: bool,
}

impl<'a> MergedAnswer<'a> {
    /// Starts the searches. All queries must have the same order.
    pub(crate) fn new(store: &'a dyn Store, queries: &[Query]) -> anyhow::Result<Self> {
        let mut searches = Vec::with_capacity(queries.len());
        for query in queries {
            let search = ResumedSearch::new(store, query.clone())?;
            searches.push(RunningSearch { search, ready: VecDeque::new(), done: false });
        }
        let order = queries.first().map_or(Order::NewestFirst, |query| query.order);
        Ok(Self { searches, order, last: None, lines: None })
    }

    /// Returns the same answer, with the line of each record in the format of its network.
    pub(crate) fn with_lines(self, network: &'a dyn Network) -> Self {
        Self { lines: Some(network.lines()), ..self }
    }

    /// Number of rows visited so far.
    pub(crate) fn visited(&self) -> u64 {
        self.searches.iter().map(|running| running.search.visited()).sum()
    }

    /// Returns the next record; `None` at the end.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<FoundRecord>> {
        loop {
            for running in &mut self.searches {
                running.fill(self.lines)?;
            }
            let order = self.order;
            let first = self
                .searches
                .iter_mut()
                .filter(|running| !running.ready.is_empty())
                .min_by(|a, b| order.compare(&a.ready[0].0, &b.ready[0].0));
            let Some((position, json)) = first.and_then(|running| running.ready.pop_front()) else {
                return Ok(None);
            };
            // A record found by several searches appears several times in a row.
            if self.last.replace(position.id) != Some(position.id) {
                return Ok(Some(FoundRecord { position, json }));
            }
        }
    }
}

impl RunningSearch<'_> {
    /// Continues the search until a record is ready or the search has ended.
    fn fill(&mut self, lines: Option<&dyn LineFormat>) -> anyhow::Result<()> {
        let mut line = Vec::new();
        while self.ready.is_empty() && !self.done {
            let Self { search, ready, .. } = self;
            let mut bytes = 0;
            let progress = search.gather(SLICE_ROWS, ready, &mut |record| {
                bytes += record.wire().len();
                line.clear();
                if let Some(lines) = lines {
                    lines.write(record, &mut line);
                }
                let is_enough = bytes >= READY_BYTES;
                let flow =
                    if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
                (line.as_slice().into(), flow)
            })?;
            self.done = progress != SearchProgress::Paused;
        }
        Ok(())
    }
}
