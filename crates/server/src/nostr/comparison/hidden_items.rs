//! The hidden events of a comparison that is answered from the store's sums. The sums include these
//! events, so each answer leaves them out again.

use hark_codec::id_sum::IdTally;
use hark_codec::nostr::negentropy::{NegentropyItem, NegentropySet as _, SummedItems};
use hark_networks::nostr::NostrRefusal;

use super::set::SetMemory;
use crate::nostr::Relay;
use crate::nostr::cost::QuestionCost;
use crate::nostr::hidden_events::{HiddenEvents, HiddenProgress};

/// Maximum number of hidden events of a comparison. This number of events takes some megabytes.
const ITEMS_MAX: usize = 50_000;

/// The hidden events of a comparison.
pub(super) struct HiddenItems {
    items: SummedItems,
    _memory: SetMemory,
}

impl HiddenItems {
    /// The number of hidden events before a position, and the sum of their ids.
    pub(super) fn before(&self, at: &NegentropyItem) -> IdTally {
        let count = self.items.lower_bound(0, at);
        IdTally { count: count as u64, sum: self.items.sum(0..count) }
    }

    /// Whether an event is hidden.
    pub(super) fn have(&self, item: &NegentropyItem) -> bool {
        self.items.item(self.items.lower_bound(0, item)) == Some(item)
    }
}

/// A search for the hidden events of a comparison.
pub(super) struct HiddenSearch {
    events: HiddenEvents,
    items: Vec<NegentropyItem>,
    memory: SetMemory,
}

/// The state of the search after a time slice.
pub(super) enum HiddenFound {
    More(HiddenSearch),
    /// All hidden events are found.
    All(HiddenItems),
    /// The hidden events are too many for this way of comparing.
    TooMany(SetMemory),
}

impl HiddenSearch {
    pub(super) fn new(events: HiddenEvents, memory: SetMemory) -> Self {
        Self { events, items: Vec::new(), memory }
    }

    /// Continues the search for one time slice.
    pub(super) fn work(
        mut self,
        relay: &Relay,
        cost: &mut QuestionCost,
        work: u64,
    ) -> Result<HiddenFound, NostrRefusal> {
        let items = &mut self.items;
        let progress = self.events.work(relay, cost, work, &mut |record| {
            if items.len() <= ITEMS_MAX {
                items.push(NegentropyItem { time: record.time(), id: *record.id() });
            }
        })?;
        self.memory.hold(self.items.len())?;
        Ok(match progress {
            HiddenProgress::Exhausted => HiddenFound::TooMany(self.memory),
            _ if self.items.len() > ITEMS_MAX => HiddenFound::TooMany(self.memory),
            HiddenProgress::More => HiddenFound::More(self),
            HiddenProgress::Done => {
                HiddenFound::All(HiddenItems { items: self.items.into(), _memory: self.memory })
            }
        })
    }
}
