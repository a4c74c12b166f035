//! Answers one message of a comparison, on the reader threads. For the first message, a search
//! collects the set; each message is then answered from the set. Without a set, each message is
//! answered from the store's sums.
//!
//! Long work is done in time slices: the search in slices of rows, the answer in slices of ranges.
//! A message is checked as a whole before its search begins.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hark_archive::{Query, Record, SearchProgress};
use hark_codec::nostr::negentropy::{
    NegentropyItem, NegentropyResponder, NegentropySet, RangesResponder, check_message,
};
use hark_networks::nostr::NostrVerdict;

use super::ranges::{RangesCandidate, StoreRanges};
use super::set::{ComparedSet, CountedSet, SetMemory};
use super::{Comparison, ComparisonRefusal, ReceivedComparison};
use crate::budget::BudgetShare;
use crate::nostr::Relay;
use crate::nostr::cost::{QuestionCost, TimedSearch};
use crate::nostr::outbox::{Outbox, RequestPermit};
use crate::nostr::readers::{ReaderJob, SliceResult};
use crate::nostr::refusal::bug;
use crate::rate::RatedConnection;

/// Ranges of a message that are answered in one time slice. Each takes some microseconds.
const RANGES_PER_SLICE: usize = 64;

/// Length of a time slice where the store sums ranges. The sum of a range takes microseconds to
/// milliseconds.
const SUMMED_SLICE: Duration = Duration::from_micros(500);

/// Maximum bytes of a NEG-MSG beside its hex digits: an id of 64 characters, all escaped.
const NEG_MSG_BYTES: usize = 512;

/// A message that is being answered.
pub(super) struct ComparisonJob {
    relay: Arc<Relay>,
    comparison: Arc<Comparison>,
    /// The message, until it is answered.
    message: Option<Vec<u8>>,
    answer_bytes_max: usize,
    /// The ranges that may answer the first message instead of a set, until this is decided.
    candidate: Option<RangesCandidate>,
    /// The answer from a set.
    answer: Option<NegentropyResponder>,
    /// The answer from the store's sums.
    by_ranges: Option<(RangesResponder, StoreRanges)>,
    /// The memory for the set to be collected.
    memory: Option<SetMemory>,
    taking: Option<(TimedSearch, ComparedSet)>,
    cost: QuestionCost,
    _held: (RequestPermit, BudgetShare),
}

impl ComparisonJob {
    /// `memory` is the memory for the set. The parameter is present only for the first message of a
    /// comparison.
    pub(super) fn new(
        relay: Arc<Relay>,
        comparison: Arc<Comparison>,
        received: ReceivedComparison,
        memory: Option<SetMemory>,
        rated: RatedConnection,
        permit: RequestPermit,
    ) -> Self {
        let cost = QuestionCost::new(&relay, rated);
        Self {
            relay,
            comparison,
            message: Some(received.message),
            answer_bytes_max: received.answer_bytes_max,
            candidate: None,
            answer: None,
            by_ranges: None,
            memory,
            taking: None,
            cost,
            _held: (permit, received.memory),
        }
    }

    fn work(&mut self) -> Result<SliceResult, ComparisonRefusal> {
        if let Some(message) = self.message.take() {
            self.begin(message)?;
            if self.message.is_some() {
                return Ok(SliceResult::More);
            }
        }
        if self.by_ranges.is_some() {
            return self.work_by_ranges();
        }
        if self.memory.is_some() || self.taking.is_some() {
            // The set is also collected for a message of another version, because the client will
            // ask again in the version used here.
            let Some(set) = self.take_set()? else { return Ok(SliceResult::More) };
            self.comparison.keep(set);
            return Ok(SliceResult::More);
        }
        let set = self.comparison.state.lock().set.clone();
        // Without a set, the comparison has ended meanwhile.
        let (Some(set), Some(answer)) = (set, &mut self.answer) else {
            return Ok(SliceResult::Done);
        };
        let counted = CountedSet::new(&set);
        let step = || (answer.step(&counted, RANGES_PER_SLICE), counted.rows());
        if self.cost.compare(step) {
            return Ok(SliceResult::More);
        }
        self.cost.compared();
        if let Some(answer) = self.answer.take() {
            self.comparison.answer(&answer.finish());
        }
        Ok(SliceResult::Done)
    }

