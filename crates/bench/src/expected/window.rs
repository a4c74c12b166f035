//! The newest events that match a filter: as many as the filter's limit, and all further events of
//! the oldest of these seconds.

use std::collections::{BTreeMap, BTreeSet};

use hark_codec::record::Id;

/// An event of an answer: its time and its id.
pub(crate) type AnsweredEvent = (u64, Id);

/// The events that may be in an answer.
pub(super) struct AnswerWindow {
    limit: usize,
    /// The ids of each second.
    seconds: BTreeMap<u64, BTreeSet<Id>>,
    count: usize,
}

/// The events of an answer in the oldest second of its window, where the limit may leave a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Boundary {
    /// Events are missing, in this second or in newer seconds.
    Missing,
    /// The answer has enough events, but not those with the lowest ids.
    OtherIds,
    LowestIds,
}

impl AnswerWindow {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, seconds: BTreeMap::new(), count: 0 }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Adds an event. Events that can no longer be in the answer are dropped.
    pub(super) fn add(&mut self, (time, id): AnsweredEvent) {
        let is_full = self.count >= self.limit;
        if is_full && self.seconds.first_key_value().is_none_or(|(oldest, _)| time < *oldest) {
            return;
        }
        self.count += usize::from(self.seconds.entry(time).or_default().insert(id));
        while let Some(oldest) = self.seconds.first_entry()
            && self.count - oldest.get().len() >= self.limit
        {
            self.count -= oldest.remove().len();
        }
    }

    /// The events, oldest first.
    pub(super) fn events(&self) -> impl Iterator<Item = AnsweredEvent> {
        self.seconds.iter().flat_map(|(time, ids)| ids.iter().map(|id| (*time, *id)))
    }

    pub(super) fn has(&self, (time, id): &AnsweredEvent) -> bool {
        self.seconds.get(time).is_some_and(|ids| ids.contains(id))
    }

    /// Compares the events of an answer with those of the window.
    pub(super) fn boundary(&self, answer: &BTreeSet<AnsweredEvent>) -> Boundary {
        let Some((&oldest, choice)) = self.seconds.first_key_value() else {
            return Boundary::LowestIds;
        };
        let newer = self.seconds.range(oldest + 1..);
        let is_there = |time: u64, id: &Id| answer.contains(&(time, *id));
        if !newer.clone().all(|(time, ids)| ids.iter().all(|id| is_there(*time, id))) {
            return Boundary::Missing;
        }
        let left = self.limit.saturating_sub(self.count - choice.len()).min(choice.len());
        if choice.iter().filter(|id| is_there(oldest, id)).count() < left {
            return Boundary::Missing;
        }
        let are_lowest = choice.iter().take(left).all(|id| is_there(oldest, id));
        if are_lowest { Boundary::LowestIds } else { Boundary::OtherIds }
    }
}
