//! Ranges of ids over all parts (heads and segments) of a shelf.

use std::cell::Cell;
use std::sync::Arc;

use hark_archive::store::ranges::IdRanges;
use hark_archive::{Position, Query, SearchError};
use hark_codec::id_sum::IdTally;

use super::current_view::ReadFaults;
use super::faults::check_reads;
use super::shelf::OpenShelf;
use super::shelf_view::ShelfView;
use crate::sums::SummedSegment;

/// Cost of a sum in one part, as a number of rows: one position is looked up, and the ids of two
/// blocks are added.
const SUM_ROWS: u64 = 16;
/// Cost of looking up a position in one part, as a number of rows.
const PLACE_ROWS: u64 = 2;

/// The visible records of a time window.
struct ShelfRanges {
    shelf: Arc<OpenShelf>,
    view: Arc<ShelfView>,
    hidden: Vec<u32>,
    now: u64,
    /// The window: from the first position, inclusive, to the second position, exclusive.
    window: (Position, Position),
    faults: ReadFaults,
    visited: Cell<u64>,
}

/// Returns the ranges of the matching records. `None` if sums cannot answer the query, or if a
/// segment has no sums.
pub(super) fn id_ranges(shelf: &Arc<OpenShelf>, query: &Query) -> Option<Box<dyn IdRanges>> {
    let hidden = query.window_without()?;
    let (view, faults) = (shelf.view.load_full(), shelf.view.faults());
    if !view.segments.iter().all(|segment| segment.file.has_ids) {
        return None;
    }
    let start = |time| Position { time, id: [0; 32] };
    let end = query.to.checked_add(1).map_or(Position { time: u64::MAX, id: [0xff; 32] }, start);
    let (shelf, window) = (Arc::clone(shelf), (start(query.from), end));
    let (now, visited) = (query.now, Cell::new(0));
    Some(Box::new(ShelfRanges { shelf, view, hidden, now, window, faults, visited }))
}

impl ShelfRanges {
    fn clamp(&self, at: &Position) -> Position {
        let key = |at: &Position| (at.time, at.id);
        let (from, to) = &self.window;
        let (time, id) = key(at).clamp(key(from), key(to).max(key(from)));
        Position { time, id }
    }

    /// Adds `rows` to the cost of the query.
    fn visit(&self, rows: u64) {
        self.visited.set(self.visited.get() + rows);
    }

    /// Adds `rows_each` for each part to the cost of the query.
    fn visit_parts(&self, rows_each: u64) {
        self.visit((self.view.segments.len() + self.view.heads().count()) as u64 * rows_each);
    }

    fn segments(&self) -> impl Iterator<Item = SummedSegment<'_>> {
        let summed = |segment| SummedSegment::new(segment, &self.hidden, self.now);
        self.view.segments.iter().map(move |segment| summed(segment))
    }
}

fn sort(items: &mut [Position]) {
    items.sort_unstable_by_key(|at| (at.time, at.id));
}

impl IdRanges for ShelfRanges {
    fn before(&self, at: &Position) -> IdTally {
        self.visit_parts(SUM_ROWS);
        let at = self.clamp(at);
        let sealed = self.segments().map(|segment| segment.before(&at));
        let heads = self.view.heads();
        let heads = heads.map(|head| head.summed(&self.hidden, self.now, |rows| rows.before(&at)));
        sealed.chain(heads).fold(IdTally::default(), IdTally::plus)
    }

    fn items(&self, from: &Position, to: &Position, max: usize) -> Vec<Position> {
        self.visit_parts(SUM_ROWS);
        let (from, to) = (self.clamp(from), self.clamp(to));
        let mut items = Vec::new();
        for segment in self.segments() {
            segment.items(&from, &to, max, &mut items);
        }
        for head in self.view.heads() {
            head.summed(&self.hidden, self.now, |rows| {
                let within = |at: &Position| (at.time, at.id) < (to.time, to.id);
                items.extend(rows.from(&from).take_while(within).take(max));
            });
        }
        self.visit(items.len() as u64);
        sort(&mut items);
        items.truncate(max);
        items
    }

    fn count(&self, at: &Position) -> u64 {
        self.visit_parts(PLACE_ROWS);
        let at = self.clamp(at);
        let sealed: u64 = self.segments().map(|segment| segment.count(&at)).sum();
        let heads = self.view.heads();
        let heads = heads.map(|head| head.summed(&self.hidden, self.now, |rows| rows.count(&at)));
        sealed + heads.sum::<u64>()
    }

    fn prepare(&self) -> bool {
        let mut parts = self.segments().skip_while(SummedSegment::is_ready);
        let Some(part) = parts.next() else { return false };
        self.visit(part.prepare());
        parts.next().is_some()
    }

    fn visited(&self) -> u64 {
        self.visited.get()
    }

    fn check(&self) -> Result<(), SearchError> {
        check_reads(&self.shelf, &self.view, &self.faults, || self.view.trouble())
    }
}
