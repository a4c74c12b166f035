//! Comparisons without a set in memory: the store computes sums over ranges.

use std::cell::Cell;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use hark_archive::store::ranges::IdRanges;
use hark_archive::{Gate, Position, Query, SearchError, SearchProgress, Store};
use hark_codec::id_sum::IdTally;
use hark_codec::nostr::negentropy::{NegentropyItem, NegentropyRanges};

use super::hidden_items::HiddenItems;
use super::state::Comparison;
use crate::nostr::cost::QuestionCost;

/// A comparison of at most this number of events uses a set even if the store keeps sums. A set of
/// this size takes 800 KB.
const HELD_MAX: u64 = 20_000;

fn position(at: &NegentropyItem) -> Position {
    Position { time: at.time, id: at.id }
}

fn item(at: Position) -> NegentropyItem {
    NegentropyItem { time: at.time, id: at.id }
}

/// Access to a store's events by range: sums of ids, and positions of events.
pub(super) struct StoreRanges {
    ranges: Box<dyn IdRanges>,
    /// Number of rows that are charged already.
    charged: Cell<u64>,
    /// The events that the store's sums include, but the answers must not include.
    hidden: Option<Arc<HiddenItems>>,
}

impl StoreRanges {
    pub(super) fn new(ranges: Box<dyn IdRanges>, hidden: Option<Arc<HiddenItems>>) -> Self {
        Self { ranges, charged: Cell::new(0), hidden }
    }

    /// Returns the result of `work`, and the rows to charge for the work.
    pub(super) fn counted<T>(&self, work: impl FnOnce() -> T) -> (T, u64) {
        let worked = work();
        let visited = self.ranges.visited();
        (worked, visited - self.charged.replace(visited))
    }

    /// Returns an error if an earlier answer may be wrong.
    pub(super) fn check(&self) -> Result<(), SearchError> {
        self.ranges.check()
    }
}

/// A comparison that may be answered from the store's sums over ranges.
pub(super) struct RangesCandidate {
    query: Arc<Query>,
    /// The gate of the comparison's client. `query` itself has the gate of a client without a
    /// proven key.
    gate: Option<Arc<Gate>>,
    ranges: StoreRanges,
}

impl RangesCandidate {
    /// Creates the candidate if the filter has only `since` and `until`, and if the store keeps
    /// sums.
    pub(super) fn of(
        comparison: &Comparison,
        store: &dyn Store,
    ) -> Result<Option<Self>, SearchError> {
        // The sums include the hidden events, which `HiddenItems` finds.
        let mut query = Query { limit: usize::MAX, hidden: None, ..comparison.query.clone() };
        if !comparison.is_whole || query.is_void() {
            return Ok(None);
        }
        let gate = query.gate.take();
        query.gate = gate.as_deref().map(Gate::to_strangers).map(Arc::new);
        if query.window_without().is_none() {
            return Ok(None);
        }
        let ranges = store.ranges(&query)?;
        let ranges = ranges.map(|ranges| StoreRanges::new(ranges, None));
        Ok(ranges.map(|ranges| Self { query: Arc::new(query), gate, ranges }))
    }

    /// Does a part of the preparation. Returns whether more preparation is left, and the rows to
    /// charge for this part.
    pub(super) fn prepare(&self) -> (bool, u64) {
        self.ranges.counted(|| self.ranges.ranges.prepare())
    }

    /// Returns the query for the store's sums over ranges. Returns `None` if the comparison is to
    /// use a set.
    pub(super) fn query(
        self,
        comparison: &Comparison,
        store: &dyn Store,
        cost: &mut QuestionCost,
        work: u64,
    ) -> Result<Option<Arc<Query>>, SearchError> {
        let Self { query, gate, ranges } = self;
        let count = |at| ranges.ranges.count(&Position { time: at, id: [0; 32] });
        let all = cost.compare(|| ranges.counted(|| count(u64::MAX).saturating_sub(count(0))));
        ranges.check()?;
        if all <= HELD_MAX.min(comparison.events_max as u64) {
            return Ok(None);
        }
        let sees_hidden = match gate {
            Some(gate) if !gate.is_to_strangers() => {
                let kinds = Some(gate.kinds.clone());
                let own = Query { gate: Some(gate), kinds, limit: 1, ..(*query).clone() };
                let mut work = work;
                let mut search = cost.open(store, &own, &mut work)?;
                let mut found = false;
                let progress = cost.slice(&mut search, work.max(1), &mut |_| {
                    found = true;
                    ControlFlow::Break(())
                })?;
                found || !matches!(progress.0, SearchProgress::Done { .. })
            }
            _ => false,
        };
        Ok((!sees_hidden).then_some(query))
    }
}

impl NegentropyRanges for StoreRanges {
    fn before(&self, at: &NegentropyItem) -> IdTally {
        let all = self.ranges.before(&position(at));
        self.hidden.as_ref().map_or(all, |hidden| all.minus(hidden.before(at)))
    }

    fn items(&self, range: Range<NegentropyItem>, max: usize) -> Vec<NegentropyItem> {
        let Range { start, end } = range;
        let hidden = self.hidden.as_deref();
        let count = |hidden: &HiddenItems| hidden.before(&end).minus(hidden.before(&start)).count;
        let more = hidden.map_or(0, count) as usize;
        let items = self.ranges.items(&position(&start), &position(&end), max.saturating_add(more));
        let seen = items.into_iter().map(item);
        seen.filter(|item| hidden.is_none_or(|hidden| !hidden.have(item))).take(max).collect()
    }

    fn divide(&self, range: Range<NegentropyItem>, parts: usize) -> Vec<NegentropyItem> {
        let cuts = self.ranges.divide(&position(&range.start), &position(&range.end), parts);
        cuts.into_iter().map(item).collect()
    }
}
