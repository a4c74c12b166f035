//! Comparisons over events that are not held: the store is asked for sums.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use hark_archive::store::ranges::IdRanges;
use hark_archive::{Gate, Position, Query, SearchError, SearchProgress, Store};
use hark_codec::id_sum::IdTally;
use hark_codec::nostr::negentropy::{NegentropyItem, NegentropyRanges};

use super::Comparison;
use crate::nostr::cost::QuestionCost;

/// Most events of a set that is held although the store keeps sums: 800 KB.
const HELD_MAX: u64 = 20_000;

fn position(at: &NegentropyItem) -> Position {
    Position { time: at.time, id: at.id }
}

fn item(at: Position) -> NegentropyItem {
    NegentropyItem { time: at.time, id: at.id }
}

/// The events of a store by ranges.
pub(super) struct StoreRanges(pub(super) Box<dyn IdRanges>);

impl StoreRanges {
    /// Returns the query by which the comparison's events are asked for by ranges. `None` if its set is
    /// to be held.
    pub(super) fn query(
        comparison: &Comparison,
        store: &dyn Store,
        cost: &mut QuestionCost,
        work: u64,
    ) -> Result<Option<Arc<Query>>, SearchError> {
        let mut query = Query { limit: usize::MAX, ..comparison.query.clone() };
        if !comparison.is_whole || query.is_void() {
            return Ok(None);
        }
        let gate = query.gate.take();
        query.gate = gate.as_deref().map(Gate::to_strangers).map(Arc::new);
        if query.window_without().is_none() {
            return Ok(None);
        }
        let Some(ranges) = cost.compare(|| store.ranges(&query))? else { return Ok(None) };
        let ranges = Self(ranges);
        let end = NegentropyItem { time: u64::MAX, id: [0; 32] };
        let all = cost.compare(|| ranges.before(&end).minus(ranges.before(&Default::default())));
        ranges.0.check()?;
        if all.count <= HELD_MAX.min(comparison.events_max as u64) {
            return Ok(None);
        }
        let sees_hidden = match &gate {
            Some(gate) if !gate.is_to_strangers() => {
                let kinds = Some(gate.kinds.clone());
                let own = Query { gate: Some(Arc::clone(gate)), kinds, limit: 1, ..query.clone() };
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
        Ok((!sees_hidden).then(|| Arc::new(query)))
    }
}

impl NegentropyRanges for StoreRanges {
    fn before(&self, at: &NegentropyItem) -> IdTally {
        self.0.before(&position(at))
    }

    fn items(&self, range: Range<NegentropyItem>, max: usize) -> Vec<NegentropyItem> {
        let items = self.0.items(&position(&range.start), &position(&range.end), max);
        items.into_iter().map(item).collect()
    }

    fn divide(&self, range: Range<NegentropyItem>, parts: usize) -> Vec<NegentropyItem> {
        let cuts = self.0.divide(&position(&range.start), &position(&range.end), parts);
        cuts.into_iter().map(item).collect()
    }
}
