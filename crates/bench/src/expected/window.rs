//! The newest events that match a filter: as many as the filter's limit, and all further events of
//! the same second as the oldest event.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use hark_codec::record::Id;

/// An event of an answer: its time and its id.
pub(crate) type AnsweredEvent = (u64, Id);

/// The events that may be in an answer.
#[derive(Clone)]
pub(super) struct AnswerWindow {
    limit: usize,
    /// The ids of each second.
    seconds: BTreeMap<u64, BTreeSet<Id>>,
    /// Those of these ids whose events a relay need not hold.
    optional: BTreeSet<Id>,
    /// The number of events that are not optional.
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
        Self { limit, seconds: BTreeMap::new(), optional: BTreeSet::new(), count: 0 }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Adds an event. Events that can no longer be in the answer are dropped. Optional events do not
    /// count towards the limit.
    pub(super) fn add(&mut self, (time, id): AnsweredEvent, is_optional: bool) {
        let is_full = self.count >= self.limit;
        if is_full && self.seconds.first_key_value().is_none_or(|(oldest, _)| time < *oldest) {
            return;
        }
        let is_new = self.seconds.entry(time).or_default().insert(id);
        if is_optional {
            self.optional.insert(id);
        } else {
            self.count += usize::from(is_new);
        }
        self.shrink();
    }

    /// Drops the oldest seconds as long as the newer seconds have enough events.
    fn shrink(&mut self) {
        while let Some(oldest) = self.seconds.first_entry() {
            let optional = &self.optional;
            let required = oldest.get().iter().filter(|id| !optional.contains(*id)).count();
            if self.count - required < self.limit {
                break;
            }
            self.count -= required;
            for id in oldest.remove() {
                self.optional.remove(&id);
            }
        }
    }

    /// The window of a relay that holds the optional events of this answer, and no others.
    pub(super) fn of_answer(&self, answer: &BTreeSet<AnsweredEvent>) -> Cow<'_, Self> {
        if self.optional.is_empty() {
            return Cow::Borrowed(self);
        }
        let mut window = self.clone();
        let optional = std::mem::take(&mut window.optional);
        for (time, ids) in &mut window.seconds {
            ids.retain(|id| !optional.contains(id) || answer.contains(&(*time, *id)));
        }
        window.seconds.retain(|_, ids| !ids.is_empty());
        window.count = window.seconds.values().map(BTreeSet::len).sum();
        window.shrink();
        Cow::Owned(window)
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