    /// Checks the message, and decides whether the answer comes from a set or from the store's
    /// sums. Keeps the message if the decision needs another time slice.
    fn begin(&mut self, message: Vec<u8>) -> Result<(), ComparisonRefusal> {
        let settings = self.relay.settings();
        let limits = &settings.limits;
        let bytes_max = self.answer_bytes_max.min(limits.outbox_bytes_max);
        let frame_bytes_max = bytes_max.saturating_sub(NEG_MSG_BYTES) / 2;
        let store = &**self.relay.shelf.store();
        let mut query = self.comparison.state.lock().by_ranges.clone();
        if self.memory.is_some() {
            if self.candidate.is_none() {
                // An invalid message costs no search.
                check_message(&message)?;
                self.candidate = RangesCandidate::of(&self.comparison, store)?;
            }
            if let Some(candidate) = self.candidate.take() {
                if self.cost.compare(|| candidate.prepare()) {
                    (self.candidate, self.message) = (Some(candidate), Some(message));
                    return Ok(());
                }
                let (comparison, cost) = (&self.comparison, &mut self.cost);
                query = candidate.query(comparison, store, cost, limits.slice_rows)?;
            }
        }
        let Some(query) = query else {
            self.answer = Some(NegentropyResponder::new(message, frame_bytes_max)?);
            return Ok(());
        };
        let hidden = query.gate.as_ref().map_or(&[][..], |gate| &gate.kinds);
        if *hidden != *self.relay.identity.current().private_kinds() {
            let changed = "other events are private since you began; begin again";
            return Err(NostrVerdict::Closed.because(changed).into());
        }
        let now = Query { now: self.relay.shelf.clock().now_s(), ..(*query).clone() };
        let Some(ranges) = store.ranges(&now)? else {
            let lacking = "a part of the archive is being made anew; begin again";
            return Err(NostrVerdict::Error.because(lacking).into());
        };
        let answer = RangesResponder::new(message, frame_bytes_max)?;
        self.by_ranges = Some((answer, StoreRanges::new(ranges)));
        self.comparison.state.lock().by_ranges = Some(query);
        self.memory = None;
        Ok(())
    }

    fn work_by_ranges(&mut self) -> Result<SliceResult, ComparisonRefusal> {
        let started = Instant::now();
        while let Some((answer, ranges)) = &mut self.by_ranges
            && self.cost.compare(|| ranges.counted(|| answer.step(ranges, 1)))
        {
            if started.elapsed() >= SUMMED_SLICE {
                return Ok(SliceResult::More);
            }
        }
        self.cost.compared();
        if let Some((answer, ranges)) = self.by_ranges.take() {
            ranges.check()?;
            self.comparison.answer(&answer.finish());
        }
        Ok(SliceResult::Done)
    }

    /// Collects a part of the set. Returns the set when it is complete.
    fn take_set(&mut self) -> Result<Option<ComparedSet>, ComparisonRefusal> {
        let mut work = self.relay.settings().limits.slice_rows;
        let (mut search, mut set) = if let Some(taking) = self.taking.take() {
            taking
        } else {
            let Some(memory) = self.memory.take() else { return Ok(None) };
            let (set, query) = (ComparedSet::new(memory), &self.comparison.query);
            if query.is_void() {
                return Ok(Some(set.seal()));
            }
            self.count(work)?;
            let query = &self.comparison.query;
            (self.cost.open(&**self.relay.shelf.store(), query, &mut work)?, set)
        };
        let mut no_memory = None;
        let progress = self.cost.slice(&mut search, work.max(1), &mut |record: &Record<'_>| {
            let item = NegentropyItem { time: record.time(), id: *record.id() };
            no_memory = set.push(item).err();
            if no_memory.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if let Some(refusal) = no_memory {
            return Err(refusal.into());
        }
        match progress?.0 {
            _ if set.size() > self.comparison.events_max => Err(self.too_big()),
            SearchProgress::Paused => {
                self.taking = Some((search, set));
                Ok(None)
            }
            SearchProgress::Done { .. } => Ok(Some(set.seal())),
            SearchProgress::Exhausted => Err(self.too_big()),
        }
    }

    /// Refuses a comparison over too many events before the events are visited. This works if the
    /// store can count the events within a time slice.
    fn count(&mut self, budget: u64) -> Result<(), ComparisonRefusal> {
        let Comparison { query, events_max, .. } = &*self.comparison;
        if query.limit <= *events_max {
            return Ok(());
        }
        let query = Query { budget: query.budget.min(budget), ..query.clone() };
        let count = self.cost.count(&**self.relay.shelf.store(), &query)?;
        if count.is_some_and(|count| count > *events_max as u64) {
            return Err(self.too_big());
        }
        Ok(())
    }

    fn too_big(&self) -> ComparisonRefusal {
        ComparisonRefusal {
            why: NostrVerdict::Blocked.because("this query is too big"),
            events_max: Some(self.comparison.events_max),
        }
    }
}

impl Drop for ComparisonJob {
    fn drop(&mut self) {
        let query = &self.comparison.query;
        let asked = std::iter::once((query, query.limit));
        self.relay.slow.note("NEG", &self.cost.spent(), asked);
    }
}

impl ReaderJob for ComparisonJob {
    fn turn(&mut self, _: u64) -> SliceResult {
        if self.comparison.over.is() || self.comparison.outbox.is_gone() {
            return SliceResult::Done;
        }
        self.cost.begin();
        self.work().unwrap_or_else(|refusal| {
            self.comparison.refuse(&refusal);
            SliceResult::Done
        })
    }

    fn fail(&mut self) {
        self.comparison.refuse(&bug().into());
    }

    fn outbox(&self) -> Arc<Outbox> {
        Arc::clone(&self.comparison.outbox)
    }
}
